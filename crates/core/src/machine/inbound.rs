//! Requests of the peer: from their arrival to the end of their handlers' tasks.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::cause::{Cause, CauseKind};
use crate::collections::HashIndex;
use crate::dialect::{CancelledReply, Refusal};
use crate::failpoint::{self, Failpoint};
use crate::id::{ClientNumber, ExchangeId, InboundKey, Principal, RequestId};
use crate::machine::interface::{
    Event, HandlerResult, InboundRequest, NoTask, Origin, Output, Reply, ReplyBody, Work,
};
use crate::machine::limits::{Limits, control_handlers};
use crate::machine::remembered_ids::{Name, Settled};
use crate::machine::request::{Alarms, Cancellability, FixedResult, Request, RequestState};
use crate::machine::{Session, Timer, later, lifecycle};
use crate::message::{BadMessage, Deviation};

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

    /// Whether frames of this request may still be written: it is not settled (I2), or it is a task that has not ended.
    #[must_use]
    pub fn may_notify(&self, key: InboundKey) -> bool {
        let may = |state: RequestState| state.is_open() || state == RequestState::Task;
        self.lifecycle.state() != lifecycle::ConnectionState::Lost
            && self.requests.get(key.0).is_some_and(|request| may(request.state))
    }

    /// Whether this request may become a task: its params do not ask for one, or this side declared tasks for its method.
    #[must_use]
    pub fn may_become_task(&self, key: InboundKey) -> bool {
        let asks = self.rules().uncancellable_param.is_some();
        self.requests
            .get(key.0)
            .is_some_and(|request| !asks || request.cancellability == Cancellability::NoMessage)
    }

    /// Whether this side declared tasks for any method, or the protocol has no such declaration.
    #[must_use]
    pub fn has_declared_tasks(&self) -> bool {
        self.rules().uncancellable_param.is_none() || self.agreement.declares_exemptions()
    }

    /// Whether this request became a task that has not ended.
    #[must_use]
    pub fn is_task(&self, key: InboundKey) -> bool {
        self.state_of(key) == Some(RequestState::Task)
    }

    /// The principal that sent this request.
    #[must_use]
    pub fn request_principal(&self, key: InboundKey) -> Option<&Principal> {
        self.requests.get(key.0)?.principal()
    }

    /// A handler that runs makes its request a task. The request is answered with the task's handle, and its id and its
    /// exchange are free; flag, children and permit stay with the work. From now on neither a message that names the id, nor
    /// the loss of its exchange or of the connection ends the work: only [`local_cancel`](Self::local_cancel), a shutdown
    /// and the handler itself do.
    ///
    /// At most half of the handlers that may run, of the connection and of a client, do the work of tasks.
    ///
    /// # Errors
    /// Nothing has changed.
    pub fn local_become_task(&mut self, now: Instant, key: InboundKey) -> Result<(), NoTask> {
        let is_open = matches!(
            self.lifecycle.state(),
            lifecycle::ConnectionState::Open | lifecycle::ConnectionState::HalfClosed
        );
        let most = (self.config.limits.max_running_handlers / 2).max(1) as u64;
        let has_room = self.stats.tasks < most;
        let Some(request) = self.requests.get_mut(key.0) else { return Err(NoTask::Ended) };
        if request.state != RequestState::Running || !is_open {
            return Err(NoTask::Ended);
        }
        let client = request.client();
        if !has_room || !self.shares.begins_task(client) {
            self.emit(Event::LimitReached("tasks"));
            return Err(NoTask::TooMany);
        }
        request.state = RequestState::Task;
        self.stats.tasks += 1;
        self.timers.clear(request.take_alarm(|alarms| &mut alarms.lost_stream), Timer::LostStream(key));
        let (name, principal) = (request.cancel_name(), request.principal().cloned());
        self.write_answer(key, ReplyBody::TaskHandle);
        self.remember_at(now, name, principal, Settled::Completed);
        if !failpoint::active(Failpoint::TaskKeepsId) {
            self.free_names(key);
        }
        self.advance(now);
        Ok(())
    }

    /// The first cause for which this request was cancelled.
    #[must_use]
    pub fn request_cause(&self, key: InboundKey) -> Option<Cause> {
        self.requests.get(key.0)?.cause().cloned()
    }

    /// A handler has ended. The outputs of this step contain the answer, unless the request was settled before.
    ///
    /// A result after the end of the grace is late, even if the timer of the grace comes after it: so the answer does not depend
    /// on how busy the machine is.
    pub fn local_answer(&mut self, now: Instant, key: InboundKey, end: HandlerResult) {
        let Some(mut request) = self.requests.get(key.0) else { return };
        if request.state == RequestState::Cancelling
            && request.extras().alarms.grace.is_some_and(|at| at <= now)
        {
            self.grace_over(now, key);
            let Some(settled) = self.requests.get(key.0) else { return };
            request = settled;
        }
        let cancelled = request.cause().cloned();
        match (request.state, end) {
            (RequestState::Draining { .. }, HandlerResult::Value)
                if failpoint::active(Failpoint::AnswerAfterSilence) =>
            {
                self.write_answer(key, ReplyBody::Handler);
            }
            (RequestState::Draining { .. }, _) if failpoint::active(Failpoint::TaskEndsTwice) => {
                self.push(Output::TaskEnded { key, cancelled: None });
            }
            (RequestState::Queued | RequestState::Draining { .. } | RequestState::Ended, _) => {}
            (RequestState::Task, end) => {
                if end == HandlerResult::Panicked {
                    self.emit(Event::HandlerPanicked(key));
                }
                let stopped = (end == HandlerResult::Stopped).then(|| Cause::new(CauseKind::Local));
                self.end_task(key, stopped);
            }
            (RequestState::CancelPending | RequestState::Cancelling, HandlerResult::Value)
                if failpoint::active(Failpoint::ValueDropped) =>
            {
                self.settle_cancelled(now, key, cancelled);
            }
            (RequestState::Running, HandlerResult::Value | HandlerResult::Error)
            | (RequestState::CancelPending | RequestState::Cancelling, HandlerResult::Value) => {
                self.settle(now, key, ReplyBody::Handler);
            }
            (RequestState::Running, HandlerResult::Stopped) => {
                let cause = Cause::new(CauseKind::Local);
                self.settle(now, key, ReplyBody::Cancelled(cause));
            }
            (RequestState::CancelPending | RequestState::Cancelling, HandlerResult::Error) => {
                self.emit(Event::ErrorAfterCancel(key));
                self.settle_cancelled(now, key, cancelled);
            }
            (RequestState::CancelPending | RequestState::Cancelling, HandlerResult::Stopped) => {
                self.settle_cancelled(now, key, cancelled);
            }
            (RequestState::Running, HandlerResult::Panicked) => {
                self.emit(Event::HandlerPanicked(key));
                self.settle(now, key, ReplyBody::Refused(Refusal::Internal));
            }
            (RequestState::CancelPending | RequestState::Cancelling, HandlerResult::Panicked) => {
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
        if failpoint::active(Failpoint::LostKeepsSlots)
            && self.lifecycle.state() == lifecycle::ConnectionState::Lost
        {
            return;
        }
        match request.state {
            RequestState::Queued | RequestState::Ended => return,
            RequestState::Running
            | RequestState::CancelPending
            | RequestState::Cancelling
            | RequestState::Task => {
                self.local_answer(now, key, HandlerResult::Panicked);
            }
            RequestState::Draining { .. } => {}
        }
        let Some(request) = self.requests.get_mut(key.0) else { return };
        if matches!(request.state, RequestState::Draining { .. }) {
            self.stats.draining -= 1;
        }
        request.state = RequestState::Ended;
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
        let cancellability = self.cancellability_of(&arrival);
        let fixed = self.fixed_result(arrival.method);
        Request::new(arrival, cancellability, fixed, &mut self.request_extras)
    }

    /// The fixed result that replaces the cancelled answer for this method.
    pub(super) fn fixed_result(&self, method: &str) -> Option<FixedResult> {
        let find = |results: &'static [(&'static str, &'static str)]| {
            results.iter().find(|(named, _)| *named == method).map(|(_, result)| *result)
        };
        let rules = self.rules();
        find(rules.graceful)
            .map(FixedResult::TornDown)
            .or_else(|| find(rules.called_off).map(FixedResult::CalledOff))
    }

    fn start(&mut self, key: InboundKey) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        request.state = RequestState::Running;
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
        if self.queue.len() == 0 {
            return;
        }
        for work in [Work::Control, Work::Blocking, Work::Task] {
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
        request.state = RequestState::Ended;
        let (name, principal) = (request.cancel_name(), request.principal().cloned());
        self.remember_at(now, name, principal, settled);
        self.begin_cascade(key);
        self.release(key);
    }

    /// Settles a request with the answer for its first cause.
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
            ReplyBody::Handler | ReplyBody::TaskHandle | ReplyBody::Refused(_) => Settled::Completed,
            ReplyBody::Cancelled(_) | ReplyBody::Graceful(_) => Settled::Cancelled,
        };
        request.state = RequestState::Draining { owes_signal: false };
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

    /// The decision about a task: it is cancelled, or its handler has ended. Its handler may run on.
    pub(super) fn end_task(&mut self, key: InboundKey, cancelled: Option<Cause>) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        if request.state != RequestState::Task {
            return;
        }
        request.state = RequestState::Draining { owes_signal: false };
        let client = request.client();
        self.shares.ends_task(client);
        self.stats.tasks -= 1;
        self.stats.draining += 1;
        self.push(Output::TaskEnded { key, cancelled });
        self.begin_cascade(key);
    }

    /// Outputs an answer (I1), or `Silence` where the dialect forbids one. A fixed result may replace the cancelled answer.
    /// After the loss of the connection nothing is output.
    fn write_answer(&mut self, key: InboundKey, body: ReplyBody) {
        if self.lifecycle.state() == lifecycle::ConnectionState::Lost {
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
            ReplyBody::Handler | ReplyBody::TaskHandle | ReplyBody::Graceful(_) | ReplyBody::Refused(_) => {
                body
            }
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
        free_names(&mut self.ids, &mut self.cancel_keys, &mut self.exchanges, (key, request));
        for (at, timer) in [
            (alarms.queue, Timer::Queue(key)),
            (alarms.grace, Timer::Grace(key)),
            (alarms.shield, Timer::Shield(key)),
            (alarms.lost_stream, Timer::LostStream(key)),
        ] {
            self.timers.clear(at, timer);
        }
        self.free_if_childless(key);
    }

    /// Frees the id of a request, the key by which a cancel names it, and its exchange.
    fn free_names(&mut self, key: InboundKey) {
        if let Some(request) = self.requests.get(key.0) {
            free_names(&mut self.ids, &mut self.cancel_keys, &mut self.exchanges, (key, request));
        }
    }

    /// Frees the slot of an ended request once no child links to it.
    pub(super) fn free_if_childless(&mut self, key: InboundKey) {
        let Some(request) = self.requests.get(key.0) else { return };
        let is_over = request.state == RequestState::Ended && request.extras().first_child.is_none();
        if is_over && !self.cascades.has_foreign(key) {
            if request.extras().has_cascade {
                self.cascades.forget(key);
            }
            self.request_extras.keep(self.requests.remove(key.0).and_then(Request::into_extras));
            self.push(Output::Released(key));
        }
    }
}

fn free_names(
    ids: &mut HashIndex,
    cancel_keys: &mut HashMap<Name, InboundKey>,
    exchanges: &mut BTreeSet<(ExchangeId, InboundKey)>,
    (key, request): (InboundKey, &Request),
) {
    ids.remove(&request.scoped_id(), key.0.slot);
    if request.is_named() {
        if let Some(name) = request.cancel_name().filter(|name| cancel_keys.get(name) == Some(&key)) {
            cancel_keys.remove(&name);
        }
    }
    let exchange = request.origin().exchange;
    if exchange != ExchangeId::NONE {
        exchanges.remove(&(exchange, key));
    }
}

/// How many handlers run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HandlerPermits {
    tasks: usize,
    blocking: usize,
    control: usize,
}

impl HandlerPermits {
    pub(super) const fn has_room(self, limits: &Limits, work: Work) -> bool {
        let all = self.tasks + self.blocking;
        match work {
            Work::Task => all < limits.max_running_handlers,
            Work::Blocking => {
                all < limits.max_running_handlers && self.blocking < limits.max_blocking_handlers
            }
            Work::Control => self.control < control_handlers(limits.max_running_handlers),
        }
    }

    pub(super) const fn take(&mut self, work: Work) {
        match work {
            Work::Task => self.tasks += 1,
            Work::Blocking => self.blocking += 1,
            Work::Control => self.control += 1,
        }
    }

    pub(super) const fn give_back(&mut self, work: Work) {
        match work {
            Work::Task => self.tasks -= 1,
            Work::Blocking => self.blocking -= 1,
            Work::Control => self.control -= 1,
        }
    }

    pub(super) const fn held(self) -> usize {
        self.tasks + self.blocking + self.control
    }

    #[cfg(feature = "verify")]
    pub(super) const fn inspect(self) -> (usize, usize, usize) {
        (self.tasks, self.blocking, self.control)
    }
}

/// The requests that wait for a permit. Each kind of work has its own queue, so that neither delays the other. The
/// requests in a queue have no room, of the connection or of their client: a handler that ends frees its permit and
/// gives it to the next request in one step.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    tasks: VecDeque<InboundKey>,
    blocking: VecDeque<InboundKey>,
    control: VecDeque<InboundKey>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.tasks.len() + self.blocking.len() + self.control.len()
    }

    pub(super) fn push(&mut self, work: Work, key: InboundKey) {
        self.queue_of(work).push_back(key);
    }

    /// Removes the first request that may start. All requests before it wait for permits of their own clients.
    pub(super) fn pop(&mut self, work: Work, may_start: impl Fn(InboundKey) -> bool) -> Option<InboundKey> {
        let queue = self.queue_of(work);
        let first = queue.iter().position(|waiting| may_start(*waiting))?;
        queue.remove(first)
    }

    pub(super) fn remove(&mut self, work: Work, key: InboundKey) {
        let queue = self.queue_of(work);
        if let Some(place) = queue.iter().position(|waiting| *waiting == key) {
            queue.remove(place);
        }
    }

    #[cfg(feature = "verify")]
    pub(super) fn inspect(&self) -> impl Iterator<Item = InboundKey> {
        self.tasks.iter().chain(&self.blocking).chain(&self.control).copied()
    }

    const fn queue_of(&mut self, work: Work) -> &mut VecDeque<InboundKey> {
        match work {
            Work::Task => &mut self.tasks,
            Work::Blocking => &mut self.blocking,
            Work::Control => &mut self.control,
        }
    }
}

/// The most answers to bad frames in a burst.
const BURST: u32 = 100;
/// The time after which one more answer is allowed.
const REFILL_INTERVAL: Duration = Duration::from_millis(100);

/// Limits the answers to bad frames. Above the limit they are only counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TokenBucket {
    spent: u32,
    since: Option<Instant>,
}

impl TokenBucket {
    fn take(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let refilled = now.saturating_duration_since(since).as_millis() / REFILL_INTERVAL.as_millis();
        let refilled = u32::try_from(refilled).unwrap_or(u32::MAX);
        self.spent = self.spent.saturating_sub(refilled);
        self.since = Some(since + REFILL_INTERVAL.saturating_mul(refilled));
        if self.spent >= BURST {
            return false;
        }
        self.spent += 1;
        true
    }
}

impl Session {
    /// Receives a frame that is not a message. It is answered without an id, in the dialect's form: 100 in a burst and
    /// one more each 100 ms; above that it is only counted. One that arrived on an exchange of the peer is always
    /// answered, because the exchange must end. One that the end of input has cut off is not: the peer sends nothing more,
    /// and might take the answer for that to its only call.
    pub fn recv_bad(&mut self, now: Instant, why: BadMessage, exchange: ExchangeId) {
        self.emit(Event::BadFrame);
        let is_lost = self.lifecycle.state() == lifecycle::ConnectionState::Lost;
        if !is_lost && !why.is_cut_off() && (exchange.is_peers() || self.bucket.take(now)) {
            let why = why.limit().map_or(Refusal::Bad(why), Refusal::Overloaded);
            self.push(Output::Refuse { to: None, exchange, why });
        }
    }

    /// The peer did something against its protocol, and the connection goes on.
    pub fn recv_deviation(&mut self, deviation: Deviation) {
        self.emit(Event::Deviation(deviation));
    }

    /// The next request has a progress token with a wrong type or length.
    pub fn recv_ignored_token(&mut self) {
        self.emit(Event::IgnoredToken);
    }

    /// Receives a request of which only the id can be read. It is refused with that id, as any request that is not
    /// admitted. If the id is in use, nothing is sent: the peer would take it for the answer of the first request (I4).
    pub fn recv_bad_request(&mut self, id: RequestId, tag: u8, why: BadMessage, origin: &Origin) {
        self.emit(Event::BadFrame);
        if self.lifecycle.state() == lifecycle::ConnectionState::Lost {
            return;
        }
        let in_use = self.request_named(origin.scope, &id).is_some();
        let to = (!in_use).then_some((id, tag));
        self.push(Output::Refuse { to, exchange: origin.exchange, why: Refusal::Bad(why) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_gives_a_hundred_and_refills_ten_a_second() {
        let start = Instant::now();
        let mut bucket = TokenBucket::default();
        assert_eq!((0..150).filter(|_| bucket.take(start)).count(), 100);
        let later = start + Duration::from_secs(1);
        assert_eq!((0..150).filter(|_| bucket.take(later)).count(), 10);
        let much_later = later + Duration::from_secs(3600);
        assert_eq!((0..150).filter(|_| bucket.take(much_later)).count(), 100);
    }
}
