//! A dialect's envelope: any bytes can be decoded to some result, every decoder agrees, and the result can be
//! encoded.

use std::time::Duration;

use bytes::BytesMut;
use rescind_core::dialect::{
    self, CallFrame, CancelName, Dialect, HandshakePart, JsonRpc, Refusal, ReplyTo, negotiate,
};
use rescind_core::{
    AckStatus, AnswerBody, BadFrame, BadMessage, CallNumber, Cause, CauseKind, Decoded, Deviation,
    ErrorObject, Framing, Incoming, IncomingRequest, MAX_ID_BYTES, RequestId,
};
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

/// The most messages in a batch.
const BATCH: usize = 1024;

pub(super) fn check(dialect: &Dialect, frame: &[u8]) {
    let message = dialect.codec().decode(frame);
    let text = std::str::from_utf8(frame);
    let is_json = text.is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
    match &message {
        Incoming::Bad(BadMessage::NotUtf8) => assert!(text.is_err(), "it is UTF-8"),
        Incoming::Bad(_) => assert!(text.is_ok(), "it is no UTF-8"),
        _ => assert!(is_json, "{message:?} was read out of what is no JSON"),
    }
    if let Incoming::Bad(why) = &message {
        let value = serde_json::from_slice::<Value>(frame).ok();
        unreadable(dialect, frame, *why, value.as_ref());
    }
    if is_json && !matches!(message, Incoming::Bad(BadMessage::TooDeep)) {
        let value = serde_json::from_slice::<Value>(frame).ok();
        agrees_with_values(dialect, &message, value.as_ref());
        if let Some(value) = &value {
            is_read_as_what_it_is(dialect, value);
        }
        both_framings(dialect, frame, &message);
        the_long_way(dialect, frame, &message);
    }
    if let Incoming::Batch(members) = &message {
        assert!(!members.is_empty() && members.len() <= BATCH, "I11: a batch of {}", members.len());
        for member in members {
            check_round_trip(dialect, &dialect.codec().decode(member.get().as_bytes()));
        }
    }
    check_round_trip(dialect, &message);
    handshake(dialect, &message);
    first_message(dialect, frame);
}

/// Compares with the values that a generic JSON reader finds in the same places.
fn agrees_with_values(dialect: &Dialect, message: &Incoming<'_>, value: Option<&Value>) {
    // A number beyond a float is JSON, but has no such value.
    let Some(value) = value else { return };
    let is_error = |error: Option<&Value>| {
        error.is_some_and(|error| {
            error.is_object()
                // `-32601.0` is the same number as `-32601`.
                && (error["code"].is_string() || error["code"].as_f64().is_some_and(|code| code.fract() == 0.0))
        })
    };
    let is_json_rpc = dialect.codec().as_json_rpc().is_some();
    match message {
        _ if !is_json_rpc => {
            let has_type = value.get("type").is_some_and(Value::is_string);
            assert!(has_type || matches!(message, Incoming::Bad(_)), "{message:?} says no type");
        }
        Incoming::Request(request) => {
            assert_eq!(value["method"].as_str(), Some(&*request.method), "the method");
            assert!(value["id"].is_string() || value["id"].is_number(), "an id that is none");
            assert!(value["result"].is_null() && value["error"].is_null(), "a request is no answer");
            let params = request.params.map(|params| serde_json::from_str::<Value>(params.get()).ok());
            assert_eq!(params.flatten().as_ref(), value.get("params").filter(|params| !params.is_null()));
        }
        Incoming::Notification { method, .. } => {
            assert_eq!(value["method"].as_str(), Some(&**method), "the method");
            assert_eq!(value.get("id"), None, "what has an id is no notification");
        }
        Incoming::Answer { body: AnswerBody::Error(_) | AnswerBody::Cancelled, .. }
        | Incoming::PeerError(_) => {
            assert!(is_error(value.get("error")), "{message:?} has no error");
            assert!(value["method"].is_null(), "an answer has no method");
        }
        Incoming::Answer { body: AnswerBody::Value(_), .. } => {
            assert!(value.get("result").is_some(), "{message:?} has no result");
        }
        _ => {}
    }
    match message {
        Incoming::Bad(_) => {}
        Incoming::Batch(_) => assert!(value.is_array(), "a batch is an array"),
        _ => assert!(value.is_object(), "{message:?} is no object"),
    }
}

/// A value that is written in the plain form, with each member once, is decoded as the right kind of message: neither
/// too much nor too little is refused.
fn is_read_as_what_it_is(dialect: &Dialect, value: &Value) {
    let frame = value.to_string();
    let message = dialect.codec().decode(frame.as_bytes());
    let expected = match dialect.codec().as_json_rpc() {
        Some(codec) => naive_json_rpc(codec, value),
        None => naive_abp(value),
    };
    let kind = kind(&message);
    let is_either = expected.strip_suffix(" or bad").is_some_and(|read| kind == read || kind == "bad");
    assert!(kind == expected || is_either, "{message:?} was read out of {frame}, which is {expected}");
}

/// A frame that is not a message ends a call only if it can be nothing but that call's answer.
fn unreadable(dialect: &Dialect, frame: &[u8], why: BadMessage, value: Option<&Value>) {
    let Some((Some(call), _)) = dialect.codec().unreadable_answer(frame, why) else { return };
    // An answer may be inside of a JSON text.
    let inside = value.and_then(Value::as_str);
    let value = match inside {
        Some(text) => serde_json::from_str::<Value>(text).ok(),
        None => value.cloned(),
    };
    let Some(value) = &value else {
        // In UTF-16 a letter has a NUL beside it.
        let mut bytes = inside.map_or(frame, str::as_bytes).to_vec();
        bytes.retain(|byte| *byte != 0);
        let id = bytes.windows(2).find(|pair| *pair == b"id");
        assert!(id.is_some(), "{call:?} is named by no id");
        return;
    };
    // Some programs write the names of members with capital letters.
    let member = |name: &str| {
        let capital = || value.as_object()?.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        value.get(name).or_else(|| capital().map(|(_, value)| value)).unwrap_or(&Value::Null)
    };
    let (id, number) = (member("id"), call.0.to_string());
    let spelled = id.as_str().map_or_else(|| id.to_string(), ToOwned::to_owned);
    // `-0` is 0, and a float has not all digits of a large number.
    let as_float = |text: &str| text.parse::<f64>().map(|number| (number + 0.0).to_string());
    let is_same = spelled == number || as_float(&spelled).is_ok_and(|id| as_float(&number) == Ok(id));
    let is_answer = value["method"].is_null() || !member("result").is_null() || !member("error").is_null();
    assert!(is_same && is_answer, "{call:?} is not the call of {value}");
}

/// Both framings deliver the same message.
fn both_framings(dialect: &Dialect, frame: &[u8], message: &Incoming<'_>) {
    for framing in [Framing::Newline, Framing::ContentLength] {
        let mut wire = BytesMut::new();
        framing.encode(frame, &mut wire);
        let mut decoder = framing.decoder(wire.len());
        decoder.push(&wire);
        let line = wire.strip_suffix(b"\n").unwrap_or(&wire).to_vec();
        let body = match decoder.next_frame() {
            Some(Decoded::Frame(body) | Decoded::Bad(BadFrame::NotJson, body)) => body,
            // Only of what is not a message: blanks are nothing, and a message may follow noise.
            _ if framing == Framing::Newline && matches!(message, Incoming::Bad(_)) => continue,
            other => panic!("{framing:?} lost the frame: {other:?}"),
        };
        if framing == Framing::Newline && matches!(message, Incoming::Bad(_)) && body != line {
            continue;
        }
        let again = meaning_of(&dialect.codec().decode(&body));
        assert_eq!(again, meaning_of(message), "{framing:?} changed the message");
    }
}

/// Names with an escape are read by the slow path for objects. It gives the same result.
fn the_long_way(dialect: &Dialect, frame: &[u8], message: &Incoming<'_>) {
    let Ok(text) = std::str::from_utf8(frame) else { return };
    let Some(members) = text.trim_ascii().strip_prefix('{').and_then(|text| text.strip_suffix('}')) else {
        return;
    };
    if members.trim_ascii().is_empty() {
        return;
    }
    for longer in [format!(r#"{{"\u007az":0,{members}}}"#), format!(r#"{{{members},"\u007az":0}}"#)] {
        let again = dialect.codec().decode(longer.as_bytes());
        if let Incoming::Answer { call, body: AnswerBody::Value(_), deviation: Some(Deviation::NoVersion) } =
            message
        {
            // It may be a line of a log now.
            let is_uncertain = matches!(&again, Incoming::Answer { call: named, body: AnswerBody::Malformed(_), .. } if named == call);
            assert!(is_uncertain, "one member more did not change {text}");
            continue;
        }
        assert_eq!(meaning_of(&again), meaning_of(message), "one member more changed {text}");
    }
}

/// The declaration that this side adds to its part of the handshake is JSON with the right content.
fn handshake(dialect: &Dialect, message: &Incoming<'_>) {
    let body = match message {
        Incoming::Request(request) => request.params,
        Incoming::Notification { method, params } => {
            let _ = dialect.codec().progressed_call(method, *params);
            *params
        }
        Incoming::Answer { body: AnswerBody::Value(value), .. } => Some(*value),
        _ => None,
    };
    let Some(body) = body else { return };
    for part in [HandshakePart::Params, HandshakePart::Result] {
        let said = dialect.codec().read_handshake(part, body);
        assert!(said.exempting.is_none_or(|methods| methods.len() <= 64), "I11: methods without a bound");
        assert!(dialect.codec().declare(part, body, false).is_none(), "it declares what was withheld");
        let Some(declared) = dialect.codec().declare(part, body, true) else { continue };
        assert!(!declared.get().contains(['\n', '\r']), "a declaration of several lines: {declared}");
        // An object with half of a surrogate pair in a name cannot be read, with or without a declaration.
        if serde_json::from_str::<serde_json::Value>(declared.get()).is_err() {
            continue;
        }
        let said = dialect.codec().read_handshake(part, &declared);
        assert_eq!(said.handles_cancels, Some(true), "{declared} does not declare it");
    }
}

/// A first message, of this dialect or of any other.
fn first_message(dialect: &Dialect, frame: &[u8]) {
    let all = negotiate(dialect::ALL.iter().cloned());
    let recognised = all.recognise(frame);
    if let Ok(recognised) = recognised {
        assert!(recognised.codec().recognises(recognised.rules(), frame));
        let is_bad = matches!(recognised.codec().decode(frame), Incoming::Bad(_));
        // An envelope with a `type` belongs to no other dialect, even if it is invalid otherwise.
        let is_reported = recognised.codec().as_json_rpc().is_some();
        assert!(!(is_reported && is_bad), "{recognised:?} recognised what it cannot read");
    }
    let Err(why) = recognised else { return };
    assert!(!dialect.codec().recognises(dialect.rules(), frame), "nobody recognised what one does");
    let mut refusal = Vec::new();
    if all.refuse(&mut refusal, frame, why) {
        let text = std::str::from_utf8(&refusal).unwrap_or_default();
        assert!(serde_json::from_str::<&RawValue>(text).is_ok(), "a refusal that is no JSON: {text:?}");
    }
}

// A decoded message is encoded as a message of this side and decoded again.

/// The number of our call, and that of its cancel.
const CALL: CallNumber = CallNumber(7);
const CANCEL: CallNumber = CallNumber(8);
const SEED: u128 = 0x5eed;

const STATUSES: [AckStatus; 7] = [
    AckStatus::Cancelled,
    AckStatus::NotFound,
    AckStatus::AlreadyCompleted,
    AckStatus::InvalidKey,
    AckStatus::NotInitialized,
    AckStatus::NotCancellable,
    AckStatus::Overloaded,
];

fn check_round_trip(dialect: &Dialect, message: &Incoming<'_>) {
    match message {
        Incoming::Request(read) => request(dialect, read),
        Incoming::Notification { method, params } => notification(dialect, method, *params),
        Incoming::Answer { body, .. } => answer(dialect, body),
        Incoming::PeerError(error) => answer_error(dialect, error),
        Incoming::Cancel(cancel) => {
            cancelled_call(dialect, cancel.reason.as_deref());
            if let Some(ack) = &cancel.ack {
                for status in STATUSES {
                    acknowledged(dialect, ack, cancel.key.as_ref().ok(), status);
                }
            }
        }
        Incoming::BadRequest { id, tag, why } => {
            let to = ReplyTo { id, tag: *tag, server_cancellable: false };
            refusal(dialect, Some(&to), *why);
        }
        Incoming::Bad(why) => refusal(dialect, None, *why),
        _ => {}
    }
}

/// A writer appends one message: JSON, on one line.
fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    let text = String::from_utf8_lossy(&out);
    assert!(serde_json::from_str::<IgnoredAny>(&text).is_ok(), "no JSON was written: {text}");
    assert!(!text.contains(['\n', '\r']), "a raw line end was written: {text}");
    out
}

fn is_json_rpc(dialect: &Dialect) -> bool {
    dialect.codec().as_json_rpc().is_some()
}

/// This dialect's id for a call of this side.
fn id_of(dialect: &Dialect, number: CallNumber) -> RequestId {
    if is_json_rpc(dialect) {
        return RequestId::number(i64::try_from(number.0).unwrap_or(i64::MAX));
    }
    RequestId::text(&number.0.to_string()).unwrap_or(RequestId::number(0))
}

fn request(dialect: &Dialect, read: &IncomingRequest<'_>) {
    for progress in [false, true] {
        let mut call = CallFrame::new(CALL, SEED, &read.method, read.params);
        (call.progress, call.timeout) = (progress, progress.then_some(Duration::from_secs(5)));
        let frame = written(|out| dialect.codec().encode_request(dialect.rules(), out, &call));
        let Incoming::Request(again) = dialect.codec().decode(&frame) else {
            panic!("a request was written as {}", String::from_utf8_lossy(&frame));
        };
        assert_eq!(again.id, id_of(dialect, CALL), "the id");
        assert_eq!(again.method, read.method, "the method");
        if progress {
            continue;
        }
        // If the whole payload is the params, absent params are written as an empty object.
        let (ours, theirs) = (meaning_of_raw(again.params), meaning_of_raw(read.params));
        let is_same = ours == theirs || (theirs.is_none() && ours.as_deref() == Some("{}"));
        assert!(is_same, "the params {theirs:?} were written as {ours:?}");
        assert_eq!(again.exempt, read.exempt, "a cancel's reach");
    }
    let to = ReplyTo { id: &read.id, tag: read.tag, server_cancellable: true };
    for cause in [CauseKind::Peer, CauseKind::Local, CauseKind::Deadline] {
        let cause = Cause::new(cause);
        written(|out| dialect.codec().encode_cancelled(dialect.rules(), out, &to, &cause));
    }
    written(|out| dialect.codec().encode_graceful(dialect.rules(), out, &to, "{}"));
}

fn notification(dialect: &Dialect, method: &str, params: Option<&RawValue>) {
    let frame = written(|out| dialect.codec().encode_notification(dialect.rules(), out, method, params));
    let Incoming::Notification { method: again, params: theirs } = dialect.codec().decode(&frame) else {
        panic!("a notification was written as {}", String::from_utf8_lossy(&frame));
    };
    assert_eq!(again, method, "the method");
    let (ours, theirs) = (meaning_of_raw(params), meaning_of_raw(theirs));
    let is_same = ours == theirs || (ours.is_none() && theirs.as_deref() == Some("{}"));
    assert!(is_same, "the params {ours:?} were written as {theirs:?}");
}

/// An answer to a request of the peer, which is an answer to a call for the peer's side.
fn answer(dialect: &Dialect, body: &AnswerBody<'_>) {
    match body {
        AnswerBody::Value(value) => {
            let again = answered(dialect, |out, to| {
                dialect.codec().encode_value(dialect.rules(), out, to, value);
            });
            // A result may get one more member, which names its kind.
            let value = format!("value {}", squeezed(value.get()));
            let open = value.strip_suffix('}');
            let is_same = again == value || open.is_some_and(|open| again.starts_with(open));
            assert!(is_same, "{value} was written as {again}");
        }
        AnswerBody::Error(error) => answer_error(dialect, error),
        AnswerBody::Cancelled => {
            let cause = Cause::new(CauseKind::Peer);
            let again = answered(dialect, |out, to| {
                dialect.codec().encode_cancelled(dialect.rules(), out, to, &cause);
            });
            assert_eq!(again, meaning_of_answer(&AnswerBody::Cancelled));
        }
        _ => {}
    }
}

fn answer_error(dialect: &Dialect, error: &ErrorObject) {
    let again = answered(dialect, |out, to| {
        dialect.codec().encode_error(dialect.rules(), out, to, error);
    });
    let says_cancelled =
        dialect.codec().as_json_rpc().is_some_and(|codec| codec.cancelled_codes.contains(&error.code));
    if says_cancelled {
        assert_eq!(again, meaning_of_answer(&AnswerBody::Cancelled));
    } else if is_json_rpc(dialect) {
        assert_eq!(again, meaning_of_answer(&AnswerBody::Error(error.clone())));
    } else {
        // The data contains the error's own object, with the members that each error has.
        let said = format!("error {:?} {:?} ", error.code, error.message);
        assert!(again.starts_with(&said), "{error:?} was written as {again}");
    }
}

fn answered(dialect: &Dialect, write: impl Fn(&mut Vec<u8>, &ReplyTo<'_>)) -> String {
    let id = id_of(dialect, CALL);
    let to = ReplyTo { id: &id, tag: 0, server_cancellable: false };
    let frame = written(|out| write(out, &to));
    let Incoming::Answer { call, body, deviation: None } = dialect.codec().decode(&frame) else {
        panic!("an answer was written as {}", String::from_utf8_lossy(&frame));
    };
    assert_eq!(call, Some(CALL), "an answer to another call");
    meaning_of_answer(&body)
}

fn cancelled_call(dialect: &Dialect, reason: Option<&str>) {
    let codec = dialect.codec();
    let frame = written(|out| codec.encode_cancel(dialect.rules(), out, CALL, CANCEL, SEED, reason));
    let Incoming::Cancel(again) = codec.decode(&frame) else {
        panic!("a cancel was written as {}", String::from_utf8_lossy(&frame));
    };
    assert!(again.reason.is_none() || again.reason.as_deref() == reason, "the reason {reason:?} changed");
    if is_json_rpc(dialect) {
        return assert_eq!(again.key, Ok(id_of(dialect, CALL)), "the request a cancel names");
    }
    assert_eq!(again.ack, Some(id_of(dialect, CANCEL)), "the id a cancel is acknowledged under");
    // The call itself contains the key by which a cancel names it.
    let call = written(|out| {
        codec.encode_request(dialect.rules(), out, &CallFrame::new(CALL, SEED, "m", None));
    });
    let Incoming::Request(call) = codec.decode(&call) else { panic!("a call is no request") };
    let named = again.key.map(rescind_core::CancelKey::Named);
    assert_eq!(named.as_ref(), Ok(&call.cancel_key), "a cancel names another call");
}

fn acknowledged(dialect: &Dialect, ack: &RequestId, key: Option<&RequestId>, status: AckStatus) {
    let frame = written(|out| {
        assert!(dialect.codec().encode_ack(dialect.rules(), out, ack, key, status));
    });
    let Incoming::Ack { cancelled, .. } = dialect.codec().decode(&frame) else {
        panic!("an acknowledgement was written as {}", String::from_utf8_lossy(&frame));
    };
    assert_eq!(cancelled, status == AckStatus::Cancelled, "{status:?}");
}

fn refusal(dialect: &Dialect, to: Option<&ReplyTo<'_>>, why: BadMessage) {
    let mut out = Vec::new();
    if !dialect.codec().encode_refusal(dialect.rules(), &mut out, to, Refusal::Bad(why)) {
        assert!(out.is_empty(), "nothing is said, and something written");
        return;
    }
    match dialect.codec().decode(&out) {
        Incoming::Answer { body: AnswerBody::Error(_), .. } if to.is_some() => {}
        Incoming::PeerError(error) if to.is_none() => assert_eq!(error.code, why.code(), "{why}"),
        // Its request had an id that names nothing in an answer.
        Incoming::PeerError(_) if to.is_some_and(|to| is_no_name(to.id)) => {}
        other => panic!("a refusal was written as {other:?}"),
    }
}

// The kind of a message according to a naive reader of JSON values. It also finds a reader that refuses too much.

/// The kind of a decoded message, as a word.
pub(super) fn kind(message: &Incoming<'_>) -> &'static str {
    match message {
        Incoming::Request(_) => "request",
        Incoming::Notification { .. } => "notification",
        Incoming::Answer { .. } => "answer",
        Incoming::Cancel(_) => "cancel",
        Incoming::Ack { .. } => "ack",
        Incoming::PeerError(_) => "peer error",
        Incoming::Batch(_) => "batch",
        Incoming::BadRequest { .. } => "bad request",
        Incoming::Bad(_) => "bad",
        _ => "unknown",
    }
}

/// The kind of a JSON-RPC value in which each member occurs once.
fn naive_json_rpc(codec: &JsonRpc, value: &Value) -> &'static str {
    if let Some(members) = value.as_array() {
        return if (1..=BATCH).contains(&members.len()) { "batch" } else { "bad" };
    }
    let of = |name: &str| value.get(name);
    let has = |name: &str| of(name).is_some_and(|value| !value.is_null());
    let is_answer = of("result").is_some() || of("error").is_some();
    let id = of("id");
    let Some(method) = of("method").filter(|method| !(method.is_null() && is_answer)) else {
        return match id.filter(|id| !names_nothing(id)) {
            Some(_) if is_answer => "answer",
            None if of("result").is_none_or(Value::is_null) => peer_error(of("error")),
            _ => "bad",
        };
    };
    // Of a request or a notification the version is required.
    let is_named = of("jsonrpc").and_then(Value::as_str) == Some("2.0");
    let is_asked = !has("result") && !has("error");
    // Whether a number is a whole one, and how large, its text says.
    let refused = match id {
        Some(id) if is_asked && (id.is_i64() || is_text(Some(id), 0)) => "bad request",
        Some(id) if is_asked && id.is_f64() => "bad request or bad",
        _ => "bad",
    };
    let Some(method) = method.as_str().filter(|_| is_asked && is_named) else { return refused };
    let has_params =
        of("params").is_none_or(|params| params.is_null() || params.is_object() || params.is_array());
    let is_cancel = |name: &CancelName| name.method == method;
    match id {
        None if is_cancel(&codec.cancel) || codec.also_accepted.iter().any(is_cancel) => "cancel",
        None if has_params => "notification",
        Some(id) if has_params && (id.is_i64() || is_text(Some(id), 0)) => "request",
        Some(id) if has_params && id.is_f64() => "request or bad",
        _ => refused,
    }
}

fn is_no_name(id: &RequestId) -> bool {
    serde_json::from_str(&id.to_string()).is_ok_and(|id: Value| names_nothing(&id))
}

/// Whether an id in an answer counts as none.
fn names_nothing(id: &Value) -> bool {
    match id {
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => true,
        Value::Number(number) => number.as_f64().is_some_and(|number| number < 0.0),
        Value::String(text) => ["", "null", "undefined", "None", "server-error"].contains(&text.as_str()),
    }
}

/// The kind of an error that answers no request. Whether a number is a whole one, and how large, its text says.
fn peer_error(error: Option<&Value>) -> &'static str {
    let Some(error) = error.filter(|error| error["message"].is_string()) else { return "bad" };
    match &error["code"] {
        Value::Number(code) if code.is_i64() => "peer error",
        Value::Number(code) if code.is_f64() => "peer error or bad",
        _ => "bad",
    }
}

/// Whether the value is text that may be an id, with at least this many bytes.
fn is_text(value: Option<&Value>, least: usize) -> bool {
    value.and_then(Value::as_str).is_some_and(|text| (least..=MAX_ID_BYTES).contains(&text.len()))
}

/// The kind of an ABP value in which each member occurs once.
fn naive_abp(value: &Value) -> &'static str {
    let Some(kind) = value.get("type").and_then(Value::as_str) else { return "bad" };
    let payload = value.get("payload").filter(|payload| !payload.is_null());
    let has_id = is_text(value.get("id"), 0);
    let is_object = payload.is_none_or(Value::is_object);
    let of = |name: &str| payload.and_then(|payload| payload.get(name));
    match kind {
        "initialize" if has_id && is_object => "request",
        "capabilities/call" if has_id => {
            let inner = of("options").and_then(|options| options.get("callId"));
            let there = |value: &&Value| !value.is_null();
            let key = inner.filter(there).or(of("callId").filter(there));
            let method = of("capability").and_then(Value::as_str);
            let is_named = method.is_some_and(|method| method != "initialize");
            if is_named && (key.is_none() || is_text(key, 1)) { "request" } else { "bad request" }
        }
        "capabilities/cancel" if has_id => "cancel",
        "initialize" | "capabilities/call" | "capabilities/cancel" => "bad",
        "capabilities/cancel-result" => "ack",
        "notification" => match of("event").or(of("method")) {
            Some(name) if name.is_string() => "notification",
            None if is_object => "notification",
            _ => "bad",
        },
        "progress" | "shutdown" if is_object => "notification",
        _ if kind.ends_with("-result") || kind == "capabilities/result" => match value.get("id") {
            Some(id) if !names_nothing(id) => "answer",
            // Without an id only an error can be meant for the only call.
            _ if is_abp_error(of) => "peer error",
            _ => "bad",
        },
        _ => "bad",
    }
}

/// Whether the members of an answer's payload say that it failed with an error of its own.
fn is_abp_error<'a>(of: impl Fn(&str) -> Option<&'a Value>) -> bool {
    let is = |name: &str, wanted: bool| of(name).and_then(Value::as_bool) == Some(wanted);
    let error = of("error").filter(|error| !error.is_null());
    let code = error.and_then(|error| error.get("code")).and_then(Value::as_str);
    !is("cancelled", true)
        && match error {
            Some(_) => !is("success", true) && code.is_some_and(|code| code != "CANCELLED"),
            None => is("success", false),
        }
}

// The meaning of a message as text for comparison. White space between tokens has no meaning.

/// JSON without the white space between its tokens.
pub(super) fn squeezed(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let (mut in_string, mut escaped) = (false, false);
    for letter in json.chars() {
        if !in_string && matches!(letter, ' ' | '\t' | '\n' | '\r') {
            continue;
        }
        out.push(letter);
        match letter {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ => {}
        }
    }
    out
}

fn meaning_of_raw(value: Option<&RawValue>) -> Option<String> {
    value.map(|value| squeezed(value.get()))
}

fn meaning_of_error(error: &ErrorObject) -> String {
    format!("{:?} {:?} {:?}", error.code, error.message, meaning_of_raw(error.data.as_deref()))
}

fn meaning_of_answer(body: &AnswerBody<'_>) -> String {
    match body {
        AnswerBody::Value(value) => format!("value {}", squeezed(value.get())),
        AnswerBody::Error(error) => format!("error {}", meaning_of_error(error)),
        // After the colon is the text of the peer, with its blanks, and cut off where a log cuts it off.
        AnswerBody::Malformed(fault) => {
            let fault = fault.to_string();
            format!("malformed, {}", fault.split_once(": ").map_or(&*fault, |(what, _)| what))
        }
        other => format!("{other:?}"),
    }
}

fn meaning_of(message: &Incoming<'_>) -> String {
    match message {
        Incoming::Request(request) => format!(
            "request {:?} {:?} {:?} {:?} {:?} {:?} {}",
            request.id,
            request.cancel_key,
            request.method,
            meaning_of_raw(request.params),
            request.exempt,
            meaning_of_raw(request.progress_token),
            request.tag
        ),
        Incoming::Notification { method, params } => {
            format!("notification {method:?} {:?}", meaning_of_raw(*params))
        }
        Incoming::Answer { call, body, deviation } => {
            format!("answer {call:?} {} {deviation:?}", meaning_of_answer(body))
        }
        Incoming::PeerError(error) => format!("peer error {}", meaning_of_error(error)),
        Incoming::Batch(members) => {
            let members: Vec<_> = members.iter().map(|member| squeezed(member.get())).collect();
            format!("batch {members:?}")
        }
        other => format!("{other:?}"),
    }
}
