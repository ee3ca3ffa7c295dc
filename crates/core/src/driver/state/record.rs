//! What is recorded of a step, for connections that a log records, and the snapshot of the requests in flight.

use std::sync::{Arc, Weak};
use std::time::Instant;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::cause::{Cause, CauseKind};
use crate::dialect::{ProgressMembers, ShownMembers};
use crate::driver::call_table::AnswerContent;
use crate::driver::effects::Effects;
use crate::driver::outbox::Answer;
use crate::driver::request_log::{
    Direction, Recorded, Recorder, RequestInfo, RequestKey, RequestLog, RequestOutcome, RequestProgress,
    SessionInfo, beginning,
};
use crate::driver::requests::{InboundSlot, Unserved};
use crate::driver::state::{ConnectionInner, DriverState, Payload, Request, now};
use crate::id::{CallKey, InboundKey, OutboundKey, RequestId, SlotKey};
use crate::machine::{AcceptedCancel, Output, ReplyBody, RequestStatus, Settlement};
use crate::message::ErrorCode;

/// Params above this are not read for what they show.
const MAX_SHOWN_PARAMS_BYTES: usize = 64 * 1024;

/// What the params of a request show people.
#[derive(Default)]
struct Shown {
    about: Option<Arc<str>>,
    /// The name and the version of the client.
    client: Option<Arc<str>>,
}

impl Shown {
    fn of(members: &ShownMembers, params: Option<&RawValue>) -> Self {
        let Some(params) = read(params) else { return Self::default() };
        let text = |value: &Value| value.as_str().map(|text| Arc::from(beginning(text)));
        let about = members.about.iter().find_map(|place| params.pointer(place).and_then(text));
        let client = members.client.and_then(|place| params.pointer(place)).and_then(|client| {
            let name = client.get("name")?.as_str()?;
            let version = client.get("version").and_then(Value::as_str).unwrap_or_default();
            Some(Arc::from(beginning(format!("{name} {version}").trim_end())))
        });
        Self { about, client }
    }
}

/// How far a request is by a notification of its handler, if that is about progress.
fn progress_in(members: &ShownMembers, method: &str, params: Option<&RawValue>) -> Option<RequestProgress> {
    let (_, members) = members.progress.as_ref().filter(|(name, _)| *name == method)?;
    let params = read(params)?;
    let number = |place: &str| params.pointer(place).and_then(Value::as_f64);
    Some(match members {
        ProgressMembers::Parts { done, total } => {
            RequestProgress { done: number(done)?, total: number(total) }
        }
        ProgressMembers::Percent(done) => RequestProgress { done: number(done)?, total: Some(100.0) },
    })
}

fn read(params: Option<&RawValue>) -> Option<Value> {
    let params = params.filter(|params| params.get().len() <= MAX_SHOWN_PARAMS_BYTES)?;
    serde_json::from_str(params.get()).ok()
}

impl DriverState {
    /// A request with these params has arrived, or is in the queue.
    pub(crate) fn record_arrival(
        &mut self,
        connection: &ConnectionInner,
        key: InboundKey,
        params: Option<&RawValue>,
        now: Instant,
        effects: &mut Effects,
    ) {
        if self.recorder.is_none() {
            return;
        }
        let Some(slot) = self.inbound.get(key.0) else { return };
        let Some(mut info) = self.request_info(connection, slot, now) else { return };
        let rules = connection.dialect.rules();
        let shown = Shown::of(&rules.shown, params);
        info.about = shown.about;
        if let Some(recorder) = &mut self.recorder {
            match rules.handshake {
                // Each request has it.
                None => info.client = shown.client,
                Some(handshake) => {
                    if info.method.as_deref() == Some(handshake) {
                        recorder.client = shown.client;
                    }
                    info.client.clone_from(&recorder.client);
                }
            }
            recorder.started(info, &mut effects.rare().recorded);
        }
    }

    /// The handler of a request sends this notification.
    pub(crate) fn record_notification(
        &mut self,
        connection: &ConnectionInner,
        key: InboundKey,
        (method, params): (&str, Option<&RawValue>),
        now: Instant,
        effects: &mut Effects,
    ) {
        let Some(recorder) = &mut self.recorder else { return };
        if let Some(progress) = progress_in(&connection.dialect.rules().shown, method, params) {
            recorder.progressed(received(key), progress, now, &mut effects.rare().recorded);
        }
    }

    /// A call was made.
    pub(crate) fn record_call(
        &mut self,
        connection: &ConnectionInner,
        slot_key: SlotKey,
        now: Instant,
        effects: &mut Effects,
    ) {
        if self.recorder.is_none() {
            return;
        }
        let Some(info) = self.call_info(connection, slot_key, now) else { return };
        if let Some(recorder) = &mut self.recorder {
            recorder.started(info, &mut effects.rare().recorded);
        }
    }

    /// Records an output before it is executed.
    pub(crate) fn record(
        &mut self,
        now: Instant,
        output: &Output,
        payload: &Payload<'_>,
        effects: &mut Effects,
    ) {
        let Some(mut recorder) = self.recorder.take() else { return };
        if !recorder.has_readers() {
            return;
        }
        self.record_in(&mut recorder, now, output, payload, effects);
        self.recorder = Some(recorder);
    }

    fn record_in(
        &self,
        recorder: &mut Recorder,
        now: Instant,
        output: &Output,
        payload: &Payload<'_>,
        effects: &mut Effects,
    ) {
        let notified = &mut effects.rare().recorded;
        match output {
            Output::Start(key) | Output::Signal { key, .. } | Output::Abort(key) => {
                if let Some((status, cancel)) = self.session.request_status(*key) {
                    recorder.changed(received(*key), status, cancel, notified);
                }
            }
            Output::Reply(reply) if reply.body == ReplyBody::TaskHandle => {
                recorder.changed(received(reply.key), RequestStatus::Task, None, notified);
            }
            Output::Reply(reply) => {
                recorder.decided(received(reply.key), self.outcome_of_reply(reply.key, &reply.body, payload));
                let cause = match &reply.body {
                    ReplyBody::Cancelled(cause) => Some(cause.clone()),
                    ReplyBody::Handler
                    | ReplyBody::TaskHandle
                    | ReplyBody::Graceful(_)
                    | ReplyBody::Refused(_) => None,
                };
                let (status, cancel) = self.settled(reply.key, now, cause);
                recorder.changed(received(reply.key), status, cancel, notified);
            }
            Output::TaskEnded { key, cancelled } => {
                let outcome = match cancelled {
                    Some(_) => RequestOutcome::Cancelled,
                    None => self.outcome_of_reply(*key, &ReplyBody::Handler, payload),
                };
                recorder.decided(received(*key), outcome);
                let (status, cancel) = self.settled(*key, now, cancelled.clone());
                recorder.changed(received(*key), status, cancel, notified);
            }
            Output::Silence { key, .. } => {
                recorder.decided(received(*key), RequestOutcome::Cancelled);
                // Silence is owed after a cancel of the peer only.
                let (status, cancel) = self.settled(*key, now, Some(Cause::new(CauseKind::Peer)));
                recorder.changed(received(*key), status, cancel, notified);
            }
            Output::Released(key) => recorder.ended(received(*key), now, notified),
            Output::SendCancel { call, cause, .. } => {
                let cancel = Some(AcceptedCancel::new(cause.clone(), now));
                recorder.changed(made(*call), RequestStatus::Cancelling, cancel, notified);
            }
            Output::Settle { call, settlement } => {
                let (outcome, cause) = outcome_of_call(settlement, payload);
                recorder.decided(made(*call), outcome);
                if let Some(cause) = cause {
                    let cancel = Some(AcceptedCancel::new(cause, now));
                    recorder.changed(made(*call), RequestStatus::Cancelling, cancel, notified);
                }
                recorder.ended(made(*call), now, notified);
            }
            Output::Refuse { .. }
            | Output::RefuseCancelled { .. }
            | Output::ExchangeEnd { .. }
            | Output::Ack { .. }
            | Output::TakeBack(_)
            | Output::Acked { .. }
            | Output::CancelForeign(_)
            | Output::Event(_)
            | Output::Close(_) => {}
        }
    }

    /// The status of a request that is answered, and its cancel. The machine has forgotten a request that was cancelled
    /// in the queue.
    fn settled(
        &self,
        key: InboundKey,
        now: Instant,
        cause: Option<Cause>,
    ) -> (RequestStatus, Option<AcceptedCancel>) {
        let known = self.session.request_status(key).and_then(|(_, cancel)| cancel);
        (RequestStatus::Draining, known.or_else(|| Some(AcceptedCancel::new(cause?, now))))
    }

    fn outcome_of_reply(&self, key: InboundKey, body: &ReplyBody, payload: &Payload<'_>) -> RequestOutcome {
        match body {
            ReplyBody::Cancelled(_) | ReplyBody::Graceful(_) => RequestOutcome::Cancelled,
            ReplyBody::Refused(crate::dialect::Refusal::Overloaded(_)) => RequestOutcome::Refused,
            ReplyBody::Refused(_) => RequestOutcome::Failed(ErrorCode::INTERNAL_ERROR),
            ReplyBody::TaskHandle => RequestOutcome::Completed,
            ReplyBody::Handler => match self.inbound.get(key.0).map(|slot| slot.unserved) {
                Some(Unserved::NotFound) => RequestOutcome::Failed(ErrorCode::METHOD_NOT_FOUND),
                Some(Unserved::Shutdown) => RequestOutcome::Completed,
                Some(Unserved::No) | None => match payload {
                    Payload::Offer(Some(Answer::Value(_))) => RequestOutcome::Completed,
                    Payload::Offer(Some(Answer::Error(error))) => RequestOutcome::Failed(error.code),
                    Payload::Offer(Some(Answer::Refused(_)) | None)
                    | Payload::None
                    | Payload::Request(_)
                    | Payload::AnswerContent(_) => RequestOutcome::Failed(ErrorCode::INTERNAL_ERROR),
                },
            },
        }
    }

    /// The requests and calls in flight, at most this many.
    fn request_infos(&self, connection: &ConnectionInner, now: Instant, at_most: usize) -> Vec<RequestInfo> {
        let received = self.inbound.values().filter_map(|slot| self.request_info(connection, slot, now));
        let calls = self.calls.iter().filter_map(|(key, _)| self.call_info(connection, SlotKey(key), now));
        received.chain(calls).take(at_most).collect()
    }

    fn request_info(
        &self,
        connection: &ConnectionInner,
        slot: &InboundSlot<Request>,
        now: Instant,
    ) -> Option<RequestInfo> {
        let data = &slot.request.data;
        let (status, cancel) = self.session.request_status(data.key)?;
        let recorder = self.recorder.as_ref();
        let known = recorder.and_then(|recorder| recorder.known(Direction::Received, data.key.0));
        Some(RequestInfo {
            key: connection.request_key(Direction::Received, data.key.0),
            session: slot.request.session().clone(),
            id: data.id.clone(),
            method: Some(Arc::clone(&data.method)),
            about: known.and_then(|known| known.about.clone()),
            client: known.and_then(|known| known.client.clone()),
            progress: known.and_then(|known| known.progress),
            status,
            started: data.came_at.time(now, connection.opened),
            parent: None,
            cancel,
        })
    }

    fn call_info(
        &self,
        connection: &ConnectionInner,
        slot_key: SlotKey,
        now: Instant,
    ) -> Option<RequestInfo> {
        let entry = self.calls.get(slot_key.0).filter(|entry| !entry.ended)?;
        let call = self.session.call_status(entry.key)?;
        let known = self.recorder.as_ref().and_then(|recorder| recorder.known(Direction::Made, entry.key.0));
        let staged = || entry.frame.as_ref().map(|frame| Arc::clone(&frame.method));
        let parent = call.parent.map(|parent| connection.request_key(Direction::Received, parent.0));
        let elsewhere = || entry.extras.as_ref().and_then(|extras| extras.foreign_parent);
        Some(RequestInfo {
            key: connection.request_key(Direction::Made, entry.key.0),
            session: connection.session_id.clone(),
            id: RequestId::number(i64::try_from(call.number.0).unwrap_or(i64::MAX)),
            method: known
                .and_then(|known| known.method.clone())
                .or_else(staged)
                .or_else(|| self.methods.at(entry.method)),
            about: None,
            client: None,
            progress: None,
            status: call.status,
            started: entry.made.time(now, connection.opened),
            parent: parent.or_else(elsewhere).or_else(|| known?.parent),
            cancel: call.cancel,
        })
    }
}

const fn received(key: InboundKey) -> (Direction, CallKey) {
    (Direction::Received, key.0)
}

const fn made(key: OutboundKey) -> (Direction, CallKey) {
    (Direction::Made, key.0)
}

/// How a call ended, and the cause of its cancel.
fn outcome_of_call(settlement: &Settlement, payload: &Payload<'_>) -> (RequestOutcome, Option<Cause>) {
    match settlement {
        Settlement::Answered { cancelled } => {
            let outcome = match payload {
                Payload::AnswerContent(Some(AnswerContent::Value(_))) => RequestOutcome::Completed,
                Payload::AnswerContent(Some(AnswerContent::Error(error))) => {
                    RequestOutcome::Failed(error.code)
                }
                Payload::AnswerContent(Some(AnswerContent::Malformed(_))) => RequestOutcome::Unreadable,
                Payload::AnswerContent(Some(AnswerContent::Cancelled) | None)
                | Payload::None
                | Payload::Request(_)
                | Payload::Offer(_) => RequestOutcome::Failed(ErrorCode::INTERNAL_ERROR),
            };
            (outcome, cancelled.clone())
        }
        Settlement::Cancelled { cause, confirmed: _ } => (RequestOutcome::Cancelled, Some(cause.clone())),
        Settlement::Disconnected { .. } => (RequestOutcome::Disconnected, None),
    }
}

impl ConnectionInner {
    /// The key of a request or a call of this connection.
    pub(crate) const fn request_key(&self, direction: Direction, key: CallKey) -> RequestKey {
        RequestKey { connection: self.number, direction, key }
    }

    /// Records the connection in this log from now on.
    pub(crate) fn record_into(self: &Arc<Self>, log: &RequestLog) {
        let log = log.shared();
        {
            let mut state = self.lock();
            let in_flight = state.request_infos(self, now(), usize::MAX);
            let recorder = state.recorder.get_or_insert_with(|| Box::new(Recorder::new(self.number)));
            recorder.add(log, in_flight);
        }
        let connection: Weak<Self> = Arc::downgrade(self);
        log.add(self.number, connection);
        log.changed.notify_waiters();
    }

    pub(crate) fn requests_in_flight(&self, at_most: usize) -> Vec<RequestInfo> {
        self.lock().request_infos(self, now(), at_most)
    }

    /// Cancels a received request. `true`: it was open and not cancelled before.
    pub(crate) fn stop_request(self: &Arc<Self>, key: RequestKey, cause: Cause) -> bool {
        if key.connection != self.number || key.direction != Direction::Received {
            return false;
        }
        self.step(|state, now, _| state.session.local_cancel(now, InboundKey(key.key), cause))
    }
}

impl Recorded for ConnectionInner {
    fn is_over(&self) -> bool {
        let state = self.lock();
        state.end.is_some() && state.session.is_finished()
    }

    fn info(&self) -> SessionInfo {
        let state = self.lock();
        SessionInfo {
            connection: self.number,
            session: self.session_id.clone(),
            dialect: self.dialect.name(),
            role: self.role,
            peer: self.meta.clone(),
            opened: self.opened,
            client: state.recorder.as_ref().and_then(|recorder| recorder.client.clone()),
            stats: state.session.stats(),
        }
    }

    fn requests(&self, at_most: usize) -> Vec<RequestInfo> {
        self.requests_in_flight(at_most)
    }

    fn stop(self: Arc<Self>, key: RequestKey, cause: Cause) -> bool {
        self.stop_request(key, cause)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::dialect::ACP_V2;
    use crate::driver::context::CallContext;
    use crate::driver::peer::Peer;
    use crate::driver::request_log::RequestLog;
    use crate::driver::router::Router;
    use crate::transport::memory_pair;

    /// The recorder is not visible from outside.
    #[tokio::test]
    async fn a_connection_whose_logs_are_dropped_records_nothing_any_more() {
        let (near, far) = memory_pair();
        let router = Router::new().method("echo", |_: CallContext, params: Value| async move { Ok(params) });
        let server = Peer::builder(ACP_V2).serve(router).attach(far).unwrap();
        let client = Peer::builder(ACP_V2).attach(near).unwrap();
        assert!(server.connection().lock().recorder.is_none(), "nobody looks");
        let (log, watch) = (RequestLog::new(), server.watch_requests());
        server.record_in(&log);
        drop(log);
        let _: Value = client.call("echo", &json!({})).await.unwrap();
        assert!(server.connection().lock().recorder.is_some(), "the watch reads");
        drop(watch);
        let _: Value = client.call("echo", &json!({})).await.unwrap();
        assert!(server.connection().lock().recorder.is_none(), "I3: it records for nobody");
    }
}
