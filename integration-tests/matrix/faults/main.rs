//! The faults of wires, each on every wire for which it makes sense, as a separate test: `fault::case::wire`.
//!
//! `wires.rs` is the table of wires. Each fault has a file. Faults that a crate's own tests cover on their wire are
//! not repeated here. `covered.toml` lists these tests by name, and a test checks that they exist:
//!
//! | fault | wire | where |
//! |---|---|---|
//! | half-open peer, by pings | WebSocket | `link/tests.rs` |
//! | oversize, malformed, endless head, fragments, byte by byte | WebSocket | `sessions.rs`, `admission.rs` |
//! | slow handshake, slow body | WebSocket, HTTP | `admission.rs`, `refusals.rs` |
//! | slow event stream, resume after a cut, two connections of one session | HTTP streamable | `streams.rs` |
//! | early cancel before its request over two POSTs, pipelining | HTTP streamable | `streams.rs` |
//! | a burst over HTTP/2 | HTTP streamable | `streams.rs`, `many_connections.rs` |
//! | identity | HTTP | `streamable/refusals.rs`, `acp/mod.rs` |
//! | closing is the cancel | HTTP stateless | `stateless.rs` |
//! | restart with a stale socket file, two listeners on one path, 1,000 links | named pipe | `ownership.rs` |
//! | 1,000 idle links within their memory | WebSocket | `thousand.rs` |
//! | a child that dies, stops or hangs | stdio | `child.rs` |
//! | bad input at every level, in both framings | bytes | `bad_input.rs` |
//!
//! `cargo test -p rescind-integration-tests --test faults slow_reader` runs the tests with `slow_reader` in their
//! name.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "what the tests share is part of them"
)]

mod agent;
mod bad_input;
mod disconnect;
mod many_connections;
#[expect(dead_code, reason = "the attacks print the required behaviour")]
mod named_tests;
mod raw;
mod slow_reader;
#[cfg(unix)]
mod stdio;
mod trial;
mod wires;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};

use crate::named_tests::{Built, Tests, is_function, rows};
use crate::trial::{HANG, alone, in_time, trial, until};

fn main() -> ExitCode {
    #[cfg(unix)]
    if let Ok(state) = std::env::var(stdio::AGENT) {
        return stdio::serve(&state);
    }
    let mut arguments = Arguments::from_args();
    // They mostly wait for time limits.
    arguments.test_threads.get_or_insert(16);
    let faults = [
        bad_input::trials,
        many_connections::burst_trials,
        many_connections::cross_session_trials,
        disconnect::trials,
        disconnect::half_open_trials,
        many_connections::trials,
        slow_reader::trials,
        #[cfg(unix)]
        stdio::trials,
    ];
    let mut trials: Vec<_> = faults.into_iter().flat_map(|trials| trials()).collect();
    trials.extend(covered_elsewhere(&trials));
    libtest_mimic::run(&arguments, trials).exit_code()
}

// The faults that the crates' own tests cover on their wire, so that they are not repeated here.
//
// The table at the head of this file is a summary. `covered.toml` names each test. A test here checks that it exists.

/// The folder of these trials.
const HERE: &str = "integration-tests/matrix/faults/";

/// `others`: all trials of this program except these. The trials that the attack table names in this program are
/// looked up here too.
fn covered_elsewhere(others: &[Trial]) -> Vec<Trial> {
    let built = Arc::new(Built::of(others));
    let there = |(file, tests): (String, Vec<String>), what: &str| {
        let built = Arc::clone(&built);
        Trial::test(format!("covered_elsewhere::the_tests_named_{what}_are_there::{file}"), move || {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            let text =
                std::fs::read_to_string(root.join(&file)).map_err(|error| format!("{file}: {error}"))?;
            for test in &tests {
                let is_there = if test.contains("::") { built.has(test) } else { is_function(&text, test) };
                if !is_there {
                    return Err(format!(
                        "{file} has no test `{test}` any more: prove it here, or name its new place"
                    )
                    .into());
                }
            }
            Ok(())
        })
    };
    let covered: Tests = toml::from_str(include_str!("covered.toml")).expect("the table");
    assert_eq!(covered.len(), 13, "files with covered faults");
    let mut trials: Vec<_> = covered.into_iter().map(|tests| there(tests, "here")).collect();
    for (at, row) in rows().into_iter().enumerate() {
        let of_it = row.tests.into_iter().filter(|(file, _)| file.starts_with(HERE));
        trials.extend(of_it.map(|tests| there(tests, &format!("by_attack_{}", at + 1))));
    }
    trials.push(Trial::test("covered_elsewhere::what_is_no_test_or_is_ignored_is_none", || {
        let text = "#[test]\nfn one() {}\n\nasync fn two() {}\n\n/// Words.\n#[tokio::test]\nasync fn three() {}\n\
                    #[test]\n#[ignore = \"slow\"]\nfn four() {}\n// test\nfn five() { six() }\n#[test]\nfn six() {}\n";
        assert_eq!(
            ["one", "two", "three", "four", "five", "six", "seven"].map(|name| is_function(text, name)),
            [true, false, true, false, false, true, false]
        );
        let trials = [
            Trial::test("a::b::one", || Ok(())),
            Trial::test("a::b::two (not here)", || Ok(())).with_ignored_flag(true),
        ];
        let built = Built::of(&trials);
        let there = ["a::b::", "a::b::one", "a::b::two", "a::c::"].map(|name| built.has(name));
        assert!(!cfg!(target_os = "linux") || there == [true, true, false, false], "{there:?}");
        Ok(())
    }));
    trials
}
