use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rescind_core::{Clients, Endpoint, Link, Listener, TransportError};
use tokio::sync::mpsc;

use super::settings::Served;
use super::shutdown::ShutdownTrigger;
use super::{HttpCounts, Responder};

/// So many links wait to be accepted.
const BACKLOG: usize = 1024;

/// What a binding hands new links to.
#[derive(Clone, Debug)]
pub(crate) struct AcceptQueue(mpsc::Sender<Link>);

impl AcceptQueue {
    /// A door, and what comes out of it.
    pub(super) fn new() -> (Self, mpsc::Receiver<Link>) {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        (Self(sender), receiver)
    }

    /// Hands a link over; gives it back if nobody accepts, or too many wait.
    pub(crate) fn hand(&self, link: Link) -> Result<(), Link> {
        self.0.try_send(link).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(link) | mpsc::error::TrySendError::Closed(link) => link,
        })
    }
}

/// The links that a binding opens: one a session, or one for all where the protocol has none.
///
/// Dropped, it ends everything that came of it: the port, connections, event streams, links.
pub struct HttpListener {
    links: mpsc::Receiver<Link>,
    endpoint: Endpoint,
    responder: Arc<dyn Responder>,
    counts: HttpCounts,
    clients: Served,
    /// Closes with the listener, and the tasks that serve with it.
    open: ShutdownTrigger,
}

impl HttpListener {
    pub(super) fn new(
        links: mpsc::Receiver<Link>,
        endpoint: Endpoint,
        responder: Arc<dyn Responder>,
        (counts, clients): (HttpCounts, Served),
        open: ShutdownTrigger,
    ) -> Self {
        Self { links, endpoint, responder, counts, clients, open }
    }

    /// What the server has given up so far; what is returned goes on counting.
    #[must_use]
    pub fn counts(&self) -> HttpCounts {
        self.counts.clone()
    }
}

impl Listener for HttpListener {
    fn poll_accept(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Link, TransportError>>> {
        self.links.poll_recv(cx).map(|link| link.map(Ok))
    }

    fn endpoint(&self) -> Endpoint {
        self.endpoint.clone()
    }

    fn share_among(self: Pin<&mut Self>, clients: &Clients) {
        self.clients.are(clients);
    }

    /// New sessions get 503. Cancels and answers of open sessions still arrive, so the listener stays until they end.
    fn stop_accepting(mut self: Pin<&mut Self>) -> bool {
        self.links.close();
        while self.links.try_recv().is_ok() {}
        self.open.drain();
        true
    }
}

impl Drop for HttpListener {
    fn drop(&mut self) {
        self.responder.shut();
    }
}

impl fmt::Debug for HttpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpListener").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}
