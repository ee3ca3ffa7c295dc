//! The command line of Rescind.

mod args;
mod bridge;
mod check;
mod client_check;
mod cluster;
mod endpoint;
mod fixture;
mod html;
mod login;
mod matrix;
mod open;
mod output;
mod serving;
mod table;
mod token;

use std::process::ExitCode;

use clap::Parser;
use rescind::Deviation;
use rescind::machine::BadMessage;
use rescind::transport::BadFrame;

use crate::args::{Cli, Command};

/// How a run ended. Scripts rely on the exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// All scenarios passed.
    Held,
    /// A scenario failed.
    Broke,
    /// Wrong usage, or a peer that could not be started or reached.
    Usage,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Held => Self::SUCCESS,
            Exit::Broke => Self::from(1),
            Exit::Usage => Self::from(2),
        }
    }
}

/// Whether no message can be found after this: the connection ends, and its program says so with its exit code.
fn ends_input(deviation: Deviation) -> bool {
    // A peer that ends in the middle of a frame has left.
    matches!(deviation, Deviation::Dropped(BadMessage::Frame(why)) if !why.is_recoverable() && why != BadFrame::Truncated)
}

/// Why a run stopped, as one sentence for stderr.
type Failure = String;

fn main() -> ExitCode {
    let cli = Cli::parse();
    output::start_log(cli.verbose);
    output::hide_intended_panics();
    if matches!(cli.command, Command::Fixture(_)) {
        serving::give_back_large_blocks();
    }
    #[cfg(target_os = "linux")]
    if let Command::Child(args) = &cli.command {
        return bridge::replace_by_child(args);
    }
    let mut builder = match &cli.command {
        // A bridge passes requests on in their order, and starts its children by the thread that lives longest.
        Command::Bridge(_) | Command::Matrix(_) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = match builder.worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::message(&format!("rescind: the runtime could not be started: {error}\n"));
            return Exit::Usage.into();
        }
    };
    let done = runtime.block_on(async {
        match cli.command {
            // It has threads and runtimes of its own, and nothing else runs on this one.
            Command::Matrix(args) => matrix::run(&args),
            Command::Check(args) if args.client => client_check::run(*args).await,
            Command::Check(args) => Box::pin(check::run(*args)).await,
            Command::Fixture(args) => Box::pin(fixture::run(*args)).await,
            Command::Bridge(args) => Box::pin(bridge::run(*args)).await,
            Command::Cancel(args) => cluster::run_cancel(args).await,
            Command::Worker(args) => cluster::run_worker(args).await,
            Command::Relay(args) => client_check::run_relay(args).await,
            Command::Completions { shell } => args::print_completions(shell),
            Command::Man { folder } => args::write_man_pages(&folder),
            #[cfg(target_os = "linux")]
            Command::Child(_) => Ok(Exit::Held),
        }
    });
    // A handler on a blocking thread that does not stop must not keep the program running.
    runtime.shutdown_timeout(std::time::Duration::from_millis(100));
    output::finish_notes();
    match done {
        Ok(exit) => exit.into(),
        Err(failure) => {
            output::message(&format!("rescind: {failure}\n"));
            Exit::Usage.into()
        }
    }
}
