//! The driver's calls for exchanges: where each frame goes, and how each exchange of the peer ends.

use std::time::Duration;

use rescind_core::dialect::{ABP, ACP, ACP_DRAFT, Dialect, MCP};
use rescind_core::{
    CallNumber, CancelResult, Capabilities, ConnectionError, ExchangeId, FrameKind, Limits, Outcome,
};
use serde_json::{Value, json};

use crate::driver::wire::{TRAITS, cancel, client, open, request};

#[tokio::test(start_paused = true)]
async fn each_exchange_of_the_peer_is_begun_with_its_handler_and_ended_once() {
    let mut limits = Limits::default();
    limits.max_running_handlers = 1;
    let (_peer, wire) = open(MCP, TRAITS, limits);
    wire.says(3, &request(1, "step", &json!({})));
    let answered = ["begin 3", "Data Notification stepped on 3", "Data Answer 1 on 3, last"];
    assert_eq!(wire.recorded().await, answered);

    wire.says(4, &request(2, "wait", &json!({})));
    wire.says(5, &request(3, "step", &json!({})));
    // The second request waits for a permit, so its handler does not run yet.
    assert_eq!(wire.recorded().await, ["begin 4", "waiting 4", "Data Notification waits on 4"]);
    wire.says(6, &cancel(2));
    let silenced = ["finish 6 Accepted", "finish 4 Silent"];
    let next = ["begin 5", "Data Notification stepped on 5", "Data Answer 3 on 5, last"];
    assert_eq!(wire.recorded().await, [&silenced[..], &next].concat(), "I2");

    for owed_nothing in [
        json!({"jsonrpc": "2.0", "method": "news"}),
        json!({"jsonrpc": "2.0", "id": 99, "result": {}}),
        json!({"jsonrpc": "2.0", "error": {"code": 1, "message": "m"}}),
        cancel(99),
    ] {
        wire.says(7, &owed_nothing);
        assert_eq!(wire.recorded().await, ["finish 7 Accepted"], "{owed_nothing}");
        // Without an exchange there is nothing to end.
        wire.says(0, &owed_nothing);
        assert_eq!(wire.recorded().await, [""; 0], "{owed_nothing}");
    }
    wire.says(0, &request(4, "step", &json!({})));
    assert_eq!(wire.recorded().await, ["Data Notification stepped on none", "Data Answer 4 on none"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_on_an_exchange_of_ours_does_not_end_the_exchange() {
    let (_peer, wire) = open(MCP, TRAITS, Limits::default());
    let ours = ExchangeId::of_call(CallNumber(1)).0;
    wire.says(ours, &request(5, "step", &json!({})));
    wire.says(ours, &"{");
    let expected = ["Control Answer on none", "Data Notification stepped on none", "Data Answer 5 on none"];
    assert_eq!(wire.recorded().await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_transport_gets_the_subject_of_a_refusal_before_the_refusal() {
    let mut limits = Limits::default();
    (limits.max_running_handlers, limits.max_queued_requests, limits.max_frame_bytes) = (1, 0, 4096);
    let dialect = Dialect::builder("strict").handshake("initialize").session_required().build();
    let (_peer, wire) = open(dialect, TRAITS, limits);
    let no_params = json!({});
    for (exchange, frame, expected) in [
        (1, "{".to_owned(), &["fault 1 BadMessage", "Control Answer on 1, last"][..]),
        (
            2,
            request(1, "step", &no_params).to_string(),
            &["fault 2 NotInitialized", "Control Answer 1 on 2, last"],
        ),
        (3, request(2, "initialize", &no_params).to_string(), &["begin 3", "Data Answer 2 on 3, last"]),
        (
            4,
            request(3, "unknown", &no_params).to_string(),
            &["fault 4 MethodNotFound", "Data Answer 3 on 4, last"],
        ),
        (
            5,
            request(4, "big", &json!([5000])).to_string(),
            &["begin 5", "fault 5 Internal", "Data Answer 4 on 5, last"],
        ),
        (
            6,
            request(5, "wait", &no_params).to_string(),
            &["begin 6", "waiting 6", "Data Notification waits on 6"],
        ),
        (
            7,
            request(5, "wait", &no_params).to_string(),
            &["fault 7 DuplicateId", "Control Answer on 7, last"],
        ),
        (
            8,
            request(6, "step", &no_params).to_string(),
            &["fault 8 Overloaded", "Control Answer 6 on 8, last"],
        ),
        (0, request(7, "step", &no_params).to_string(), &["Control Answer 7 on none"]),
    ] {
        wire.says(exchange, &frame);
        assert_eq!(wire.recorded().await, expected, "{frame}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_the_wire_refuses_ends_its_exchange_and_harms_no_other() {
    let refused = Some((FrameKind::Answer, Some(ExchangeId(3))));
    let (_peer, wire) = open(MCP, TRAITS, Limits::default());
    wire.state().refuses = refused;
    wire.says(3, &request(1, "big", &json!([1])));
    assert_eq!(
        wire.recorded().await,
        ["begin 3", "refused Data Answer 1 on 3, last", "finish 3 Refused"],
        "the exchange of a value"
    );
    wire.says(4, &"{");
    assert_eq!(
        wire.recorded().await,
        ["fault 4 BadMessage", "refused Control Answer on 4, last", "finish 4 Refused"],
        "the exchange of a refusal"
    );
    wire.state().refuses = None;
    wire.says(5, &request(2, "big", &json!([1])));
    assert_eq!(wire.recorded().await, ["begin 5", "Data Answer 2 on 5, last"]);

    let (_peer, wire) = open(ABP, TRAITS, Limits::default());
    let cancel = json!({"type": "capabilities/cancel", "id": "c1", "payload": {"callId": "k"}});
    wire.says(6, &cancel);
    assert_eq!(wire.recorded().await, [r#"Control Answer "c1" on 6, last"#]);
    wire.state().refuses = refused;
    wire.says(7, &cancel);
    assert_eq!(
        wire.recorded().await,
        [r#"refused Control Answer "c1" on 7, last"#, "finish 7 Accepted"],
        "the exchange of an acknowledgement: the cancel was taken in"
    );
    // ABP has no message for this, and the driver reports no fault for a frame that it does not write.
    wire.says(8, &"{");
    assert_eq!(wire.recorded().await, ["finish 8 Refused"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_the_wire_refuses_never_ran_and_a_wire_that_breaks_ends_the_connection() {
    let (peer, wire) = open(MCP, TRAITS, Limits::default());
    wire.state().refuses = Some((FrameKind::Request, Some(ExchangeId::of_call(CallNumber(1)))));
    let call = peer.call::<_, Value>("work", &json!({})).start().unwrap();
    let outcome = call.outcome().await;
    assert!(matches!(outcome, Outcome::Disconnected { may_have_run: false }), "{outcome:?}");
    wire.state().refuses = Some((FrameKind::Notification, Some(ExchangeId::NONE)));
    peer.try_notify("news", &json!({})).unwrap();
    let refused = ["refused Data Request 1 work on ours 1", "refused Data Notification news on none"];
    assert_eq!(wire.recorded().await, refused);
    assert!(!peer.is_closed(), "a frame was refused, not the connection");

    wire.state().refuses = Some((FrameKind::Notification, None));
    peer.try_notify("news", &json!({})).unwrap();
    let closed = tokio::time::timeout(Duration::from_secs(1), peer.closed()).await;
    assert!(matches!(closed, Ok(Err(ConnectionError::Transport(_)))), "{closed:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_may_be_just_as_long_as_a_frame() {
    let envelope = r#"{"jsonrpc":"2.0","id":1,"result":""}"#.len();
    let mut limits = Limits::default();
    limits.max_frame_bytes = envelope + 100;
    let (_peer, wire) = open(MCP, TRAITS, limits);
    wire.says(3, &request(1, "big", &json!([100])));
    assert_eq!(wire.recorded().await, ["begin 3", "Data Answer 1 on 3, last"]);
    assert_eq!(wire.state().frame.len(), envelope + 100);
    wire.says(4, &request(2, "big", &json!([101])));
    assert_eq!(wire.recorded().await, ["begin 4", "fault 4 Internal", "Data Answer 2 on 4, last"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_is_cancelled_by_a_message_or_by_closing_its_exchange_if_ids_are_scoped_to_it() {
    let message = ["Control Cancel 1 on ours 2"];
    for (opens_exchanges, exchange_scoped, cannot_abort, sent, cancelled) in [
        (true, false, false, "Data Request 1 work on ours 1", &message[..]),
        (true, true, false, "Data Request 1 work on ours 1", &["abort ours 1"]),
        (true, true, true, "Data Request 1 work on ours 1", &["abort ours 1", message[0]]),
        (false, true, false, "Data Request 1 work on none", &["Control Cancel 1 on none"]),
        (false, false, false, "Data Request 1 work on none", &["Control Cancel 1 on none"]),
    ] {
        let traits = Capabilities { opens_exchanges, exchange_scoped, ..TRAITS };
        let (peer, wire) = open(ACP, traits, Limits::default());
        wire.state().cannot_abort = cannot_abort;
        let call = peer.call::<_, Value>("work", &json!({})).start().unwrap();
        assert_eq!(wire.recorded().await, [sent], "{traits:?}");
        assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
        assert_eq!(wire.recorded().await, cancelled, "I12: {traits:?}");
        // After its exchange is aborted, no answer can arrive. Otherwise the driver waits for the peer.
        let given_up = cancelled == ["abort ours 1"];
        let ended = tokio::time::timeout(Duration::from_secs(1), call.outcome()).await;
        assert_eq!(ended.is_ok(), given_up, "{traits:?}: {ended:?}");
    }
}

/// The declaration about cancels in an answer.
fn declared_in(answer: &[u8]) -> Option<bool> {
    let answer: Value = serde_json::from_slice(answer).unwrap();
    answer.pointer("/result/agentCapabilities/cancellation/request").and_then(Value::as_bool)
}

#[tokio::test(start_paused = true)]
async fn a_cancel_goes_to_a_peer_that_declared_it_in_its_half_of_the_handshake() {
    for (declared, result, reported) in [
        (true, CancelResult::Sent, &["Control Cancel 1 on ours 2"][..]),
        (false, CancelResult::NotSupported, &[]),
    ] {
        let (peer, wire) = open(ACP_DRAFT, TRAITS, Limits::default());
        let capabilities = json!({"cancellation": {"request": declared}});
        let params = json!({"protocolVersion": 1, "clientCapabilities": capabilities});
        wire.says(2, &request(9, "big", &json!([1])));
        assert_eq!(wire.recorded().await, ["begin 2", "Data Answer 9 on 2, last"]);
        assert_eq!(declared_in(&wire.state().frame), None);
        wire.says(3, &request(0, "initialize", &params));
        assert_eq!(wire.recorded().await, ["begin 3", "Data Answer 0 on 3, last"]);
        assert_eq!(declared_in(&wire.state().frame), Some(true), "our own half");
        let call = peer.call::<_, Value>("work", &json!({})).start().unwrap();
        assert_eq!(wire.recorded().await, ["Data Request 1 work on ours 1"]);
        assert_eq!(call.canceller().cancel(""), result, "{params}");
        assert_eq!(wire.recorded().await, reported, "{params}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_handshake_answer_decides_whether_a_client_sends_cancels() {
    let capabilities = |declared: bool| json!({"agentCapabilities": {"cancellation": {"request": declared}}});
    for (method, declared, result) in [
        ("initialize", true, CancelResult::Sent),
        ("initialize", false, CancelResult::NotSupported),
        ("work", true, CancelResult::NotSupported),
    ] {
        let (peer, wire) = client(ACP_DRAFT, TRAITS);
        let opening = peer.call::<_, Value>(method, &json!({"protocolVersion": 1})).start().unwrap();
        assert_eq!(wire.recorded().await.len(), 1);
        let answer = json!({"jsonrpc": "2.0", "id": 1, "result": capabilities(declared)});
        wire.says(ExchangeId::of_call(CallNumber(1)).0, &answer);
        assert!(opening.await.is_ok());
        let call = peer.call::<_, Value>("work", &json!({})).start().unwrap();
        wire.recorded().await;
        assert_eq!(call.canceller().cancel(""), result, "the answer to {method} declared {declared}");
    }
}
