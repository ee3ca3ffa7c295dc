//! Receives what is not exactly a message: answers that cannot be read, batches where there are none, several messages of a line,
//! messages that stop, and noise.

use std::sync::Arc;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::broken_json;
use crate::dialect::{Codec, Role};
use crate::driver::connection::ConnectionTask;
use crate::framing::{BadFrame, ContentLength, Framing, Newline};
use crate::id::{CallNumber, ExchangeId};
use crate::members::only_member;
use crate::message::{AnswerBody, AnswerFault, BadMessage, Deviation, ErrorCode, Incoming};
use crate::transport::{Inbound, TransportError};

impl ConnectionTask {
    /// Ends the calls that are answered by a batch inside of a batch. `false`: it is none, or has something else too.
    pub(super) fn recv_nested_batch(&self, inbound: &Inbound, members: &[&RawValue]) -> bool {
        let codec = self.connection.dialect.codec();
        let [inner] = members else { return false };
        let Incoming::Batch(inner) = codec.decode(inner.get().as_bytes()) else { return false };
        let answered = inner.iter().map(|member| match codec.decode(member.get().as_bytes()) {
            Incoming::Answer { call, .. } => call,
            _ => None,
        });
        let Some(answered) = answered.collect::<Option<Vec<_>>>() else { return false };
        self.connection.deviates(Deviation::InvalidAnswer, &inbound.body);
        for call in answered {
            let fault = AnswerFault::new("it is in an array inside of another");
            self.pass_answer(&inbound.body, Some(call), AnswerBody::Malformed(fault));
        }
        self.accept(inbound.exchange);
        true
    }

    /// Receives the answers of a batch that is not JSON or has too many members, each as if it had come alone. `false`: no call
    /// waits for one of them.
    ///
    /// Where the structure of a member is broken, text inside of it may look like further members: an answer after it
    /// ends its call with an error.
    pub(super) fn recv_unreadable_batch(&mut self, inbound: &Inbound, why: BadMessage) -> bool {
        let is_batch = matches!(why, BadMessage::NotJson | BadMessage::NotUtf8 | BadMessage::BatchNotAllowed);
        if !is_batch {
            return false;
        }
        let connection = Arc::clone(&self.connection);
        let codec = connection.dialect.codec();
        let (mut refused, mut taken, mut ended, mut is_intact) = (false, false, false, true);
        for member in Newline::objects_of_array(&inbound.body) {
            let part = inbound.member(inbound.body.slice_ref(member));
            match codec.decode(member) {
                Incoming::Answer { call: Some(call), .. }
                    if connection.lock().session.awaits_answer(call) =>
                {
                    if is_intact {
                        taken = true;
                        self.recv(&part);
                    } else {
                        ended = true;
                        let fault = AnswerFault::new("it is in an array that is not JSON");
                        connection.deviates(Deviation::InvalidAnswer, &part.body);
                        self.pass_answer(&part.body, Some(call), AnswerBody::Malformed(fault));
                        self.accept(inbound.exchange);
                    }
                }
                Incoming::Answer { .. } => connection.deviates(Deviation::UnknownId, &part.body),
                Incoming::PeerError(_) if is_intact => {
                    taken = true;
                    self.recv(&part);
                }
                Incoming::Bad(why) => {
                    is_intact &= broken_json::is_intact(member);
                    if self.recv_unreadable(&part, why) {
                        ended = true;
                    } else {
                        refused = true;
                    }
                }
                _ => refused = true,
            }
        }
        if taken {
            connection.deviates(Deviation::BatchOfAnswers, &inbound.body);
        }
        if refused && (taken || ended) {
            self.recv_no_message(inbound, why);
        }
        taken || ended
    }

    /// Receives the messages of a line or of a body that has other output beside them, or several. `false`: it has none.
    pub(super) fn recv_messages_of_line(&mut self, inbound: &Inbound) -> bool {
        let mut messages = Vec::new();
        if self.connection.framing == Some(Framing::ContentLength) {
            messages = ContentLength::parts_of(&inbound.body);
        }
        if messages.is_empty() {
            messages = Newline::messages_of(&inbound.body);
        }
        if messages.is_empty() {
            return false;
        }
        if !self.connection.traits.batches {
            self.recv_shared_body(inbound, &messages);
            return true;
        }
        self.connection.deviates(Deviation::SharedLine, &inbound.body);
        // Before those of a later line, and one in each turn, as the members of a batch.
        for message in messages.into_iter().rev() {
            self.pending.push_front(inbound.member(inbound.body.slice_ref(message)));
        }
        true
    }

    /// Receives the messages of a body whose response can answer one of them only. If all are answers, each is taken. Otherwise
    /// the body is refused before any other message of it is taken.
    pub(super) fn recv_shared_body(&mut self, inbound: &Inbound, messages: &[&[u8]]) {
        let codec = self.connection.dialect.codec();
        let answers: Vec<&[u8]> = messages
            .iter()
            .copied()
            .filter(|message| match codec.decode(message) {
                Incoming::Answer { .. } | Incoming::PeerError(_) => true,
                Incoming::Bad(why) => codec.unreadable_answer(message, why).is_some(),
                Incoming::Request(_)
                | Incoming::Notification { .. }
                | Incoming::Cancel(_)
                | Incoming::Ack { .. }
                | Incoming::Batch(_)
                | Incoming::BadRequest { .. } => false,
            })
            .collect();
        if answers.len() == messages.len() {
            self.connection.deviates(Deviation::SharedLine, &inbound.body);
        } else {
            self.connection.deviates(Deviation::Dropped(BadMessage::SharedBody), &inbound.body);
            self.pass_bad(BadMessage::SharedBody, inbound.exchange);
        }
        // Otherwise the calls that they answer would hang.
        for answer in answers {
            self.recv(&inbound.member(inbound.body.slice_ref(answer)));
        }
    }

    /// Ends the call that a frame names which cannot be read, or the only call if it is an answer that names none. `false`: none
    /// of them waits for its answer.
    pub(super) fn recv_unreadable(&self, inbound: &Inbound, why: BadMessage) -> bool {
        let connection = &self.connection;
        let codec = connection.dialect.codec();
        let answer = match why {
            BadMessage::NoId => Some((None, AnswerFault::of(&inbound.body, why))),
            _ => codec.unreadable_answer(&inbound.body, why),
        };
        let has_length = connection.framing == Some(Framing::ContentLength);
        // With lines, it may be printed.
        let is_body = connection.framing != Some(Framing::Newline) && !matches!(why, BadMessage::Frame(_));
        let answer = match &answer {
            None | Some((None, _)) if is_body => answer_inside(codec, &inbound.body)
                .or(answer)
                .or_else(|| self.answer_of_nothing_else(inbound, why)),
            None | Some(_) => answer,
        };
        let Some((named, fault)) = answer else { return false };
        let call = named.or_else(|| self.only_call(inbound.exchange));
        let Some(call) = call.filter(|call| connection.lock().session.awaits_answer(*call)) else {
            return false;
        };
        let fault = if is_body && has_length { fault.with_length() } else { fault };
        self.connection.deviates(Deviation::InvalidAnswer, &inbound.body);
        self.pass_answer(&inbound.body, Some(call), AnswerBody::Malformed(fault));
        self.accept(inbound.exchange);
        true
    }

    /// Ends the call of a whole answer that is behind half of another message. It may be a value of that message, whose end never
    /// came, so it is not taken as it is. `false`: there is none.
    pub(super) fn recv_behind_half(&self, inbound: &Inbound, why: BadMessage) -> bool {
        if why != BadMessage::NotJson {
            return false;
        }
        let Some(message) = Newline::message_behind_half(&inbound.body) else { return false };
        let Incoming::Answer { call: Some(call), .. } = self.connection.dialect.codec().decode(message)
        else {
            return false;
        };
        let awaits = self.connection.lock().session.awaits_answer(call);
        if awaits {
            let fault = AnswerFault::new("it is behind half of another message");
            self.connection.deviates(Deviation::InvalidAnswer, &inbound.body);
            self.pass_answer(&inbound.body, Some(call), AnswerBody::Malformed(fault));
        }
        awaits
    }

    /// Ends the call of an answer whose beginning is on a line before, because another line came between: the call that this half
    /// names, or the only one that waits. `false`: it is not the second half of an answer.
    pub(super) fn recv_second_half(&self, inbound: &Inbound, why: BadMessage) -> bool {
        let text = inbound.body.trim_ascii();
        let is_half = why == BadMessage::NotJson
            && self.connection.framing == Some(Framing::Newline)
            && text.last() == Some(&b'}')
            && !matches!(text.first(), Some(b'{' | b'['));
        let has = |name: &str| memchr::memmem::find(text, name.as_bytes()).is_some();
        if !is_half || !(has("\"result\"") || has("\"error\"")) {
            return false;
        }
        let name = text.strip_prefix(b"\"").unwrap_or(text);
        let begins_answer = name.starts_with(b"result\"") || name.starts_with(b"error\"");
        // The line may begin in a member's name.
        let answer = [&b"{"[..], b"{\""].into_iter().find_map(|beginning| {
            match self.connection.dialect.codec().decode(&[beginning, text].concat()) {
                Incoming::Answer { call, .. } => Some(call),
                Incoming::PeerError(_) | Incoming::Bad(BadMessage::NoId) => Some(None),
                Incoming::Bad(BadMessage::WrongVersion) if begins_answer => Some(None),
                _ => None,
            }
        });
        let Some(named) = answer else { return false };
        let call = named.or_else(|| self.only_call(inbound.exchange));
        let Some(call) = call.filter(|call| self.connection.lock().session.awaits_answer(*call)) else {
            return false;
        };
        let fault = AnswerFault::new("its beginning is on another line");
        self.connection.deviates(Deviation::InvalidAnswer, &inbound.body);
        self.pass_answer(&inbound.body, Some(call), AnswerBody::Malformed(fault));
        true
    }

    /// Takes a whole body that is not JSON for an answer, if it can be neither a request nor a notification and names no id. A body
    /// of a call's exchange, or with a length, is meant as a message. Any other may be a sign of life or of a log, unless it has
    /// a member that an answer has.
    pub(super) fn answer_of_nothing_else(
        &self,
        inbound: &Inbound,
        why: BadMessage,
    ) -> Option<(Option<CallNumber>, AnswerFault)> {
        let body = &inbound.body;
        let is_broken = matches!(why, BadMessage::NotJson | BadMessage::NotUtf8);
        if !is_broken || self.connection.role != Role::Client || body.trim_ascii().is_empty() {
            return None;
        }
        let has = |name: &str| memchr::memmem::find(body, name.as_bytes()).is_some();
        let begins_as_one = matches!(body.trim_ascii_start().first(), Some(b'{' | b'['));
        let has_member = ["jsonrpc", "\"result\"", "'result'", "\"error\"", "'error'"].into_iter().any(has);
        let is_meant = self.connection.framing == Some(Framing::ContentLength)
            || begins_as_one && (has_member || inbound.exchange.call().is_some());
        if !is_meant {
            return None;
        }
        let inside = body.trim_ascii_start().strip_prefix(b"{").unwrap_or_default().trim_ascii_start();
        let begins_answer = inside.starts_with(b"\"result\"") || inside.starts_with(b"\"error\"");
        // The method may be in the part that is cut off.
        let is_cut =
            !begins_answer && serde_json::from_slice::<IgnoredAny>(body).is_err_and(|error| error.is_eof());
        let names_something = has("method") || has("\"id\"") || has("'id'") || has("\\u");
        (!is_cut && !names_something).then(|| (None, AnswerFault::of(body, why)))
    }

    /// The call that is meant by a message without an id: the only one that waits for its answer on this exchange, and on
    /// what all calls of the connection share, the only one that waits at all. On [`ExchangeId::OF_NO_CALL`] there is none.
    pub(super) fn only_call(&self, exchange: ExchangeId) -> Option<CallNumber> {
        let state = self.connection.lock();
        match exchange.call() {
            Some(call) => state.session.awaits_answer(call).then_some(call),
            None => state.session.only_awaited(),
        }
    }

    /// Whether an error without an id is about a notification of this side and not about its only call: servers of MCP say of
    /// `notifications/initialized` that they do not know the method. Over HTTP the response shows which request it answers.
    pub(super) fn answers_notification(&self, exchange: ExchangeId, code: ErrorCode) -> bool {
        if code != ErrorCode::METHOD_NOT_FOUND || exchange.call().is_some() {
            return false;
        }
        let mut state = self.connection.lock();
        let left = state.notifications_written.checked_sub(1);
        state.notifications_written = left.unwrap_or_default();
        left.is_some()
    }

    /// Ends the call of an answer which has begun and does not go on: the call that it names, or the only one that waits. If the rest
    /// of the answer comes all the same, it is a late answer. While several calls wait, an answer without an id ends none of them: its
    /// id may come last. A request of the peer may have the id of a call, so what begins as a request ends none, and what has no id
    /// must have a result or an error.
    pub(super) fn recv_stalled(&self, head: &Bytes) {
        let connection = &self.connection;
        let has = |name: &str| memchr::memmem::find(head, name.as_bytes()).is_some();
        let has_answer = has("\"result\"") || has("\"error\"");
        if !has_answer && may_be_request(head) {
            return;
        }
        let answer = connection.dialect.codec().unreadable_answer(head, BadMessage::NotJson);
        let Some((named, fault)) = answer else { return };
        let only = || has_answer.then(|| self.only_call(ExchangeId::NONE)).flatten();
        let Some(call) = named.or_else(only) else { return };
        if connection.lock().session.awaits_answer(call) {
            connection.deviates(Deviation::InvalidAnswer, head);
            self.pass_answer(head, Some(call), AnswerBody::Malformed(fault.stalled()));
        }
    }

    /// Receives the beginning of input that is not a frame. A call that is named by a frame without an end learns why the
    /// input has ended.
    pub(super) fn recv_rejected(&mut self, inbound: &Inbound, why: BadFrame) {
        let message = BadMessage::Frame(why);
        if message.is_cut_off() || !self.recv_unreadable(inbound, message) {
            self.recv_no_message(inbound, message);
        } else if !why.is_recoverable() {
            // Its call has ended with an error, and no message can be found after it.
            self.connection.deviates(Deviation::Dropped(message), &inbound.body);
        }
    }

    /// Receives something that is not a message and names no call.
    ///
    /// A server may print other things beside its messages, and expects no answer to them. A client gets the errors of
    /// JSON-RPC.
    pub(super) fn recv_no_message(&mut self, inbound: &Inbound, why: BadMessage) {
        let is_printed = match why {
            BadMessage::NotJson | BadMessage::NotUtf8 => true,
            // A number or a text, or a line that is too long, if no message begins as it does.
            BadMessage::NotAnObject | BadMessage::Frame(BadFrame::TooLarge { .. }) => {
                let start = inbound.body.trim_ascii_start();
                !inbound.body.is_empty() && !matches!(start.first(), Some(b'{' | b'['))
            }
            _ => false,
        };
        if is_printed && self.connection.role == Role::Client && !inbound.exchange.is_peers() {
            self.connection.deviates(Deviation::Noise, &inbound.body);
        } else {
            self.connection.deviates(Deviation::Dropped(why), &inbound.body);
            self.pass_bad(why, inbound.exchange);
        }
    }

    /// Ends the call that is named by what its peer sent instead of an answer, or the only one that waits.
    pub(super) fn recv_unanswered(&self, sent: &Bytes, error: TransportError) {
        let connection = &self.connection;
        let codec = connection.dialect.codec();
        let named = match codec.decode(sent) {
            Incoming::Answer { call, .. } => call,
            Incoming::Bad(why) => codec.unreadable_answer(sent, why).and_then(|(call, _)| call),
            _ => None,
        };
        let named = named.filter(|call| connection.lock().session.awaits_answer(*call));
        match named.or_else(|| self.only_call(ExchangeId::NONE)) {
            Some(call) => {
                connection.deviates(Deviation::NoAnswer, error.source.to_string().as_bytes());
                self.fail_call(call, true, error);
            }
            None => connection.deviates(Deviation::Noise, sent),
        }
    }
}

/// The call that is named by an answer in a body that has something around it. In a body is a message and nothing else, so
/// it is not what a program printed about an answer.
fn answer_inside(codec: &dyn Codec, body: &[u8]) -> Option<(Option<CallNumber>, AnswerFault)> {
    let named = |message: &[u8]| match codec.decode(message) {
        Incoming::Answer { call: Some(call), .. } => Some((Some(call), None)),
        Incoming::Bad(why) => codec.unreadable_answer(message, why).map(|(call, fault)| (call, Some(fault))),
        _ => None,
    };
    if let Some(member) = std::str::from_utf8(body).ok().and_then(only_member) {
        let (call, fault) = named(member.get().as_bytes())?;
        return fault.is_none().then_some((call, AnswerFault::new("it is inside of another object")));
    }
    let object =
        Newline::beginning_with_object(body).filter(|object| object.len() < body.trim_ascii().len())?;
    let (call, _) = named(object)?;
    Some((call, AnswerFault::new("other output is in its body")))
}

/// Whether the beginning of a message has a method or params, or may have begun with the name of one of them.
fn may_be_request(head: &[u8]) -> bool {
    let last = head.rsplit(|byte| *byte == b'"').next().unwrap_or_default();
    [&b"method"[..], b"params"].into_iter().any(|name| {
        let begins = !last.is_empty() && name.starts_with(last);
        begins || memchr::memmem::find(head, name).is_some()
    })
}
