//! Bridges over memory: the client and the server at their ends are written frame by frame.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod cancelling;
mod ends;
mod ends_of_a_bridge;
mod order;
mod passing;
mod serving;
mod stopping;
