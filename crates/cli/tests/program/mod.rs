//! The subcommands of `rescind`, except `bridge`.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "what the tests share is part of them")]

mod allocator;
mod check;
mod check_facts;
mod check_fixtures;
mod check_input;
mod cli;
mod endpoints;
mod html;
mod init;
mod page;
mod protocol_messages;
mod tls_endpoints;
