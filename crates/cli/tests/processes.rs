//! Tests that start processes and mostly wait for them, made at run time and played together: replicas of a cluster
//! (`cluster::`), `rescind check --client` (`client_check::`), and habits of real programs (`habits::`).
//!
//! `cargo test -p rescind-cli --test processes cluster::` plays those of the cluster. This program is also the clients that it
//! checks and the children of the bridges that it plays.

mod client_check;
#[cfg(unix)]
#[path = "../../../integration-tests/cluster/mod.rs"]
mod cluster;
#[cfg(unix)]
#[path = "../../../integration-tests/habits/mod.rs"]
mod habits;

use std::process::ExitCode;

use libtest_mimic::Arguments;

/// The trials that take longest begin first.
const LONGEST: [&str; 2] =
    ["each_cancel_in_bulk_reaches_exactly_its_request", "hangs-after-cancel_is_told_by_goes_on"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    if let Some(code) = client_check::run(&words) {
        return code;
    }
    #[cfg(unix)]
    if let Some(code) = habits::run(&words) {
        return code;
    }
    let mut arguments = Arguments::from_args();
    // Each is a handful of processes, which mostly wait.
    arguments.test_threads.get_or_insert(24);
    let mut trials = client_check::trials();
    #[cfg(unix)]
    {
        trials.extend(cluster::trials());
        trials.extend(habits::trials());
    }
    trials.sort_by_key(|trial| !LONGEST.iter().any(|name| trial.name().ends_with(name)));
    libtest_mimic::run(&arguments, trials).exit_code()
}
