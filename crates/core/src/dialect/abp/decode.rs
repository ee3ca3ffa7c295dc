//! Reading ABP's envelope.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{
    CALL, CANCEL, CANCEL_RESULT, INITIALIZE, NOTIFICATION, PROGRESS, SHUTDOWN, TAG_CALL, TAG_INITIALIZE, word,
};
use crate::broken_json;
use crate::dialect::json::{self, PickedMembers, Shape};
use crate::dialect::jsonrpc::{is_placeholder_id, padded_number, respelled_number};
use crate::id::{CallNumber, InvalidId, RequestId};
use crate::members::Part;
use crate::message::{
    AnswerBody, AnswerFault, BadMessage, CancelExemption, CancelKey, Deviation, ErrorObject, Incoming,
    IncomingCancel, IncomingRequest,
};

struct Envelope<'a> {
    kind: Cow<'a, str>,
    id: Option<&'a RawValue>,
    payload: Option<&'a RawValue>,
}

pub(super) fn read(frame: &[u8]) -> Result<Incoming<'_>, BadMessage> {
    let Envelope { kind, id, payload } = read_envelope(frame)?;
    match &*kind {
        INITIALIZE => Ok(Incoming::Request(IncomingRequest {
            id: text_id(id)?,
            cancel_key: CancelKey::None,
            method: Cow::Borrowed(INITIALIZE),
            params: object(payload)?,
            exempt: CancelExemption::No,
            progress_token: None,
            tag: TAG_INITIALIZE,
        })),
        CALL => Ok(read_call(text_id(id)?, payload)),
        CANCEL => Ok(Incoming::Cancel(read_cancel(text_id(id)?, payload))),
        CANCEL_RESULT => Ok(read_ack(id, payload)),
        NOTIFICATION => read_notification(payload),
        PROGRESS | SHUTDOWN => Ok(Incoming::Notification { method: kind, params: object(payload)? }),
        // As in JSON-RPC, its error may be that of the only call, and its result is nobody's.
        _ if is_answer(kind.as_bytes()) && id.is_none_or(|id| is_placeholder_id(id.get())) => {
            match read_answer(payload, kind.starts_with("capabilities/")) {
                AnswerBody::Error(error) => Ok(Incoming::PeerError(error)),
                AnswerBody::Value(_) | AnswerBody::Cancelled | AnswerBody::Malformed(_) => {
                    Err(BadMessage::NoId)
                }
            }
        }
        _ if is_answer(kind.as_bytes()) => {
            let (call, deviation) = if let Some(call) = id.and_then(call_number) {
                (Some(call), None)
            } else {
                let call = id.and_then(|id| respelled_number(id.get()));
                let padded = id.filter(|_| call.is_none()).and_then(|id| padded_number(id.get()));
                if let Some((call, fault)) = padded {
                    let body = AnswerBody::Malformed(fault);
                    return Ok(Incoming::Answer { call: Some(call), body, deviation: None });
                }
                (call, call.map(|_| Deviation::IdSpelling))
            };
            Ok(Incoming::Answer {
                call,
                body: read_answer(payload, kind.starts_with("capabilities/")),
                deviation,
            })
        }
        _ => Err(BadMessage::NoKind),
    }
}

fn is_answer(kind: &[u8]) -> bool {
    kind.ends_with(b"-result") || kind == b"capabilities/result"
}

/// The call that a frame names which is not a message, if its `type` is that of an answer.
pub(super) fn read_unreadable(frame: &[u8], why: BadMessage) -> Option<(Option<CallNumber>, AnswerFault)> {
    let Some((text, fault)) = json::reencoded(frame) else { return read_broken(frame, why) };
    match read(text.as_bytes()) {
        Ok(Incoming::Answer { call: Some(call), .. }) => Some((Some(call), fault)),
        Ok(_) => None,
        Err(why) => read_broken(text.as_bytes(), why).map(|(call, _)| (call, fault)),
    }
}

fn read_broken(frame: &[u8], why: BadMessage) -> Option<(Option<CallNumber>, AnswerFault)> {
    let fault = AnswerFault::of(frame, why);
    let (mut id, mut kind, mut certain, mut is_one) = (None, None, true, true);
    let end = fault.place().unwrap_or(frame.len());
    broken_json::members(frame, end, |name, value| match name {
        b"id" => is_one &= id.replace(value).is_none_or(|former| former == value),
        b"type" => certain &= kind.replace(value).is_none_or(|former| former == value),
        // An escape may spell either of the two.
        name => certain &= !name.contains(&b'\\'),
    });
    let kind = kind?.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if !certain || !is_answer(kind) {
        return None;
    }
    let Some(id) = id.filter(|_| is_one) else { return Some((None, fault)) };
    respelled_number(std::str::from_utf8(id).ok()?).map(|call| (Some(call), fault))
}

/// Whether the frame is an object with a text `type`. Messages of other dialects have none.
pub(super) fn has_type(frame: &[u8]) -> bool {
    read_envelope(frame).is_ok()
}

fn read_envelope(frame: &[u8]) -> Result<Envelope<'_>, BadMessage> {
    let text = json::text(frame)?;
    if json::shape(text) != Shape::Object {
        return Err(json::not_an_object(text));
    }
    let members = json::envelope(text, ["type", "id", "payload", "timestamp"])?;
    let [kind, id, payload, _] = members.map(|member| member.and_then(Part::raw));
    let kind = kind.and_then(json::string).ok_or(BadMessage::WrongVersion)?;
    Ok(Envelope { kind, id, payload: json::present(payload) })
}

/// A payload that is passed on as params.
fn object(payload: Option<&RawValue>) -> Result<Option<&RawValue>, BadMessage> {
    match payload {
        Some(payload) if json::shape(payload.get()) != Shape::Object => Err(BadMessage::InvalidParams),
        payload => Ok(payload),
    }
}

/// An envelope id. It is always a text.
fn text_id(id: Option<&RawValue>) -> Result<RequestId, BadMessage> {
    let id = id.ok_or(BadMessage::InvalidId(InvalidId::NotAnId))?;
    text_key(id).map_err(BadMessage::InvalidId)
}

fn text_key(key: &RawValue) -> Result<RequestId, InvalidId> {
    RequestId::text(&json::string(key).ok_or(InvalidId::NotAnId)?)
}

/// Reads a call. A call that cannot be read is refused with its envelope id.
fn read_call(id: RequestId, payload: Option<&RawValue>) -> Incoming<'_> {
    match call_of(payload) {
        Ok(Called { cancel_key, method, params, progress_token }) => Incoming::Request(IncomingRequest {
            id,
            cancel_key,
            method,
            params,
            exempt: CancelExemption::No,
            progress_token,
            tag: TAG_CALL,
        }),
        Err(why) => Incoming::BadRequest { id, tag: TAG_CALL, why },
    }
}

struct Called<'a> {
    cancel_key: CancelKey,
    method: Cow<'a, str>,
    params: Option<&'a RawValue>,
    progress_token: Option<&'a RawValue>,
}

fn call_of(payload: Option<&RawValue>) -> Result<Called<'_>, BadMessage> {
    let PickedMembers { values: [capability, params, options, outer], .. } =
        PickedMembers::of(payload, ["capability", "params", "options", "callId"]);
    let PickedMembers { values: [inner, token], .. } =
        PickedMembers::of(options, ["callId", "progressToken"]);
    let method = capability.and_then(json::string).ok_or(BadMessage::InvalidMethod)?;
    // Only the envelope opens a session. A capability with that name would be mistaken for it.
    if method == INITIALIZE {
        return Err(BadMessage::InvalidMethod);
    }
    // ABP-11: a call may have no callId. An empty callId is an error of its caller, because no cancel could name it.
    let cancel_key = match json::present(inner).or(json::present(outer)) {
        None => CancelKey::None,
        Some(key) if key.get() == r#""""# => return Err(BadMessage::InvalidId(InvalidId::NotAnId)),
        Some(key) => CancelKey::Named(text_key(key).map_err(BadMessage::InvalidId)?),
    };
    Ok(Called { cancel_key, method, params: json::present(params), progress_token: json::present(token) })
}

fn read_cancel(ack: RequestId, payload: Option<&RawValue>) -> IncomingCancel {
    let PickedMembers { values: [key, reason], twice } = PickedMembers::of(payload, ["callId", "reason"]);
    IncomingCancel {
        key: key.filter(|_| !twice).map_or(Err(InvalidId::NotAnId), text_key),
        reason: reason.and_then(json::string).map(Cow::into_owned),
        ack: Some(ack),
    }
}

/// Reads all three forms: `{callId, cancelled, reason?}`, `{.., error}` and a bare `{code}`. Only the id of the
/// envelope is compared, because starter apps leave the callId empty.
fn read_ack<'a>(id: Option<&'a RawValue>, payload: Option<&'a RawValue>) -> Incoming<'a> {
    let PickedMembers { values: [cancelled, reason, error, code], .. } =
        PickedMembers::of(payload, ["cancelled", "reason", "error", "code"]);
    let PickedMembers { values: [message, error_code], .. } = PickedMembers::of(error, ["message", "code"]);
    Incoming::Ack {
        cancel: id.and_then(call_number),
        cancelled: cancelled.is_some_and(|cancelled| cancelled.get() == "true"),
        reason: [reason, message, error_code, code].into_iter().flatten().find_map(json::string),
    }
}

fn read_notification(payload: Option<&RawValue>) -> Result<Incoming<'_>, BadMessage> {
    let PickedMembers { values: [event, data, method, params], .. } =
        PickedMembers::of(payload, ["event", "data", "method", "params"]);
    let (name, params) = match (event, method) {
        (Some(event), _) => (event, data),
        (None, Some(method)) => (method, params),
        (None, None) => {
            return Ok(Incoming::Notification {
                method: Cow::Borrowed(NOTIFICATION),
                params: object(payload)?,
            });
        }
    };
    let method = json::string(name).ok_or(BadMessage::InvalidMethod)?;
    Ok(Incoming::Notification { method, params: json::present(params) })
}

fn read_answer(payload: Option<&RawValue>, of_capability: bool) -> AnswerBody<'_> {
    let PickedMembers { values: [success, data, error, cancelled], .. } =
        PickedMembers::of(payload, ["success", "data", "error", "cancelled"]);
    let (data, error) = (json::present(data), json::present(error));
    if cancelled.is_some_and(|cancelled| cancelled.get() == "true") {
        return AnswerBody::Cancelled;
    }
    match (success.map(RawValue::get), error) {
        (Some("true"), None) if of_capability => AnswerBody::Value(data.unwrap_or(RawValue::NULL)),
        (Some("true"), None) => AnswerBody::Value(data.or(payload).unwrap_or(RawValue::NULL)),
        (Some("true"), Some(_)) => {
            AnswerBody::Malformed(AnswerFault::new("it says success and has an error"))
        }
        (_, Some(error)) => read_error(error),
        (None, None) if !of_capability => AnswerBody::Value(payload.unwrap_or(RawValue::NULL)),
        (Some("false"), None) => {
            AnswerBody::Error(ErrorObject::new(word::code(word::OPERATION_FAILED), "Operation failed"))
        }
        (Some(_) | None, None) => {
            AnswerBody::Malformed(AnswerFault::new("it has neither success nor an error"))
        }
    }
}

/// The error as an [`ErrorObject`]: ABP's own object is in its data, and ABP's word in `data.code`.
fn read_error(error: &RawValue) -> AnswerBody<'_> {
    let PickedMembers { values: [code, message], .. } = PickedMembers::of(Some(error), ["code", "message"]);
    let Some(code) = code.and_then(json::string) else {
        return AnswerBody::Malformed(AnswerFault::new("its error has no code"));
    };
    if code == word::CANCELLED {
        return AnswerBody::Cancelled;
    }
    let message = message.and_then(json::string).unwrap_or_else(|| code.clone());
    let mut read = ErrorObject::new(word::code(&code), message);
    read.data = Some(error.to_owned());
    AnswerBody::Error(read)
}

pub(super) fn read_progressed_call(method: &str, params: Option<&RawValue>) -> Option<CallNumber> {
    if method != PROGRESS {
        return None;
    }
    call_number(json::member(params, "progressToken")?)
}

/// The call that a text names, if the text is spelled exactly as this side writes numbers.
fn call_number(id: &RawValue) -> Option<CallNumber> {
    let text = json::string(id)?;
    let plain = *text == *"0" || (!text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()));
    if plain { text.parse().ok().map(CallNumber) } else { None }
}
