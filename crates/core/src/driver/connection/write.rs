//! Sends frames.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;

use crate::cause::{Cause, CauseKind};
use crate::dialect::{CallFrame, Refusal, ReplyTo};
use crate::driver::call_table::{EntryUsers, StagedCall};
use crate::driver::connection::ConnectionTask;
use crate::driver::effects::Effects;
use crate::driver::outbox::{Answer, Control, DataFrame, MAX_CANCELS_IN_ROW, Notification};
use crate::driver::state::{ConnectionInner, DriverState, now};
use crate::driver::task::Task;
use crate::id::{CallNumber, ExchangeId, OutboundKey, RequestId};
use crate::machine::{Reply, ReplyBody};
use crate::sync::atomic::Ordering;
use crate::trace_context::TraceContext;
use crate::transport::{ExchangeEnd, FrameInfo, FrameKind, Lane, Outbound, RejectReason, TransportError};

/// Up to this size a frame is a part of a buffer that several frames share.
const MAX_SHARING_BYTES: usize = 256;
/// Above this size a frame's buffer is moved to the transport and not copied.
const MAX_COPIED_BYTES: usize = 16 * 1024;
/// Unflushed bytes of the transport are counted in the budget from this size on.
const MIN_COUNTED_BYTES: usize = 16 * 1024;

impl ConnectionTask {
    /// Writes the frames that the transport accepts, then flushes once; after a cancel that overtakes a data frame it
    /// flushes at once. Returns whether there is more to write at once. After several cancels in a row the task does
    /// its other work first, so that the transport buffers few cancels, behind which other frames would wait.
    pub(crate) fn write(&mut self, cx: &mut Context<'_>) -> Result<bool, TransportError> {
        if self.tx.is_none() {
            return Ok(false);
        }
        let mut next = {
            let mut state = self.connection.lock();
            state.outbox.blocked = false;
            // Everything that has happened so far is handled below.
            state.dirty = false;
            state.next_lane()
        };
        let (mut urgent, mut cancels, mut cancels_wait) = (false, 0, false);
        let mut began = None;
        while let Some(lane) = next {
            if cancels == MAX_CANCELS_IN_ROW && lane == Lane::Control {
                cancels_wait = true;
                break;
            }
            if urgent && lane == Lane::Data {
                // Otherwise the frames that it overtook would fill the transport's buffer before the cancel is sent.
                urgent = false;
                self.flush(cx)?;
            }
            if !self.poll_ready(lane, cx)? {
                let mut state = self.connection.lock();
                state.outbox.blocked = true;
                // On an ordered transport further cancels would delay this frame for as long as there are any.
                let may_pass = lane == Lane::Data && !self.connection.traits.ordered;
                cancels_wait = may_pass && state.outbox.pass_turn();
                break;
            }
            let now = *began.get_or_insert_with(now);
            let (taken, then) = self
                .connection
                .step_at(now, |state, now, effects| (state.take(lane, now, effects), state.next_lane()));
            next = then;
            if let Some(outgoing) = taken {
                let is_cancel = matches!(outgoing, Outgoing::Cancel { .. });
                urgent |= is_cancel;
                cancels += usize::from(is_cancel);
                self.send(outgoing)?;
            } else if lane == Lane::Control {
                // The mark of a cancel that is not needed any more counts too.
                cancels += 1;
            }
        }
        self.flush(cx)?;
        Ok(cancels_wait)
    }

    fn flush(&mut self, cx: &mut Context<'_>) -> Result<(), TransportError> {
        match &mut self.tx {
            Some(tx) if self.unflushed => match tx.as_mut().poll_flush(cx)? {
                Poll::Ready(()) => self.flushed(),
                Poll::Pending => {}
            },
            Some(_) | None => {}
        }
        Ok(())
    }

    /// The transport has flushed everything.
    pub(crate) fn flushed(&mut self) {
        self.unflushed = false;
        if std::mem::take(&mut self.written) > MIN_COUNTED_BYTES {
            self.written_held.resize(0);
        }
    }

    /// Whether the transport accepts a frame of this lane. A full transport is flushed and polled again.
    fn poll_ready(&mut self, lane: Lane, cx: &mut Context<'_>) -> Result<bool, TransportError> {
        let Some(tx) = &mut self.tx else { return Ok(false) };
        if tx.as_mut().poll_ready(lane, cx)?.is_ready() {
            return Ok(true);
        }
        if !self.unflushed || tx.as_mut().poll_flush(cx)?.is_pending() {
            return Ok(false);
        }
        let ready = tx.as_mut().poll_ready(lane, cx)?.is_ready();
        self.flushed();
        Ok(ready)
    }

    fn send(&mut self, outgoing: Outgoing) -> Result<(), TransportError> {
        let connection = Arc::clone(&self.connection);
        self.scratch.clear();
        match outgoing {
            Outgoing::Call { key, number, exchange, call, trace } => {
                let mut frame = CallFrame::new(number, connection.seed, &call.method, call.params.as_deref());
                frame.partial = call.partial;
                frame.timeout = call.timeout;
                frame.progress = call.progress;
                connection.dialect.codec().encode_request(
                    connection.dialect.rules(),
                    &mut self.scratch,
                    &frame,
                );
                let method = Some(Arc::clone(&call.method));
                // Its params may be large. They are in the frame now.
                drop(call);
                let head = FrameInfo { kind: FrameKind::Request, id: id_of(number), method, trace };
                let sent = self.scratch.len() <= connection.max_frame
                    && self.start_send(Lane::Data, exchange, head, EndsExchange::No)?;
                if !sent {
                    connection.step(|state, now, _| state.session.recv_call_failed(now, key, false));
                }
                Ok(())
            }
            Outgoing::Cancel { key, number, exchange, cancel, cause, task } => {
                if self.abort_exchange(exchange) {
                    // The answer could only have arrived on this exchange.
                    connection.step(|state, now, _| state.session.recv_call_failed(now, key, true));
                    return Ok(());
                }
                self.encode_cancel(number, cancel, &cause, task.as_deref());
                // I12: on an exchange of the peer the cancel follows its request. An exchange of this side carries one
                // message, so the cancel opens another.
                let exchange = exchange.call().map_or(exchange, |_| ExchangeId::of_call(cancel));
                let head =
                    FrameInfo { kind: FrameKind::Cancel, id: id_of(number), method: None, trace: None };
                self.start_send(Lane::Control, exchange, head, EndsExchange::No).map(drop)
            }
            Outgoing::Control(control) => self.send_control(&connection, control),
            Outgoing::Answer { reply, answer } => self.send_answer(&connection, &reply, answer),
            Outgoing::Notification(Notification { method, params, exchange, owner: _ }) => {
                connection.dialect.codec().encode_notification(
                    connection.dialect.rules(),
                    &mut self.scratch,
                    &method,
                    params.as_deref(),
                );
                drop(params);
                let head =
                    FrameInfo { kind: FrameKind::Notification, id: None, method: Some(method), trace: None };
                self.start_send(Lane::Data, exchange, head, EndsExchange::No).map(drop)
            }
        }
    }

    /// Encodes a cancel. Not inlined, so that the code for other frames stays short.
    #[inline(never)]
    fn encode_cancel(&mut self, number: CallNumber, cancel: CallNumber, cause: &Cause, task: Option<&Task>) {
        let connection = &self.connection;
        let (codec, rules) = (connection.dialect.codec(), connection.dialect.rules());
        codec.encode_cancel(rules, &mut self.scratch, number, cancel, connection.seed, cause.reason());
        if let Some(task) = task {
            task.form.name_in(&mut self.scratch, &task.id);
        }
    }

    /// Aborts the exchange of a call, on transports where ids are unique only within an exchange, so that no message
    /// can name the call. Returns `false` if a message must cancel it.
    fn abort_exchange(&mut self, exchange: ExchangeId) -> bool {
        let needs_no_message = self.connection.traits.exchange_scoped && exchange.call().is_some();
        let Some(tx) = self.tx.as_mut().filter(|_| needs_no_message) else { return false };
        self.unflushed = true;
        tx.as_mut().abort_exchange(exchange).is_ok()
    }

    fn send_control(&mut self, connection: &ConnectionInner, control: Control) -> Result<(), TransportError> {
        let (codec, rules) = (connection.dialect.codec(), connection.dialect.rules());
        let out = &mut self.scratch;
        let mut reason = None;
        let (written, exchange, id, otherwise) = match control {
            // `take_control` has made an `Outgoing::Cancel` of it, or has dropped it.
            Control::Cancel(_) => return Ok(()),
            Control::Refuse { to, exchange, why } => {
                let to = to.as_ref();
                reason = Some(reason_of(why));
                let reply_to = to.map(|(id, tag)| ReplyTo { id, tag: *tag, server_cancellable: false });
                let written = codec.encode_refusal(rules, out, reply_to.as_ref(), why);
                (written, exchange, to.map(|(id, _)| id.clone()), ExchangeEnd::Refused)
            }
            Control::RefuseCancelled { id, tag, server_cancellable, exchange, graceful, cause } => {
                let is_closing = connection.closing.load(Ordering::Relaxed);
                reason = (is_closing && cause.kind() == CauseKind::Shutdown).then_some(RejectReason::Closing);
                let to = ReplyTo { id: &id, tag, server_cancellable };
                match graceful {
                    Some(result) => codec.encode_graceful(rules, out, &to, result),
                    None => codec.encode_cancelled(rules, out, &to, &cause),
                }
                (true, exchange, Some(id), ExchangeEnd::Refused)
            }
            Control::Ack { ack, key, exchange, status } => {
                let written = codec.encode_ack(rules, out, &ack, key.as_ref(), status);
                (written, exchange, Some(ack), ExchangeEnd::Accepted)
            }
            Control::ExchangeEnd { exchange, how } => (false, exchange, None, how),
            Control::Begin(exchange) => {
                self.begin_exchange(exchange);
                return Ok(());
            }
            Control::Waiting(exchange) => {
                if let Some(tx) = &mut self.tx {
                    tx.as_mut().note_waiting(exchange);
                    self.unflushed = true;
                }
                return Ok(());
            }
        };
        self.note_rejection(exchange, reason.filter(|_| written));
        let head = FrameInfo { kind: FrameKind::Answer, id, method: None, trace: None };
        if !written || !self.start_send(Lane::Control, exchange, head, EndsExchange::Yes)? {
            self.finish_exchange(exchange, otherwise);
        }
        Ok(())
    }

    fn note_rejection(&mut self, exchange: ExchangeId, reason: Option<RejectReason>) {
        if let (Some(tx), Some(reason), true) = (&mut self.tx, reason, exchange.is_peers()) {
            tx.as_mut().note_rejection(exchange, reason);
        }
    }

    /// Tells the transport that the handler of the request on this exchange has started.
    pub(crate) fn begin_exchange(&mut self, exchange: ExchangeId) {
        if let (Some(tx), true) = (&mut self.tx, exchange.is_peers()) {
            tx.as_mut().begin_exchange(exchange);
            self.unflushed = true;
        }
    }

    /// Ends an exchange of the peer, without a frame.
    fn finish_exchange(&mut self, exchange: ExchangeId, how: ExchangeEnd) {
        if let (Some(tx), true) = (&mut self.tx, exchange.is_peers()) {
            tx.as_mut().finish_exchange(exchange, how);
            self.unflushed = true;
        }
    }

    fn send_answer(
        &mut self,
        connection: &ConnectionInner,
        reply: &Reply,
        answer: Option<Answer>,
    ) -> Result<(), TransportError> {
        let (codec, rules) = (connection.dialect.codec(), connection.dialect.rules());
        let out = &mut self.scratch;
        let to = ReplyTo { id: &reply.id, tag: reply.tag, server_cancellable: reply.server_cancellable };
        let refuse = |out: &mut Vec<u8>, why| codec.encode_refusal(rules, out, Some(&to), why);
        let mut reason = match (&reply.body, &answer) {
            (ReplyBody::Handler | ReplyBody::TaskHandle, Some(Answer::Refused(why)))
            | (ReplyBody::Refused(why), _) => Some(reason_of(*why)),
            (ReplyBody::Handler | ReplyBody::TaskHandle, None) => Some(RejectReason::Internal),
            (ReplyBody::Handler | ReplyBody::TaskHandle, Some(Answer::Value(_) | Answer::Error(_)))
            | (ReplyBody::Cancelled(_) | ReplyBody::Graceful(_), _) => None,
        };
        let mut written = match (&reply.body, &answer) {
            (ReplyBody::Handler | ReplyBody::TaskHandle, Some(Answer::Value(value))) => {
                codec.encode_value(rules, out, &to, value);
                true
            }
            (ReplyBody::Handler | ReplyBody::TaskHandle, Some(Answer::Error(error))) => {
                codec.encode_error(rules, out, &to, error);
                true
            }
            (ReplyBody::Handler | ReplyBody::TaskHandle, Some(Answer::Refused(why)))
            | (ReplyBody::Refused(why), _) => refuse(out, *why),
            (ReplyBody::Handler | ReplyBody::TaskHandle, None) => refuse(out, Refusal::Internal),
            (ReplyBody::Cancelled(cause), _) => {
                codec.encode_cancelled(rules, out, &to, cause);
                true
            }
            (ReplyBody::Graceful(result), _) => {
                codec.encode_graceful(rules, out, &to, result);
                true
            }
        };
        // The value may be large. It is in the frame now.
        drop(answer);
        if self.scratch.len() > connection.max_frame {
            self.scratch.clear();
            written = refuse(&mut self.scratch, Refusal::Internal);
            reason = Some(RejectReason::Internal);
        }
        self.note_rejection(reply.exchange, reason.filter(|_| written));
        let head = |id: &RequestId| FrameInfo {
            kind: FrameKind::Answer,
            id: Some(id.clone()),
            method: None,
            trace: None,
        };
        if !written || !self.start_send(Lane::Data, reply.exchange, head(&reply.id), EndsExchange::Yes)? {
            self.finish_exchange(reply.exchange, ExchangeEnd::Refused);
            tracing::warn!(jsonrpc.request.id = %crate::log_text::LogText::name(&reply.id), "an answer could not be written");
        }
        Ok(())
    }

    /// Passes the encoded frame to the transport. `false`: the transport refused this frame only.
    fn start_send(
        &mut self,
        lane: Lane,
        exchange: ExchangeId,
        head: FrameInfo,
        last: EndsExchange,
    ) -> Result<bool, TransportError> {
        let Some(tx) = &mut self.tx else { return Ok(false) };
        let body = if self.scratch.len() <= MAX_SHARING_BYTES {
            self.shared_buffer.copy(&self.scratch)
        } else if self.scratch.len() <= MAX_COPIED_BYTES {
            Bytes::copy_from_slice(&self.scratch)
        } else {
            Bytes::from(std::mem::take(&mut self.scratch))
        };
        (self.unflushed, self.moved) = (true, true);
        self.written += body.len();
        if self.written > MIN_COUNTED_BYTES {
            self.written_held.resize(self.written);
        }
        // An exchange of this side carries only the message that opened it. An answer to a request that arrived on it
        // is sent elsewhere, and only the peer's answer ends it.
        let exchange = match head.kind {
            FrameKind::Request | FrameKind::Cancel => exchange,
            FrameKind::Answer | FrameKind::Notification => {
                Some(exchange).filter(|exchange| exchange.is_peers()).unwrap_or(ExchangeId::NONE)
            }
        };
        let last = last == EndsExchange::Yes && exchange.is_peers();
        let is_request = head.kind == FrameKind::Request;
        match tx.as_mut().start_send(Outbound { body, exchange, lane, head, last }) {
            Ok(()) => Ok(true),
            Err(error) if error.exchange.is_some() => {
                tracing::debug!(error = %crate::log_text::LogText::text(&error), "the transport refused a frame");
                if let (true, Some(hook)) = (is_request, &self.connection.on_call_failure) {
                    hook(&error);
                }
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether a frame is the last of its exchange.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EndsExchange {
    Yes,
    No,
}

const fn reason_of(why: Refusal) -> RejectReason {
    match why {
        Refusal::Bad(_) => RejectReason::BadMessage,
        Refusal::DuplicateId | Refusal::DuplicateKey => RejectReason::DuplicateId,
        Refusal::Overloaded(_) => RejectReason::Overloaded,
        Refusal::MethodNotFound => RejectReason::MethodNotFound,
        Refusal::NotInitialized | Refusal::ShutDown => RejectReason::NotInitialized,
        Refusal::Internal => RejectReason::Internal,
    }
}

fn id_of(number: CallNumber) -> Option<RequestId> {
    i64::try_from(number.0).ok().map(RequestId::number)
}

/// A frame that was taken out of the outbox: it counts as written (T4).
pub(crate) enum Outgoing {
    Call {
        key: OutboundKey,
        number: CallNumber,
        exchange: ExchangeId,
        call: Box<StagedCall>,
        trace: Option<Arc<TraceContext>>,
    },
    Cancel {
        key: OutboundKey,
        number: CallNumber,
        exchange: ExchangeId,
        cancel: CallNumber,
        cause: Cause,
        task: Option<Arc<Task>>,
    },
    Control(Control),
    Answer {
        reply: Reply,
        answer: Option<Answer>,
    },
    Notification(Notification),
}

impl DriverState {
    /// The lane of the next frame.
    pub(crate) fn next_lane(&mut self) -> Option<Lane> {
        let calls = &self.calls;
        self.outbox.skip_empty(|slot_key| calls.get(slot_key.0).is_some_and(|entry| entry.frame.is_some()));
        self.outbox.next_lane()
    }

    /// Takes the next frame of a lane, and tells the machine that it is written.
    pub(crate) fn take(&mut self, lane: Lane, now: Instant, effects: &mut Effects) -> Option<Outgoing> {
        let taken = match lane {
            Lane::Control => self.take_control(now),
            Lane::Data => self.take_data(now),
        };
        self.give_room(effects);
        taken
    }

    fn take_control(&mut self, now: Instant) -> Option<Outgoing> {
        match self.outbox.pop_control()? {
            Control::Cancel(slot_key) => {
                let entry = self.calls.get_mut(slot_key.0)?;
                let key = entry.key;
                if !entry.users.remove(EntryUsers::CANCEL) {
                    return None;
                }
                let settled = entry.ended;
                // An answer may have disarmed it.
                let outgoing = self.session.waiting_cancel(key).map(|(number, cancel, cause)| {
                    let (exchange, cause) = (entry.exchange(number), cause.clone());
                    let task = entry.extras.as_ref().and_then(|extras| extras.task.as_ref());
                    let task = task.map(|call| Arc::clone(call.task()));
                    Outgoing::Cancel { key, number, exchange, cancel, cause, task }
                });
                if outgoing.is_some() {
                    self.session.local_cancel_written(now, key);
                }
                if settled {
                    self.outbound.remove(key.0);
                    self.remove_if_done(slot_key);
                }
                outgoing
            }
            control => Some(Outgoing::Control(control)),
        }
    }

    fn take_data(&mut self, now: Instant) -> Option<Outgoing> {
        match self.outbox.pop_data()? {
            DataFrame::Call(slot_key) => {
                let taken = self.calls.get_mut(slot_key.0).and_then(|entry| {
                    let call = entry.frame.take()?;
                    let number = self.session.call_number(entry.key)?;
                    let trace = entry.extras.as_mut().and_then(|extras| extras.trace.take());
                    Some((call, entry.key, number, entry.exchange(number), trace))
                });
                let Some((call, key, number, exchange, trace)) = taken else {
                    self.outbox.found_empty();
                    return None;
                };
                self.session.local_written(now, key);
                Some(Outgoing::Call { key, number, exchange, call, trace })
            }
            DataFrame::Answer { reply, answer } => Some(Outgoing::Answer { reply, answer }),
            DataFrame::Notification(frame) => {
                if let Some(slot) = frame.owner.and_then(|owner| self.inbound.get_mut(owner.0)) {
                    slot.remove_frame();
                }
                self.notifications_written = self.notifications_written.saturating_add(1);
                Some(Outgoing::Notification(frame))
            }
            DataFrame::Dropped => {
                self.outbox.found_empty();
                None
            }
        }
    }
}
