//! What can be asked on the command line. The names are a contract with scripts.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Cancel any single request of a JSON-RPC style conversation, with the same outcome on every wire.
#[derive(Debug, Parser)]
#[command(name = "rescind", version, max_term_width = 110)]
#[command(
    after_help = "Exit codes: 0 all held, 1 something broke, 2 wrong usage or a peer that could not be started \
                        or reached.\n\nExample:\n  rescind matrix --dialect acp --wire stdio"
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Log more, to stderr; twice for still more.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run every scenario on every wire of this machine, in every dialect.
    #[command(
        after_help = "Examples:\n  rescind matrix\n  rescind matrix --dialect mcp --dialect lsp --json > matrix.json"
    )]
    Matrix(Matrix),
    /// Run the scenarios that can be asked of somebody else's agent or server.
    #[command(
        after_help = "Examples:\n  rescind check --dialect acp --profile my-agent.toml -- my-agent --stdio\n  rescind check \
                      --dialect lsp --json -- node server.mjs"
    )]
    Check(Check),
    /// Serve the fixture agent, for tests of your own client.
    #[command(after_help = "Example:\n  rescind fixture --dialect acp --listen stdio")]
    Fixture(Fixture),
    /// Copy between this process's stdin and stdout and a loopback address. Used by `matrix`.
    #[command(hide = true)]
    Relay(Relay),
}

/// `rescind matrix`.
#[derive(Debug, Args)]
pub(crate) struct Matrix {
    /// Only this dialect; may be given again. [default: all]
    #[arg(long = "dialect", value_name = "D", value_parser = dialect)]
    pub(crate) dialects: Vec<&'static str>,
    /// Only this wire (memory, stdio); may be given again. [default: all]
    #[arg(long = "wire", value_name = "W", value_parser = wire)]
    pub(crate) wires: Vec<&'static str>,
    /// Only scenarios whose name contains this.
    #[arg(long, value_name = "TEXT")]
    pub(crate) scenario: Option<String>,
    /// Print the results as JSON to stdout; table and progress go to stderr.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `rescind check`.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The dialect the peer speaks.
    #[arg(long, value_name = "D", value_parser = dialect)]
    pub(crate) dialect: &'static str,
    /// How to shake hands with the peer and which of its requests are slow, quick, partial, deaf or nested.
    /// [default: the fixture's own methods]
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Framing on the peer's stdio: newline or content-length. [default: the dialect's]
    #[arg(long, value_name = "F", value_parser = ["newline", "content-length"])]
    pub(crate) framing: Option<String>,
    /// Print the results as JSON to stdout.
    #[arg(long)]
    pub(crate) json: bool,
    /// The most time for each step, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(crate) step_timeout: u64,
    /// The peer: a program and its arguments, started anew for each scenario, without a shell.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// `rescind fixture`.
#[derive(Debug, Args)]
pub(crate) struct Fixture {
    /// The dialect to serve.
    #[arg(long, value_name = "D", value_parser = dialect)]
    pub(crate) dialect: &'static str,
    /// Where to serve: stdio.
    #[arg(long, value_name = "ENDPOINT", value_parser = endpoint)]
    pub(crate) listen: Endpoint,
    /// Framing on stdio: newline or content-length. [default: the dialect's]
    #[arg(long, value_name = "F", value_parser = ["newline", "content-length"])]
    pub(crate) framing: Option<String>,
    /// Do not declare that cancels are handled, where the dialect has a declaration.
    #[arg(long)]
    pub(crate) no_cancel_capability: bool,
    /// Settings of the fixture, as in the `options` of a vector.
    #[arg(long, value_name = "FILE.json")]
    pub(crate) options: Option<PathBuf>,
}

/// `rescind relay`.
#[derive(Debug, Args)]
pub(crate) struct Relay {
    /// The address to connect to.
    pub(crate) address: std::net::SocketAddr,
}

/// Where the fixture can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// This process's stdin and stdout.
    Stdio,
}

/// The wires of the matrix, in the order of its columns.
pub(crate) const WIRES: [&str; 2] = ["memory", "stdio"];

fn dialect(name: &str) -> Result<&'static str, String> {
    let names = rescind::dialect::ALL.each_ref().map(rescind::dialect::Dialect::name);
    let found = names.into_iter().find(|known| *known == name);
    found.ok_or_else(|| format!("the dialects are {}", names.join(", ")))
}

fn wire(name: &str) -> Result<&'static str, String> {
    let found = WIRES.into_iter().find(|known| *known == name);
    found.ok_or_else(|| format!("the wires here are {}; more come with later releases", WIRES.join(", ")))
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    match text {
        "stdio" => Ok(Endpoint::Stdio),
        _ => Err("this release serves on `stdio` only; WebSocket, HTTP and named pipes come with the next"
            .to_owned()),
    }
}
