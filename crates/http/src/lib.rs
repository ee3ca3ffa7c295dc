//! HTTP as a wire: a module a binding, each with its client and its server.
//!
//! ```
//! use rescind_core::{CallContext, HandlerError, Peer, Router, Server, dialect, Listener};
//! use rescind_http::{HttpClient, HttpServer, Streamable, StreamableTransport};
//! use serde_json::{Value, json};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A server on a port of its own. `mount` makes a tower service for a server of yours instead.
//! let listener = HttpServer::new(Streamable::new()).path("/agent").bind("127.0.0.1:0").await?;
//! let url = listener.endpoint().to_string();
//! let router = Router::new()
//!     .method("initialize", |_: CallContext, _: Value| async { Ok::<_, HandlerError>(json!({"protocolVersion": 1})) })
//!     .method("wait", |ctx: CallContext, _: Value| async move {
//!         let cause = ctx.cancelled().await;
//!         ctx.stopped::<Value>(cause)
//!     });
//! let serving = tokio::spawn(Server::builder([dialect::ACP]).serve(router).listen(listener).run());
//!
//! // A client.
//! let peer = Peer::builder(dialect::ACP).connect(StreamableTransport::new(HttpClient::new(&url)?)).await?;
//! peer.call::<_, Value>("initialize", &json!({"protocolVersion": 1})).await?;
//! let call = peer.call::<_, Value>("wait", &json!({})).start()?;
//! let _ = call.canceller().cancel("the user pressed stop");
//! println!("{:?}", call.outcome().await);
//! # serving.abort();
//! # Ok(())
//! # }
//! ```
//!
//! # The binding `streamable`
//! MCP's streamable HTTP, revisions 2025-06-18 and 2025-11-25, for every protocol with sessions. The client POSTs each
//! message. A notification or an answer gets 202. A request gets its answer as JSON if that is soon ready (10 ms), else an
//! event stream, which carries whatever belongs to the request and ends behind its answer, or without one where silence is
//! owed to a cancelled request. What belongs to no request goes on the stream that a GET opens. DELETE ends the session.
//!
//! What a lost stream means, the protocol says. In MCP it is no cancel: the request goes on until it ends or its session does,
//! unless [`Limits::lost_stream_grace`](rescind_core::Limits::lost_stream_grace) is set. In ACP and LSP it is cancelled after
//! [`Limits::detach_grace`](rescind_core::Limits::detach_grace). The client may come back with `Last-Event-ID`. With
//! clients of 2025-11-25 each stream begins with an event that has nothing but an id, so that it can be taken up from its
//! beginning.
//!
//! POSTs have no order: a cancel may come before its request, and then waits for it. Our client sends a cancel only once
//! its request has arrived, or 250 ms after, and keeps the order of notifications. What must all keep its order needs
//! [`StreamableTransport::in_order`].
//!
//! # Bounds
//! A session reads what its client sends at once, and holds at most 32 KiB that its client does not read: beyond that its
//! senders wait, and after 30 s the stream that is not read is cut. For streams that nobody has opened the oldest
//! notifications are given up beyond 1024 messages or 1 MiB, and our own requests fail, unsent. Up to 256 events and
//! 64 KiB of each stream are kept for a client that comes back. All are settings of [`HttpServer`].
//! What is given up is counted: [`HttpListener::counts`].
#![doc = include_str!("refusals.md")]

mod acp;
mod check_size;
mod client;
mod collect_body;
mod envelope;
mod headers;
mod inbound_queue;
mod int_map;
mod lazy_sleep;
mod revisions;
mod server;
mod shared_delay;
mod stateless;
mod streamable;
mod sync;
mod test_io;
#[cfg(feature = "rustls")]
mod tls;
#[cfg(feature = "verify")]
#[doc(hidden)]
pub mod verify;
mod wake_list;

pub use acp::{Acp, AcpTransport, UnknownSessions};
pub use client::HttpClient;
pub use revisions::McpRevisions;
pub use server::{
    HalfClose, HttpCounts, HttpListener, HttpServer, HttpService, ReplyBody, ServerBinding, Stalled,
};
pub use stateless::{Stateless, StatelessTransport};
pub use streamable::{SecondStream, Streamable, StreamableTransport};
#[cfg(feature = "verify")]
pub use test_io::{GivenStream, count_ids};
