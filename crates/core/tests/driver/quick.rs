//! Quick handlers: polled once by the connection's task, a task of their own only if they are not ready then, with the
//! outcomes of handlers that are tasks from the beginning.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use rescind_core::dialect::{ACP, Dialect, MCP};
use rescind_core::{
    CallContext, CauseKind, HandlerError, Inbound, Limits, Method, Peer, Receiver, Router, TransportError,
    TransportEvent, memory_pair,
};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::task;

use crate::driver::wire::{TRAITS, cancel, request, serve};

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
