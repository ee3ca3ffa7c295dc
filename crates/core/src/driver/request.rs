//! A request this side serves, as its handler, its context and the driver share it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::context::CallContext;
use super::handler::Handler;
use super::outbox::Answer;
use super::shared::{Core, Shared};
use crate::cause::Cause;
use crate::dialect::HandshakePart;
use crate::id::{ExchangeId, InboundKey, RequestId};
use crate::machine::HandlerEnd;
use crate::registry::SessionId;

/// What a handler's contexts share. It lives until the last of them is dropped.
///
/// One is held for each request in flight, so what few requests need is boxed, and made when it is needed.
pub(super) struct Request {
    pub(super) shared: Arc<Shared>,
    pub(super) key: InboundKey,
    pub(super) id: RequestId,
    pub(super) method: Arc<str>,
    /// What it came with that most do not.
    apart: Option<Box<Apart>>,
    /// What it got on the way.
    late: OnceLock<Box<Late>>,
    signal: Notify,
    abort: OnceLock<AbortHandle>,
    abort_wanted: AtomicBool,
    /// Set before anyone is woken; reading it is all that `is_cancelled` does.
    cancelled: AtomicBool,
    /// Its handler has been polled once.
    begun: AtomicBool,
    begun_awaited: AtomicBool,
    /// The end of its task was told.
    told: AtomicBool,
}

/// What few requests come with.
struct Apart {
    exchange: ExchangeId,
    progress_token: Option<Box<RawValue>>,
    /// Its own name for the registry, where its exchange is the space of its id.
    scope: Option<SessionId>,
}

/// What few requests get on their way.
#[derive(Default)]
struct Late {
    cause: OnceLock<Cause>,
    token: OnceLock<CancellationToken>,
    /// Its span, but while its handler is in it.
    span: Mutex<Option<tracing::Span>>,
}

/// What is known of a request when it arrives.
pub(super) struct Arrived {
    pub(super) key: InboundKey,
    pub(super) id: RequestId,
    pub(super) method: Arc<str>,
    pub(super) exchange: ExchangeId,
    pub(super) progress_token: Option<Box<RawValue>>,
}

impl Request {
    pub(super) fn new(shared: &Arc<Shared>, arrived: Arrived) -> Self {
        let Arrived { key, id, method, exchange, progress_token } = arrived;
        let scope = shared
            .exchange_scoped
            .then(|| SessionId::from(format!("{}/{}", shared.session_id.as_str(), exchange.0)));
        let is_apart = exchange != ExchangeId::NONE || progress_token.is_some() || scope.is_some();
        Self {
            shared: Arc::clone(shared),
            key,
            id,
            method,
            apart: is_apart.then(|| Box::new(Apart { exchange, progress_token, scope })),
            late: OnceLock::new(),
            signal: Notify::new(),
            abort: OnceLock::new(),
            abort_wanted: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            begun: AtomicBool::new(false),
            begun_awaited: AtomicBool::new(false),
            told: AtomicBool::new(false),
        }
    }

    pub(super) fn exchange(&self) -> ExchangeId {
        self.apart.as_ref().map_or(ExchangeId::NONE, |apart| apart.exchange)
    }

    pub(super) fn progress_token(&self) -> Option<&RawValue> {
        self.apart.as_ref()?.progress_token.as_deref()
    }

    pub(super) fn session(&self) -> &SessionId {
        let scope = self.apart.as_ref().and_then(|apart| apart.scope.as_ref());
        scope.unwrap_or(&self.shared.session_id)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub(super) fn cause(&self) -> Option<&Cause> {
        if self.is_cancelled() { self.late.get()?.cause.get() } else { None }
    }

    /// Records the signal; under the connection's lock, so that a token made at the same time is not missed.
    pub(super) fn set_cancelled(&self, cause: Cause) {
        let _ = self.late().cause.set(cause);
        self.cancelled.store(true, Ordering::Release);
        self.shared.registry.record(self.session(), &self.id);
    }

    /// Wakes those who wait for the signal; without the lock, as it runs their wakers.
    pub(super) fn wake_signalled(&self) {
        self.signal.notify_waiters();
        if let Some(token) = self.late.get().and_then(|late| late.token.get()) {
            token.cancel();
        }
    }

    pub(super) async fn signalled(&self) -> Cause {
        loop {
            let mut signal = std::pin::pin!(self.signal.notified());
            signal.as_mut().enable();
            if let Some(cause) = self.cause() {
                return cause.clone();
            }
            signal.await;
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::SeqCst)
    }

    /// Its handler has been polled once, or never will be.
    fn begin(&self) {
        if self.begun.load(Ordering::Relaxed) || self.begun.swap(true, Ordering::SeqCst) {
            return;
        }
        self.shared.beginning.fetch_sub(1, Ordering::SeqCst);
        if self.begun_awaited.load(Ordering::SeqCst) {
            self.signal.notify_waiters();
        }
    }

    pub(super) async fn begun(&self) {
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

    pub(super) fn token(&self) -> CancellationToken {
        let token = {
            let _core = self.shared.lock();
            self.late().token.get_or_init(CancellationToken::new).clone()
        };
        if self.is_cancelled() {
            token.cancel();
        }
        token
    }

    fn late(&self) -> &Late {
        self.late.get_or_init(Box::default)
    }

    /// Ends a task of the user's with the request.
    pub(super) fn end_with(&self, watch: AbortHandle) {
        let late = {
            let mut core = self.shared.lock();
            match core.inbound.get_mut(self.key.0) {
                Some(slot) => {
                    slot.extras().watches.push(watch);
                    None
                }
                None => Some(watch),
            }
        };
        if let Some(watch) = late {
            watch.abort();
        }
    }

    /// Keeps what ends the task. An abort asked before that is made up for.
    pub(super) fn set_abort(&self, handle: AbortHandle) {
        let _ = self.abort.set(handle);
        fence(Ordering::SeqCst);
        if self.abort_wanted.load(Ordering::Relaxed) {
            self.abort();
        }
    }

    pub(super) fn abort(&self) {
        self.abort_wanted.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if let Some(handle) = self.abort.get() {
            handle.abort();
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("session", self.session())
            .field("id", &self.id)
            .field("method", &self.method)
            .field("cause", &self.cause())
            .finish_non_exhaustive()
    }
}

/// What the driver keeps for a request beside the machine's slot.
pub(super) struct InboundSlot {
    pub(super) request: Arc<Request>,
    /// What few requests have.
    pub(super) extras: Option<Box<InboundExtras>>,
    /// Frames of it that wait in the outbox.
    pub(super) frames: u32,
    /// Nobody serves its method.
    pub(super) unserved: bool,
    /// Its task runs, and whether its request is settled.
    pub(super) task: Task,
}

/// What few requests have.
#[derive(Default)]
pub(super) struct InboundExtras {
    /// What starts it, while it waits for a permit.
    pub(super) waiting: Option<Waiting>,
    /// Its handler waits for room in the outbox.
    pub(super) waits_for_room: Option<Waker>,
    /// Tasks that end with it.
    pub(super) watches: Vec<AbortHandle>,
}

impl InboundSlot {
    pub(super) fn new(request: Arc<Request>) -> Self {
        Self { request, extras: None, frames: 0, unserved: false, task: Task::NotStarted }
    }

    pub(super) fn extras(&mut self) -> &mut InboundExtras {
        self.extras.get_or_insert_default()
    }
}

/// What a request waits with for its permit.
pub(super) struct Waiting {
    pub(super) handler: Option<Arc<dyn Handler>>,
    pub(super) params: Option<bytes::Bytes>,
}

/// Where the task of a request stands, for the counts a server keeps over all its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    NotStarted,
    Running,
    Draining,
    Ended,
}

/// Reports the end of a handler's task, however it ends: by return, panic, abort, or the end of the runtime (I10).
pub(super) struct Guard(Arc<Request>);

impl Guard {
    pub(super) const fn new(request: Arc<Request>) -> Self {
        Self(request)
    }

    pub(super) fn context(&self) -> CallContext {
        CallContext::new(Arc::clone(&self.0))
    }

    /// Opens the request's span, if anyone wants it.
    pub(super) fn open_span(&self) {
        let request = &self.0;
        let dialect = &request.shared.dialect;
        let is_json_rpc = dialect.codec().as_json_rpc().is_some();
        let span = tracing::info_span!(
            "rescind.request",
            rpc.system.name = if is_json_rpc { "jsonrpc" } else { dialect.name() },
            rpc.method = %request.method,
            jsonrpc.request.id = %request.id,
            cancel.source = tracing::field::Empty,
            cancel.outcome = tracing::field::Empty,
        );
        if !span.is_disabled() {
            request.put_span(Some(span));
        }
    }

    /// Runs code of the handler in the request's span.
    pub(super) fn enter<R>(&self, code: impl FnOnce() -> R) -> R {
        let span = self.0.take_span();
        let entered = span.as_ref().map(tracing::Span::enter);
        let result = code();
        drop(entered);
        self.0.put_span(span);
        result
    }

    /// Notes on the request's span what cancelled it, if anything did, and how its handler ended then; and closes it.
    pub(super) fn close_span(&self, end: HandlerEnd) {
        let Some(span) = self.0.take_span() else { return };
        let Some(cause) = self.0.cause() else { return };
        span.record("cancel.source", cause.kind().name());
        let outcome = match end {
            HandlerEnd::Value => "completed",
            HandlerEnd::Error => "failed",
            HandlerEnd::Stopped => "cancelled",
            HandlerEnd::Panicked => "panicked",
        };
        span.record("cancel.outcome", outcome);
    }

    pub(super) fn begin(&self) {
        self.0.begin();
    }

    /// The answer as it is offered: our half of the handshake gets our declaration, and what is over the frame limit
    /// becomes an internal error.
    pub(super) fn fit(&self, answer: Answer) -> Answer {
        self.0.shared.fit(&self.0.method, answer)
    }

    /// Offers the handler's end once there is room for it, and reports the task as gone.
    ///
    /// Dropped before it is done, the answer is lost and the task counts as gone without one: that is what an abort
    /// after the grace does, when the machine has answered already.
    pub(super) fn poll_offer(
        &self,
        end: HandlerEnd,
        answer: &mut Option<Answer>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let offered = self.0.poll_offer(end, answer, cx);
        if offered.is_ready() {
            self.0.told.store(true, Ordering::Relaxed);
        }
        offered
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let request = &self.0;
        // Only the guard itself writes it, and it was moved here with the task.
        if !request.told.load(Ordering::Relaxed) {
            request.begin();
            request.shared.step(|core, now, _| core.end_task(request, now));
        }
    }
}

impl Request {
    fn take_span(&self) -> Option<tracing::Span> {
        self.late.get()?.span.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put_span(&self, span: Option<tracing::Span>) {
        if span.is_some() {
            *self.late().span.lock().unwrap_or_else(PoisonError::into_inner) = span;
        }
    }

    /// Offers the answer in one step with the end of the task, or waits for room: until then the request keeps its
    /// permit and can be cancelled.
    fn poll_offer(
        self: &Arc<Self>,
        end: HandlerEnd,
        answer: &mut Option<Answer>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        self.shared.step(|core, now, deferred| {
            let weight = answer.as_ref().map_or(0, Answer::weight);
            let settled = !core.session.may_notify(self.key);
            let has_room = core.outbox.has_room(core.session.limits(), weight);
            let Some(slot) = core.inbound.get_mut(self.key.0) else { return Poll::Ready(()) };
            if !settled && !has_room {
                if slot.extras().waits_for_room.replace(cx.waker().clone()).is_none() {
                    core.waiting_for_room.push(self.key);
                }
                return Poll::Pending;
            }
            core.offered = answer.take();
            core.session.local_answer(now, self.key, end);
            core.end_task(self, now);
            core.apply(&self.shared, now, deferred);
            // What the machine did not take is dropped without the lock.
            *answer = core.offered.take();
            Poll::Ready(())
        })
    }
}

impl Core {
    /// The task of a request is gone.
    pub(super) fn end_task(&mut self, request: &Request, now: std::time::Instant) {
        if request.is_cancelled() {
            request.shared.registry.clear(request.session(), &request.id);
        }
        if let Some(slot) = self.inbound.get_mut(request.key.0) {
            request.shared.admission.task_moved(slot.task, Task::Ended);
            slot.task = Task::Ended;
        }
        self.session.local_ended(now, request.key);
    }
}

impl Shared {
    fn fit(&self, method: &str, answer: Answer) -> Answer {
        let Answer::Value(mut value) = answer else { return answer };
        if self.dialect.rules().handshake == Some(method) {
            let declared = self.dialect.codec().declare(HandshakePart::Result, &value, self.handles_cancels);
            value = declared.unwrap_or(value);
        }
        if value.get().len() > self.max_frame {
            tracing::warn!(
                rpc.method = method,
                bytes = value.get().len(),
                limit = self.max_frame,
                "an answer is over the frame limit"
            );
            return Answer::Refused(crate::dialect::Refusal::Internal);
        }
        Answer::Value(value)
    }
}
