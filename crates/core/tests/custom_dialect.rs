//! A dialect with its own envelope, defined outside the crate: the Debug Adapter Protocol of the example, in which a
//! cancel is a request with a response.

use rescind_core::dialect::{AckStyle, CallFrame, ReplyTo};
use rescind_core::*;

use self::example::debug_adapter;

#[path = "../../../examples/custom_dialect/dialect.rs"]
mod example;

#[test]
fn a_debug_adapter_dialect_can_be_made_from_outside() {
    let dialect = debug_adapter();
    let (codec, rules) = (dialect.codec(), dialect.rules());
    assert_eq!((dialect.name(), rules.ack), ("dap", AckStyle::Acknowledged));

    let mut out = Vec::new();
    codec.encode_request(rules, &mut out, &CallFrame::new(CallNumber(4), 0, "evaluate", None));
    assert!(matches!(codec.decode(&out), Incoming::Request(request) if request.method == "evaluate"));

    let mut out = Vec::new();
    codec.encode_cancel(rules, &mut out, CallNumber(4), CallNumber(5), 0, None);
    let Incoming::Cancel(cancel) = codec.decode(&out) else { panic!("a cancel") };
    assert_eq!((cancel.key, cancel.ack), (Ok(RequestId::number(4)), Some(RequestId::number(5))));

    let mut out = Vec::new();
    assert!(codec.encode_ack(rules, &mut out, &RequestId::number(5), None, AckStatus::Cancelled));
    assert!(matches!(codec.decode(&out), Incoming::Ack { cancel: Some(CallNumber(5)), cancelled: true, .. }));

    let id = RequestId::number(4);
    let to = ReplyTo { id: &id, tag: 0, server_cancellable: false };
    let mut out = Vec::new();
    codec.encode_cancelled(rules, &mut out, &to, &Cause::new(CauseKind::Peer));
    let answer = codec.decode(&out);
    assert!(matches!(
        answer,
        Incoming::Answer { call: Some(CallNumber(4)), body: AnswerBody::Cancelled, .. }
    ));
}

#[test]
fn a_codec_writes_a_fixed_result_as_any_other_value_unless_it_says_how() {
    let dialect = debug_adapter();
    let id = RequestId::number(4);
    let to = ReplyTo { id: &id, tag: 0, server_cancellable: false };
    let answer = |result| {
        let mut out = Vec::new();
        dialect.codec().encode_graceful(dialect.rules(), &mut out, &to, result);
        match dialect.codec().decode(&out) {
            Incoming::Answer { call: Some(CallNumber(4)), body, .. } => format!("{body:?}"),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(answer(r#"{"over":true}"#), r#"Value(RawValue({"over":true}))"#);
    let broken = answer("{over");
    assert!(broken.starts_with("Error"), "what is no JSON is not written as a result: {broken}");
}
