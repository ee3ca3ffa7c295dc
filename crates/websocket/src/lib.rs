//! WebSocket as a transport: each frame is one JSON text message, in both directions.
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
//! A server may also accept connections on routes of an existing HTTP server ([`mount`]), or upgrade a single request
//! ([`upgrade`]). Its requirements for a request, such as the `Host` and the `Origin`, are in [`UpgradeOptions`]; its
//! refusals are in [`Refusal`].
//!
//! # How connections end
//! Closing sends a close frame (1000; 1001 at a shutdown; 1008 after a violation) and waits for the peer's close frame
//! for at most one second. A WebSocket closes in both directions at once: when the peer closes or disconnects, its
//! requests are cancelled. When the credential that the auth hook returned expires, the connection is closed with 1008
//! and everything in flight is cancelled. A peer that does not answer two pings in a row (20 s apart) counts as
//! disconnected.
//!
//! A message that is binary (1003), above the limit (1009) or not UTF-8 (1007), and broken framing (1002), each get an
//! error answer. Then nothing more is read, requests that were accepted before are answered, and the connection closes
//! with that code. The protocol, or the WebSocket library, cannot continue after them.
//!
//! # Memory
//! An idle connection holds a read buffer of 12 KiB and about 1 KiB more, without TLS. After a large message its
//! buffers keep the size of the largest message, which [`LinkOptions::max_frame`] limits.

mod client;
mod handshake;
mod link;
mod listener;
mod mount;
mod options;

#[cfg(feature = "verify")]
pub use client::open_given;
pub use client::{Answer, WebSocketTransport, connect};
pub use handshake::{Refusal, Upgrading, upgrade};
#[cfg(feature = "verify")]
pub use listener::accept_given;
pub use listener::{ListenerBuilder, WebSocketListener, bind};
pub use mount::{MountedListener, Upgrades, mount};
pub use options::{BinaryMessages, IgnoredCounter, LinkOptions, UpgradeOptions};
#[cfg(feature = "rustls")]
pub use rescind_net::{ClientTls, Pem, ServerTls};
