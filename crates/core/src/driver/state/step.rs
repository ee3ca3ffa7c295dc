//! One step of a connection: an input of the machine with the lock held, its outputs in order, and then, without the
//! lock, the effects outside of it.

use std::mem::take;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use tracing::Level;

use crate::cause::Cause;
use crate::dialect::{HandshakePart, Refusal};
use crate::driver::admission::{HandlerPhase, StepPermits};
use crate::driver::call_table::{CallEntry, EntryUsers};
use crate::driver::effects::{Effects, Entry, name, outcome_of_reply};
use crate::driver::outbox::{Answer, Control, DataFrame};
use crate::driver::requests::{RequestData, Unserved};
use crate::driver::state::{ConnectionInner, DriverState, HandlerKind, Payload, Start, WaitingRequest, now};
use crate::driver::task::{self, TaskEnd};
use crate::driver::tasks::TaskSide;
use crate::failpoint::{self, Failpoint};
use crate::id::{ExchangeId, InboundKey, OutboundKey, SlotKey};
use crate::machine::{CloseCause, Event, HandlerResult, Output, Reply, ReplyBody};
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;
use crate::transport::ExchangeEnd;

impl ConnectionInner {
    pub(crate) fn lock(&self) -> MutexGuard<'_, DriverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One step of the machine: `act` with the lock held, then the outputs in order, then, without the lock, the
    /// effects outside of it.
    pub(crate) fn step<R>(
        self: &Arc<Self>,
        act: impl FnOnce(&mut DriverState, Instant, &mut Effects) -> R,
    ) -> R {
        self.step_with(
            Payload::None,
            |state, now, effects, _| act(state, now, effects),
            |_, _, result| result,
        )
    }

    /// A step at this time, which is not after the present: several steps of one task in a row read the clock once.
    pub(crate) fn step_at<R>(
        self: &Arc<Self>,
        now: Instant,
        act: impl FnOnce(&mut DriverState, Instant, &mut Effects) -> R,
    ) -> R {
        self.step_with_at(
            now,
            Payload::None,
            |state, now, effects, _| act(state, now, effects),
            |_, _, result| result,
        )
    }

    /// A step whose input has a payload. `then` gets the rest of it after the outputs, with the lock held.
    pub(crate) fn step_with<T, R>(
        self: &Arc<Self>,
        payload: Payload<'_>,
        act: impl FnOnce(&mut DriverState, Instant, &mut Effects, &mut Payload<'_>) -> T,
        then: impl FnOnce(&mut DriverState, Payload<'_>, T) -> R,
    ) -> R {
        self.step_with_at(now(), payload, act, then)
    }

    #[inline]
    fn step_with_at<T, R>(
        self: &Arc<Self>,
        now: Instant,
        mut payload: Payload<'_>,
        act: impl FnOnce(&mut DriverState, Instant, &mut Effects, &mut Payload<'_>) -> T,
        then: impl FnOnce(&mut DriverState, Payload<'_>, T) -> R,
    ) -> R {
        let mut effects = Effects::default();
        let (result, given_back) = {
            let mut state = self.lock();
            let acted = act(&mut state, now, &mut effects, &mut payload);
            state.apply(self, now, &mut payload, &mut effects);
            let result = then(&mut state, payload, acted);
            let given_back = state.settle_accounts(self);
            state.call_driver(self, &mut effects);
            (result, given_back)
        };
        if given_back > 0 {
            self.budget.remove(given_back);
        }
        effects.run(self);
        result
    }
}

impl DriverState {
    /// Gives back the permits that the step has left over, and counts the bytes that the connection holds. Most steps
    /// change neither. Returns the bytes to give back to the budget, which wakes tasks, so it is done without the lock.
    fn settle_accounts(&mut self, connection: &ConnectionInner) -> usize {
        if self.permits.held() > 0 {
            let client = (!connection.traits.exchange_scoped).then_some(&*connection.client);
            self.permits.give_back(&connection.admission, client);
        }
        let held = self.bytes_held();
        if held == self.bytes_counted {
            return 0;
        }
        self.bytes_counted = held;
        self.memory.count(held)
    }

    /// Approximate bytes that the connection holds.
    pub(crate) fn bytes_held(&self) -> usize {
        self.memory.of_requests()
            + self.outbox.bytes()
            + self.notices.bytes()
            + self.session.bytes_remembered()
    }

    /// Wakes the connection's task if it must act.
    fn call_driver(&mut self, connection: &ConnectionInner, effects: &mut Effects) {
        let earlier = match (self.session.next_timeout(), self.armed) {
            (Some(next), Some(armed)) => next < armed,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let (closing, cascading) = (self.close.is_some(), self.session.has_work());
        if closing {
            connection.closing.store(true, Ordering::Relaxed);
        }
        if cascading != connection.cascading.load(Ordering::Relaxed) {
            connection.cascading.store(cascading, Ordering::Relaxed);
        }
        let over = self.end.is_some() && self.session.is_finished();
        if self.outbox.take_news() || earlier || closing || cascading || over {
            self.dirty = true;
            effects.driver = self.driver.take();
        }
    }
}

// Executes the outputs of the machine in order.

impl DriverState {
    /// Executes the outputs of the machine with the lock held. Effects outside of the lock are added to `effects`.
    #[inline]
    pub(crate) fn apply(
        &mut self,
        connection: &Arc<ConnectionInner>,
        now: Instant,
        payload: &mut Payload<'_>,
        effects: &mut Effects,
    ) {
        let is_recorded = self.recorder.is_some();
        while let Some(output) = self.session.poll_output() {
            if is_recorded {
                self.record(now, &output, payload, effects);
            }
            self.apply_one(connection, now, output, payload, effects);
        }
        if self.outbox.reserved() > 0 && self.outbox.reserve_is_spent(self.session.limits()) {
            self.close.get_or_insert(CloseCause::PeerNotReading);
        }
    }

    /// The driver's entry of a call that the machine knows.
    pub(crate) fn entry_of(&mut self, call: OutboundKey) -> Option<(SlotKey, &mut CallEntry)> {
        let slot_key = *self.outbound.get(call.0)?;
        self.calls.get_mut(slot_key.0).map(|entry| (slot_key, entry))
    }

    fn apply_one(
        &mut self,
        connection: &Arc<ConnectionInner>,
        now: Instant,
        output: Output,
        payload: &mut Payload<'_>,
        effects: &mut Effects,
    ) {
        match output {
            Output::Start(key) => self.start(connection, now, key, payload, effects),
            Output::Signal { key, cause } => self.signal(connection, key, cause, effects),
            Output::Abort(key) => self.abort(connection, key, effects),
            Output::Reply(reply) => self.reply(connection, reply, payload, effects),
            Output::TaskEnded { key, cancelled } => {
                self.task_ended(connection, key, cancelled, payload, effects);
            }
            Output::Silence { key, exchange } => self.silence(connection, key, exchange, effects),
            Output::Released(key) => {
                if let Some(slot) = self.inbound.remove(key.0) {
                    self.memory.request_gone(slot.bytes);
                    if let Some(extras) = slot.extras {
                        self.reported.forget(key, &extras.tokens);
                        effects.rare().watches.extend(extras.watches);
                    }
                    self.queued.remove(key.0);
                    effects.drop_request(slot.request);
                }
            }
            Output::Refuse { to, exchange, why } => {
                self.outbox.push_control(Control::Refuse { to, exchange, why });
            }
            Output::RefuseCancelled { id, tag, server_cancellable, exchange, graceful, cause } => {
                self.outbox.push_control(Control::RefuseCancelled {
                    id,
                    tag,
                    server_cancellable,
                    exchange,
                    graceful,
                    cause,
                });
            }
            Output::ExchangeEnd { exchange, silent } => self.finish(exchange, silent),
            Output::Ack { ack, key, exchange, status } => {
                self.outbox.push_control(Control::Ack { ack, key, exchange, status });
            }
            Output::SendCancel { call, number, cancel: _, cause } => {
                if let Some((slot_key, entry)) = self.entry_of(call) {
                    let source = cause.kind();
                    entry.users.add(EntryUsers::CANCEL);
                    let span = entry.span();
                    effects.log(Level::DEBUG, || Entry::CallCancelled { call: number, span, source });
                    self.outbox.push_control(Control::Cancel(slot_key));
                }
            }
            Output::TakeBack(call) => {
                if let Some((_, entry)) = self.entry_of(call) {
                    entry.frame = None;
                    let calls = &self.calls;
                    self.outbox
                        .took_back(|slot_key| calls.get(slot_key.0).is_some_and(|call| call.frame.is_some()));
                }
            }
            Output::Acked { call, cancelled } => {
                if let Some((_, entry)) = self.entry_of(call) {
                    let extras = entry.extras();
                    extras.acknowledged = Some(cancelled);
                    effects.wake(extras.ack_waker.take());
                }
            }
            Output::Settle { call, settlement } => {
                self.deliver_settlement(call, settlement, payload, effects);
            }
            Output::CancelForeign(child) => {
                // A child that is not placed yet finds no entry when it is placed, and is cancelled then.
                effects.rare().child_cancels.extend(self.foreign.remove(&child.0).flatten());
            }
            Output::Event(event) => self.emit(connection, event, effects),
            Output::Close(cause) => {
                self.close.get_or_insert(cause);
            }
        }
    }

    fn start(
        &mut self,
        connection: &Arc<ConnectionInner>,
        now: Instant,
        key: InboundKey,
        payload: &mut Payload<'_>,
        effects: &mut Effects,
    ) {
        let Some(slot) = self.inbound.get_mut(key.0) else { return };
        let mut arriving = match payload {
            Payload::Request(arriving) => Some(&mut **arriving).filter(|arriving| arriving.key == Some(key)),
            Payload::None | Payload::Offer(_) | Payload::AnswerContent(_) => None,
        };
        let waiting = match &mut arriving {
            Some(arriving) => arriving.waiting.take(),
            None => self.queued.remove(key.0),
        };
        if let Some(WaitingRequest { handler: Some(handler), params }) = waiting {
            let permit =
                arriving.as_mut().map(|arriving| take(&mut arriving.client_permit)).unwrap_or_default();
            self.permits.starts(
                &connection.admission,
                slot.request.data.request_client(&connection.client),
                permit,
            );
            slot.task = HandlerPhase::Running;
            connection.beginning.fetch_add(1, Ordering::SeqCst);
            let exchange = slot.request.data.exchange();
            if let Some(arriving) = arriving {
                arriving.started = exchange;
                if handler.kind() == HandlerKind::Quick {
                    // The connection's task polls it after this step.
                    arriving.waiting = Some(WaitingRequest { handler: Some(handler), params });
                    return;
                }
            } else if exchange.is_peers() {
                self.outbox.push_control(Control::Begin(exchange));
            }
            effects.start(Start { handler, request: Arc::clone(&slot.request), params });
        } else {
            // The method is not served: it is answered here, without a task.
            let lifecycle = connection.dialect.rules().lifecycle;
            let shuts_down =
                lifecycle.is_some_and(|lifecycle| lifecycle.shutdown == &*slot.request.data.method);
            slot.unserved = if shuts_down { Unserved::Shutdown } else { Unserved::NotFound };
            self.session.local_answer(now, key, HandlerResult::Error);
            self.session.local_ended(now, key);
        }
    }

    fn signal(&mut self, connection: &ConnectionInner, key: InboundKey, cause: Cause, effects: &mut Effects) {
        let Some(slot) = self.inbound.get_mut(key.0) else { return };
        if failpoint::active(Failpoint::LateRegistration) && !slot.request.data.has_begun() {
            return;
        }
        let (request, logged) = (&slot.request, &cause);
        effects.log(Level::DEBUG, || Entry::RequestCancelled {
            request: Arc::clone(request),
            cause: logged.clone(),
        });
        slot.request.data.set_cancelled(cause);
        if connection.in_order {
            effects.wake(self.notices.take_turn_of(key));
        }
        let request = &slot.request;
        connection.registry.record(request.session_hash(), request.session(), &request.data.id);
        effects.signal(Arc::clone(&slot.request));
    }

    fn abort(&mut self, connection: &ConnectionInner, key: InboundKey, effects: &mut Effects) {
        let Some(slot) = self.inbound.get_mut(key.0) else { return };
        if slot.task == HandlerPhase::Running {
            StepPermits::drains(&connection.admission, slot.request.data.request_client(&connection.client));
            slot.task = HandlerPhase::Draining;
        }
        effects.rare().aborts.push(Arc::clone(&slot.request));
    }

    fn reply(
        &mut self,
        connection: &ConnectionInner,
        mut reply: Reply,
        payload: &mut Payload<'_>,
        effects: &mut Effects,
    ) {
        let mut answer = None;
        let is_written = matches!(reply.body, ReplyBody::Handler | ReplyBody::TaskHandle);
        if let Some(slot) = self.inbound.get_mut(reply.key.0) {
            answer = match slot.unserved {
                Unserved::NotFound => Some(Answer::Refused(Refusal::MethodNotFound)),
                Unserved::Shutdown => {
                    let result =
                        connection.dialect.rules().lifecycle.map(|lifecycle| lifecycle.shutdown_result);
                    if let (ReplyBody::Handler, Some(result)) = (&reply.body, result) {
                        reply.body = ReplyBody::Graceful(result);
                    }
                    None
                }
                Unserved::No if is_written => match payload {
                    Payload::Offer(answer) => answer.take(),
                    Payload::None | Payload::Request(_) | Payload::AnswerContent(_) => None,
                },
                Unserved::No => None,
            };
            if slot.task == HandlerPhase::Running && reply.body != ReplyBody::TaskHandle {
                StepPermits::drains(
                    &connection.admission,
                    slot.request.data.request_client(&connection.client),
                );
                slot.task = HandlerPhase::Draining;
            }
            let (request, outcome) = (&slot.request, outcome_of_reply(&reply.body));
            effects.log(Level::TRACE, || Entry::RequestAnswered { request: Arc::clone(request), outcome });
            let rules = connection.dialect.rules();
            if let (Some(Answer::Value(value)), ReplyBody::Handler, Some(handshake)) =
                (&answer, &reply.body, rules.handshake)
            {
                if handshake == &*slot.request.data.method {
                    let said = connection.dialect.codec().read_handshake(HandshakePart::Result, value);
                    self.session.handshake(HandshakePart::Result, &said);
                }
            }
        }
        self.end_waits_for_room(reply.key, effects);
        let answer = answer.filter(|_| is_written);
        self.outbox.push_data(DataFrame::Answer { reply, answer });
    }

    /// The tasks for whose ends requests wait on this exchange.
    pub(crate) fn tasks_read_on(&self, exchange: ExchangeId) -> impl Iterator<Item = Arc<task::Task>> {
        let requests = self.inbound.values().map(|slot| &slot.request.data);
        requests.filter(move |data| data.exchange() == exchange).filter_map(RequestData::read_task)
    }

    /// The work of a task has ended for its clients. Its end is kept and not written.
    fn task_ended(
        &mut self,
        connection: &ConnectionInner,
        key: InboundKey,
        cancelled: Option<Cause>,
        payload: &mut Payload<'_>,
        effects: &mut Effects,
    ) {
        let Some(slot) = self.inbound.get_mut(key.0) else { return };
        if slot.task == HandlerPhase::Running {
            StepPermits::drains(&connection.admission, slot.request.data.request_client(&connection.client));
            slot.task = HandlerPhase::Draining;
        }
        let answer = match payload {
            Payload::Offer(answer) if cancelled.is_none() => answer.take(),
            Payload::None | Payload::Request(_) | Payload::Offer(_) | Payload::AnswerContent(_) => None,
        };
        let end = match cancelled {
            Some(cause) => TaskEnd::Cancelled(cause),
            None => TaskEnd::Answered(answer.unwrap_or(Answer::Refused(Refusal::Internal))),
        };
        if let Some(task) = slot.request.data.task_side().and_then(TaskSide::task) {
            effects.rare().tasks.push((Arc::clone(task), end));
        }
        self.end_waits_for_room(key, effects);
    }

    fn silence(
        &mut self,
        connection: &ConnectionInner,
        key: InboundKey,
        exchange: ExchangeId,
        effects: &mut Effects,
    ) {
        if let Some(slot) = self.inbound.get_mut(key.0) {
            if slot.task == HandlerPhase::Running {
                StepPermits::drains(
                    &connection.admission,
                    slot.request.data.request_client(&connection.client),
                );
                slot.task = HandlerPhase::Draining;
            }
            if slot.take_frames() {
                self.outbox.silence(key);
                self.give_room(effects);
            }
        }
        self.end_waits_for_room(key, effects);
        self.finish(exchange, true);
    }

    fn finish(&mut self, exchange: ExchangeId, silent: bool) {
        if exchange.is_peers() {
            let how = if silent { ExchangeEnd::Silent } else { ExchangeEnd::Accepted };
            self.outbox.push_control(Control::ExchangeEnd { exchange, how });
        }
    }

    fn emit(&mut self, connection: &ConnectionInner, event: Event, effects: &mut Effects) {
        match &event {
            Event::LimitReached(limit) => effects.log(Level::DEBUG, || Entry::LimitReached(limit)),
            Event::HandlerPanicked(key) | Event::ErrorAfterCancel(key) | Event::Aborted(key) => {
                if let Some(slot) = self.inbound.get(key.0) {
                    let (request, event) = (&slot.request, name(&event));
                    let request = || Arc::clone(request);
                    effects.log(Level::DEBUG, || Entry::HandlerEndedBadly { request: request(), event });
                }
            }
            Event::Unresponsive(_) => effects.log(Level::DEBUG, || Entry::Unresponsive),
            Event::UnknownCancel
            | Event::MalformedCancel
            | Event::IgnoredCancel
            | Event::EarlyNotification
            | Event::ParkedCancel
            | Event::LateAnswer
            | Event::UnknownAnswer
            | Event::DuplicateId
            | Event::BadFrame
            | Event::Deviation(_)
            | Event::IgnoredToken => effects.log(Level::TRACE, || Entry::NoEffect(name(&event))),
        }
        if connection.on_event.is_some() {
            effects.rare().events.push(event);
        }
    }

    /// From now on every handler that still runs is draining: its answer cannot be sent.
    pub(crate) fn lose_wire(
        &mut self,
        connection: &ConnectionInner,
        effects: &mut Effects,
    ) -> impl Sized + use<> {
        for slot in self.inbound.values_mut() {
            if slot.task == HandlerPhase::Running {
                StepPermits::drains(
                    &connection.admission,
                    slot.request.data.request_client(&connection.client),
                );
                slot.task = HandlerPhase::Draining;
            }
        }
        let frames = self.outbox.clear();
        self.give_room_to_all(effects);
        (frames, self.notices.clear())
    }

    /// Wakes the tasks that wait for room, when at least a quarter of it is free.
    pub(crate) fn give_room(&mut self, effects: &mut Effects) {
        if self.waiting_for_room.is_empty() && self.notifiers.is_empty() {
            return;
        }
        if self.outbox.has_room_again(self.session.limits()) {
            self.give_room_to_all(effects);
        }
    }

    pub(crate) fn give_room_to_all(&mut self, effects: &mut Effects) {
        for key in self.waiting_for_room.drain(..) {
            let extras = self.inbound.get_mut(key.0).and_then(|slot| slot.extras.as_mut());
            let waker = extras.and_then(|extras| extras.waits_for_room.take());
            effects.wake(waker);
        }
        effects.wake(self.notifiers.take());
    }

    /// A request is answered, or must not be answered: none of its tasks waits for room any more.
    pub(crate) fn end_waits_for_room(&mut self, key: InboundKey, effects: &mut Effects) {
        effects.wake(self.notifiers.take_of(key));
        let extras = self.inbound.get_mut(key.0).and_then(|slot| slot.extras.as_mut());
        if let Some(waker) = extras.and_then(|extras| extras.waits_for_room.take()) {
            effects.wake([waker]);
            self.waiting_for_room.retain(|waiting| *waiting != key);
        }
    }
}
