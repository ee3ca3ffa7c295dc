//! ABP's envelope and the edge table of its document.

use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::ABP;
use crate::dialect::{CallFrame, Refusal, ReplyTo};
use crate::message::{AnswerBody, CancelKey, Incoming};
use crate::{
    AckStatus, BadMessage, CallNumber, Cause, CauseKind, Deviation, ErrorCode, ErrorObject, InvalidId,
    RequestId,
};

const SEED: u128 = 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210;

fn raw(text: &str) -> &RawValue {
    serde_json::from_str(text).unwrap()
}

/// The written bytes, with the timestamp checked and removed, so that they can be compared.
fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut out);
    let text = String::from_utf8(out).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let timestamp = value["timestamp"].as_u64().unwrap();
    assert!(timestamp > 1_600_000_000_000, "Unix milliseconds: {timestamp}");
    text.replace(&timestamp.to_string(), "0")
}

fn to(id: &RequestId) -> ReplyTo<'_> {
    ReplyTo { id, tag: super::TAG_CALL, server_cancellable: false }
}

fn ack(key: Option<&str>, status: AckStatus) -> String {
    let id = RequestId::text("c9").unwrap();
    let key = key.map(|key| RequestId::text(key).unwrap());
    let text = written(|out| assert!(ABP.codec().encode_ack(ABP.rules(), out, &id, key.as_ref(), status)));
    text.replace(r#"{"type":"capabilities/cancel-result","id":"c9","timestamp":0,"payload":"#, "")
}

fn answer(payload: &Value) -> String {
    let frame = json!({"type": "capabilities/call-result", "id": "7", "payload": payload}).to_string();
    match ABP.codec().decode(frame.as_bytes()) {
        Incoming::Answer { call: Some(CallNumber(7)), body, .. } => format!("{body:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cancel_names_the_call_id_its_call_was_written_with() {
    let mut ids = std::collections::HashSet::new();
    for number in [1, 2, 3, 1 << 40] {
        let call = CallFrame::new(CallNumber(number), SEED, "export.pdf", None);
        let text = written(|out| ABP.codec().encode_request(ABP.rules(), out, &call));
        let Incoming::Request(request) = ABP.codec().decode(text.as_bytes()) else { panic!("{text}") };
        let CancelKey::Named(key) = request.cancel_key else { panic!("{text}") };
        assert_eq!(request.id, RequestId::text(&number.to_string()).unwrap());
        let text = written(|out| {
            let reason = Some("stop");
            ABP.codec().encode_cancel(ABP.rules(), out, CallNumber(number), CallNumber(99), SEED, reason);
        });
        let Incoming::Cancel(cancel) = ABP.codec().decode(text.as_bytes()) else { panic!("{text}") };
        assert_eq!(cancel.key.as_ref(), Ok(&key));
        assert_eq!(cancel.ack, Some(RequestId::text("99").unwrap()));
        assert_eq!(cancel.reason.as_deref(), Some("stop"));
        let shape: Vec<usize> = key.as_text().unwrap().split('-').map(str::len).collect();
        assert_eq!(shape, [8, 4, 4, 4, 12]);
        assert!(ids.insert(key));
    }
}

#[test]
fn a_call_is_written_with_all_its_options() {
    let mut call = CallFrame::new(CallNumber(7), 0, "a.b", Some(raw("{\"x\": 1}")));
    call.timeout = Some(Duration::from_millis(1500));
    call.progress = true;
    let text = written(|out| ABP.codec().encode_request(ABP.rules(), out, &call));
    let options = r#"{"timeout":1500,"progressToken":"7","callId":"00000000-0000-4000-8000-000000000007"}"#;
    let payload = format!(r#"{{"capability":"a.b","params":{{"x": 1}},"options":{options}}}"#);
    let envelope = r#"{"type":"capabilities/call","id":"7","timestamp":0,"payload":"#;
    assert_eq!(text, format!("{envelope}{payload}}}"));
    let reported = Some(raw(r#"{"progressToken":"7","progress":1}"#));
    assert_eq!(ABP.codec().progressed_call("progress", reported), Some(CallNumber(7)));
}

#[test]
fn a_cancelled_call_is_answered_with_nothing_but_that() {
    let id = RequestId::text("e1").unwrap();
    for kind in [CauseKind::Peer, CauseKind::Deadline] {
        let text = written(|out| {
            ABP.codec().encode_cancelled(ABP.rules(), out, &to(&id), &Cause::new(kind));
        });
        let envelope = r#"{"type":"capabilities/call-result","id":"e1","timestamp":0,"payload":"#;
        assert_eq!(text, format!(r#"{envelope}{{"success":false,"cancelled":true}}}}"#));
    }
}

#[test]
fn the_answer_to_a_call_that_an_operator_stopped_says_so() {
    let id = RequestId::text("e1").unwrap();
    let text = written(|out| {
        ABP.codec().encode_cancelled(ABP.rules(), out, &to(&id), &Cause::new(CauseKind::Operator));
    });
    let error = r#"{"code":"CANCELLED","message":"Request cancelled by an operator","retryable":false}"#;
    assert!(text.ends_with(&format!(r#"{{"success":false,"cancelled":true,"error":{error}}}}}"#)), "{text}");
    let text = text.replace("e1", "1");
    let Incoming::Answer { body, .. } = ABP.codec().decode(text.as_bytes()) else {
        panic!("it is an answer: {text}");
    };
    assert!(matches!(body, AnswerBody::Cancelled), "{body:?}");
}

#[test]
fn acknowledgements_match_the_edge_table() {
    assert_eq!(ack(Some("k"), AckStatus::Cancelled), r#"{"callId":"k","cancelled":true}}"#);
    let not_found = r#"{"callId":"k","cancelled":false,"reason":"Operation not found"}}"#;
    assert_eq!(ack(Some("k"), AckStatus::NotFound), not_found);
    let completed = r#"{"callId":"k","cancelled":false,"reason":"Operation already completed"}}"#;
    assert_eq!(ack(Some("k"), AckStatus::AlreadyCompleted), completed);
    let invalid = r#"{"callId":"","cancelled":false,"error":{"code":"INVALID_PARAMS","message":"callId must be a string","retryable":false}}}"#;
    assert_eq!(ack(None, AckStatus::InvalidKey), invalid);
    let closed = ack(Some("k"), AckStatus::NotInitialized);
    assert!(closed.starts_with(r#"{"callId":"k","cancelled":false,"error":{"code":"NOT_INITIALIZED","#));
    assert!(closed.ends_with(r#""retryable":true}}}"#));
    let many = r#"{"callId":"k","cancelled":false,"error":{"code":"RATE_LIMITED","message":"Overloaded: parked","retryable":true}}}"#;
    assert_eq!(ack(Some("k"), AckStatus::Overloaded), many);
}

#[test]
fn an_ack_is_read_in_all_its_forms_and_paired_by_its_envelope() {
    for (payload, cancelled, reason) in [
        (json!({"callId": "k", "cancelled": true}), true, None),
        (json!({"callId": "", "cancelled": false}), false, None),
        (json!({"callId": "k", "cancelled": false, "reason": "gone"}), false, Some("gone")),
        (
            json!({"callId": "k", "cancelled": false, "error": {"code": "C", "message": "m"}}),
            false,
            Some("m"),
        ),
        (json!({"success": false, "error": {"code": "NOT_INITIALIZED"}}), false, Some("NOT_INITIALIZED")),
        (json!({"code": "NOT_INITIALIZED"}), false, Some("NOT_INITIALIZED")),
        (json!(7), false, None),
    ] {
        let frame = json!({"type": "capabilities/cancel-result", "id": "9", "payload": payload}).to_string();
        match ABP.codec().decode(frame.as_bytes()) {
            Incoming::Ack { cancel: Some(CallNumber(9)), cancelled: said, reason: why } => {
                assert_eq!((said, why.as_deref()), (cancelled, reason), "{frame}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_call_without_a_call_id_is_served_but_cannot_be_cancelled_by_id() {
    let key = |payload: Value| {
        let frame = json!({"type": "capabilities/call", "id": "1", "payload": payload}).to_string();
        match ABP.codec().decode(frame.as_bytes()) {
            Incoming::Request(request) => request.cancel_key,
            other => panic!("{other:?}"),
        }
    };
    let named = |key: &str| CancelKey::Named(RequestId::text(key).unwrap());
    assert_eq!(key(json!({"capability": "a", "options": {"callId": "k"}, "callId": "top"})), named("k"));
    assert_eq!(key(json!({"capability": "a", "options": {}, "callId": "top"})), named("top"));
    assert_eq!(key(json!({"capability": "a"})), CancelKey::None);
    assert_eq!(key(json!({"capability": "a", "options": {"callId": null}})), CancelKey::None);
}

#[test]
fn a_call_that_cannot_be_read_is_refused_under_its_id() {
    let not_an_id = BadMessage::InvalidId(InvalidId::NotAnId);
    for (payload, expected, says) in [
        (json!({}), BadMessage::InvalidMethod, "names no capability"),
        (json!({"capability": 5}), BadMessage::InvalidMethod, "names no capability"),
        (json!({"capability": "initialize"}), BadMessage::InvalidMethod, "names no capability"),
        (json!("x"), BadMessage::InvalidMethod, "names no capability"),
        (Value::Null, BadMessage::InvalidMethod, "names no capability"),
        (json!({"capability": "a", "options": {"callId": ""}}), not_an_id, "1 to 256 bytes"),
        (json!({"capability": "a", "options": {"callId": 7}}), not_an_id, "1 to 256 bytes"),
        (
            json!({"capability": "a", "options": {"callId": "k".repeat(257)}}),
            BadMessage::InvalidId(InvalidId::TooLong),
            "1 to 256 bytes",
        ),
    ] {
        let frame = json!({"type": "capabilities/call", "id": "1", "payload": payload}).to_string();
        match ABP.codec().decode(frame.as_bytes()) {
            Incoming::BadRequest { id, why, .. } => {
                assert_eq!((id, why), (RequestId::text("1").unwrap(), expected), "{frame}");
            }
            other => panic!("{frame}: {other:?}"),
        }
        let id = RequestId::text("1").unwrap();
        let abp = ABP;
        let (codec, rules) = (abp.codec(), abp.rules());
        let text = written(|out| {
            assert!(codec.encode_refusal(rules, out, Some(&to(&id)), Refusal::Bad(expected)));
        });
        let error = &serde_json::from_str::<Value>(&text).unwrap()["payload"]["error"];
        assert_eq!(error["code"], json!("INVALID_PARAMS"), "{frame}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }
}

#[test]
fn a_cancel_whose_call_id_is_not_a_string_names_no_call() {
    for payload in [json!({}), json!({"callId": 7}), json!({"callId": null}), json!([]), Value::Null] {
        let frame = json!({"type": "capabilities/cancel", "id": "9", "payload": payload}).to_string();
        match ABP.codec().decode(frame.as_bytes()) {
            Incoming::Cancel(cancel) => {
                assert_eq!(cancel.key, Err(InvalidId::NotAnId));
                assert!(cancel.ack.is_some());
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn answers_are_classified_by_their_content() {
    assert_eq!(answer(&json!({"success": true, "data": [1]})), "Value(RawValue([1]))");
    assert_eq!(answer(&json!({"success": true})), "Value(RawValue(null))");
    assert_eq!(answer(&json!({"success": false, "cancelled": true})), "Cancelled");
    assert_eq!(answer(&json!({"success": false, "error": {"code": "CANCELLED"}})), "Cancelled");
    let timeout = answer(&json!({"success": false, "error": {"code": "TIMEOUT", "message": "late"}}));
    assert!(timeout.starts_with("Error") && timeout.contains("TIMEOUT") && timeout.contains("late"));
    assert!(answer(&json!({"success": false})).starts_with("Error"));
    assert!(answer(&json!({})).starts_with("Malformed"));
    assert!(answer(&json!("x")).starts_with("Malformed"));
    for id in ["07", "+7", "7.5", "seven", " seven"] {
        let frame =
            json!({"type": "capabilities/result", "id": id, "payload": {"success": true}}).to_string();
        assert!(matches!(ABP.codec().decode(frame.as_bytes()), Incoming::Answer { call: None, .. }), "{id}");
    }
}

#[test]
fn an_answer_without_an_id_is_an_error_about_no_frame_in_particular_or_has_no_id() {
    for id in ["", r#""id":null,"#, r#""id":"","#, r#""id":"undefined","#, r#""id":-1,"#] {
        for (payload, is_error) in [
            (json!({"success": false, "error": {"code": "TIMEOUT", "message": "late"}}), true),
            (json!({"success": true, "data": 5}), false),
            (json!({"success": false, "cancelled": true}), false),
            (json!({}), false),
        ] {
            let frame =
                format!(r#"{{"type":"capabilities/call-result",{id}"timestamp":0,"payload":{payload}}}"#);
            match ABP.codec().decode(frame.as_bytes()) {
                Incoming::PeerError(error) => assert!(is_error && error.message == "late", "{frame}"),
                Incoming::Bad(BadMessage::NoId) => assert!(!is_error, "{frame}"),
                other => panic!("{frame}: {other:?}"),
            }
        }
    }
}

#[test]
fn errors_keep_their_code_word() {
    let id = RequestId::text("7").unwrap();
    let payload = |error: &ErrorObject| {
        let text = written(|out| ABP.codec().encode_error(ABP.rules(), out, &to(&id), error));
        let mut value: Value = serde_json::from_str(&text).unwrap();
        value["payload"]["error"].take()
    };
    let mapped = payload(&ErrorObject::new(ErrorCode::METHOD_NOT_FOUND, "m"));
    assert_eq!(mapped, json!({"code": "UNKNOWN_CAPABILITY", "message": "m", "retryable": false}));
    let own =
        ErrorObject::new(ErrorCode(1), "m").with_data(&json!({"code": "TIMEOUT", "details": {"ms": 5}}));
    let shown = json!({"code": "TIMEOUT", "message": "m", "retryable": true, "details": {"ms": 5}});
    assert_eq!(payload(&own), shown);
    // A handler cannot say "cancelled" with an error, because the acknowledgement would be false (ABP-25).
    let forged = ErrorObject::new(ErrorCode(1), "m").with_data(&json!({"code": "CANCELLED"}));
    assert_eq!(payload(&forged)["code"], "OPERATION_FAILED");
    assert_eq!(payload(&ErrorObject::new(ErrorCode::REQUEST_CANCELLED, "m"))["code"], "OPERATION_FAILED");
    let text = written(|out| ABP.codec().encode_error(ABP.rules(), out, &to(&id), &own));
    match ABP.codec().decode(text.as_bytes()) {
        Incoming::Answer { body: AnswerBody::Error(read), .. } => {
            let data: Value = serde_json::from_str(read.data.unwrap().get()).unwrap();
            assert_eq!((data, &*read.message), (shown, "m"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn refusals_without_an_id_are_not_written() {
    let id = RequestId::text("7").unwrap();
    let mut out = Vec::new();
    let dialect = ABP;
    let (codec, rules) = (dialect.codec(), dialect.rules());
    assert!(!codec.encode_refusal(rules, &mut out, None, Refusal::Bad(BadMessage::NotJson)));
    assert!(!codec.encode_refusal(rules, &mut out, Some(&to(&id)), Refusal::DuplicateId));
    assert!(out.is_empty());
    for (why, code, retryable) in [
        (Refusal::Overloaded("queued"), "RATE_LIMITED", true),
        (Refusal::NotInitialized, "NOT_INITIALIZED", true),
        (Refusal::DuplicateKey, "INVALID_PARAMS", false),
        (Refusal::MethodNotFound, "UNKNOWN_CAPABILITY", false),
        (Refusal::Internal, "INTERNAL_ERROR", false),
    ] {
        let text = written(|out| assert!(codec.encode_refusal(rules, out, Some(&to(&id)), why)));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["type"], &value["id"]), (&json!("capabilities/call-result"), &json!("7")));
        let error = &value["payload"]["error"];
        assert_eq!((&error["code"], &error["retryable"]), (&json!(code), &json!(retryable)));
        assert_eq!(value["payload"]["success"], json!(false));
    }
}

#[test]
fn the_handshake_uses_its_own_envelope_types() {
    let call = CallFrame::new(CallNumber(1), SEED, "initialize", Some(raw(r#"{"protocolVersion":"0.1"}"#)));
    let text = written(|out| ABP.codec().encode_request(ABP.rules(), out, &call));
    let expected = r#"{"type":"initialize","id":"1","timestamp":0,"payload":{"protocolVersion":"0.1"}}"#;
    assert_eq!(text, expected);
    let Incoming::Request(request) = ABP.codec().decode(text.as_bytes()) else { panic!("{text}") };
    assert_eq!((&*request.method, request.cancel_key), ("initialize", CancelKey::None));
    let reply = ReplyTo { id: &request.id, tag: request.tag, server_cancellable: false };
    let body = raw(r#"{"sessionId":"s"}"#);
    let text = written(|out| ABP.codec().encode_value(ABP.rules(), out, &reply, body));
    assert_eq!(text, r#"{"type":"initialize-result","id":"1","timestamp":0,"payload":{"sessionId":"s"}}"#);
    match ABP.codec().decode(text.as_bytes()) {
        Incoming::Answer { call: Some(CallNumber(1)), body: AnswerBody::Value(read), .. } => {
            assert_eq!(read.get(), body.get());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_bad_envelope_is_reported_with_its_fault() {
    let not_an_id = BadMessage::InvalidId(InvalidId::NotAnId);
    for (frame, expected) in [
        ("[]", BadMessage::NotAnObject),
        ("{", BadMessage::NotJson),
        ("{}", BadMessage::WrongVersion),
        (r#"{"type":7}"#, BadMessage::WrongVersion),
        (r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#, BadMessage::WrongVersion),
        (r#"{"type":"x","id":"1"}"#, BadMessage::NoKind),
        (r#"{"type":"initialize","type":"x"}"#, BadMessage::DuplicateMember),
        (r#"{"type":"initialize","id":1}"#, not_an_id),
        (r#"{"type":"initialize","id":null}"#, not_an_id),
        (r#"{"type":"initialize"}"#, not_an_id),
        (r#"{"type":"initialize","id":"1","payload":[]}"#, BadMessage::InvalidParams),
        (r#"{"type":"capabilities/call","id":1.0,"payload":{"capability":"a"}}"#, not_an_id),
        (r#"{"type":"capabilities/cancel","id":9,"payload":{"callId":"k"}}"#, not_an_id),
    ] {
        match ABP.codec().decode(frame.as_bytes()) {
            Incoming::Bad(why) => assert_eq!(why, expected, "{frame}"),
            other => panic!("{frame}: {other:?}"),
        }
    }
    assert!(matches!(ABP.codec().decode(b"\xff"), Incoming::Bad(BadMessage::NotUtf8)));
    let deep = format!(r#"{{"type":"progress","payload":{}}}"#, "[".repeat(200));
    assert!(matches!(ABP.codec().decode(deep.as_bytes()), Incoming::Bad(BadMessage::TooDeep)));
}

#[test]
fn notifications_keep_their_name_and_params() {
    for (name, kind) in [("page/changed", "notification"), ("progress", "progress"), ("shutdown", "shutdown")]
    {
        let params = raw(r#"{"a":1}"#);
        let text = written(|out| ABP.codec().encode_notification(ABP.rules(), out, name, Some(params)));
        assert!(text.starts_with(&format!(r#"{{"type":"{kind}","timestamp":0,"#)), "{text}");
        match ABP.codec().decode(text.as_bytes()) {
            Incoming::Notification { method, params: Some(read) } => {
                assert_eq!((&*method, read.get()), (name, params.get()));
            }
            other => panic!("{other:?}"),
        }
    }
    let other_names = br#"{"type":"notification","payload":{"method":"m","params":{"a":1}}}"#;
    assert!(
        matches!(ABP.codec().decode(other_names), Incoming::Notification { method, .. } if method == "m")
    );
}

#[test]
fn an_answer_that_is_spelled_wrong_or_cannot_be_read_is_found() {
    let dialect = ABP;
    let codec = dialect.codec();
    let frame = br#"{"type":"capabilities/call-result","id":7,"timestamp":1,"payload":{"success":true}}"#;
    match codec.decode(frame) {
        Incoming::Answer { call: Some(CallNumber(7)), deviation: Some(Deviation::IdSpelling), .. } => {}
        other => panic!("{other:?}"),
    }
    let unreadable = |frame: &str| {
        let Incoming::Bad(why) = codec.decode(frame.as_bytes()) else { panic!("{frame}") };
        codec.unreadable_answer(frame.as_bytes(), why).map(|(call, _)| call.map(|call| call.0))
    };
    let of_type =
        |kind: &str| format!(r#"{{"type":"{kind}","id":"7","timestamp":1,"payload":{{"data":NaN}}}}"#);
    let answer = of_type("capabilities/call-result");
    assert_eq!(unreadable(&answer), Some(Some(7)));
    assert_eq!(unreadable(&answer.replace(r#""id":"7","#, "")), Some(None), "an answer without an id");
    assert_eq!(unreadable(&answer.replace(r#""7""#, r#""x""#)), None, "an answer to no call of this side");
    assert_eq!(unreadable(&of_type("capabilities/call")), None);
    let whole = answer.replace("NaN", "1");
    assert_eq!(unreadable(&json!(whole).to_string()), Some(Some(7)), "an answer inside of a text");
    let two_ids = whole.replace("timestamp", r#"id":"8","timestamp"#);
    assert_eq!(unreadable(&two_ids), Some(None), "an answer with two ids");
    let padded = whole.replace(r#""7""#, r#""7 ""#);
    match codec.decode(padded.as_bytes()) {
        Incoming::Answer { call: Some(CallNumber(7)), body: AnswerBody::Malformed(_), .. } => {}
        other => panic!("{other:?}"),
    }
    let escaped = of_type("capabilities/call-result").replace("timestamp", r"t\u0079pe");
    assert_eq!(unreadable(&escaped), None, "which of the two types is meant is not certain");
}
