//! `rescind bridge` as a program: children and endpoints behind it, and what its users see when something goes wrong.
#![cfg(unix)]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod access;
mod children;
mod dying_children;
mod endpoints;
mod failing_clients;
mod failing_endpoints;
mod live_page;
mod old_clients;
mod printed_output;
mod program;
mod upstream_habits;
mod usage;
