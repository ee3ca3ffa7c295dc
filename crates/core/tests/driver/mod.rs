//! The driver over real connections.
#![cfg(feature = "tokio")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod broken_framing;
mod calls;
mod cancel_first;
mod cancellation_tokens;
mod default_framing;
mod draining_handlers;
mod drop_without_lock;
mod exchanges;
mod full_outbox;
mod handling_order;
mod idle;
mod lsp_session;
mod many_cancels;
mod memory;
mod notification_order;
mod notifications;
mod opening;
mod operator_stop;
mod passing_on;
mod printed_output;
mod protocol_requirements;
mod quick;
mod request_names;
mod requests;
mod router;
mod server_drain;
mod serving;
mod shares;
mod sloppy_answers;
mod timeouts;
mod wire;
