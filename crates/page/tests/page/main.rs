//! The page's HTTP interface, byte by byte over sockets.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod client;
mod guarded;
mod hostile;
mod shown;
