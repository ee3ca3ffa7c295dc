//! The faults of wires, each on every wire for which it makes sense, as a separate test: `fault::case::wire`.
//!
//! `wires.rs` is the table of wires. Each fault has a file. Faults that a crate's own tests cover on their wire are
//! not repeated here. `covered_elsewhere.rs` lists these tests by name and checks that they exist:
//!
//! | fault | wire | where |
//! |---|---|---|
//! | half-open peer, by pings | WebSocket | `link/tests.rs` |
//! | oversize, malformed, endless head, fragments, byte by byte | WebSocket | `messages.rs`, `refusals.rs` |
//! | slow handshake, slow body | WebSocket, HTTP | `refusals.rs` |
//! | slow event stream, resume after a cut, two connections of one session | HTTP streamable | `streams.rs` |
//! | early cancel before its request over two POSTs, pipelining | HTTP streamable | `streams.rs` |
//! | a burst over HTTP/2 | HTTP streamable | `streams.rs`, `burst.rs` |
//! | identity | HTTP | `refusals.rs`, `status.rs`, `streams.rs` |
//! | closing is the cancel | HTTP stateless | `leaving.rs` |
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
mod burst;
mod covered_elsewhere;
mod cross_session;
mod cuttable_tcp;
mod disconnect;
mod half_open;
mod held;
mod many_connections;
#[cfg(unix)]
mod pipes;
mod raw;
#[path = "../../attacks/rows.rs"]
#[expect(dead_code, reason = "the attacks print the required behaviour")]
mod rows;
mod slow_reader;
#[cfg(unix)]
mod stdio;
mod stoppable_link;
mod test_names;
mod trial;
mod wires;

use std::process::ExitCode;

use libtest_mimic::Arguments;

use self::trial::{HANG, alone, in_time, trial, until};

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
        burst::trials,
        cross_session::trials,
        disconnect::trials,
        half_open::trials,
        many_connections::trials,
        slow_reader::trials,
        #[cfg(unix)]
        stdio::trials,
    ];
    let mut trials: Vec<_> = faults.into_iter().flat_map(|trials| trials()).collect();
    trials.extend(covered_elsewhere::trials(&trials));
    libtest_mimic::run(&arguments, trials).exit_code()
}
