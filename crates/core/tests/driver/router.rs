//! A router's handlers for methods that it does not name, and the requests that a cancel reaches.
//!
//! Quick handlers: polled once by the connection's task, a task of their own only if they are not ready then, with the
//! outcomes of handlers that are tasks from the beginning.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use rescind_core::dialect::{ACP, Dialect, LSP, MCP};
use rescind_core::{
    CallContext, Cause, CauseKind, Event, HandlerError, Inbound, Limits, Method, Outcome, Peer, Receiver,
    Router, TransportError, TransportEvent, memory_pair,
};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::task;

use crate::driver::wire::{TRAITS, cancel, request, serve};

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

// Quick handlers: polled once by the connection's task, a task of their own only if they are not ready then, with the
// outcomes of handlers that are tasks from the beginning.

fn connect(router: Router, limits: Limits) -> (Peer, Peer) {
    let (near, far) = memory_pair();
    let server = Peer::builder(ACP).serve(router).limits(limits).attach(far).unwrap();
    (Peer::builder(ACP).attach(near).unwrap(), server)
}

fn task_id() -> String {
    task::id().to_string()
}

#[tokio::test]
async fn a_handler_that_is_ready_runs_on_the_task_of_its_connection_and_another_becomes_a_task() {
    let goes_on = Arc::new(Notify::new());
    let gate = Arc::clone(&goes_on);
    let router = Router::new()
        .quick("ready", |_: CallContext, _: Value| async { Ok(task_id()) })
        .quick_fallback(|_: CallContext, _: Value| async { Ok(task_id()) })
        .method("task", |_: CallContext, _: Value| async { Ok(task_id()) })
        .quick("waits", move |_: CallContext, _: Value| {
            let gate = Arc::clone(&gate);
            async move {
                let first = task_id();
                gate.notified().await;
                Ok([first, task_id()])
            }
        });
    let (client, server) = connect(router, Limits::default());
    let ask = async |method: &'static str| client.call::<_, String>(method, &json!({})).await.unwrap();
    let (connection, task) = (ask("ready").await, ask("task").await);
    assert_eq!([ask("ready").await, ask("any").await], [connection.clone(), connection.clone()]);
    assert_ne!(task, connection);
    let call = client.call::<_, [String; 2]>("waits", &json!({})).start().unwrap();
    assert_eq!(ask("ready").await, connection, "it is answered although another handler waits");
    assert_eq!(server.stats().running, 1);
    goes_on.notify_one();
    let [first, then] = call.await.unwrap();
    assert_eq!(first, connection);
    assert!(then != connection && then != task, "the same future went on in a task of its own");
    assert_eq!(server.stats().slots, 0, "I3");
}

struct Double;

impl Method for Double {
    const NAME: &'static str = "double";
    type Params = (u64,);
    type Answer = u64;
}

#[tokio::test]
async fn a_typed_method_may_be_quick_and_wrong_params_are_refused() {
    let router =
        Router::new().serve_quick::<Double>(|_: CallContext, (it,): (u64,)| async move { Ok(it * 2) });
    let (client, _server) = connect(router, Limits::default());
    assert_eq!(client.request::<Double>(&(21,)).await, Ok(42));
    assert!(client.call::<_, u64>("double", &["much"]).await.is_err());
}

/// How the handlers of a comparison are registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handlers {
    Tasks,
    Quick,
}

/// Plays these frames in one batch. Returns what was written, and what the handler saw.
async fn batch(
    handlers: Handlers,
    dialect: Dialect,
    frames: &[Value],
) -> (Vec<String>, Vec<Option<CauseKind>>) {
    let (saw, mut seen) = mpsc::unbounded_channel();
    let handler = move |ctx: CallContext, _: Value| {
        saw.send(ctx.cause().map(|cause| cause.kind())).unwrap();
        async move { Ok(json!({})) }
    };
    let router = match handlers {
        Handlers::Tasks => Router::new().method("value", handler),
        Handlers::Quick => Router::new().quick("value", handler),
    };
    let router = router.method("initialize", |_: CallContext, asked: Value| async move { Ok(asked) });
    let (peer, wire) = serve(router, dialect, TRAITS, Limits::default());
    wire.says(2, &request(9, "initialize", &json!({"protocolVersion": "2025-11-25"})));
    wire.recorded().await;
    for (exchange, frame) in (3..).zip(frames) {
        wire.says(exchange, frame);
    }
    let recorded = wire.recorded().await;
    assert_eq!(peer.stats().slots, 0, "I3");
    drop(peer);
    (recorded, std::iter::from_fn(|| seen.try_recv().ok()).collect())
}

#[tokio::test(start_paused = true)]
async fn a_cancel_that_arrived_with_its_request_has_the_same_outcome() {
    let acp_cancel =
        |id| json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": id}});
    for (dialect, cancelled) in [(ACP, acp_cancel(1)), (MCP, cancel(1))] {
        for frames in [
            vec![request(1, "value", &json!({})), cancelled.clone()],
            vec![request(2, "value", &json!({})), request(1, "value", &json!({})), cancelled.clone()],
            vec![request(1, "value", &json!({})), cancelled.clone(), request(2, "value", &json!({}))],
        ] {
            let tasks = batch(Handlers::Tasks, dialect.clone(), &frames).await;
            let quick = batch(Handlers::Quick, dialect.clone(), &frames).await;
            assert_eq!(quick, tasks, "I1: {frames:?}");
            assert!(quick.1.contains(&Some(CauseKind::Peer)), "L1: {frames:?}: {quick:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn exchanges_are_begun_and_end_as_with_tasks() {
    let frames = [request(1, "value", &json!({}))];
    let expected = ["begin 3", "Data Answer 1 on 3, last"];
    for handlers in [Handlers::Tasks, Handlers::Quick] {
        assert_eq!(batch(handlers, ACP, &frames).await.0, expected, "{handlers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_quick_handler_that_ignores_its_cancel_is_aborted_after_the_grace() {
    let router = Router::new()
        .quick("deaf", |_: CallContext, _: Value| std::future::pending::<Result<(), HandlerError>>());
    let (client, server) = connect(router, Limits::default());
    let call = client.call::<_, ()>("deaf", &json!({})).start().unwrap();
    while server.stats().running == 0 {
        task::yield_now().await;
    }
    call.canceller().cancel("");
    let outcome = call.outcome().await;
    assert!(outcome.is_cancelled(), "{outcome:?}");
    tokio::time::sleep(Limits::default().cancel_grace * 2).await;
    assert_eq!((server.stats().aborted, server.stats().slots), (1, 0), "L3");
}

#[tokio::test]
async fn the_limit_of_running_handlers_holds_and_a_request_that_waited_starts_as_a_task() {
    let most = Arc::new(AtomicUsize::new(0));
    let (running, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (counted, at_once, opened) = (Arc::clone(&running), Arc::clone(&most), Arc::clone(&gate));
    let router = Router::new().quick("hold", move |_: CallContext, (waits,): (bool,)| {
        let now = counted.fetch_add(1, Ordering::SeqCst) + 1;
        at_once.fetch_max(now, Ordering::SeqCst);
        let (counted, opened, id) = (Arc::clone(&counted), Arc::clone(&opened), task_id());
        async move {
            if waits {
                opened.notified().await;
            }
            counted.fetch_sub(1, Ordering::SeqCst);
            Ok(id)
        }
    });
    let mut limits = Limits::default();
    limits.max_running_handlers = 1;
    let (client, server) = connect(router, limits);
    let ask = |waits: bool| client.call::<_, String>("hold", &[waits]).start().unwrap();
    let connection = ask(false).await.unwrap();
    let first = ask(true);
    let queued: Vec<_> = (0..50).map(|_| ask(false)).collect();
    while server.stats().queued < 50 {
        task::yield_now().await;
    }
    gate.notify_one();
    assert_eq!(first.await.unwrap(), connection);
    for call in queued {
        assert_ne!(call.await.unwrap(), connection);
    }
    assert_eq!((most.load(Ordering::SeqCst), server.stats().slots), (1, 0), "I10");
}

#[tokio::test]
async fn an_answer_without_room_waits_in_a_task_and_holds_nothing_up() {
    let router =
        Router::new().quick("big", |_: CallContext, (size,): (usize,)| async move { Ok("x".repeat(size)) });
    let mut limits = Limits::default();
    limits.max_outbox_frames = 1;
    let (client, server) = connect(router, limits);
    let calls: Vec<_> =
        (0..40).map(|_| client.call::<_, String>("big", &[100_000]).start().unwrap()).collect();
    for call in calls {
        assert_eq!(call.await.unwrap().len(), 100_000);
    }
    assert_eq!(server.stats().slots, 0, "I3");
}

/// Delivers one request, then panics.
struct Breaks(Option<Inbound>);

impl Receiver for Breaks {
    fn poll_event(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        let inbound = self.0.take().expect("as asked, in the transport");
        Poll::Ready(Some(Ok(TransportEvent::Message(inbound))))
    }
}

#[tokio::test]
async fn a_request_whose_transport_panics_before_the_first_poll_ends_as_with_tasks() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    for handlers in [Handlers::Tasks, Handlers::Quick] {
        let saw = Arc::clone(&seen);
        let handler = move |ctx: CallContext, _: Value| {
            let saw = Arc::clone(&saw);
            async move {
                let cause = ctx.cancelled().await;
                saw.lock().unwrap().push(cause.kind());
                ctx.stopped::<Value>(cause)
            }
        };
        let router = match handlers {
            Handlers::Tasks => Router::new().method("wait", handler),
            Handlers::Quick => Router::new().quick("wait", handler),
        };
        let (mut link, _far) = memory_pair();
        let frame = Bytes::from(request(1, "wait", &json!({})).to_string());
        link.rx = Box::pin(Breaks(Some(Inbound::new(frame))));
        let server = Peer::builder(ACP).serve(router).attach(link).unwrap();
        assert!(server.closed().await.is_err());
        let ends = async {
            while server.stats().slots > 0 {
                task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), ends).await.expect("I3: the request ends");
    }
    assert_eq!(*seen.lock().unwrap(), [CauseKind::Disconnected; 2], "L1");
}

/// Handlers as tower services, and a peer as a tower service.
#[cfg(feature = "tower")]
mod tower_services {
    use std::convert::Infallible;
    use std::future::{Future, poll_fn};
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use rescind_core::dialect::ACP;
    use rescind_core::{CallRequest, Peer, Router, ServiceRequest, memory_pair};
    use serde_json::{Value, json};
    use tower_service::Service;

    /// Answers with the params. Requires a call of `poll_ready` first.
    #[derive(Clone, Default)]
    struct Echo {
        ready: bool,
    }

    impl Service<ServiceRequest> for Echo {
        type Response = Value;
        type Error = Infallible;
        type Future = Pin<Box<dyn Future<Output = Result<Value, Infallible>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            self.ready = true;
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: ServiceRequest) -> Self::Future {
            assert!(self.ready, "a service is called only when it is ready");
            Box::pin(async move {
                if request.context.method() == "wait" {
                    let cause = request.context.cancelled().await;
                    return Ok(json!(format!("{:?}", cause.kind())));
                }
                Ok(request.params.read().unwrap())
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_serves_a_method_and_a_peer_is_a_service() {
        let (near, far) = memory_pair();
        let router = Router::new().service("echo", Echo::default()).service("wait", Echo::default());
        let server = Peer::builder(ACP).serve(router).attach(far).unwrap();
        let mut client = Peer::builder(ACP).attach(near).unwrap();
        poll_fn(|cx| Service::poll_ready(&mut client, cx)).await.unwrap();
        let request = CallRequest::new("echo", &json!({"a": [1, "x"]})).unwrap();
        let answer = Service::call(&mut client, request).await.unwrap();
        assert_eq!(answer.get(), r#"{"a":[1,"x"]}"#);

        let waiting = Service::call(&mut client, CallRequest::new("wait", &()).unwrap());
        while server.stats().running == 0 {
            tokio::task::yield_now().await;
        }
        drop(waiting);
        while server.stats().slots > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(server.stats().cancelled, 1, "dropping the future of a call cancels it");
    }

    #[tokio::test]
    async fn a_service_gets_raw_params_and_none_for_null() {
        #[derive(Clone)]
        struct ParamsEcho;

        impl Service<ServiceRequest> for ParamsEcho {
            type Response = String;
            type Error = Infallible;
            type Future = std::future::Ready<Result<String, Infallible>>;

            fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: ServiceRequest) -> Self::Future {
                std::future::ready(Ok(String::from_utf8_lossy(request.params.as_bytes()).into_owned()))
            }
        }

        let (near, far) = memory_pair();
        let _server =
            Peer::builder(ACP).serve(Router::new().service("params", ParamsEcho)).attach(far).unwrap();
        let mut client = Peer::builder(ACP).attach(near).unwrap();
        for (params, expected) in [(json!([1, " x"]), r#"[1," x"]"#), (json!({}), "{}"), (Value::Null, "")] {
            let request = CallRequest::new("params", &params).unwrap();
            let answer = Service::call(&mut client, request).await.unwrap();
            assert_eq!(serde_json::from_str::<String>(answer.get()).unwrap(), expected, "{params}");
        }
    }
}
