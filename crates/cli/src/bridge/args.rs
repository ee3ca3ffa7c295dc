//! The arguments of `rescind bridge`.

use std::path::PathBuf;

use clap::Args;

use crate::cluster::ClusterArgs;
use crate::endpoint::Binding;
use crate::endpoint::{Endpoint, Flags, WireOptions, dialect};
use crate::serving::PageArgs;

const LISTEN: &str = "Where clients connect";
const BEHIND: &str = "What is behind the bridge";

/// `rescind bridge`.
#[derive(Debug, Args)]
pub(crate) struct BridgeArgs {
    /// The dialect of both sides. All but abp; mcp-2026 not with http:// on the side of the clients.
    #[arg(long, value_name = "D", value_parser = dialect)]
    pub(crate) dialect: &'static str,
    /// The dialect of the program behind the bridge, if it spells cancels differently: acp or acp-draft.
    #[arg(long, help_heading = BEHIND, value_name = "D", value_parser = dialect)]
    pub(crate) to_dialect: Option<&'static str>,
    /// Where clients connect: stdio, pipe:PATH-OR-NAME, ws://HOST:PORT/PATH, wss://, http:// or https://. Port 0 takes
    /// a free port. Except for stdio, the line `listening on ENDPOINT` on stderr names the endpoint.
    #[arg(long, help_heading = LISTEN, value_name = "ENDPOINT")]
    pub(crate) listen: Endpoint,
    #[command(flatten)]
    pub(crate) wire_options: WireOptions,
    /// Also serve the transport of MCP 2024-11-05: GET /sse and POST /messages, beside the path of --listen.
    #[arg(long, help_heading = LISTEN)]
    pub(crate) legacy_sse: bool,
    /// The most sessions at once.
    #[arg(long, help_heading = LISTEN, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_sessions: u32,
    /// End a session that nobody uses after this many seconds. One whose event stream is read, or for whose request a
    /// client waits, is in use. [default: 1800 over HTTP, else never]
    #[arg(long, help_heading = LISTEN, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub(crate) idle: Option<u64>,
    /// How many seconds running requests have to end after SIGTERM or SIGINT, before they are cancelled. They have 2 s more
    /// then, and COMMAND 2 s. The bridge ends after this time and 5 s, so by default after 7 s at most.
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub(crate) drain: u64,
    /// Accept only clients that send the token in this file: `Authorization: Bearer TOKEN`.
    #[arg(long, help_heading = LISTEN, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// The certificate chain of the bridge, for wss:// and https://.
    #[arg(long, help_heading = LISTEN, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of that certificate.
    #[arg(long, help_heading = LISTEN, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Require a client certificate issued by this authority, for wss:// and https://.
    #[arg(long, help_heading = LISTEN, value_name = "FILE")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Listen beyond this machine without TLS, for example behind a reverse proxy on another machine.
    #[arg(long, help_heading = LISTEN)]
    pub(crate) insecure: bool,
    /// Serve this host name too, such as `tools.example` or `tools.example:8080`: for containers, clusters and tunnels. May
    /// be repeated. [default: the names of this machine, and the host of `--listen`]
    #[arg(long = "allow-host", help_heading = LISTEN, value_name = "NAME")]
    pub(crate) hosts: Vec<String>,
    /// Accept web pages of this origin, such as `https://app.example`. May be repeated. [default: those of this machine]
    #[arg(long = "allow-origin", help_heading = LISTEN, value_name = "ORIGIN")]
    pub(crate) origins: Vec<String>,
    /// Pass this variable of the bridge's environment to COMMAND, or set it. May be repeated.
    /// [default: only a few plain variables such as PATH and HOME are passed]
    #[arg(long = "env", help_heading = BEHIND, value_name = "NAME[=VALUE]")]
    pub(crate) variables: Vec<String>,
    /// Pass the whole environment of the bridge to COMMAND.
    #[arg(long, help_heading = BEHIND)]
    pub(crate) inherit_env: bool,
    /// Framing of COMMAND's stdio or of a pipe: behind the bridge: newline or content-length. [default: the dialect's]
    #[arg(long, help_heading = BEHIND, value_name = "F", value_parser = ["newline", "content-length"])]
    pub(crate) to_framing: Option<String>,
    /// Binding of an http:// or https:// endpoint behind the bridge. [default: the dialect's; for mcp, a server of
    /// 2024-11-05 is found]
    #[arg(long, help_heading = BEHIND, value_name = "B", value_enum)]
    pub(crate) to_binding: Option<Binding>,
    /// Send the token in this file to the endpoint behind the bridge. The file is read again when it changes, and when the
    /// endpoint refuses the token.
    #[arg(long, help_heading = BEHIND, value_name = "FILE")]
    pub(crate) to_token_file: Option<PathBuf>,
    /// The certificate authority to trust, for a wss:// or https:// endpoint behind the bridge. [default: the system's]
    #[arg(long, help_heading = BEHIND, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// The server behind the bridge, connected to once for each session: pipe:, ws://, wss://, http:// or https://.
    #[arg(value_name = "ENDPOINT", required_unless_present = "command")]
    pub(crate) endpoint: Option<Endpoint>,
    /// The program behind the bridge, started once for each session, without a shell.
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "endpoint")]
    pub(crate) command: Vec<String>,
}

/// `rescind child`.
#[cfg(target_os = "linux")]
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {
    /// The process that started this one.
    pub(crate) parent: i32,
    /// The program to become, and its arguments.
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<String>,
}

impl BridgeArgs {
    /// The flags of the side of the clients.
    pub(crate) fn listen_flags(&self) -> Flags {
        let WireOptions { framing, binding } = &self.wire_options;
        Flags {
            framing: framing.clone(),
            binding: *binding,
            tls_cert: self.tls_cert.clone(),
            tls_key: self.tls_key.clone(),
            tls_ca: None,
            client_ca: self.client_ca.clone(),
        }
    }

    /// The flags of the side behind the bridge.
    pub(crate) fn upstream_flags(&self) -> Flags {
        Flags {
            framing: self.to_framing.clone(),
            binding: self.to_binding,
            tls_ca: self.tls_ca.clone(),
            ..Flags::default()
        }
    }
}
