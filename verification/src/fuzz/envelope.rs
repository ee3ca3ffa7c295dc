//! A dialect's envelope: any bytes can be decoded to some result, every decoder agrees, and the result can be
//! encoded.

use bytes::BytesMut;
use rescind_core::dialect::{self, Dialect, HandshakePart, negotiate};
use rescind_core::{AnswerBody, BadFrame, BadMessage, Decoded, Framing, Incoming};
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{meaning, naive, round_trip};

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
            round_trip::check(dialect, &dialect.codec().decode(member.get().as_bytes()));
        }
    }
    round_trip::check(dialect, &message);
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
                && (error["code"].is_i64() || error["code"].is_string() || error["code"].is_u64())
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
        Some(codec) => naive::json_rpc(codec, value),
        None => naive::abp(value),
    };
    let kind = naive::kind(&message);
    let either = expected == "request or bad" && matches!(kind, "request" | "bad");
    assert!(kind == expected || either, "{message:?} was read out of {frame}, which is {expected}");
}

/// A frame that is not a message ends a call only if it can be nothing but that call's answer.
fn unreadable(dialect: &Dialect, frame: &[u8], why: BadMessage, value: Option<&Value>) {
    let Some((call, _)) = dialect.codec().unreadable_answer(frame, why) else { return };
    let Some(value) = value else {
        let id = frame.windows(2).find(|pair| *pair == b"id");
        assert!(id.is_some(), "{call:?} is named by no id");
        return;
    };
    let (id, number) = (&value["id"], call.0.to_string());
    let spelled = id.as_str().map_or_else(|| id.to_string(), ToOwned::to_owned);
    let is_same = spelled == number || spelled.parse::<f64>().is_ok_and(|id| id.to_string() == number);
    let is_answer = value.get("method").is_none() || !value["result"].is_null() || !value["error"].is_null();
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
        let again = meaning::of(&dialect.codec().decode(&body));
        assert_eq!(again, meaning::of(message), "{framing:?} changed the message");
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
        assert_eq!(meaning::of(&again), meaning::of(message), "one member more changed {text}");
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
