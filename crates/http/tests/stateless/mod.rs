//! The binding `stateless`: its vectors, its status table, and the effect of closing a POST.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod client_disconnect;
mod revisions;
mod shares;
mod status;
mod support;
mod vectors;
