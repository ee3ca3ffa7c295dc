//! Receives frames.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::broken_json;
use crate::byte_budget::{ByteBudget, MEMORY};
use crate::clients::Client;
use crate::dialect::tasks::TaskOffer;
use crate::dialect::{Codec, HandshakePart, Role};
use crate::driver::admission::RequestClient;
use crate::driver::call_table::AnswerContent;
use crate::driver::connection::ConnectionTask;
use crate::driver::effects::Effects;
use crate::driver::json_text::{JsonText, part_of};
use crate::driver::notifications::queue::Notice;
use crate::driver::notifications::{Matcher, Notification, Readers};
use crate::driver::outbox::Control;
use crate::driver::requests::{Arrived, InboundSlot, RequestData};
use crate::driver::state::{
    Arriving, ConnectionInner, DriverState, Payload, Request, WaitingRequest, bytes_of_request,
};
use crate::failpoint::{self, Failpoint};
use crate::framing::{BadFrame, ContentLength, Framing, Newline};
use crate::id::{CallNumber, ClientNumber, ExchangeId, Scope};
use crate::machine::{AnswerKind, InboundRequest, Origin, Work};
use crate::members::only_member;
use crate::message::{
    AnswerBody, AnswerFault, BadMessage, Deviation, ErrorCode, ErrorObject, Incoming, IncomingCancel,
    IncomingRequest,
};
use crate::trace_context::TraceContext;
use crate::transport::{ExchangeEnd, Inbound, TransportEvent};

impl ConnectionTask {
    /// Receives one frame.
    pub(crate) fn recv(&mut self, inbound: &Inbound) {
        let connection = Arc::clone(&self.connection);
        match connection.dialect.codec().decode(&inbound.body) {
            Incoming::Request(request) => self.pass_request(inbound, request),
            Incoming::Notification { method, params } => {
                self.pass_notification(inbound, &method, params);
                self.accept(inbound.exchange);
            }
            Incoming::Answer { call, body, deviation } => {
                if let Some(deviation) = deviation.or(deviation_of(&body)) {
                    self.connection.deviates(deviation, &inbound.body);
                }
                self.pass_answer(&inbound.body, call, body);
                self.accept(inbound.exchange);
            }
            Incoming::Cancel(cancel) => self.pass_cancel(inbound, cancel),
            Incoming::Ack { cancel, cancelled, reason: _ } => {
                connection.step(|state, now, _| state.session.recv_ack(now, cancel, cancelled));
                self.accept(inbound.exchange);
            }
            Incoming::PeerError(error) => {
                let call = if self.answers_notification(inbound.exchange, error.code) {
                    None
                } else {
                    self.only_call(inbound.exchange)
                };
                let deviation = call.map_or(Deviation::Dropped(BadMessage::NoId), |_| Deviation::NoId);
                self.connection.deviates(deviation, &inbound.body);
                if call.is_some() {
                    self.pass_answer(&inbound.body, call, AnswerBody::Error(error));
                }
                self.accept(inbound.exchange);
            }
            Incoming::Batch(members) => self.recv_batch(inbound, &members),
            // A server prints objects with a method and an id too, and may wait for an answer with this id.
            Incoming::BadRequest { why: why @ BadMessage::WrongVersion, .. }
                if connection.role == Role::Client && !inbound.exchange.is_peers() =>
            {
                self.recv_no_message(inbound, why);
            }
            Incoming::BadRequest { id, tag, why } => {
                connection.deviates(Deviation::Dropped(why), &inbound.body);
                let origin = self.origin(inbound);
                connection.step(|state, _, _| state.session.recv_bad_request(id, tag, why, &origin));
            }
            Incoming::Bad(why) => {
                let took_messages = (why == BadMessage::NotJson && self.recv_messages_of_line(inbound))
                    || self.recv_unreadable_batch(inbound, why);
                if !took_messages {
                    let ended = self.recv_unreadable(inbound, why);
                    if !self.recv_behind_half(inbound, why) && !ended {
                        self.recv_no_message(inbound, why);
                    }
                }
            }
        }
    }

    /// Receives a batch. Where there are none, the answers in it are taken, and everything else is refused.
    fn recv_batch(&mut self, inbound: &Inbound, members: &[&RawValue]) {
        let connection = Arc::clone(&self.connection);
        let allowed = connection.traits.batches
            && self.pending.is_empty()
            && connection.lock().session.allows_batches();
        if self.recv_nested_batch(inbound, members) {
            return;
        }
        let (mut refused, mut taken) = (false, false);
        for member in members {
            let body = part_of(&inbound.body, member);
            // A batch cannot contain a batch.
            let is_batch = body.first() == Some(&b'[');
            if allowed && !is_batch {
                self.pending.push_back(inbound.member(body));
            } else if matches!(
                connection.dialect.codec().decode(&body),
                Incoming::Answer { .. } | Incoming::PeerError(_)
            ) {
                taken = true;
                self.recv(&inbound.member(body));
            } else {
                refused = true;
            }
        }
        if taken {
            self.connection.deviates(Deviation::BatchOfAnswers, &inbound.body);
        }
        if refused {
            self.connection.deviates(Deviation::Dropped(BadMessage::BatchNotAllowed), &inbound.body);
            self.pass_bad(BadMessage::BatchNotAllowed, inbound.exchange);
        }
    }

    /// Ends the calls that are answered by a batch inside of a batch. `false`: it is none, or has something else too.
    fn recv_nested_batch(&self, inbound: &Inbound, members: &[&RawValue]) -> bool {
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
    fn recv_unreadable_batch(&mut self, inbound: &Inbound, why: BadMessage) -> bool {
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
    fn recv_messages_of_line(&mut self, inbound: &Inbound) -> bool {
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
    fn recv_shared_body(&mut self, inbound: &Inbound, messages: &[&[u8]]) {
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
    fn recv_unreadable(&self, inbound: &Inbound, why: BadMessage) -> bool {
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
                .or_else(|| self.answer_of_nothing_else(&inbound.body, why)),
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
    fn recv_behind_half(&self, inbound: &Inbound, why: BadMessage) -> bool {
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

    /// Takes a whole body that is not JSON for an answer, if it can be neither a request nor a notification and names no id: a
    /// body is meant as a message, and is not what a program printed.
    fn answer_of_nothing_else(
        &self,
        body: &[u8],
        why: BadMessage,
    ) -> Option<(Option<CallNumber>, AnswerFault)> {
        let is_broken = matches!(why, BadMessage::NotJson | BadMessage::NotUtf8);
        if !is_broken || self.connection.role != Role::Client || body.trim_ascii().is_empty() {
            return None;
        }
        // A message of its own transport may be a sign of life.
        let is_length = self.connection.framing == Some(Framing::ContentLength);
        if !is_length && !matches!(body.trim_ascii_start().first(), Some(b'{' | b'[')) {
            return None;
        }
        // The method may be in the part that is cut off.
        let is_cut = serde_json::from_slice::<IgnoredAny>(body).is_err_and(|error| error.is_eof());
        let has = |name: &str| memchr::memmem::find(body, name.as_bytes()).is_some();
        let names_something = has("method") || has("\"id\"") || has("'id'") || has("\\u");
        (!is_cut && !names_something).then(|| (None, AnswerFault::of(body, why)))
    }

    /// The call that is meant by a message without an id: the only one that waits for its answer on this exchange, and on
    /// what all calls of the connection share, the only one that waits at all. On [`ExchangeId::OF_NO_CALL`] there is none.
    pub(crate) fn only_call(&self, exchange: ExchangeId) -> Option<CallNumber> {
        let state = self.connection.lock();
        match exchange.call() {
            Some(call) => state.session.awaits_answer(call).then_some(call),
            None => state.session.only_awaited(),
        }
    }

    /// Whether an error without an id is about a notification of this side and not about its only call: servers of MCP say of
    /// `notifications/initialized` that they do not know the method. Over HTTP the response shows which request it answers.
    fn answers_notification(&self, exchange: ExchangeId, code: ErrorCode) -> bool {
        if code != ErrorCode::METHOD_NOT_FOUND || exchange.call().is_some() {
            return false;
        }
        let mut state = self.connection.lock();
        let left = state.notifications_written.checked_sub(1);
        state.notifications_written = left.unwrap_or_default();
        left.is_some()
    }

    /// Receives the beginning of input that is not a frame. A call that is named by a frame without an end learns why the
    /// input has ended.
    fn recv_rejected(&mut self, inbound: &Inbound, why: BadFrame) {
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
    fn recv_no_message(&mut self, inbound: &Inbound, why: BadMessage) {
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

    /// Receives an event that is not a message.
    pub(crate) fn recv_event(&mut self, event: TransportEvent) {
        let connection = &self.connection;
        match event {
            TransportEvent::Message(inbound) => self.recv(&inbound),
            TransportEvent::Rejected { exchange, why, head } => {
                self.recv_rejected(&Inbound { exchange, ..Inbound::new(head) }, why);
            }
            TransportEvent::Stalled { head } => self.recv_stalled(&head),
            TransportEvent::Unanswered { sent, error } => self.recv_unanswered(&sent, error),
            TransportEvent::Deviation { deviation, sent } => self.connection.deviates(deviation, &sent),
            TransportEvent::HalfClosed => {
                connection.step(|state, now, _| state.session.recv_half_close(now));
            }
            TransportEvent::ExchangeClosed { exchange } => {
                connection.step(|state, now, _| {
                    state.tasks_read_on(exchange).for_each(|task| task.lose_reader(exchange));
                    state.session.recv_exchange_closed(now, exchange);
                });
            }
            TransportEvent::ExchangeResumed { exchange } => {
                connection.step(|state, now, _| {
                    state.tasks_read_on(exchange).for_each(|task| task.resume_reader(exchange));
                    state.session.recv_exchange_resumed(now, exchange);
                });
            }
            TransportEvent::ExchangeFailed { exchange, sent, error } => {
                if let Some(number) = exchange.call() {
                    self.fail_call(number, sent, error);
                }
            }
        }
    }

    fn pass_request(&mut self, inbound: &Inbound, request: IncomingRequest<'_>) {
        let connection = &self.connection;
        let mount = self.own.router.route(&request.method);
        let codec = connection.dialect.codec();
        let handshake_part = (connection.dialect.rules().handshake == Some(&*request.method))
            .then_some(request.params)
            .flatten()
            .map(|params| codec.read_handshake(HandshakePart::Params, params));
        let waiting = WaitingRequest {
            params: request.params.map(|params| JsonText::in_frame(&inbound.body, params)),
            handler: mount.handler,
        };
        let progress_token = request.usable_token().map(ToOwned::to_owned);
        let ignores_token = progress_token.is_none() && request.progress_token.is_some();
        let trace = trace_of(connection, inbound, request.params);
        let id = request.id.clone();
        let client = self.client_of(inbound);
        let bytes = bytes_of_request(inbound);
        let rules = connection.dialect.rules();
        let work = match waiting.handler.as_ref().map_or(Work::Task, |handler| handler.kind().work()) {
            Work::Task if rules.tasks.is_some_and(|form| form.controls(&mount.method)) => Work::Control,
            work => work,
        };
        let admission = self.admission_of(client.as_deref(), bytes as usize, work);
        let mut origin = self.origin(inbound);
        origin.client = client.as_ref().map(|client| ClientNumber(client.number()));
        let arrival = InboundRequest {
            id: request.id,
            cancel_key: request.cancel_key,
            method: &mount.method,
            exempt: request.exempt,
            tag: request.tag,
            origin,
            server_cancellable: mount.server_cancellable,
            work,
            ends_with_stream: rules.tasks.is_some_and(|form| form.waits(&mount.method)),
            admission,
        };
        let is_handshake = rules.handshake == Some(&*mount.method);
        let offer = task_offer(connection, &mount.method, request.params);
        let mut arriving = Arriving::new(waiting);
        let act =
            |state: &mut DriverState, now: Instant, effects: &mut Effects, payload: &mut Payload<'_>| {
                if let (Ok(()), Payload::Request(arriving)) = (arrival.admission, &mut *payload) {
                    arriving.client_permit = state.permits.admitted(match &client {
                        Some(client) => RequestClient::OfRequest(client),
                        None => RequestClient::OfConnection(&connection.client),
                    });
                }
                if ignores_token {
                    state.session.recv_ignored_token();
                }
                let Some(key) = state.session.recv_request(now, arrival) else {
                    return;
                };
                if let Some(permit) = self.own.permit.as_ref().filter(|_| !is_handshake) {
                    permit.set_used();
                }
                if let Some(part) = &handshake_part {
                    state.session.handshake(HandshakePart::Params, part);
                }
                let after = state.notices.last_open();
                // If the connection carries several clients, the bytes count for the client alone.
                let counted = if client.is_some() { 0 } else { bytes };
                let arrived = Arrived {
                    key,
                    id,
                    method: Arc::clone(&mount.method),
                    came_at: state.last_stamp.of(now, connection.opened),
                    exchange: inbound.exchange,
                    progress_token,
                    after,
                    client: client.clone(),
                    trace,
                    bytes,
                    has_own_session: connection.traits.exchange_scoped,
                };
                let data = RequestData::new(arrived);
                // A receiver that declared tasks for other requests ignores the member ("Task Support and Handling").
                data.set_task_offer(offer.filter(|_| state.session.may_become_task(key)));
                let slot =
                    InboundSlot::new(Arc::new(Request { connection: Arc::clone(connection), data }), counted);
                state.memory.request_came(counted);
                state.inbound.insert(key.0, slot);
                state.record_arrival(connection, key, request.params, now, effects);
                if let Payload::Request(arriving) = payload {
                    arriving.key = Some(key);
                }
            };
        let quick = &mut self.own.quick;
        // Most requests start in this step. Only those that wait for a permit are kept, and those whose handlers this
        // task polls.
        connection.step_with(Payload::Request(&mut arriving), act, |state, payload, ()| {
            let Payload::Request(arriving) = payload else { return };
            if let (Some(key), Some(waiting)) = (arriving.key, arriving.waiting.take()) {
                state.keep_waiting(key, waiting, quick);
            }
            if let Some(client) = &client {
                std::mem::take(&mut arriving.client_permit).give_back(client);
            }
        });
        self.begin_exchange(arriving.started);
        if failpoint::active(Failpoint::QuickTooEarly) {
            self.poll_quick();
        }
    }

    /// Whether the limits of the client and of the server have room for one more request.
    fn admission_of(&self, client: Option<&Client>, bytes: usize, work: Work) -> Result<(), &'static str> {
        let connection = &self.connection;
        let budget = client.map_or(&connection.budget, Client::budget);
        if budget.has_room(bytes) {
            connection.admission.admit(client.unwrap_or(&connection.client), work)
        } else {
            Err(MEMORY)
        }
    }

    fn pass_cancel(&self, inbound: &Inbound, cancel: IncomingCancel) {
        let origin = self.origin(inbound);
        self.connection.step(|state, now, _| {
            state.session.recv_cancel(now, cancel.key.ok(), cancel.reason.as_deref(), cancel.ack, &origin);
        });
    }

    pub(crate) fn pass_answer(&self, frame: &Bytes, call: Option<CallNumber>, body: AnswerBody<'_>) {
        let connection = &self.connection;
        let codec = connection.dialect.codec();
        let handshake = connection.dialect.rules().handshake.is_some();
        let kind = match &body {
            AnswerBody::Value(_) => AnswerKind::Value,
            AnswerBody::Cancelled => AnswerKind::Cancelled,
            AnswerBody::Error(_) | AnswerBody::Malformed(_) => AnswerKind::Error,
        };
        let value = match &body {
            AnswerBody::Value(value) => Some(*value),
            AnswerBody::Cancelled | AnswerBody::Error(_) | AnswerBody::Malformed(_) => None,
        };
        let mut content = Some(AnswerContent::of_answer(frame, body));
        // An answer that the machine does not take is dropped without the lock.
        let is_unknown = connection.step_with(
            Payload::AnswerContent(&mut content),
            |state, now, _, _| {
                let settled = state.session.recv_answer(now, call, kind);
                let is_unknown =
                    settled.is_none() && !call.is_some_and(|call| state.session.has_numbered(call));
                if !handshake {
                    return is_unknown;
                }
                let shakes =
                    settled.and_then(|call| state.entry_of(call)).is_some_and(|(_, call)| call.shakes());
                if let Some(value) = value.filter(|_| shakes) {
                    let part = codec.read_handshake(HandshakePart::Result, value);
                    state.session.handshake(HandshakePart::Result, &part);
                }
                is_unknown
            },
            |_, _, is_unknown| is_unknown,
        );
        if is_unknown {
            connection.deviates(Deviation::UnknownId, frame);
        }
    }

    fn pass_bad(&self, why: BadMessage, exchange: ExchangeId) {
        self.connection.step(|state, now, _| state.session.recv_bad(now, why, exchange));
    }

    /// Receives a notification. One that arrives before the session is open is dropped. One that cancels by a progress
    /// token cancels its request.
    fn pass_notification(&self, inbound: &Inbound, method: &str, params: Option<&RawValue>) {
        let connection = &self.connection;
        let has_lifecycle = connection.dialect.rules().lifecycle.is_some();
        if has_lifecycle && !connection.step(|state, _, _| state.session.hears_notification(method)) {
            return;
        }
        let reached = connection.dialect.codec().cancelled_token(method, params).is_some_and(|token| {
            let origin = self.origin(inbound);
            connection.step(|state, now, _| {
                let Some(request) = state.reported.request(&token) else { return false };
                state.session.recv_cancel_by_token(now, request, &origin);
                true
            })
        });
        if !reached {
            let params = params.map(|params| JsonText::in_frame(&inbound.body, params));
            self.give_notification(method, params, inbound.exchange);
        }
        if has_lifecycle {
            connection.step(|state, now, _| state.session.recv_notification(now, method));
        }
    }

    /// Passes a notification to the call whose token, selection or exchange it matches, else to the router.
    fn give_notification(&self, method: &str, params: Option<JsonText>, exchange: ExchangeId) {
        let connection = &self.connection;
        let (reads_progress, matchers) = {
            let state = connection.lock();
            (state.progress_readers > 0, state.matchers.all())
        };
        if reads_progress && self.recv_progress(method, params.as_ref()) {
            return;
        }
        if matchers.is_some_and(|readers| read_by(&readers, method, params.as_ref(), &connection.budget)) {
            return;
        }
        if let (true, Some(call)) = (reads_progress, exchange.call()) {
            // A notification on a call's own exchange belongs to the call, unless a token or a selection matches it.
            if self.give_to_call(call, method, params.as_ref()) {
                return;
            }
        }
        if let Some((method, handler)) = self.own.router.route_notification(method) {
            connection.notice(Notice::new(handler, method, params));
        }
    }

    fn recv_progress(&self, method: &str, params: Option<&JsonText>) -> bool {
        let raw = params.and_then(JsonText::as_raw);
        let Some(number) = self.connection.dialect.codec().progressed_call(method, raw) else { return false };
        let is_read = self.give_to_call(number, method, params);
        if is_read {
            self.connection.step(|state, now, _| {
                let Some(call) = state.session.call_of(number) else { return };
                let renewal = state.entry_of(call).and_then(|(_, entry)| entry.extras.as_ref()?.renewal);
                if let Some(deadline) = renewal.and_then(|renewal| renewal.deadline(now)) {
                    state.session.local_renew(now, call, deadline);
                }
            });
        }
        is_read
    }

    fn give_to_call(&self, number: CallNumber, method: &str, params: Option<&JsonText>) -> bool {
        let inbox = {
            let mut state = self.connection.lock();
            let call = state.session.call_of(number).and_then(|call| state.entry_of(call));
            call.filter(|(_, call)| !call.ended).and_then(|(_, call)| call.extras.as_ref()?.inbox.clone())
        };
        // The inbox of a call without progress is for its selection alone.
        let Some(inbox) = inbox.filter(|inbox| inbox.reads_progress) else { return false };
        inbox.push(Notification::new(Arc::from(method), params.cloned()), &self.connection.budget);
        true
    }

    /// Ends an exchange of the peer that needs no answer.
    fn accept(&self, exchange: ExchangeId) {
        if exchange.is_peers() {
            self.connection.step(|state, _, _| {
                state.outbox.push_control(Control::ExchangeEnd { exchange, how: ExchangeEnd::Accepted });
            });
        }
    }

    /// The client of a request, if the connection carries several clients.
    fn client_of(&self, inbound: &Inbound) -> Option<Arc<Client>> {
        let clients = &self.connection.admission.clients;
        self.connection
            .traits
            .exchange_scoped
            .then(|| clients.client(inbound.principal.as_ref(), inbound.address))
    }

    fn origin(&self, inbound: &Inbound) -> Origin {
        let scope = if self.connection.traits.exchange_scoped {
            Scope::Exchange(inbound.exchange)
        } else {
            Scope::Session
        };
        let principal = inbound.principal.clone().or_else(|| self.connection.meta.principal.clone());
        Origin { scope, exchange: inbound.exchange, principal, client: None }
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

/// The deviation of an answer whose envelope is right.
const fn deviation_of(body: &AnswerBody<'_>) -> Option<Deviation> {
    match body {
        AnswerBody::Malformed(_) => Some(Deviation::InvalidAnswer),
        AnswerBody::Value(_) | AnswerBody::Cancelled | AnswerBody::Error(_) => None,
    }
}

/// The trace that a request belongs to, if the connection reads traces.
fn trace_of(
    connection: &ConnectionInner,
    inbound: &Inbound,
    params: Option<&RawValue>,
) -> Option<Arc<TraceContext>> {
    connection.propagator.as_ref()?;
    TraceContext::nearer(inbound.trace.clone(), params.and_then(TraceContext::of_params))
}

/// Passes a notification to the first reader that selects it. Code of the user runs here, without the lock. A selection
/// that panics does not match.
fn read_by(readers: &Readers, method: &str, params: Option<&JsonText>, budget: &ByteBudget) -> bool {
    let notification = Notification::new(Arc::from(method), params.cloned());
    let belongs = |reader: &&Matcher| {
        let asked = std::panic::AssertUnwindSafe(|| (reader.belongs)(&notification));
        std::panic::catch_unwind(asked).unwrap_or(false)
    };
    match readers.values().find(belongs) {
        Some(reader) => {
            reader.inbox.push(notification, budget);
            true
        }
        None => false,
    }
}

/// What a request says about a task as its answer, if it may become one.
fn task_offer(
    connection: &ConnectionInner,
    method: &str,
    params: Option<&RawValue>,
) -> Option<Result<TaskOffer, ErrorObject>> {
    connection.tasks.as_ref()?;
    connection.dialect.rules().tasks.filter(|form| form.is_supported(method))?.offer(params)
}
