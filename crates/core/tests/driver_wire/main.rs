//! What a driver tells its wire, over one that notes it.
#![cfg(feature = "tokio")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod exchanges;
mod lanes;
mod probe;
