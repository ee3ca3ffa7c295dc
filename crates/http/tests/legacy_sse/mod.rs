//! The binding `legacy-sse`: our server with HTTP written by hand, our client with servers written by hand, and both
//! together.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]
#![expect(clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod client;
mod fallback;
mod server;
mod support;
