use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rescind_core::{BoxFuture, Clients, Endpoint, Link, Listener, TransportError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::settings::Served;
use super::shutdown::ShutdownTrigger;
use super::{HttpCounts, Responder};

/// The most links that wait to be accepted.
const BACKLOG: usize = 1024;

/// The queue into which a binding puts new links.
#[derive(Clone, Debug)]
pub(crate) struct AcceptQueue(mpsc::Sender<Link>);

impl AcceptQueue {
    /// A queue, and its receiving end.
    pub(super) fn new() -> (Self, mpsc::Receiver<Link>) {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        (Self(sender), receiver)
    }

    /// Puts a link into the queue. Returns the link if the listener has ended or too many links wait.
    pub(crate) fn hand(&self, link: Link) -> Result<(), Link> {
        self.0.try_send(link).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(link) | mpsc::error::TrySendError::Closed(link) => link,
        })
    }
}

/// The links that a binding opens: one for each session, or one for all if the protocol has no sessions.
///
/// When it is dropped, everything that belongs to it ends: the port, connections, event streams, links.
///
/// ```
/// use rescind_core::{Listener, Router, Server, dialect};
/// use rescind_http::{HttpServer, Stateless};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let listener = HttpServer::new(Stateless::new()).path("/mcp").bind("127.0.0.1:0").await?;
/// println!("listening on {}", listener.endpoint());
/// // The counts can be read while the server has the listener.
/// let counts = listener.counts();
/// let server = Server::builder(dialect::MCP_2026).serve(Router::new()).listen(listener);
/// let serving = tokio::spawn(server.run());
/// println!("{} notifications were dropped", counts.dropped_notifications());
/// # serving.abort();
/// # Ok(())
/// # }
/// ```
pub struct HttpListener {
    links: mpsc::Receiver<Link>,
    endpoint: Endpoint,
    /// Those of its bindings.
    responders: Vec<Arc<dyn Responder>>,
    counts: HttpCounts,
    clients: Served,
    /// Closes with the listener, and ends the tasks that serve for it.
    open: ShutdownTrigger,
    /// Cancelled when these tasks have ended.
    served: CancellationToken,
}

impl HttpListener {
    pub(super) fn new(
        links: mpsc::Receiver<Link>,
        endpoint: Endpoint,
        responders: Vec<Arc<dyn Responder>>,
        (counts, clients): (HttpCounts, Served),
        open: ShutdownTrigger,
    ) -> Self {
        // Nothing is served yet.
        let served = CancellationToken::new();
        served.cancel();
        Self { links, endpoint, responders, counts, clients, open, served }
    }

    /// Serves by this future, in a task of its own.
    pub(super) fn serve_by(&mut self, serving: impl Future<Output = ()> + Send + 'static) {
        self.served = CancellationToken::new();
        let served = self.served.clone().drop_guard();
        tokio::spawn(async move {
            let _served = served;
            serving.await;
        });
    }

    /// The counts of what the server has dropped or ended. The returned value continues to count.
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

    /// New sessions get 503. Cancels and answers of open sessions still arrive, so the listener stays open until they
    /// end.
    fn stop_accepting(mut self: Pin<&mut Self>) -> bool {
        self.links.close();
        while self.links.try_recv().is_ok() {}
        self.open.drain();
        true
    }

    /// Connections have 500 ms to finish their writes. A mounted service is finished at once: the HTTP server that runs it
    /// knows its connections.
    fn finished(&self) -> BoxFuture<'static, ()> {
        Box::pin(self.served.clone().cancelled_owned())
    }
}

impl Drop for HttpListener {
    fn drop(&mut self) {
        self.responders.iter().for_each(|responder| responder.shut());
    }
}

impl fmt::Debug for HttpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpListener").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}
