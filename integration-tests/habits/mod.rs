//! Habits of real programs that their protocol does not allow, as data: children and servers behind `rescind bridge` (`children.json`),
//! servers over HTTP behind it (`servers.json`), and clients before `rescind fixture` (`clients.json`). Each entry is
//! played on every binding and transport where it can occur, and says what the other side must see. A new habit is one entry;
//! README.md has the form.
//!
//! `cargo test -p rescind-cli --test processes habits::children` plays those of children.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed"
)]

mod peers;
mod upstreams;

use std::process::ExitCode;

use libtest_mimic::Trial;

/// This program as the child of a bridge. `None`: its arguments do not say so.
pub(crate) fn run(words: &[&str]) -> Option<ExitCode> {
    let [peers::ROLE, dialect, name] = *words else { return None };
    Some(peers::run(dialect, name))
}

/// All trials.
pub(crate) fn trials() -> Vec<Trial> {
    let others = peers::server_trials().into_iter().chain(peers::client_trials()).chain(upstreams::trials());
    peers::child_trials().into_iter().chain(others).collect()
}
