//! Requests and tokens: either can cancel the other.

use rescind_core::dialect::ACP;
use rescind_core::{CallContext, CauseKind, Outcome, Peer, Router, memory_pair};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

// covers: ABP-17
#[tokio::test(start_paused = true)]
async fn a_handler_sees_its_cancel_as_a_token_and_can_be_cancelled_by_one() {
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let (near, far) = memory_pair();
    let local = stop.clone();
    let by_token = event_tx.clone();
    let router = Router::new()
        .method("token", move |ctx: CallContext, _: Value| {
            let event_tx = by_token.clone();
            async move {
                let tokens = [ctx.token(), CancellationToken::from(&ctx), ctx.clone().into()];
                event_tx.send(tokens.iter().any(CancellationToken::is_cancelled)).unwrap();
                for token in &tokens {
                    token.cancelled().await;
                }
                event_tx.send(ctx.is_cancelled()).unwrap();
                ctx.check()?;
                Ok(())
            }
        })
        .method("local", move |ctx: CallContext, _: Value| {
            let (event_tx, stop) = (event_tx.clone(), local.clone());
            async move {
                ctx.cancel_on(stop);
                event_tx.send(false).unwrap();
                let cause = ctx.cancelled().await;
                event_tx.send(cause.kind() == CauseKind::Local).unwrap();
                ctx.stopped::<()>(cause)
            }
        });
    let _server = Peer::builder(ACP).serve(router).attach(far).unwrap();
    let client = Peer::builder(ACP).attach(near).unwrap();

    let call = client.call::<_, ()>("token", &json!({})).start().unwrap();
    assert_eq!(event_rx.recv().await, Some(false));
    call.canceller().cancel("");
    assert_eq!(event_rx.recv().await, Some(true));
    assert!(call.outcome().await.is_cancelled());

    let call = client.call::<_, ()>("local", &json!({})).start().unwrap();
    assert_eq!(event_rx.recv().await, Some(false));
    stop.cancel();
    assert_eq!(event_rx.recv().await, Some(true));
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => assert_eq!(cancelled.cause.kind(), CauseKind::Peer),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_cancellation_token_keeps_no_memory_of_its_request() {
    let token = CancellationToken::new();
    let stop = token.clone();
    let router = Router::new().method("quick", move |ctx: CallContext, _: Value| {
        ctx.cancel_on(stop.clone());
        async { Ok(()) }
    });
    let (near, far) = memory_pair();
    let server = Peer::builder(ACP).serve(router).attach(far).unwrap();
    let client = Peer::builder(ACP).attach(near).unwrap();
    for _ in 0..10 {
        client.call::<_, ()>("quick", &json!({})).await.unwrap();
    }
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.stats().slots, 0);
    // The tasks of the two connections.
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks, 2, "I3: a task waits for the token of a request that has ended");
}
