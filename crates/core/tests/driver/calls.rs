//! Calls over a real connection: how they are cancelled, and which outcomes their callers get.
//!
//! The behaviour of a connection with very many cancels.
//!
//! The requirements of the protocols on either side, frame by frame: one end is a peer, the other writes and reads
//! lines.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rescind_core::dialect::{ACP, ACP_DRAFT, ACP_V2, Dialect, MCP, MCP_2026, Role};
use rescind_core::{
    ByteStream, Call, CallContext, CallError, CancelResult, Cause, CauseKind, Framing, HandlerError, Limits,
    Link, Outcome, Peer, Receiver, Router, TransportEvent, memory_pair,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWrite, AsyncWriteExt, BufReader, DuplexStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::driver::wire::{TRAITS, cancel, open as open_probe, request};

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

// The behaviour of a connection with very many cancels.

/// More than any transport buffers.
const CALLS: usize = 10_000;

type Rx = Pin<Box<dyn Receiver>>;

/// Makes this many calls, and waits until the peer has read them and the driver sleeps.
async fn open() -> (Peer, Vec<Call<Value>>, Link) {
    let (ours, mut theirs) = memory_pair();
    let peer = Peer::builder(ACP).attach(ours).unwrap();
    let calls = (0..CALLS).map(|_| peer.call("wait", &json!({})).start().unwrap()).collect();
    for _ in 0..CALLS {
        next(&mut theirs.rx).await;
    }
    turn().await;
    (peer, calls, theirs)
}

/// Gives every ready task one turn. The yield of the runtime gives them many.
async fn turn() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

async fn next(rx: &mut Rx) -> Value {
    match poll_fn(|cx| rx.as_mut().poll_event(cx)).await {
        Some(Ok(TransportEvent::Message(inbound))) => serde_json::from_slice(&inbound.body).unwrap(),
        other => panic!("no frame, but {other:?}"),
    }
}

/// Removes the frames from the transport and counts them.
async fn count(rx: &mut Rx) -> usize {
    let mut frames = 0;
    while poll_fn(|cx| Poll::Ready(rx.as_mut().poll_event(cx).is_ready())).await {
        frames += 1;
    }
    frames
}

#[tokio::test]
async fn many_cancels_are_written_in_small_batches() {
    // In a task it takes turns with the driver.
    tokio::spawn(small_batches()).await.unwrap();
}

async fn small_batches() {
    let (_peer, calls, mut theirs) = open().await;
    drop(calls);
    let (mut seen, mut most) = (0, 0);
    while seen < CALLS {
        turn().await;
        let frames = count(&mut theirs.rx).await;
        (seen, most) = (seen + frames, most.max(frames));
        assert!(frames > 0, "L1: {} cancels wait, and none is written", CALLS - seen);
    }
    assert_eq!(seen, CALLS);
    assert!(most <= 8, "{most} cancels were written in one turn, and whatever is next waits behind them");
}

#[tokio::test]
async fn a_slow_reader_of_many_cancels_also_receives_data_frames() {
    tokio::spawn(sent_beside()).await.unwrap();
}

async fn sent_beside() {
    let (peer, calls, mut theirs) = open().await;
    drop(calls);
    // The cancels fill the transport.
    for _ in 0..1000 {
        turn().await;
    }
    let _beside = peer.call::<_, Value>("beside", &json!({})).start().unwrap();
    let mut ahead = 0;
    while next(&mut theirs.rx).await.get("method").and_then(Value::as_str) != Some("beside") {
        ahead += 1;
        // The writer has more turns than the reader.
        for _ in 0..4 {
            turn().await;
        }
    }
    assert!(ahead < 1000, "{ahead} cancels went ahead of it");
}

#[tokio::test(start_paused = true)]
async fn a_grace_expires_during_a_constant_stream_of_frames() {
    tokio::spawn(grace_ends()).await.unwrap();
}

async fn grace_ends() {
    const FRAMES: u64 = 100_000;
    let (peer, wire) = open_probe(MCP, TRAITS, Limits::default());
    wire.says(1, &request(1, "deaf", &json!({})));
    wire.says(2, &cancel(1));
    for id in 2..FRAMES {
        wire.says(2, &cancel(id));
    }
    while peer.stats().unknown_cancels == 0 {
        turn().await;
    }
    tokio::time::advance(Limits::default().cancel_grace + Duration::from_millis(1)).await;
    for _ in 0..10 {
        turn().await;
    }
    let stats = peer.stats();
    assert_eq!(stats.aborted, 1, "L1");
    assert!(stats.unknown_cancels < FRAMES / 2, "nothing was left to read: {stats:?}");
}

/// Reports the content of each write.
struct Writes(mpsc::UnboundedSender<String>);

impl AsyncWrite for Writes {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.send(String::from_utf8(bytes.to_vec()).unwrap()).unwrap();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_cancel_is_written_before_the_frames_it_overtook() {
    let (tell, mut writes) = mpsc::unbounded_channel();
    let (reader, _open) = tokio::io::simplex(64);
    let link = ByteStream::new(reader, Writes(tell)).framing(Framing::Newline).into_link();
    let peer = Peer::builder(ACP).attach(link).unwrap();
    let call = peer.call::<_, Value>("wait", &json!({})).start().unwrap();
    assert!(writes.recv().await.unwrap().contains("\"wait\""));
    for _ in 0..100 {
        peer.try_notify("noise", &json!({})).unwrap();
    }
    assert_eq!(call.canceller().cancel("enough"), CancelResult::Sent);
    let first = writes.recv().await.unwrap();
    assert!(first.contains("cancel_request") && !first.contains("noise"), "{first}");
    assert_eq!(first.lines().count(), 1);
    let then = writes.recv().await.unwrap();
    assert_eq!(then.lines().count(), 100, "what it overtook is one write");
}

// covers: ABP-17
#[tokio::test(start_paused = true)]
async fn a_handler_sees_its_cancel_as_a_token_and_can_be_cancelled_by_one() {
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let (near, far) = memory_pair();
    let local = stop.clone();
    let by_token = event_tx.clone();
    let router = Router::new()
        .method("token", move |ctx: CallContext, _: Value| {
            let event_tx = by_token.clone();
            async move {
                let tokens = [ctx.token(), CancellationToken::from(&ctx), ctx.clone().into()];
                event_tx.send(tokens.iter().any(CancellationToken::is_cancelled)).unwrap();
                for token in &tokens {
                    token.cancelled().await;
                }
                event_tx.send(ctx.is_cancelled()).unwrap();
                ctx.check()?;
                Ok(())
            }
        })
        .method("local", move |ctx: CallContext, _: Value| {
            let (event_tx, stop) = (event_tx.clone(), local.clone());
            async move {
                ctx.cancel_on(stop);
                event_tx.send(false).unwrap();
                let cause = ctx.cancelled().await;
                event_tx.send(cause.kind() == CauseKind::Local).unwrap();
                ctx.stopped::<()>(cause)
            }
        });
    let _server = Peer::builder(ACP).serve(router).attach(far).unwrap();
    let client = Peer::builder(ACP).attach(near).unwrap();

    let call = client.call::<_, ()>("token", &json!({})).start().unwrap();
    assert_eq!(event_rx.recv().await, Some(false));
    call.canceller().cancel("");
    assert_eq!(event_rx.recv().await, Some(true));
    assert!(call.outcome().await.is_cancelled());

    let call = client.call::<_, ()>("local", &json!({})).start().unwrap();
    assert_eq!(event_rx.recv().await, Some(false));
    stop.cancel();
    assert_eq!(event_rx.recv().await, Some(true));
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => assert_eq!(cancelled.cause.kind(), CauseKind::Peer),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_cancellation_token_keeps_no_memory_of_its_request() {
    let token = CancellationToken::new();
    let stop = token.clone();
    let router = Router::new().method("quick", move |ctx: CallContext, _: Value| {
        ctx.cancel_on(stop.clone());
        async { Ok(()) }
    });
    let (near, far) = memory_pair();
    let server = Peer::builder(ACP).serve(router).attach(far).unwrap();
    let client = Peer::builder(ACP).attach(near).unwrap();
    for _ in 0..10 {
        client.call::<_, ()>("quick", &json!({})).await.unwrap();
    }
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.stats().slots, 0);
    // The tasks of the two connections.
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks, 2, "I3: a task waits for the token of a request that has ended");
}

// The requirements of the protocols on either side, frame by frame: one end is a peer, the other writes and reads
// lines.

/// The end that writes and reads lines, without the library.
pub(crate) struct Lines(BufReader<DuplexStream>);

impl Lines {
    pub(crate) fn new(stream: DuplexStream) -> Self {
        Self(BufReader::new(stream))
    }

    pub(crate) async fn send(&mut self, message: Value) {
        self.0.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    pub(crate) async fn next(&mut self) -> Value {
        let mut line = String::new();
        tokio::time::timeout(Duration::from_secs(60), self.0.read_line(&mut line)).await.unwrap().unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

pub(crate) async fn meet(dialect: Dialect, role: Role, router: Router) -> (Peer, Lines) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (from, to) = tokio::io::split(ours);
    let wire = ByteStream::new(from, to);
    let peer = Peer::builder(dialect).role(role).serve(router).connect(wire).await.unwrap();
    (peer, Lines::new(theirs))
}

/// The methods of an agent or a client whose handlers ignore their cancel, or fail after it.
fn deaf() -> Router {
    Router::new()
        .method("initialize", |_: CallContext, _: Value| async {
            Ok(json!({"protocolVersion": 1, "agentCapabilities": {}}))
        })
        .method("session/prompt", |ctx: CallContext, params: Value| async move {
            match params.get("prompt").and_then(Value::as_str) {
                Some("local") => drop(ctx.cancel_local(Cause::new(CauseKind::Local))),
                Some("shutdown") => drop(ctx.cancel_local(Cause::new(CauseKind::Shutdown))),
                Some("fails") => {
                    ctx.cancelled().await;
                    return Err(std::fmt::Error.into());
                }
                _ => {}
            }
            std::future::pending::<()>().await;
            Ok(Value::Null)
        })
        .method("session/request_permission", |ctx: CallContext, _: Value| async move {
            let cause = ctx.cancelled().await;
            ctx.stopped::<Value>(cause)
        })
        .method("other", |_: CallContext, _: Value| std::future::pending::<Result<(), HandlerError>>())
        .notification("nothing", |_: Peer, _: Value| async {})
}

// covers: ACP-09
#[tokio::test(start_paused = true)]
async fn a_cancelled_prompt_ends_with_its_stop_reason_whatever_its_handler_does() {
    for (dialect, cancel, key) in
        [(ACP, "$/cancel_request", "requestId"), (ACP_DRAFT, "$/cancelRequest", "id")]
    {
        let (_agent, mut client) = meet(dialect, Role::Server, deaf()).await;
        client
            .send(
                json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}),
            )
            .await;
        assert_eq!(client.next().await["id"], 0);
        for (id, prompt) in [(1, "deaf"), (2, "fails"), (3, "local")] {
            client.send(json!({"jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": {"prompt": prompt}})).await;
            if prompt != "local" {
                client.send(json!({"jsonrpc": "2.0", "method": cancel, "params": {key: id}})).await;
            }
            let answer = client.next().await;
            assert_eq!(
                answer,
                json!({"jsonrpc": "2.0", "id": id, "result": {"stopReason": "cancelled"}}),
                "{prompt}"
            );
        }
        // A cancel that does not come from the client does not cancel the turn (ACP-12).
        client.send(json!({"jsonrpc": "2.0", "id": 4, "method": "session/prompt", "params": {"prompt": "shutdown"}})).await;
        assert_eq!(client.next().await["error"]["code"], -32_800);
        client.send(json!({"jsonrpc": "2.0", "id": 5, "method": "other"})).await;
        client.send(json!({"jsonrpc": "2.0", "method": cancel, "params": {key: 5}})).await;
        assert_eq!(client.next().await["error"]["code"], -32_800);
    }
    // In version 2 the answer to a prompt has no stop reason.
    let (_agent, mut client) = meet(ACP_V2, Role::Server, deaf()).await;
    client.send(json!({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {}})).await;
    client.send(json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1}})).await;
    assert_eq!(client.next().await["error"]["code"], -32_800);
}

// covers: ACP-18
#[tokio::test(start_paused = true)]
async fn a_cancelled_permission_request_is_answered_with_the_outcome_cancelled() {
    for dialect in [ACP, ACP_V2] {
        let (_client, mut agent) = meet(dialect, Role::Client, deaf()).await;
        agent
            .send(json!({"jsonrpc": "2.0", "id": 3, "method": "session/request_permission", "params": {}}))
            .await;
        agent.send(json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 3}})).await;
        let outcome = json!({"outcome": {"outcome": "cancelled"}});
        assert_eq!(agent.next().await, json!({"jsonrpc": "2.0", "id": 3, "result": outcome}));
    }
}

#[tokio::test]
async fn a_call_with_a_task_member_is_cancelled_as_any_other_in_mcp_2026() {
    let (client, mut server) = meet(MCP_2026, Role::Client, Router::new()).await;
    let call =
        client.call::<_, Value>("tools/call", &json!({"name": "wait", "task": {"ttl": 1}})).start().unwrap();
    let id = server.next().await["id"].clone();
    assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
    let cancel = server.next().await;
    assert_eq!((&cancel["method"], &cancel["params"]["requestId"]), (&json!("notifications/cancelled"), &id));
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_is_not_an_error_the_peer_answered_with() {
    let (client, mut server) = meet(ACP, Role::Client, Router::new()).await;
    let answers = [
        (json!("text"), None, "the requested type"),
        (Value::Null, Some(json!("no object")), "its error is not an object"),
        (json!(1), Some(json!({"code": 1, "message": "m"})), "a result and an error"),
    ];
    for (result, error, what) in answers {
        for by_outcome in [true, false] {
            let call = client.call::<_, u64>("count", &json!({})).start().unwrap();
            let mut answer = json!({"jsonrpc": "2.0", "id": server.next().await["id"]});
            if result != Value::Null {
                answer["result"] = result.clone();
            }
            if let Some(error) = &error {
                answer["error"] = error.clone();
            }
            server.send(answer).await;
            if by_outcome {
                match call.outcome().await {
                    Outcome::Unreadable { what: said } => assert!(said.contains(what), "{said}"),
                    other => panic!("{other:?}"),
                }
            } else {
                let error = call.await.unwrap_err();
                assert!(matches!(&error, CallError::Answer { method, .. } if method == "count"), "{error:?}");
                assert!(!error.to_string().contains("the peer answered with an error"), "{error}");
            }
        }
    }
    let call = client.call::<_, u64>("count", &json!({})).timeout(Duration::from_secs(30)).start().unwrap();
    let id = server.next().await["id"].clone();
    server.send(json!({"jsonrpc": "2.0", "id": id, "error": {"code": 7, "message": "no"}})).await;
    assert!(matches!(call.outcome().await, Outcome::Failed(error) if error.code.0 == 7));
}
