//! The session of a language server as its client begins and ends it, and LSP's further rules for progress.

use std::time::Duration;

use rescind_core::dialect::{LSP, Role};
use rescind_core::{CallContext, CauseKind, ErrorCode, ErrorObject, Peer, Router, memory_pair};
use serde_json::{Value, json};

fn router() -> Router {
    Router::new()
        .method("initialize", |_: CallContext, _: Value| async { Ok(json!({"capabilities": {}})) })
        .method("wait", |ctx: CallContext, _: Value| async move {
            let cause = ctx.cancelled().await;
            ctx.stopped::<Value>(cause)
        })
        .method("modified", |ctx: CallContext, _: Value| async move {
            ctx.cancelled().await;
            let error = ErrorObject::new(ErrorCode::CONTENT_MODIFIED, "it was changed");
            Err::<Value, _>(error.with_data(&json!({"by": "the user"})).into())
        })
        .method("parts", |ctx: CallContext, params: Value| async move {
            for (token, value) in
                [("workDoneToken", "begun"), ("partialResultToken", "a"), ("partialResultToken", "b")]
            {
                if let Some(token) = params.get(token) {
                    ctx.try_notify("$/progress", &json!({"token": token, "value": value}))?;
                }
            }
            Ok(params)
        })
        .method("creates", |ctx: CallContext, _: Value| async move {
            let token = json!({"token": "made"});
            let _: Value = ctx.call("window/workDoneProgress/create", &token).await?;
            let cause = ctx.cancelled().await;
            assert_eq!(cause.kind(), CauseKind::Peer);
            ctx.stopped::<Value>(cause)
        })
}

fn open() -> (Peer, Peer) {
    let (near, far) = memory_pair();
    let theirs = Router::new()
        .method("window/workDoneProgress/create", |_: CallContext, _: Value| async { Ok(Value::Null) });
    let server = Peer::builder(LSP).serve(router()).attach(far).unwrap();
    (Peer::builder(LSP).role(Role::Client).serve(theirs).attach(near).unwrap(), server)
}

async fn opened() -> (Peer, Peer) {
    let (client, server) = open();
    client.call::<_, Value>("initialize", &json!({"capabilities": {}})).await.unwrap();
    (client, server)
}

async fn code(client: &Peer, method: &str) -> Option<i64> {
    match client.call::<_, Value>(method, &json!({})).await {
        Err(rescind_core::CallError::Failed(error)) => Some(error.code.0),
        Err(other) => panic!("{other}"),
        Ok(_) => None,
    }
}

#[tokio::test(start_paused = true)]
async fn exit_sets_the_exit_code() {
    for (shuts_down, owed) in [(true, 0), (false, 1)] {
        let (client, server) = opened().await;
        assert_eq!(server.exit_code(), None);
        if shuts_down {
            assert_eq!(client.call::<_, Value>("shutdown", &Value::Null).await, Ok(Value::Null));
            assert_eq!(code(&client, "wait").await, Some(-32_600));
        }
        client.try_notify("exit", &Value::Null).unwrap();
        server.closed().await.unwrap();
        assert_eq!(server.exit_code(), Some(owed));
        client.closed().await.unwrap();
        assert_eq!(client.exit_code(), None, "no notification ended the client");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_served_before_the_handshake_but_exit() {
    let (client, server) = open();
    assert_eq!(code(&client, "wait").await, Some(-32_002));
    assert_eq!(code(&client, "shutdown").await, Some(-32_002), "nor is it shut down by this");
    client.try_notify("reported", &json!({})).unwrap();
    client.call::<_, Value>("initialize", &json!({"capabilities": {}})).await.unwrap();
    assert_eq!(server.stats().early_notifications, 1);
    client.try_notify("exit", &Value::Null).unwrap();
    server.closed().await.unwrap();
    assert_eq!(server.exit_code(), Some(1));
}

/// The server sends a request before the handshake is complete, which LSP allows for some requests.
#[tokio::test(start_paused = true)]
async fn a_client_serves_before_the_handshake() {
    let (_client, server) = open();
    let made: Result<Value, _> = server.call("window/workDoneProgress/create", &json!({"token": 1})).await;
    assert_eq!(made, Ok(Value::Null));
}

#[tokio::test(start_paused = true)]
async fn a_handler_error_after_a_cancel_is_sent_if_the_dialect_allows_it() {
    let (client, server) = opened().await;
    let call = client.call::<_, Value>("modified", &json!({})).start().unwrap();
    while server.stats().running == 0 {
        tokio::task::yield_now().await;
    }
    call.canceller().cancel("");
    match call.outcome().await {
        rescind_core::Outcome::Failed(error) => {
            assert_eq!((error.code, &*error.message), (ErrorCode::CONTENT_MODIFIED, "it was changed"));
            assert_eq!(error.data.map(|data| data.get().to_owned()).as_deref(), Some(r#"{"by":"the user"}"#));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn partial_results_come_to_their_call() {
    let (client, _server) = opened().await;
    let call = client.call::<_, Value>("parts", &json!({})).progress().partial_results().start().unwrap();
    let plain = client.call::<_, Value>("parts", &json!({"partialResultToken": "mine"})).partial_results();
    let plain = plain.start().unwrap();
    let (mut reported, mut told_plain) = (call.notifications(), plain.notifications());
    let params = call.await.unwrap();
    assert!(params["workDoneToken"].is_u64() && params["partialResultToken"].is_string(), "{params}");
    for value in ["begun", "a", "b"] {
        let reported: Value = reported.next().await.unwrap().params().unwrap();
        assert_eq!(reported["value"], value);
    }
    assert!(reported.next().await.is_none());
    assert_eq!(
        plain.await.unwrap(),
        json!({"partialResultToken": "mine"}),
        "a token of the caller's own stays"
    );
    assert!(told_plain.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_cancel_by_a_token_that_was_announced_reaches_its_request() {
    let (client, server) = opened().await;
    let call = client.call::<_, Value>("creates", &json!({})).start().unwrap();
    while server.stats().running == 0 || server.stats().calls > 0 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    client.try_notify("window/workDoneProgress/cancel", &json!({"token": "made"})).unwrap();
    match call.outcome().await {
        rescind_core::Outcome::Cancelled(cancelled) => assert!(cancelled.confirmed),
        rescind_core::Outcome::Failed(error) => assert_eq!(error.code, ErrorCode::REQUEST_CANCELLED),
        other => panic!("{other:?}"),
    }
    client.try_notify("window/workDoneProgress/cancel", &json!({"token": "made"})).unwrap();
    client.shutdown(Duration::ZERO).await;
}
