//! Foreign peers, right and wrong, and what `rescind check` finds in them. This program is the foreign peer too, if its
//! first argument says so, because Cargo gives a test no path of another package's program.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod checked;
mod peer;
mod questions;
mod rows;
mod session;

use std::process::ExitCode;

use libtest_mimic::Arguments;

/// The first argument with which this program is a foreign peer.
const AS_PEER: &str = "foreign-peer";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(AS_PEER) {
        return peer::run(arguments);
    }
    let mut arguments = Arguments::from_args();
    // The peers wait more than they work.
    arguments.test_threads = arguments.test_threads.or(Some(64));
    let checks = rows::Checks::default();
    let mut trials = questions::trials();
    trials.push(rows::page_trial());
    trials.extend(checked::trials());
    trials.extend(checks.trials());
    let done = libtest_mimic::run(&arguments, trials);
    if done.has_failed() {
        checks.print();
    }
    done.exit_code()
}
