//! The machine (docs follow).
mod input;
mod limits;
mod output;

pub use input::{
    AfterCancel, AnswerKind, Arrival, CallRefused, CallSpec, CancelResult, HandlerEnd, Lost, Origin, Work,
};
pub use limits::Limits;
pub use output::{AckStatus, CloseCause, Event, ForeignChild, Output, Reply, ReplyBody, Settlement};

use crate::cause::Cause;
use crate::dialect::{Dialect, Handshake, HandshakePart, Role};
use crate::id::{CallNumber, ExchangeId, InboundKey, OutboundKey, RequestId};
use crate::message::BadMessage;
use std::time::{Duration, Instant};

/// What a session is made of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionConfig {
    /// The rules.
    pub dialect: Dialect,
    /// Which side we are.
    pub role: Role,
    /// The bounds.
    pub limits: Limits,
    /// Frames arrive in the order they were sent.
    pub ordered: bool,
    /// The exchange is the space of ids.
    pub exchange_scoped: bool,
    /// Where a dialect asks for a declaration: we declare that we handle cancels.
    pub handles_cancels: bool,
}

impl SessionConfig {
    /// A session on an ordered wire with default limits that declares what the dialect lets it declare.
    #[must_use]
    pub fn new(dialect: Dialect, role: Role) -> Self {
        Self {
            dialect,
            role,
            limits: Limits::default(),
            ordered: true,
            exchange_scoped: false,
            handles_cancels: true,
        }
    }
}

/// Counters of a session; they only ever go up, but for the gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Handlers started.
    pub started: u64,
    /// Handlers that have ended.
    pub finished: u64,
    /// Handlers that ended because they were signalled or aborted.
    pub cancelled: u64,
    /// Gauge: handlers running and not settled.
    pub running: u64,
    /// Gauge: requests waiting for a permit.
    pub queued: u64,
    /// Gauge: handlers whose request is settled but that still run.
    pub draining: u64,
    /// Gauge: requests of the peer that are kept at all.
    pub slots: u64,
    /// Gauge: calls of ours in flight.
    pub calls: u64,
    /// Cancels that named nothing open.
    pub unknown_cancels: u64,
    /// Cancels that named nothing at all.
    pub malformed_cancels: u64,
    /// Cancels that were ignored by rule.
    pub ignored_cancels: u64,
    /// Early cancels that were kept for their request.
    pub parked_cancels: u64,
    /// Answers that came after their call had ended.
    pub late_answers: u64,
    /// Answers to calls that never were.
    pub unknown_answers: u64,
    /// Frames that were no message.
    pub bad_frames: u64,
    /// Requests refused because their id was in use.
    pub duplicate_ids: u64,
    /// Requests refused because a limit was reached.
    pub refused: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Handlers whose task was aborted after the grace.
    pub aborted: u64,
    /// Cancelled calls whose peer did not answer in time.
    pub unresponsive: u64,
}

/// One connection's state.
#[derive(Debug)]
pub struct Session {
    _config: SessionConfig,
}

#[allow(
    missing_docs,
    unused_variables,
    clippy::todo,
    clippy::missing_errors_doc,
    clippy::unused_self,
    clippy::needless_pass_by_value,
    clippy::must_use_candidate
)]
impl Session {
    pub fn new(config: SessionConfig) -> Self {
        Self { _config: config }
    }
    // ---- from the peer
    /// A request. `Some(key)`: it has a slot now, before the next frame is read; `Start` follows at once or later.
    /// `None`: the outputs say how it was refused.
    pub fn recv_request(&mut self, now: Instant, arrival: Arrival<'_>) -> Option<InboundKey> {
        todo!()
    }
    /// A cancel. `key` is `None` if it named nothing that could be an id.
    pub fn recv_cancel(
        &mut self,
        now: Instant,
        key: Option<RequestId>,
        reason: Option<&str>,
        ack: Option<RequestId>,
        origin: &Origin,
    ) {
        todo!()
    }
    /// An answer. `Some`: it settles this call; `Settle` with `Answered` is among the outputs of this step.
    pub fn recv_answer(
        &mut self,
        now: Instant,
        call: Option<CallNumber>,
        kind: AnswerKind,
    ) -> Option<OutboundKey> {
        todo!()
    }
    /// The peer acknowledges a cancel of ours.
    pub fn recv_ack(&mut self, now: Instant, cancel: Option<CallNumber>, cancelled: bool) {
        todo!()
    }
    /// A frame that is no message. Answered (bounded by a bucket: 100, refilled at 10 a second) or only counted.
    pub fn recv_bad(&mut self, now: Instant, why: BadMessage, exchange: ExchangeId) {
        todo!()
    }
    /// What the handshake said, in the peer's half (`ours` false) or ours. Call it for our own result when
    /// `Output::Reply` for the handshake is handled, for the peer's result when it is read.
    pub fn handshake(&mut self, part: HandshakePart, said: &Handshake) {
        todo!()
    }
    /// End of input; output is still open.
    pub fn recv_half_close(&mut self, now: Instant) {
        todo!()
    }
    /// The connection is lost, or its output is broken.
    pub fn recv_lost(&mut self, now: Instant, lost: Lost) {
        todo!()
    }
    /// The peer gave up one exchange (HTTP): the dialect says what that means.
    pub fn recv_exchange_closed(&mut self, now: Instant, exchange: ExchangeId) {
        todo!()
    }
    /// It took it up again.
    pub fn recv_exchange_resumed(&mut self, now: Instant, exchange: ExchangeId) {
        todo!()
    }
    /// A call of ours failed on its way.
    pub fn recv_call_failed(&mut self, now: Instant, call: OutboundKey, sent: bool) {
        todo!()
    }
    // ---- from our user: requests we serve
    /// Offers the handler's end. The outputs of this step say what is written, if anything.
    pub fn local_answer(&mut self, now: Instant, key: InboundKey, end: HandlerEnd) {
        todo!()
    }
    /// The handler's task is really gone (returned, aborted or its thread ended): permit and id are free.
    pub fn local_ended(&mut self, now: Instant, key: InboundKey) {
        todo!()
    }
    /// This side cancels a request it serves. `true`: it was open and not cancelled before.
    pub fn local_cancel(&mut self, now: Instant, key: InboundKey, cause: Cause) -> bool {
        todo!()
    }
    /// A critical section begins: signal, grace and abort wait. Sections nest.
    pub fn local_shield(&mut self, now: Instant, key: InboundKey) {
        todo!()
    }
    /// It ends.
    pub fn local_unshield(&mut self, now: Instant, key: InboundKey) {
        todo!()
    }
    /// Whether frames of this request may still be written (false once answered or silenced).
    pub fn may_notify(&self, key: InboundKey) -> bool {
        todo!()
    }
    // ---- from our user: calls we make
    pub fn local_call(
        &mut self,
        now: Instant,
        spec: &CallSpec<'_>,
    ) -> Result<(OutboundKey, CallNumber), CallRefused> {
        todo!()
    }
    /// The frame was handed to the transport with `start_send`.
    pub fn local_written(&mut self, now: Instant, call: OutboundKey) {
        todo!()
    }
    pub fn local_cancel_call(
        &mut self,
        now: Instant,
        call: OutboundKey,
        cause: Cause,
        after: Option<AfterCancel>,
    ) -> CancelResult {
        todo!()
    }
    /// The call goes on when its parent is cancelled or ends.
    pub fn local_detach(&mut self, call: OutboundKey) {
        todo!()
    }
    /// Makes a call of another connection a child of a request of this one.
    pub fn local_adopt(
        &mut self,
        now: Instant,
        parent: InboundKey,
        child: ForeignChild,
    ) -> Result<(), CallRefused> {
        todo!()
    }
    /// The foreign child ended by itself.
    pub fn local_release(&mut self, parent: InboundKey, child: ForeignChild) {
        todo!()
    }
    /// Begins the shutdown: see the six steps. `drain` is how long handlers may end by themselves.
    pub fn local_shutdown(&mut self, now: Instant, drain: Duration) {
        todo!()
    }
    // ---- time and outputs
    pub fn next_timeout(&self) -> Option<Instant> {
        todo!()
    }
    pub fn handle_timeout(&mut self, now: Instant) {
        todo!()
    }
    /// A cascade has descendants left to walk: call [`advance`](Self::advance) between frames.
    pub fn has_work(&self) -> bool {
        todo!()
    }
    pub fn advance(&mut self, now: Instant) {
        todo!()
    }
    pub fn poll_output(&mut self) -> Option<Output> {
        todo!()
    }
    // ---- questions
    pub fn stats(&self) -> Stats {
        todo!()
    }
    /// The first cause for which this request was cancelled.
    pub fn request_cause(&self, key: InboundKey) -> Option<Cause> {
        todo!()
    }
    /// Batches are allowed: the handshake named the dialect's batch revision.
    pub fn allows_batches(&self) -> bool {
        todo!()
    }
    /// The connection is lost or closed and nothing of it is left.
    pub fn is_finished(&self) -> bool {
        todo!()
    }
}
