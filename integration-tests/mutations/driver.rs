//! The guarantees of the driver, the framing and a byte stream that a planted bug violates.

use std::time::Duration;

use rescind::dialect::{ACP, MCP};
use rescind::transport::{Decoded, Link, Newline};
use rescind::{ByteStream, CallContext, CauseKind, Framing, Limits, Outcome, Peer, Router, memory_pair};
use rescind_core::dialect::Role;
use rescind_core::{CallSpec, InboundRequest, Origin, Output, RequestId, Session, SessionConfig};
use rescind_testkit::support::within;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;

use crate::HANG;

/// Runs in a thread with a small stack, as the driver's task may.
#[test]
fn a_wide_cascade_fits_a_small_stack() {
    let thread = std::thread::Builder::new().stack_size(256 * 1024).spawn(|| cascade(100_000)).unwrap();
    assert_eq!(thread.join().unwrap(), 100_000, "I5");
}

/// How many children of a request are cancelled with it.
fn cascade(children: usize) -> usize {
    let now = std::time::Instant::now();
    let mut config = SessionConfig::new(ACP, Role::Server);
    config.limits.max_calls = children;
    let mut session = Session::new(config);
    let parent = session.recv_request(now, InboundRequest::new(RequestId::number(1), "work")).unwrap();
    for _ in 0..children {
        let spec = CallSpec { parent: Some(parent), ..CallSpec::new("child") };
        let (call, _) = session.local_call(now, &spec).unwrap();
        session.local_written(now, call);
    }
    session.recv_cancel(now, Some(RequestId::number(1)), None, None, &Origin::STREAM);
    let mut cancelled = 0;
    loop {
        while let Some(output) = session.poll_output() {
            cancelled += usize::from(matches!(output, Output::SendCancel { .. }));
        }
        if !session.has_work() {
            return cancelled;
        }
        session.advance(now);
    }
}

#[tokio::test]
async fn a_caller_gets_the_error_that_the_connection_is_lost() {
    let (near, far): (Link, Link) = memory_pair();
    let client = Peer::builder(ACP).attach(near).unwrap();
    let call = client.call::<_, Value>("wait", &json!({})).start().unwrap();
    let outcome = tokio::spawn(call.outcome());
    tokio::task::yield_now().await;
    drop(far);
    let outcome = within(HANG, "I13: the caller", outcome).await.unwrap();
    assert!(matches!(outcome, Outcome::Disconnected { .. }), "I13: {outcome:?}");
}

/// L1: the handler gets its cancel although it was not polled yet, long before its grace ends.
#[tokio::test]
async fn a_cancel_directly_after_its_request_reaches_the_handler() {
    let (ours, mut theirs) = tokio::io::duplex(1024);
    let (events_tx, mut events) = mpsc::unbounded_channel();
    let router = Router::new().method("wait", move |ctx: CallContext, _: Value| {
        let events_tx = events_tx.clone();
        async move {
            let cause = ctx.cancelled().await;
            events_tx.send(cause.kind()).unwrap();
            ctx.stopped::<Value>(cause)
        }
    });
    let mut limits = Limits::default();
    limits.cancel_grace = Duration::from_secs(3600);
    let link = ByteStream::whole(ours).framing(Framing::Newline).into_link();
    let _server = Peer::builder(ACP).serve(router).limits(limits).attach(link).unwrap();
    let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "wait", "params": {}});
    let cancel = json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1}});
    theirs.write_all(format!("{ask}\n{cancel}\n").as_bytes()).await.unwrap();
    assert_eq!(within(HANG, "L1: the signal", events.recv()).await, Some(CauseKind::Peer));
}

/// I1: the cancel is in the read buffer together with its request, so the handler finds its request cancelled.
#[tokio::test]
async fn a_quick_handler_sees_a_cancel_that_arrived_with_its_request() {
    let (ours, mut theirs) = tokio::io::duplex(1024);
    let (events_tx, mut events) = mpsc::unbounded_channel();
    let router = Router::new().quick("look", move |ctx: CallContext, _: Value| {
        events_tx.send(ctx.cause().map(|cause| cause.kind())).unwrap();
        async { Ok(()) }
    });
    let link = ByteStream::whole(ours).framing(Framing::Newline).into_link();
    let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "look", "params": {}});
    let cancel = json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1}});
    theirs.write_all(format!("{ask}\n{cancel}\n").as_bytes()).await.unwrap();
    let _server = Peer::builder(ACP).serve(router).attach(link).unwrap();
    let saw = within(HANG, "the handler", events.recv()).await.unwrap();
    assert_eq!(saw, Some(CauseKind::Peer), "I1: the cancel is older than the handler's answer");
}

/// A handler has written much that was not read when its cancel arrives, and no answer is allowed.
#[tokio::test]
async fn a_silenced_request_drops_its_queued_frames() {
    const NOTES: usize = 200;
    let (ours, theirs) = tokio::io::duplex(1024);
    let (events_tx, mut events) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("echo", |_: CallContext, params: Value| async move { Ok(params) })
        .method("talk", move |ctx: CallContext, _: Value| {
            let events_tx = events_tx.clone();
            async move {
                for _ in 0..NOTES {
                    ctx.try_notify("note", &json!({"text": "x".repeat(4096)}))?;
                }
                events_tx.send("written").unwrap();
                let cause = ctx.cancelled().await;
                events_tx.send("signalled").unwrap();
                ctx.stopped::<Value>(cause)
            }
        });
    let _server = Peer::builder(MCP)
        .serve(router)
        .attach(ByteStream::whole(ours).framing(Framing::Newline).into_link())
        .unwrap();
    let (read, mut write) = tokio::io::split(theirs);
    let mut say = async |frame: Value| write.write_all(format!("{frame}\n").as_bytes()).await.unwrap();
    say(json!({"jsonrpc": "2.0", "id": 1, "method": "talk", "params": {}})).await;
    assert_eq!(within(HANG, "the notes", events.recv()).await, Some("written"));
    say(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})).await;
    assert_eq!(within(HANG, "the signal", events.recv()).await, Some("signalled"));
    say(json!({"jsonrpc": "2.0", "id": 2, "method": "echo", "params": {"done": true}})).await;
    let mut lines = BufReader::new(read).lines();
    let mut notes = 0;
    while let Some(line) = within(HANG, "the answer", lines.next_line()).await.unwrap() {
        if line.contains("\"done\"") {
            break;
        }
        notes += 1;
    }
    // The frames that the transport had accepted before the cancel are on their way.
    assert!(notes < NOTES / 2, "I2: {notes} of {NOTES} notes were written for a silenced request");
}

#[test]
fn a_frame_behind_a_bad_one_is_read() {
    let mut lines = Newline::new(8);
    lines.push(b"0123456789");
    assert!(matches!(lines.next_frame(), Some(Decoded::Bad(..))));
    lines.push(b"\n{}\n");
    assert_eq!(lines.next_frame(), Some(Decoded::Frame("{}".into())));
}

#[tokio::test]
async fn a_frame_larger_than_the_pipe_arrives_whole() {
    let (ours, theirs) = tokio::io::duplex(16);
    let router = Router::new().method("echo", |_: CallContext, params: Value| async move { Ok(params) });
    let link = |io| ByteStream::whole(io).framing(Framing::ContentLength).into_link();
    let _server = Peer::builder(ACP).serve(router).attach(link(ours)).unwrap();
    let client = Peer::builder(ACP).attach(link(theirs)).unwrap();
    let much = json!({"text": "x".repeat(10_000)});
    let call = client.call::<_, Value>("echo", &much).start().unwrap();
    assert_eq!(within(HANG, "I13: the answer", call).await.unwrap(), much);
}
