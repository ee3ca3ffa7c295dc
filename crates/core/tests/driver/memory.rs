//! The bytes that a connection and a server hold, and the behaviour at the limit `memory`.

use std::time::Duration;

use rescind_core::dialect::MCP;
use rescind_core::{
    ByteBudget, ByteStream, CallContext, CallError, Event, Framing, HandlerError, Limits, Link, Outcome,
    Peer, Router, Server, ServerLimits, memory_listener, memory_pair,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;

use crate::driver::wire::{self, TRAITS};

const MIB: usize = 1 << 20;

/// Handlers of all kinds, and the names of those that have started.
fn router() -> (Router, mpsc::UnboundedReceiver<String>) {
    let (event_tx, began) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("echo", |_: CallContext, params: Value| async move { Ok(params) })
        .method("hang", move |ctx: CallContext, _: Value| {
            event_tx.send(ctx.request_id().to_string()).unwrap();
            async move {
                let cause = ctx.cancelled().await;
                ctx.stopped::<Value>(cause)
            }
        })
        .method("deaf", |_: CallContext, _: Value| std::future::pending::<Result<(), HandlerError>>());
    (router, began)
}

fn limits(memory: usize) -> Limits {
    let mut limits = Limits::default();
    (limits.max_memory_bytes, limits.max_frame_bytes) = (memory, MIB);
    limits
}

fn filled(bytes: usize) -> Value {
    json!({ "pad": "x".repeat(bytes) })
}

fn refused(answer: Result<Value, CallError>) -> String {
    match answer {
        Err(CallError::Failed(error)) => error.data.map(|data| data.to_string()).unwrap_or(error.message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn requests_over_the_memory_of_their_connection_are_refused_and_a_cancel_passes() {
    let (router, mut began) = router();
    let (near, far) = memory_pair();
    let server = Peer::builder(MCP).serve(router).limits(limits(2 * MIB)).attach(far).unwrap();
    let client = Peer::builder(MCP).attach(near).unwrap();
    let hang = || client.call::<_, Value>("hang", &filled(900_000)).start().unwrap();
    let (first, second) = (hang(), hang());
    began.recv().await.unwrap();
    began.recv().await.unwrap();
    let third = refused(client.call("hang", &filled(900_000)).await);
    assert!(third.contains(r#""limit":"memory""#), "{third}");
    // A small request still fits, and a cancel always does.
    let echoed: Value = client.call("echo", &json!({ "a": 1 })).await.unwrap();
    assert_eq!(echoed, json!({ "a": 1 }));
    assert!(server.queue_stats().memory > 1_800_000, "{:?}", server.queue_stats());
    first.canceller().cancel("enough");
    assert!(matches!(first.outcome().await, Outcome::Cancelled(_)));
    while server.queue_stats().memory > MIB {
        tokio::task::yield_now().await;
    }
    let fourth = hang();
    began.recv().await.unwrap();
    drop((second, fourth));
    // Only the remembered ids are left.
    while server.queue_stats().memory > 8 * 1024 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_a_permit_count_too() {
    let (router, mut began) = router();
    let (near, far) = memory_pair();
    let mut limits = limits(2 * MIB);
    limits.max_running_handlers = 1;
    let _server = Peer::builder(MCP).serve(router).limits(limits).attach(far).unwrap();
    let client = Peer::builder(MCP).attach(near).unwrap();
    let hang = || client.call::<_, Value>("hang", &filled(900_000)).start().unwrap();
    let (_running, _queued) = (hang(), hang());
    began.recv().await.unwrap();
    let third = refused(client.call("hang", &filled(900_000)).await);
    assert!(third.contains(r#""limit":"memory""#), "I11: {third}");
}

#[tokio::test(start_paused = true)]
async fn all_connections_of_a_server_share_its_memory() {
    let (router, mut began) = router();
    let (listener, transport) = memory_listener();
    let mut bounds = ServerLimits::default();
    bounds.max_memory_bytes = 3 * MIB;
    let server =
        Server::builder([MCP]).serve(router).limits(limits(2 * MIB)).server_limits(bounds).listen(listener);
    let counts = server.counts();
    let serving = tokio::spawn(server.run());
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(Peer::builder(MCP).connect(transport.clone()).await.unwrap());
    }
    let hang = |client: &Peer| client.call::<_, Value>("hang", &filled(900_000)).start().unwrap();
    let held = [hang(&clients[0]), hang(&clients[1]), hang(&clients[2])];
    for _ in &held {
        began.recv().await.unwrap();
    }
    let fourth = refused(clients[0].call("hang", &filled(900_000)).await);
    assert!(fourth.contains(r#""limit":"memory""#), "I11: {fourth}");
    assert!(counts.memory() > 2_700_000, "{counts:?}");
    drop(held);
    clients.clear();
    while counts.memory() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn an_unread_answer_is_kept_and_new_requests_are_refused() {
    let (router, _began) = router();
    let router =
        router.method("big", |_: CallContext, (size,): (usize,)| async move { Ok("x".repeat(size)) });
    let (peer, wire) = wire::serve(router, MCP, TRAITS, limits(2 * MIB));
    wire.state().full = Some(rescind_core::Lane::Data);
    for id in 1..=3 {
        wire.says(id, &wire::request(id, "big", &json!([900_000])));
    }
    wire.recorded().await;
    // The requests were small and all were accepted. Their answers are above the limit.
    assert!(peer.queue_stats().memory > 2_700_000, "{:?}", peer.queue_stats());
    wire.says(4, &wire::request(4, "big", &json!([1])));
    let recorded = wire.recorded().await;
    assert_eq!(recorded, ["fault 4 Overloaded", "Control Answer 4 on 4, last"]);
    let refusal = String::from_utf8(wire.state().frame.to_vec()).unwrap();
    assert!(refusal.contains(r#""limit":"memory""#), "{refusal}");
    wire.make_room();
    let recorded = wire.recorded().await;
    let answers = recorded.iter().filter(|line| line.starts_with("Data Answer")).count();
    assert_eq!(answers, 3, "{recorded:?}");
    assert!(
        peer.queue_stats().memory < 1024,
        "what is left are the ids that are remembered: {:?}",
        peer.queue_stats()
    );
}

#[tokio::test(start_paused = true)]
async fn notifications_over_the_memory_are_dropped_and_counted() {
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let router = Router::new().notification("note", |_, _: Value| std::future::pending());
    let (link, wire) = wire::wire(TRAITS);
    let events = move |event: &Event| {
        if let Event::LimitReached(limit) = event {
            event_tx.send(*limit).unwrap();
        }
    };
    let peer =
        Peer::builder(MCP).serve(router).limits(limits(2 * MIB)).on_event(events).attach(link).unwrap();
    for _ in 0..5 {
        let note = json!({ "jsonrpc": "2.0", "method": "note", "params": filled(900_000) });
        wire.says(0, &note);
        wire.recorded().await;
    }
    // One is already with its handler.
    assert_eq!(peer.queue_stats().notifications_dropped, 2, "I11");
    assert_eq!((event_rx.recv().await, event_rx.recv().await), (Some("memory"), Some("memory")));
}

/// A served byte stream whose budget belongs to `server`.
fn served(framing: Framing, server: &ByteBudget) -> (tokio::io::DuplexStream, Peer) {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let link: Link = ByteStream::whole(far).framing(framing).into_link();
    link.budget.set_parent(server);
    let (router, _) = router();
    (near, Peer::builder(MCP).serve(router).attach(link).unwrap())
}

/// Reads until the text ends with `end`.
async fn read_until(reads: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut read = String::new();
    while !read.ends_with(end) {
        read.push(char::from(reads.read_u8().await.unwrap()));
    }
    read
}

#[tokio::test(start_paused = true)]
async fn a_frame_for_which_the_server_has_no_memory_waits_and_is_refused_and_the_next_is_served() {
    for framing in [Framing::Newline, Framing::ContentLength] {
        let server = ByteBudget::new(MIB);
        let others = server.hold(MIB);
        let (near, _peer) = served(framing, &server);
        let (mut reads, mut writes) = tokio::io::split(near);
        let large = wire::request(1, "echo", &filled(900_000)).to_string();
        let small = wire::request(2, "echo", &json!({ "a": 1 })).to_string();
        tokio::spawn(async move {
            for body in [large, small] {
                let mut frame = bytes::BytesMut::new();
                framing.encode(body.as_bytes(), &mut frame);
                writes.write_all(&frame).await.unwrap();
            }
            std::future::pending::<()>().await;
        });
        let begun = tokio::time::Instant::now();
        let refusal = read_until(&mut reads, "}}}").await;
        assert!(refusal.contains(r#""limit":"memory""#), "{framing:?}: {refusal}");
        assert_eq!(begun.elapsed().as_secs(), 10, "{framing:?}: it waits for what others hold");
        // The next request is read and refused with its id, because the memory is still full.
        let refusal = read_until(&mut reads, "}}}").await;
        assert!(refusal.contains(r#""id":2"#), "{framing:?}: {refusal}");
        assert!(refusal.contains(r#""limit":"memory""#), "{framing:?}: {refusal}");
        drop(others);
        assert_eq!(server.used(), 0, "{framing:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_waits_for_memory_goes_on_when_others_give_it_back() {
    let server = ByteBudget::new(MIB);
    let others = server.hold(MIB);
    let (near, _peer) = served(Framing::Newline, &server);
    let (reads, mut writes) = tokio::io::split(near);
    let mut lines = BufReader::new(reads).lines();
    let frame = format!("{}\n", wire::request(1, "echo", &filled(900_000)));
    tokio::spawn(async move {
        writes.write_all(frame.as_bytes()).await.unwrap();
        std::future::pending::<()>().await;
    });
    tokio::time::sleep(Duration::from_secs(9)).await;
    drop(others);
    let answer = lines.next_line().await.unwrap().unwrap();
    assert!(answer.contains(r#""id":1"#) && answer.len() > 900_000, "{} bytes", answer.len());
    // Only the remembered ids are left.
    while server.used() > 8 * 1024 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn ids_that_are_remembered_and_early_cancels_count() {
    let (router, _began) = router();
    let (peer, wire) = wire::serve(router, MCP, TRAITS, limits(2 * MIB));
    for n in 0..100 {
        let id = format!("{n:0>256}");
        wire.says(0, &json!({ "jsonrpc": "2.0", "id": id, "method": "echo", "params": {} }));
    }
    wire.recorded().await;
    let settled = peer.queue_stats().memory;
    assert!(settled > 100 * 256, "I11: {settled}");
    for n in 0..100 {
        wire.says(0, &wire::cancel(1000 + n));
    }
    wire.recorded().await;
    assert!(peer.queue_stats().memory > settled + 100 * 256, "I11: {:?}", peer.queue_stats());
}
