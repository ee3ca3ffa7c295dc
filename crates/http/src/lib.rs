//! HTTP as a transport. Each binding has a module with its client and its server.
//!
//! ```
//! use std::time::Duration;
//!
//! use rescind_core::{CallContext, Listener, Peer, Router, Server, dialect};
//! use rescind_http::{HttpClient, HttpServer, Streamable, StreamableTransport};
//! use serde_json::{Value, json};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A server on its own port. `mount` creates a tower service for an existing server instead.
//! let listener = HttpServer::new(Streamable::new()).path("/agent").bind("127.0.0.1:0").await?;
//! let url = listener.endpoint().to_string();
//! let router = Router::new()
//!     .method("initialize", |_: CallContext, _: Value| async { Ok(json!({"protocolVersion": 1})) })
//!     .method("wait", async |ctx: CallContext, (seconds,): (u64,)| {
//!         ctx.run_until_cancelled(tokio::time::sleep(Duration::from_secs(seconds))).await?;
//!         Ok(seconds)
//!     });
//! let serving = tokio::spawn(Server::builder([dialect::ACP]).serve(router).listen(listener).run());
//!
//! // A client.
//! let peer = Peer::builder(dialect::ACP).connect(StreamableTransport::new(HttpClient::new(&url)?)).await?;
//! peer.call::<_, Value>("initialize", &json!({"protocolVersion": 1})).await?;
//! let call = peer.call::<_, Value>("wait", &[10]).start()?;
//! call.canceller().cancel("the user pressed stop");
//! println!("{:?}", call.outcome().await);
//! # serving.abort();
//! # Ok(())
//! # }
//! ```
//!
//! # The binding `streamable`
//!
//! MCP's streamable HTTP, revisions 2024-11-05 to 2025-11-25, for every protocol with sessions. The client POSTs each
//! message, in 2025-03-26 also several at once. A notification or an answer gets 202. A request gets its answer as JSON if the answer is ready soon: within
//! 10 ms, and within 1 ms from when its handler first awaits something. Otherwise it gets an event stream with the
//! messages that belong to the request. The stream ends after the answer, or without one if the request was cancelled
//! and must not be answered. Messages that belong to no request are sent on the stream that a GET opens, or without
//! one on the stream of the newest running request. Without either they wait for
//! [`HttpServer::stream_wait`]. DELETE ends the session.
//!
//! The protocol decides what a lost stream means. In MCP it is not a cancel: the request continues until it ends or its
//! session ends, unless [`Limits::lost_stream_grace`](rescind_core::Limits::lost_stream_grace) is set. In ACP and LSP
//! it is cancelled after [`Limits::detach_grace`](rescind_core::Limits::detach_grace). The client may resume with
//! `Last-Event-ID`. For clients of 2025-11-25 each stream starts with an event that has only an id, so that the stream
//! can be resumed from its start.
//!
//! POSTs have no order: a cancel may arrive before its request, and then waits for it. The client of this crate sends a
//! cancel when its request has arrived, or after 250 ms, and keeps the order of notifications.
//! [`StreamableTransport::in_order`] keeps the order of all messages.
//!
//! [`Streamable::sessionless`] serves without sessions: any process answers any request, and a cancel is found by its
//! principal and the id of the request.
//!
//! # The binding `acp`
//!
//! ACP's streamable HTTP: a POST gets 202, and messages of the agent are sent on one event stream for the connection and
//! one for each session. A stream that is lost is resumed with `Last-Event-ID`, which ACP's draft leaves to a later
//! revision. The client of this crate does so, and works with servers whose events have no ids. See [`Acp`].
//!
//! # The binding `legacy-sse`
//!
//! HTTP with server-sent events, the transport of MCP 2024-11-05. A GET opens an event stream, whose first event `endpoint`
//! names the URL for POSTs. Each POST gets 202, and every message of the server is an event `message`. The session ends with
//! its stream, and what runs in it is cancelled at once. [`HttpServer::legacy_sse`] adds it beside another binding, on `GET
//! /sse` and `POST /messages`. [`StreamableTransport`] finds a server that speaks only this transport: if its first POST
//! gets 400, 404 or 405, it opens the stream of the same URL. [`LegacySseTransport`] opens the stream at once.
//!
//! # Bounds
//!
//! A session reads the messages of its client without delay. It holds at most 32 KiB that its client does not read.
//! Above that its senders wait, and after 30 s the stream that is not read is cut. For a stream that the client has not
//! opened, at most 1024 messages and 1 MiB are held. Above that the oldest notifications are dropped, and requests of
//! this side fail without being sent. Up to 256 events and 64 KiB of each stream are kept for a client that resumes. All
//! streams of a connection of `acp` keep at most 8 MiB together.
//! All these are settings of [`HttpServer`]. [`HttpListener::counts`] counts dropped messages and ended sessions.
#![doc = include_str!("refusals.md")]

mod acp;
mod client;
mod envelope;
mod inbound_queue;
mod legacy_sse;
mod revisions;
mod server;
mod stateless;
mod streamable;
mod sync;
#[cfg(feature = "verify")]
#[doc(hidden)]
pub mod verify;

pub use acp::{Acp, AcpTransport, UnknownSessions};
pub use client::{Authorization, CredentialRefusal, HttpClient};
pub use legacy_sse::{LegacySse, LegacySseTransport};
#[cfg(feature = "rustls")]
pub use rescind_net::{ClientTls, Pem, ServerTls};
pub use revisions::McpRevisions;
#[cfg(feature = "verify")]
pub use server::sessions::count_ids;
pub use server::{
    HalfClose, HttpCounts, HttpListener, HttpServer, HttpService, ResponseBody, RouteRefusal, RoutedAnswer,
    RoutedBody, SHARED_CANCEL_KEPT, ServerBinding, SessionRoute, SessionRouter, Stalled,
};
pub use stateless::{Stateless, StatelessTransport};
pub use streamable::{SecondStream, Streamable, StreamableTransport};
#[cfg(feature = "verify")]
pub use sync::GivenStream;

/// The protocols that both sides offer in a TLS handshake (ALPN).
#[cfg(feature = "rustls")]
const PROTOCOLS: &[&[u8]] = &[b"h2", b"http/1.1"];
