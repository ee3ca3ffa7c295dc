//! A decoded message is encoded as a message of this side and decoded again.

use std::time::Duration;

use rescind_core::dialect::{CallFrame, Dialect, Refusal, ReplyTo};
use rescind_core::{
    AckStatus, AnswerBody, BadMessage, CallNumber, Cause, CauseKind, ErrorObject, Incoming, IncomingRequest,
    RequestId,
};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::meaning::{of_answer, of_raw, squeezed};

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

pub(super) fn check(dialect: &Dialect, message: &Incoming<'_>) {
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
        let (ours, theirs) = (of_raw(again.params), of_raw(read.params));
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
    let (ours, theirs) = (of_raw(params), of_raw(theirs));
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
            assert_eq!(again, of_answer(&AnswerBody::Cancelled));
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
        assert_eq!(again, of_answer(&AnswerBody::Cancelled));
    } else if is_json_rpc(dialect) {
        assert_eq!(again, of_answer(&AnswerBody::Error(error.clone())));
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
    of_answer(&body)
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
        other => panic!("a refusal was written as {other:?}"),
    }
}
