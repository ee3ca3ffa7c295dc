//! What a WebSocket is to Rescind: one JSON text message a frame, in both directions.
//!
//! ```no_run
//! # async fn example() -> Result<(), rescind_core::TransportError> {
//! use rescind_core::{Listener, Transport};
//!
//! // A server: it accepts on an address of its own.
//! let listener = rescind_websocket::bind("127.0.0.1:0").await?;
//! println!("{}", listener.endpoint());
//! // A client.
//! let link = Box::new(rescind_websocket::connect("ws://127.0.0.1:9000/agent")).open().await?;
//! # Ok(())
//! # }
//! ```
//!
//! A server may also take connections from routes of an HTTP server that is there already ([`mount`]), or upgrade a
//! request by hand ([`upgrade`]). What it asks of a request, `Host` and `Origin` first, is in [`UpgradeOptions`]; how
//! it refuses, in [`Refusal`].
//!
//! # How connections end
//! Closing sends a close frame, 1000, 1001 at a shutdown or 1008 after a violation, and waits at most a second for the
//! peer's. A WebSocket closes in both directions at once: when the peer closes, or is gone, what it had asked for is
//! cancelled. When the credential that the auth hook gave expires, the connection is closed with 1008 and what is in flight is
//! cancelled. A peer that answers no ping for two of them (20 s apart) counts as gone.
//!
//! A message that is binary (1003), over the limit (1009) or no UTF-8 (1007), and broken framing (1002), each get an
//! error answer; then nothing more is read, what was accepted before is answered, and the connection closes with that
//! code. The protocol, or the library under this one, leaves no way to go on after these.
//!
//! # Memory
//! An idle connection holds a read buffer of 16 KiB and about 1 KiB more, TLS aside. After a large message its buffers
//! keep the room of the largest one, which [`LinkOptions::max_frame`] bounds.

mod accept;
#[cfg(feature = "axum")]
mod axum;
mod client;
mod handshake;
mod link;
mod listener;
mod mount;
mod options;
mod tls;
#[cfg(feature = "verify")]
mod verify;

pub use client::{Answer, WebSocketTransport, connect};
pub use handshake::{Refusal, UpgradeOptions, Upgrading, upgrade};
pub use listener::{ListenerBuilder, WebSocketListener, bind};
pub use mount::{MountedListener, Upgrades, mount};
pub use options::{BinaryMessages, IgnoredCounter, LinkOptions};
#[cfg(feature = "rustls")]
pub use tls::{ClientTls, ServerTls};
#[cfg(feature = "verify")]
pub use verify::{accept_given, open_given};
