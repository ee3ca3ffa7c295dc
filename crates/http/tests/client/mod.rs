//! The client with servers that do what no specification says.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod answers;
mod redirects;
mod retries;
pub(crate) mod server;
mod sessions;
