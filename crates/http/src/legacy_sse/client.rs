//! The client side: the POSTs are those of the binding `streamable`, with the same order among them. So it is a part of
//! that client ([`crate::streamable`]), which opens the stream and reads it.

use std::time::Duration;

use rescind_core::{BoxFuture, Link, Transport, TransportError};

use crate::client::HttpClient;
use crate::streamable::StreamableTransport;

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
