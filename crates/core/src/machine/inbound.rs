//! Requests the peer asks of us: from arrival to the end of the handler's task.

use std::time::Instant;

use super::input::{Arrival, HandlerEnd, Work};
use super::memory::Settled;
use super::output::{Event, Output, Reply, ReplyBody};
use super::request::{Alarms, Request, State};
use super::timers::{Timer, later};
use super::{Session, lifecycle};
use crate::cause::{Cause, CauseKind};
use crate::dialect::{CancelledReply, Refusal};
use crate::id::{ExchangeId, InboundKey, RequestId, Scope};
use crate::plant::{self, Plant};

impl Session {
    /// A request of the peer. `Some(key)`: it has a slot now, before the next frame is read, and `Start` is among the
    /// outputs of this step or of a later one. `None`: the outputs say how it was refused.
    pub fn recv_request(&mut self, now: Instant, arrival: Arrival<'_>) -> Option<InboundKey> {
        let hash = self.ids.hash(&(arrival.origin.scope, &arrival.id));
        if let Err(refusal) = self.admit(now, &arrival, hash) {
            self.refuse(now, arrival, refusal);
            return None;
        }
        let work = arrival.work;
        let exchange = arrival.origin.exchange;
        let request = self.make_request(arrival);
        let cancel_name = if request.is_named() { request.cancel_name() } else { None };
        let key = InboundKey(self.requests.insert(request));
        self.ids
            .insert(hash, key.0.slot, |slot| self.requests.at(slot).map(|(_, request)| request.scoped_id()));
        if let Some(name) = cancel_name {
            self.cancel_keys.insert(name, key);
        }
        if exchange != ExchangeId::NONE {
            self.exchanges.insert((exchange, key));
        }
        if self.permits.has_room(&self.config.limits, work) {
            self.start(key);
        } else {
            let until = later(now, self.config.limits.queue_time);
            self.queue.push(work, key);
            self.timers.set(until, Timer::Queue(key));
            if let Some(request) = self.requests.get_mut(key.0) {
                request.extras_mut(&mut self.request_extras).alarms.queue = Some(until);
            }
        }
        Some(key)
    }

    /// Whether frames of this request may still be written: it is neither answered nor silenced (I2).
    #[must_use]
    pub fn may_notify(&self, key: InboundKey) -> bool {
        self.lifecycle.state() != lifecycle::State::Lost
            && self.requests.get(key.0).is_some_and(|request| request.state.is_open())
    }

    /// The first cause for which this request was cancelled.
    #[must_use]
    pub fn request_cause(&self, key: InboundKey) -> Option<Cause> {
        self.requests.get(key.0)?.cause().cloned()
    }

    /// Offers the end of a handler. The outputs of this step say what is written, if anything: nothing, when the
    /// request was settled before.
    pub fn local_answer(&mut self, now: Instant, key: InboundKey, end: HandlerEnd) {
        let Some(request) = self.requests.get(key.0) else { return };
        let cancelled = request.cause().cloned();
        match (request.state, end) {
            (State::Draining { .. }, HandlerEnd::Value) if plant::is(Plant::AnswerAfterSilence) => {
                self.write_answer(key, ReplyBody::Handler);
            }
            (State::Queued | State::Draining { .. } | State::Ended, _) => {}
            (State::Held | State::Cancelling, HandlerEnd::Value) if plant::is(Plant::ValueDropped) => {
                self.settle_cancelled(now, key, cancelled);
            }
            (State::Running, HandlerEnd::Value | HandlerEnd::Error)
            | (State::Held | State::Cancelling, HandlerEnd::Value) => {
                self.settle(now, key, ReplyBody::Handler);
            }
            (State::Running, HandlerEnd::Stopped) => {
                let cause = Cause::new(CauseKind::Local);
                self.settle(now, key, ReplyBody::Cancelled(cause));
            }
            (State::Held | State::Cancelling, HandlerEnd::Error) => {
                self.tell(Event::ErrorAfterCancel(key));
                self.settle_cancelled(now, key, cancelled);
            }
            (State::Held | State::Cancelling, HandlerEnd::Stopped) => {
                self.settle_cancelled(now, key, cancelled);
            }
            (State::Running, HandlerEnd::Panicked) => {
                self.tell(Event::HandlerPanicked(key));
                self.settle(now, key, ReplyBody::Refused(Refusal::Internal));
            }
            (State::Held | State::Cancelling, HandlerEnd::Panicked) => {
                self.tell(Event::HandlerPanicked(key));
                self.settle_cancelled(now, key, cancelled);
            }
        }
        self.advance(now);
    }

    /// The handler's task is really gone: returned, aborted, or its thread has ended. Only now are its permit and its
    /// id free (I10). A task that goes without having offered an end counts as one that panicked.
    pub fn local_ended(&mut self, now: Instant, key: InboundKey) {
        let Some(request) = self.requests.get(key.0) else { return };
        if plant::is(Plant::LostKeepsSlots) && self.lifecycle.state() == lifecycle::State::Lost {
            return;
        }
        match request.state {
            State::Queued | State::Ended => return,
            State::Running | State::Held | State::Cancelling => {
                self.local_answer(now, key, HandlerEnd::Panicked);
            }
            State::Draining { .. } => {}
        }
        let Some(request) = self.requests.get_mut(key.0) else { return };
        if matches!(request.state, State::Draining { .. }) {
            self.stats.draining -= 1;
        }
        request.state = State::Ended;
        self.stats.finished += 1;
        self.stats.cancelled += u64::from(request.cause().is_some());
        let work = request.work;
        if !plant::is(Plant::EarlyRefund) {
            self.permits.give_back(work);
        }
        self.release(key);
        self.start_next();
        self.advance(now);
    }

    fn make_request(&mut self, arrival: Arrival<'_>) -> Request {
        let reach = self.reach_of(&arrival);
        let graceful = self.graceful(arrival.method);
        Request::new(arrival, reach, graceful, &mut self.request_extras)
    }

    /// The request that has this id now, in its space.
    pub(super) fn request_named(&self, scope: Scope, id: &RequestId) -> Option<(InboundKey, &Request)> {
        self.request_hashed(self.ids.hash(&(scope, id)), scope, id)
    }

    /// The same, of a name that is hashed already.
    pub(super) fn request_hashed(
        &self,
        hash: u64,
        scope: Scope,
        id: &RequestId,
    ) -> Option<(InboundKey, &Request)> {
        let name = (scope, id);
        let is = |slot| self.requests.at(slot).is_some_and(|(_, request)| request.scoped_id() == name);
        let (key, request) = self.requests.at(self.ids.find_hashed(hash, is)?)?;
        Some((InboundKey(key), request))
    }

    /// The fixed result for requests of this method that this side tears down in good order.
    pub(super) fn graceful(&self, method: &str) -> Option<&'static str> {
        self.rules().graceful.iter().find(|(named, _)| *named == method).map(|(_, result)| *result)
    }

    fn start(&mut self, key: InboundKey) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        request.state = State::Running;
        self.timers.clear(request.take_alarm(|alarms| &mut alarms.queue), Timer::Queue(key));
        self.permits.take(request.work);
        self.stats.started += 1;
        self.push(Output::Start(key));
    }

    fn start_next(&mut self) {
        for work in [Work::Blocking, Work::Task] {
            while self.permits.has_room(&self.config.limits, work) {
                let Some(key) = self.queue.pop(work) else { break };
                self.start(key);
            }
        }
    }

    pub(super) fn queue_time_over(&mut self, now: Instant, key: InboundKey) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        request.take_alarm(|alarms| &mut alarms.queue);
        let work = request.work;
        self.queue.remove(work, key);
        self.tell(Event::LimitReached("queue_time"));
        let body = ReplyBody::Refused(Refusal::Overloaded("queue_time"));
        self.settle_queued(now, key, body, Settled::Completed);
    }

    /// Settles a request whose handler was never entered; nothing of it is left.
    pub(super) fn settle_queued(&mut self, now: Instant, key: InboundKey, body: ReplyBody, settled: Settled) {
        self.write_answer(key, body);
        let Some(request) = self.requests.get_mut(key.0) else { return };
        request.state = State::Ended;
        let (name, principal) = (request.cancel_name(), request.principal().cloned());
        self.remember_at(now, name, principal, settled);
        self.begin_cascade(key);
        self.release(key);
    }

    /// Settles a request with the answer for its first cause. The one place where silence is chosen.
    pub(super) fn settle_cancelled(&mut self, now: Instant, key: InboundKey, cause: Option<Cause>) {
        let cause = cause.unwrap_or(Cause::new(CauseKind::Local));
        self.settle(now, key, ReplyBody::Cancelled(cause));
    }

    /// The one decision about a request (I1): its answer or its silence. Its task may go on.
    pub(super) fn settle(&mut self, now: Instant, key: InboundKey, body: ReplyBody) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        if !request.state.is_open() {
            return;
        }
        let settled = match &body {
            ReplyBody::Handler | ReplyBody::Refused(_) => Settled::Completed,
            ReplyBody::Cancelled(_) | ReplyBody::Graceful(_) => Settled::Cancelled,
        };
        request.state = State::Draining { owes_signal: false };
        self.stats.draining += 1;
        if plant::is(Plant::EarlyRefund) {
            self.permits.give_back(request.work);
        }
        let (name, principal) = (request.cancel_name(), request.principal().cloned());
        let acks = request.take_held_acks();
        self.answer_held_acks(key, acks, settled);
        self.write_answer(key, body);
        self.remember_at(now, name, principal, settled);
        self.begin_cascade(key);
    }

    fn write_answer(&mut self, key: InboundKey, body: ReplyBody) {
        if self.lifecycle.state() == lifecycle::State::Lost {
            return;
        }
        let Some(request) = self.requests.get(key.0) else { return };
        let exchange = request.origin().exchange;
        let body = match body {
            ReplyBody::Cancelled(cause) if cause.kind() == CauseKind::Peer => {
                if self.rules().peer_cancelled == CancelledReply::Silence {
                    self.push(Output::Silence { key, exchange });
                    return;
                }
                ReplyBody::Cancelled(cause)
            }
            ReplyBody::Cancelled(cause) => match request.extras().graceful {
                Some(result) => ReplyBody::Graceful(result),
                None => ReplyBody::Cancelled(cause),
            },
            ReplyBody::Handler | ReplyBody::Graceful(_) | ReplyBody::Refused(_) => body,
        };
        let reply = Reply {
            key,
            id: request.id.clone(),
            tag: request.tag,
            server_cancellable: request.server_cancellable,
            exchange,
            body,
        };
        self.push(Output::Reply(reply));
    }

    /// Takes an ended request out of everything that knows it (I3). Its slot stays until its children are unlinked.
    fn release(&mut self, key: InboundKey) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        let alarms = if plant::is(Plant::TimerLeft) { Alarms::default() } else { request.take_alarms() };
        self.ids.remove(&request.scoped_id(), key.0.slot);
        let exchange = request.origin().exchange;
        let cancel_name = if request.is_named() { request.cancel_name() } else { None };
        for (at, timer) in [
            (alarms.queue, Timer::Queue(key)),
            (alarms.grace, Timer::Grace(key)),
            (alarms.shield, Timer::Shield(key)),
            (alarms.detach, Timer::Detach(key)),
        ] {
            self.timers.clear(at, timer);
        }
        if let Some(name) = cancel_name {
            if self.cancel_keys.get(&name) == Some(&key) {
                self.cancel_keys.remove(&name);
            }
        }
        if exchange != ExchangeId::NONE {
            self.exchanges.remove(&(exchange, key));
        }
        self.free_if_childless(key);
    }

    /// Gives the slot of an ended request back once no child links to it.
    pub(super) fn free_if_childless(&mut self, key: InboundKey) {
        let Some(request) = self.requests.get(key.0) else { return };
        let is_over = request.state == State::Ended && request.extras().first_child.is_none();
        if is_over && !self.tree.has_foreign(key) {
            if request.extras().is_walked {
                self.tree.forget(key);
            }
            self.request_extras.keep(self.requests.remove(key.0).and_then(Request::into_extras));
            self.push(Output::Gone(key));
        }
    }
}
