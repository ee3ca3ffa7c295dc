//! The tests of WebSocket connections, except `thousand.rs`, which measures the memory of its own process.

mod auth;
mod common;
mod conformance;
mod messages;
mod raw;
mod refusals;
mod sessions;
mod shares;
