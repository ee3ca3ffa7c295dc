//! The client side: one POST for each frame, and one stream for messages that the server sends outside of a request.
//!
//! - K1 POSTs have no order, so a frame that needs an order waits. A notification or a request waits until the server
//!   has taken the notifications and cancels before it. A notification also waits until the responses to the requests
//!   before it have begun, or for 250 ms.
//! - K2 A cancel waits for its own request and for nothing else.
//! - K3 A stream that breaks off before its answer is resumed if the server gave it an id. Without an id, or if that
//!   fails, its call fails and counts as sent.
//! - K4 The messages in the response to a cancel are passed on before the later messages of the cancelled call: as on a
//!   transport with one stream, an acknowledgement comes before the result. The wait for them is at most 250 ms.
//!   A POST that ends without the answer to its request ends the call, whatever it holds.
//! - K5 When the link's sending half ends, everything ends: tasks, streams, connections.

mod in_flight;
mod legacy;
mod listen;
mod renewal;
mod sender;
mod state;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use rescind_core::{BoxFuture, Link, MCP_RENEWAL, RenewalBodies, Transport, TransportError};

use self::sender::ClientSender;
use self::state::{Client, Standing};
use crate::client::HttpClient;

/// The client side of the binding `streamable`.
///
/// If a server of MCP does not know the session of a POST any more (404), the client opens a new one with the same
/// `initialize`, repeats the subscriptions and the log level of the old one, and sends the message once more. Calls that
/// ran in the old session end with an error. If the new session is lost within 10 s, calls fail until that time is over;
/// the connection stays open. In other protocols a session has more state, so its loss ends the connection.
#[derive(Clone, Debug)]
#[must_use = "a wire does nothing until it is opened"]
pub struct StreamableTransport {
    client: HttpClient,
    settings: ClientSettings,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ClientSettings {
    pub(super) cancel_after: Duration,
    pub(super) retry: Duration,
    pub(super) give_up_after: Duration,
    pub(super) exchanges: usize,
    pub(super) order: Order,
    pub(super) renewal: &'static RenewalBodies,
    /// Whether a session that its server has forgotten is opened again.
    pub(super) renews: bool,
    /// Whether a server that refuses the first POST is asked for the transport of 2024-11-05.
    pub(super) falls_back: bool,
}

/// Which frames wait for which other frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The order of K1.
    AsNeeded,
    /// Each frame waits for the one before it.
    AsSent,
}

impl StreamableTransport {
    /// A transport to this client's URL.
    pub const fn new(client: HttpClient) -> Self {
        let settings = ClientSettings {
            cancel_after: Duration::from_millis(250),
            retry: Duration::from_secs(1),
            give_up_after: Duration::from_secs(30),
            exchanges: 1024,
            order: Order::AsNeeded,
            renewal: &MCP_RENEWAL,
            renews: true,
            falls_back: true,
        };
        Self { client, settings }
    }

    /// How long a cancel waits for the response to its request to begin. Default: 250 ms. POSTs have no order, so a
    /// cancel that is sent at once may arrive before its request.
    pub const fn cancel_after(mut self, wait: Duration) -> Self {
        self.settings.cancel_after = wait;
        self
    }

    /// How long to wait before a cut stream is resumed, if the server does not send a time. Default: 1 s.
    pub const fn retry(mut self, wait: Duration) -> Self {
        self.settings.retry = wait;
        self
    }

    /// How long the client tries to resume a cut stream. After this time without success its call fails. If the
    /// server cannot be reached for its own stream, the link ends; if it answers with anything but the stream, the
    /// client goes on without it. Default: 30 s.
    pub const fn give_up_after(mut self, wait: Duration) -> Self {
        self.settings.give_up_after = wait;
        self
    }

    /// Sends each frame only when the response to the one before it has begun, or after the time of
    /// [`cancel_after`](Self::cancel_after). So the server gets all frames in order, but each slow request delays the
    /// next frame until its response begins. Without this setting, notifications keep their order among themselves and
    /// relative to requests, but requests may overtake one another.
    pub const fn in_order(mut self) -> Self {
        self.settings.order = Order::AsSent;
        self
    }

    /// Sets what is repeated when a session is opened again, for a protocol of your own. Default: [`MCP_RENEWAL`].
    pub const fn renewal(mut self, bodies: &'static RenewalBodies) -> Self {
        self.settings.renewal = bodies;
        self
    }

    /// Never opens a session again that its server has forgotten: the link ends then. Default: it is opened again, at most
    /// once in 10 s, and the request that found it gone is sent once more.
    pub const fn no_renewal(mut self) -> Self {
        self.settings.renews = false;
        self
    }

    /// Never falls back to the transport of MCP 2024-11-05. Default: if the server refuses the first POST with 400, 404 or
    /// 405, the client opens the event stream of the same URL, as MCP advises. If the stream names an endpoint within 2 s,
    /// the client speaks the binding of [`LegacySseTransport`](crate::LegacySseTransport), beginning with the same message.
    pub const fn no_fallback(mut self) -> Self {
        self.settings.falls_back = false;
        self
    }

    /// Opens a link of the binding `legacy-sse`.
    pub(crate) async fn open_legacy(self) -> Result<Link, TransportError> {
        let client = Arc::new(Client::new(&self.client, self.settings));
        let peer = client.requester.reach().await?;
        let sender = ClientSender::new(Arc::clone(&client));
        legacy::open(&client, self.client.connect_timeout).await?;
        client.state().standing = Standing::Open;
        Ok(client.link(sender, false, peer))
    }

    /// The most requests in flight. Default: 1024. Over HTTP/1.1 each request uses a connection. Further requests wait.
    pub const fn exchanges(mut self, most: usize) -> Self {
        self.settings.exchanges = most;
        self
    }
}

impl Transport for StreamableTransport {
    fn name(&self) -> &'static str {
        "http-streamable"
    }

    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(async move {
            let client = Arc::new(Client::new(&self.client, self.settings));
            let peer = client.requester.reach().await?;
            Ok(client.link(ClientSender::new(Arc::clone(&client)), false, peer))
        })
    }
}
