//! The driver over a transport of exchanges, whose posts overtake one another and whose streams are lost and resumed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use rescind_core::dialect::{ACP, Dialect, LSP, MCP, MCP_2026};
use rescind_core::{
    CallContext, CauseKind, ExchangeEnd, FrameKind, Limits, Outcome, Peer, RejectReason, Router,
};
use rescind_testkit::exchanges::{ExchangeWatch, IdScope, PostEnd, PostRecord, exchange_pair};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// The messages of the handlers of a test.
type Events = mpsc::UnboundedReceiver<String>;

/// A client, a server that serves `echo`, `wait`, `tick` and `ask`, the transport, and the messages of the server's
/// handlers. Does the handshake if the dialect requires one, and returns how many posts that took.
async fn opened(client: &Peer, dialect: &Dialect) -> usize {
    if dialect.rules().lifecycle.is_none() {
        return 0;
    }
    client.call::<_, Value>("initialize", &json!({})).await.unwrap();
    1
}

fn connect(dialect: &Dialect, scope: IdScope) -> (Peer, Peer, ExchangeWatch, Events) {
    connect_within(dialect, scope, Limits::default())
}

fn connect_within(dialect: &Dialect, scope: IdScope, limits: Limits) -> (Peer, Peer, ExchangeWatch, Events) {
    let (events_tx, events) = mpsc::unbounded_channel();
    let (near, far, watch) = exchange_pair(scope);
    let waits = events_tx.clone();
    let router = Router::new()
        .method("initialize", |_ctx: CallContext, _: Value| async { Ok(json!({"capabilities": {}})) })
        .method("echo", |_ctx: CallContext, value: Value| async move { Ok(value) })
        .method("wait", move |ctx: CallContext, _: Value| {
            let events_tx = waits.clone();
            async move {
                events_tx.send("started".to_owned()).unwrap();
                let cause = ctx.cancelled().await;
                events_tx.send(cause.kind().name().to_owned()).unwrap();
                ctx.stopped::<Value>(cause)
            }
        })
        .method("slow", |_ctx: CallContext, value: Value| async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok(value)
        })
        .method("tick", |ctx: CallContext, _: Value| async move {
            ctx.try_notify("ticked", &json!({"n": 1}))?;
            Ok(json!({}))
        })
        .method("ask", |ctx: CallContext, _: Value| async move {
            Ok(ctx.call::<_, Value>("theirs", &json!({})).await?)
        })
        .server_cancellable("wait");
    let server = Peer::builder(dialect.clone()).limits(limits).serve(router).attach(far).unwrap();
    let theirs = Router::new().method("theirs", move |ctx: CallContext, _: Value| {
        let events_tx = events_tx.clone();
        async move {
            events_tx.send("asked".to_owned()).unwrap();
            let cause = ctx.cancelled().await;
            events_tx.send(format!("theirs: {}", cause.kind().name())).unwrap();
            ctx.stopped::<Value>(cause)
        }
    });
    let client = Peer::builder(dialect.clone()).role(rescind_core::dialect::Role::Client);
    (client.serve(theirs).attach(near).unwrap(), server, watch, events)
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

/// The posts, after each has ended.
async fn ended(watch: &ExchangeWatch) -> Vec<PostRecord> {
    until("a post is never ended", || watch.posts().iter().all(|post| !post.ends.is_empty())).await;
    watch.posts()
}

#[tokio::test(start_paused = true)]
async fn every_post_is_ended_once_and_a_request_by_its_answer() {
    let (client, _server, watch, _told) = connect(&ACP, IdScope::Session);
    let answer: Value = client.call("echo", &json!({"a": 1})).await.unwrap();
    assert_eq!(answer, json!({"a": 1}));
    client.try_notify("nobody/hears", &json!({})).unwrap();
    let refused = client.call::<_, Value>("nobody/serves", &json!({})).await;
    assert!(refused.is_err());
    let posts = ended(&watch).await;
    let ends: Vec<_> = posts.iter().map(|post| (post.begun, post.fault, post.ends.as_slice())).collect();
    let wanted: [(bool, Option<RejectReason>, &[PostEnd]); 3] = [
        (true, None, &[PostEnd::Frame(FrameKind::Answer)]),
        (false, None, &[PostEnd::Without(ExchangeEnd::Accepted)]),
        (false, Some(RejectReason::MethodNotFound), &[PostEnd::Frame(FrameKind::Answer)]),
    ];
    assert_eq!(ends, wanted, "a handler begins where there is one");
}

#[tokio::test(start_paused = true)]
async fn a_silenced_request_ends_its_post_without_an_answer() {
    let (client, _server, watch, mut events) = connect(&MCP, IdScope::Session);
    let call = client.call::<_, Value>("wait", &json!({})).start().unwrap();
    assert_eq!(events.recv().await.unwrap(), "started");
    drop(call);
    assert_eq!(events.recv().await.unwrap(), "peer");
    let posts = ended(&watch).await;
    assert_eq!(posts[0].ends, [PostEnd::Without(ExchangeEnd::Silent)], "I2");
    assert_eq!(posts[1].kind, FrameKind::Cancel);
    assert_eq!(posts[1].ends, [PostEnd::Without(ExchangeEnd::Accepted)]);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_that_overtakes_its_request_stops_it_before_it_starts() {
    let (client, server, watch, mut events) = connect(&ACP, IdScope::Session);
    watch.hold();
    let call = client.call::<_, Value>("wait", &json!({})).start().unwrap();
    until("the request is not posted", || watch.posts().len() == 1).await;
    assert_eq!(call.canceller().cancel(""), rescind_core::CancelResult::Sent);
    until("the cancel is not posted", || watch.posts().len() == 2).await;
    watch.release_reversed();
    let outcome = call.outcome().await;
    assert!(matches!(outcome, Outcome::Cancelled(ref cancelled) if cancelled.confirmed), "{outcome:?}");
    assert_eq!(server.stats().started, 0, "its handler never ran");
    assert!(events.try_recv().is_err());
    let posts = ended(&watch).await;
    assert_eq!(posts[0].ends, [PostEnd::Frame(FrameKind::Answer)], "I1");
}

#[tokio::test(start_paused = true)]
async fn aborting_an_exchange_is_the_cancel_if_ids_are_scoped_to_the_exchange() {
    let (client, _server, watch, mut events) = connect(&MCP_2026, IdScope::Exchange);
    let call = client.call::<_, Value>("wait", &json!({})).start().unwrap();
    assert_eq!(events.recv().await.unwrap(), "started");
    let stop = call.canceller();
    assert_eq!(stop.cancel("enough"), rescind_core::CancelResult::Sent);
    let outcome = call.outcome().await;
    assert!(matches!(outcome, Outcome::Cancelled(ref cancelled) if !cancelled.confirmed), "{outcome:?}");
    assert_eq!(events.recv().await.unwrap(), "peer", "closing the stream is a cancel of the peer's, at once");
    let posts = ended(&watch).await;
    assert_eq!(posts.len(), 1, "no message says it too");
    assert_eq!(posts[0].ends, [PostEnd::Without(ExchangeEnd::Silent)], "and nothing more is sent");
}

#[tokio::test(start_paused = true)]
async fn a_lost_stream_detaches_its_request_and_cancels_it_after_the_grace_that_is_set() {
    let mut limits = Limits::default();
    limits.lost_stream_grace = Some(Duration::from_secs(30));
    let (client, _server, watch, mut events) = connect_within(&MCP, IdScope::Session, limits);
    let _call = client.call::<_, Value>("wait", &json!({})).start().unwrap();
    assert_eq!(events.recv().await.unwrap(), "started");
    let lost = tokio::time::Instant::now();
    watch.lose(0);
    assert_eq!(events.recv().await.unwrap(), "disconnected");
    assert_eq!(lost.elapsed().as_secs(), 30, "the grace was waited for");
    assert_eq!(
        ended(&watch).await[0].ends,
        [PostEnd::Frame(FrameKind::Answer)],
        "RULE-01: nobody cancelled it"
    );
}

// covers: RULE-15
#[tokio::test(start_paused = true)]
async fn the_dialect_decides_the_effect_of_a_lost_stream() {
    for (dialect, cause, seconds) in
        [(LSP, "disconnected", 30), (ACP, "disconnected", 30), (MCP_2026, "peer", 0)]
    {
        let (client, _server, watch, mut events) = connect(&dialect, IdScope::Session);
        let first = opened(&client, &dialect).await;
        let _call = client.call::<_, Value>("wait", &json!({})).start().unwrap();
        assert_eq!(events.recv().await.unwrap(), "started");
        let lost = tokio::time::Instant::now();
        watch.lose(first);
        assert_eq!(events.recv().await.unwrap(), cause, "{}", dialect.name());
        assert_eq!(lost.elapsed().as_secs(), seconds, "{}", dialect.name());
    }
}

// covers: RULE-15
#[tokio::test(start_paused = true)]
async fn in_mcp_a_lost_stream_cancels_nothing_during_the_session() {
    let (client, server, watch, mut events) = connect(&MCP, IdScope::Session);
    let _call = client.call::<_, Value>("wait", &json!({})).no_timeout().start().unwrap();
    assert_eq!(events.recv().await.unwrap(), "started");
    watch.lose(0);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(events.try_recv().is_err(), "an hour later it is not cancelled");
    server.shutdown(Duration::ZERO).await;
    assert_eq!(events.recv().await.unwrap(), "shutdown");
}

#[tokio::test(start_paused = true)]
async fn a_resumed_stream_delivers_the_missed_events_and_continues() {
    let (client, _server, watch, _told) = connect(&MCP, IdScope::Session);
    let call = client.call::<_, Value>("slow", &json!({"late": true})).start().unwrap();
    until("it never began", || watch.posts().first().is_some_and(|post| post.begun)).await;
    watch.lose(0);
    tokio::time::sleep(Duration::from_secs(20)).await;
    watch.resume(0);
    let outcome = call.outcome().await;
    assert!(matches!(outcome, Outcome::Completed(ref value) if value["late"] == true), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_one_stream_touches_no_other_request() {
    let (client, _server, watch, mut events) = connect(&MCP_2026, IdScope::Exchange);
    let doomed = client.call::<_, Value>("wait", &json!({})).start().unwrap();
    let other = client.call::<_, Value>("slow", &json!({"mine": 1})).start().unwrap();
    assert_eq!(events.recv().await.unwrap(), "started");
    drop(doomed);
    assert_eq!(events.recv().await.unwrap(), "peer");
    let outcome = other.outcome().await;
    assert!(matches!(outcome, Outcome::Completed(ref value) if value["mine"] == 1), "I4: {outcome:?}");
    let posts = ended(&watch).await;
    assert!(posts.iter().all(|post| post.ends.len() == 1), "{posts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_exchange_ends_without_an_answer_may_have_run() {
    let (near, mut far, _watch) = exchange_pair(IdScope::Session);
    let client = Peer::builder(ACP).attach(near).unwrap();
    let call = client.call::<_, Value>("echo", &json!({})).start().unwrap();
    let post = std::future::poll_fn(|cx| far.rx.as_mut().poll_event(cx)).await;
    let Some(Ok(rescind_core::TransportEvent::Message(inbound))) = post else { panic!("{post:?}") };
    far.tx.as_mut().finish_exchange(inbound.exchange, ExchangeEnd::Refused);
    let outcome = call.outcome().await;
    assert!(matches!(outcome, Outcome::Disconnected { may_have_run: true }), "{outcome:?}");
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn notifications_on_a_calls_own_exchange_belong_to_the_call() {
    let (client, _server, _watch, _told) = connect(&ACP, IdScope::Session);
    let call = client.call::<_, Value>("tick", &json!({})).progress().start().unwrap();
    let mut ticks = call.notifications();
    let tick = ticks.next().await.unwrap();
    assert_eq!((tick.method(), tick.params::<Value>().unwrap()), ("ticked", json!({"n": 1})));
    assert!(matches!(call.outcome().await, Outcome::Completed(_)));
}

#[tokio::test(start_paused = true)]
async fn a_child_and_its_cancel_are_sent_on_the_parents_exchange() {
    let (client, _server, watch, mut events) = connect(&ACP, IdScope::Session);
    let call = client.call::<_, Value>("ask", &json!({})).start().unwrap();
    assert_eq!(events.recv().await.unwrap(), "asked");
    assert_eq!(call.canceller().cancel(""), rescind_core::CancelResult::Sent);
    assert_eq!(events.recv().await.unwrap(), "theirs: peer", "the cascade reached the client's own handler");
    let outcome = call.outcome().await;
    assert!(matches!(outcome, Outcome::Cancelled(_)), "{outcome:?}");
    let posts = ended(&watch).await;
    // The call, its cancel, and the answer to the child. The answer has a separate post, because the child arrived on
    // the post of the call.
    let kinds: Vec<_> = posts.iter().map(|post| post.kind).collect();
    assert_eq!(kinds, [FrameKind::Request, FrameKind::Cancel, FrameKind::Answer]);
    assert!(posts.iter().all(|post| post.ends.len() == 1), "{posts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_refused_during_shutdown_gets_its_methods_own_cancelled_answer() {
    let (client, server, watch, mut events) = connect(&LSP, IdScope::Session);
    let first = opened(&client, &LSP).await;
    let _first = client.call::<_, Value>("wait", &json!({})).start().unwrap();
    assert_eq!(events.recv().await.unwrap(), "started");
    let stopping = tokio::spawn(async move { server.shutdown(Duration::from_secs(5)).await });
    tokio::task::yield_now().await;
    let outcome = client.call::<_, Value>("wait", &json!({})).start().unwrap().outcome().await;
    assert!(
        matches!(outcome, Outcome::Cancelled(ref cancelled) if cancelled.cause.kind() == CauseKind::Peer),
        "LSP: -32802 for a server-cancellable method is a cancel: {outcome:?}"
    );
    assert_eq!(watch.posts()[first + 1].ends, [PostEnd::Frame(FrameKind::Answer)]);
    stopping.await.unwrap();
}
