//! The driver over real connections.
#![cfg(feature = "tokio")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod broken_framing;
mod calls;
mod cancel_first;
mod default_framing;
mod drain;
mod draining;
mod drops;
mod exchanges;
mod handling_order;
mod idle;
mod leaving;
mod memory;
mod notification_order;
mod notifications;
mod obligations;
mod opening;
mod room;
mod router;
mod serving;
mod shares;
mod timeouts;
mod tokens;
mod turns;
mod wire;
