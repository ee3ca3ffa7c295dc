//! The driver over real connections.
#![cfg(feature = "tokio")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod broken_framing;
mod calls;
mod cancel_first;
mod draining;
mod drops;
mod exchanges;
mod idle;
mod notification_order;
mod notifications;
mod opening;
mod room;
mod router;
mod serving;
mod tokens;
mod turns;
mod wire;
