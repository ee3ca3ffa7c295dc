//! The binding `streamable`: our client against our server, and HTTP written by hand against our server.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]
#![expect(clippy::expect_used, reason = "what the tests share is part of them")]
#![expect(clippy::indexing_slicing, reason = "what the tests share is part of them")]

mod client_and_server;
mod drain;
mod idle_connections;
mod lost_streams;
mod negotiation;
mod raw;
mod refusals;
mod sessionless;
mod shares;
mod stalled;
mod streams;
pub(crate) mod support;
#[cfg(feature = "rustls")]
mod tls;
mod unrelated;
