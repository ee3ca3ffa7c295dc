//! The calling side: a POST for each frame, and one stream for what the server says of itself.
//!
//! - K1 POSTs have no order, so what must have one waits: a notification or a request until the notifications and cancels
//!   before it were taken, and a notification until the requests before it have their response's head, or 250 ms.
//! - K2 A cancel waits for its own request and for nothing else.
//! - K3 A stream that breaks off before its answer is taken up again if the server gave it an id; else, or if that fails,
//!   its call fails, having been sent.
//! - K4 What the response to a cancel says is handed on before what its call says behind it: on one wire an acknowledgement
//!   comes before the result. It is waited for 250 ms at most.
//! - K5 With the link's sending half everything ends: tasks, streams, connections.

mod in_flight;
mod listen;
mod sender;
mod state;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use rescind_core::{BoxFuture, Capabilities, Link, Transport, TransportError};

use self::sender::ClientSender;
use self::state::Client;
use crate::client::HttpClient;
use crate::inbound_queue::InboundReceiver;

/// The calling side of the binding `streamable`.
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
}

/// Which frames wait for which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// As K1 says.
    AsNeeded,
    /// Each waits for the one before.
    AsSent,
}

impl StreamableTransport {
    /// A wire to the server this client goes to.
    pub const fn new(client: HttpClient) -> Self {
        let settings = ClientSettings {
            cancel_after: Duration::from_millis(250),
            retry: Duration::from_secs(1),
            give_up_after: Duration::from_secs(30),
            exchanges: 1024,
            order: Order::AsNeeded,
        };
        Self { client, settings }
    }

    /// How long a cancel waits for its request's response to begin. Default: 250 ms. POSTs have no order, so a cancel
    /// that is sent at once may come before its request.
    pub const fn cancel_after(mut self, wait: Duration) -> Self {
        self.settings.cancel_after = wait;
        self
    }

    /// How long to wait before taking a cut stream up again, where the server does not say. Default: 1 s.
    pub const fn retry(mut self, wait: Duration) -> Self {
        self.settings.retry = wait;
        self
    }

    /// After so long without success a cut stream is given up: its call fails, and with the server's own stream the
    /// link ends. Default: 30 s.
    pub const fn give_up_after(mut self, wait: Duration) -> Self {
        self.settings.give_up_after = wait;
        self
    }

    /// Sends each frame only when the response to the one before has begun, or after the time of
    /// [`cancel_after`](Self::cancel_after): the server then gets all of them in order, a request that takes long at
    /// the cost of the moment until its response begins. Without it, notifications keep their order among themselves
    /// and after requests, and requests come after notifications, but requests overtake one another.
    pub const fn in_order(mut self) -> Self {
        self.settings.order = Order::AsSent;
        self
    }

    /// The most requests in flight. Default: 1024. In HTTP/1.1 each takes a connection. More wait.
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
            let client = Client::new(&self.client, self.settings);
            let meta = client.requester.reach().await?;
            let traits = Capabilities {
                ordered: false,
                opens_exchanges: true,
                exchange_scoped: false,
                batches: false,
                max_frame: client.max_frame,
            };
            let receiver = InboundReceiver(Arc::clone(&client.inbound_queue));
            Ok(Link::new(receiver, ClientSender::new(client), traits, meta))
        })
    }
}
