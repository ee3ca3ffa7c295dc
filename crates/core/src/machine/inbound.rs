//! Requests of the peer: from their arrival to the end of their handlers' tasks.

use std::time::Instant;

use super::input::{HandlerResult, InboundRequest, Work};
use super::output::{Event, Output, Reply, ReplyBody};
use super::request::{Alarms, Fixed, Request, State};
use super::settled_cache::Settled;
use super::timers::{Timer, later};
use super::{Session, lifecycle};
use crate::cause::{Cause, CauseKind};
use crate::dialect::{CancelledReply, Refusal};
use crate::failpoint::{self, Failpoint};
use crate::id::{ClientNumber, ExchangeId, InboundKey};

impl Session {
    /// Receives a request of the peer. `Some(key)`: it has a slot from now on, and `Start` is an output of this step or
    /// of a later one. `None`: it was refused, and the outputs contain the refusal.
    pub fn recv_request(&mut self, now: Instant, arrival: InboundRequest<'_>) -> Option<InboundKey> {
        let hash = self.ids.hash(&(arrival.origin.scope, &arrival.id));
        if let Err(refusal) = self.admit(now, &arrival, hash) {
            self.refuse(now, arrival, refusal);
            return None;
        }
        self.note_request(arrival.method);
        let (work, client) = (arrival.work, arrival.origin.client);
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
        if self.has_room(client, work) {
            self.start(key);
        } else {
            let until = later(now, self.config.limits.queue_timeout);
            self.queue.push(work, key);
            self.shares.waits(client);
            self.timers.set(until, Timer::Queue(key));
            if let Some(request) = self.requests.get_mut(key.0) {
                request.extras_mut(&mut self.request_extras).alarms.queue = Some(until);
            }
        }
        Some(key)
    }

    /// Whether frames of this request may still be written: it is not settled (I2).
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

    /// A handler has ended. The outputs of this step contain the answer, unless the request was settled before.
    pub fn local_answer(&mut self, now: Instant, key: InboundKey, end: HandlerResult) {
        let Some(request) = self.requests.get(key.0) else { return };
        let cancelled = request.cause().cloned();
        match (request.state, end) {
            (State::Draining { .. }, HandlerResult::Value)
                if failpoint::active(Failpoint::AnswerAfterSilence) =>
            {
                self.write_answer(key, ReplyBody::Handler);
            }
            (State::Queued | State::Draining { .. } | State::Ended, _) => {}
            (State::CancelPending | State::Cancelling, HandlerResult::Value)
                if failpoint::active(Failpoint::ValueDropped) =>
            {
                self.settle_cancelled(now, key, cancelled);
            }
            (State::Running, HandlerResult::Value | HandlerResult::Error)
            | (State::CancelPending | State::Cancelling, HandlerResult::Value) => {
                self.settle(now, key, ReplyBody::Handler);
            }
            (State::Running, HandlerResult::Stopped) => {
                let cause = Cause::new(CauseKind::Local);
                self.settle(now, key, ReplyBody::Cancelled(cause));
            }
            (State::CancelPending | State::Cancelling, HandlerResult::Error) => {
                self.emit(Event::ErrorAfterCancel(key));
                self.settle_cancelled(now, key, cancelled);
            }
            (State::CancelPending | State::Cancelling, HandlerResult::Stopped) => {
                self.settle_cancelled(now, key, cancelled);
            }
            (State::Running, HandlerResult::Panicked) => {
                self.emit(Event::HandlerPanicked(key));
                self.settle(now, key, ReplyBody::Refused(Refusal::Internal));
            }
            (State::CancelPending | State::Cancelling, HandlerResult::Panicked) => {
                self.emit(Event::HandlerPanicked(key));
                self.settle_cancelled(now, key, cancelled);
            }
        }
        self.advance(now);
    }

    /// The task of a handler has ended: it returned, it was aborted, or its thread ended. Only now its permit and its
    /// id are free (I10). A task that ends without [`local_answer`](Self::local_answer) counts as a panic.
    pub fn local_ended(&mut self, now: Instant, key: InboundKey) {
        let Some(request) = self.requests.get(key.0) else { return };
        if failpoint::active(Failpoint::LostKeepsSlots) && self.lifecycle.state() == lifecycle::State::Lost {
            return;
        }
        match request.state {
            State::Queued | State::Ended => return,
            State::Running | State::CancelPending | State::Cancelling => {
                self.local_answer(now, key, HandlerResult::Panicked);
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
        let (work, client) = (request.work, request.client());
        if !failpoint::active(Failpoint::EarlyRefund) {
            self.permits.give_back(work);
        }
        self.shares.ends(client, work);
        self.release(key);
        self.start_next();
        self.advance(now);
    }

    fn make_request(&mut self, arrival: InboundRequest<'_>) -> Request {
        let reach = self.reach_of(&arrival);
        let fixed = self.fixed_result(arrival.method);
        Request::new(arrival, reach, fixed, &mut self.request_extras)
    }

    /// The fixed result that replaces the cancelled answer for this method.
    pub(super) fn fixed_result(&self, method: &str) -> Option<Fixed> {
        let find = |results: &'static [(&'static str, &'static str)]| {
            results.iter().find(|(named, _)| *named == method).map(|(_, result)| *result)
        };
        let rules = self.rules();
        find(rules.graceful).map(Fixed::TornDown).or_else(|| find(rules.called_off).map(Fixed::CalledOff))
    }

    fn start(&mut self, key: InboundKey) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        request.state = State::Running;
        self.timers.clear(request.take_alarm(|alarms| &mut alarms.queue), Timer::Queue(key));
        self.permits.take(request.work);
        self.shares.starts(request.client(), request.work);
        self.stats.started += 1;
        self.push(Output::Start(key));
    }

    /// Whether one more handler may run, of the connection and of its client.
    pub(super) fn has_room(&self, client: Option<ClientNumber>, work: Work) -> bool {
        self.permits.has_room(&self.config.limits, work) && self.shares.has_room(client, work)
    }

    fn start_next(&mut self) {
        for work in [Work::Blocking, Work::Task] {
            while self.permits.has_room(&self.config.limits, work) {
                let (requests, shares) = (&self.requests, &self.shares);
                let client = |key: InboundKey| requests.get(key.0).and_then(Request::client);
                let Some(key) = self.queue.pop(work, |key| shares.has_room(client(key), work)) else { break };
                let client = client(key);
                self.shares.waited(client);
                self.start(key);
            }
        }
    }

    /// Removes a request from the queue.
    pub(super) fn leave_queue(&mut self, key: InboundKey, work: Work) {
        let client = self.requests.get(key.0).and_then(Request::client);
        self.queue.remove(work, key);
        self.shares.waited(client);
    }

    pub(super) fn queue_time_over(&mut self, now: Instant, key: InboundKey) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        request.take_alarm(|alarms| &mut alarms.queue);
        let work = request.work;
        self.leave_queue(key, work);
        self.emit(Event::LimitReached("queue_time"));
        let body = ReplyBody::Refused(Refusal::Overloaded("queue_time"));
        self.settle_queued(now, key, body, Settled::Completed);
    }

    /// Settles a request whose handler never ran, and releases it.
    pub(super) fn settle_queued(&mut self, now: Instant, key: InboundKey, body: ReplyBody, settled: Settled) {
        self.write_answer(key, body);
        let Some(request) = self.requests.get_mut(key.0) else { return };
        request.state = State::Ended;
        let (name, principal) = (request.cancel_name(), request.principal().cloned());
        self.remember_at(now, name, principal, settled);
        self.begin_cascade(key);
        self.release(key);
    }

    /// Settles a request with the answer for its first cause. Only here it is decided that no answer is sent.
    pub(super) fn settle_cancelled(&mut self, now: Instant, key: InboundKey, cause: Option<Cause>) {
        let cause = cause.unwrap_or(Cause::new(CauseKind::Local));
        self.settle(now, key, ReplyBody::Cancelled(cause));
    }

    /// The decision about a request (I1): its answer, or no answer. Its task may run on.
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
        if failpoint::active(Failpoint::EarlyRefund) {
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
            ReplyBody::Cancelled(cause) => {
                let by_peer = cause.kind() == CauseKind::Peer;
                if by_peer && self.rules().peer_cancelled == CancelledReply::Silence {
                    self.push(Output::Silence { key, exchange });
                    return;
                }
                let fixed = request.extras().fixed.and_then(|fixed| fixed.for_cause(cause.kind()));
                fixed.map_or(ReplyBody::Cancelled(cause), ReplyBody::Graceful)
            }
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

    /// Removes an ended request from all tables (I3). Its slot stays until its children are unlinked.
    fn release(&mut self, key: InboundKey) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        let alarms =
            if failpoint::active(Failpoint::TimerLeft) { Alarms::default() } else { request.take_alarms() };
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

    /// Frees the slot of an ended request once no child links to it.
    pub(super) fn free_if_childless(&mut self, key: InboundKey) {
        let Some(request) = self.requests.get(key.0) else { return };
        let is_over = request.state == State::Ended && request.extras().first_child.is_none();
        if is_over && !self.tree.has_foreign(key) {
            if request.extras().is_walked {
                self.tree.forget(key);
            }
            self.request_extras.keep(self.requests.remove(key.0).and_then(Request::into_extras));
            self.push(Output::Released(key));
        }
    }
}
