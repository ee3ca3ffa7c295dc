//! Cancels of requests that this side serves, by the peer and by this side, and how they go on to the children.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::cause::{Cause, CauseKind};
use crate::dialect::{AckStyle, AnswerAfterCancel, CancelFrom, CancelledReply, DecidedBy, LostStream, Role};
use crate::failpoint::{self, Failpoint};
use crate::id::{CallKey, CallNumber, ExchangeId, InboundKey, OutboundKey, RequestId};
use crate::machine::interface::{CallRefused, Event, ForeignChild, Origin, Output, ReplyBody};
use crate::machine::outbound::{Call, CallExtras};
use crate::machine::remembered_ids::{Name, Settled};
use crate::machine::request::{Cancellability, Request, RequestState};
use crate::machine::{Session, Timer, later, lifecycle};
use crate::message::AckStatus;

/// How long the lost stream of a request that ends with its stream (MCP's `tasks/result`) may be resumed.
const RESUMED_WITHIN: Duration = Duration::from_secs(5);

/// An acknowledgement that must be sent: its id and its exchange.
type OwedAck = Option<(RequestId, ExchangeId)>;

impl Session {
    /// Receives a cancel of the peer. `key` is `None` if it names no valid id. `ack` is the id of its acknowledgement,
    /// in dialects that acknowledge cancels.
    ///
    /// A cancel of an unknown or finished request, or of one of another principal, has no effect (I4, I8). A second
    /// cancel has no further effect (I7).
    pub fn recv_cancel(
        &mut self,
        now: Instant,
        key: Option<RequestId>,
        reason: Option<&str>,
        ack: Option<RequestId>,
        origin: &Origin,
    ) {
        let ack = ack.map(|ack| (ack, origin.exchange));
        if ack.is_none() && origin.exchange.is_peers() {
            self.push(Output::ExchangeEnd { exchange: origin.exchange, silent: false });
        }
        let Some(id) = key else {
            self.emit(Event::MalformedCancel);
            self.acknowledge(ack, None, AckStatus::InvalidKey);
            return;
        };
        let rules = self.rules();
        let session_missing = !self.serves();
        if session_missing {
            self.emit(Event::IgnoredCancel);
            self.acknowledge(ack, Some(id), AckStatus::NotInitialized);
            return;
        }
        if rules.cancel_from == CancelFrom::Client && self.config.role == Role::Client {
            self.recv_end_of_call(now, id, ack, origin);
            return;
        }
        if !self.agreement.hears_cancels(rules) {
            self.emit(Event::IgnoredCancel);
            self.acknowledge(ack, Some(id), AckStatus::NotCancellable);
            return;
        }
        let mut cause = Cause::new(CauseKind::Peer);
        if let Some(reason) = reason {
            cause = cause.with_reason(reason);
        }
        match self.find_named_by_cancel(&id, origin) {
            Some(found) => self.recv_known_cancel(now, found, id, cause, ack),
            None => self.recv_cancel_without_request(now, id, cause, ack, origin),
        }
        self.advance(now);
    }

    /// Receives a cancel of the peer by the progress token of its request.
    pub fn recv_cancel_by_token(&mut self, now: Instant, key: InboundKey, origin: &Origin) {
        let named = self.requests.get(key.0).filter(|request| {
            request.origin().scope == origin.scope && request.principal() == origin.principal.as_ref()
        });
        match named.map(|request| request.id.clone()) {
            Some(id) => self.recv_known_cancel(now, key, id, Cause::new(CauseKind::Peer), None),
            None => self.emit(Event::UnknownCancel),
        }
        self.advance(now);
    }

    /// This side cancels a request that it serves. The peer gets the dialect's answer for that. Returns `true` if the
    /// request was open and not cancelled before. Only a shutdown and a disconnect cancel the handshake (I9).
    pub fn local_cancel(&mut self, now: Instant, key: InboundKey, cause: Cause) -> bool {
        let Some(request) = self.requests.get(key.0) else { return false };
        let ends_all = matches!(cause.kind(), CauseKind::Shutdown | CauseKind::Disconnected);
        if request.cancellability == Cancellability::Handshake && !ends_all {
            return false;
        }
        match request.state {
            RequestState::Queued | RequestState::Running => self.accept_cancel(now, key, cause, None),
            RequestState::Task if failpoint::active(Failpoint::TaskCancelTakesId) => {
                let (scope, id) = (request.origin().scope, request.id.clone());
                let named = self.request_named(scope, &id).map(|(key, _)| key);
                return named.is_some_and(|key| self.local_cancel(now, key, cause));
            }
            RequestState::Task => self.cancel_task(now, key, cause),
            RequestState::CancelPending
            | RequestState::Cancelling
            | RequestState::Draining { .. }
            | RequestState::Ended => return false,
        }
        self.advance(now);
        true
    }

    /// The peer closed the exchange of its requests. The dialect decides whether that is a cancel. It does not cancel
    /// the handshake (I9).
    pub fn recv_exchange_closed(&mut self, now: Instant, exchange: ExchangeId) {
        for key in self.requests_on(exchange) {
            let ends = self.requests.get(key.0).is_some_and(|request| request.ends_with_stream);
            match self.rules().lost_stream {
                LostStream::Cancel => {
                    let spared = self
                        .requests
                        .get(key.0)
                        .is_none_or(|request| request.cancellability == Cancellability::Handshake);
                    if !spared
                        && matches!(self.state_of(key), Some(RequestState::Queued | RequestState::Running))
                    {
                        self.accept_cancel(now, key, Cause::new(CauseKind::Peer), None);
                    }
                }
                LostStream::Detach => self.start_lost_stream_grace(now, key, self.config.limits.detach_grace),
                LostStream::Keep if ends => self.start_lost_stream_grace(now, key, RESUMED_WITHIN),
                LostStream::Keep => {
                    if let Some(grace) = self.config.limits.lost_stream_grace {
                        self.start_lost_stream_grace(now, key, grace);
                    }
                }
            }
        }
        self.advance(now);
    }

    fn start_lost_stream_grace(&mut self, now: Instant, key: InboundKey, grace: Duration) {
        let until = later(now, grace);
        let Some(request) = self.requests.get_mut(key.0) else { return };
        if request.extras().alarms.lost_stream.is_none() && request.state.is_open() {
            request.extras_mut(&mut self.request_extras).alarms.lost_stream = Some(until);
            self.timers.set(until, Timer::LostStream(key));
        }
    }

    fn requests_on(&self, exchange: ExchangeId) -> Vec<InboundKey> {
        let from = (exchange, InboundKey(CallKey { slot: 0, generation: 0 }));
        self.exchanges.range(from..).take_while(|(on, _)| *on == exchange).map(|(_, key)| *key).collect()
    }

    /// The peer resumed a lost exchange. Its requests run on.
    pub fn recv_exchange_resumed(&mut self, _now: Instant, exchange: ExchangeId) {
        for key in self.requests_on(exchange) {
            let Some(request) = self.requests.get_mut(key.0) else { continue };
            self.timers.clear(request.take_alarm(|alarms| &mut alarms.lost_stream), Timer::LostStream(key));
        }
    }

    pub(super) fn lost_stream_grace_over(&mut self, now: Instant, key: InboundKey) {
        if let Some(request) = self.requests.get_mut(key.0) {
            request.take_alarm(|alarms| &mut alarms.lost_stream);
        }
        if matches!(self.state_of(key), Some(RequestState::Queued | RequestState::Running)) {
            self.accept_cancel(now, key, Cause::new(CauseKind::Disconnected), None);
        }
    }

    fn find_named_by_cancel(&self, id: &RequestId, origin: &Origin) -> Option<InboundKey> {
        let name: Name = (origin.scope, id.clone());
        let (key, request) = match self.cancel_keys.get(&name) {
            Some(key) => (*key, self.requests.get(key.0)?),
            None => self.request_named(origin.scope, id)?,
        };
        let named_so = request.origin().scope == origin.scope && request.cancel_id() == Some(id);
        (named_so && request.principal() == origin.principal.as_ref()).then_some(key)
    }

    fn recv_known_cancel(
        &mut self,
        now: Instant,
        key: InboundKey,
        id: RequestId,
        cause: Cause,
        ack: OwedAck,
    ) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        if request.cancellability != Cancellability::All {
            self.emit(Event::IgnoredCancel);
            self.acknowledge(ack, Some(id), AckStatus::NotCancellable);
            return;
        }
        match request.state {
            RequestState::Queued | RequestState::Running => self.accept_cancel(now, key, cause, ack),
            RequestState::CancelPending => self.hold_ack_again(key, id, ack),
            RequestState::Cancelling => {
                if failpoint::active(Failpoint::DoubleSignal) {
                    self.signal(now, key);
                }
                self.acknowledge(ack, Some(id), AckStatus::Cancelled);
            }
            RequestState::Task if failpoint::active(Failpoint::TaskKeepsId) => {
                self.cancel_task(now, key, cause);
            }
            RequestState::Task | RequestState::Draining { .. } | RequestState::Ended => {
                let (name, principal) = (request.cancel_name(), request.principal().cloned());
                let settled = name.and_then(|name| self.settled.recall(now, &name, principal.as_ref()));
                self.emit(Event::UnknownCancel);
                self.acknowledge_settled(ack, id, settled);
            }
        }
    }

    /// A cancel of a request that is cancelled already and shielded. Its acknowledgement waits as the first one does,
    /// up to a limit: a peer may send cancels for as long as the shield lasts (I11).
    fn hold_ack_again(&mut self, key: InboundKey, id: RequestId, ack: OwedAck) {
        if ack.is_some() && self.held_acks >= self.config.limits.max_early_cancels {
            self.emit(Event::LimitReached("parked"));
            self.acknowledge(ack, Some(id), AckStatus::Overloaded);
            return;
        }
        self.hold_ack(key, ack);
    }

    fn hold_ack(&mut self, key: InboundKey, ack: OwedAck) {
        let (Some(ack), Some(request)) = (ack, self.requests.get_mut(key.0)) else { return };
        request.extras_mut(&mut self.request_extras).held_acks.push(ack);
        self.held_acks += 1;
    }

    fn recv_cancel_without_request(
        &mut self,
        now: Instant,
        id: RequestId,
        cause: Cause,
        ack: OwedAck,
        origin: &Origin,
    ) {
        let name: Name = (origin.scope, id.clone());
        let settled = self.settled.recall(now, &name, origin.principal.as_ref());
        let in_use = self.request_named(name.0, &name.1).is_some() || self.cancel_keys.contains_key(&name);
        let is_late = in_use || self.settled.knows(now, &name);
        let may_park = self.parks_early_cancels() && !is_late && !self.settled.forgotten(now).may_hold(&id);
        if may_park && self.early_cancels.park(now, (name, origin.principal.clone()), cause) {
            self.emit(Event::ParkedCancel);
            self.acknowledge(ack, Some(id), AckStatus::Cancelled);
            return;
        }
        self.emit(Event::UnknownCancel);
        self.acknowledge_settled(ack, id, settled);
    }

    /// Receives a cancel that names a call of this side: the serving side has ended it (MCP 2026).
    fn recv_end_of_call(&mut self, now: Instant, id: RequestId, ack: OwedAck, origin: &Origin) {
        let number = id.as_number().and_then(|number| u64::try_from(number).ok()).map(CallNumber);
        let call = number.and_then(|number| self.call_of(number));
        if !call.is_some_and(|call| self.end_by_peer(call)) {
            let status = match self.find_named_by_cancel(&id, origin) {
                Some(_) => AckStatus::NotCancellable,
                None => AckStatus::NotFound,
            };
            self.emit(Event::IgnoredCancel);
            self.acknowledge(ack, Some(id), status);
        }
        self.advance(now);
    }

    /// The transition of an accepted cancel of a task. A shield delays the signal, and not the end of the task.
    pub(super) fn cancel_task(&mut self, now: Instant, key: InboundKey, cause: Cause) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        let extras = request.extras_mut(&mut self.request_extras);
        (extras.cause, extras.cancelled_at) = (Some(cause.clone()), Some(now));
        let is_shielded = extras.shields > 0;
        self.end_task(key, Some(cause));
        if is_shielded {
            if let Some(request) = self.requests.get_mut(key.0) {
                request.state = RequestState::Draining { owes_signal: true };
            }
        } else if !failpoint::active(Failpoint::TaskGoesOn) {
            self.signal(now, key);
        }
    }

    /// The transition of an accepted cancel, from `Queued` and `Running`.
    pub(super) fn accept_cancel(&mut self, now: Instant, key: InboundKey, cause: Cause, ack: OwedAck) {
        let decides = self.is_decided_by(&cause);
        let silent =
            cause.kind() == CauseKind::Peer && self.rules().peer_cancelled == CancelledReply::Silence;
        let Some(request) = self.requests.get_mut(key.0) else { return };
        let extras = request.extras_mut(&mut self.request_extras);
        (extras.cause, extras.cancelled_at) = (Some(cause.clone()), Some(now));
        self.timers.clear(request.take_alarm(|alarms| &mut alarms.lost_stream), Timer::LostStream(key));
        let named = request.cancel_id().cloned();
        if request.state == RequestState::Queued {
            let work = request.work;
            self.leave_queue(key, work);
            self.acknowledge(ack, named, AckStatus::Cancelled);
            self.settle_queued(now, key, ReplyBody::Cancelled(cause), Settled::Cancelled);
            return;
        }
        if request.extras().shields == 0 || failpoint::active(Failpoint::ShieldIgnored) {
            self.acknowledge(ack, named, AckStatus::Cancelled);
            self.decide_and_signal(now, key, cause, decides);
        } else if decides && silent {
            self.settle(now, key, ReplyBody::Cancelled(cause));
            if let Some(request) = self.requests.get_mut(key.0) {
                request.state = RequestState::Draining { owes_signal: true };
            }
        } else {
            request.state = RequestState::CancelPending;
            if decides {
                self.hold_ack(key, ack);
            } else {
                self.acknowledge(ack, named, AckStatus::Cancelled);
            }
        }
    }

    /// What follows an accepted cancel without a shield.
    pub(super) fn decide_and_signal(&mut self, now: Instant, key: InboundKey, cause: Cause, decides: bool) {
        if decides {
            self.settle(now, key, ReplyBody::Cancelled(cause));
        } else if let Some(request) = self.requests.get_mut(key.0) {
            request.state = RequestState::Cancelling;
        }
        self.signal(now, key);
    }

    /// Signals a handler, once (I5), and starts its grace.
    pub(super) fn signal(&mut self, now: Instant, key: InboundKey) {
        let Some(cause) = self.request_cause(key) else { return };
        self.push(Output::Signal { key, cause });
        self.start_grace(now, key);
        self.begin_cascade(key);
    }

    /// Whether a cancel with this cause settles the request at once.
    pub(super) fn is_decided_by(&self, cause: &Cause) -> bool {
        let rules = self.rules();
        let waits_for_value = rules.answer_after_cancel == AnswerAfterCancel::ResultIfFinished
            && cause.kind() == CauseKind::Peer;
        rules.decided == DecidedBy::Cancel && !waits_for_value
    }

    pub(super) fn answer_held_acks(
        &mut self,
        key: InboundKey,
        acks: Vec<(RequestId, ExchangeId)>,
        settled: Settled,
    ) {
        self.held_acks -= acks.len();
        let named = self.requests.get(key.0).and_then(Request::cancel_name);
        for ack in acks {
            let status = match settled {
                Settled::Completed => AckStatus::AlreadyCompleted,
                Settled::Cancelled => AckStatus::Cancelled,
            };
            self.acknowledge(Some(ack), named.clone().map(|(_, id)| id), status);
        }
    }

    fn acknowledge_settled(&mut self, ack: OwedAck, id: RequestId, settled: Option<Settled>) {
        let status = match settled {
            None => AckStatus::NotFound,
            Some(Settled::Completed) => AckStatus::AlreadyCompleted,
            Some(Settled::Cancelled) => AckStatus::Cancelled,
        };
        self.acknowledge(ack, Some(id), status);
    }

    fn acknowledge(&mut self, ack: OwedAck, key: Option<RequestId>, status: AckStatus) {
        let lost = self.lifecycle.state() == lifecycle::ConnectionState::Lost;
        if let (Some((ack, exchange)), AckStyle::Acknowledged, false) = (ack, self.rules().ack, lost) {
            if failpoint::active(Failpoint::AckTwice) {
                self.push(Output::Ack { ack: ack.clone(), key: key.clone(), exchange, status });
            }
            self.push(Output::Ack { ack, key, exchange, status });
        }
    }
}

impl Session {
    /// A critical section begins. The signal, the grace and the abort wait for its end, for at most
    /// [`Limits::max_shield_time`](crate::Limits::max_shield_time) and never longer than the deadline of a shutdown.
    /// Sections nest.
    pub fn local_shield(&mut self, now: Instant, key: InboundKey) {
        let until = later(now, self.config.limits.max_shield_time);
        if self.lifecycle.ignores_shields() {
            return;
        }
        let Some(request) = self.requests.get_mut(key.0) else { return };
        let extras = request.extras_mut(&mut self.request_extras);
        extras.shields += 1;
        if extras.shields == 1 {
            extras.alarms.shield = Some(until);
            self.timers.set(until, Timer::Shield(key));
            self.timers.clear(extras.alarms.grace.take(), Timer::Grace(key));
        }
    }

    /// A critical section ends. At the end of the last one the delayed cancel takes effect.
    pub fn local_unshield(&mut self, now: Instant, key: InboundKey) {
        let extras = self.requests.get_mut(key.0).and_then(|request| request.extras_if_any());
        let Some(extras) = extras else { return };
        // It is 0 already if the time of the shield has elapsed. Then the delayed cancel has taken effect.
        if extras.shields == 0 {
            return;
        }
        extras.shields -= 1;
        if extras.shields == 0 {
            self.lift_shield(now, key);
        }
        self.advance(now);
    }

    pub(super) fn shield_over(&mut self, now: Instant, key: InboundKey) {
        if let Some(request) = self.requests.get_mut(key.0) {
            request.drop_shields();
            self.lift_shield(now, key);
        }
    }

    /// Does what a shield delayed.
    pub(super) fn lift_shield(&mut self, now: Instant, key: InboundKey) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        self.timers.clear(request.take_alarm(|alarms| &mut alarms.shield), Timer::Shield(key));
        let cause = request.cause().cloned();
        match request.state {
            RequestState::Queued | RequestState::Running | RequestState::Task | RequestState::Ended => {}
            RequestState::CancelPending => {
                if let Some(cause) = cause.filter(|_| !failpoint::active(Failpoint::SignalLost)) {
                    let decides = self.is_decided_by(&cause);
                    self.decide_and_signal(now, key, cause, decides);
                }
            }
            RequestState::Draining { owes_signal: true } => {
                request.state = RequestState::Draining { owes_signal: false };
                self.signal(now, key);
            }
            RequestState::Cancelling => self.start_grace(now, key),
            RequestState::Draining { owes_signal: false } => {
                if cause.is_some() {
                    self.start_grace(now, key);
                }
            }
        }
    }
}

impl Session {
    /// Starts the grace of a handler that is signalled. It has none where the dialect waits for its value.
    pub(super) fn start_grace(&mut self, now: Instant, key: InboundKey) {
        let waits = self.lifecycle.waits_for_values()
            && self.rules().answer_after_cancel == AnswerAfterCancel::ResultIfFinished;
        if waits && self.request_cause(key).is_some_and(|cause| cause.kind() == CauseKind::Peer) {
            return;
        }
        let until = later(now, self.config.limits.cancel_grace);
        let Some(request) = self.requests.get_mut(key.0) else { return };
        if request.aborted {
            return;
        }
        let grace = &mut request.extras_mut(&mut self.request_extras).alarms.grace;
        self.timers.clear(grace.replace(until), Timer::Grace(key));
        self.timers.set(until, Timer::Grace(key));
    }

    /// Starts the grace of a handler that was signalled without one (GETMCP-15).
    pub(super) fn start_missing_grace(&mut self, now: Instant, key: InboundKey) {
        let Some(request) = self.requests.get(key.0) else { return };
        let signalled = match request.state {
            RequestState::Cancelling => true,
            // A handler without its signal is shielded.
            RequestState::Draining { .. } => request.cause().is_some(),
            RequestState::Queued
            | RequestState::Running
            | RequestState::CancelPending
            | RequestState::Task
            | RequestState::Ended => false,
        };
        if signalled && request.extras().shields == 0 && request.extras().alarms.grace.is_none() {
            self.start_grace(now, key);
        }
    }

    /// The grace has elapsed: the request is settled as cancelled if it is not settled yet, and its task is aborted.
    pub(super) fn grace_over(&mut self, now: Instant, key: InboundKey) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        self.timers.clear(request.take_alarm(|alarms| &mut alarms.grace), Timer::Grace(key));
        match request.state {
            RequestState::Queued
            | RequestState::Running
            | RequestState::CancelPending
            | RequestState::Task
            | RequestState::Ended => return,
            RequestState::Cancelling => {
                let cause = request.cause().cloned();
                self.settle_cancelled(now, key, cause);
            }
            RequestState::Draining { .. } => {}
        }
        if failpoint::active(Failpoint::RapidReset) {
            self.abort(key);
            self.local_ended(now, key);
            return;
        }
        self.abort(key);
    }

    /// Aborts a handler's task, once.
    fn abort(&mut self, key: InboundKey) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        if !std::mem::replace(&mut request.aborted, true) {
            self.emit(Event::Aborted(key));
            self.push(Output::Abort(key));
        }
    }
}

// Parents and children: the calls of a handler belong to the request that it serves.
//
// A cascade unlinks the children of a request one by one, the oldest first, at most
// [`Limits::max_cancels_per_step`](crate::Limits) in a step, and cancels each. So none is signalled twice (I5), and no
// step is long. It needs no recursion: the children of a child are on the peer's side, which receives the child's
// cancel.

/// The cascades in progress, and the children on other connections.
#[derive(Debug, Default)]
#[cfg_attr(feature = "verify", derive(Clone))]
pub(super) struct Cascades {
    parents: VecDeque<InboundKey>,
    foreign: BTreeSet<(InboundKey, ForeignChild)>,
}

impl Cascades {
    pub(super) fn has_foreign(&self, parent: InboundKey) -> bool {
        !self.foreign.is_empty() && self.first_foreign(parent).is_some()
    }

    #[cfg(feature = "verify")]
    pub(super) fn inspect(&self) -> impl Iterator<Item = InboundKey> {
        self.parents.iter().copied()
    }

    #[cfg(feature = "verify")]
    pub(super) fn inspect_foreign(&self) -> impl Iterator<Item = (InboundKey, u64)> {
        self.foreign.iter().map(|(parent, child)| (*parent, child.0))
    }

    /// Removes an ended request whose children are all unlinked (I3).
    pub(super) fn forget(&mut self, parent: InboundKey) {
        if self.parents.front() == Some(&parent) {
            self.parents.pop_front();
        } else {
            self.parents.retain(|known| *known != parent);
        }
    }

    fn first_foreign(&self, parent: InboundKey) -> Option<ForeignChild> {
        let from = (parent, ForeignChild(0));
        let to = (parent, ForeignChild(u64::MAX));
        self.foreign.range(from..=to).next().map(|(_, child)| *child)
    }
}

impl Session {
    /// The call continues when its parent is cancelled or ends.
    pub fn local_detach(&mut self, call: OutboundKey) {
        self.unlink_child(call);
    }

    /// Whether calls of this connection are children of this request.
    #[must_use]
    pub fn has_children(&self, parent: InboundKey) -> bool {
        self.requests.get(parent.0).is_some_and(|request| request.extras().first_child.is_some())
    }

    /// Makes a call on another connection a child of a request on this one.
    ///
    /// # Errors
    /// The errors of [`local_call`](Self::local_call), except that this connection may have ended.
    pub fn local_adopt(
        &mut self,
        _now: Instant,
        parent: InboundKey,
        child: ForeignChild,
    ) -> Result<(), CallRefused> {
        // The other connection may be open when this one has ended.
        if !self.may_have_children(parent) {
            return Err(CauseKind::Parent.into());
        }
        if self.cascades.foreign.len() >= self.config.limits.max_calls {
            return Err(CallRefused::TooMany);
        }
        self.cascades.foreign.insert((parent, child));
        Ok(())
    }

    /// A child on another connection has ended.
    pub fn local_release(&mut self, parent: InboundKey, child: ForeignChild) {
        self.cascades.foreign.remove(&(parent, child));
        self.free_if_childless(parent);
    }

    /// Whether a cascade has descendants left to cancel.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.cascades.parents.is_empty()
    }

    /// Cancels one slice of the cascades in progress.
    pub(super) fn cancel_cascade_slice(&mut self, now: Instant) {
        #[cfg(feature = "failpoints")]
        if failpoint::active(Failpoint::RecursiveCascade) {
            self.cascade_recursively(now);
        }
        // A slice of zero would never end (L4).
        for _ in 0..self.config.limits.max_cancels_per_step.max(1) {
            let Some(parent) = self.cascades.parents.front().copied() else { return };
            let child = self.requests.get(parent.0).and_then(|request| request.extras().first_child);
            if let Some(child) = child {
                self.unlink_child(child);
                let _ = self.cancel_call(now, child, Cause::new(CauseKind::Parent), None);
            } else if let Some(child) = self.cascades.first_foreign(parent) {
                self.cascades.foreign.remove(&(parent, child));
                self.push(Output::CancelForeign(child));
            } else {
                self.cascades.parents.pop_front();
                if let Some(extras) = self.requests.get_mut(parent.0).and_then(Request::extras_if_any) {
                    extras.has_cascade = false;
                }
                self.free_if_childless(parent);
            }
        }
    }

    /// A planted bug: it uses stack for each child.
    #[cfg(feature = "failpoints")]
    fn cascade_recursively(&mut self, now: Instant) {
        let Some(parent) = self.cascades.parents.front().copied() else { return };
        let first = self.requests.get(parent.0).and_then(|request| request.extras().first_child);
        let Some(child) = first else { return };
        self.unlink_child(child);
        self.cascade_recursively(now);
        let _ = self.cancel_call(now, child, Cause::new(CauseKind::Parent), None);
    }

    /// Queues a cascade over the children of a request that was signalled or settled, unless one is queued already.
    pub(super) fn begin_cascade(&mut self, parent: InboundKey) {
        let has_foreign = self.cascades.has_foreign(parent);
        let Some(request) = self.requests.get_mut(parent.0) else { return };
        let extras = request.extras();
        if extras.has_cascade || (extras.first_child.is_none() && !has_foreign) {
            return;
        }
        request.extras_mut(&mut self.request_extras).has_cascade = true;
        self.cascades.parents.push_back(parent);
    }

    /// A request that is signalled or settled gets no new children: they start cancelled (I5).
    pub(super) fn may_have_children(&self, parent: InboundKey) -> bool {
        match self.state_of(parent) {
            Some(
                RequestState::Queued
                | RequestState::Running
                | RequestState::CancelPending
                | RequestState::Task,
            ) => true,
            Some(RequestState::Cancelling) => failpoint::active(Failpoint::NotBornCancelled),
            Some(RequestState::Draining { .. } | RequestState::Ended) | None => false,
        }
    }

    pub(super) fn link_child(&mut self, parent: InboundKey, child: OutboundKey) {
        let Some(request) = self.requests.get_mut(parent.0) else { return };
        let extras = request.extras_mut(&mut self.request_extras);
        let previous = extras.last_child.replace(child);
        extras.first_child.get_or_insert(child);
        if let Some(call) = self.calls.get_mut(child.0) {
            let extras = call.extras_mut(&mut self.call_extras);
            extras.parent = Some(parent);
            extras.previous = previous;
        }
        self.link(previous, |extras| extras.next = Some(child));
    }

    pub(super) fn unlink_child(&mut self, child: OutboundKey) {
        let Some(extras) = self.calls.get_mut(child.0).and_then(Call::extras_if_any) else { return };
        let Some(parent) = extras.parent.take() else { return };
        let (previous, next) = (extras.previous.take(), extras.next.take());
        self.link(next, |extras| extras.previous = previous);
        self.link(previous, |extras| extras.next = next);
        if let Some(extras) = self.requests.get_mut(parent.0).and_then(Request::extras_if_any) {
            if previous.is_none() {
                extras.first_child = next;
            }
            if next.is_none() {
                extras.last_child = previous;
            }
        }
        self.free_if_childless(parent);
    }

    /// Changes the links of a child, if there is one.
    fn link(&mut self, child: Option<OutboundKey>, change: impl FnOnce(&mut CallExtras)) {
        if let Some(extras) = child.and_then(|child| self.calls.get_mut(child.0)?.extras_if_any()) {
            change(extras);
        }
    }
}
