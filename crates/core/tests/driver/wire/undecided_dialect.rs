//! Messages before the dialect is known.

use super::probe::{TRAITS, Wire, request, wire};
use rescind_core::dialect::{ABP, ACP, LSP, MCP};
use rescind_core::{
    BadFrame, ConnectionError, ExchangeId, HandlerError, Peer, ProtocolViolation, Router, TransportError,
    TransportErrorKind, TransportEvent,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// This many messages that no dialect recognises end the connection.
const ATTEMPTS: u64 = 16;

type Opened = JoinHandle<Result<Peer, ConnectionError>>;

fn negotiate() -> (Opened, Wire) {
    let (link, wire) = wire(TRAITS);
    let reported = Router::new()
        .method("initialize", |_, reported: Value| async move { Ok::<_, HandlerError>(reported) });
    let opened =
        tokio::spawn(async move { Peer::builder([MCP, ACP, LSP]).serve(reported).connect(link).await });
    (opened, wire)
}

#[tokio::test(start_paused = true)]
async fn messages_that_no_dialect_recognises_are_refused_a_few_times() {
    for (attempts, opens) in [(ATTEMPTS - 1, true), (ATTEMPTS, false)] {
        let (opened, wire) = negotiate();
        for attempt in 1..=attempts {
            wire.says(attempt, &"[]");
            let refused =
                [format!("fault {attempt} BadMessage"), format!("Control Answer on {attempt}, last")];
            assert_eq!(wire.recorded().await, refused);
        }
        assert_eq!(opened.is_finished(), !opens, "after {attempts}");
        if opens {
            wire.says(99, &request(1, "initialize", &json!({"protocolVersion": "2025-06-18"})));
            assert_eq!(wire.recorded().await, ["begin 99", "Data Answer 1 on 99, last"]);
            assert_eq!(opened.await.unwrap().unwrap().dialect().name(), "mcp");
        } else {
            let ended = opened.await.unwrap().err();
            let unknown = Some(ConnectionError::Protocol(ProtocolViolation::UnknownDialect));
            assert_eq!(ended.map(|ended| ended.to_string()), unknown.map(|ended| ended.to_string()));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_message_is_counted_and_ends_its_exchange() {
    let (opened, wire) = negotiate();
    for exchange in (1..=ATTEMPTS).map(ExchangeId) {
        assert!(!opened.is_finished());
        wire.tells(TransportEvent::Rejected { exchange, why: BadFrame::NotUtf8, head: bytes::Bytes::new() });
        assert_eq!(wire.recorded().await, [format!("finish {} Refused", exchange.0)]);
    }
    assert!(opened.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_message_refused_without_an_answer_ends_its_exchange() {
    let (link, wire) = wire(TRAITS);
    // ABP has no message for the refusal of an invalid message.
    let opened = tokio::spawn(async move { Peer::builder([ABP, ABP]).connect(link).await });
    wire.says(3, &"{}");
    assert_eq!(wire.recorded().await, ["finish 3 Refused"]);
    opened.abort();
}

#[tokio::test(start_paused = true)]
async fn an_error_about_one_exchange_ends_no_opening_and_any_other_does() {
    let broken = TransportError::new(TransportErrorKind::Io, "broken");
    let (opened, wire) = negotiate();
    wire.fails(TransportError { exchange: Some(ExchangeId(1)), ..broken.clone() });
    wire.tells(TransportEvent::ExchangeClosed { exchange: ExchangeId(1) });
    assert_eq!(wire.recorded().await, [""; 0]);
    assert!(!opened.is_finished());
    wire.fails(broken);
    assert!(matches!(opened.await.unwrap(), Err(ConnectionError::Transport(_))));
}
