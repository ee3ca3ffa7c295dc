//! Serving over a real connection: registry, shields, order, cancel trees across connections, full outboxes, ends.
//!
//! Values that a program passes in are dropped without the connection's lock, because the drop may run the program's
//! code (D2).

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc as threads};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use rescind_core::dialect::{ABP, ACP, LSP, MCP, Role};
use rescind_core::{
    CallContext, CallError, Cause, CauseKind, ConnectionError, ErrorCode, ErrorObject, Event, Limits, Link,
    Outcome, Peer, ProtocolViolation, Registry, RequestId, Router, Server, ServerLimits, SessionId, Share,
    memory_listener, memory_pair,
};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, oneshot};

fn waiting(event_tx: &mpsc::UnboundedSender<CauseKind>, started: &Arc<Notify>) -> Router {
    let (event_tx, started) = (event_tx.clone(), Arc::clone(started));
    Router::new().method("echo", |_ctx: CallContext, params: Value| async move { Ok(params) }).method(
        "wait",
        move |ctx: CallContext, _: Value| {
            let (event_tx, started) = (event_tx.clone(), Arc::clone(&started));
            async move {
                started.notify_one();
                let cause = ctx.cancelled().await;
                event_tx.send(cause.kind()).unwrap();
                ctx.stopped::<Value>(cause)
            }
        },
    )
}

fn connect(router: Router) -> (Peer, Peer) {
    let (near, far) = memory_pair();
    let server = Peer::builder(ACP).serve(router).attach(far).unwrap();
    (Peer::builder(ACP).attach(near).unwrap(), server)
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if holds() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("{what}");
}

// covers: GETMCP-12, GETMCP-14, GETMCP-16
#[tokio::test(start_paused = true)]
async fn the_registry_answers_by_session_and_request_id() {
    let registry = Registry::new();
    let (event_tx, mut asked) = mpsc::unbounded_channel::<(SessionId, RequestId)>();
    let (near, far) = memory_pair();
    let gate = Arc::new(Notify::new());
    let hold = Arc::clone(&gate);
    let router = Router::new().method("tool", move |ctx: CallContext, _: Value| {
        event_tx.send((ctx.session().clone(), ctx.request_id().clone())).unwrap();
        let gate = Arc::clone(&hold);
        async move {
            let cause = ctx.cancelled().await;
            assert!(ctx.registry().is_cancelled(ctx.session(), ctx.request_id()));
            gate.notified().await;
            ctx.stopped::<Value>(cause)
        }
    });
    let _server =
        Peer::builder(MCP).serve(router).registry(&registry).session("tenant-7").attach(far).unwrap();
    let client = Peer::builder(MCP).attach(near).unwrap();
    let call = client.call::<_, Value>("tool", &json!({})).start().unwrap();
    let (session, id) = asked.recv().await.unwrap();
    assert_eq!(session.as_str(), "tenant-7");
    assert!(!registry.is_cancelled(&session, &id));
    drop(call);
    let other = SessionId::from("tenant-8");
    until("the cancel is never recorded", || registry.is_cancelled(&session, &id)).await;
    assert!(!registry.is_cancelled(&other, &id), "I4");
    gate.notify_one();
    until("I3: the record outlives its request", || registry.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_shield_holds_the_cancel_off_until_its_section_ends() {
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let (client, _server) = connect(Router::new().method("save", move |ctx: CallContext, _: Value| {
        let event_tx = event_tx.clone();
        async move {
            let section = async {
                event_tx.send("in").unwrap();
                tokio::time::sleep(Duration::from_secs(10)).await;
                assert!(!ctx.is_cancelled(), "the section is not over");
            };
            ctx.shield(section).await;
            assert!(ctx.is_cancelled(), "L1: the signal comes with the end of the shield");
            event_tx.send("out").unwrap();
            ctx.check()?;
            Ok(())
        }
    }));
    let call = client.call::<_, ()>("save", &json!({})).after_cancel(WAIT).start().unwrap();
    assert_eq!(event_rx.recv().await, Some("in"));
    drop(call);
    assert_eq!(event_rx.recv().await, Some("out"));
}

const WAIT: rescind_core::AfterCancel = rescind_core::AfterCancel::WaitForPeer;

#[tokio::test(start_paused = true)]
async fn children_on_another_connection_are_cancelled_with_their_parent() {
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let started = Arc::new(Notify::new());
    let (upstream, far_server) = connect(waiting(&event_tx, &started));
    let gateway = upstream.clone();
    let (client, near_server) = connect(Router::new().method("via", move |ctx: CallContext, _: Value| {
        let gateway = gateway.clone();
        async move {
            let child = || gateway.call::<_, Value>("wait", &json!({})).child_of(&ctx).start();
            let children = (child()?, child()?);
            // This handler waits for its cancel and then for its children. The children end because of the cascade,
            // and not because they are dropped.
            ctx.cancelled().await;
            let (first, second) = (children.0.outcome().await, children.1.outcome().await);
            if first.is_cancelled() && second.is_cancelled() {
                Ok(())
            } else {
                Err(ErrorObject::internal().into())
            }
        }
    }));
    let call = client.call::<_, ()>("via", &json!({})).start().unwrap();
    for _ in 0..2 {
        started.notified().await;
    }
    let begun = tokio::time::Instant::now();
    call.canceller().cancel("stop");
    for _ in 0..2 {
        assert_eq!(event_rx.recv().await, Some(CauseKind::Peer));
    }
    let outcome = call.outcome().await;
    assert_eq!(outcome, Outcome::CompletedAfterCancel(()), "I6");
    assert_eq!(
        begun.elapsed(),
        Duration::ZERO,
        "I6: the children were cancelled when the handler was aborted"
    );
    until("I3", || {
        [&far_server, &near_server].iter().all(|peer| peer.stats().slots == 0) && upstream.stats().calls == 0
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_child_of_a_cancelled_request_is_cancelled_from_the_start_and_sends_nothing() {
    let (event_tx, _told) = mpsc::unbounded_channel();
    let started = Arc::new(Notify::new());
    let (upstream, far_server) = connect(waiting(&event_tx, &started));
    let (ran, mut result) = mpsc::unbounded_channel();
    let (client, _server) = connect(Router::new().method("via", move |ctx: CallContext, _: Value| {
        let (upstream, ran) = (upstream.clone(), ran.clone());
        async move {
            ran.send(None).unwrap();
            let _cause = ctx.cancelled().await;
            let child = upstream.call::<_, Value>("wait", &json!({})).child_of(&ctx).start()?;
            ran.send(Some(child.outcome().await.is_cancelled())).unwrap();
            Ok(())
        }
    }));
    let call = client.call::<_, ()>("via", &json!({})).start().unwrap();
    assert_eq!(result.recv().await, Some(None));
    call.canceller().cancel("");
    assert_eq!(result.recv().await, Some(Some(true)), "I5");
    assert_eq!(far_server.stats().started, 0);
}

#[tokio::test(start_paused = true)]
async fn a_context_reports_ended_after_the_answer() {
    let kept: Arc<Mutex<Option<CallContext>>> = Arc::default();
    let keep = Arc::clone(&kept);
    let (client, _server) = connect(Router::new().method("once", move |ctx: CallContext, _: Value| {
        *keep.lock().unwrap() = Some(ctx);
        async { Ok(1) }
    }));
    assert_eq!(client.call::<_, i32>("once", &json!({})).await, Ok(1));
    let ctx = kept.lock().unwrap().take().unwrap();
    assert_eq!(ctx.try_notify("late", &json!({})), Err(CallError::Ended));
    assert!(matches!(ctx.call::<_, Value>("late", &json!({})).start(), Err(CallError::Ended)));
    assert!(!ctx.cancel_local(Cause::new(CauseKind::Local)));
}

#[tokio::test(start_paused = true)]
async fn notifications_are_handled_one_at_a_time_in_the_order_they_came() {
    let seen: Arc<Mutex<Vec<u32>>> = Arc::default();
    let running = Arc::new(AtomicUsize::new(0));
    let (record, busy) = (Arc::clone(&seen), Arc::clone(&running));
    let router = Router::new().notification("change", move |_peer: Peer, (n,): (u32,)| {
        let (record, busy) = (Arc::clone(&record), Arc::clone(&busy));
        async move {
            assert_eq!(busy.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
            tokio::task::yield_now().await;
            busy.fetch_sub(1, Ordering::SeqCst);
            record.lock().unwrap().push(n);
            assert!(n != 5, "one that panics does not stop the others");
        }
    });
    let (client, _server) = connect(router);
    for n in 0..1000u32 {
        client.notify("change", &[n]).await.unwrap();
    }
    until("not all were handled", || seen.lock().unwrap().len() == 1000).await;
    assert!(seen.lock().unwrap().iter().copied().eq(0..1000));
}

#[tokio::test(start_paused = true)]
async fn progress_goes_to_its_call_and_other_notifications_to_those_that_ask() {
    let (near, far) = memory_pair();
    let router = Router::new().method("work", |ctx: CallContext, _: Value| async move {
        let token: Value = serde_json::from_str(ctx.progress_token().unwrap().get()).unwrap();
        for n in 0..3 {
            ctx.try_notify("notifications/progress", &json!({"progressToken": token, "progress": n}))?;
            ctx.try_notify("update", &json!({ "n": n }))?;
        }
        Ok(())
    });
    let _server = Peer::builder(MCP).serve(router).attach(far).unwrap();
    let client = Peer::builder(MCP).attach(near).unwrap();
    let call = client.call::<_, ()>("work", &json!({})).progress().start().unwrap();
    let mut progress = call.notifications();
    let mut updates = call.notifications_where(|notification| notification.method() == "update");
    call.await.unwrap();
    let mut read = (Vec::new(), Vec::new());
    while let Some(notification) = progress.next().await {
        read.0.push(notification.params::<Value>().unwrap()["progress"].clone());
    }
    while let Some(notification) = updates.next().await {
        read.1.push(notification.params::<Value>().unwrap()["n"].clone());
    }
    let all: Vec<Value> = (0..3).map(Value::from).collect();
    assert_eq!(read, (all.clone(), all));
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_settles_every_call_and_cancels_every_handler() {
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let started = Arc::new(Notify::new());
    let (near, far) = memory_pair();
    let server = Peer::builder(ACP).serve(waiting(&event_tx, &started)).attach(far).unwrap();
    let client = Peer::builder(ACP).attach(near).unwrap();
    let calls: Vec<_> =
        (0..50).map(|_| client.call::<_, Value>("wait", &json!({})).start().unwrap()).collect();
    started.notified().await;
    until("all run", || server.stats().running == 50).await;
    server.shutdown(Duration::ZERO).await;
    for _ in 0..50 {
        assert_eq!(event_rx.recv().await, Some(CauseKind::Shutdown));
    }
    for call in calls {
        match call.outcome().await {
            Outcome::Disconnected { may_have_run: true } | Outcome::Cancelled(_) => {}
            other => panic!("I13: {other:?}"),
        }
    }
    client.closed().await.unwrap();
    assert!(matches!(
        client.call::<_, Value>("wait", &json!({})).start().unwrap().outcome().await,
        Outcome::Disconnected { may_have_run: false }
    ));
    until("L3", || server.stats().slots == 0 && client.stats().calls == 0).await;
}

#[tokio::test(start_paused = true)]
async fn dropping_a_driver_settles_every_call_and_the_handles_stay_usable() {
    let (give, taken) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let held = runtime.block_on(async {
            let (event_tx, _told) = mpsc::unbounded_channel();
            let started = Arc::new(Notify::new());
            let (client, server) = connect(waiting(&event_tx, &started));
            let call = client.call::<_, Value>("wait", &json!({})).start().unwrap();
            started.notified().await;
            (client, server, call)
        });
        drop(runtime);
        let _ = give.send(held);
    })
    .join()
    .unwrap();
    let (client, server, call) = taken.await.unwrap();
    assert!(matches!(call.outcome().await, Outcome::Disconnected { may_have_run: true }));
    assert!(matches!(client.closed().await, Err(ConnectionError::Transport(_))));
    assert_eq!(server.stats().slots, 0, "I3: the guard of a dropped task reports its end");
    assert_eq!(server.stats().running + server.stats().draining, 0, "I10");
}

#[tokio::test(start_paused = true)]
async fn shutdown_goes_through_its_steps() {
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let started = Arc::new(Notify::new());
    let release = Arc::new(Notify::new());
    let gate = Arc::clone(&release);
    let router = waiting(&event_tx, &started)
        .method("short", move |_ctx: CallContext, _: Value| {
            let gate = Arc::clone(&gate);
            async move {
                gate.notified().await;
                Ok("done")
            }
        })
        .method("deaf", |_ctx: CallContext, _: Value| async move {
            std::future::pending::<()>().await;
            Ok(())
        });
    let (client, server) = connect(router);
    let short = client.call::<_, String>("short", &json!({})).start().unwrap();
    let waits = client.call::<_, Value>("wait", &json!({})).start().unwrap();
    let deaf = client.call::<_, Value>("deaf", &json!({})).start().unwrap();
    started.notified().await;
    until("all run", || server.stats().running == 3).await;
    let begun = tokio::time::Instant::now();
    let closing = server.clone();
    let shutdown = tokio::spawn(async move { closing.shutdown(Duration::from_secs(5)).await });
    tokio::task::yield_now().await;
    // 1: new requests are refused as cancelled.
    assert!(client.call::<_, Value>("echo", &json!({})).start().unwrap().outcome().await.is_cancelled());
    // 2: running handlers may end.
    release.notify_one();
    assert_eq!(short.await, Ok("done".to_owned()));
    // 3: handlers are cancelled when the drain has ended.
    assert_eq!(event_rx.recv().await, Some(CauseKind::Shutdown));
    assert_eq!(begun.elapsed(), Duration::from_secs(5));
    assert!(waits.outcome().await.is_cancelled());
    // 4: the request of the deaf handler is answered, and the handler is aborted after the grace.
    assert!(deaf.outcome().await.is_cancelled());
    assert_eq!(begun.elapsed(), Duration::from_secs(7));
    // 6: the transport is closed.
    shutdown.await.unwrap();
    client.closed().await.unwrap();
    assert!(begun.elapsed() <= Duration::from_secs(8));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_blocks_no_handler_and_is_closed_when_the_reserve_is_used_up() {
    let (near, far): (Link, Link) = memory_pair();
    let ended = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ended);
    let router = Router::new()
        .method("value", |_ctx: CallContext, _: Value| async move { Ok("x".repeat(100)) })
        .method("wait", move |ctx: CallContext, _: Value| {
            let count = Arc::clone(&count);
            async move {
                let cause = ctx.cancelled().await;
                count.fetch_add(1, Ordering::SeqCst);
                ctx.stopped::<Value>(cause)
            }
        });
    let mut limits = Limits::default();
    (limits.max_outbox_frames, limits.max_queued_requests) = (256, 4000);
    let server = Peer::builder(ACP).serve(router).limits(limits.clone()).attach(far).unwrap();
    let mut stuck = Stuck::new(near);
    stuck.send(r#"{"jsonrpc":"2.0","id":"w","method":"wait","params":{}}"#).await;
    for id in 0..4000 {
        stuck.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"value","params":{{}}}}"#)).await;
    }
    let permits = limits.max_running_handlers as u64;
    until("I11: results wait with their permits", || {
        let stats = server.stats();
        stats.running == permits && stats.finished + stats.running + stats.queued == 4001
    })
    .await;
    assert_eq!(server.queue_stats().outbox_frames, limits.max_outbox_frames, "I11");
    stuck.send(r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"w"}}"#).await;
    until("L2: the handler is not stopped", || ended.load(Ordering::SeqCst) == 1).await;
    assert!(
        server.queue_stats().outbox_frames <= limits.max_outbox_frames,
        "I11: {:?}",
        server.queue_stats()
    );
    let mut id = 10_000;
    while !server.is_closed() {
        stuck.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"none","params":{{}}}}"#)).await;
        id += 1;
        assert!(id < 100_000, "I11: the peer is never closed");
        tokio::task::yield_now().await;
    }
    match server.closed().await {
        Err(ConnectionError::Protocol(ProtocolViolation::NotReading { .. })) => {}
        other => panic!("{other:?}"),
    }
    until("L3", || server.stats().slots == 0).await;
}

/// A peer that writes and never reads.
struct Stuck {
    link: Link,
}

impl Stuck {
    const fn new(link: Link) -> Self {
        Self { link }
    }

    async fn send(&mut self, text: &str) {
        use rescind_core::{ExchangeId, FrameInfo, FrameKind, Lane, Outbound};
        let tx = &mut self.link.tx;
        if std::future::poll_fn(|cx| tx.as_mut().poll_ready(Lane::Control, cx)).await.is_err() {
            return;
        }
        let head = FrameInfo { kind: FrameKind::Request, id: None, method: None, trace: None };
        let body = text.to_owned().into();
        let out = Outbound { body, exchange: ExchangeId::NONE, lane: Lane::Control, head, last: false };
        let _ = tx.as_mut().start_send(out);
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_handle_closes_the_connection_unless_it_serves() {
    let (client, server) =
        connect(Router::new().method("echo", |_ctx, params: Value| async move { Ok(params) }));
    drop(client);
    server.closed().await.unwrap();

    let (near, far) = memory_pair();
    drop(
        Peer::builder(ACP)
            .serve(Router::new().method("echo", |_ctx, p: Value| async move { Ok(p) }))
            .attach(far),
    );
    let client = Peer::builder(ACP).attach(near).unwrap();
    let call = client.call::<_, Value>("echo", &json!([1])).start().unwrap();
    drop(client);
    assert_eq!(call.await, Ok(json!([1])), "a call keeps its connection open");
}

#[tokio::test]
async fn a_blocking_handler_holds_its_permit_until_its_thread_ends() {
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Mutex::new(Some(blocked));
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let router = Router::new().blocking("block", move |_ctx: CallContext, _: Value| {
        let wait = blocked.lock().unwrap().take().unwrap();
        event_tx.send(()).unwrap();
        let _ = wait.recv();
        Ok(())
    });
    let (near, far) = memory_pair();
    let mut limits = Limits::default();
    limits.cancel_grace = Duration::from_millis(10);
    let server = Peer::builder(ACP).serve(router).limits(limits).attach(far).unwrap();
    let client = Peer::builder(ACP).attach(near).unwrap();
    let call = client.call::<_, Value>("block", &json!({})).start().unwrap();
    event_rx.recv().await.unwrap();
    call.canceller().cancel("");
    assert!(call.outcome().await.is_cancelled());
    let stats = server.stats();
    assert_eq!((stats.draining, stats.slots), (1, 1), "I10: the thread still runs");
    drop(release);
    while server.stats().slots > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_speaks_the_dialect_of_each_peer_and_bounds_them_all() {
    let (listener, transport) = memory_listener();
    let (peers, mut opened) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("initialize", |_ctx: CallContext, _: Value| async move { Ok(json!({"capabilities": {}})) })
        .method("hang", |_ctx: CallContext, _: Value| async move {
            std::future::pending::<()>().await;
            Ok(())
        });
    let mut bounds = ServerLimits::default();
    // The share of one client is tested elsewhere.
    (bounds.max_running_handlers, bounds.client_share) = (3, Share::ALL);
    let server = Server::builder([LSP, ACP])
        .serve(router)
        .server_limits(bounds)
        .on_peer(move |peer| peers.send(peer.dialect().name().to_owned()).unwrap())
        .listen(listener);
    let counts = server.counts();
    let serving = tokio::spawn(server.run());
    let one = Peer::builder(ACP).connect(transport.clone()).await.unwrap();
    let _: Value = one.call("initialize", &json!({"protocolVersion": 1})).await.unwrap();
    assert_eq!(opened.recv().await.as_deref(), Some("acp"));
    let two = Peer::builder(LSP).connect(transport.clone()).await.unwrap();
    let _: Value = two.call("initialize", &json!({"capabilities": {}})).await.unwrap();
    assert_eq!(opened.recv().await.as_deref(), Some("lsp"));

    let calls: Vec<_> = (0..3).map(|_| one.call::<_, Value>("hang", &json!({})).start().unwrap()).collect();
    tokio::task::yield_now().await;
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    match two.call::<_, Value>("hang", &json!({})).await {
        Err(CallError::Failed(error)) => assert_eq!(error.code, ErrorCode::REQUEST_FAILED),
        other => panic!("{other:?}"),
    }
    assert_eq!((counts.running(), counts.draining(), counts.sessions()), (3, 0, 2));
    drop(calls);
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    tokio::time::advance(Limits::default().cancel_grace * 2).await;
    until("I10: every place is given back", || (counts.running(), counts.draining()) == (0, 0)).await;
    drop((one, two));
    until("no session is left", || counts.sessions() == 0).await;
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn a_panicking_hook_affects_no_other_request_and_handler_errors_are_answered_unchanged() {
    let (near, far) = memory_pair();
    let router = Router::new().method("fail", |_ctx: CallContext, _: Value| async move {
        Err::<(), _>(ErrorObject::new(ErrorCode(-32001), "mine").into())
    });
    let events = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&events);
    let _server = Peer::builder(ACP)
        .serve(router)
        .on_event(move |event| {
            assert_eq!(*event, Event::BadFrame);
            count.fetch_add(1, Ordering::SeqCst);
            panic!("as asked");
        })
        .attach(far)
        .unwrap();
    let mut raw = Stuck::new(near);
    raw.send("{not json").await;
    until("the event is reported", || events.load(Ordering::SeqCst) == 1).await;
    raw.send(r#"{"jsonrpc":"2.0","id":1,"method":"fail","params":{}}"#).await;
    let rx = &mut raw.link.rx;
    for expected in ["-32700", "-32001"] {
        match std::future::poll_fn(|cx| rx.as_mut().poll_event(cx)).await {
            Some(Ok(rescind_core::TransportEvent::Message(inbound))) => {
                let text = String::from_utf8(inbound.body.to_vec()).unwrap();
                assert!(text.contains(expected), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_waits_for_room_keeps_its_permit_and_can_be_cancelled() {
    let (near, far): (Link, Link) = memory_pair();
    let router =
        Router::new().method("value", |_ctx: CallContext, _: Value| async move { Ok("x".repeat(1000)) });
    let mut limits = Limits::default();
    limits.max_outbox_frames = 4;
    let server = Peer::builder(ACP).serve(router).limits(limits).attach(far).unwrap();
    let mut raw = Stuck::new(near);
    for id in 0..200 {
        raw.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"value","params":{{}}}}"#)).await;
    }
    until("some wait for room", || server.stats().running > 50).await;
    let running = server.stats().running;
    assert_eq!(server.queue_stats().outbox_frames, 4, "I11");
    raw.send(r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":199}}"#).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(server.stats().running, running - 1, "the cancelled one is answered for by the grace");
    let mut answers = Vec::new();
    while answers.len() < 200 {
        let rx = &mut raw.link.rx;
        match std::future::poll_fn(|cx| rx.as_mut().poll_event(cx)).await {
            Some(Ok(rescind_core::TransportEvent::Message(inbound))) => {
                let answer: Value = serde_json::from_slice(&inbound.body).unwrap();
                answers.push((answer["id"].as_u64().unwrap(), answer.get("error").is_some()));
            }
            other => panic!("{other:?}"),
        }
    }
    answers.sort_unstable();
    assert!(answers.iter().map(|(id, _)| *id).eq(0..200), "I1");
    assert!(answers.iter().all(|(id, failed)| *failed == (*id == 199)), "{answers:?}");
    until("I3", || server.stats().slots == 0).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_over_the_frame_limit_is_an_internal_error_for_that_request_alone() {
    let (near, far) = memory_pair();
    let router = Router::new()
        .method("big", |_ctx: CallContext, (size,): (usize,)| async move { Ok("x".repeat(size)) });
    let mut limits = Limits::default();
    limits.max_frame_bytes = 4096;
    let _server = Peer::builder(ACP).serve(router).limits(limits).attach(far).unwrap();
    let client = Peer::builder(ACP).attach(near).unwrap();
    for size in [4090, 5000, 1 << 20] {
        match client.call::<_, String>("big", &[size]).await {
            Err(CallError::Failed(error)) => assert_eq!(error.code, ErrorCode::INTERNAL_ERROR),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(client.call::<_, String>("big", &[10]).await, Ok("x".repeat(10)));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_reports_the_blocking_work_that_does_not_stop() {
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Mutex::new(Some(blocked));
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let (client, server) = connect(Router::new().blocking("block", move |_ctx: CallContext, _: Value| {
        let wait = blocked.lock().unwrap().take().unwrap();
        event_tx.send(()).unwrap();
        let _ = wait.recv();
        Ok(())
    }));
    let _call = client.call::<_, Value>("block", &json!({})).start().unwrap();
    event_rx.recv().await.unwrap();
    // A blocking thread stops the paused clock from advancing, so the test advances it.
    let closing = server.clone();
    let shutdown = tokio::spawn(async move { closing.shutdown(Duration::ZERO).await });
    while !shutdown.is_finished() {
        tokio::time::advance(Duration::from_millis(100)).await;
    }
    assert_eq!(shutdown.await.unwrap(), 1);
    drop(release);
}

// Values that a program passes in are dropped without the connection's lock, because the drop may run the program's
// code (D2).

/// Reads the connection when it is dropped.
struct Looks(Peer);

impl Drop for Looks {
    fn drop(&mut self) {
        let _ = self.0.stats();
    }
}

impl Wake for Looks {
    fn wake(self: Arc<Self>) {}
}

/// Runs a test that would deadlock if a lock were held too long.
fn within_ten_seconds<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let (event_tx, event_rx) = threads::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
        event_tx.send(()).unwrap();
    });
    event_rx.recv_timeout(Duration::from_secs(10)).expect("D2: a user's value was dropped under the lock");
}

#[test]
fn a_refused_call_drops_its_matcher_without_the_lock() {
    within_ten_seconds(|| async {
        let (near, _far) = memory_pair();
        let peer = Peer::builder(ABP).attach(near).unwrap();
        peer.shutdown(Duration::ZERO).await;
        let looks = Looks(peer.clone());
        let call = peer.call::<_, Value>("work", &json!({})).notifications_where(move |_| {
            let _ = &looks;
            true
        });
        assert!(call.start().unwrap().await.is_err());
    });
}

#[test]
fn a_waker_that_is_replaced_is_dropped_without_the_lock() {
    within_ten_seconds(|| async {
        let (near, _far) = memory_pair();
        let peer = Peer::builder(ABP).attach(near).unwrap();
        let mut call = peer.call::<_, Value>("work", &json!({})).start().unwrap();
        let mut acknowledged = pin!(call.acknowledged());
        for _ in 0..2 {
            let waker = Waker::from(Arc::new(Looks(peer.clone())));
            assert!(acknowledged.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
    });
}

/// The shared state of a program's handlers: the contexts of all requests, each a handle of its connection.
type Kept = Arc<Mutex<Vec<CallContext>>>;

/// Serves one request whose context is kept in the state of its handler.
async fn serve_and_keep() -> (Peer, Peer, Weak<Mutex<Vec<CallContext>>>) {
    let kept = Kept::default();
    let watched = Arc::downgrade(&kept);
    let router = Router::new().method("work", move |ctx: CallContext, _: Value| {
        kept.lock().unwrap().push(ctx);
        async { Ok(Value::Null) }
    });
    let (near, far) = memory_pair();
    let server = Peer::builder(ACP).role(Role::Server).serve(router).attach(far).unwrap();
    let client = Peer::builder(ACP).attach(near).unwrap();
    client.call::<_, Value>("work", &json!({})).await.unwrap();
    (client, server, watched)
}

#[test]
fn handlers_that_hold_their_connection_are_dropped_with_it() {
    within_ten_seconds(|| async {
        let (client, server, watched) = serve_and_keep().await;
        assert!(watched.upgrade().is_some(), "the connection is open");
        client.shutdown(Duration::ZERO).await;
        let _ = server.closed().await;
        while watched.upgrade().is_some() {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn handlers_that_hold_their_connection_are_dropped_with_its_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_client, _server, watched) = runtime.block_on(serve_and_keep());
    drop(runtime);
    assert!(watched.upgrade().is_none(), "the runtime is gone");
}
