//! Writing ABP's envelope.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::value::RawValue;

use super::{
    CALL, CANCEL, CANCEL_RESULT, INITIALIZE, NOTIFICATION, PROGRESS, SHUTDOWN, TAG_INITIALIZE, word,
};
use crate::cause::{Cause, CauseKind};
use crate::dialect::json::{self, PickedMembers, push, push_json, push_number, push_string};
use crate::dialect::rules::{CallFrame, Refusal, ReplyTo, STOPPED_BY_OPERATOR};
use crate::id::{CallNumber, RequestId};
use crate::message::{AckStatus, BadMessage, ErrorObject};

pub(super) fn request(out: &mut Vec<u8>, call: &CallFrame<'_>) {
    let params = json::present(call.params);
    if call.method == INITIALIZE {
        start_ours(out, INITIALIZE, call.number);
        push_json(out, params.map_or("{}", RawValue::get));
        out.push(b'}');
        return;
    }
    start_ours(out, CALL, call.number);
    push(out, r#"{"capability":"#);
    push_string(out, call.method);
    if let Some(params) = params {
        push(out, r#","params":"#);
        push_json(out, params.get());
    }
    push(out, r#","options":{"#);
    if let Some(timeout) = call.timeout {
        push(out, r#""timeout":"#);
        push_number(out, timeout.as_millis());
        out.push(b',');
    }
    if call.progress {
        push(out, r#""progressToken":""#);
        push_number(out, call.number.0);
        push(out, r#"","#);
    }
    push_call_id(out, call.seed, call.number);
    push(out, "}}}");
}

pub(super) fn cancel(
    out: &mut Vec<u8>,
    call: CallNumber,
    cancel: CallNumber,
    seed: u128,
    reason: Option<&str>,
) {
    start_ours(out, CANCEL, cancel);
    out.push(b'{');
    push_call_id(out, seed, call);
    if let Some(reason) = reason {
        push(out, r#","reason":"#);
        push_string(out, reason);
    }
    push(out, "}}");
}

pub(super) fn notification(out: &mut Vec<u8>, method: &str, params: Option<&RawValue>) {
    let params = json::present(params);
    let own_type = matches!(method, PROGRESS | SHUTDOWN);
    push(out, r#"{"type":"#);
    push_string(out, if own_type { method } else { NOTIFICATION });
    push_timestamp(out);
    if own_type {
        push_json(out, params.map_or("{}", RawValue::get));
    } else {
        push(out, r#"{"event":"#);
        push_string(out, method);
        if let Some(params) = params {
            push(out, r#","data":"#);
            push_json(out, params.get());
        }
        out.push(b'}');
    }
    out.push(b'}');
}

pub(super) fn value(out: &mut Vec<u8>, to: &ReplyTo<'_>, value: &RawValue) {
    start_answer(out, to);
    if to.tag == TAG_INITIALIZE {
        push_json(out, value.get());
    } else {
        push(out, r#"{"success":true,"data":"#);
        push_json(out, value.get());
        out.push(b'}');
    }
    out.push(b'}');
}

pub(super) fn error(out: &mut Vec<u8>, to: &ReplyTo<'_>, error: &ErrorObject) {
    let PickedMembers { values: [code, retryable, details], .. } =
        PickedMembers::of(error.data.as_deref(), ["code", "retryable", "details"]);
    let code = code.and_then(json::string);
    // Only the cancelled answer says "cancelled", so that the answer and the acknowledgement never disagree (ABP-25).
    let code = match code.as_deref() {
        Some(word::CANCELLED) => word::OPERATION_FAILED,
        Some(code) => code,
        None => word::of(error.code),
    };
    let retryable = match retryable.map(RawValue::get) {
        Some(said) => said == "true",
        None => word::is_retryable(code),
    };
    start_answer(out, to);
    push(out, r#"{"success":false,"error":"#);
    push_error(out, code, &error.message, retryable);
    match json::present(details) {
        Some(details) => {
            // Reopen the error object: the details follow the members that every error has.
            out.pop();
            push(out, r#","details":"#);
            push_json(out, details.get());
            push(out, "}}}");
        }
        None => push(out, "}}"),
    }
}

pub(super) fn cancelled(out: &mut Vec<u8>, to: &ReplyTo<'_>, cause: &Cause) {
    start_answer(out, to);
    push(out, r#"{"success":false,"cancelled":true"#);
    if cause.kind() == CauseKind::Operator {
        push(out, r#","error":"#);
        push_error(out, word::CANCELLED, STOPPED_BY_OPERATOR, false);
    }
    push(out, "}}");
}

/// ABP has no message about a frame without an id. A second call with an id in use gets no answer either, because the
/// peer would take it for the answer of the first call.
pub(super) fn refusal(out: &mut Vec<u8>, to: Option<&ReplyTo<'_>>, why: Refusal) -> bool {
    let Some(to) = to else { return false };
    let (code, message) = match why {
        Refusal::DuplicateId => return false,
        Refusal::Bad(BadMessage::InvalidMethod) => {
            (word::INVALID_PARAMS, "The call's payload names no capability".to_owned())
        }
        Refusal::Bad(BadMessage::InvalidId(_)) => {
            let most = crate::id::MAX_ID_BYTES;
            (word::INVALID_PARAMS, format!("A callId is a string of 1 to {most} bytes"))
        }
        Refusal::Bad(why) => (word::INVALID_PARAMS, format!("Invalid message: {why}")),
        Refusal::Overloaded(limit) => (word::RATE_LIMITED, format!("Overloaded: {limit}")),
        Refusal::MethodNotFound => (word::UNKNOWN_CAPABILITY, "Unknown capability".to_owned()),
        Refusal::NotInitialized | Refusal::ShutDown => {
            (word::NOT_INITIALIZED, NOT_INITIALIZED_TEXT.to_owned())
        }
        Refusal::DuplicateKey => {
            (word::INVALID_PARAMS, "The callId belongs to a call that is still running".to_owned())
        }
        Refusal::Internal => (word::INTERNAL_ERROR, "Internal error".to_owned()),
    };
    start_answer(out, to);
    push(out, r#"{"success":false,"error":"#);
    push_error(out, code, &message, word::is_retryable(code));
    push(out, "}}");
    true
}

const NOT_INITIALIZED_TEXT: &str = "The session is not initialized; send initialize first";

/// The acknowledgement, as the edge table of ABP's document defines it for each case.
pub(super) fn ack(out: &mut Vec<u8>, ack: &RequestId, key: Option<&RequestId>, status: AckStatus) {
    start(out, CANCEL_RESULT);
    ack.write_json(out);
    push_timestamp(out);
    push(out, r#"{"callId":"#);
    match key {
        Some(key) => key.write_json(out),
        None => push(out, r#""""#),
    }
    match status {
        AckStatus::Cancelled => push(out, r#","cancelled":true"#),
        AckStatus::NotFound => push(out, r#","cancelled":false,"reason":"Operation not found""#),
        AckStatus::AlreadyCompleted => {
            push(out, r#","cancelled":false,"reason":"Operation already completed""#);
        }
        AckStatus::NotCancellable => {
            push(out, r#","cancelled":false,"reason":"Operation cannot be cancelled""#);
        }
        AckStatus::InvalidKey => {
            push(out, r#","cancelled":false,"error":"#);
            push_error(out, word::INVALID_PARAMS, "callId must be a string", false);
        }
        AckStatus::NotInitialized => {
            push(out, r#","cancelled":false,"error":"#);
            push_error(out, word::NOT_INITIALIZED, NOT_INITIALIZED_TEXT, true);
        }
        AckStatus::Overloaded => {
            push(out, r#","cancelled":false,"error":"#);
            push_error(out, word::RATE_LIMITED, "Overloaded: parked", true);
        }
    }
    push(out, "}}");
}

fn start(out: &mut Vec<u8>, kind: &str) {
    push(out, r#"{"type":""#);
    push(out, kind);
    push(out, r#"","id":"#);
}

fn start_ours(out: &mut Vec<u8>, kind: &str, number: CallNumber) {
    start(out, kind);
    out.push(b'"');
    push_number(out, number.0);
    out.push(b'"');
    push_timestamp(out);
}

fn start_answer(out: &mut Vec<u8>, to: &ReplyTo<'_>) {
    start(out, if to.tag == TAG_INITIALIZE { "initialize-result" } else { "capabilities/call-result" });
    to.id.write_json(out);
    push_timestamp(out);
}

fn push_timestamp(out: &mut Vec<u8>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    push(out, r#","timestamp":"#);
    push_number(out, now);
    push(out, r#","payload":"#);
}

fn push_error(out: &mut Vec<u8>, code: &str, message: &str, retryable: bool) {
    push(out, r#"{"code":"#);
    push_string(out, code);
    push(out, r#","message":"#);
    push_string(out, message);
    push(out, if retryable { r#","retryable":true}"# } else { r#","retryable":false}"# });
}

/// `"callId":"..."`: it has the form of a UUID and is made from the connection's seed, so that the cancel can compute
/// it again. Its low 62 bits differ for every two calls of a connection.
fn push_call_id(out: &mut Vec<u8>, seed: u128, call: CallNumber) {
    let mixed = seed.wrapping_add(u128::from(call.0));
    let id = (mixed & !(0xf << 76) & !(0b11 << 62)) | (0x4 << 76) | (0b10 << 62);
    push(out, r#""callId":""#);
    // A write into memory cannot fail.
    drop(write!(
        out,
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        id >> 96,
        (id >> 80) & 0xffff,
        (id >> 64) & 0xffff,
        (id >> 48) & 0xffff,
        id & 0xffff_ffff_ffff
    ));
    out.push(b'"');
}
