//! How a session ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rescind_bridge::{Bridge, Upstream};
use rescind_core::dialect::{ACP, MCP};
use rescind_core::{
    CallContext, CauseKind, Link, MemoryTransport, Peer, Router, ServerHandle, ServerLimits, Share,
    Transport as _, memory_listener, memory_pair,
};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::{End, Ends};

const ASK: &str = r#"{"jsonrpc":"2.0","id":1,"method":"work","params":{}}"#;

#[tokio::test]
async fn a_client_that_leaves_cancels_what_it_asked_for_and_closes_the_server() {
    for cancel in [
        (ACP, r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}"#),
        (MCP, r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#),
    ] {
        let (dialect, cancel) = cancel;
        let Ends { mut client, mut server, bridge, .. } = Ends::in_dialect(dialect).await;
        client.send(ASK).await;
        server.frame().await;
        drop(client);
        server.expect(cancel).await;
        server.closed().await;
        bridge.ended().await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_between_requests_closes_the_server() {
    let Ends { client, mut server, bridge, .. } = Ends::in_dialect(ACP).await;
    drop(client);
    server.closed().await;
    bridge.ended().await;
    assert_eq!(bridge.sessions(), 0);
}

#[tokio::test]
async fn a_server_that_is_lost_is_named_in_the_answer_to_each_open_request() {
    let Ends { mut client, mut server, bridge, .. } = Ends::in_dialect(ACP).await;
    for id in 1..=3 {
        client.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"work","params":{{}}}}"#)).await;
        server.frame().await;
    }
    // Its last notification is passed on first.
    server.send(r#"{"jsonrpc":"2.0","method":"last","params":[]}"#).await;
    drop(server);
    client.expect(r#"{"jsonrpc":"2.0","method":"last","params":[]}"#).await;
    let mut answered = Vec::new();
    for _ in 0..3 {
        let answer = client.frame().await;
        let (id, error) = answer.split_once(r#","error":"#).unwrap();
        assert!(error.contains(r#"{"code":-32603,"message":"the server "#), "{answer}");
        answered.push(id.to_owned());
    }
    answered.sort();
    let expected: Vec<_> = (1..=3).map(|id| format!(r#"{{"jsonrpc":"2.0","id":{id}"#)).collect();
    assert_eq!(answered, expected);
    client.closed().await;
    bridge.ended().await;
}

#[tokio::test]
async fn the_end_of_an_upstream_is_described_in_the_answer_and_waited_for() {
    let (client, downstream) = memory_pair();
    let (upstream, server) = memory_pair();
    let waited = Arc::new(AtomicBool::new(false));
    let reaped = Arc::clone(&waited);
    let upstream = Upstream::new("`server --stdio`", upstream).ends(async move {
        reaped.store(true, Ordering::SeqCst);
        "exit status: 3; stderr ends: out of memory".to_owned()
    });
    let bridge = Bridge::new(ACP).unwrap();
    let _peer = bridge.between(downstream, upstream).await.unwrap();
    let (mut client, mut server) = (End(client), End(server));
    client.send(ASK).await;
    server.frame().await;
    drop(server);
    let text = "`server --stdio` ended: exit status: 3; stderr ends: out of memory";
    client
        .expect(&format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":-32603,"message":"{text}"}}}}"#))
        .await;
    client.closed().await;
    bridge.ended().await;
    assert!(waited.load(Ordering::SeqCst));
}

/// A client of a bridge whose upstreams are opened in this way.
async fn served<F, O>(open: F) -> (End, Bridge)
where
    F: Fn() -> O + Send + Sync + 'static,
    O: Future<Output = Result<Upstream, &'static str>> + Send + 'static,
{
    let bridge = Bridge::new(ACP).unwrap();
    let (listener, transport) = memory_listener();
    tokio::spawn(bridge.serve(open).listen(listener).run());
    let link: Link = Box::new(transport).open().await.unwrap();
    (End(link), bridge)
}

#[tokio::test]
async fn an_upstream_that_cannot_be_opened_is_the_answer_to_all_that_wait() {
    let (mut client, bridge) = served(|| async { Err("`nothing`: there is no such program") }).await;
    client.send(ASK).await;
    client.send(r#"{"jsonrpc":"2.0","method":"note","params":[]}"#).await;
    client.send(r#"{"jsonrpc":"2.0","id":2,"method":"work","params":{}}"#).await;
    for id in 1..=2 {
        let error = r#"{"code":-32603,"message":"`nothing`: there is no such program"}"#;
        client.expect(&format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)).await;
    }
    client.closed().await;
    bridge.ended().await;
}

#[tokio::test]
async fn an_upstream_whose_opening_panics_keeps_nobody_waiting() {
    let (client, downstream) = memory_pair();
    let bridge = Bridge::new(ACP).unwrap();
    let panics = async { std::future::ready(None::<Result<Upstream, &str>>).await.unwrap() };
    let _peer = bridge.join(downstream, panics).await.unwrap();
    let mut client = End(client);
    client.send(ASK).await;
    let error = r#"{"code":-32603,"message":"the session has ended"}"#;
    client.expect(&format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#)).await;
    bridge.ended().await;
}

#[tokio::test]
async fn losses_are_reported_and_clients_that_leave_are_not() {
    let losses = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&losses);
    let bridge = Bridge::new(ACP).unwrap().on_loss(move |why| seen.lock().unwrap().push(why.to_owned()));
    for server_ends in [false, true] {
        let Ends { client, server, bridge, .. } = Ends::of(bridge.clone()).await;
        if server_ends {
            drop(server);
            bridge.ended().await;
        } else {
            drop(client);
            bridge.ended().await;
        }
    }
    assert_eq!(*losses.lock().unwrap(), ["the server closed the connection"]);
}

#[tokio::test]
async fn a_client_that_leaves_while_the_upstream_opens_stops_the_attempt() {
    struct Stopped(Arc<AtomicBool>);
    impl Drop for Stopped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let stopped = Arc::new(AtomicBool::new(false));
    let begun = Arc::new(tokio::sync::Notify::new());
    let (seen, opening) = (Arc::clone(&stopped), Arc::clone(&begun));
    let (mut client, bridge) = served(move || {
        let (seen, opening) = (Stopped(Arc::clone(&seen)), Arc::clone(&opening));
        async move {
            let _seen = seen;
            opening.notify_one();
            std::future::pending().await
        }
    })
    .await;
    client.send(ASK).await;
    begun.notified().await;
    assert_eq!(bridge.sessions(), 1);
    drop(client);
    bridge.ended().await;
    assert!(stopped.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_request_that_waits_for_the_upstream_is_cancelled_at_once_and_never_sent() {
    let (opens, open) = tokio::sync::oneshot::channel::<Upstream>();
    let open = std::sync::Mutex::new(Some(open));
    let (mut client, _bridge) = served(move || {
        let open = open.lock().unwrap().take().unwrap();
        async move { open.await.map_err(|_| "gone") }
    })
    .await;
    client.send(ASK).await;
    client.send(r#"{"jsonrpc":"2.0","id":2,"method":"work","params":{}}"#).await;
    client.is_silent().await;
    client.send(r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}"#).await;
    client.expect(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"Request cancelled"}}"#).await;
    let (upstream, server) = memory_pair();
    opens.send(Upstream::new("late", upstream)).unwrap();
    let mut server = End(server);
    server.expect(r#"{"jsonrpc":"2.0","id":1,"method":"work","params":{}}"#).await;
    server.send(r#"{"jsonrpc":"2.0","id":1,"result":2}"#).await;
    client.expect(r#"{"jsonrpc":"2.0","id":2,"result":2}"#).await;
}

#[tokio::test(start_paused = true)]
async fn an_end_that_nobody_describes_in_time_delays_no_answer() {
    let (client, downstream) = memory_pair();
    let (upstream, server) = memory_pair();
    let upstream = Upstream::new("a child", upstream).ends(async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        "too late".to_owned()
    });
    let bridge = Bridge::new(ACP).unwrap();
    let _peer = bridge.between(downstream, upstream).await.unwrap();
    let (mut client, mut server) = (End(client), End(server));
    client.send(ASK).await;
    server.frame().await;
    let begun = tokio::time::Instant::now();
    drop(server);
    let answer = client.frame().await;
    assert!(answer.contains(r#""error":{"code":-32603,"message":"a child "#), "{answer}");
    assert_eq!(begun.elapsed().as_secs(), 1);
    bridge.ended().await;
    assert!(begun.elapsed() >= Duration::from_secs(30), "the session ends with its upstream");
}

// One upstream for each session of a server.

/// A bridge whose upstreams answer `which` with their number and `wait` when they are cancelled, and the number of
/// upstreams that were opened.
fn numbered(limits: ServerLimits) -> (Bridge, ServerHandle, MemoryTransport, Arc<AtomicUsize>) {
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    let bridge = Bridge::new(MCP).unwrap();
    let server = bridge.serve(move || {
        let number = count.fetch_add(1, Ordering::SeqCst);
        let (near, far) = memory_pair();
        let router = Router::new()
            .method("which", move |_: CallContext, _: Value| async move { Ok(number) })
            .method("wait", |ctx: CallContext, _: Value| async move {
                let token = ctx.progress_token().map(ToOwned::to_owned);
                // As text, because the order of a `Value`'s members depends on the features of serde_json.
                let token = token.map_or_else(|| "null".to_owned(), |token| token.to_string());
                let progress = format!(r#"{{"progress":1,"progressToken":{token}}}"#);
                ctx.notify("notifications/progress", &RawValue::from_string(progress).unwrap()).await?;
                assert_eq!(ctx.cancelled().await.kind(), CauseKind::Peer);
                Ok(())
            });
        let serving = Peer::builder(MCP).serve(router).attach(far);
        async move { serving.map(|_| Upstream::new("numbered", near)) }
    });
    let (listener, transport) = memory_listener();
    let server = server.server_limits(limits.client_share(Share::ALL)).listen(listener);
    let handle = server.handle();
    tokio::spawn(server.run());
    (bridge, handle, transport, opened)
}

async fn client(transport: &MemoryTransport) -> End {
    let link: Link = Box::new(transport.clone()).open().await.unwrap();
    End(link)
}

#[tokio::test]
async fn an_upstream_is_opened_at_the_first_message_of_its_session_and_not_before() {
    let (bridge, _handle, transport, opened) = numbered(ServerLimits::default());
    let mut first = client(&transport).await;
    first.is_silent().await;
    assert_eq!(
        (opened.load(Ordering::SeqCst), bridge.sessions()),
        (1, 0),
        "the future is made and not polled"
    );
    let mut second = client(&transport).await;
    for id in 1..=3 {
        let ask = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"which","params":{{}}}}"#);
        first.send(&ask).await;
        first.expect(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":0}}"#)).await;
        second.send(&ask).await;
        second.expect(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#)).await;
    }
    assert_eq!(bridge.sessions(), 2);
    drop((first, second));
    bridge.ended().await;
}

#[tokio::test]
async fn equal_ids_and_tokens_of_two_clients_never_meet() {
    let (bridge, _handle, transport, _) = numbered(ServerLimits::default());
    let (mut first, mut second) = (client(&transport).await, client(&transport).await);
    let ask = r#"{"jsonrpc":"2.0","id":7,"method":"wait","params":{"_meta":{"progressToken":7}}}"#;
    let progress =
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"progressToken":7}}"#;
    for client in [&mut first, &mut second] {
        client.send(ask).await;
        client.expect(progress).await;
    }
    first.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#).await;
    first.send(r#"{"jsonrpc":"2.0","id":8,"method":"which","params":{}}"#).await;
    first.expect(r#"{"jsonrpc":"2.0","id":8,"result":0}"#).await;
    // The other client's request runs on.
    second.is_silent().await;
    second.send(r#"{"jsonrpc":"2.0","id":8,"method":"which","params":{}}"#).await;
    second.expect(r#"{"jsonrpc":"2.0","id":8,"result":1}"#).await;
    drop((first, second));
    bridge.ended().await;
}

#[tokio::test]
async fn a_drain_ends_all_sessions_and_their_upstreams() {
    let (bridge, handle, transport, _) = numbered(ServerLimits::default());
    let mut clients = Vec::new();
    for _ in 0..5 {
        let mut client = client(&transport).await;
        client.send(r#"{"jsonrpc":"2.0","id":1,"method":"which","params":{}}"#).await;
        client.frame().await;
        clients.push(client);
    }
    assert_eq!((bridge.sessions(), handle.counts().sessions()), (5, 5));
    assert_eq!(handle.drain(Duration::ZERO).await, 0);
    bridge.ended().await;
    for mut client in clients {
        client.closed().await;
    }
    assert_eq!((bridge.sessions(), handle.counts().sessions(), handle.counts().memory()), (0, 0, 0));
}

#[tokio::test]
async fn sessions_above_the_limit_are_refused_while_all_are_in_use() {
    let (_bridge, _handle, transport, _) = numbered(ServerLimits::default().max_connections(2));
    let ask = r#"{"jsonrpc":"2.0","id":1,"method":"wait","params":{"_meta":{"progressToken":1}}}"#;
    let mut used = Vec::new();
    for _ in 0..2 {
        let mut client = client(&transport).await;
        client.send(ask).await;
        client.frame().await;
        used.push(client);
    }
    client(&transport).await.closed().await;
    drop(used.pop());
    loop {
        let mut next = client(&transport).await;
        // It is accepted once the session of the client that left has ended.
        if rescind_testkit::support::frames::send(&mut next.0, ask).await.is_ok()
            && matches!(
                rescind_testkit::support::frames::event(&mut next.0).await,
                Some(Ok(rescind_core::TransportEvent::Message(_)))
            )
        {
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_is_closed_with_its_upstream() {
    let (bridge, _handle, transport, _) =
        numbered(ServerLimits::default().idle_timeout(Some(Duration::from_secs(60))));
    let mut client = client(&transport).await;
    client.send(r#"{"jsonrpc":"2.0","id":1,"method":"which","params":{}}"#).await;
    client.frame().await;
    let begun = tokio::time::Instant::now();
    bridge.ended().await;
    assert!((60..70).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    client.closed().await;
}

#[tokio::test]
async fn frames_that_wait_for_an_upstream_count_in_the_budget_of_the_server() {
    let (far_ends, mut opened) = tokio::sync::mpsc::unbounded_channel();
    let bridge = Bridge::new(MCP).unwrap();
    let server = bridge.serve(move || {
        let (near, far) = memory_pair();
        far_ends.send(far).unwrap();
        std::future::ready(Ok::<_, String>(Upstream::new("slow", near)))
    });
    let (listener, transport) = memory_listener();
    let server = server.listen(listener);
    let handle = server.handle();
    tokio::spawn(server.run());
    let mut client = client(&transport).await;
    let note = format!(r#"{{"jsonrpc":"2.0","method":"note","params":["{}"]}}"#, "x".repeat(10_000));
    for _ in 0..100 {
        client.send(&note).await;
    }
    client.is_silent().await;
    // The transport holds some 64 KiB of the million bytes.
    assert!(handle.counts().memory() > 800_000, "{}", handle.counts().memory());
    let mut far = End(opened.recv().await.unwrap());
    for _ in 0..100 {
        far.expect(&note).await;
    }
    assert!(handle.counts().memory() < 100_000, "{}", handle.counts().memory());
    drop((client, far));
    bridge.ended().await;
    assert_eq!(handle.counts().memory(), 0);
}
