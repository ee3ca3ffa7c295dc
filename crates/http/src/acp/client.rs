//! The client side: POSTs in order, and one event stream for the connection and for each session.
//!
//! - B1 POSTs are sent one at a time: each one starts after the server has taken the one before it, so messages keep
//!   their order. A cancel is sent beside them, as soon as the server has taken the request that it names. So it cannot
//!   overtake that request.
//! - B2 The client reopens a stream that ends, and the server keeps the messages that arrive in between. If its events
//!   have ids, the client sends the last one (`Last-Event-ID`, empty if none has arrived) and gets the events that were
//!   lost with the stream. If the server does not keep them any more, the client opens the stream without the header.
//! - B3 Cookies are kept for the connection and sent with each request.
//! - B4 When the link's sending half ends, everything ends: tasks, streams, and the connection, which a DELETE closes.

use std::sync::Arc;

use rescind_core::{ACP_BODIES, BoxFuture, Link, SessionBodies, Transport, TransportError};
use tokio::sync::mpsc;

use crate::acp::posts::ClientSender;
use crate::acp::state::Client;
use crate::client::HttpClient;
use crate::sync::spawn;

/// The most POSTs that wait for the one before them.
const WAITING: usize = 64;

/// The client side of the binding `acp`: a transport to one URL, over HTTP/2.
#[derive(Clone, Debug)]
#[must_use = "a transport does nothing until it is opened"]
pub struct AcpTransport {
    client: HttpClient,
    bodies: &'static SessionBodies,
}

impl AcpTransport {
    /// A transport to this client's URL, over HTTP/2 as ACP's draft requires.
    pub const fn new(client: HttpClient) -> Self {
        Self { client: client.http2(), bodies: &ACP_BODIES }
    }

    /// Sets which messages belong to a session, for a protocol of your own. Default: [`ACP_BODIES`].
    pub const fn bodies(mut self, bodies: &'static SessionBodies) -> Self {
        self.bodies = bodies;
        self
    }

    /// Uses HTTP/1.1, for servers that support nothing newer.
    pub const fn http1(mut self) -> Self {
        self.client.http2 = false;
        self
    }
}

impl Transport for AcpTransport {
    fn name(&self) -> &'static str {
        "http-acp"
    }

    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(async move {
            let client = Arc::new(Client::new(&self.client, self.bodies));
            let peer = client.requester.reach().await?;
            let (queue, frames) = mpsc::channel(WAITING);
            let posting = spawn(Arc::clone(&client).post_all(frames));
            let sender = ClientSender::new(Arc::clone(&client), queue, posting);
            Ok(client.link(sender, false, peer))
        })
    }
}
