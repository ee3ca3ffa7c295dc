//! Attacks on the program `rescind fixture` by one client, over each transport. `memory::attack::transport` measures
//! the memory of the process, `hostile::class::transport` sends malformed input.
//!
//! The memory rows exist in release builds only. A debug build plays a sample of the hostile inputs. The tests run on
//! Linux only: it reports the memory of a process, and a client can choose 127.0.0.2 as its address.
//!
//! `cargo test --release -p rescind-cli --test program_attacks -- --test-threads 1 memory` runs the tests with `memory` in
//! their name.
#![cfg_attr(
    target_os = "linux",
    expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")
)]

#[cfg(target_os = "linux")]
mod clients;
#[cfg(target_os = "linux")]
mod hostile;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod target;

use std::process::ExitCode;

use libtest_mimic::Arguments;

#[cfg(target_os = "linux")]
use self::target::{in_time, play, poll_until};

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each is a program of its own with its peers, which mostly wait.
    arguments.test_threads.get_or_insert(4);
    let mut trials = memory::trials();
    trials.extend(hostile::trials());
    trials.extend(memory::lockout_trials());
    libtest_mimic::run(&arguments, trials).exit_code()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), Vec::new()).exit_code()
}
