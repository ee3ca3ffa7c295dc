//! The attack table: each attack or fault as a test with its number. Attacks that another test already covers are not
//! played twice: `rows.toml` lists every row with its tests, and `table.rs` fails if one of them is missing.
//!
//! Times are checked in virtual time. Wall times, ratios and the counts of the table (`floods.rs`) are checked in a
//! release build only.
//!
//! `cargo test -p rescind-integration-tests --test attacks floods` runs the tests with `floods` in their name.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "what the tests share is part of them"
)]

#[path = "../matrix/faults/agent.rs"]
#[expect(dead_code, reason = "shared with the faults of wires")]
mod agent;
mod blocked_sides;
mod cascade;
mod drops;
mod floods;
#[cfg(unix)]
mod lost_peers;
mod many_messages;
#[path = "../matrix/faults/named_tests.rs"]
mod named_tests;
#[path = "../matrix/faults/raw.rs"]
#[expect(dead_code, reason = "shared with the faults of wires")]
mod raw;
mod raw_client;
mod slow_senders;
mod table;
mod tasks;
#[path = "../matrix/faults/trial.rs"]
mod trial;
mod user_code;
#[path = "../matrix/faults/wires.rs"]
#[expect(dead_code, reason = "shared with the faults of wires")]
mod wires;

use std::process::ExitCode;

use libtest_mimic::Arguments;

use self::trial::{alone, in_time, trial, until};

/// Over HTTP/1.1 each POST without an answer has a connection with both ends in this process: 32 attacking sessions
/// have 16 each.
const OPEN_FILES: u64 = 2048;

fn main() -> ExitCode {
    #[cfg(unix)]
    if std::env::var_os(lost_peers::AGENT).is_some() {
        return lost_peers::serve();
    }
    if let Err(error) = rescind_testkit::allow_open_files(OPEN_FILES) {
        eprintln!("attacks: {error}");
        return ExitCode::FAILURE;
    }
    let mut arguments = Arguments::from_args();
    // Some wait for time limits. `.ci/attacks` plays one at a time, because it measures times.
    arguments.test_threads.get_or_insert(4);
    let attacks = [
        cascade::trials,
        drops::trials,
        floods::trials,
        many_messages::id_trials,
        #[cfg(unix)]
        lost_peers::trials,
        many_messages::order_trials,
        many_messages::reason_trials,
        blocked_sides::trials,
        slow_senders::trials,
        tasks::trials,
        user_code::trials,
    ];
    let mut trials: Vec<_> = attacks.into_iter().flat_map(|trials| trials()).collect();
    trials.extend(table::trials(&trials));
    libtest_mimic::run(&arguments, trials).exit_code()
}
