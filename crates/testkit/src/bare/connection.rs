//! One connection of the bare machine: its session, its handlers and its calls. The codec reads incoming frames, and the
//! session receives them as inputs. Outputs are executed, and every frame is written as soon as it is made.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use rescind_core::dialect::{CallFrame, Dialect, HandshakePart, Refusal, ReplyTo};
use rescind_core::{
    AfterCancel, AnswerBody, AnswerFault, AnswerKind, BadMessage, CallNumber, CallRefused, CallSpec,
    CancelResult, Cause, CauseKind, DisconnectPolicy, ErrorCode, ErrorObject, ExchangeId, HandlerResult,
    InboundKey, InboundRequest, Incoming, IncomingRequest, Origin, OutboundKey, Output, Reply, ReplyBody,
    RequestId, Session, SessionConfig, Settlement, Stats, Work,
};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::handler::{Handler, Job, Task};
use crate::action;
use crate::action::Sessions;
use crate::dialects::{DialectFacts, Envelope};
use crate::options::{LocalCancel, Options};
use crate::runner::{Ended, Seen, SubjectError};
use crate::vector::{AfterCancelStep, CallStep, CancelWord, OutcomeWord};

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) session: Session,
    pub(super) dialect: Dialect,
    pub(super) facts: &'static DialectFacts,
    pub(super) handles_cancels: bool,
    pub(super) declares_tasks: bool,
    pub(super) drain: std::time::Duration,
    pub(super) local_cancel: Option<LocalCancel>,
    /// Requests that have a slot and are not started yet.
    pub(super) waiting: BTreeMap<InboundKey, Job>,
    pub(super) handlers: BTreeMap<InboundKey, Handler>,
    /// Keys by the id in the frame, for calls that are children.
    pub(super) ids: BTreeMap<RequestId, InboundKey>,
    calls: BTreeMap<OutboundKey, OwnCall>,
    /// Calls whose frames are not written yet, in order.
    staged: VecDeque<OutboundKey>,
    /// The content of the answer that is being read.
    answer: Option<OwnedAnswer>,
    pub(super) outcomes: BTreeMap<String, Ended>,
    pub(super) out: VecDeque<String>,
    pub(super) end: End,
    pub(super) sessions: Sessions,
    pub(super) stats_served: u64,
    pub(super) all_stats: Vec<(Stats, u64)>,
}

/// Whether the connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Open,
    Closed,
}

impl Connection {
    /// Creates the connection with this number. The fixture's first connection is number 1.
    pub(super) fn new(
        number: usize,
        facts: &'static DialectFacts,
        config: SessionConfig,
        options: &Options,
    ) -> Self {
        Self {
            facts,
            dialect: config.dialect.clone(),
            handles_cancels: config.handles_cancels,
            // The machine alone has no tasks; it declares them where a vector is about that.
            declares_tasks: options.declare_tasks == Some(true),
            drain: config.limits.drain_timeout,
            session: Session::new(config),
            local_cancel: options.local_cancel.clone(),
            waiting: BTreeMap::new(),
            handlers: BTreeMap::new(),
            ids: BTreeMap::new(),
            calls: BTreeMap::new(),
            staged: VecDeque::new(),
            answer: None,
            outcomes: BTreeMap::new(),
            out: VecDeque::new(),
            end: End::Open,
            sessions: Sessions::of(number),
            stats_served: 0,
            all_stats: Vec::new(),
        }
    }

    /// Returns the next frame or event of this side, if there is one.
    pub(super) fn pop(&mut self) -> Option<Seen> {
        match (self.out.pop_front(), self.end) {
            (Some(frame), _) => Some(Seen::Frame(frame)),
            (None, End::Closed) => Some(Seen::Closed(None)),
            (None, End::Open) => None,
        }
    }

    /// Returns the counters, and how many of the counted handlers served `test/stats`.
    pub(super) fn own_stats(&self) -> (Stats, u64) {
        (self.session.stats(), self.stats_served)
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let handlers = self.handlers.values().filter_map(Handler::due);
        handlers.chain(self.session.next_timeout()).min()
    }

    pub(super) fn time_passed(&mut self, now: Instant) {
        if self.session.next_timeout().is_some_and(|due| due <= now) {
            self.session.handle_timeout(now);
            self.pump(now);
        }
        let due: Vec<_> = self.handlers.iter().filter(|(_, handler)| handler.is_due(now)).collect();
        for key in due.into_iter().map(|(key, _)| *key).collect::<Vec<_>>() {
            self.handler_due(now, key);
        }
    }

    pub(super) fn half_close(&mut self, now: Instant) {
        self.session.recv_half_close(now);
        self.pump(now);
    }

    pub(super) fn lose(&mut self, now: Instant, lost: DisconnectPolicy) {
        self.end = End::Closed;
        self.session.recv_lost(now, lost);
        self.pump(now);
    }

    pub(super) fn shutdown(&mut self, now: Instant) {
        self.session.local_shutdown(now, self.drain);
        self.pump(now);
    }

    pub(super) fn write(&mut self, frame: &[u8]) {
        if self.end == End::Open {
            self.out.push_back(String::from_utf8_lossy(frame).into_owned());
        }
    }
}

/// The content of an answer, kept until the session has settled its call.
#[derive(Clone, Debug)]
enum OwnedAnswer {
    Value(Value),
    Cancelled,
    Error(ErrorObject),
    Unreadable,
}

impl Connection {
    pub(super) fn recv(&mut self, now: Instant, frame: &[u8]) {
        if self.end == End::Closed {
            return;
        }
        let dialect = self.dialect.clone();
        match dialect.codec().decode(frame) {
            Incoming::Bad(why) => self.recv_bad(now, frame, why),
            message => self.recv_message(now, message),
        }
        self.pump(now);
    }

    fn recv_message(&mut self, now: Instant, message: Incoming<'_>) {
        match message {
            Incoming::Request(request) => self.recv_request(now, &request),
            Incoming::Notification { method, params } => self.recv_notification(now, &method, params),
            Incoming::Answer { call, body, .. } => self.recv_answer(now, call, body),
            Incoming::Cancel(cancel) => {
                let reason = cancel.reason.as_deref();
                self.session.recv_cancel(now, cancel.key.ok(), reason, cancel.ack, &Origin::STREAM);
            }
            Incoming::Ack { cancel, cancelled, .. } => self.session.recv_ack(now, cancel, cancelled),
            Incoming::Batch(members) if self.session.allows_batches() => {
                let dialect = self.dialect.clone();
                for member in members {
                    self.recv_message(now, dialect.codec().decode(member.get().as_bytes()));
                    self.pump(now);
                }
            }
            // Where there are no batches, the answers in one are taken.
            Incoming::Batch(members) => {
                let dialect = self.dialect.clone();
                let mut is_refused = false;
                for member in members {
                    match dialect.codec().decode(member.get().as_bytes()) {
                        Incoming::Answer { call, body, .. } => self.recv_answer(now, call, body),
                        _ => is_refused = true,
                    }
                }
                if is_refused {
                    self.session.recv_bad(now, BadMessage::BatchNotAllowed, ExchangeId::NONE);
                }
            }
            Incoming::PeerError(error) => {
                if let Some(call) = self.session.only_awaited() {
                    self.recv_answer(now, Some(call), AnswerBody::Error(error));
                }
            }
            Incoming::BadRequest { id, tag, why } => {
                self.session.recv_bad_request(id, tag, why, &Origin::STREAM);
            }
            Incoming::Bad(why) => self.session.recv_bad(now, why, ExchangeId::NONE),
            // This model ignores shapes that it does not know.
            _ => {}
        }
    }

    fn recv_answer(&mut self, now: Instant, call: Option<CallNumber>, body: AnswerBody<'_>) {
        let (kind, answer) = owned(body);
        self.answer = Some(answer);
        let _ = self.session.recv_answer(now, call, kind);
        self.pump(now);
        self.answer = None;
    }

    /// Receives a frame that is not a message. If it names a call that waits for its answer, the call ends.
    fn recv_bad(&mut self, now: Instant, frame: &[u8], why: BadMessage) {
        let dialect = self.dialect.clone();
        let answer = match why {
            BadMessage::NoId => Some((None, AnswerFault::new("it has no id"))),
            _ => dialect.codec().unreadable_answer(frame, why),
        };
        let ended = answer.and_then(|(named, fault)| {
            let call = named.or_else(|| self.session.only_awaited())?;
            self.session.awaits_answer(call).then_some((call, fault))
        });
        match ended {
            Some((call, fault)) => self.recv_answer(now, Some(call), AnswerBody::Malformed(fault)),
            None => self.session.recv_bad(now, why, ExchangeId::NONE),
        }
    }

    fn recv_notification(&mut self, now: Instant, method: &str, params: Option<&RawValue>) {
        if !self.session.hears_notification(method) {
            return;
        }
        if method == "session/cancel" {
            self.session_cancelled(now, &value_of(params));
        }
        if let Some(cancelled) = self.dialect.codec().cancelled_token(method, params) {
            let mut token = Vec::new();
            cancelled.write_json(&mut token);
            let token = serde_json::from_slice::<Value>(&token).ok();
            let reports =
                self.handlers.iter().find(|(_, handler)| handler.ticks > 0 && handler.job.token == token);
            if let Some((&key, _)) = reports {
                self.session.recv_cancel_by_token(now, key, &Origin::STREAM);
            }
        }
        self.session.recv_notification(now, method);
    }

    fn recv_request(&mut self, now: Instant, request: &IncomingRequest<'_>) {
        let params = value_of(request.params);
        let job = Job::read(&request.method, &params, token(request));
        let job = job.map(|job| match self.check(&request.method, &params) {
            Ok(()) => job,
            Err(why) => job.refused(why),
        });
        let rules = self.dialect.rules();
        let shuts_down = rules.lifecycle.is_some_and(|lifecycle| lifecycle.shutdown == request.method);
        let job = job.or_else(|| shuts_down.then(|| Job::plain(&request.method, Task::Answer(Value::Null))));
        let is_handshake = rules.handshake == Some(&*request.method);
        let reserved = rules.reserved_prefix.is_some_and(|prefix| request.method.starts_with(prefix));
        if job.is_none() && !is_handshake && !reserved {
            let to = ReplyTo { id: &request.id, tag: request.tag, server_cancellable: false };
            let mut frame = Vec::new();
            if self.dialect.codec().encode_refusal(rules, &mut frame, Some(&to), Refusal::MethodNotFound) {
                self.write(&frame);
            }
            return;
        }
        let arrival = InboundRequest {
            cancel_key: request.cancel_key.clone(),
            exempt: request.exempt,
            tag: request.tag,
            work: job.as_ref().map_or(Work::Task, Job::work),
            ..InboundRequest::new(request.id.clone(), &request.method)
        };
        if let Some(key) = self.session.recv_request(now, arrival) {
            if let (true, Some(params)) = (is_handshake, request.params) {
                let said = self.dialect.codec().read_handshake(HandshakePart::Params, params);
                self.session.handshake(HandshakePart::Params, &said);
            }
            self.ids.insert(request.id.clone(), key);
            self.waiting.insert(key, job.unwrap_or_else(|| Job::handshake(&params, self.declares_tasks)));
        }
    }
}

impl Connection {
    /// Checks what the fixture requires of a request's params, independent of the method.
    fn check(&self, method: &str, params: &Value) -> Result<(), ErrorObject> {
        match (self.facts.envelope, method) {
            (Envelope::JsonRpcWithMeta, _) => action::check_meta(params),
            (_, "session/prompt") => self.sessions.check(params).map(drop),
            _ => Ok(()),
        }
    }
}

fn token(request: &IncomingRequest<'_>) -> Option<Value> {
    request.usable_token().map(|token| value_of(Some(token)))
}

fn value_of(raw: Option<&RawValue>) -> Value {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
}

fn owned(body: AnswerBody<'_>) -> (AnswerKind, OwnedAnswer) {
    match body {
        AnswerBody::Value(value) => (AnswerKind::Value, OwnedAnswer::Value(value_of(Some(value)))),
        AnswerBody::Cancelled => (AnswerKind::Cancelled, OwnedAnswer::Cancelled),
        AnswerBody::Error(error) => (AnswerKind::Error, OwnedAnswer::Error(error)),
        // Malformed, or a shape that this model does not know.
        _ => (AnswerKind::Error, OwnedAnswer::Unreadable),
    }
}

impl Connection {
    /// Executes the session's outputs and writes what is staged.
    pub(super) fn pump(&mut self, now: Instant) {
        loop {
            while self.session.has_work() {
                self.session.advance(now);
            }
            if let Some(output) = self.session.poll_output() {
                self.carry_out(now, output);
                continue;
            }
            let Some(call) = self.staged.pop_front() else { return };
            self.write_call(now, call);
        }
    }

    fn write_call(&mut self, now: Instant, key: OutboundKey) {
        let Some(call) = self.calls.get_mut(&key) else { return };
        let frame = std::mem::take(&mut call.frame);
        let params = call.params.take().filter(|_| call.is_handshake);
        self.write(&frame);
        if let Some(params) = params {
            let said = self.dialect.codec().read_handshake(HandshakePart::Params, &params);
            self.session.handshake(HandshakePart::Params, &said);
        }
        self.session.local_written(now, key);
    }

    fn carry_out(&mut self, now: Instant, output: Output) {
        let dialect = self.dialect.clone();
        let (rules, codec) = (dialect.rules(), dialect.codec());
        let mut frame = Vec::new();
        match output {
            Output::Start(key) => self.start_handler(now, key),
            Output::Signal { key, .. } => self.signal(now, key),
            Output::Abort(key) => self.abort(now, key),
            Output::Reply(reply) => self.reply(&reply),
            Output::Released(key) => {
                self.waiting.remove(&key);
                self.ids.retain(|_, of| *of != key);
            }
            Output::Refuse { to, why, .. } => {
                let to = to.as_ref().map(|(id, tag)| ReplyTo { id, tag: *tag, server_cancellable: false });
                if codec.encode_refusal(rules, &mut frame, to.as_ref(), why) {
                    self.write(&frame);
                }
            }
            Output::RefuseCancelled { id, tag, server_cancellable, graceful, cause, .. } => {
                let to = ReplyTo { id: &id, tag, server_cancellable };
                match graceful {
                    Some(result) => codec.encode_graceful(rules, &mut frame, &to, result),
                    None => codec.encode_cancelled(rules, &mut frame, &to, &cause),
                }
                self.write(&frame);
            }
            Output::Ack { ack, key, status, .. }
                if codec.encode_ack(rules, &mut frame, &ack, key.as_ref(), status) =>
            {
                self.write(&frame);
            }
            Output::SendCancel { call, number, cancel, cause } if self.session.wants_cancel(call) => {
                codec.encode_cancel(rules, &mut frame, number, cancel, SEED, cause.reason());
                self.write(&frame);
                self.session.local_cancel_written(now, call);
            }
            Output::TakeBack(call) => self.staged.retain(|staged| *staged != call),
            Output::Acked { call, cancelled } => {
                if let Some(call) = self.calls.get_mut(&call) {
                    call.acked = Some(cancelled);
                }
            }
            Output::Settle { call, settlement } => self.settled(now, call, &settlement),
            Output::Close(_) => {
                self.end = End::Closed;
                self.session.recv_lost(now, DisconnectPolicy::CancelNow);
            }
            // Frames are written immediately, so the outputs for waiting frames have no effect. There are no
            // exchanges and no calls on other connections.
            _ => {}
        }
    }

    fn reply(&mut self, reply: &Reply) {
        let dialect = self.dialect.clone();
        let (rules, codec) = (dialect.rules(), dialect.codec());
        let to = ReplyTo { id: &reply.id, tag: reply.tag, server_cancellable: reply.server_cancellable };
        let mut frame = Vec::new();
        match &reply.body {
            ReplyBody::Handler | ReplyBody::TaskHandle => {
                let handler = self.handlers.get_mut(&reply.key);
                let is_handshake =
                    handler.as_ref().is_some_and(|handler| rules.handshake == Some(&*handler.job.method));
                match handler.and_then(|handler| handler.end.take()) {
                    Some((HandlerResult::Value, value)) => {
                        self.reply_value(&mut frame, &to, &value, is_handshake);
                    }
                    Some((HandlerResult::Error, refused @ Value::Object(_))) => {
                        codec.encode_error(rules, &mut frame, &to, &error_of(&refused));
                    }
                    // The machine answers a panic. A stop is a cancelled reply.
                    Some((HandlerResult::Error | HandlerResult::Stopped | HandlerResult::Panicked, _))
                    | None => {
                        let error =
                            ErrorObject::new(ErrorCode(1), "The fixture failed because of its cancel");
                        codec.encode_error(rules, &mut frame, &to, &error);
                    }
                }
            }
            ReplyBody::Cancelled(cause) => codec.encode_cancelled(rules, &mut frame, &to, cause),
            ReplyBody::Graceful(result) => {
                if let Some(value) = serde_json::from_str(result).ok().as_ref().and_then(raw) {
                    codec.encode_value(rules, &mut frame, &to, &value);
                }
            }
            ReplyBody::Refused(why) => {
                if !codec.encode_refusal(rules, &mut frame, Some(&to), *why) {
                    return;
                }
            }
        }
        self.write(&frame);
    }

    fn reply_value(&mut self, frame: &mut Vec<u8>, to: &ReplyTo<'_>, value: &Value, is_handshake: bool) {
        let dialect = self.dialect.clone();
        let (rules, codec) = (dialect.rules(), dialect.codec());
        let Some(mut value) = raw(value) else { return };
        if is_handshake {
            let declared = codec.declare(HandshakePart::Result, &value, self.handles_cancels);
            value = declared.unwrap_or(value);
            let said = codec.read_handshake(HandshakePart::Result, &value);
            self.session.handshake(HandshakePart::Result, &said);
        }
        codec.encode_value(rules, frame, to, &value);
    }

    /// Sends a notification of a handler.
    pub(super) fn notify(&mut self, method: &str, params: &Value) {
        let dialect = self.dialect.clone();
        let mut frame = Vec::new();
        dialect.codec().encode_notification(dialect.rules(), &mut frame, method, raw(params).as_deref());
        self.write(&frame);
    }
}

/// The error that a request was refused with, from its handler's value.
fn error_of(refused: &Value) -> ErrorObject {
    let code = refused.get("code").and_then(Value::as_i64).map_or(ErrorCode::INTERNAL_ERROR, ErrorCode);
    let message = refused.get("message").and_then(Value::as_str).unwrap_or_default();
    let error = ErrorObject::new(code, message);
    match refused.get("data").filter(|data| !data.is_null()) {
        Some(data) => error.with_data(data),
        None => error,
    }
}

/// The data of a call until it is settled.
#[derive(Debug)]
struct OwnCall {
    /// The vector's name for it. Empty: a handler made it.
    pub(super) name: String,
    pub(super) frame: Vec<u8>,
    is_handshake: bool,
    pub(super) acked: Option<bool>,
    pub(super) params: Option<Box<RawValue>>,
}

/// The seed of a connection's call keys. It is fixed, so that every run is the same.
const SEED: u128 = 0x5eed;

impl Connection {
    pub(super) fn call(&mut self, now: Instant, call: &CallStep) -> Result<(), SubjectError> {
        if call.token_cancelled {
            // A call that is cancelled before it starts never reaches the machine.
            let cause = Cause::new(CauseKind::Caller);
            self.outcomes.insert(call.name.clone(), cancelled(&cause, true));
            return Ok(());
        }
        let mut spec = CallSpec::new(&call.method);
        spec.deadline = call.timeout_ms.map(|ms| now + Duration::from_millis(ms));
        spec.after_cancel = call.after_cancel.map(|after| match after {
            AfterCancelStep::Wait => AfterCancel::WaitForPeer,
            AfterCancelStep::ReturnNow => AfterCancel::ReturnNow,
        });
        spec.parent = match &call.child_of {
            None => None,
            Some(id) => {
                let id = RequestId::from_json(&id.to_string())
                    .map_err(|error| SubjectError::Failed(error.to_string()))?;
                let key = self.ids.get(&id).copied();
                Some(key.ok_or_else(|| SubjectError::Failed(format!("no request {id} is served")))?)
            }
        };
        if let Some(key) = self.stage(now, &spec, call).filter(|_| call.detach) {
            self.session.local_detach(key);
        }
        self.pump(now);
        Ok(())
    }

    /// Passes a call to the session and queues its frame.
    pub(super) fn stage(
        &mut self,
        now: Instant,
        spec: &CallSpec<'_>,
        call: &CallStep,
    ) -> Option<OutboundKey> {
        let (key, number) = match self.session.local_call(now, spec) {
            Ok(staged) => staged,
            Err(refused) => {
                self.refused(&call.name, &refused);
                return None;
            }
        };
        let dialect = self.dialect.clone();
        let is_handshake = dialect.rules().handshake == Some(spec.method);
        let mut params = call.params.as_ref().and_then(|params| to_raw_value(params).ok());
        if let (true, Some(own)) = (is_handshake, &params) {
            params = dialect.codec().declare(HandshakePart::Params, own, self.handles_cancels).or(params);
        }
        let mut frame = Vec::new();
        let mut shape = CallFrame::new(number, SEED, spec.method, params.as_deref());
        shape.timeout = call.timeout_ms.map(Duration::from_millis);
        dialect.codec().encode_request(dialect.rules(), &mut frame, &shape);
        let name = call.name.clone();
        self.calls.insert(key, OwnCall { name, frame, is_handshake, acked: None, params });
        self.staged.push_back(key);
        Some(key)
    }

    fn refused(&mut self, name: &str, refused: &CallRefused) {
        let ended = match refused {
            CallRefused::AlreadyCancelled(cause) => cancelled(cause, true),
            CallRefused::Disconnected => {
                Ended { may_have_run: Some(false), ..Ended::new(OutcomeWord::Disconnected) }
            }
            CallRefused::TooMany => Ended::new(OutcomeWord::Failed),
        };
        self.outcomes.insert(name.to_owned(), ended);
    }

    pub(super) fn cancel_call(&mut self, now: Instant, name: &str, reason: Option<&str>) -> CancelWord {
        let cause = Cause::new(CauseKind::Caller);
        let cause = reason.map_or(cause.clone(), |reason| cause.with_reason(reason));
        let Some(key) = self.named(name) else { return CancelWord::AlreadySettled };
        let result = self.session.local_cancel_call(now, key, cause, None);
        self.pump(now);
        match result {
            CancelResult::Sent => CancelWord::Sent,
            CancelResult::TakenBack => CancelWord::TakenBack,
            CancelResult::NotSupported => CancelWord::NotSupported,
            CancelResult::AlreadySettled => CancelWord::AlreadySettled,
        }
    }

    pub(super) fn drop_call(&mut self, now: Instant, name: &str) {
        if let Some(key) = self.named(name) {
            let cause = Cause::new(CauseKind::Dropped);
            let _ = self.session.local_cancel_call(now, key, cause, Some(AfterCancel::ReturnNow));
            self.pump(now);
        }
    }

    pub(super) fn take_outcome(&mut self, name: &str) -> Option<Ended> {
        self.outcomes.remove(name)
    }

    fn named(&self, name: &str) -> Option<OutboundKey> {
        self.calls.iter().find(|(_, call)| call.name == name).map(|(key, _)| *key)
    }

    pub(super) fn settled(&mut self, now: Instant, key: OutboundKey, settlement: &Settlement) {
        let Some(call) = self.calls.remove(&key) else { return };
        self.staged.retain(|staged| *staged != key);
        let mut ended = match settlement {
            Settlement::Answered { cancelled } => answered(self.answer.take(), cancelled.is_some()),
            Settlement::Cancelled { cause, confirmed } => cancelled(cause, *confirmed),
            Settlement::Disconnected { may_have_run } => {
                Ended { may_have_run: Some(*may_have_run), ..Ended::new(OutcomeWord::Disconnected) }
            }
        };
        ended.acked = call.acked;
        if let (true, Some(result)) = (call.is_handshake, &ended.value) {
            if let Ok(raw) = to_raw_value(result) {
                let said = self.dialect.codec().read_handshake(HandshakePart::Result, &raw);
                self.session.handshake(HandshakePart::Result, &said);
            }
        }
        if call.name.is_empty() {
            self.child_ended(now, key);
        } else {
            self.outcomes.insert(call.name, ended);
        }
    }
}

fn answered(answer: Option<OwnedAnswer>, asked: bool) -> Ended {
    match answer {
        Some(OwnedAnswer::Value(value)) => {
            let word = if asked { OutcomeWord::CompletedAfterCancel } else { OutcomeWord::Completed };
            Ended { value: Some(value), ..Ended::new(word) }
        }
        Some(OwnedAnswer::Error(error)) => {
            Ended { code: Some(error.code.0), ..Ended::new(OutcomeWord::Failed) }
        }
        Some(OwnedAnswer::Unreadable) => Ended::new(OutcomeWord::Unreadable),
        Some(OwnedAnswer::Cancelled) | None => Ended::new(OutcomeWord::Cancelled),
    }
}

fn cancelled(cause: &Cause, confirmed: bool) -> Ended {
    let cause = format!("{:?}", cause.kind()).to_ascii_lowercase();
    Ended { cause: Some(cause), confirmed: Some(confirmed), ..Ended::new(OutcomeWord::Cancelled) }
}

/// The value as JSON text.
pub(super) fn raw(value: &Value) -> Option<Box<RawValue>> {
    to_raw_value(value).ok()
}
