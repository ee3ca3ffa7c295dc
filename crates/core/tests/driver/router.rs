//! A router's handlers for methods that it does not name, and the requests that a cancel reaches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rescind_core::dialect::{ACP, LSP};
use rescind_core::{CallContext, Cause, CauseKind, Event, Limits, Outcome, Peer, Router, memory_pair};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

use crate::driver::wire::{TRAITS, request, serve};

fn pair(router: Router) -> (Peer, Peer) {
    let (near, far) = memory_pair();
    let server = Peer::builder(ACP).serve(router).attach(far).unwrap();
    (Peer::builder(ACP).attach(near).unwrap(), server)
}

/// Waits until this holds. If it never does, the test hangs.
async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_fallback_serves_unnamed_methods_and_gets_their_cancels() {
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("named", |_: CallContext, _: Value| async { Ok("by name") })
        .fallback(|ctx: CallContext, _: Value| async move {
            if ctx.method() == "wait" {
                let cause = ctx.cancelled().await;
                return ctx.stopped(cause);
            }
            Ok(ctx.method().to_owned())
        })
        .notification("named", |_, _: Value| async {})
        .notification_fallback(move |_, method, params: Value| {
            event_tx.send((method.to_string(), params)).unwrap();
            async {}
        });
    let (client, server) = pair(router);
    assert_eq!(client.call::<_, Value>("named", &json!({})).await.unwrap(), "by name");
    assert_eq!(client.call::<_, Value>("some/other", &json!({})).await.unwrap(), "some/other");
    let call = client.call::<_, Value>("wait", &json!({})).start().unwrap();
    until(|| server.stats().running == 1).await;
    call.canceller().cancel("");
    assert!(matches!(call.outcome().await, Outcome::Cancelled(cancelled) if cancelled.confirmed));
    client.try_notify("named", &json!({})).unwrap();
    client.try_notify("other", &json!([1])).unwrap();
    assert_eq!(event_rx.recv().await.unwrap(), ("other".to_owned(), json!([1])));
}

#[tokio::test]
async fn a_concurrent_notification_waits_for_no_other() {
    let quick = Arc::new(Notify::new());
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let (awaited, ended) = (Arc::clone(&quick), event_tx.clone());
    let router = Router::new()
        .notification("slow", move |_, _: Value| {
            let (awaited, ended) = (Arc::clone(&awaited), ended.clone());
            async move {
                awaited.notified().await;
                ended.send("slow").unwrap();
            }
        })
        .concurrent_notification("quick", move |_, _: Value| {
            event_tx.send("quick").unwrap();
            quick.notify_one();
            async {}
        });
    let (client, _server) = pair(router);
    client.try_notify("slow", &json!({})).unwrap();
    client.try_notify("quick", &json!({})).unwrap();
    assert_eq!((event_rx.recv().await, event_rx.recv().await), (Some("quick"), Some("slow")));
}

#[tokio::test]
async fn notifications_beyond_their_room_are_dropped_and_counted_and_requests_go_on() {
    for by_bytes in [false, true] {
        let open = Arc::new(Notify::new());
        let handled = Arc::new(AtomicUsize::new(0));
        let (gate, count) = (Arc::clone(&open), Arc::clone(&handled));
        let router = Router::new()
            .method("echo", |_: CallContext, value: Value| async move { Ok(value) })
            .notification("reported", move |_, _: Value| {
                let (gate, count) = (Arc::clone(&gate), Arc::clone(&count));
                async move {
                    gate.notified().await;
                    count.fetch_add(1, Ordering::SeqCst);
                    gate.notify_one();
                }
            });
        let mut limits = Limits::default();
        if by_bytes {
            limits.max_notification_bytes = 3000;
        } else {
            limits.max_queued_notifications = 3;
        }
        let reached = Arc::new(AtomicUsize::new(0));
        let events = Arc::clone(&reached);
        let (near, far) = memory_pair();
        let server = Peer::builder(ACP)
            .serve(router)
            .limits(limits)
            .on_event(move |event| {
                if *event == Event::LimitReached("notifications") {
                    events.fetch_add(1, Ordering::SeqCst);
                }
            })
            .attach(far)
            .unwrap();
        let client = Peer::builder(ACP).attach(near).unwrap();
        for _ in 0..20 {
            client.try_notify("reported", &json!(["x".repeat(900)])).unwrap();
        }
        assert_eq!(
            client.call::<_, Value>("echo", &json!([1])).await.unwrap(),
            json!([1]),
            "L2: requests pass"
        );
        let load = server.queue_stats();
        let dropped = usize::try_from(load.notifications_dropped).unwrap();
        assert!(load.notifications_waiting <= 4 && dropped >= 16, "I11: {load:?}");
        until(|| reached.load(Ordering::SeqCst) == dropped).await;
        open.notify_one();
        until(|| server.queue_stats().notifications_waiting == 0).await;
        until(|| handled.load(Ordering::SeqCst) == 20 - dropped).await;
    }
}

/// Reports its drop.
struct SaysItsDrop(mpsc::UnboundedSender<&'static str>);

impl Drop for SaysItsDrop {
    fn drop(&mut self) {
        let _ = self.0.send("dropped");
    }
}

#[tokio::test]
async fn work_that_runs_until_cancelled_is_dropped_by_a_cancel_and_answered_as_cancelled() {
    let (near, far) = memory_pair();
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let router = Router::new().method("work", move |ctx: CallContext, _: Value| {
        let event_tx = event_tx.clone();
        async move {
            let work = async move {
                let _says = SaysItsDrop(event_tx.clone());
                event_tx.send("begun").unwrap();
                std::future::pending::<()>().await;
            };
            Ok(ctx.run_until_cancelled(work).await?)
        }
    });
    let _server = Peer::builder(ACP).serve(router).attach(far).unwrap();
    let client = Peer::builder(ACP).attach(near).unwrap();
    let call = client.call::<_, Value>("work", &json!({})).start().unwrap();
    assert_eq!(event_rx.recv().await, Some("begun"));
    call.canceller().cancel("enough");
    let Outcome::Cancelled(cancelled) = call.outcome().await else { panic!("it was not cancelled") };
    assert!(cancelled.confirmed, "the handler gave the dialect's cancelled answer");
    assert_eq!(event_rx.recv().await, Some("dropped"));
}

#[tokio::test]
async fn a_value_that_is_ready_when_the_cancel_comes_is_not_lost() {
    let (near, far) = memory_pair();
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let router = Router::new().method("work", move |ctx: CallContext, _: Value| {
        let event_tx = event_tx.clone();
        async move {
            event_tx.send(()).unwrap();
            ctx.cancelled().await;
            Ok(ctx.run_until_cancelled(std::future::ready("done")).await?)
        }
    });
    let _server = Peer::builder(ACP).serve(router).attach(far).unwrap();
    let client = Peer::builder(ACP).attach(near).unwrap();
    let call = client.call::<_, String>("work", &json!({})).start().unwrap();
    event_rx.recv().await.unwrap();
    call.canceller().cancel("enough");
    let Outcome::CompletedAfterCancel(value) = call.outcome().await else { panic!("the value was lost") };
    assert_eq!(value, "done");
}

#[tokio::test]
async fn a_cause_turns_into_the_cancelled_answer() {
    let (near, far) = memory_pair();
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let router = Router::new().method("work", move |ctx: CallContext, _: Value| {
        let event_tx = event_tx.clone();
        async move {
            event_tx.send(()).unwrap();
            Err::<Value, _>(ctx.cancelled().await.into())
        }
    });
    let _server = Peer::builder(ACP).serve(router).attach(far).unwrap();
    let client = Peer::builder(ACP).attach(near).unwrap();
    let call = client.call::<_, Value>("work", &json!({})).start().unwrap();
    event_rx.recv().await.unwrap();
    call.canceller().cancel("enough");
    let Outcome::Cancelled(cancelled) = call.outcome().await else { panic!("it was not cancelled") };
    assert!(cancelled.confirmed);
}

#[tokio::test]
async fn a_detached_child_goes_on_when_its_parent_is_cancelled() {
    let (near, far) = memory_pair();
    let finish = Arc::new(Notify::new());
    let finishing = Arc::clone(&finish);
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let client_side = Router::new().method("child", move |ctx: CallContext, _: Value| {
        let (finishing, event_tx) = (Arc::clone(&finishing), event_tx.clone());
        async move {
            event_tx.send("begun").unwrap();
            finishing.notified().await;
            event_tx.send(if ctx.is_cancelled() { "cancelled" } else { "finished" }).unwrap();
            Ok(())
        }
    });
    let router = Router::new().method("parent", |ctx: CallContext, _: Value| async move {
        let child = ctx.call::<_, Value>("child", &json!({})).detach().start()?;
        child.detach();
        let cause = ctx.cancelled().await;
        ctx.stopped::<()>(cause)
    });
    let _server = Peer::builder(ACP).serve(router).attach(far).unwrap();
    let client = Peer::builder(ACP).serve(client_side).attach(near).unwrap();
    let parent = client.call::<_, Value>("parent", &json!({})).start().unwrap();
    assert_eq!(event_rx.recv().await, Some("begun"));
    parent.canceller().cancel("");
    assert!(matches!(parent.outcome().await, Outcome::Cancelled(_)));
    finish.notify_one();
    assert_eq!(event_rx.recv().await, Some("finished"));
}

#[tokio::test]
async fn a_cancel_goes_down_a_thousand_hops_between_two_peers() {
    // docs/semantics.md, Cascade: no recursion and no long lock
    const DEPTH: u64 = 1000;
    let deepest = Arc::new(Notify::new());
    let side = || {
        let deepest = Arc::clone(&deepest);
        Router::new().method("deeper", move |ctx: CallContext, (depth,): (u64,)| {
            let deepest = Arc::clone(&deepest);
            async move {
                if depth == 0 {
                    deepest.notify_one();
                    let cause = ctx.cancelled().await;
                    return ctx.stopped(cause);
                }
                let child = ctx.call::<_, Value>("deeper", &[depth - 1]).start()?;
                let outcome = child.outcome().await;
                match ctx.cause() {
                    Some(cause) => ctx.stopped(cause),
                    None => Ok(matches!(outcome, Outcome::Cancelled(_))),
                }
            }
        })
    };
    let (near, far) = memory_pair();
    let server = Peer::builder(ACP).serve(side()).attach(far).unwrap();
    let client = Peer::builder(ACP).serve(side()).attach(near).unwrap();
    let root = client.call::<_, Value>("deeper", &[DEPTH]).start().unwrap();
    deepest.notified().await;
    root.canceller().cancel("");
    assert!(matches!(root.outcome().await, Outcome::Cancelled(cancelled) if cancelled.confirmed));
    until(|| server.stats().slots + client.stats().slots == 0).await;
    let (here, there) = (client.stats(), server.stats());
    assert_eq!(here.cancelled + there.cancelled, DEPTH + 1, "I5: each hop is signalled once");
    assert_eq!(here.started + there.started, DEPTH + 1);
    assert_eq!((here.calls, there.calls), (0, 0), "I3");
}

/// The last handle of a peer that serves nothing closes its connection. A peer that serves continues without a
/// handle.
#[tokio::test(start_paused = true)]
async fn whatever_a_router_has_makes_its_peer_serve_and_an_empty_one_does_not() {
    let empty = [Router::new(), Router::new().server_cancellable("named")];
    let serving = [
        Router::new().method("named", |_: CallContext, _: Value| async { Ok(()) }),
        Router::new().fallback(|_: CallContext, _: Value| async { Ok(()) }),
        Router::new().notification("named", |_, _: Value| async {}),
        Router::new().notification_fallback(|_, _, _: Value| async {}),
    ];
    let routers = empty.map(|router| (router, false)).into_iter().chain(serving.map(|router| (router, true)));
    for (at, (router, serves)) in routers.enumerate() {
        let (near, far) = memory_pair();
        drop(Peer::builder(ACP).serve(router).attach(far));
        let client = Peer::builder(ACP).attach(near).unwrap();
        let goes_on = tokio::time::timeout(Duration::from_secs(60), client.closed()).await.is_err();
        assert_eq!(goes_on, serves, "router {at}");
    }
}

/// LSP: -32802 is for "server cancellable" requests only. Other requests fail with the code for a failed request.
#[tokio::test]
async fn a_method_that_its_server_may_cancel_is_answered_so() {
    let by_itself = |ctx: CallContext, _: Value| async move {
        assert!(ctx.cancel_local(Cause::new(CauseKind::Local)));
        let cause = ctx.cancelled().await;
        ctx.stopped::<Value>(cause)
    };
    let router = Router::new()
        .method("initialize", |_: CallContext, _: Value| async { Ok(json!({"capabilities": {}})) })
        .method("marked", by_itself)
        .server_cancellable("marked")
        .method("plain", by_itself);
    let (peer, wire) = serve(router, LSP, TRAITS, Limits::default());
    wire.says(9, &request(9, "initialize", &json!({})));
    wire.recorded().await;
    for (id, method, code) in [(1, "marked", -32_802), (2, "plain", -32_803)] {
        wire.says(id, &request(id, method, &json!({})));
        wire.recorded().await;
        let frame: Value = serde_json::from_slice(&wire.state().frame).unwrap();
        assert_eq!((&frame["id"], &frame["error"]["code"]), (&json!(id), &json!(code)), "{method}");
    }
    assert_eq!(peer.stats().slots, 0);
}
