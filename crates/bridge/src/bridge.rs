//! The bridge.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use rescind_core::dialect::Dialect;
use rescind_core::{
    ConnectionError, Declaration, DeviationReport, Limits, Peer, RequestLog, Server, ServerBuilder,
    TracePropagator, Transport,
};

use crate::passing::ROUTERS;
use crate::relay_dialect::{NotBridged, check_pair, relayed};
use crate::session::{Session, Sessions, Settings, Upstream};

/// A bridge: it joins downstream connections, whose peers are clients, with upstream connections, whose peers are
/// servers. Both sides may send requests. A clone is the same bridge.
///
/// A session ends when either side does. If the client leaves, what it asked for is cancelled, and the upstream is
/// closed. If the upstream is lost or cannot be opened, each open request is answered with an error that says so, and
/// the downstream connection is closed.
#[derive(Clone)]
pub struct Bridge(Arc<Settings>);

impl Bridge {
    /// A bridge that speaks this dialect on both sides.
    ///
    /// # Errors
    /// [`NotBridged::Envelope`] for a dialect whose requests are more than a method and params (ABP).
    pub fn new(dialect: impl Into<Dialect>) -> Result<Self, NotBridged> {
        let dialect = relayed(&dialect.into())?;
        Ok(Self(Arc::new(Settings {
            downstream: dialect.clone(),
            upstream: dialect,
            limits: Limits::default(),
            declare: Declaration::Withheld,
            sessions: Sessions::new(),
            on_loss: None,
            on_deviation: None,
            request_log: None,
            propagator: Arc::new(()),
            tasks: Arc::default(),
        })))
    }

    /// Speaks this dialect on the upstream side. The dialects may differ only in the spelling of a cancel: `acp` and
    /// `acp-draft`. Call it before the first session.
    ///
    /// The bridge then declares on each side that it handles cancels, if that side's dialect has a declaration.
    /// Otherwise it adds nothing to a handshake, and what each side declares counts for the other.
    ///
    /// # Errors
    /// [`NotBridged`] for any other pair.
    pub fn to(self, dialect: impl Into<Dialect>) -> Result<Self, NotBridged> {
        let dialect = dialect.into();
        check_pair(&self.0.downstream, &dialect)?;
        let same = dialect.name() == self.0.downstream.name();
        let declare = if same { Declaration::Withheld } else { Declaration::Declared };
        let upstream = relayed(&dialect)?;
        Ok(self.with(|settings| (settings.upstream, settings.declare) = (upstream, declare)))
    }

    /// The limits of each connection, on both sides. Call it before the first session.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        self.with(|settings| settings.limits = limits)
    }

    /// Calls this function with the reason when the upstream of a session cannot be opened or is lost. The clients get
    /// the same text. It contains what upstreams wrote, so escape it in logs. It must not block. Call it before the
    /// first session.
    #[must_use]
    pub fn on_loss(self, hook: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.on_loss = Some(Arc::new(hook)))
    }

    /// Calls this function each time that the peer of one side does something against its protocol and the connection goes
    /// on: output that is not a message, a frame that was dropped, an answer that cannot be read. It gets the name of the
    /// upstream, or `the client`. The report is one line and escaped, the name is not. It must not block. Call it before the
    /// first session.
    #[must_use]
    pub fn on_deviation(self, hook: impl Fn(&str, &DeviationReport<'_>) + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.on_deviation = Some(Arc::new(hook)))
    }

    /// Records the connections of both sides in this log, so that it shows each request with the call that passes it on.
    /// A request that is stopped there is stopped on the other side too. Call it before the first session.
    #[must_use]
    pub fn request_log(self, log: &RequestLog) -> Self {
        self.with(|settings| settings.request_log = Some(log.clone()))
    }

    /// Joins the spans of the bridge with the traces of other programs: the span of a request continues the trace that
    /// the request belongs to, and over HTTP the upstream gets the span that passes the request on. Default: a trace
    /// passes on unchanged, from the headers or the `_meta` of a request to the headers of the request upstream. `_meta`
    /// itself passes unchanged in both cases. Call it before the first session.
    #[must_use]
    pub fn trace_propagator(self, propagator: impl TracePropagator + 'static) -> Self {
        self.with(|settings| settings.propagator = Arc::new(propagator))
    }

    fn with(self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::clone(&self.0);
        change(&mut settings);
        Self(Arc::new(settings))
    }

    /// Joins two connections. Returns the downstream one when it is open. The session runs in tasks of its own.
    ///
    /// # Errors
    /// [`ConnectionError::Transport`] if the downstream transport cannot be opened; [`ConnectionError::Misuse`] outside
    /// a runtime.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt.
    pub async fn between(
        &self,
        downstream: impl Transport,
        upstream: Upstream,
    ) -> Result<Peer, ConnectionError> {
        let session = Session::new(&self.0, Box::pin(std::future::ready(Ok(upstream))), ROUTERS);
        let peer = self.open(&session, downstream).await?;
        session.begin(|| peer.clone());
        Ok(peer)
    }

    /// As [`between`](Self::between), with an upstream that is opened at the first message of the downstream side. If it
    /// cannot be opened, the error is the answer to the requests that wait.
    ///
    /// # Errors
    /// Those of [`between`](Self::between).
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt.
    pub async fn join<O, E>(&self, downstream: impl Transport, open: O) -> Result<Peer, ConnectionError>
    where
        O: Future<Output = Result<Upstream, E>> + Send + 'static,
        E: fmt::Display,
    {
        let opening = async move { open.await.map_err(|error| error.to_string()) };
        self.open(&Session::new(&self.0, Box::pin(opening), ROUTERS), downstream).await
    }

    async fn open(
        &self,
        session: &Arc<Session>,
        downstream: impl Transport,
    ) -> Result<Peer, ConnectionError> {
        let builder = Peer::builder(self.0.downstream.clone()).limits(self.0.limits.clone());
        session.downstream(builder).connect(downstream).await
    }

    /// A server that opens an upstream for each session it accepts, at the session's first message. `open` is called
    /// once for each session. If it fails, its error is the answer to the requests that wait.
    ///
    /// Set the limits over all sessions with [`ServerBuilder::server_limits`], then call [`ServerBuilder::listen`]. The
    /// upstream connections count in the same budget of bytes. Do not set another router or `each_peer`.
    ///
    /// It does not fit a listener whose clients share one connection (stateless HTTP): they would share one upstream.
    ///
    /// ```
    /// use rescind_bridge::{Bridge, Upstream};
    /// use rescind_core::{CallContext, Peer, Router, Transport, TransportError, dialect, memory_listener, memory_pair};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bridge = Bridge::new(dialect::ACP)?;
    /// let server = bridge.serve(|| async {
    ///     // In place of a child process or a connection to another machine.
    ///     let (near, far) = memory_pair();
    ///     let router = Router::new().method("greet", async |_: CallContext, (): ()| Ok("hello"));
    ///     let serving = Peer::builder(dialect::ACP).serve(router).attach(far);
    ///     serving.map(|_| Upstream::new("the greeter", near))
    /// });
    /// let (listener, transport) = memory_listener();
    /// let server = server.listen(listener);
    /// let handle = server.handle();
    /// tokio::spawn(server.run());
    ///
    /// let peer = Peer::builder(dialect::ACP).connect(transport).await?;
    /// assert_eq!(peer.call::<_, String>("greet", &()).await?, "hello");
    ///
    /// handle.drain(std::time::Duration::from_secs(1)).await;
    /// bridge.ended().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn serve<F, O, E>(&self, open: F) -> ServerBuilder
    where
        F: Fn() -> O + Send + Sync + 'static,
        O: Future<Output = Result<Upstream, E>> + Send + 'static,
        E: fmt::Display,
    {
        let settings = Arc::clone(&self.0);
        let limits = settings.limits.clone();
        Server::builder(settings.downstream.clone()).limits(limits).each_peer(move |peer| {
            let opening = open();
            let opening = async move { opening.await.map_err(|error| error.to_string()) };
            Session::new(&settings, Box::pin(opening), ROUTERS).downstream(peer)
        })
    }

    /// The sessions whose upstream was opened, or is being opened, and that have not ended.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.0.sessions.count()
    }

    /// Waits until all sessions have ended, and their upstreams with them. Drain the server first
    /// ([`ServerHandle::drain`](rescind_core::ServerHandle::drain)), so that no session begins.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn ended(&self) {
        self.0.sessions.ended().await;
    }
}

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridge")
            .field("downstream", &self.0.downstream)
            .field("upstream", &self.0.upstream)
            .field("sessions", &self.sessions())
            .finish_non_exhaustive()
    }
}
