//! Reports the end of a handler's task once, however it ends.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::dialect::HandshakePart;
use crate::driver::admission::Task;
use crate::driver::context::CallContext;
use crate::driver::outbox::{Answer, Control};
use crate::driver::state::{ConnectionInner, Payload, Request, State};
use crate::machine::HandlerResult;
use crate::message::Deviation;
use crate::sync::atomic::Ordering;

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
    pub(super) fn replaced(&self, sent: &[u8]) {
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
        self.0.connection.fit(&self.0.data.method, answer)
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
                effects.wakers.extend(state.notices.take_turn_of(request.key));
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
                let settled = !state.session.may_notify(self.data.key);
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

impl State {
    /// The task of a request has ended.
    fn end_task(&mut self, request: &Request, now: Instant) {
        let Request { connection, data } = request;
        if data.is_cancelled() {
            connection.registry.clear(request.session_hash(), request.session(), &data.id);
        }
        if let Some(slot) = self.inbound.get_mut(data.key.0) {
            self.permits.ends(&connection.admission, data.request_client(&connection.client), slot.task);
            slot.task = Task::Ended;
        }
        self.session.local_ended(now, data.key);
    }
}

impl ConnectionInner {
    fn fit(&self, method: &str, answer: Answer) -> Answer {
        let Answer::Value(mut value) = answer else { return answer };
        if self.dialect.rules().handshake == Some(method) {
            let declared = self.dialect.codec().declare(HandshakePart::Result, &value, self.handles_cancels);
            value = declared.unwrap_or(value);
        }
        if value.get().len() > self.max_frame {
            tracing::warn!(
                rpc.method = %crate::log_text::LogText::name(method),
                bytes = value.get().len(),
                limit = self.max_frame,
                "an answer is over the frame limit"
            );
            return Answer::Refused(crate::dialect::Refusal::Internal);
        }
        Answer::Value(value)
    }
}
