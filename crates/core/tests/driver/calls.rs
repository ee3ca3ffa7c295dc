//! Calls over a real connection: how they are cancelled, and which outcomes their callers get.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use rescind_core::dialect::ACP;
use rescind_core::{
    CallContext, CallError, CancelResult, CauseKind, Link, Outcome, Peer, Router, memory_pair,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

fn router(event_tx: &mpsc::UnboundedSender<String>) -> Router {
    let (waits, deaf) = (event_tx.clone(), event_tx.clone());
    Router::new()
        .method("echo", |_ctx: CallContext, params: Value| async move { Ok(params) })
        .method("wait", move |ctx: CallContext, _: Value| {
            let event_tx = waits.clone();
            async move {
                event_tx.send("started".to_owned()).unwrap();
                let cause = ctx.cancelled().await;
                event_tx.send(format!("{:?}", cause.kind())).unwrap();
                ctx.stopped::<Value>(cause)
            }
        })
        .method("deaf", move |_ctx: CallContext, (ms,): (u64,)| {
            let event_tx = deaf.clone();
            async move {
                event_tx.send("started".to_owned()).unwrap();
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok("done")
            }
        })
        .method("panic", |_ctx: CallContext, _: Value| async move {
            panic!("as asked");
            #[expect(unreachable_code, reason = "it tells the type of the value")]
            Ok(())
        })
}

struct Pair {
    client: Peer,
    server: Peer,
    event_rx: mpsc::UnboundedReceiver<String>,
}

fn pair() -> Pair {
    let (event_tx, event_rx) = mpsc::unbounded_channel();
    let (near, far): (Link, Link) = memory_pair();
    let server = Peer::builder(ACP).serve(router(&event_tx)).attach(far).unwrap();
    let client = Peer::builder(ACP).attach(near).unwrap();
    Pair { client, server, event_rx }
}

impl Pair {
    async fn next(&mut self) -> String {
        self.event_rx.recv().await.unwrap()
    }

    /// Waits until every trace of a request is gone on both sides (I3).
    async fn settle(&self) {
        for _ in 0..1000 {
            let (near, far) = (self.client.stats(), self.server.stats());
            if near.calls == 0 && far.slots == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("I3: residue: {:?} {:?}", self.client.stats(), self.server.stats());
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_returns_what_its_handler_returns() {
    let pair = pair();
    let answer: Value = pair.client.call("echo", &json!({"a": 1})).await.unwrap();
    assert_eq!(answer, json!({"a": 1}));
    pair.settle().await;
}

// covers: ACPDRAFT-09, ACPRFD-06, ABP-04
#[tokio::test(start_paused = true)]
async fn dropping_a_call_cancels_its_request() {
    let mut pair = pair();
    let call = pair.client.call::<_, Value>("wait", &json!({})).start().unwrap();
    assert_eq!(pair.next().await, "started");
    drop(call);
    assert_eq!(pair.next().await, "Peer");
    pair.settle().await;
    assert_eq!(pair.server.stats().cancelled, 1);
}

// covers: ABP-31
#[tokio::test(start_paused = true)]
async fn a_canceller_cancels_once_and_returns_the_result() {
    let mut pair = pair();
    let call = pair.client.call::<_, Value>("wait", &json!({})).start().unwrap();
    let stop = call.canceller();
    assert_eq!(pair.next().await, "started");
    let other = stop.clone();
    let result = std::thread::spawn(move || other.cancel("the user pressed stop")).join().unwrap();
    assert_eq!(result, CancelResult::Sent);
    assert_eq!(stop.cancel("again"), CancelResult::AlreadySettled, "I7");
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => {
            assert!(cancelled.confirmed);
            assert_eq!(cancelled.cause.kind(), CauseKind::Caller);
            assert_eq!(cancelled.cause.reason(), Some("the user pressed stop"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(stop.cancel("late"), CancelResult::AlreadySettled);
    assert_eq!(pair.next().await, "Peer");
    pair.settle().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_cancelled_before_it_is_written_never_reaches_the_wire() {
    let pair = pair();
    let call = pair.client.call::<_, Value>("wait", &json!({})).start().unwrap();
    assert_eq!(call.canceller().cancel(""), CancelResult::TakenBack);
    assert!(call.outcome().await.is_cancelled());
    let answer: Value = pair.client.call("echo", &json!([1])).await.unwrap();
    assert_eq!(answer, json!([1]));
    assert_eq!(pair.server.stats().started, 1);
    pair.settle().await;
}

// covers: ACPDRAFT-09, ACPRFD-06, ABP-04, ABP-16
#[tokio::test(start_paused = true)]
async fn a_token_cancels_a_call_and_a_call_gives_a_token() {
    let mut pair = pair();
    let token = CancellationToken::new();
    let call = pair.client.call::<_, Value>("wait", &json!({})).cancel_on(token.clone()).start().unwrap();
    assert_eq!(pair.next().await, "started");
    token.cancel();
    assert!(call.outcome().await.is_cancelled());
    assert_eq!(pair.next().await, "Peer");

    let refused = pair.client.call::<_, Value>("wait", &json!({})).cancel_on(token).start().unwrap();
    assert!(refused.outcome().await.is_cancelled(), "a cancelled token sends nothing");

    let call = pair.client.call::<_, Value>("wait", &json!({})).start().unwrap();
    let token = call.canceller().to_token();
    assert_eq!(pair.next().await, "started");
    token.cancel();
    assert!(call.outcome().await.is_cancelled());
    assert_eq!(pair.next().await, "Peer");
    pair.settle().await;
    assert_eq!(pair.server.stats().started, 2);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_cancels_with_the_cause_deadline() {
    let mut pair = pair();
    let call =
        pair.client.call::<_, Value>("wait", &json!({})).timeout(Duration::from_secs(3)).start().unwrap();
    let begun = tokio::time::Instant::now();
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => assert_eq!(cancelled.cause.kind(), CauseKind::Deadline),
        other => panic!("{other:?}"),
    }
    assert_eq!(begun.elapsed(), Duration::from_secs(3));
    assert_eq!(pair.next().await, "started");
    assert_eq!(pair.next().await, "Peer");
    pair.settle().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_ignores_cancel_is_aborted_after_the_grace_and_its_caller_gets_an_error() {
    let mut pair = pair();
    let call = pair.client.call::<_, Value>("deaf", &[60_000]).start().unwrap();
    assert_eq!(pair.next().await, "started");
    let begun = tokio::time::Instant::now();
    call.canceller().cancel("");
    assert!(call.outcome().await.is_cancelled());
    assert_eq!(begun.elapsed(), Duration::from_secs(2));
    pair.settle().await;
    assert_eq!(pair.server.stats().aborted, 1);
}

#[tokio::test(start_paused = true)]
async fn a_value_after_the_cancel_has_its_own_outcome() {
    let mut pair = pair();
    let call = pair.client.call::<_, String>("deaf", &[500]).start().unwrap();
    assert_eq!(pair.next().await, "started");
    call.canceller().cancel("");
    assert_eq!(call.outcome().await, Outcome::CompletedAfterCancel("done".to_owned()));
    pair.settle().await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_answers_one_request_and_the_others_live() {
    let mut pair = pair();
    let waiting = pair.client.call::<_, Value>("wait", &json!({})).start().unwrap();
    assert_eq!(pair.next().await, "started");
    match pair.client.call::<_, Value>("panic", &json!({})).await {
        Err(CallError::Failed(error)) => assert_eq!(error.code.0, -32603),
        other => panic!("{other:?}"),
    }
    let answer: Value = pair.client.call("echo", &json!([1])).await.unwrap();
    assert_eq!(answer, json!([1]));
    assert_eq!(pair.server.stats().panics, 1);
    drop(waiting);
    pair.settle().await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_method_and_invalid_params_have_their_own_errors() {
    let pair = pair();
    for (method, params, code) in [("none", json!({}), -32601), ("deaf", json!({"x": 1}), -32602)] {
        match pair.client.call::<_, Value>(method, &params).await {
            Err(CallError::Failed(error)) => assert_eq!(error.code.0, code, "{method}"),
            other => panic!("{other:?}"),
        }
    }
    pair.settle().await;
}

#[tokio::test(start_paused = true)]
async fn params_no_message_can_hold_are_refused_before_they_are_sent() {
    let pair = pair();
    match pair.client.call::<_, Value>("echo", &7).start() {
        Err(CallError::Params { method, .. }) => assert_eq!(method, "echo"),
        other => panic!("{other:?}"),
    }
    pair.settle().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_over_the_limit_fails_at_once() {
    let (near, _far) = memory_pair();
    let mut limits = rescind_core::Limits::default();
    limits.max_calls = 3;
    let client = Peer::builder(ACP).limits(limits).attach(near).unwrap();
    let calls: Vec<_> =
        (0..3).map(|_| client.call::<_, Value>("wait", &json!({})).start().unwrap()).collect();
    match client.call::<_, Value>("wait", &json!({})).start() {
        Err(CallError::TooMany { limit: 3 }) => {}
        other => panic!("{other:?}"),
    }
    drop(calls);
    assert!(client.call::<_, Value>("wait", &json!({})).start().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_outside_a_runtime_and_after_its_driver_takes_only_a_lock() {
    let mut pair = pair();
    let call = pair.client.call::<_, Value>("wait", &json!({})).start().unwrap();
    assert_eq!(pair.next().await, "started");
    std::thread::spawn(move || drop(call)).join().unwrap();
    assert_eq!(pair.next().await, "Peer");

    let (call, other) = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let held = runtime.block_on(async {
            let (near, far) = memory_pair();
            let client = Peer::builder(ACP).attach(near).unwrap();
            let call = client.call::<_, Value>("wait", &json!({})).start().unwrap();
            let other = client.call::<_, Value>("wait", &json!({})).start().unwrap();
            tokio::task::yield_now().await;
            drop(far);
            (call, other)
        });
        drop(runtime);
        held
    })
    .join()
    .unwrap();
    drop(other);
    match call.outcome().await {
        Outcome::Disconnected { .. } => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_reader_made_after_the_start_ends_with_its_call() {
    let (client, server) = memory_pair();
    let router = Router::new().method("tell", |ctx: CallContext, _: Value| async move {
        ctx.try_notify("reported", &json!({}))?;
        Ok(Value::Null)
    });
    let _server = Peer::builder(ACP).serve(router).attach(server).unwrap();
    let peer = Peer::builder(ACP).attach(client).unwrap();
    let call = peer.call::<_, Value>("tell", &json!({})).start().unwrap();
    let mut updates = call.notifications_where(|notification| notification.method() == "reported");
    let read = async {
        assert!(updates.next().await.is_some());
        assert!(updates.next().await.is_none(), "the call has ended");
    };
    let both = async { tokio::join!(call.outcome(), read) };
    let (outcome, ()) = tokio::time::timeout(Duration::from_secs(30), both).await.unwrap();
    assert!(matches!(outcome, Outcome::Completed(_)));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_moves_to_another_task_wakes_that_one() {
    let mut pair = pair();
    let mut call = pair.client.call::<_, String>("deaf", &(1000,)).start().unwrap();
    // The call is polled once here, and then awaited in another task.
    let looked = poll_fn(|cx| Poll::Ready(Pin::new(&mut call).poll(cx))).await;
    assert!(looked.is_pending());
    assert_eq!(pair.next().await, "started");
    let answer = tokio::time::timeout(Duration::from_secs(10), tokio::spawn(call)).await;
    assert_eq!(answer.expect("who waits now is woken").unwrap().unwrap(), "done");
}

#[tokio::test(start_paused = true)]
async fn a_child_that_was_detached_outlives_its_parent() {
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let (near, far) = memory_pair();
    let client = Peer::builder(ACP).serve(router(&event_tx)).attach(near).unwrap();
    let started = event_tx.clone();
    let parent = Router::new().method("parent", move |ctx: CallContext, _: Value| {
        let started = started.clone();
        async move {
            for detached in [true, false] {
                let child = ctx.call::<_, Value>("wait", &json!({})).start()?;
                if detached {
                    child.detach();
                } else {
                    started.send("both".to_owned()).unwrap();
                    let _ = child.outcome().await;
                }
            }
            Ok(Value::Null)
        }
    });
    let server = Peer::builder(ACP).serve(parent).attach(far).unwrap();
    let call = client.call::<_, Value>("parent", &json!({})).start().unwrap();
    for expected in ["both", "started", "started"] {
        assert_eq!(event_rx.recv().await.as_deref(), Some(expected));
    }
    call.canceller().cancel("stop");
    let _ = call.outcome().await;
    assert_eq!(event_rx.recv().await.as_deref(), Some("Peer"), "the child that is still its parent's");
    assert_eq!((client.stats().slots, server.stats().calls), (1, 1), "the other goes on");
    assert!(event_rx.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ended_has_no_acknowledgement_to_wait_for() {
    let pair = pair();
    let mut call = pair.client.call::<_, Value>("echo", &json!({})).start().unwrap();
    pair.settle().await;
    let acknowledged = tokio::time::timeout(Duration::from_secs(10), call.acknowledged()).await;
    assert_eq!(acknowledged.expect("L3: it waits forever"), None);
}
