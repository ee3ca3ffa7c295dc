//! Habits of real programs that their protocol does not allow, as data: children behind `rescind bridge` (`children.json`),
//! servers over HTTP behind it (`servers.json`), and clients before `rescind fixture` (`clients.json`). Each entry is
//! played on every binding and transport where it can occur, and says what the other side must see. A new habit is one entry;
//! README.md has the form.
//!
//! `cargo test -p rescind-cli --test habits -- children` plays those of children.
#![cfg_attr(
    unix,
    expect(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        reason = "a test that cannot go on has failed"
    )
)]

#[cfg(unix)]
mod peers;

use std::process::ExitCode;

#[cfg(unix)]
fn main() -> ExitCode {
    // The bridge starts this program as its child.
    let words: Vec<String> = std::env::args().collect();
    if let [_, peers::ROLE, dialect, name] = words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        return peers::run(dialect, name);
    }
    let mut arguments = libtest_mimic::Arguments::from_args();
    // Most of a trial is waiting.
    arguments.test_threads.get_or_insert(16);
    let trials = peers::child_trials()
        .into_iter()
        .chain(peers::server_trials())
        .chain(peers::client_trials())
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

#[cfg(not(unix))]
fn main() -> ExitCode {
    println!("SKIPPED: habits of real programs, which are played on Unix only");
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), Vec::new()).exit_code()
}
