//! The Debug Adapter Protocol: an envelope of its own, and a cancel that is a request with a response.

use std::borrow::Cow;

use rescind::dialect::{
    AckStyle, CallFrame, CancelFrom, CancelledReply, Codec, Dialect, Handshake, HandshakePart, Refusal,
    RefusalStyle, ReplyTo, Rules,
};
use rescind::machine::{
    AckStatus, AnswerBody, BadMessage, CallNumber, CancelExemption, CancelKey, Incoming, IncomingCancel,
    IncomingRequest, InvalidId,
};
use rescind::{Cause, ErrorCode, ErrorObject, Framing, RequestId};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The commands that this adapter knows. A response repeats the command of its request, so the codec marks each request
/// with the index of its command in this list.
const COMMANDS: [&str; 4] = ["", "initialize", "evaluate", "cancel"];

fn command_of(tag: u8) -> &'static str {
    COMMANDS.get(usize::from(tag)).copied().unwrap_or_default()
}

fn tag_of(command: &str) -> u8 {
    (0..).zip(COMMANDS).find(|(_, known)| *known == command).map_or(0, |(tag, _)| tag)
}

#[derive(Debug)]
struct DebugAdapter;

#[derive(Deserialize)]
struct Frame<'a> {
    seq: i64,
    #[serde(rename = "type")]
    kind: &'a str,
    command: Option<&'a str>,
    event: Option<&'a str>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
    request_seq: Option<u64>,
    success: Option<bool>,
    message: Option<&'a str>,
}

#[derive(Deserialize)]
struct CancelArguments {
    #[serde(rename = "requestId")]
    request_id: Option<i64>,
}

fn decode(frame: &[u8]) -> Option<Incoming<'_>> {
    let frame: Frame<'_> = serde_json::from_slice(frame).ok()?;
    let (id, call) = (RequestId::number(frame.seq), frame.request_seq.map(CallNumber));
    Some(match (frame.kind, frame.command) {
        ("request", Some("cancel")) => {
            let arguments: Option<CancelArguments> =
                frame.arguments.and_then(|arguments| serde_json::from_str(arguments.get()).ok());
            let key = arguments.and_then(|arguments| arguments.request_id);
            let key = key.map(RequestId::number).ok_or(InvalidId::NotAnId);
            Incoming::Cancel(IncomingCancel { key, reason: None, ack: Some(id) })
        }
        ("request", Some(command)) => Incoming::Request(IncomingRequest {
            id,
            cancel_key: CancelKey::SameAsId,
            method: Cow::Borrowed(command),
            params: frame.arguments,
            exempt: CancelExemption::No,
            progress_token: None,
            tag: tag_of(command),
        }),
        ("response", Some("cancel")) => Incoming::Ack {
            cancel: call,
            cancelled: frame.success == Some(true),
            reason: frame.message.map(Cow::Borrowed),
        },
        ("response", _) => Incoming::Answer {
            call,
            deviation: None,
            body: match (frame.success, frame.message) {
                (Some(true), _) => AnswerBody::Value(frame.body.unwrap_or(RawValue::NULL)),
                (_, Some("cancelled")) => AnswerBody::Cancelled,
                (_, message) => {
                    let message = message.unwrap_or("failed");
                    AnswerBody::Error(ErrorObject::new(ErrorCode::INTERNAL_ERROR, message))
                }
            },
        },
        ("event", _) => Incoming::Notification { method: Cow::Borrowed(frame.event?), params: frame.body },
        _ => return None,
    })
}

fn push(out: &mut Vec<u8>, value: &Value) {
    out.extend_from_slice(value.to_string().as_bytes());
}

fn respond(out: &mut Vec<u8>, id: &RequestId, command: &str, success: bool, message: Option<&str>) {
    push(
        out,
        &json!({
            "seq": 0, "type": "response", "request_seq": id, "command": command, "success": success,
            "message": message,
        }),
    );
}

impl Codec for DebugAdapter {
    fn decode<'a>(&self, frame: &'a [u8]) -> Incoming<'a> {
        decode(frame).unwrap_or(Incoming::Bad(BadMessage::NotJson))
    }

    fn encode_request(&self, _: &Rules, out: &mut Vec<u8>, call: &CallFrame<'_>) {
        let (seq, command, arguments) = (call.number.0, call.method, call.params);
        push(out, &json!({"seq": seq, "type": "request", "command": command, "arguments": arguments}));
    }

    fn encode_notification(&self, _: &Rules, out: &mut Vec<u8>, method: &str, params: Option<&RawValue>) {
        push(out, &json!({"seq": 0, "type": "event", "event": method, "body": params}));
    }

    fn encode_value(&self, _: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, value: &RawValue) {
        push(
            out,
            &json!({
                "seq": 0, "type": "response", "request_seq": to.id, "command": command_of(to.tag), "success": true,
                "body": value,
            }),
        );
    }

    fn encode_error(&self, _: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, error: &ErrorObject) {
        respond(out, to.id, command_of(to.tag), false, Some(&error.message));
    }

    fn encode_cancelled(&self, _: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, _: &Cause) {
        respond(out, to.id, command_of(to.tag), false, Some("cancelled"));
    }

    fn encode_refusal(&self, _: &Rules, out: &mut Vec<u8>, to: Option<&ReplyTo<'_>>, why: Refusal) -> bool {
        to.inspect(|to| respond(out, to.id, command_of(to.tag), false, Some(&format!("{why:?}")))).is_some()
    }

    fn encode_cancel(
        &self,
        _: &Rules,
        out: &mut Vec<u8>,
        call: CallNumber,
        cancel: CallNumber,
        _: u128,
        _: Option<&str>,
    ) {
        let arguments = json!({"requestId": call.0});
        let frame = json!({"seq": cancel.0, "type": "request", "command": "cancel", "arguments": arguments});
        push(out, &frame);
    }

    fn encode_ack(
        &self,
        _: &Rules,
        out: &mut Vec<u8>,
        ack: &RequestId,
        _: Option<&RequestId>,
        status: AckStatus,
    ) -> bool {
        respond(out, ack, "cancel", status == AckStatus::Cancelled, None);
        true
    }

    fn read_handshake(&self, _: HandshakePart, _: &RawValue) -> Handshake {
        Handshake::default()
    }

    fn declare(&self, _: HandshakePart, _: &RawValue, _: bool) -> Option<Box<RawValue>> {
        None
    }

    fn recognises(&self, _: &Rules, frame: &[u8]) -> bool {
        matches!(decode(frame), Some(Incoming::Request(request)) if request.method == "initialize")
    }
}

pub(crate) fn debug_adapter() -> Dialect {
    Dialect::builder("dap")
        .codec(DebugAdapter)
        .handshake("initialize")
        .peer_cancelled(CancelledReply::OwnShape)
        .ack(AckStyle::Acknowledged)
        .cancel_from(CancelFrom::Client)
        .refusal(RefusalStyle::Nothing)
        .framing(Framing::ContentLength)
        .build()
}
