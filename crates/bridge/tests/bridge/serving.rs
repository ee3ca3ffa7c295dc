//! One upstream for each session of a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rescind_bridge::{Bridge, Upstream};
use rescind_core::dialect::MCP;
use rescind_core::{
    CallContext, CauseKind, Link, MemoryTransport, Peer, Router, ServerHandle, ServerLimits, Share,
    Transport as _, memory_listener, memory_pair,
};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::ends_of_a_bridge::End;

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
