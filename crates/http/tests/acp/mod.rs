//! The binding `acp`: its vectors, its status table, its streams.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod resume;
mod status;
mod streams;
mod support;
mod vectors;
