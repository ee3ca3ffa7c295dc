//! The task that drives one connection.
//!
//! It polls both halves of the link. A frame is read, decoded without the lock, and processed in one step; its handler
//! runs as a task of its own. A quick handler becomes one only if it is not ready at its first poll, which is made here.
//!
//! - T1 Reading waits for nothing: no handler, permit, lock held by user code, or writer (L2). The first poll of a quick
//!   handler is the one exception, which its user has chosen.
//! - T2 A request has its slot, and a cancel its effect, before the next frame is read.
//! - T3 After at most [`MAX_FRAMES_PER_ROUND`] frames were read, or after several cancels in a row were written, the task does its
//!   other work and yields. In each round it cancels one slice of a cascade.
//! - T4 A frame counts as written when it is taken out of the outbox for `start_send`, which follows at once, before
//!   any other frame. So no cancel precedes its request on the transport (I12), and no code of the transport runs while
//!   the lock is held. If the transport refuses the frame, the machine gets an input that it was not sent.
//! - T5 It sleeps only after it has checked, with the lock held, that nothing happened since its last look. Code that
//!   causes something later takes its waker. So no wake-up is lost, and none is sent while the task is awake.
//! - T6 If it is dropped, with its runtime or by a panic of the transport, it settles every call as disconnected.
//!
//! # The first polls of quick handlers
//!
//! They are made after the frames that could be read with their requests, as the tasks of other handlers run after them
//! on the same thread. So a cancel that has already arrived reaches its request before the handler runs, and the outcome
//! is that of a handler which is a task from the beginning. Requests that wait for a permit start as tasks.

pub(crate) mod read;
mod unanswered;
pub(crate) mod write;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::time::Sleep;

use crate::byte_budget::HeldBytes;
use crate::dialect::{Dialect, Negotiation, negotiate};
use crate::driver::admission::{HandlerPhase, SessionPermit};
use crate::driver::effects::start_one;
use crate::driver::json_text::JsonText;
use crate::driver::router::Router;
use crate::driver::state::{ConnectionInner, DriverState, Start, WaitingRequest, now};
use crate::error::{ConnectionError, ProtocolViolation};
use crate::id::{ExchangeId, InboundKey};
use crate::machine::{CloseCause, DisconnectPolicy};
use crate::sync::atomic::Ordering;
use crate::transport::{
    CloseReason, ExchangeEnd, FrameInfo, FrameKind, Inbound, Lane, Link, Outbound, Receiver, RejectReason,
    Sender, TransportError, TransportErrorKind, TransportEvent, UseMark,
};

/// The most frames that are read before the task writes and yields.
const MAX_FRAMES_PER_ROUND: usize = 16;
/// The most rounds before the task yields although there is more to do.
const MAX_ROUNDS_PER_POLL: usize = 16;

/// The size of the buffer of which small frames are parts. A connection that has sent something keeps one.
const SHARED_BYTES: usize = 512;

/// The task of one connection.
pub(crate) struct ConnectionTask {
    pub(crate) connection: Arc<ConnectionInner>,
    /// Data that only this task uses.
    pub(crate) own: Box<TaskData>,
    pub(crate) rx: Option<Pin<Box<dyn Receiver>>>,
    pub(crate) tx: Option<Pin<Box<dyn Sender>>>,
    /// Members of a batch, and frames that arrived before the dialect was known.
    pub(crate) pending: VecDeque<Inbound>,
    /// The buffer in which frames are encoded.
    pub(crate) scratch: Vec<u8>,
    /// Small frames are parts of it.
    pub(crate) shared_buffer: SharedBuffer,
    pub(crate) unflushed: bool,
    /// Bytes passed to the transport since its last flush.
    pub(crate) written: usize,
    /// The same bytes in the budget, if they are more than 16 KiB.
    pub(crate) written_held: HeldBytes,
    /// A frame was received or sent since the last check for idleness.
    pub(crate) moved: bool,
    /// The timer for idle connections, if the server sets a limit.
    pub(crate) idle: Option<Idle>,
    phase: Phase,
    /// The timer of the machine. It may fire early, never late.
    timer: Option<Pin<Box<Sleep>>>,
    armed: Option<Instant>,
}

/// Data that the task keeps for its whole life, in a box, so that the task itself is small.
pub(crate) struct TaskData {
    /// Handlers are dropped with the connection, also if they hold a handle of it.
    pub(crate) router: Arc<Router>,
    /// The connection's permit among those of its server.
    pub(crate) permit: Option<SessionPermit>,
    /// Quick handlers of the requests that were just read.
    pub(crate) quick: VecDeque<Start>,
}

enum Phase {
    Open,
    /// Frames that wait are flushed, then the transport is closed, both before the deadline.
    Closing {
        by: Pin<Box<Sleep>>,
        reason: CloseReason,
        result: Result<(), ConnectionError>,
    },
    /// The transport is gone. Handlers that still run have their grace.
    Lost,
}

/// The result of a look at the timers and at what happened meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DueWork {
    /// There is nothing to do until the task is woken.
    Nothing,
    /// Something happened, or a timer was due and was handled.
    Done,
    /// More timers are due than one step handles.
    More,
}

impl ConnectionTask {
    pub(crate) fn new(
        connection: Arc<ConnectionInner>,
        router: Arc<Router>,
        link: Link,
        pending: VecDeque<Inbound>,
        permit: Option<SessionPermit>,
    ) -> Self {
        // A link without a session carries all clients of its listener.
        let idle = Idle::new(
            connection.admission.limits.idle_timeout.filter(|_| !connection.traits.exchange_scoped),
        );
        let written_held = connection.budget.hold(0);
        Self {
            connection,
            own: Box::new(TaskData { router, permit, quick: VecDeque::new() }),
            rx: Some(link.rx),
            tx: Some(link.tx),
            pending,
            scratch: Vec::new(),
            shared_buffer: SharedBuffer::default(),
            unflushed: false,
            written: 0,
            written_held,
            moved: false,
            idle,
            phase: Phase::Open,
            timer: None,
            armed: None,
        }
    }

    /// Reads a batch of frames. Returns whether there may be more.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> bool {
        if self.own.router.reads_ahead().is_some_and(|most| self.connection.lock().notices.pauses(most)) {
            return false;
        }
        for _ in 0..MAX_FRAMES_PER_ROUND {
            // A request that is read after the decision to close would be answered as cancelled (I1), although nobody
            // cancelled it.
            if self.connection.closing.load(Ordering::Relaxed) {
                return false;
            }
            if let Some(inbound) = self.pending.pop_front() {
                self.recv(&inbound);
            } else {
                let Some(rx) = &mut self.rx else { return false };
                let event = rx.as_mut().poll_event(cx);
                // A frame that is not whole is no use of the connection.
                self.moved |= event.is_ready()
                    && !matches!(event, Poll::Ready(Some(Ok(TransportEvent::Stalled { .. }))));
                match event {
                    Poll::Pending => return false,
                    Poll::Ready(Some(Ok(TransportEvent::Message(inbound)))) => self.recv(&inbound),
                    Poll::Ready(Some(Ok(event))) => self.recv_event(event),
                    Poll::Ready(Some(Err(error))) if error.exchange.is_some() => {
                        tracing::debug!(error = %crate::log_text::LogText::text(&error), "a message could not be read");
                    }
                    Poll::Ready(Some(Err(error))) => {
                        self.end(DisconnectPolicy::CancelNow, Err(error.into()));
                        return false;
                    }
                    Poll::Ready(None) => {
                        self.end(DisconnectPolicy::CancelNow, Ok(()));
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Starts to close if the machine or the outbox requires it.
    #[inline]
    fn begin_close(&mut self) {
        if matches!(self.phase, Phase::Open) && self.connection.closing.load(Ordering::Relaxed) {
            self.close();
        }
    }

    /// Starts to close. It is apart from the check before it, which is made twice in each turn.
    #[cold]
    fn close(&mut self) {
        let (cause, waiting, flush) = {
            let state = self.connection.lock();
            let Some(cause) = state.close else { return };
            (cause, state.outbox.frames(), state.session.limits().flush_timeout)
        };
        self.rx = None;
        self.pending.clear();
        let (reason, result) = match cause {
            CloseCause::Shutdown => (CloseReason::Shutdown, Ok(())),
            CloseCause::InputEnded => (CloseReason::Normal, Ok(())),
            CloseCause::PeerNotReading => {
                let violation = ProtocolViolation::NotReading { waiting };
                self.lose(DisconnectPolicy::CancelNow);
                (CloseReason::Violation(violation.to_string()), Err(violation.into()))
            }
        };
        self.phase = Phase::Closing { by: Box::pin(tokio::time::sleep(flush)), reason, result };
    }

    /// Writes. A broken transport ends the connection. Returns whether there is more to write at once.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> bool {
        match self.write(cx) {
            Ok(more) => more,
            Err(error) => {
                let result = match std::mem::replace(&mut self.phase, Phase::Open) {
                    Phase::Closing { result, .. } => result.and(Ok(())),
                    Phase::Open | Phase::Lost => Err(error.into()),
                };
                self.end(DisconnectPolicy::CancelNow, result);
                false
            }
        }
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) {
        let Phase::Closing { by, reason, result } = &mut self.phase else { return };
        let late = by.as_mut().poll(cx).is_ready();
        let drained = self.connection.lock().next_lane().is_none() && !self.unflushed;
        let closed = match &mut self.tx {
            Some(tx) if drained && !late => tx.as_mut().poll_close(reason, cx).is_ready(),
            Some(_) => late,
            None => true,
        };
        if closed {
            let result = std::mem::replace(result, Ok(()));
            self.end(DisconnectPolicy::CancelNow, result);
        }
    }

    /// Tells the machine that the transport is gone.
    fn lose(&self, lost: DisconnectPolicy) {
        let leftovers = self.connection.step(|state, now, effects| {
            state.session.recv_lost(now, lost);
            state.lose_wire(&self.connection, effects)
        });
        drop(leftovers);
    }

    /// Ends the connection: the transport is gone.
    pub(crate) fn end(&mut self, lost: DisconnectPolicy, result: Result<(), ConnectionError>) {
        self.rx = None;
        self.tx = None;
        self.flushed();
        self.pending.clear();
        self.phase = Phase::Lost;
        self.lose(lost);
        self.connection.step(|state, _, effects| {
            state.end.get_or_insert(result);
            effects.rare().closed = true;
        });
    }

    /// Handles the timers that are due, and arms the timer for the next.
    fn poll_timer(&mut self, cx: &mut Context<'_>, next: Option<Instant>) -> DueWork {
        if let Some(next) = next.filter(|next| self.armed.is_none_or(|armed| *next < armed)) {
            let at = tokio::time::Instant::from_std(next);
            match &mut self.timer {
                Some(timer) => timer.as_mut().reset(at),
                None => self.timer = Some(Box::pin(tokio::time::sleep_until(at))),
            }
            self.armed = Some(next);
        }
        let (Some(timer), true) = (&mut self.timer, self.armed.is_some()) else { return DueWork::Nothing };
        if timer.as_mut().poll(cx).is_pending() {
            return DueWork::Nothing;
        }
        self.armed = None;
        let is_left = self.connection.step(|state, now, _| {
            state.session.handle_timeout(now);
            state.session.next_timeout().is_some_and(|next| next <= now)
        });
        if is_left { DueWork::More } else { DueWork::Done }
    }

    /// Handles due timers in a turn that has more to do at once, so that they do not wait for its end.
    fn do_what_is_due(&self) {
        let next = self.connection.lock().session.next_timeout();
        if next.is_some_and(|next| next <= now()) {
            self.connection.step(|state, now, _| state.session.handle_timeout(now));
        }
    }

    /// Checks, with the lock held, whether there is anything to do, and stores the waker if not (T5).
    fn look_again(&mut self, cx: &mut Context<'_>) -> DueWork {
        let next = {
            let mut state = self.connection.lock();
            if std::mem::take(&mut state.dirty) {
                return DueWork::Done;
            }
            let next = state.session.next_timeout();
            state.armed = match (self.armed, next) {
                (Some(armed), Some(next)) => Some(armed.min(next)),
                (armed, next) => armed.or(next),
            };
            state.driver = Some(cx.waker().clone());
            next
        };
        self.poll_timer(cx, next)
    }

    /// Shuts the connection down if it was idle for too long: no frame was received or sent, and nothing is in flight.
    /// Returns whether it does.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> bool {
        // A connection that is closing has deadlines of its own.
        let Some(idle) = self.idle.as_mut().filter(|_| self.rx.is_some()) else { return false };
        let moved = std::mem::take(&mut self.moved) || self.unflushed;
        let in_use = moved || self.connection.lock().session.has_requests_or_calls();
        let mark = || self.connection.use_mark.get().and_then(UseMark::until);
        if idle.poll(cx, in_use, mark).is_pending() {
            return false;
        }
        self.idle = None;
        self.connection.step(|state, now, _| state.session.local_idle(now));
        true
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Lost) && self.connection.lock().session.is_finished()
    }
}

impl Future for ConnectionTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..MAX_ROUNDS_PER_POLL {
            let mut more = match self.phase {
                Phase::Open => self.poll_read(cx),
                Phase::Closing { .. } | Phase::Lost => false,
            };
            self.poll_quick();
            self.begin_close();
            more |= self.poll_write(cx);
            self.begin_close();
            self.poll_close(cx);
            if self.is_over() {
                return Poll::Ready(());
            }
            let cascades = self.connection.cascading.load(Ordering::Relaxed);
            if cascades {
                self.connection.step(|state, now, _| state.session.advance(now));
            }
            if more || cascades {
                self.do_what_is_due();
                break;
            }
            if self.poll_idle(cx) {
                continue;
            }
            match self.look_again(cx) {
                DueWork::Nothing => return Poll::Pending,
                DueWork::Done => {}
                DueWork::More => break,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// A buffer of which small frames are parts, so that most of them take no allocation of their own.
#[derive(Default)]
pub(crate) struct SharedBuffer(BytesMut);

impl SharedBuffer {
    /// A copy of the frame.
    pub(crate) fn copy(&mut self, frame: &[u8]) -> Bytes {
        if self.0.capacity() < frame.len() {
            // If no frame of it is left, it is used from its beginning.
            self.0.reserve(SHARED_BYTES);
        }
        self.0.extend_from_slice(frame);
        self.0.split().freeze()
    }
}

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        if !matches!(self.phase, Phase::Lost) {
            let error = TransportError::new(TransportErrorKind::Closed, "its driver was dropped");
            self.end(DisconnectPolicy::CancelNow, Err(error.into()));
        }
        self.start_rest();
    }
}

impl Inbound {
    /// A member of a batch, with the origin of the batch.
    pub(crate) fn member(&self, body: bytes::Bytes) -> Self {
        Self {
            body,
            exchange: self.exchange,
            principal: self.principal.clone(),
            address: self.address,
            trace: self.trace.clone(),
        }
    }
}

/// How long a connection may be idle, and since when it is.
pub(crate) struct Idle {
    after: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Idle {
    /// `None`: no limit, or one that is never reached.
    pub(crate) fn new(after: Option<Duration>) -> Option<Self> {
        let after = after.filter(|after| tokio::time::Instant::now().checked_add(*after).is_some())?;
        Some(Self { after, timer: Box::pin(tokio::time::sleep(after)) })
    }

    /// Ready once the connection was idle for the whole time. `in_use`: it is in use, or was since the last call. `mark`: until
    /// when it counts as used all the same.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        in_use: bool,
        mark: impl Fn() -> Option<Instant>,
    ) -> Poll<()> {
        if in_use {
            self.timer.as_mut().reset(tokio::time::Instant::now() + self.after);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = tokio::time::Instant::now();
            // Not later than `after`: the mark may be set back.
            let used = mark().map(|until| tokio::time::Instant::from_std(until).min(now));
            match used.map(|used| used + self.after).filter(|idle_at| *idle_at > now) {
                Some(idle_at) => self.timer.as_mut().reset(idle_at),
                None => return Poll::Ready(()),
            }
        }
        Poll::Pending
    }
}

impl DriverState {
    /// Keeps a request that has arrived in this step and whose handler is not on its way to a task: it waits for a
    /// permit, or it has started and is quick.
    pub(crate) fn keep_waiting(
        &mut self,
        key: InboundKey,
        waiting: WaitingRequest,
        quick: &mut VecDeque<Start>,
    ) {
        let Some(slot) = self.inbound.get(key.0) else { return };
        match waiting {
            WaitingRequest { handler: Some(handler), params } if slot.task != HandlerPhase::NotStarted => {
                quick.push_back(Start { handler, request: Arc::clone(&slot.request), params });
            }
            WaitingRequest { handler, params } => {
                self.queued.insert(key.0, WaitingRequest { handler, params: params.map(JsonText::unpinned) });
            }
        }
    }
}

impl ConnectionTask {
    /// Polls the quick handlers of the requests that were just read, each once, in the order of their requests.
    #[inline]
    pub(crate) fn poll_quick(&mut self) {
        while let Some(start) = self.own.quick.pop_front() {
            start.handler.poll_first(start.request, start.params);
        }
    }

    /// Starts those that were not polled as tasks: the connection's task is dropped, with its runtime or by a panic of
    /// its transport. Each request then ends as one whose handler is a task (I10).
    pub(crate) fn start_rest(&mut self) {
        self.own.quick.drain(..).for_each(start_one);
    }
}

/// The most messages that no dialect recognises. Then the connection ends.
const MAX_ATTEMPTS: usize = 16;

/// Reads until a message decides the dialect.
pub(crate) struct PendingNegotiation {
    offered: Negotiation,
    attempts: usize,
    /// A refusal that waits for the transport.
    refusal: Option<Outbound>,
}

impl PendingNegotiation {
    pub(crate) fn new(offered: &[Dialect]) -> Self {
        Self { offered: negotiate(offered.iter().cloned()), attempts: 0, refusal: None }
    }

    pub(crate) fn poll(
        &mut self,
        link: &mut Link,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(Dialect, Inbound), ConnectionError>> {
        loop {
            if self.refusal.is_some() {
                ready!(link.tx.as_mut().poll_ready(Lane::Control, cx))?;
                if let Some(refusal) = self.refusal.take() {
                    link.tx.as_mut().note_rejection(refusal.exchange, RejectReason::BadMessage);
                    link.tx.as_mut().start_send(refusal)?;
                }
            }
            // Bytes that are not flushed now are flushed with the next frame, or when the transport is polled.
            let _ = link.tx.as_mut().poll_flush(cx)?;
            if self.attempts >= MAX_ATTEMPTS {
                return Poll::Ready(Err(ProtocolViolation::UnknownDialect.into()));
            }
            let event = ready!(link.rx.as_mut().poll_event(cx));
            match event {
                Some(Ok(TransportEvent::Message(inbound))) => {
                    let known = self.offered.recognise(&inbound.body).cloned();
                    match known {
                        Ok(dialect) => return Poll::Ready(Ok((dialect, inbound))),
                        Err(why) => {
                            self.attempts += 1;
                            let mut out = Vec::new();
                            if self.offered.refuse(&mut out, &inbound.body, why) {
                                self.refuse(out, inbound.exchange);
                            } else {
                                finish(link, inbound.exchange);
                            }
                        }
                    }
                }
                Some(Ok(TransportEvent::Rejected { exchange, .. })) => {
                    self.attempts += 1;
                    finish(link, exchange);
                }
                Some(Ok(
                    TransportEvent::Stalled { .. }
                    | TransportEvent::Unanswered { .. }
                    | TransportEvent::Deviation { .. }
                    | TransportEvent::ExchangeClosed { .. }
                    | TransportEvent::ExchangeResumed { .. }
                    | TransportEvent::ExchangeFailed { .. },
                )) => {}
                Some(Ok(TransportEvent::HalfClosed)) | None => {
                    let what = "the connection ended before its first message";
                    let error = TransportError::new(TransportErrorKind::Closed, what);
                    return Poll::Ready(Err(error.into()));
                }
                Some(Err(error)) if error.exchange.is_some() => {}
                Some(Err(error)) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    fn refuse(&mut self, body: Vec<u8>, exchange: ExchangeId) {
        let head = FrameInfo { kind: FrameKind::Answer, id: None, method: None, trace: None };
        let (body, lane, last) = (Bytes::from(body), Lane::Control, exchange.is_peers());
        self.refusal = Some(Outbound { body, exchange, lane, head, last });
    }
}

/// An exchange whose message is refused without an answer must end too.
fn finish(link: &mut Link, exchange: ExchangeId) {
    if exchange.is_peers() {
        link.tx.as_mut().finish_exchange(exchange, ExchangeEnd::Refused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_share_a_buffer_and_keep_their_bytes_while_others_are_written() {
        let mut buffer = SharedBuffer::default();
        let texts: Vec<String> = (0..100).map(|number| format!("{number:0200}")).collect();
        let frames: Vec<_> = texts.iter().map(|text| buffer.copy(text.as_bytes())).collect();
        assert!(frames.iter().zip(&texts).all(|(frame, text)| frame == text.as_bytes()));
        let together = |pair: &[Bytes]| pair[0].as_ptr().wrapping_add(200) == pair[1].as_ptr();
        assert!(frames.windows(2).filter(|pair| together(pair)).count() >= 50, "two of 200 bytes share 512");
        drop(frames);
        let first = buffer.copy(b"{}").as_ptr();
        let again = (0..1000).filter(|_| buffer.copy(b"{}").as_ptr() == first).count();
        assert!(again > 0, "a buffer that no frame uses is used from its beginning");
    }
}
