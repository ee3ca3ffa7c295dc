//! Incoming frames: the codec reads them, and the session receives them as inputs.

use std::time::Instant;

use rescind_core::dialect::{HandshakePart, Refusal, ReplyTo};
use rescind_core::{
    AnswerBody, AnswerFault, AnswerKind, BadMessage, CallNumber, ErrorObject, ExchangeId, InboundRequest,
    Incoming, IncomingRequest, Origin, Work,
};
use serde_json::Value;
use serde_json::value::RawValue;

use super::connection::{Connection, End};
use super::handler::{Job, Task};
use crate::meta;

/// The content of an answer, kept until the session has settled its call.
#[derive(Clone, Debug)]
pub(super) enum OwnedAnswer {
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
        let named = match why {
            BadMessage::NoId => {
                self.session.only_awaited().map(|call| (call, AnswerFault::new("it has no id")))
            }
            _ => dialect.codec().unreadable_answer(frame, why),
        };
        match named.filter(|(call, _)| self.session.awaits_answer(*call)) {
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
        match (self.dialect.name(), method) {
            ("mcp-2026", _) => meta::check(params),
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
