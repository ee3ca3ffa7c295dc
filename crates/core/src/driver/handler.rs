//! Handlers: how each kind of them is started and polled, and the guard that reports the end of a task.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};

use crate::dialect::HandshakePart;
use crate::driver::admission::HandlerPhase;
use crate::driver::context::{CallContext, HandlerError};
use crate::driver::json_text::{JsonText, read_params};
use crate::driver::outbox::{Answer, Control};
use crate::driver::state::{ConnectionInner, DriverState, Handler, HandlerKind, Payload, Request, now};
use crate::driver::tasks::TaskSide;
use crate::failpoint::{self, Failpoint};
use crate::machine::HandlerResult;
use crate::message::{Deviation, ErrorObject};
use crate::sync::AbortHandle;
use crate::sync::atomic::Ordering;

/// A handler that runs as a task.
pub(crate) struct AsyncHandler<F, P> {
    function: Arc<F>,
    params: PhantomData<fn(P)>,
}

impl<F, P> AsyncHandler<F, P> {
    pub(crate) fn new(function: F) -> Self {
        Self { function: Arc::new(function), params: PhantomData }
    }
}

impl<F, P, R, Fut> Handler for AsyncHandler<F, P>
where
    F: Fn(CallContext, P) -> Fut + Send + Sync + 'static,
    P: DeserializeOwned + Send + 'static,
    Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    R: Serialize + Send + 'static,
{
    fn kind(&self) -> HandlerKind {
        HandlerKind::Task
    }

    fn start(&self, request: Arc<Request>, params: Option<JsonText>) -> AbortHandle {
        let runtime = request.connection.runtime.clone();
        runtime.spawn(self.task(request, params)).abort_handle()
    }
}

impl<F, P> AsyncHandler<F, P> {
    /// Its task for a request.
    fn task<Fut>(&self, request: Arc<Request>, params: Option<JsonText>) -> Running<F, P, Fut>
    where
        F: Fn(CallContext, P) -> Fut,
    {
        let stage = Stage::Begin { function: Arc::clone(&self.function), params };
        Running { stage, guard: Guard::new(request), params: PhantomData }
    }
}

pin_project! {
    /// The task of a handler. It is written by hand, so that a request in flight holds only the user's future and the
    /// guard that reports its end: an `async` block keeps room for values that it has dropped.
    ///
    /// The fields are dropped in their order: the permit is free only after the user's future is dropped.
    struct Running<F, P, Fut> {
        #[pin]
        stage: Stage<F, Fut>,
        guard: Guard,
        params: PhantomData<fn(P)>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<F, Fut> {
        Begin { function: Arc<F>, params: Option<JsonText> },
        User { #[pin] future: Fut },
        Offer { end: HandlerResult, answer: Option<Answer> },
        Done,
    }
}

impl<F, P, R, Fut> Future for Running<F, P, Fut>
where
    F: Fn(CallContext, P) -> Fut,
    P: DeserializeOwned,
    Fut: Future<Output = Result<R, HandlerError>>,
    R: Serialize + 'static,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let guard = &*this.guard;
        loop {
            let (end, answer) = match this.stage.as_mut().project() {
                StageProjection::Begin { function, params } => match ready!(guard.poll_turn(cx)) {
                    Turn::Start => match read_params::<P>(params.take(), |sent| guard.replaced(sent)) {
                        Ok(params) => {
                            guard.open_span();
                            let context = guard.context();
                            let enter = AssertUnwindSafe(|| function(context, params));
                            match guard.enter(|| catch_unwind(enter)) {
                                Ok(future) => {
                                    this.stage.set(Stage::User { future });
                                    continue;
                                }
                                Err(panic) => ended(guard, Err(panic)),
                            }
                        }
                        Err(error) => (HandlerResult::Error, Answer::Error(error)),
                    },
                    Turn::Cancelled => taken_back(),
                },
                StageProjection::User { mut future } => {
                    let work = AssertUnwindSafe(|| future.as_mut().poll(cx).map(answer_of));
                    let polled = guard.enter(|| catch_unwind(work));
                    let first = guard.begin();
                    match polled {
                        Ok(Poll::Pending) => {
                            if first {
                                guard.note_waiting();
                            }
                            return Poll::Pending;
                        }
                        Ok(Poll::Ready(end)) => ended(guard, Ok(end)),
                        Err(panic) => ended(guard, Err(panic)),
                    }
                }
                StageProjection::Offer { end, answer } => {
                    ready!(guard.poll_offer(*end, answer, cx));
                    this.stage.set(Stage::Done);
                    return Poll::Ready(());
                }
                StageProjection::Done => return Poll::Ready(()),
            };
            guard.begin();
            let answer = Some(guard.fit(answer));
            // The user's future is dropped here, before its end is reported.
            this.stage.set(Stage::Offer { end, answer });
        }
    }
}

fn ended(
    guard: &Guard,
    ended: Result<(HandlerResult, Answer), Box<dyn Any + Send>>,
) -> (HandlerResult, Answer) {
    let ended = end_of(ended);
    guard.close_span(ended.0);
    ended
}

/// A handler that runs on a thread of the blocking pool.
pub(crate) struct BlockingHandler<F, P> {
    function: Arc<F>,
    params: PhantomData<fn(P)>,
}

impl<F, P> BlockingHandler<F, P> {
    pub(crate) fn new(function: F) -> Self {
        Self { function: Arc::new(function), params: PhantomData }
    }
}

impl<F, P, R> Handler for BlockingHandler<F, P>
where
    F: Fn(CallContext, P) -> Result<R, HandlerError> + Send + Sync + 'static,
    P: DeserializeOwned + Send + 'static,
    R: Serialize + Send + 'static,
{
    fn kind(&self) -> HandlerKind {
        HandlerKind::Blocking
    }

    /// The guard moves to the thread. If the task that waits for the thread is aborted, the request ends only when the
    /// thread has ended (I10).
    fn start(&self, request: Arc<Request>, params: Option<JsonText>) -> AbortHandle {
        let function = Arc::clone(&self.function);
        let runtime = request.connection.runtime.clone();
        let inner = runtime.clone();
        let guard = Guard::new(request);
        runtime
            .spawn(async move {
                if poll_fn(|cx| guard.poll_turn(cx)).await == Turn::Cancelled {
                    let (end, answer) = taken_back();
                    let mut answer = Some(answer);
                    guard.begin();
                    return poll_fn(|cx| guard.poll_offer(end, &mut answer, cx)).await;
                }
                // It may take long until a thread is free. Nothing waits for that.
                guard.begin();
                let thread = inner.spawn_blocking(move || {
                    let end = match read_params::<P>(params, |sent| guard.replaced(sent)) {
                        Ok(params) => {
                            guard.open_span();
                            let context = guard.context();
                            let work = AssertUnwindSafe(|| answer_of(function(context, params)));
                            let end = guard.enter(|| catch_unwind(work));
                            ended(&guard, end)
                        }
                        Err(error) => (HandlerResult::Error, Answer::Error(error)),
                    };
                    (guard, end)
                });
                // An error means that the runtime shuts down. The guard was dropped with the closure.
                if let Ok((guard, (end, answer))) = thread.await {
                    let mut answer = Some(guard.fit(answer));
                    poll_fn(|cx| guard.poll_offer(end, &mut answer, cx)).await;
                }
            })
            .abort_handle()
    }
}

/// The end of a handler that was cancelled before it started. The machine has the answer.
fn taken_back() -> (HandlerResult, Answer) {
    (HandlerResult::Stopped, Answer::Error(ErrorObject::internal()))
}

fn answer_of<R: Serialize + 'static>(result: Result<R, HandlerError>) -> (HandlerResult, Answer) {
    match result {
        Ok(value) => match json_of(value) {
            Ok(value) => (HandlerResult::Value, Answer::Value(value)),
            Err(error) => {
                tracing::warn!(error = %crate::log_text::LogText::text(&error), "a handler's value cannot be written as JSON");
                (HandlerResult::Error, Answer::Error(ErrorObject::internal()))
            }
        },
        Err(error) => error.into_answer(),
    }
}

/// A value as JSON. One that is JSON already is moved and not copied.
fn json_of<R: Serialize + 'static>(value: R) -> Result<Box<RawValue>, serde_json::Error> {
    let mut value = Some(value);
    let raw = (&mut value as &mut dyn Any).downcast_mut::<Option<Box<RawValue>>>();
    match raw.and_then(Option::take) {
        Some(raw) => Ok(raw),
        // It is written as the value in it.
        None => to_raw_value(&value),
    }
}

fn end_of(ended: Result<(HandlerResult, Answer), Box<dyn Any + Send>>) -> (HandlerResult, Answer) {
    ended.unwrap_or_else(|panic| {
        // The payload is a value of the user, and dropping it may panic too.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
        (HandlerResult::Panicked, Answer::Error(ErrorObject::internal()))
    })
}

// Quick handlers: a handler that is mostly ready at its first poll, which the connection's task makes.

/// A debug build warns about a first poll that takes longer.
const MAX_FIRST_POLL: Duration = Duration::from_millis(1);

/// A handler that runs as a task only if it is not ready at its first poll.
pub(crate) struct QuickHandler<F, P>(AsyncHandler<F, P>);

impl<F, P> QuickHandler<F, P> {
    pub(crate) fn new(function: F) -> Self {
        Self(AsyncHandler::new(function))
    }
}

impl<F, P, R, Fut> Handler for QuickHandler<F, P>
where
    F: Fn(CallContext, P) -> Fut + Send + Sync + 'static,
    P: DeserializeOwned + Send + 'static,
    Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    R: Serialize + Send + 'static,
{
    fn kind(&self) -> HandlerKind {
        HandlerKind::Quick
    }

    fn start(&self, request: Arc<Request>, params: Option<JsonText>) -> AbortHandle {
        self.0.start(request, params)
    }

    /// The task that the handler becomes polls it at once, with a waker of its own. So the first poll needs no waker
    /// that wakes anything.
    fn poll_first(&self, request: Arc<Request>, params: Option<JsonText>) {
        let began = cfg!(debug_assertions).then(now);
        let mut task = Box::pin(self.0.task(request, params));
        let mut cx = Context::from_waker(Waker::noop());
        let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut cx)));
        if let Some(began) = began {
            warn_if_slow(began, task.guard.request());
        }
        match polled {
            Ok(Poll::Pending) => {
                let request = Arc::clone(task.guard.request());
                let abort = request.connection.runtime.spawn(task).abort_handle();
                if !failpoint::active(Failpoint::QuickNotAborted) {
                    request.data.set_abort(abort);
                }
            }
            // As a task that ends or panics: its guard reports the end if that was not done. A value of the user may
            // panic when it is dropped.
            Ok(Poll::Ready(())) => drop_caught(task),
            Err(panic) => {
                drop_caught::<Box<dyn Any + Send>>(panic);
                drop_caught(task);
            }
        }
    }
}

fn drop_caught<T>(value: T) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
}

fn warn_if_slow(began: Instant, request: &Request) {
    let took = now().saturating_duration_since(began);
    if took > MAX_FIRST_POLL {
        tracing::warn!(
            rpc.method = %crate::log_text::LogText::name(&request.data.method),
            ?took,
            "the first poll of a quick handler took more than a millisecond; cancels of its connection wait for it"
        );
    }
}

// The guard of a handler's task: it reports the end once, however the task ends.

/// Whether a handler starts, after the wait for the notifications before its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Start,
    /// The request was cancelled meanwhile.
    Cancelled,
}

/// Reports the end of a handler's task, however it ends: by return, panic, abort, or the end of the runtime (I10).
pub(crate) struct Guard(Arc<Request>);

impl Guard {
    pub(crate) const fn new(request: Arc<Request>) -> Self {
        Self(request)
    }

    pub(crate) const fn request(&self) -> &Arc<Request> {
        &self.0
    }

    pub(crate) fn context(&self) -> CallContext {
        CallContext::new(Arc::clone(&self.0))
    }

    /// Opens the request's span, if it is enabled.
    pub(crate) fn open_span(&self) {
        let request = &self.0.data;
        let span = tracing::info_span!(
            "rescind.request",
            otel.kind = "server",
            rpc.system.name = self.0.connection.rpc_system(),
            rpc.method = %crate::log_text::LogText::name(&request.method),
            jsonrpc.request.id = %crate::log_text::LogText::name(&request.id),
            cancel.source = tracing::field::Empty,
            cancel.outcome = tracing::field::Empty,
        );
        if !span.is_disabled() {
            if let (Some(propagator), Some(trace)) = (&self.0.connection.propagator, request.trace()) {
                propagator.set_parent(&span, trace);
            }
            request.put_span(Some(span));
        }
    }

    /// Runs code of the handler in the request's span.
    pub(crate) fn enter<R>(&self, code: impl FnOnce() -> R) -> R {
        let span = self.0.data.take_span();
        let entered = span.as_ref().map(tracing::Span::enter);
        let result = code();
        drop(entered);
        self.0.data.put_span(span);
        result
    }

    /// Records on the request's span the cause of its cancel, if it was cancelled, and how its handler ended. Closes
    /// the span.
    pub(crate) fn close_span(&self, end: HandlerResult) {
        let Some(span) = self.0.data.take_span() else { return };
        let Some(cause) = self.0.data.cause() else { return };
        span.record("cancel.source", cause.kind().name());
        let outcome = match end {
            HandlerResult::Value => "completed",
            HandlerResult::Error => "failed",
            HandlerResult::Stopped => "cancelled",
            HandlerResult::Panicked => "panicked",
        };
        span.record("cancel.outcome", outcome);
    }

    /// A string in the params had half a character.
    fn replaced(&self, sent: &[u8]) {
        self.0.connection.deviates(Deviation::LoneSurrogate, sent);
    }

    /// Waits until the notifications before the request are handled, on connections that handle in order. A cancel ends
    /// the wait.
    pub(crate) fn poll_turn(&self, cx: &mut Context<'_>) -> Poll<Turn> {
        let Request { connection, data } = &*self.0;
        let after = data.came_after();
        if after == 0 || !connection.in_order {
            return Poll::Ready(Turn::Start);
        }
        let replaced = {
            let mut state = connection.lock();
            if state.notices.is_handled(after) {
                return Poll::Ready(Turn::Start);
            }
            // A cancel is set with the lock held, and takes the waker.
            if data.is_cancelled() {
                return Poll::Ready(Turn::Cancelled);
            }
            state.notices.wait_for_turn(after, data.key, cx.waker().clone())
        };
        drop(replaced);
        Poll::Pending
    }

    /// The handler was polled once, or will never be polled. `true`: this is the first call.
    pub(crate) fn begin(&self) -> bool {
        let first = self.0.data.set_begun();
        if first {
            self.0.connection.beginning.fetch_sub(1, Ordering::SeqCst);
            self.0.data.wake_begun();
        }
        first
    }

    /// The handler awaits something. A transport with exchanges is notified, because the response can begin before the
    /// answer.
    pub(crate) fn note_waiting(&self) {
        let exchange = self.0.data.exchange();
        if exchange.is_peers() {
            self.0.connection.step(|state, _, _| state.outbox.push_control(Control::Waiting(exchange)));
        }
    }

    /// Prepares the answer: the handshake's result gets the declaration of this side, and an answer above the frame
    /// limit becomes an internal error.
    pub(crate) fn fit(&self, answer: Answer) -> Answer {
        let connection = &self.0.connection;
        // Of a task it is a part of a later answer.
        let task = self.0.data.task_side().and_then(TaskSide::task);
        let limit = task.map_or(connection.max_frame, |task| task.max_result(connection.max_frame));
        connection.fit(&self.0.data.method, answer, limit)
    }

    /// Offers the end of the handler when there is room for it, and reports the end of the task.
    ///
    /// If it is dropped before it is done, the answer is lost, and the task counts as ended without an answer. That
    /// happens at an abort after the grace, when the machine has answered already.
    pub(crate) fn poll_offer(
        &self,
        end: HandlerResult,
        answer: &mut Option<Answer>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let offered = self.0.poll_offer(end, answer, cx);
        if offered.is_ready() {
            self.0.data.set_end_reported();
        }
        offered
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Request { connection, data: request } = &*self.0;
        // The span of an aborted task. Contexts may live longer than the task.
        drop(request.take_span());
        if !request.end_is_reported() {
            self.begin();
            connection.step(|state, now, effects| {
                effects.wake(state.notices.take_turn_of(request.key));
                state.end_task(&self.0, now);
            });
        }
    }
}

impl Request {
    /// Offers the answer and the end of the task in one step, or waits for room. Until then the request keeps its
    /// permit and can be cancelled.
    fn poll_offer(&self, end: HandlerResult, answer: &mut Option<Answer>, cx: &mut Context<'_>) -> Poll<()> {
        let heard = self.connection.dialect.rules().errors_after_cancel;
        let end = match (end, &*answer) {
            // An error that the dialect allows after a cancel is sent unchanged, as a value is.
            (HandlerResult::Error, Some(Answer::Error(error))) if heard.contains(&error.code) => {
                HandlerResult::Value
            }
            (end, _) => end,
        };
        let connection = &self.connection;
        let weight = answer.as_ref().map_or(0, Answer::weight);
        // An answer that the machine does not take stays in `answer` and is dropped without the lock.
        connection.step_with(
            Payload::Offer(answer),
            |state, now, _, _| {
                // The end of a task is kept and not written.
                let settled =
                    !state.session.may_notify(self.data.key) || state.session.is_task(self.data.key);
                let has_room = state.outbox.has_room(state.session.limits(), weight);
                let Some(slot) = state.inbound.get_mut(self.data.key.0) else { return Poll::Ready(()) };
                if !settled && !has_room {
                    if slot.extras().waits_for_room.replace(cx.waker().clone()).is_none() {
                        state.waiting_for_room.push(self.data.key);
                    }
                    state.memory.answer_waits(&mut slot.bytes, weight);
                    return Poll::Pending;
                }
                state.session.local_answer(now, self.data.key, end);
                state.end_task(self, now);
                Poll::Ready(())
            },
            |_, _, offered| offered,
        )
    }
}

impl DriverState {
    /// The task of a request has ended.
    fn end_task(&mut self, request: &Request, now: Instant) {
        let Request { connection, data } = request;
        if data.is_cancelled() {
            connection.registry.clear(request.session_hash(), request.session(), &data.id);
        }
        if let Some(slot) = self.inbound.get_mut(data.key.0) {
            self.permits.ends(&connection.admission, data.request_client(&connection.client), slot.task);
            slot.task = HandlerPhase::Ended;
        }
        self.session.local_ended(now, data.key);
    }
}

impl ConnectionInner {
    fn fit(&self, method: &str, answer: Answer, limit: usize) -> Answer {
        let Answer::Value(mut value) = answer else { return answer };
        if self.dialect.rules().handshake == Some(method) {
            let declared = self.dialect.codec().declare(HandshakePart::Result, &value, self.handles_cancels);
            value = declared.unwrap_or(value);
        }
        if value.get().len() > limit {
            tracing::warn!(
                rpc.method = %crate::log_text::LogText::name(method),
                bytes = value.get().len(),
                limit,
                "an answer is over the frame limit"
            );
            return Answer::Refused(crate::dialect::Refusal::Internal);
        }
        Answer::Value(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside<F, P, Fut>(_: &F) -> usize
    where
        F: Fn(CallContext, P) -> Fut,
    {
        size_of::<Running<F, P, Fut>>() - size_of::<Fut>()
    }

    #[test]
    fn an_answer_that_is_json_is_not_copied() {
        let raw = RawValue::from_string("[1]".to_owned()).unwrap();
        let text = raw.get().as_ptr();
        assert_eq!(json_of(raw).unwrap().get().as_ptr(), text);
        for (written, expected) in [
            (json_of("x"), r#""x""#),
            (json_of(None::<Box<RawValue>>), "null"),
            (json_of(()), "null"),
            (json_of(Some(1)), "1"),
        ] {
            assert_eq!(written.unwrap().get(), expected);
        }
    }

    #[test]
    fn a_handlers_task_is_the_users_future_plus_two_words() {
        let handler = |context: CallContext, _params: Box<RawValue>| async move {
            context.cancelled().await;
            Ok::<_, HandlerError>(())
        };
        assert!(beside(&handler) <= 16, "W8: {} bytes beside the user's future", beside(&handler));
    }
}
