//! A server: it accepts connections from one listener.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use crate::dialect::{Dialect, Role};
use crate::driver::admission::{Admission, ServerCounts, ServerLimits};
use crate::driver::builder::PeerBuilder;
use crate::driver::peer::Peer;
use crate::driver::request_log::RequestLog;
use crate::driver::requests::{ClusterKeys, TracePropagator};
use crate::driver::router::Router;
use crate::error::{ApiMisuse, ConnectionError};
use crate::machine::{Event, Limits};
use crate::registry::Registry;
use crate::sync::Handle;
use crate::transport::{CloseReason, Endpoint, Link, Listener};

type PeerHook = Arc<dyn Fn(Peer) + Send + Sync>;
type PeerSetup = Arc<dyn Fn(PeerBuilder) -> PeerBuilder + Send + Sync>;

/// Serves every connection of a listener with one router, with limits over all connections.
///
/// ```
/// use rescind_core::{CallContext, Peer, Router, Server, dialect, memory_listener};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (listener, transport) = memory_listener();
/// let router = Router::new().method("greet", async |_: CallContext, (name,): (String,)| Ok(format!("Hello, {name}")));
/// let serving = tokio::spawn(Server::builder(dialect::ACP).serve(router).listen(listener).run());
///
/// let peer = Peer::builder(dialect::ACP).connect(transport).await?;
/// let greeting: String = peer.call("greet", &["Ada"]).await?;
/// assert_eq!(greeting, "Hello, Ada");
/// # serving.abort();
/// # Ok(())
/// # }
/// ```
pub struct Server {
    listener: Pin<Box<dyn Listener>>,
    peers: PeerBuilder,
    admission: Arc<Admission>,
    on_peer: Option<PeerHook>,
    each_peer: Option<PeerSetup>,
    phase: Phase,
    /// Ends `phase.ended` when the server is dropped, also if it never ran.
    _ended: DropGuard,
}

impl Server {
    /// A builder of a server for these dialects. Each connection uses the first listed dialect that recognises its
    /// first message.
    pub fn builder(dialects: impl IntoIterator<Item = Dialect>) -> ServerBuilder {
        ServerBuilder {
            peers: PeerBuilder::new(dialects).role(Role::Server),
            limits: ServerLimits::default(),
            on_peer: None,
            each_peer: None,
        }
    }

    /// The address on which it listens.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.listener.endpoint()
    }

    /// The counts over all its connections, which [`ServerLimits`] bounds.
    #[must_use]
    pub fn counts(&self) -> ServerCounts {
        ServerCounts::new(Arc::clone(&self.admission))
    }

    /// A handle that drains the server and waits for its end. Take it before [`run`](Self::run), which consumes the
    /// server.
    #[must_use]
    pub fn handle(&self) -> ServerHandle {
        ServerHandle::new(Arc::clone(&self.admission), self.phase.clone())
    }

    /// Accepts connections until the listener ends, or until [`ServerHandle::drain`] has ended all connections. A
    /// connection that fails, or that uses none of the server's dialects, is logged, and the next one is accepted. If
    /// the listener ends, open connections stay open after this future returns. After a drain it returns when the last
    /// answers are sent or the time limits of the transport are over, so a program may exit then.
    ///
    /// # Errors
    /// [`ConnectionError::Misuse`] outside a runtime.
    ///
    /// # Cancel safety
    /// Dropping the future drops the listener, so no more connections are accepted. Open connections stay open, except
    /// over HTTP, where they belong to the listener and end with it.
    pub async fn run(mut self) -> Result<(), ConnectionError> {
        let runtime = Handle::try_current().map_err(|_| ApiMisuse::NoRuntime)?;
        let draining = self.phase.draining.clone();
        let mut drains = pin!(draining.cancelled());
        loop {
            let accepted = poll_fn(|cx| match drains.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => self.listener.as_mut().poll_accept(cx),
            });
            match accepted.await {
                Some(Ok(link)) => self.accept(link, &runtime),
                Some(Err(error)) => {
                    tracing::debug!(error = %crate::log_text::LogText::text(&error), "a connection could not be accepted");
                }
                None => break,
            }
        }
        if draining.is_cancelled() && self.listener.as_mut().stop_accepting() {
            // Open connections need the listener.
            self.admission.slots.emptied().await;
        }
        if draining.is_cancelled() {
            let finished = self.listener.finished();
            drop(self.listener);
            finished.await;
        }
        Ok(())
    }

    fn accept(&self, link: Link, runtime: &Handle) {
        let client = self.admission.clients.client(link.meta.principal.as_ref(), link.meta.address);
        let permit = match self.admission.admit_connection(&client, link.traits.exchange_scoped) {
            Ok(permit) => permit,
            Err(why) => {
                tracing::debug!(
                    limit = self.admission.limits.max_connections,
                    why,
                    "a connection was refused"
                );
                runtime.spawn(refuse(link, why));
                return;
            }
        };
        let slot = Arc::clone(permit.slot());
        let peers = match &self.each_peer {
            Some(setup) => setup(self.peers.clone()),
            None => self.peers.clone(),
        };
        let peers = peers.admission(&self.admission);
        let on_peer = self.on_peer.clone();
        runtime.spawn(async move {
            let mut opening = pin!(peers.connect_at(link, Some(permit)));
            let mut left = pin!(slot.end_requested());
            let opened = poll_fn(|cx| match opening.as_mut().poll(cx) {
                Poll::Ready(opened) => Poll::Ready(Some(opened)),
                Poll::Pending => left.as_mut().poll(cx).map(|()| None),
            });
            match opened.await {
                Some(Ok(peer)) => {
                    if let Some(on_peer) = on_peer {
                        on_peer(peer);
                    }
                }
                Some(Err(error)) => {
                    tracing::debug!(error = %crate::log_text::LogText::text(&error), "a connection did not open");
                }
                None => tracing::debug!("a connection was closed before it opened"),
            }
        });
    }
}

/// Closes a connection above the limits, with the reason.
async fn refuse(mut link: Link, why: &str) {
    let why = CloseReason::Violation(why.to_owned());
    let close = poll_fn(|cx| link.tx.as_mut().poll_close(&why, cx));
    let _ = tokio::time::timeout(Limits::default().flush_timeout, close).await;
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("endpoint", &self.endpoint()).finish_non_exhaustive()
    }
}

/// A server before it listens.
#[must_use = "a server serves when `run` is awaited"]
pub struct ServerBuilder {
    peers: PeerBuilder,
    limits: ServerLimits,
    on_peer: Option<PeerHook>,
    each_peer: Option<PeerSetup>,
}

impl ServerBuilder {
    /// Serves each connection with this router.
    pub fn serve(mut self, router: impl Into<Arc<Router>>) -> Self {
        self.peers = self.peers.serve(router);
        self
    }

    /// Calls this function with each connection that opens. It must not block.
    pub fn on_peer(mut self, hook: impl Fn(Peer) + Send + Sync + 'static) -> Self {
        self.on_peer = Some(Arc::new(hook));
        self
    }

    /// Changes the options of each connection before it opens, for example to give each connection a router of its own.
    /// The function gets what was set for all connections. It must not block.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// use rescind_core::{CallContext, Router, Server, dialect};
    ///
    /// // Each connection counts its own calls.
    /// let server = Server::builder(dialect::ACP).each_peer(|peer| {
    ///     let calls = Arc::new(AtomicU64::new(0));
    ///     peer.serve(Router::new().method("count", move |_: CallContext, (): ()| {
    ///         let number = calls.fetch_add(1, Ordering::Relaxed);
    ///         async move { Ok(number) }
    ///     }))
    /// });
    /// # drop(server);
    /// ```
    pub fn each_peer(mut self, setup: impl Fn(PeerBuilder) -> PeerBuilder + Send + Sync + 'static) -> Self {
        self.each_peer = Some(Arc::new(setup));
        self
    }

    /// The limits of each connection.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.peers = self.peers.limits(limits);
        self
    }

    /// The limits over all connections.
    pub const fn server_limits(mut self, limits: ServerLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Shares a registry of cancelled requests. Default: one registry for all connections of the server.
    pub fn registry(mut self, registry: &Registry) -> Self {
        self.peers = self.peers.registry(registry);
        self
    }

    /// Calls this function for each event of each connection. It must not block.
    pub fn on_event(mut self, hook: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.peers = self.peers.on_event(hook);
        self
    }

    /// Reads the trace context of each request, and joins the spans of each connection with the traces of other
    /// programs, as [`PeerBuilder::trace_propagator`] does.
    pub fn trace_propagator(mut self, propagator: impl TracePropagator + 'static) -> Self {
        self.peers = self.peers.trace_propagator(propagator);
        self
    }

    /// Makes the keys that [`CallContext::cluster_key`](crate::CallContext::cluster_key) returns.
    pub fn cluster_keys(mut self, keys: Arc<dyn ClusterKeys>) -> Self {
        self.peers = self.peers.cluster_keys(keys);
        self
    }

    /// Accepts connections from this listener.
    pub fn listen(self, listener: impl Listener) -> Server {
        let admission = Arc::new(Admission::new(self.limits));
        let mut listener: Pin<Box<dyn Listener>> = Box::pin(listener);
        listener.as_mut().share_among(&admission.clients);
        let phase = Phase::default();
        let ended = phase.ended.clone().drop_guard();
        let (peers, on_peer, each_peer) = (self.peers, self.on_peer, self.each_peer);
        Server { listener, peers, admission, on_peer, each_peer, phase, _ended: ended }
    }
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("peers", &self.peers)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// A handle of a [`Server`](crate::Server). It stays usable while the server runs and after it has ended. Cheap to
/// clone.
///
/// ```
/// use std::time::Duration;
/// use rescind_core::{Peer, Router, Server, dialect, memory_listener};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (listener, transport) = memory_listener();
/// let server = Server::builder([dialect::ACP]).serve(Router::new()).listen(listener);
/// let handle = server.handle();
/// let running = tokio::spawn(server.run());
/// // On a signal to stop: running requests have 10 s to end.
/// let still_running = handle.drain(Duration::from_secs(10)).await;
/// assert_eq!(still_running, 0);
/// running.await??;
/// # drop(transport);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ServerHandle {
    admission: Arc<Admission>,
    phase: Phase,
}

/// How far a server has come.
#[derive(Clone, Debug, Default)]
struct Phase {
    draining: CancellationToken,
    ended: CancellationToken,
}

impl ServerHandle {
    const fn new(admission: Arc<Admission>, phase: Phase) -> Self {
        Self { admission, phase }
    }

    /// Ends the server gracefully. Returns how many handlers still run: blocking work that does not check its cancel
    /// cannot be stopped.
    ///
    /// 1. New connections and, over HTTP, new sessions are refused. An HTTP server that is bound to an address keeps its
    ///    port open, so that cancels and answers still arrive; HTTP/2 connections get GOAWAY.
    /// 2. Each open connection is shut down as by [`Peer::shutdown`](crate::Peer::shutdown): new requests are refused,
    ///    and running handlers have `drain` to end before they are cancelled. A connection that has not opened yet is
    ///    closed.
    /// 3. When all connections have ended, the listener is dropped and [`Server::run`](crate::Server::run) returns.
    ///
    /// A second drain may shorten the first, as when a user presses Ctrl-C again: the earlier deadline counts.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the drain.
    pub async fn drain(&self, drain: Duration) -> usize {
        self.phase.draining.cancel();
        self.admission.slots.shut_down(drain);
        self.admission.slots.emptied().await;
        self.admission.permits_in_use()
    }

    /// Waits until [`Server::run`](crate::Server::run) has returned, or the server was dropped.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn closed(&self) {
        self.phase.ended.cancelled().await;
    }

    /// The log of the requests of all its connections, of those that are open and those to come. Recording begins with
    /// the first call, and ends when the log and its watches are dropped.
    #[must_use]
    pub fn request_log(&self) -> RequestLog {
        self.admission.record_requests()
    }

    /// Whether the server drains, or has ended.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.phase.draining.is_cancelled() || self.phase.ended.is_cancelled()
    }

    /// The counts over all connections of the server.
    #[must_use]
    pub fn counts(&self) -> ServerCounts {
        ServerCounts::new(Arc::clone(&self.admission))
    }
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
