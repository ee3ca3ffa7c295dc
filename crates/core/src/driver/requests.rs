//! Requests that this side serves: their data, the driver's slots for them, and the progress tokens with which they
//! report. Also two hooks of the application: keys of requests in a cluster, and traces of other programs.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};

use pin_project_lite::pin_project;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio_util::sync::CancellationToken;

use crate::byte_budget::HeldBytes;
use crate::cause::Cause;
use crate::clients::Client;
use crate::dialect::tasks::TaskOffer;
use crate::driver::admission::{HandlerPhase, RequestClient};
use crate::driver::request_log::{RequestKey, Stamp};
use crate::driver::task;
use crate::driver::tasks::TaskSide;
use crate::id::{ExchangeId, InboundKey, RequestId};
use crate::message::ErrorObject;
use crate::registry::SessionId;
use crate::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use crate::sync::{AbortHandle, Mutex, MutexGuard};
use crate::trace_context::TraceContext;
use crate::transport::BoxFuture;

/// The data that the contexts of a handler share. It lives until the last of them is dropped.
///
/// There is one for each request in flight, so data that only few requests need is boxed and made when it is needed.
pub(crate) struct RequestData {
    pub(crate) key: InboundKey,
    pub(crate) id: RequestId,
    pub(crate) method: Arc<str>,
    pub(crate) came_at: Stamp,
    /// The data with which only few requests arrive.
    apart: Option<Box<Apart>>,
    /// The data that only few requests get later.
    late: OnceLock<Box<Late>>,
    signal: Notify,
    abort: OnceLock<AbortHandle>,
    abort_wanted: AtomicBool,
    /// Set before any task is woken. `is_cancelled` reads nothing else.
    cancelled: AtomicBool,
    /// How far the task of its handler is. Only the guard of the task sets it.
    task: AtomicU8,
    begun_awaited: AtomicBool,
}

/// The handler was not polled.
const NOT_BEGUN: u8 = 0;
/// The handler was polled once, or will never be polled.
const BEGUN: u8 = 1;
/// The end of the task was reported, which is after it has begun.
const END_REPORTED: u8 = 2;

/// The data with which only few requests arrive.
struct Apart {
    exchange: ExchangeId,
    progress_token: Option<Box<RawValue>>,
    /// Its own session in the registry, if its id is unique only in its exchange. It gets its name when it is asked for.
    own_session: Option<OnceLock<SessionId>>,
    /// The last notification before it that was not done when it arrived. 0: there was none.
    after: u64,
    /// Its client, if its connection carries several clients.
    client: Option<Arc<Client>>,
    trace: Option<Arc<TraceContext>>,
    /// Its bytes, if they count for its client and not for its connection.
    _held: Option<HeldBytes>,
}

/// The data that only few requests get later.
#[derive(Default)]
struct Late {
    cause: OnceLock<Cause>,
    token: OnceLock<CancellationToken>,
    /// Its span, except while its handler runs in it.
    span: Mutex<Option<tracing::Span>>,
    /// Its offer of a task, and the task that it became.
    task_side: OnceLock<Box<TaskSide>>,
    /// The task for whose end it waits.
    read_task: OnceLock<Weak<task::Task>>,
}

impl Late {
    /// The data of a request that had none before its cancel.
    fn of_cause(cause: Option<Cause>) -> Self {
        Self { cause: cause.map(OnceLock::from).unwrap_or_default(), ..Self::default() }
    }
}

fn lock(span: &Mutex<Option<tracing::Span>>) -> MutexGuard<'_, Option<tracing::Span>> {
    span.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The data of a request on its arrival.
pub(crate) struct Arrived {
    pub(crate) key: InboundKey,
    pub(crate) id: RequestId,
    pub(crate) method: Arc<str>,
    pub(crate) came_at: Stamp,
    pub(crate) exchange: ExchangeId,
    pub(crate) progress_token: Option<Box<RawValue>>,
    /// The last notification that is not done. 0: there is none.
    pub(crate) after: u64,
    /// Its client, if its connection carries several clients.
    pub(crate) client: Option<Arc<Client>>,
    pub(crate) trace: Option<Arc<TraceContext>>,
    /// The bytes of its frame.
    pub(crate) bytes: u32,
    /// Whether it has its own session in the registry, because its id is unique only in its exchange.
    pub(crate) has_own_session: bool,
}

impl RequestData {
    pub(crate) fn new(arrived: Arrived) -> Self {
        let Arrived {
            key,
            id,
            method,
            came_at,
            exchange,
            progress_token,
            after,
            client,
            trace,
            bytes,
            has_own_session,
        } = arrived;
        let is_apart = exchange != ExchangeId::NONE
            || progress_token.is_some()
            || has_own_session
            || after > 0
            || client.is_some()
            || trace.is_some();
        Self {
            key,
            id,
            method,
            came_at,
            apart: is_apart.then(|| {
                let held = client.as_ref().map(|client| client.budget().hold(bytes as usize));
                let own_session = has_own_session.then(OnceLock::new);
                Box::new(Apart { exchange, progress_token, own_session, after, client, trace, _held: held })
            }),
            late: OnceLock::new(),
            signal: Notify::new(),
            abort: OnceLock::new(),
            abort_wanted: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            task: AtomicU8::new(NOT_BEGUN),
            begun_awaited: AtomicBool::new(false),
        }
    }

    pub(crate) fn exchange(&self) -> ExchangeId {
        self.apart.as_ref().map_or(ExchangeId::NONE, |apart| apart.exchange)
    }

    pub(crate) fn progress_token(&self) -> Option<&RawValue> {
        self.apart.as_ref()?.progress_token.as_deref()
    }

    pub(crate) fn trace(&self) -> Option<&Arc<TraceContext>> {
        self.apart.as_ref()?.trace.as_ref()
    }

    /// Its client. `connections`: the client of its connection.
    pub(crate) fn request_client<'a>(&'a self, connections: &'a Client) -> RequestClient<'a> {
        match self.apart.as_ref().and_then(|apart| apart.client.as_deref()) {
            Some(client) => RequestClient::OfRequest(client),
            None => RequestClient::OfConnection(connections),
        }
    }

    /// The client of the request, to keep.
    pub(crate) fn shared_client(&self, connections: &Arc<Client>) -> Arc<Client> {
        let own = self.apart.as_ref().and_then(|apart| apart.client.as_ref());
        Arc::clone(own.unwrap_or(connections))
    }

    pub(crate) fn came_after(&self) -> u64 {
        self.apart.as_ref().map_or(0, |apart| apart.after)
    }

    /// The session under which it is registered. `connections`: the session of its connection.
    pub(crate) fn session<'a>(&'a self, connections: &'a SessionId) -> &'a SessionId {
        let own = self.apart.as_ref().and_then(|apart| apart.own_session.as_ref());
        own.map_or(connections, |own| {
            own.get_or_init(|| SessionId::from(format!("{}/{}", connections.as_str(), self.exchange().0)))
        })
    }

    /// Whether it is registered under a session of its own.
    pub(crate) fn has_own_session(&self) -> bool {
        self.apart.as_ref().is_some_and(|apart| apart.own_session.is_some())
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub(crate) fn cause(&self) -> Option<&Cause> {
        if self.is_cancelled() { self.late.get()?.cause.get() } else { None }
    }

    /// Records the cancel. It is called with the connection's lock held, so that a token that is made at the same time
    /// is not missed.
    pub(crate) fn set_cancelled(&self, cause: Cause) {
        let mut cause = Some(cause);
        let late = self.late.get_or_init(|| Box::new(Late::of_cause(cause.take())));
        if let Some(cause) = cause {
            let _ = late.cause.set(cause);
        }
        self.cancelled.store(true, Ordering::Release);
    }

    /// Wakes the tasks that wait for the cancel. It is called without the lock, because it runs their wakers.
    pub(crate) fn wake_signalled(&self) {
        self.signal.notify_waiters();
        if let Some(token) = self.late.get().and_then(|late| late.token.get()) {
            token.cancel();
        }
    }

    pub(crate) fn signalled(&self) -> Signalled<'_> {
        Signalled { request: self, signal: self.signal.notified() }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.task.load(Ordering::SeqCst) != NOT_BEGUN
    }

    /// Its handler was polled once, or will never be polled. `true`: this is the first report of that.
    pub(crate) fn set_begun(&self) -> bool {
        self.task.load(Ordering::Relaxed) == NOT_BEGUN && self.task.swap(BEGUN, Ordering::SeqCst) == NOT_BEGUN
    }

    /// Wakes the tasks that wait for [`begun`](Self::begun).
    pub(crate) fn wake_begun(&self) {
        if self.begun_awaited.load(Ordering::SeqCst) {
            self.signal.notify_waiters();
        }
    }

    pub(crate) async fn begun(&self) {
        self.begun_awaited.store(true, Ordering::SeqCst);
        loop {
            let mut signal = std::pin::pin!(self.signal.notified());
            signal.as_mut().enable();
            if self.has_begun() {
                return;
            }
            signal.await;
        }
    }

    /// Its token. It is made with the connection's lock held, so that a cancel at the same time does not miss it.
    pub(crate) fn token(&self) -> CancellationToken {
        self.late().token.get_or_init(CancellationToken::new).clone()
    }

    /// What it says about a task as its answer.
    pub(crate) fn set_task_offer(&self, offer: Option<Result<TaskOffer, ErrorObject>>) {
        if let Some(offer) = offer {
            let _ = self.late().task_side.set(Box::new(TaskSide::new(offer)));
        }
    }

    pub(crate) fn task_side(&self) -> Option<&TaskSide> {
        self.late.get()?.task_side.get().map(|side| &**side)
    }

    /// It waits for the end of this task, whose messages are sent on its exchange.
    pub(crate) fn set_read_task(&self, task: &Arc<task::Task>) {
        let _ = self.late().read_task.set(Arc::downgrade(task));
    }

    pub(crate) fn read_task(&self) -> Option<Arc<task::Task>> {
        self.late.get()?.read_task.get()?.upgrade()
    }

    /// The exchange on which its frames go. Its own is over if it became a task.
    pub(crate) fn frame_exchange(&self) -> ExchangeId {
        let task = self.task_side().and_then(TaskSide::task);
        task.map_or_else(|| self.exchange(), |task| task.exchange())
    }

    pub(crate) fn take_span(&self) -> Option<tracing::Span> {
        self.late.get().and_then(|late| lock(&late.span).take())
    }

    pub(crate) fn put_span(&self, span: Option<tracing::Span>) {
        if span.is_some() {
            *lock(&self.late().span) = span;
        }
    }

    fn late(&self) -> &Late {
        self.late.get_or_init(Box::default)
    }

    /// Whether the end of its task was reported. Only its guard reads and sets this, and the guard belongs to the task.
    pub(crate) fn end_is_reported(&self) -> bool {
        self.task.load(Ordering::Relaxed) == END_REPORTED
    }

    pub(crate) fn set_end_reported(&self) {
        self.task.store(END_REPORTED, Ordering::Relaxed);
    }

    /// Stores the handle that aborts the task. An abort that was requested before is done now.
    pub(crate) fn set_abort(&self, handle: AbortHandle) {
        let _ = self.abort.set(handle);
        fence(Ordering::SeqCst);
        if self.abort_wanted.load(Ordering::Relaxed) {
            self.abort();
        }
    }

    pub(crate) fn abort(&self) {
        self.abort_wanted.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if let Some(handle) = self.abort.get() {
            handle.abort();
        }
    }
}

pin_project! {
    /// Waits for a request's cancel. Most handlers hold one, so it is not an `async fn`, which is larger by half.
    #[must_use = "futures do nothing unless they are polled"]
    pub(crate) struct Signalled<'a> {
        request: &'a RequestData,
        // It receives every wake-up since it was made, so the cause is always checked after it was made.
        #[pin]
        signal: Notified<'a>,
    }
}

impl Future for Signalled<'_> {
    type Output = Cause;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Cause> {
        let mut this = self.project();
        loop {
            if let Some(cause) = this.request.cause() {
                return Poll::Ready(cause.clone());
            }
            ready!(this.signal.as_mut().poll(cx));
            this.signal.set(this.request.signal.notified());
        }
    }
}

/// The most progress tokens that are kept for one request. It may report with more, but a cancel by one of those does
/// not find it.
const MAX_TOKENS: usize = 8;

/// The tokens with which requests report. A token belongs to the first request that used it.
#[derive(Debug, Default)]
pub(crate) struct ProgressTokens(HashMap<RequestId, InboundKey>);

impl ProgressTokens {
    pub(crate) fn request(&self, token: &RequestId) -> Option<InboundKey> {
        self.0.get(token).copied()
    }

    /// A request reports with this token. `tokens`: the tokens with which it reported before.
    pub(crate) fn add(&mut self, key: InboundKey, tokens: &mut Vec<RequestId>, token: RequestId) {
        if tokens.len() < MAX_TOKENS && !self.0.contains_key(&token) {
            tokens.push(token.clone());
            self.0.insert(token, key);
        }
    }

    /// The request has ended.
    pub(crate) fn forget(&mut self, key: InboundKey, tokens: &[RequestId]) {
        for token in tokens {
            if self.0.get(token) == Some(&key) {
                self.0.remove(token);
            }
        }
    }
}

/// The driver's data of a request, in addition to the machine's slot.
pub(crate) struct InboundSlot<R> {
    pub(crate) request: Arc<R>,
    /// The data that only few requests have.
    pub(crate) extras: Option<Box<InboundExtras>>,
    /// The bytes that it holds: its frame, or its answer if that waits for room and is larger.
    pub(crate) bytes: u32,
    /// The number of its frames in the outbox. At the largest `u16` it stays there.
    frames: u16,
    /// Whether it is answered without a handler.
    pub(crate) unserved: Unserved,
    /// Whether its task runs, and whether its request is settled.
    pub(crate) task: HandlerPhase,
}

/// The data that only few requests have.
#[derive(Default)]
pub(crate) struct InboundExtras {
    /// Its handler waits for room in the outbox.
    pub(crate) waits_for_room: Option<Waker>,
    /// The progress tokens with which it reports, and by which the peer may cancel it.
    pub(crate) tokens: Vec<RequestId>,
    /// Tasks that end with it.
    pub(crate) watches: Vec<AbortHandle>,
}

impl<R> InboundSlot<R> {
    pub(crate) fn new(request: Arc<R>, bytes: u32) -> Self {
        Self {
            request,
            extras: None,
            bytes,
            frames: 0,
            unserved: Unserved::No,
            task: HandlerPhase::NotStarted,
        }
    }

    pub(crate) fn add_frame(&mut self) {
        self.frames = self.frames.saturating_add(1);
    }

    pub(crate) fn remove_frame(&mut self) {
        // A count at its largest may be too low. It stays, because it is not known when the last frame has left.
        if self.frames < u16::MAX {
            self.frames = self.frames.saturating_sub(1);
        }
    }

    /// Whether frames of it wait in the outbox. The count is reset.
    pub(crate) fn take_frames(&mut self) -> bool {
        std::mem::take(&mut self.frames) > 0
    }

    pub(crate) fn extras(&mut self) -> &mut InboundExtras {
        self.extras.get_or_insert_default()
    }
}

/// Whether a request is answered without a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unserved {
    No,
    /// Its method is not served.
    NotFound,
    /// With the result that the dialect has for it.
    Shutdown,
}

// The names of requests in a cluster of processes.

/// Makes cluster-wide keys of requests: who has the key of a request can cancel it from another process. Set it with
/// [`PeerBuilder::cluster_keys`](crate::PeerBuilder::cluster_keys). The crate `rescind-cluster` implements it.
pub trait ClusterKeys: Send + Sync {
    /// The key of this request: the same at each call for one request, and never that of another one. From now on,
    /// until the request ends, it can be cancelled by this key. `None`: no key could be made.
    fn key_of(&self, request: Arc<dyn KeyedRequest>) -> Option<Arc<str>>;
}

/// A request that gets a key. [`CallContext`](crate::CallContext) is one.
pub trait KeyedRequest: Send + Sync {
    /// As [`CallContext::request_key`](crate::CallContext::request_key).
    fn request_key(&self) -> RequestKey;

    /// As [`CallContext::cause`](crate::CallContext::cause).
    fn cause(&self) -> Option<Cause>;

    /// As [`CallContext::cancelled`](crate::CallContext::cancelled).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn cancelled(&self) -> BoxFuture<'_, Cause>;

    /// As [`CallContext::cancel_with`](crate::CallContext::cancel_with).
    fn cancel_with(&self, cause: BoxFuture<'static, Cause>);
}

// Joins the spans of the driver with the traces of other programs.

/// Joins the spans of a connection with the traces of other programs, for example through OpenTelemetry. Set it with
/// [`PeerBuilder::trace_propagator`](crate::PeerBuilder::trace_propagator).
///
/// A connection with a propagator reads the [`TraceContext`] of each request that it serves:
/// [`CallContext::trace_context`](crate::CallContext::trace_context). Each call has one too: that of its span, or else that of
/// the request whose [child](crate::CallBuilder::child_of) it is. A transport with headers for each message (HTTP) sends it as
/// `traceparent` and `tracestate`. The driver does not change params: a caller that wants its context in `_meta` writes it
/// there.
///
/// `()` is the propagator without spans: contexts are passed on as they came.
///
/// ```
/// use rescind_core::{CallContext, Peer, Router, TraceContext, dialect, memory_pair};
/// use serde_json::{Value, json};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = memory_pair();
/// let router = Router::new().method("trace", async |ctx: CallContext, _: Value| {
///     Ok(ctx.trace_context().map(TraceContext::traceparent))
/// });
/// let _server = Peer::builder(dialect::ACP).serve(router).trace_propagator(()).attach(server)?;
/// let peer = Peer::builder(dialect::ACP).attach(client)?;
///
/// let caused = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let found: String = peer.call("trace", &json!({"_meta": {"traceparent": caused}})).await?;
/// assert_eq!(found, caused);
/// # Ok(())
/// # }
/// ```
pub trait TracePropagator: Send + Sync {
    /// Makes the span that caused a request the parent of the request's span, which has not been entered. It must not
    /// block.
    fn set_parent(&self, span: &tracing::Span, parent: &TraceContext);

    /// The context of a call with this span. The span is disabled where the subscriber does not record it. `None`: the
    /// call begins no trace. It must not block.
    fn context(&self, span: &tracing::Span) -> Option<TraceContext>;
}

impl TracePropagator for () {
    fn set_parent(&self, _: &tracing::Span, _: &TraceContext) {}

    fn context(&self, _: &tracing::Span) -> Option<TraceContext> {
        None
    }
}

impl<P: TracePropagator + ?Sized> TracePropagator for Arc<P> {
    fn set_parent(&self, span: &tracing::Span, parent: &TraceContext) {
        (**self).set_parent(span, parent);
    }

    fn context(&self, span: &tracing::Span) -> Option<TraceContext> {
        (**self).context(span)
    }
}
