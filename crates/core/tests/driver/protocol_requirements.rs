//! The requirements of the protocols on either side, frame by frame: one end is a peer, the other writes and reads
//! lines.

use std::time::Duration;

use rescind_core::dialect::{ACP, ACP_DRAFT, ACP_V2, Dialect, MCP_2026, Role};
use rescind_core::{
    ByteStream, CallContext, CallError, CancelResult, Cause, CauseKind, HandlerError, Outcome, Peer, Router,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};

/// The end that writes and reads lines, without the library.
pub(crate) struct Lines(BufReader<DuplexStream>);

impl Lines {
    pub(crate) fn new(stream: DuplexStream) -> Self {
        Self(BufReader::new(stream))
    }

    pub(crate) async fn send(&mut self, message: Value) {
        self.0.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    pub(crate) async fn next(&mut self) -> Value {
        let mut line = String::new();
        tokio::time::timeout(Duration::from_secs(60), self.0.read_line(&mut line)).await.unwrap().unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

pub(crate) async fn meet(dialect: Dialect, role: Role, router: Router) -> (Peer, Lines) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (from, to) = tokio::io::split(ours);
    let wire = ByteStream::new(from, to);
    let peer = Peer::builder(dialect).role(role).serve(router).connect(wire).await.unwrap();
    (peer, Lines::new(theirs))
}

/// The methods of an agent or a client whose handlers ignore their cancel, or fail after it.
fn deaf() -> Router {
    Router::new()
        .method("initialize", |_: CallContext, _: Value| async {
            Ok(json!({"protocolVersion": 1, "agentCapabilities": {}}))
        })
        .method("session/prompt", |ctx: CallContext, params: Value| async move {
            match params.get("prompt").and_then(Value::as_str) {
                Some("local") => drop(ctx.cancel_local(Cause::new(CauseKind::Local))),
                Some("shutdown") => drop(ctx.cancel_local(Cause::new(CauseKind::Shutdown))),
                Some("fails") => {
                    ctx.cancelled().await;
                    return Err(std::fmt::Error.into());
                }
                _ => {}
            }
            std::future::pending::<()>().await;
            Ok(Value::Null)
        })
        .method("session/request_permission", |ctx: CallContext, _: Value| async move {
            let cause = ctx.cancelled().await;
            ctx.stopped::<Value>(cause)
        })
        .method("other", |_: CallContext, _: Value| std::future::pending::<Result<(), HandlerError>>())
        .notification("nothing", |_: Peer, _: Value| async {})
}

// covers: ACP-09
#[tokio::test(start_paused = true)]
async fn a_cancelled_prompt_ends_with_its_stop_reason_whatever_its_handler_does() {
    for (dialect, cancel, key) in
        [(ACP, "$/cancel_request", "requestId"), (ACP_DRAFT, "$/cancelRequest", "id")]
    {
        let (_agent, mut client) = meet(dialect, Role::Server, deaf()).await;
        client
            .send(
                json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}),
            )
            .await;
        assert_eq!(client.next().await["id"], 0);
        for (id, prompt) in [(1, "deaf"), (2, "fails"), (3, "local")] {
            client.send(json!({"jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": {"prompt": prompt}})).await;
            if prompt != "local" {
                client.send(json!({"jsonrpc": "2.0", "method": cancel, "params": {key: id}})).await;
            }
            let answer = client.next().await;
            assert_eq!(
                answer,
                json!({"jsonrpc": "2.0", "id": id, "result": {"stopReason": "cancelled"}}),
                "{prompt}"
            );
        }
        // A cancel that does not come from the client does not cancel the turn (ACP-12).
        client.send(json!({"jsonrpc": "2.0", "id": 4, "method": "session/prompt", "params": {"prompt": "shutdown"}})).await;
        assert_eq!(client.next().await["error"]["code"], -32_800);
        client.send(json!({"jsonrpc": "2.0", "id": 5, "method": "other"})).await;
        client.send(json!({"jsonrpc": "2.0", "method": cancel, "params": {key: 5}})).await;
        assert_eq!(client.next().await["error"]["code"], -32_800);
    }
    // In version 2 the answer to a prompt has no stop reason.
    let (_agent, mut client) = meet(ACP_V2, Role::Server, deaf()).await;
    client.send(json!({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {}})).await;
    client.send(json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1}})).await;
    assert_eq!(client.next().await["error"]["code"], -32_800);
}

// covers: ACP-18
#[tokio::test(start_paused = true)]
async fn a_cancelled_permission_request_is_answered_with_the_outcome_cancelled() {
    for dialect in [ACP, ACP_V2] {
        let (_client, mut agent) = meet(dialect, Role::Client, deaf()).await;
        agent
            .send(json!({"jsonrpc": "2.0", "id": 3, "method": "session/request_permission", "params": {}}))
            .await;
        agent.send(json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 3}})).await;
        let outcome = json!({"outcome": {"outcome": "cancelled"}});
        assert_eq!(agent.next().await, json!({"jsonrpc": "2.0", "id": 3, "result": outcome}));
    }
}

#[tokio::test]
async fn a_call_with_a_task_member_is_cancelled_as_any_other_in_mcp_2026() {
    let (client, mut server) = meet(MCP_2026, Role::Client, Router::new()).await;
    let call =
        client.call::<_, Value>("tools/call", &json!({"name": "wait", "task": {"ttl": 1}})).start().unwrap();
    let id = server.next().await["id"].clone();
    assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
    let cancel = server.next().await;
    assert_eq!((&cancel["method"], &cancel["params"]["requestId"]), (&json!("notifications/cancelled"), &id));
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_is_not_an_error_the_peer_answered_with() {
    let (client, mut server) = meet(ACP, Role::Client, Router::new()).await;
    let answers = [
        (json!("text"), None, "the requested type"),
        (Value::Null, Some(json!("no object")), "its error is not an object"),
        (json!(1), Some(json!({"code": 1, "message": "m"})), "a result and an error"),
    ];
    for (result, error, what) in answers {
        for by_outcome in [true, false] {
            let call = client.call::<_, u64>("count", &json!({})).start().unwrap();
            let mut answer = json!({"jsonrpc": "2.0", "id": server.next().await["id"]});
            if result != Value::Null {
                answer["result"] = result.clone();
            }
            if let Some(error) = &error {
                answer["error"] = error.clone();
            }
            server.send(answer).await;
            if by_outcome {
                match call.outcome().await {
                    Outcome::Unreadable { what: said } => assert!(said.contains(what), "{said}"),
                    other => panic!("{other:?}"),
                }
            } else {
                let error = call.await.unwrap_err();
                assert!(matches!(&error, CallError::Answer { method, .. } if method == "count"), "{error:?}");
                assert!(!error.to_string().contains("the peer answered with an error"), "{error}");
            }
        }
    }
    let call = client.call::<_, u64>("count", &json!({})).timeout(Duration::from_secs(30)).start().unwrap();
    let id = server.next().await["id"].clone();
    server.send(json!({"jsonrpc": "2.0", "id": id, "error": {"code": 7, "message": "no"}})).await;
    assert!(matches!(call.outcome().await, Outcome::Failed(error) if error.code.0 == 7));
}
