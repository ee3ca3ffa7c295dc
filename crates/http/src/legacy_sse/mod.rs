//! The binding `legacy-sse`: HTTP with server-sent events, the transport of MCP 2024-11-05. A GET opens an event stream,
//! whose first event `endpoint` names the URL for POSTs. A POST gets 202, and every message of the server is an event
//! `message` of the stream.
//!
//! - L1 A session is its stream: it opens with the GET and ends with the stream. There is no resumption, so what runs in
//!   the session is then cancelled at once.
//! - L2 The id of a session has 128 random bits. A POST for a session that another principal opened gets 403.
//! - L3 A message is passed on before its POST is answered. POSTs have no order among themselves, so a cancel may arrive
//!   before its request, and then waits for it.
//! - L4 The messages that wait for the reader of a stream are bounded. Above the bound their senders wait; a reader that
//!   takes nothing for too long is cut off, which ends the session.
//! - L5 The client posts only to the origin of its URL, whatever the event `endpoint` names.

mod server;

use std::sync::Arc;
use std::time::Duration;

use rescind_core::{BoxFuture, Link, Transport, TransportError};

use crate::client::HttpClient;
use crate::legacy_sse::server::LegacySseServer;
use crate::server::{AcceptQueue, HttpServer, Responder, ServerBinding, Settings, sealed};
use crate::streamable::StreamableTransport;

/// The server side of the binding `legacy-sse`: HTTP with server-sent events, as MCP 2024-11-05 defines it.
///
/// [`HttpServer::legacy_sse`](crate::HttpServer::legacy_sse) adds it beside the binding of a server, on two paths of its
/// own. As the only binding of a server, it serves both the GET and the POSTs under the server's path.
///
/// A session lives while its event stream is open, however long it is unused. A client that comes back has a new session.
///
/// ```
/// use rescind_core::Listener;
/// use rescind_http::{HttpServer, LegacySse, Streamable};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = HttpServer::new(Streamable::new()).path("/mcp").legacy_sse(LegacySse::new());
/// let listener = server.bind("127.0.0.1:0").await?;
/// println!("{}, and GET /sse for clients of MCP 2024-11-05", listener.endpoint());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a binding serves as part of a server"]
pub struct LegacySse {
    stream: String,
    messages: String,
}

impl Default for LegacySse {
    fn default() -> Self {
        Self::new()
    }
}

impl LegacySse {
    /// The binding on its usual paths: `GET /sse` and `POST /messages`.
    pub fn new() -> Self {
        Self { stream: "/sse".to_owned(), messages: "/messages".to_owned() }
    }

    /// The path that opens a stream, and the path for POSTs. They may be equal. They apply beside another binding
    /// ([`HttpServer::legacy_sse`](crate::HttpServer::legacy_sse)).
    ///
    /// The event `endpoint` names the path for POSTs as it is here. Behind a proxy that adds a prefix to paths, set the
    /// path with the prefix and mount the service under both.
    pub fn paths(mut self, stream: &str, messages: &str) -> Self {
        stream.clone_into(&mut self.stream);
        messages.clone_into(&mut self.messages);
        self
    }
}

impl<B: ServerBinding> HttpServer<B> {
    /// Also serves the transport of MCP 2024-11-05 on its own paths, `GET /sse` and `POST /messages` unless
    /// [`LegacySse::paths`] sets others, whatever [`path`](Self::path) is. Host, Origin, the auth hook and the limits apply
    /// to both. Each stream is a session of its own, and the listener yields its link like any other. Default: off.
    pub fn legacy_sse(self, legacy: LegacySse) -> Self {
        let paths = [legacy.stream.clone(), legacy.messages.clone()];
        self.beside(paths, move |settings, accept_queue| {
            Arc::new(LegacySseServer::new(Some(legacy), settings, accept_queue))
        })
    }
}

impl sealed::Sealed for LegacySse {}

#[expect(private_interfaces, reason = "sealed: only this crate makes bindings")]
impl ServerBinding for LegacySse {
    fn responder(self, settings: &Arc<Settings>, accept_queue: AcceptQueue) -> Arc<dyn Responder> {
        Arc::new(LegacySseServer::new(None, settings, accept_queue))
    }
}

/// The client side of the binding `legacy-sse`: HTTP with server-sent events, as MCP 2024-11-05 defines it.
///
/// It opens the event stream of the client's URL and waits for the event `endpoint`, for at most
/// [`HttpClient::connect_timeout`] each. The POSTs go to the URL that the event names, which must be of the same origin.
/// The end of the stream is the end of the connection: nothing is resumed.
///
/// [`StreamableTransport`] falls back to this binding if a server requires it.
#[derive(Clone, Debug)]
#[must_use = "a transport does nothing until it is opened"]
pub struct LegacySseTransport(StreamableTransport);

impl LegacySseTransport {
    /// A transport to the URL that opens the stream, such as `http://127.0.0.1:8000/sse`.
    pub const fn new(client: HttpClient) -> Self {
        Self(StreamableTransport::new(client))
    }

    /// How long a cancel waits for the response to its request's POST. Default: 250 ms. POSTs have no order, so a cancel
    /// that is sent at once may arrive before its request.
    pub fn cancel_after(self, wait: Duration) -> Self {
        Self(self.0.cancel_after(wait))
    }

    /// Sends each frame only when the POST of the one before it is answered, or after the time of
    /// [`cancel_after`](Self::cancel_after). Without this setting, notifications keep their order among themselves and
    /// relative to requests, but requests may overtake one another.
    pub fn in_order(self) -> Self {
        Self(self.0.in_order())
    }
}

impl Transport for LegacySseTransport {
    fn name(&self) -> &'static str {
        "http-legacy-sse"
    }

    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(self.0.open_legacy())
    }
}
