//! The driver over real connections.
#![cfg(feature = "tokio")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod broken_framing;
mod calls;
mod drop_without_lock;
mod exchanges;
mod full_outbox;
mod handling_order;
mod lsp_session;
mod many_cancels;
mod memory;
mod notifications;
mod operator_stop;
mod passing_on;
mod printed_output;
mod protocol_requirements;
mod quick;
mod requests;
mod router;
mod server_drain;
mod serving;
mod shares;
mod sloppy_answers;
mod timeouts;
mod wire;
