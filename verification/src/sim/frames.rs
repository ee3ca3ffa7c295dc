//! The required frames of a run, on each side: when they are passed to the transport and when they arrive.

use bytes::Bytes;
use rescind_core::{CauseKind, ExchangeId};
use rescind_testkit::wire_format::{Shape, call_name};
use serde_json::Value;

use super::call_checks::is_refused_for_now;
use super::judge::{Frame, Judge, JudgeState, Kind, RequestSeen, SimEvent};
use super::plan::{Side, Work};

impl Judge {
    /// This side is about to pass a frame to the transport.
    pub(super) fn sends(&self, side: Side, body: &Bytes) {
        let mut state = self.state();
        let Ok(frame) = serde_json::from_slice::<Value>(body) else {
            state.breaks("I2", || format!("{side} writes what is no JSON: {body:?}"));
            return;
        };
        let kind = state.sent_kind(side, &frame);
        state.note(|| format!("{side} writes {}", describe(&frame)));
        let at = state.now();
        let written = state.written.of_mut(side);
        let place = written.frames.len();
        written.under_way.entry(body.clone()).or_default().push(place);
        written.frames.push(Frame { body: body.clone(), kind, at });
    }

    /// The transport refused it.
    pub(super) fn not_sent(&self, side: Side, body: &Bytes) {
        let mut state = self.state();
        state.note(|| format!("{side} could not write that"));
        let written = state.written.of_mut(side);
        if let Some(places) = written.under_way.get_mut(body) {
            places.pop();
        }
        written.frames.pop();
    }

    /// A frame has arrived at this side.
    pub(super) fn receives(&self, side: Side, body: &Bytes, exchange: ExchangeId) {
        let body = &unnamed(body);
        let mut state = self.state();
        let (from, ordered, repeats) = (side.other(), state.ordered, state.repeats);
        // If the connection of a post is cut before its response, the post is sent again, provided that a second copy
        // means the same.
        let said_again = !ordered && state.cut;
        // A request that was refused for now (429, 503) is sent once more, because it has not begun.
        let asked = serde_json::from_slice::<Value>(body).ok().and_then(|frame| nonce_of(&frame));
        let is_question = state.is_question(body);
        let has_begun = asked.is_none_or(|nonce| state.works.contains_key(&nonce)) && !is_question;
        let written = state.written.of_mut(from);
        let next = written.received;
        written.received += 1;
        let place = match written.under_way.get_mut(body) {
            Some(places) if !places.is_empty() => Some(places.remove(0)),
            Some(_) => written.frames.iter().rposition(|frame| {
                let may_repeat = (said_again && frame.kind.may_be_said_twice()) || (!ordered && !has_begun);
                frame.body == *body && (repeats || may_repeat)
            }),
            None => None,
        };
        let text = String::from_utf8_lossy(body);
        let Some(place) = place else {
            // A last line without a line end is read as one: it is a frame that was cut off by the end, and not JSON.
            let torn = written.frames.get(next).is_some_and(|frame| frame.body.starts_with(body));
            // HTTP itself refuses some posts. Without an id, such a refusal answers no call.
            let refusal = serde_json::from_slice::<Value>(body).is_ok_and(|frame| {
                frame.get("error").is_some() && frame.get("id").is_none_or(Value::is_null)
            });
            if refusal && !ordered {
                state.note(|| format!("{side} reads a refusal of the wire's own: {text}"));
                return;
            }
            if torn && ordered && state.is_going() {
                state.note(|| format!("{side} reads the beginning of a frame"));
                return;
            }
            state.breaks("I14", || format!("{side} reads what was never written: {text}"));
            return;
        };
        if place < next {
            state.tally.saw(SimEvent::Reordered);
        }
        state.holds_and_counts(ordered, !ordered || place == next, "I12", || {
            format!("{side} reads frame {place} of the other's as its {next}th: {text}")
        });
        let Some(kind) = state.written.of(from).frames.get(place).map(|frame| frame.kind.clone()) else {
            return;
        };
        state.note(|| format!("{side} reads {kind:?}"));
        let now = state.now();
        match kind {
            Kind::Request { id } => {
                // An early cancel waits for its request if the transport does not keep their order. This applies to
                // posts only.
                let waits = state.parks && !ordered && side == Side::Server;
                let longest =
                    u64::try_from(state.limits.of(side).early_cancel_timeout.as_millis()).unwrap_or(u64::MAX);
                if let Some(request) = state.written.of_mut(from).requests.get_mut(&id) {
                    request.received += 1;
                    request.exchange = exchange;
                    request.received_at.get_or_insert(now);
                    if request.overtaken_at.is_some_and(|at| waits && now < at.saturating_add(longest)) {
                        request.cancelled_at.get_or_insert(now);
                    }
                    if request.received > 1 {
                        state.tally.saw(SimEvent::Repeated);
                    }
                }
            }
            Kind::Cancel { id } => {
                state.cancel_received(from, &id);
            }
            Kind::Answer { id } => {
                if let Some(request) = state.written.of_mut(side).requests.get_mut(&id) {
                    request.answer_received_at.get_or_insert(now);
                }
            }
            Kind::Notification { .. } | Kind::Other => {}
        }
    }

    /// The exchange of a request was closed. If that is the only way to cancel it, it is cancelled.
    pub(super) fn closes(&self, side: Side, exchange: ExchangeId) {
        let mut state = self.state();
        let requests = &state.written.of(side.other()).requests;
        let id = requests.iter().find(|(_, request)| request.received > 0 && request.exchange == exchange);
        if let Some(id) = id.filter(|_| state.closing_cancels).map(|(id, _)| id.clone()) {
            state.cancel_received(side.other(), &id);
        }
    }
}

/// An answer to `initialize` without the id that ACP's HTTP binding inserts.
fn unnamed(body: &Bytes) -> Bytes {
    let text = std::str::from_utf8(body).unwrap_or_default();
    let Some((before, named)) = text.split_once(r#""result":{"connectionId":""#) else { return body.clone() };
    let after = named.split_once('"').map_or(named, |(_, after)| after);
    let after = after.strip_prefix(',').unwrap_or(after);
    format!(r#"{before}"result":{{{after}"#).into()
}

impl JudgeState {
    /// Compares a frame of this side with the earlier frames.
    fn sent_kind(&mut self, side: Side, frame: &Value) -> Kind {
        match self.speech.shape(frame) {
            Shape::Request { id, .. } => self.request_sent(side, frame, &id),
            Shape::Cancel { key } => self.cancel_sent(side, &key),
            // A refusal of a frame without an id.
            Shape::Answer { id } if id.is_null() => Kind::Other,
            Shape::Answer { id } => self.answer_sent(side, frame, &id),
            Shape::Notification { .. } => self.notification_sent(side, frame),
            Shape::Other => {
                self.ack_sent(side, frame);
                Kind::Other
            }
        }
    }

    /// Whether a frame asks about a task.
    fn is_question(&self, body: &Bytes) -> bool {
        let frame = self.task_form.and_then(|_| serde_json::from_slice::<Value>(body).ok());
        frame.is_some_and(|frame| self.task_of_question(&frame).is_some())
    }

    fn request_sent(&mut self, side: Side, frame: &Value, id: &Value) -> Kind {
        let (id, nonce) = (id.to_string(), nonce_of(frame));
        let call = nonce.and_then(|nonce| self.calls.get(&nonce));
        let taken_back = call.is_some_and(|call| call.result == Some(rescind_core::CancelResult::TakenBack));
        let stillborn = call.is_some_and(|call| call.stillborn);
        let returned = call.is_some_and(|call| call.returned);
        // They count when their callers get the result.
        if taken_back {
            self.breaks("I12", || format!("{side} writes {id}, which was taken back"));
        }
        if stillborn {
            self.breaks("I5", || format!("{side} writes {id}, a child of a cancelled request"));
        }
        if returned {
            self.breaks("I13", || format!("{side} writes {id}, whose caller already has its outcome"));
        }
        let method = frame.get("method").or_else(|| frame.get("type")).and_then(Value::as_str);
        let is_handshake = method == self.speech.opening().map(|(method, _)| method);
        let about = self.task_of_question(frame);
        let written = self.written.of_mut(side);
        if let Some(name) = call_name(frame) {
            written.names.insert(name.to_string(), id.clone());
        }
        if let Some(nonce) = nonce {
            written.by_nonce.insert(nonce, id.clone());
        }
        let request = RequestSeen {
            nonce,
            is_handshake,
            about,
            received: 0,
            received_at: None,
            cancels: 0,
            exchange: ExchangeId::NONE,
            overtaken_at: None,
            cancelled_at: None,
            owed_silence: false,
            answers: 0,
            refusals: 0,
            answer_received_at: None,
        };
        let before = written.requests.insert(id.clone(), request);
        self.holds(before.is_none(), "I14", || format!("{side} asks twice under {id}"));
        Kind::Request { id }
    }

    fn cancel_sent(&mut self, side: Side, key: &Value) -> Kind {
        if side == Side::Client && self.late_cancels.contains(&key.to_string()) {
            return Kind::Cancel { id: key.to_string() };
        }
        let written = self.written.of_mut(side);
        let key = key.to_string();
        let id = written.names.get(&key).cloned().unwrap_or(key);
        let seen = written.requests.get_mut(&id).map(|request| {
            request.cancels += 1;
            (request.cancels, request.answer_received_at.is_some(), request.is_handshake)
        });
        self.holds(seen.is_some(), "I12", || format!("{side} cancels {id}, which it never wrote"));
        if let Some((cancels, answered, is_handshake)) = seen {
            if cancels > 1 {
                self.breaks("I7", || format!("{side} cancels {id} {cancels} times"));
            }
            if answered {
                self.breaks("I2", || format!("{side} cancels {id}, whose answer it has read"));
            }
            if is_handshake {
                self.breaks("I9", || format!("{side} cancels its handshake"));
            }
        }
        Kind::Cancel { id }
    }

    fn answer_sent(&mut self, side: Side, frame: &Value, id: &Value) -> Kind {
        let id = id.to_string();
        if self.is_silenced(side, &id) {
            self.breaks("I2", || format!("{side} answers {id}, which is owed silence"));
        }
        let request = self.written.of(side.other()).requests.get(&id);
        let once = request.is_some_and(|request| request.received <= 1);
        let acked = once && self.written.of(side).acked.get(&id) == Some(&true);
        let cancelled = frame.pointer("/payload/cancelled") == Some(&Value::Bool(true));
        self.holds_and_counts(acked, !acked || cancelled, "I7", || {
            format!("{side} acknowledged the cancel of {id}: {frame}")
        });
        let value = self.speech.value(frame).and_then(|value| value.get("nonce")).and_then(Value::as_u64);
        let refused = !self.ordered && is_refused_for_now(frame);
        let seen = self.written.of_mut(side.other()).requests.get_mut(&id).map(|request| {
            request.answers += 1;
            request.refusals += u32::from(refused);
            (request.received, request.answers, request.nonce, request.about)
        });
        if seen.is_none() {
            self.breaks("I4", || format!("{side} answers {id}, which nobody asked"));
        }
        if let Some((received, answers, nonce, about)) = seen {
            if received == 1 && !acked && nonce.is_some_and(|nonce| self.has_value(side, nonce)) {
                let is_there = self.is_given_up(nonce);
                self.holds_and_counts(is_there, value.is_some(), "I6", || {
                    format!("{side} answers {id}, which has a value: {frame}")
                });
            }
            if received == 0 {
                self.breaks("I4", || format!("{side} answers {id} before it came"));
            }
            self.holds(answers <= received, "I1", || format!("{side} answers {id} {answers} times"));
            let own = value.is_none() || value == nonce || value == about;
            let is_there = value.is_some() && self.cancels > 0;
            self.holds_and_counts(is_there, own, "I4", || {
                format!("{side} answers {id}, which is {nonce:?}, with {value:?}")
            });
        }
        Kind::Answer { id }
    }

    /// At the end: for a handshake that its caller cancelled, no cancel was written (I9).
    pub(super) fn check_handshake(&mut self) {
        let mut requests = self.written.client.requests.values();
        let cancelled = requests.any(|request| request.is_handshake && request.cancels > 0);
        self.holds_and_counts(self.handshake_cancelled, !cancelled, "I9", || {
            "the client cancels its handshake".to_owned()
        });
    }

    fn notification_sent(&mut self, side: Side, frame: &Value) -> Kind {
        let nonce = nonce_of(frame);
        let id = nonce.and_then(|nonce| self.written.of(side.other()).by_nonce.get(&nonce).cloned());
        if let Some(nonce) = nonce.filter(|nonce| self.is_task(Some(*nonce))) {
            let over = self.is_known_to_be_over(nonce) && !self.repeats;
            self.holds_and_counts(false, !over, "I16", || {
                format!("{side} notifies for the task {nonce}, whose end is known")
            });
        } else if let Some(id) = id {
            let request = self.written.of(side.other()).requests.get(&id);
            // A repeated request runs again, and its second handler may send notifications after the answer of the
            // first one.
            let over = request.is_some_and(|request| request.answers >= request.received);
            if over {
                self.breaks("I2", || format!("{side} notifies for {id}, which is answered"));
            }
            if self.is_silenced(side, &id) {
                self.breaks("I2", || format!("{side} notifies for {id}, which is owed silence"));
            }
        }
        Kind::Notification { of: nonce }
    }

    /// An acknowledgement of ABP, and the answer that it means.
    fn ack_sent(&mut self, side: Side, frame: &Value) {
        let (Some(key), Some(cancelled)) =
            (frame.pointer("/payload/callId"), frame.pointer("/payload/cancelled").and_then(Value::as_bool))
        else {
            return;
        };
        let key = key.to_string();
        let Some(id) = self.written.of(side.other()).names.get(&key).cloned() else { return };
        let before = self.written.of_mut(side).acked.insert(id.clone(), cancelled);
        // A cancel that is sent twice may arrive both before and after its request.
        let alike = self.repeats || before.is_none_or(|before| before == cancelled);
        self.holds_and_counts(before.is_some() && !self.repeats, alike, "I7", || {
            format!("{side} acknowledges the cancel of {id} with {cancelled}, and otherwise before")
        });
        // A post that is sent again delivers the cancel twice.
        let once = before.is_none() || self.repeats || (!self.ordered && self.cut);
        if !once {
            self.breaks("I7", || format!("{side} acknowledges the one cancel of {id} twice"));
        }
    }

    /// The cancel of a request of this side has arrived at the other.
    fn cancel_received(&mut self, from: Side, id: &str) {
        let now = self.now();
        let nonce = self.written.of(from).requests.get(id).and_then(|request| request.nonce);
        // The message is too late for a request that became a task.
        if self.is_task(nonce) {
            return;
        }
        let Some(request) = self.written.of_mut(from).requests.get_mut(id) else { return };
        if request.received == 0 {
            request.overtaken_at.get_or_insert(now);
            self.tally.saw(SimEvent::Overtaken);
            return;
        }
        let work = request.nonce.and_then(|nonce| self.works.get(&nonce));
        let runs = work.is_some_and(|work| {
            work.end.is_none() && work.work != Work::Shield && work.context.cause().is_none()
        });
        if runs {
            self.tally.saw(SimEvent::Signalled);
        }
        let owed = runs && self.silence && request.received == 1 && request.answers == 0;
        if let Some(request) = self.written.of_mut(from).requests.get_mut(id) {
            request.cancelled_at.get_or_insert(now);
            request.owed_silence |= owed;
        }
    }

    /// Whether the peer of this side cancelled the request, its handler got the signal, and its protocol then
    /// requires no answer.
    pub(super) fn is_silenced(&self, side: Side, id: &str) -> bool {
        let request = self.written.of(side.other()).requests.get(id);
        let Some(request) = request.filter(|request| self.silence && !self.is_task(request.nonce)) else {
            return false;
        };
        if request.owed_silence && request.received <= 1 {
            return true;
        }
        let work = request.nonce.and_then(|nonce| self.works.get(&nonce));
        let describe = work.filter(|_| request.received <= 1).and_then(|work| work.context.cause());
        describe.is_some_and(|cause| cause.kind() == CauseKind::Peer)
    }

    /// The request of this call, after it was passed to the transport.
    pub(super) fn request_of(&self, nonce: u64) -> Option<&RequestSeen> {
        let call = self.calls.get(&nonce)?;
        let written = self.written.of(call.side);
        written.requests.get(written.by_nonce.get(&nonce)?)
    }

    /// At the end of an undisturbed run: each request that this side received is answered, or must not be (I1).
    pub(super) fn check_answered(&mut self, side: Side) {
        let (mut open, mut is_there) = (Vec::new(), false);
        for (id, request) in &self.written.of(side.other()).requests {
            // Over HTTP it may run twice, and a response for which no caller waits is closed.
            let moot = !self.ordered && (self.repeats || self.is_moot(request));
            let silenced = self.is_silenced(side, id) || (self.silence && request.cancels > 0);
            let owed = request.received > 0 && !moot && !silenced;
            is_there |= owed;
            if owed && request.answers == 0 {
                open.push(id.clone());
            }
        }
        self.holds_and_counts(is_there, open.is_empty(), "I1", || format!("{side} never answered {open:?}"));
    }
}

/// The nonce of the call to which a frame belongs.
fn nonce_of(frame: &Value) -> Option<u64> {
    let places = ["/params/nonce", "/payload/params/nonce", "/payload/nonce"];
    places.into_iter().find_map(|place| frame.pointer(place)).and_then(Value::as_u64)
}

/// A frame without the parts that differ between two runs of a seed.
fn describe(frame: &Value) -> String {
    let mut frame = frame.clone();
    for place in ["/result", "/result/task"] {
        if let Some(task) = frame.pointer_mut(place).and_then(Value::as_object_mut) {
            task.retain(|name, _| !["createdAt", "lastUpdatedAt"].contains(&name.as_str()));
        }
    }
    if let Some(members) = frame.as_object_mut() {
        members.remove("timestamp");
        members.remove("jsonrpc");
        // ABP's call ids are random on each connection.
        if members.remove("type").is_some() {
            return format!("{:?}", members.get("payload").and_then(|payload| payload.get("params")));
        }
    }
    frame.to_string()
}
