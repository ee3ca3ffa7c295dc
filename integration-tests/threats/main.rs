//! The threat table: each attack or fault as a test with its number. Attacks that another test already covers are not
//! played twice: `rows.toml` lists every row with its tests, and `table.rs` fails if one of them is missing.
//!
//! Times are checked in virtual time. Wall times, ratios and the counts of the table (`counts.rs`) are checked in a
//! release build only.
//!
//! `cargo test -p rescind-integration-tests --test threats floods` runs the tests with `floods` in their name.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "what the tests share is part of them"
)]

#[path = "../matrix/faults/agent.rs"]
#[expect(dead_code, reason = "shared with the faults of wires")]
mod agent;
mod cascade;
mod counts;
mod drops;
mod floods;
mod floor;
#[path = "../matrix/faults/held.rs"]
#[cfg_attr(not(unix), expect(dead_code, reason = "only losses count descriptors"))]
mod held;
mod ids;
#[path = "../matrix/faults/line.rs"]
#[expect(dead_code, reason = "shared with the faults of wires")]
mod line;
#[cfg(unix)]
mod losses;
mod order;
#[cfg(unix)]
#[path = "../matrix/faults/pipes.rs"]
mod pipes;
#[path = "../matrix/faults/raw.rs"]
#[expect(dead_code, reason = "shared with the faults of wires")]
mod raw;
mod reasons;
mod rows;
mod stranger;
mod stuck;
mod table;
#[path = "../matrix/faults/there.rs"]
mod there;
#[path = "../matrix/faults/trial.rs"]
mod trial;
mod trickle;
mod user_code;
#[path = "../matrix/faults/valve.rs"]
#[expect(dead_code, reason = "shared with the faults of wires")]
mod valve;
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
    if std::env::var_os(losses::AGENT).is_some() {
        return losses::serve();
    }
    if let Err(error) = rescind_testkit::allow_open_files(OPEN_FILES) {
        eprintln!("threats: {error}");
        return ExitCode::FAILURE;
    }
    let arguments = Arguments::from_args();
    let threats = [
        cascade::trials,
        drops::trials,
        floods::trials,
        ids::trials,
        #[cfg(unix)]
        losses::trials,
        order::trials,
        reasons::trials,
        stuck::trials,
        trickle::trials,
        user_code::trials,
    ];
    let mut trials: Vec<_> = threats.into_iter().flat_map(|trials| trials()).collect();
    trials.extend(table::trials(&trials));
    libtest_mimic::run(&arguments, trials).exit_code()
}
