//! The arguments of the command line. Scripts rely on the names.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use rescind_testkit::dialects::DialectFacts;
use rescind_testkit::wires::WIRES;

use crate::bridge::BridgeArgs;
#[cfg(target_os = "linux")]
use crate::bridge::ChildArgs;
use crate::cluster::{CancelArgs, ClusterArgs, WorkerArgs};
use crate::endpoint::{Endpoint, Flags, WireOptions, dialect};
use crate::serving::PageArgs;
use crate::token::NamedToken;
use crate::{Exit, Failure};

/// Cancel single requests between two programs, with the same outcome on every wire.
#[derive(Debug, Parser)]
#[command(name = "rescind", version, max_term_width = 110)]
#[command(
    after_help = "Exit codes: 0 every scenario held; 1 a scenario broke; 2 the usage is wrong, the peer could not be \
                        started or reached, or a result could not be written.\n\nExample:\n\n    rescind matrix --dialect acp --wire stdio"
)]
pub(crate) struct Cli {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Log debug messages to stderr. With `-vv` every step is logged.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Play every scenario on every wire of this machine, in every dialect.
    #[command(
        after_help = "Examples:\n\n    rescind matrix\n    rescind matrix --dialect acp --table --reasons\n    rescind matrix --dialect mcp --dialect lsp --json > matrix.json\n    \
                      rescind matrix --wire named-pipe --scenario cancel_running --html matrix.html"
    )]
    Matrix(Matrix),
    /// Say what another project's agent or server does when a request is cancelled.
    #[command(
        after_help = "Examples:\n\n    rescind check --dialect mcp --slow 'tools/call {\"name\": \"long\"}' -- node server.mjs\n    rescind check \
                      --dialect acp --init -- my-agent --stdio > my-agent.toml\n    rescind check \
                      --dialect acp --profile my-agent.toml -- my-agent --stdio\n    rescind check --dialect lsp --step-timeout 20000 --html report.html \
                      pipe:/run/my-server/lsp.sock\n    rescind check --dialect mcp --tls-ca ca.pem --tls-cert me.pem --tls-key me.key \
                      https://localhost:8443/mcp\n    rescind check --client --dialect mcp -- node my-client.mjs"
    )]
    Check(Box<Check>),
    /// Serve the fixture agent, to test a client of your own.
    #[command(
        after_help = "Examples:\n\n    rescind fixture --dialect acp --listen stdio\n    rescind fixture --dialect lsp --listen \
                      pipe:my-fixture --framing content-length\n    rescind fixture --dialect mcp --listen https://127.0.0.1:8443/mcp \
                      --tls-cert server.pem --tls-key server.key --client-ca ca.pem\n    rescind fixture --dialect mcp --listen \
                      http://127.0.0.1:0/mcp --cluster redis://127.0.0.1:6379 --node n1"
    )]
    Fixture(Box<Fixture>),
    /// Put a program that speaks over stdio behind a network endpoint, or the reverse, with cancels kept.
    #[command(
        after_help = "Examples:\n\n    rescind bridge --dialect mcp --listen http://127.0.0.1:8080/mcp -- npx my-mcp-server\n    rescind bridge --dialect acp --listen \
                      ws://127.0.0.1:8080/acp -- my-agent --stdio\n    rescind bridge --dialect mcp --listen stdio https://tools.example/mcp\n    rescind bridge \
                      --dialect lsp --listen pipe:clangd -- clangd"
    )]
    Bridge(Box<BridgeArgs>),
    /// Cancel a request of a cluster by its key.
    #[command(
        after_help = "Exit codes: 0 the cancel is recorded; 1 it is not: the engine is away, or the key or the secret is wrong; 2 the usage is \
                      wrong.\n\nExample:\n\n    rescind cancel --cluster redis://127.0.0.1:6379 --secret-file secret --reason 'too dear' n1.0123.."
    )]
    Cancel(CancelArgs),
    /// Do the jobs that `test/remote` of a fixture hands out, and print an event a line.
    Worker(WorkerArgs),
    /// Print the completions for a shell to stdout.
    #[command(
        after_help = "Example:\n\n    rescind completions bash > ~/.local/share/bash-completion/completions/rescind"
    )]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a folder.
    #[command(after_help = "Example:\n\n    rescind man ~/.local/share/man/man1 && man rescind-bridge")]
    Man {
        /// Created if it does not exist.
        folder: PathBuf,
    },
    /// Copy between this process's stdin and stdout and a loopback address. Used by `matrix` and `check --client`.
    #[command(hide = true)]
    Relay(Relay),
    /// Become another program that ends with the process that started it. Used by `bridge`.
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Child(ChildArgs),
}

/// The command line without the commands that are hidden, which `clap_complete` would offer.
fn without_hidden() -> clap::Command {
    let whole = Cli::command();
    let shown = whole.get_subcommands().filter(|command| !command.is_hide_set());
    clap::Command::new("rescind")
        .version(env!("CARGO_PKG_VERSION"))
        .about(whole.get_about().cloned().unwrap_or_default())
        .after_help(whole.get_after_help().cloned().unwrap_or_default())
        .args(whole.get_arguments())
        .subcommands(shown)
}

/// `rescind completions`.
pub(crate) fn print_completions(shell: clap_complete::Shell) -> Result<Exit, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut without_hidden(), "rescind", &mut text);
    let written = std::io::stdout().lock().write_all(&text);
    written.map(|()| Exit::Held).map_err(|error| format!("the completions could not be written: {error}"))
}

/// `rescind man`.
pub(crate) fn write_man_pages(folder: &Path) -> Result<Exit, Failure> {
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(without_hidden().disable_help_subcommand(true), folder));
    written
        .map(|()| Exit::Held)
        .map_err(|error| format!("the man pages could not be written to {}: {error}", folder.display()))
}

/// `rescind matrix`.
#[derive(Debug, Args)]
pub(crate) struct Matrix {
    /// Play only this dialect. May be repeated. [default: all]
    #[arg(long = "dialect", value_name = "D", value_parser = dialect)]
    pub(crate) dialects: Vec<&'static DialectFacts>,
    /// Play only this wire. May be repeated. [default: all]
    #[arg(long = "wire", value_name = "W", value_parser = wire)]
    pub(crate) wires: Vec<&'static str>,
    /// Play only scenarios whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    pub(crate) scenario: Option<String>,
    /// Print a row for each scenario before the summary, and the messages of each cell that broke.
    #[arg(long)]
    pub(crate) table: bool,
    /// Print the reasons why cells were not asked.
    #[arg(long)]
    pub(crate) reasons: bool,
    /// Print the results as JSON to stdout. Summary, table and progress go to stderr.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write an HTML page that shows each cell with the frames on its wire.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// The options of a check that are for the facts about a server.
const OF_A_REPORT: [&str; 7] =
    ["slow", "quick", "progress", "no_witness", "strict", "junit", "problem_matcher"];

/// The headings of the help of a check.
const ASKED: &str = "What is asked";
const RESULTS: &str = "Results";
const INSTEAD: &str = "Other modes";

/// `rescind check`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Check {
    /// The dialect the peer speaks.
    #[arg(long, value_name = "D", value_parser = dialect)]
    pub(crate) dialect: &'static DialectFacts,
    /// How to open a session with the peer, and which of its requests are slow, quick or report progress.
    /// [default: the dialect's handshake, and no particular request]
    #[arg(long, help_heading = ASKED, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) wire_options: WireOptions,
    /// The certificate authority to trust, for wss:// and https://. [default: the system's]
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// The certificate chain to show to a wss:// or https:// server that requests one. [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of that certificate.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// A request that takes long, in place of the profile's.
    #[arg(long, help_heading = ASKED, value_name = "METHOD JSON")]
    pub(crate) slow: Option<String>,
    /// A request that is answered at once, in place of the profile's.
    #[arg(long, help_heading = ASKED, value_name = "METHOD JSON")]
    pub(crate) quick: Option<String>,
    /// A request that reports progress, in place of the profile's.
    #[arg(long, help_heading = ASKED, value_name = "METHOD JSON")]
    pub(crate) progress: Option<String>,
    /// Do not use this way to see that work stopped; may be repeated.
    #[arg(long = "no-witness", help_heading = ASKED, value_name = "W", value_parser = ["progress", "serial", "processor", "command", "request"])]
    pub(crate) no_witness: Vec<String>,
    /// Exit with 1 also for facts that the documents only recommend or leave open.
    #[arg(long, help_heading = ASKED)]
    pub(crate) strict: bool,
    #[arg(long, help_heading = RESULTS, value_name = "FILE", help = "Write the results as a JUnit file")]
    pub(crate) junit: Option<PathBuf>,
    /// Write GitHub's problem matcher to this file, and register it: problems become annotations of the run.
    #[arg(long, help_heading = RESULTS, value_name = "FILE")]
    pub(crate) problem_matcher: Option<PathBuf>,
    /// Write a commented profile for this peer, made from what it offers and from the times of requests that only read, to stdout.
    #[arg(long, help_heading = INSTEAD, conflicts_with_all = ["profile", "json", "html", "client"], conflicts_with_all = OF_A_REPORT)]
    pub(crate) init: bool,
    /// The document that the profile of a language server opens, and on which requests are measured; with --init.
    #[arg(long, help_heading = INSTEAD, value_name = "FILE", requires = "init")]
    pub(crate) document: Option<PathBuf>,
    /// Print the results as JSON to stdout.
    #[arg(long, help_heading = RESULTS)]
    pub(crate) json: bool,
    /// Write one page that shows the facts, and each scenario with its frames.
    #[arg(long, help_heading = RESULTS, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// The longest time for each step, in milliseconds. A slow request may take its own time besides.
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(crate) step_timeout: u64,
    /// The longest time for the handshake and the first request, in milliseconds. Programs load what they need first.
    #[arg(long, value_name = "MS", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..=600_000), conflicts_with = "client")]
    pub(crate) start_timeout: u64,
    /// Check a client instead: COMMAND is a program that connects to this one and cancels its own requests.
    #[arg(long, help_heading = INSTEAD, conflicts_with_all = ["profile", "html", "endpoint"], conflicts_with_all = OF_A_REPORT)]
    pub(crate) client: bool,
    /// Where the client connects: pipe:PATH-OR-NAME, ws:// or http://; port 0 takes a free one.
    /// [default: the client starts a command, and speaks to its stdin and stdout]
    #[arg(long, help_heading = INSTEAD, value_name = "ENDPOINT", requires = "client")]
    pub(crate) listen: Option<Endpoint>,
    /// A running peer, connected to several times: pipe:PATH-OR-NAME, ws://HOST:PORT/PATH, wss://, http:// or https://.
    #[arg(value_name = "ENDPOINT")]
    pub(crate) endpoint: Option<Endpoint>,
    /// The peer: a program and its arguments, started several times, without a shell.
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "endpoint")]
    pub(crate) command: Vec<String>,
}

impl Check {
    /// The flags that belong to the endpoint.
    pub(crate) fn flags(&self) -> Flags {
        let WireOptions { framing, binding } = &self.wire_options;
        Flags {
            framing: framing.clone(),
            binding: *binding,
            tls_cert: self.tls_cert.clone(),
            tls_key: self.tls_key.clone(),
            tls_ca: self.tls_ca.clone(),
            client_ca: None,
        }
    }
}

/// `rescind fixture`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Fixture {
    /// The dialect to serve.
    #[arg(long, value_name = "D", value_parser = dialect)]
    pub(crate) dialect: &'static DialectFacts,
    /// Where to serve: stdio, pipe:PATH-OR-NAME, ws://HOST:PORT/PATH, wss://, http:// or https://. Port 0 takes a
    /// free port. Except for stdio, the line `listening on ENDPOINT` on stderr names the endpoint.
    #[arg(long, value_name = "ENDPOINT")]
    pub(crate) listen: Endpoint,
    #[command(flatten)]
    pub(crate) wire_options: WireOptions,
    /// The certificate chain of the server, for wss:// and https://.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of that certificate.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Require a client certificate issued by this authority, for wss:// and https://. [default: none is requested]
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Do not declare that cancels are handled, if the dialect has such a declaration.
    #[arg(long)]
    pub(crate) no_cancel_capability: bool,
    #[command(flatten)]
    pub(crate) page: PageArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Serve MCP over streamable HTTP without sessions: any replica answers any request, and a cancel is found by the
    /// client's token and the id of the request. Without --token cancels are ignored.
    #[arg(long)]
    pub(crate) sessionless: bool,
    /// Also serve the transport of MCP 2024-11-05: GET /sse and POST /messages, beside the path of --listen.
    #[arg(long)]
    pub(crate) legacy_sse: bool,
    /// Let any message without a session open one. Used by `matrix`.
    #[arg(long, hide = true)]
    pub(crate) any_opening: bool,
    /// Accept only requests with one of these bearer tokens, each of which makes a client its own principal; may be
    /// repeated. For ws://, wss://, http:// and https://. [default: everybody is accepted]
    #[arg(long = "token", value_name = "NAME=SECRET")]
    pub(crate) tokens: Vec<NamedToken>,
    /// Serve this host name too, such as `tools.example` or `tools.example:8080`: for containers, clusters and tunnels. May
    /// be repeated. [default: the names of this machine, and the host of `--listen`]
    #[arg(long = "allow-host", value_name = "NAME")]
    pub(crate) hosts: Vec<String>,
    /// A JSON file with settings of the fixture, in the format of a vector's `options`.
    #[arg(long, value_name = "FILE.json")]
    pub(crate) options: Option<PathBuf>,
}

impl Fixture {
    /// The flags that belong to the endpoint.
    pub(crate) fn flags(&self) -> Flags {
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
}

/// `rescind relay`.
#[derive(Debug, Args)]
pub(crate) struct Relay {
    /// The address to connect to.
    pub(crate) address: std::net::SocketAddr,
    /// The token to send first. The other side identifies this connection by it.
    pub(crate) word: String,
}

fn wire(name: &str) -> Result<&'static str, String> {
    let found = WIRES.into_iter().find(|known| *known == name);
    found.ok_or_else(|| format!("the wires are {}", WIRES.join(", ")))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    /// The text after it is printed.
    const MARK: &str = "<!-- printed: RESCIND_PRINT=1 cargo test -p rescind-cli --bin rescind page -->\n";

    #[test]
    fn the_page_of_the_command_line_is_printed_from_it() {
        let options = clap_markdown::MarkdownOptions::new()
            .title("Commands and options".to_owned())
            .show_footer(false)
            .show_table_of_contents(false);
        let printed = clap_markdown::help_markdown_command_custom(&Cli::command(), &options);
        // The page has a title of its own.
        let printed = printed.replacen("# ", "## ", 1);
        let page = std::fs::read_to_string(PAGE).unwrap();
        let (head, _) = page.split_once(MARK).expect("docs/cli.md has the mark");
        let renewed = format!("{head}{MARK}{}\n", printed.trim_end());
        if std::env::var_os("RESCIND_PRINT").is_some() {
            std::fs::write(PAGE, renewed).unwrap();
        } else {
            assert!(page == renewed, "renew docs/cli.md with the command at its mark");
        }
    }
}
