//! The peer's notifications for a call, and their receivers.
//!
//! Requests whose handlers start after the notifications before them are handled: in LSP, and where the router asks for
//! it.
//!
//! What a program needs that passes messages on: answers after the notifications before them, reading that stops while
//! nobody takes the notifications, and the peer and the clients of a request.
//!
//! The session of a language server as its client begins and ends it, and LSP's further rules for progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rescind_core::dialect::{self, ABP, ACP, Dialect, LSP, MCP, MCP_2026, Role};
use rescind_core::{
    ArrivalOrder, ByteBudget, CallContext, CallError, CauseKind, Clients, ErrorCode, ErrorObject,
    HandlerError, Limits, Outcome, Peer, Router, Server, Share, memory_listener, memory_pair,
};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore, mpsc};

use crate::driver::wire::{self, TRAITS};

/// Sends the notification `step` with its argument as early as it can, and answers.
fn pair() -> (Peer, Peer) {
    let (near, far) = memory_pair();
    let router = Router::new().method("work", |ctx: CallContext, (number,): (u64,)| async move {
        ctx.try_notify("step", &[number])?;
        Ok(number)
    });
    let server = Peer::builder(ACP).serve(router).attach(far).unwrap();
    (Peer::builder(ACP).attach(near).unwrap(), server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notification_that_comes_at_once_is_not_missed() {
    let (client, _server) = pair();
    for number in 0..500_u64 {
        let call = client.call::<_, u64>("work", &[number]);
        let call = call.notifications_where(move |reported| {
            reported.params::<[u64; 1]>().is_ok_and(|[of]| of == number)
        });
        let call = call.start().unwrap();
        let mut steps = call.notifications();
        assert_eq!(call.await.unwrap(), number);
        let step = steps.next().await.unwrap_or_else(|| panic!("the step of call {number} was missed"));
        assert_eq!((step.method(), step.params::<[u64; 1]>().unwrap()), ("step", [number]));
        assert!(steps.next().await.is_none());
    }
}

#[tokio::test]
async fn a_reader_ends_with_its_call_and_nothing_of_it_is_left() {
    let (client, _server) = pair();
    let held = Arc::new(());
    let call = client.call::<_, u64>("work", &[1]).start().unwrap();
    let here = Arc::clone(&held);
    let mut late = call.notifications_where(move |_| Arc::strong_count(&here) > 0);
    let here = Arc::clone(&held);
    let early = client.call::<_, u64>("work", &[2]);
    let early = early.notifications_where(move |_| Arc::strong_count(&here) == 0).start().unwrap();
    let mut none = early.notifications();
    assert_eq!((call.await.unwrap(), early.await.unwrap()), (1, 2));
    assert!(late.next().await.is_some());
    while late.next().await.is_some() {}
    assert!(none.next().await.is_none());
    assert_eq!(Arc::strong_count(&held), 1, "I3: a matcher outlived its call");
}

#[tokio::test]
async fn progress_and_matching_notifications_go_to_one_reader() {
    let (near, far) = memory_pair();
    let router = Router::new().method("work", |ctx: CallContext, _: Value| async move {
        let token = ctx.progress_token().map(ToOwned::to_owned);
        ctx.try_notify("notifications/progress", &json!({"progressToken": token, "progress": 1}))?;
        ctx.try_notify("notifications/message", &json!({"level": "info"}))?;
        Ok(())
    });
    let _server = Peer::builder(MCP).serve(router).attach(far).unwrap();
    let client = Peer::builder(MCP).attach(near).unwrap();
    let call = client.call::<_, Value>("work", &json!({})).progress();
    let call = call
        .notifications_where(|notification| notification.method() == "notifications/message")
        .start()
        .unwrap();
    let mut reported = call.notifications();
    call.await.unwrap();
    let mut methods = Vec::new();
    while let Some(notification) = reported.next().await {
        methods.push(notification.method().to_owned());
    }
    assert_eq!(methods, ["notifications/progress", "notifications/message"]);
}

/// A request in the dialect's form, with this progress token.
fn with_token(dialect: &Dialect, id: u64, token: &str) -> String {
    let params = match dialect.name() {
        "abp" => {
            let call = format!(r#"{{"callId":"c{id}","progressToken":{token}}}"#);
            let payload = format!(r#"{{"capability":"work","params":{{}},"options":{call}}}"#);
            return format!(r#"{{"type":"capabilities/call","id":"m{id}","payload":{payload}}}"#);
        }
        "lsp" => format!(r#"{{"workDoneToken":{token}}}"#),
        _ => format!(r#"{{"_meta":{{"progressToken":{token}}}}}"#),
    };
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"work","params":{params}}}"#)
}

#[tokio::test]
async fn an_invalid_progress_token_is_ignored_and_counted() {
    let text = |length: usize| format!("\"{}\"", "x".repeat(length));
    let (longest, long, huge) = (text(256), text(257), text(1 << 20));
    let digits = "9".repeat(257);
    let ignored = ["1.5", "1e3", "true", "[1]", r#"{"a":1}"#, &*long, &*huge, &*digits];
    let kept = ["7", "-7", "12345678901234567890123", "\"\"", "\"a\"", &*longest];
    for dialect in [MCP, MCP_2026, LSP, ABP] {
        let name = dialect.name();
        let (say, mut said) = tokio::sync::mpsc::unbounded_channel();
        let router = Router::new().method("initialize", |_, _: Value| async { Ok(json!({})) }).method(
            "work",
            move |ctx: CallContext, _: Value| {
                let _ = say.send(ctx.progress_token().map(|token| token.get().to_owned()));
                async { Ok(json!({})) }
            },
        );
        let (peer, wire) = wire::serve(router, dialect.clone(), TRAITS, Limits::default());
        if name == "abp" {
            wire.says(1, &r#"{"type":"initialize","id":"i","payload":{}}"#);
            wire.recorded().await;
        }
        if name == "lsp" {
            wire.says(1, &wire::request(1, "initialize", &json!({})));
            wire.recorded().await;
        }
        for (id, token) in (2..).zip(ignored.into_iter().chain(kept)) {
            wire.says(id, &with_token(&dialect, id, token));
            let seen = said.recv().await.unwrap();
            let owed = kept.contains(&token).then(|| token.to_owned());
            assert_eq!(seen, owed, "{name}: {token:.60}");
        }
        assert_eq!(peer.stats().ignored_tokens, ignored.len() as u64, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn notifications_over_the_limit_are_dropped_and_counted() {
    let mut limits = Limits::default();
    limits.max_queued_notifications = 2;
    let router = Router::new().concurrent_notification("deaf", |_, _: Value| std::future::pending::<()>());
    let (peer, wire) = wire::serve(router, MCP, TRAITS, limits);
    for _ in 0..5 {
        wire.says(0, &json!({"jsonrpc": "2.0", "method": "deaf", "params": {}}));
    }
    wire.recorded().await;
    let load = peer.queue_stats();
    assert_eq!((load.notifications_waiting, load.notifications_dropped), (2, 3), "I11");
}

#[tokio::test(start_paused = true)]
async fn a_notification_that_was_handled_takes_no_room_any_more() {
    let mut limits = Limits::default();
    (limits.max_queued_notifications, limits.max_notification_bytes) = (2, 100);
    let router = Router::new()
        .notification("kept", |_, _: Value| async {})
        .concurrent_notification("free", |_, _: Value| async {});
    let (peer, wire) = wire::serve(router, MCP, TRAITS, limits);
    for n in 0..50 {
        let method = if n % 2 == 0 { "kept" } else { "free" };
        wire.says(0, &json!({"jsonrpc": "2.0", "method": method, "params": {"of": "some length"}}));
        wire.recorded().await;
        let load = peer.queue_stats();
        assert_eq!((load.notifications_waiting, load.notifications_dropped), (0, 0), "I11: {method} {n}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn session_cancel_directly_after_a_prompt_cancels_it() {
    let prompts = Arc::new(AtomicU64::new(0));
    let (seen, mut cancels) = mpsc::unbounded_channel();
    let (begun, known) = (Arc::clone(&prompts), Arc::clone(&prompts));
    let router = Router::new()
        .method("session/prompt", move |ctx: CallContext, _: Value| {
            begun.fetch_add(1, Ordering::SeqCst);
            async move { Err::<(), _>(HandlerError::stopped(ctx.cancelled().await)) }
        })
        .notification("session/cancel", move |_, (number,): (u64,)| {
            let (seen, prompts) = (seen.clone(), known.load(Ordering::SeqCst));
            async move { seen.send((number, prompts)).unwrap() }
        });
    let (client, server) = memory_pair();
    let _server = Peer::builder(dialect::ACP).serve(router).attach(server).unwrap();
    let peer = Peer::builder(dialect::ACP).attach(client).unwrap();
    for number in 1..=500 {
        let call = peer.call::<_, ()>("session/prompt", &json!({})).start().unwrap();
        peer.try_notify("session/cancel", &(number,)).unwrap();
        let (cancel, prompts) = cancels.recv().await.unwrap();
        assert_eq!((cancel, prompts), (number, number), "the prompt was still to begin");
        drop(call);
    }
}

#[tokio::test]
async fn session_cancel_does_not_cancel_a_later_prompt() {
    let (begins, mut begun) = mpsc::unbounded_channel::<CallContext>();
    let (holds, held) = mpsc::unbounded_channel::<ArrivalOrder>();
    let held = Arc::new(tokio::sync::Mutex::new(held));
    let (reported, mut answers) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("session/prompt", move |ctx: CallContext, _: Value| {
            begins.send(ctx.clone()).unwrap();
            async move { Err::<(), _>(HandlerError::stopped(ctx.cancelled().await)) }
        })
        .placed_notification("session/cancel", move |_, place, _: Value| {
            let (held, reported) = (Arc::clone(&held), reported.clone());
            async move {
                reported.send(place).unwrap();
                // The prompt continues while the next one arrives and starts.
                held.lock().await.recv().await.unwrap();
            }
        });
    let (client, server) = memory_pair();
    let _server = Peer::builder(dialect::ACP).serve(router).attach(server).unwrap();
    let peer = Peer::builder(dialect::ACP).attach(client).unwrap();
    let prompt = || peer.call::<_, ()>("session/prompt", &json!({})).start().unwrap();
    let mut earlier = Vec::new();
    for _ in 0..3 {
        let first = prompt();
        earlier.push(begun.recv().await.unwrap());
        peer.try_notify("session/cancel", &json!({})).unwrap();
        let second = prompt();
        let (place, later) = (answers.recv().await.unwrap(), begun.recv().await.unwrap());
        assert!(earlier.iter().all(|ctx| !place.is_before(ctx)), "they came before the cancel");
        assert!(place.is_before(&later), "it came after the cancel");
        earlier.push(later);
        holds.send(place).unwrap();
        drop((first, second));
    }
}

// Requests whose handlers start after the notifications before them are handled: in LSP, and where the router asks for
// it.

/// The parts of a server whose notification handlers a test can hold.
#[derive(Clone, Default)]
struct Document {
    version: Arc<AtomicU64>,
    /// How many handlers of requests have started.
    started: Arc<AtomicU64>,
    /// How many notifications were taken by their handler.
    taken: Arc<Notify>,
    gate: Option<Arc<Semaphore>>,
}

impl Document {
    fn held() -> Self {
        Self { gate: Some(Arc::new(Semaphore::new(0))), ..Self::default() }
    }

    fn open(&self, notifications: usize) {
        self.gate.as_ref().unwrap().add_permits(notifications);
    }

    fn router(&self) -> Router {
        let [changed, async_read, blocking_read, slow] = [(); 4].map(|()| self.clone());
        Router::new()
            .method("initialize", |_: CallContext, _: Value| async { Ok(json!({"capabilities": {}})) })
            .notification("change", move |_, (version,): (u64,)| {
                let Self { version: known, taken, gate, .. } = changed.clone();
                async move {
                    taken.notify_one();
                    match gate {
                        Some(gate) => gate.acquire().await.unwrap().forget(),
                        None => tokio::task::yield_now().await,
                    }
                    known.store(version, Ordering::SeqCst);
                }
            })
            .concurrent_notification("slow", move |_, _: Value| {
                slow.taken.notify_one();
                std::future::pending()
            })
            .method("read", move |_: CallContext, _: Value| {
                async_read.started.fetch_add(1, Ordering::SeqCst);
                let version = async_read.version.load(Ordering::SeqCst);
                async move { Ok(version) }
            })
            .blocking("read_blocking", move |_: CallContext, _: Value| {
                blocking_read.started.fetch_add(1, Ordering::SeqCst);
                Ok(blocking_read.version.load(Ordering::SeqCst))
            })
    }

    fn started(&self) -> u64 {
        self.started.load(Ordering::SeqCst)
    }
}

/// A client of this router, after the handshake, and its server.
async fn connect(dialect: Dialect, router: Router) -> (Peer, Peer) {
    let (near, far) = memory_pair();
    let server = Peer::builder(dialect.clone()).serve(router).attach(far).unwrap();
    let client = Peer::builder(dialect).role(Role::Client).attach(near).unwrap();
    client.call::<_, Value>("initialize", &json!({})).await.unwrap();
    (client, server)
}

/// Until so many requests have started: their tasks run, and their handlers may wait for notifications.
async fn until_started(server: &Peer, requests: u64) {
    while server.stats().started < requests {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_request_sees_the_change_that_came_before_it() {
    for (dialect, in_order) in [(LSP, false), (ACP, true)] {
        let document = Document::default();
        let router = document.router();
        let router = if in_order { router.in_order() } else { router };
        let (client, _server) = connect(dialect.clone(), router).await;
        for version in 1..=300 {
            client.try_notify("change", &(version,)).unwrap();
            let method = if version % 2 == 0 { "read" } else { "read_blocking" };
            let seen: u64 = client.call(method, &json!({})).await.unwrap();
            assert_eq!(
                seen, version,
                "{dialect:?}, {method}: its handler started before the change was handled"
            );
        }
    }
}

#[tokio::test]
async fn a_request_that_waits_for_a_notification_is_cancelled_at_once() {
    for method in ["read", "read_blocking"] {
        let document = Document::held();
        let (client, server) = connect(LSP, document.router()).await;
        client.try_notify("change", &(1,)).unwrap();
        document.taken.notified().await;
        let call = client.call::<_, u64>(method, &json!({})).start().unwrap();
        until_started(&server, 2).await;
        call.canceller().cancel("");
        match call.await {
            Err(CallError::Cancelled(cancelled)) => {
                assert!(cancelled.confirmed, "{method}: the server has not answered");
                assert_eq!(cancelled.cause.kind(), CauseKind::Caller);
            }
            other => panic!("{method}: {other:?}"),
        }
        // The next request waits for the same notification, which is not handled yet.
        let next = client.call::<_, u64>(method, &json!({})).start().unwrap();
        document.open(1);
        assert_eq!(next.await.unwrap(), 1);
        assert_eq!(document.started(), 1, "{method}: the handler of a cancelled request has started");
    }
}

#[tokio::test]
async fn in_other_dialects_a_request_does_not_wait_for_notifications() {
    let document = Document::held();
    let (client, _server) = connect(ACP, document.router()).await;
    client.try_notify("change", &(1,)).unwrap();
    document.taken.notified().await;
    assert_eq!(client.call::<_, u64>("read", &json!({})).await.unwrap(), 0);
}

#[tokio::test]
async fn a_concurrent_notification_is_not_waited_for() {
    let document = Document::default();
    let (client, _server) = connect(LSP, document.router()).await;
    client.try_notify("slow", &json!({})).unwrap();
    document.taken.notified().await;
    assert_eq!(client.call::<_, u64>("read", &json!({})).await.unwrap(), 0);
}

/// A notification waits for the handlers that started before it, and they wait for the notifications before them. So a
/// request between two notifications must not make them wait for each other.
#[tokio::test(start_paused = true)]
async fn a_request_and_the_notifications_around_it_do_not_wait_for_each_other() {
    let document = Document::held();
    let (client, _server) = connect(LSP, document.router()).await;
    let since = tokio::time::Instant::now();
    client.try_notify("change", &(1,)).unwrap();
    let between = client.call::<_, u64>("read", &json!({})).start().unwrap();
    client.try_notify("change", &(2,)).unwrap();
    let after = client.call::<_, u64>("read", &json!({})).start().unwrap();
    document.open(2);
    assert_eq!((between.await.unwrap(), after.await.unwrap()), (1, 2));
    assert_eq!(since.elapsed(), Duration::ZERO, "one waited for a time limit of another");
}

/// The connection ends while a request waits.
#[tokio::test]
async fn a_request_that_waits_ends_with_its_connection() {
    let document = Document::held();
    let (client, server) = connect(LSP, document.router()).await;
    client.try_notify("change", &(1,)).unwrap();
    document.taken.notified().await;
    let call = client.call::<_, u64>("read", &json!({})).start().unwrap();
    until_started(&server, 2).await;
    drop((call, client));
    server.closed().await.unwrap();
    assert_eq!((document.started(), server.stats().slots), (0, 0), "I3: a request that waited is left");
}

// What a program needs that passes messages on: answers after the notifications before them, reading that stops while
// nobody takes the notifications, and the peer and the clients of a request.

/// Handles `step` when it may, and counts what it has handled.
#[derive(Clone)]
struct Steps {
    taken: Arc<Notify>,
    allowed: Arc<Semaphore>,
    handled: Arc<AtomicUsize>,
}

impl Steps {
    fn allowing(many: usize) -> Self {
        Self { taken: Arc::default(), allowed: Arc::new(Semaphore::new(many)), handled: Arc::default() }
    }

    fn router(&self) -> Router {
        let steps = self.clone();
        Router::new().notification("step", move |_, _: Value| {
            let steps = steps.clone();
            async move {
                steps.taken.notify_one();
                steps.allowed.acquire().await.unwrap().forget();
                steps.handled.fetch_add(1, Ordering::SeqCst);
            }
        })
    }

    fn handled(&self) -> usize {
        self.handled.load(Ordering::SeqCst)
    }
}

/// A peer that answers `work` after three notifications, and its client with this router.
fn connect_acp(router: Router) -> (Peer, Peer) {
    let (near, far) = memory_pair();
    let work = Router::new().method("work", |ctx: CallContext, _: Value| async move {
        for _ in 0..3 {
            ctx.try_notify("step", &json!({}))?;
        }
        Ok("done")
    });
    let server = Peer::builder(dialect::ACP).serve(work).attach(far).unwrap();
    let client = Peer::builder(dialect::ACP).serve(router).attach(near).unwrap();
    (client, server)
}

async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_answer_in_order_comes_after_the_notifications_before_it() {
    let steps = Steps::allowing(0);
    let (client, server) = connect_acp(steps.router());
    let mut call = client.call::<_, String>("work", &json!({})).in_order().start().unwrap();
    while server.stats().finished < 1 {
        tokio::task::yield_now().await;
    }
    for handled in 1..=3 {
        tokio::select! {
            biased;
            early = &mut call => panic!("the answer {early:?} came before notification {handled} was handled"),
            () = settle() => {}
        }
        steps.allowed.add_permits(1);
    }
    assert_eq!(call.await.unwrap(), "done");
    assert_eq!(steps.handled(), 3);
}

#[tokio::test]
async fn an_answer_in_order_without_notifications_does_not_wait() {
    let (client, _server) = connect_acp(Router::new());
    let answer: String = client.call("work", &json!({})).in_order().await.unwrap();
    assert_eq!(answer, "done");
}

#[tokio::test]
async fn a_cancelled_call_in_order_does_not_wait_for_notifications() {
    let steps = Steps::allowing(0);
    let (near, far) = memory_pair();
    let work = Router::new().method("work", |ctx: CallContext, _: Value| async move {
        ctx.try_notify("step", &json!({}))?;
        ctx.run_until_cancelled(std::future::pending::<()>()).await?;
        Ok(Value::Null)
    });
    let _server = Peer::builder(dialect::ACP).serve(work).attach(far).unwrap();
    let client = Peer::builder(dialect::ACP).serve(steps.router()).attach(near).unwrap();
    let call = client.call::<_, Value>("work", &json!({})).in_order().start().unwrap();
    steps.taken.notified().await;
    call.canceller().cancel("");
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => assert!(cancelled.confirmed),
        other => panic!("{other:?}"),
    }
    assert_eq!(steps.handled(), 0);
}

#[tokio::test]
async fn a_call_in_order_that_is_dropped_while_it_waits_leaves_the_others_alone() {
    let steps = Steps::allowing(0);
    let (client, server) = connect_acp(steps.router());
    let start = || client.call::<_, String>("work", &json!({})).in_order().start().unwrap();
    let (dropped, kept) = (start(), start());
    while server.stats().finished < 2 {
        tokio::task::yield_now().await;
    }
    settle().await;
    drop(dropped);
    steps.allowed.add_permits(6);
    assert_eq!(kept.await.unwrap(), "done");
}

#[tokio::test]
async fn reading_pauses_while_notifications_wait_and_none_is_lost() {
    const MANY: usize = 5_000;
    let steps = Steps::allowing(0);
    let (near, far) = memory_pair();
    let limits = Limits::default().max_queued_notifications(200);
    let router = steps.router().pause_reading_at(100);
    let client = Peer::builder(dialect::ACP).serve(router).limits(limits).attach(near).unwrap();
    let server = Peer::builder(dialect::ACP).attach(far).unwrap();
    let sender = server.clone();
    let sends = tokio::spawn(async move {
        for _ in 0..MANY {
            sender.notify("step", &json!({})).await.unwrap();
        }
    });
    steps.taken.notified().await;
    settle().await;
    assert!(client.queue_stats().notifications_waiting < 200, "{:?}", client.queue_stats());
    steps.allowed.add_permits(MANY);
    sends.await.unwrap();
    while steps.handled() < MANY {
        tokio::task::yield_now().await;
    }
    assert_eq!(client.queue_stats().notifications_dropped, 0);
}

#[tokio::test]
async fn each_connection_of_a_server_may_have_options_of_its_own() {
    let (listener, transport) = memory_listener();
    let opened = Arc::new(AtomicUsize::new(0));
    let number = Arc::clone(&opened);
    let server = Server::builder(dialect::ACP).each_peer(move |peer| {
        let number = number.fetch_add(1, Ordering::SeqCst);
        peer.serve(Router::new().method("which", move |_: CallContext, _: Value| async move { Ok(number) }))
    });
    let serving = tokio::spawn(server.listen(listener).run());
    for expected in 0..3 {
        let peer = Peer::builder(dialect::ACP).connect(transport.clone()).await.unwrap();
        for _ in 0..2 {
            let number: usize = peer.call("which", &json!({})).await.unwrap();
            assert_eq!(number, expected);
        }
    }
    assert_eq!(opened.load(Ordering::SeqCst), 3);
    serving.abort();
}

#[tokio::test]
async fn a_request_knows_its_peer_and_the_clients_that_count_it() {
    let (near, far) = memory_pair();
    let router = Router::new().method("call_back", |ctx: CallContext, _: Value| async move {
        let answer: String = ctx.peer().call("work", &json!({})).await?;
        Ok((answer, ctx.peer().clients().budget().limit()))
    });
    let clients = Clients::with_budget(Share::ALL, 64, ByteBudget::new(77 << 20));
    let _server = Peer::builder(dialect::ACP).serve(router).clients(&clients).attach(far).unwrap();
    let work = Router::new().method("work", |_: CallContext, _: Value| async move { Ok("here") });
    let client = Peer::builder(dialect::ACP).serve(work).attach(near).unwrap();
    let answer: (String, usize) = client.call("call_back", &json!({})).await.unwrap();
    assert_eq!(answer, ("here".to_owned(), 77 << 20));
}

#[tokio::test]
async fn notifications_before_the_end_are_handled_where_none_may_be_lost() {
    for pauses in [true, false] {
        let steps = Steps::allowing(0);
        let (near, far) = memory_pair();
        let router = if pauses { steps.router().pause_reading_at(100) } else { steps.router() };
        let client = Peer::builder(dialect::ACP).serve(router).attach(near).unwrap();
        let server = Peer::builder(dialect::ACP).attach(far).unwrap();
        for _ in 0..5 {
            server.try_notify("step", &json!({})).unwrap();
        }
        steps.taken.notified().await;
        drop(server);
        client.closed().await.unwrap();
        steps.allowed.add_permits(5);
        client.notifications_handled().await;
        // Without the option only the handler that ran at the end runs on.
        assert_eq!(steps.handled(), if pauses { 5 } else { 1 });
        client.notifications_handled().await;
    }
}

// The session of a language server as its client begins and ends it, and LSP's further rules for progress.

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

fn open_lsp() -> (Peer, Peer) {
    let (near, far) = memory_pair();
    let theirs = Router::new()
        .method("window/workDoneProgress/create", |_: CallContext, _: Value| async { Ok(Value::Null) });
    let server = Peer::builder(LSP).serve(router()).attach(far).unwrap();
    (Peer::builder(LSP).role(Role::Client).serve(theirs).attach(near).unwrap(), server)
}

async fn opened_lsp() -> (Peer, Peer) {
    let (client, server) = open_lsp();
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
        let (client, server) = opened_lsp().await;
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
    let (client, server) = open_lsp();
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
    let (_client, server) = open_lsp();
    let made: Result<Value, _> = server.call("window/workDoneProgress/create", &json!({"token": 1})).await;
    assert_eq!(made, Ok(Value::Null));
}

#[tokio::test(start_paused = true)]
async fn a_handler_error_after_a_cancel_is_sent_if_the_dialect_allows_it() {
    let (client, server) = opened_lsp().await;
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
    let (client, _server) = opened_lsp().await;
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
    let (client, server) = opened_lsp().await;
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
