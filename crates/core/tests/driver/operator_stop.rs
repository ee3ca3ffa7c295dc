//! An operator stops a request: its caller gets an error that says so, in every dialect.

use rescind_core::dialect::{self, Dialect, Role};
use rescind_core::{
    ByteStream, CallContext, Cause, CauseKind, Direction, Framing, HandlerError, Limits, Outcome, Peer,
    RequestStatus, Router, memory_pair,
};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::driver::protocol_requirements::{Lines, meet};

const SAYS_SO: &str = "Request cancelled by an operator";

fn waiting(signals: UnboundedSender<Cause>) -> Router {
    Router::new()
        .method("initialize", |_: CallContext, params: Value| async move {
            Ok(json!({"protocolVersion": params.get("protocolVersion"), "capabilities": {}}))
        })
        .method("wait", move |ctx: CallContext, _: Value| {
            let signals = signals.clone();
            async move {
                let cause = ctx.cancelled().await;
                signals.send(cause.clone())?;
                ctx.stopped::<Value>(cause)
            }
        })
}

/// Opens a session where the dialect has one, asks for `wait` under the id 7, and returns the peer once it runs.
async fn ask(dialect: &Dialect, signals: UnboundedSender<Cause>) -> (Peer, Lines) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (from, to) = tokio::io::split(ours);
    // LSP too: the lines are the test's.
    let wire = ByteStream::new(from, to).framing(Framing::Newline);
    let builder = Peer::builder(dialect.clone()).role(Role::Server).serve(waiting(signals));
    let (peer, mut lines) = (builder.connect(wire).await.unwrap(), Lines::new(theirs));
    let mut log = peer.watch_requests();
    if dialect.name() == "abp" {
        let hello = json!({"protocolVersion": "0.1", "app": {"id": "a", "name": "a", "version": "1"}, "features": {}});
        lines.send(json!({"type": "initialize", "id": "1", "timestamp": 1, "payload": hello})).await;
        lines.next().await;
        let call = json!({"capability": "wait", "params": {}, "options": {}});
        lines.send(json!({"type": "capabilities/call", "id": "7", "timestamp": 1, "payload": call})).await;
    } else {
        if dialect.rules().handshake.is_some() {
            let capabilities = json!({"$/cancel_request": true, "cancelRequest": true});
            let hello = json!({"protocolVersion": 1, "capabilities": {}, "clientCapabilities": capabilities});
            lines.send(json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})).await;
            lines.next().await;
        }
        lines.send(json!({"jsonrpc": "2.0", "id": 7, "method": "wait", "params": {}})).await;
    }
    while !peer.requests().iter().any(|request| request.method.as_deref() == Some("wait")) {
        log.next().await;
    }
    (peer, lines)
}

#[tokio::test(start_paused = true)]
async fn a_stopped_request_is_answered_with_an_error_that_names_an_operator_in_each_dialect() {
    for dialect in &dialect::ALL {
        let (signals, mut signalled) = unbounded_channel();
        let (peer, mut lines) = ask(dialect, signals).await;
        let [request] = &*peer.requests() else { panic!("{}: one request runs", dialect.name()) };
        assert_eq!((request.key.direction(), request.status), (Direction::Received, RequestStatus::Running));
        assert!(peer.stop_request(request.key, "too slow"), "{}", dialect.name());
        assert!(!peer.stop_request(request.key, "again"), "{}: I7", dialect.name());
        let answer = lines.next().await;
        let error = answer.get("error").or_else(|| answer.pointer("/payload/error"));
        let said = error.and_then(|error| error.get("message")).and_then(Value::as_str);
        assert_eq!(said, Some(SAYS_SO), "{}: {answer}", dialect.name());
        assert_eq!(answer["id"], if dialect.name() == "abp" { json!("7") } else { json!(7) });
        let cause = signalled.recv().await.unwrap();
        assert_eq!(
            (cause.kind(), cause.reason()),
            (CauseKind::Operator, Some("too slow")),
            "{}",
            dialect.name()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_caller_of_a_stopped_request_sees_it_cancelled_or_failed_in_each_dialect() {
    for dialect in &dialect::ALL {
        let (signals, _signalled) = unbounded_channel();
        let (near, far) = memory_pair();
        let server = Peer::builder(dialect.clone()).serve(waiting(signals)).attach(far).unwrap();
        let client = Peer::builder(dialect.clone()).attach(near).unwrap();
        let mut log = server.watch_requests();
        if let Some(handshake) = dialect.rules().handshake {
            let hello = json!({"protocolVersion": 1, "capabilities": {}, "clientCapabilities": {}});
            let _: Value = client.call(handshake, &hello).await.unwrap();
        }
        let call = client.call::<_, Value>("wait", &json!({})).start().unwrap();
        let key = loop {
            let running = server.requests();
            if let Some(request) = running.iter().find(|request| request.method.as_deref() == Some("wait")) {
                break request.key;
            }
            log.next().await;
        };
        assert!(server.stop_request(key, ""));
        match call.outcome().await {
            // LSP reserves -32800 for the client's cancels.
            Outcome::Failed(error) => {
                assert_eq!((dialect.name(), &*error.message), ("lsp", SAYS_SO));
            }
            Outcome::Cancelled(cancelled) => assert!(cancelled.confirmed, "{}", dialect.name()),
            ended => panic!("{}: {ended:?}", dialect.name()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_prompt_of_acp_is_an_error_and_not_the_stop_reason_of_its_users_cancel() {
    let prompt = |_: CallContext, _: Value| std::future::pending::<Result<Value, HandlerError>>();
    let router = Router::new()
        .method("initialize", |_: CallContext, _: Value| async { Ok(json!({"protocolVersion": 1})) })
        .method("session/prompt", prompt);
    let (peer, mut lines) = meet(dialect::ACP, Role::Server, router).await;
    lines
        .send(json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}))
        .await;
    lines.next().await;
    let mut log = peer.watch_requests();
    lines.send(json!({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": {}})).await;
    log.next().await;
    let [prompt] = &*peer.requests() else { panic!("the prompt runs") };
    assert!(peer.stop_request(prompt.key, ""));
    let answer = lines.next().await;
    assert_eq!(answer["error"], json!({"code": -32800, "message": SAYS_SO, "data": {"reason": "operator"}}));
}

#[tokio::test(start_paused = true)]
async fn a_request_in_the_queue_is_stopped_and_its_handler_never_runs() {
    let (signals, mut signalled) = unbounded_channel();
    let (near, far) = memory_pair();
    let limits = Limits::default().max_running_handlers(1);
    let server = Peer::builder(dialect::MCP_2026).serve(waiting(signals)).limits(limits).attach(far).unwrap();
    let client = Peer::builder(dialect::MCP_2026).attach(near).unwrap();
    let mut log = server.watch_requests();
    let first = client.call::<_, Value>("wait", &json!({})).start().unwrap();
    let second = client.call::<_, Value>("wait", &json!({})).start().unwrap();
    for _ in 0..2 {
        log.next().await;
    }
    let queued =
        server.requests().into_iter().find(|request| request.status == RequestStatus::Queued).unwrap();
    assert!(server.stop_request(queued.key, ""));
    assert!(matches!(second.outcome().await, Outcome::Cancelled(_)));
    assert!(signalled.try_recv().is_err(), "no handler was signalled");
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn neither_a_call_nor_a_handshake_nor_another_connections_request_can_be_stopped() {
    let (signals, _signalled) = unbounded_channel();
    let router = waiting(signals).method("initialize", |_: CallContext, _: Value| {
        std::future::pending::<Result<Value, HandlerError>>()
    });
    let (near, far) = memory_pair();
    let server = Peer::builder(dialect::ACP).serve(router).attach(far).unwrap();
    let client = Peer::builder(dialect::ACP).attach(near).unwrap();
    let mut log = server.watch_requests();
    let call = client.call::<_, Value>("initialize", &json!({})).start().unwrap();
    log.next().await;
    let [handshake] = &*server.requests() else { panic!("the handshake runs") };
    assert!(!server.stop_request(handshake.key, ""), "I9");
    let [made] = &*client.requests() else { panic!("the call is open") };
    assert_eq!(made.key.direction(), Direction::Made);
    assert!(!client.stop_request(made.key, ""), "a call is its caller's");
    assert!(!client.stop_request(handshake.key, ""), "it is another connection's");
    drop(call);
}
