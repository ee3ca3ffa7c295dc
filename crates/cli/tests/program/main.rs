//! The program `rescind`, run as its users run it: one binary, because nearly all of these tests wait for processes and for
//! time limits, and so they wait together.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "what the tests share is part of them")]

mod allocator;
mod check;
mod check_facts;
mod check_fixtures;
mod check_input;
mod cli;
#[cfg(unix)]
mod common;
mod endpoints;
mod html;
mod init;
mod page;
mod protocol_messages;
mod tls_endpoints;
