//! Tests that each catch a planted bug of the driver or of a transport.

use std::time::Duration;

use futures_util::SinkExt;
use rescind::dialect::{ACP, MCP};
use rescind::transport::{Decoded, Link, Listener, Newline};
use rescind::websocket::{LinkOptions, UpgradeOptions, WebSocketListener};
use rescind::{
    ByteStream, CallContext, CauseKind, Framing, Limits, Outcome, Peer, Router, Server, memory_pair,
};
use rescind_core::dialect::Role;
use rescind_core::{CallSpec, InboundRequest, Origin, Output, RequestId, Session, SessionConfig};
use rescind_testkit::runner::Settings;
use rescind_testkit::support::within;
use rescind_testkit::wires::{Program, play_on};
use rescind_testkit::{CellOutcome, scenarios_of};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

use crate::hang;

// The guarantees of the driver, the framing and a byte stream that a planted bug violates.

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
    let outcome = within(hang(), "I13: the caller", outcome).await.unwrap();
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
    assert_eq!(within(hang(), "L1: the signal", events.recv()).await, Some(CauseKind::Peer));
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
    let saw = within(hang(), "the handler", events.recv()).await.unwrap();
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
    assert_eq!(within(hang(), "the notes", events.recv()).await, Some("written"));
    say(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})).await;
    assert_eq!(within(hang(), "the signal", events.recv()).await, Some("signalled"));
    say(json!({"jsonrpc": "2.0", "id": 2, "method": "echo", "params": {"done": true}})).await;
    let mut lines = BufReader::new(read).lines();
    let mut notes = 0;
    while let Some(line) = within(hang(), "the answer", lines.next_line()).await.unwrap() {
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
    assert_eq!(within(hang(), "I13: the answer", call).await.unwrap(), much);
}

// The guarantees of the WebSocket transport for peers that do nothing.

/// An agent that reports why its handler of `wait` ended, and a client that reads only on request.
async fn served(
    options: LinkOptions,
) -> (
    mpsc::UnboundedReceiver<CauseKind>,
    tokio_tungstenite::WebSocketStream<tokio::net::TcpStream>,
    tokio::task::JoinHandle<()>,
) {
    let options = UpgradeOptions::new().link(options);
    let listener = WebSocketListener::builder().options(options).bind("127.0.0.1:0").await.unwrap();
    let (url, address) = (listener.endpoint().0, listener.address());
    let (events_tx, events) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("much", async |_: CallContext, _: Value| Ok("x".repeat(64 * 1024)))
        .method("wait", move |ctx: CallContext, _: Value| {
            let events_tx = events_tx.clone();
            async move {
                let cause = ctx.cancelled().await;
                events_tx.send(cause.kind()).unwrap();
                ctx.stopped::<Value>(cause)
            }
        });
    let serving = tokio::spawn(async move {
        let _ = Server::builder([ACP]).serve(router).listen(listener).run().await;
    });
    // A small buffer at the reader: few answers fill it.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    let socket = socket.connect(address).await.unwrap();
    let (client, _) = tokio_tungstenite::client_async(&url, socket).await.unwrap();
    (events, client, serving)
}

fn ask(id: i64, method: &str) -> Message {
    Message::text(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {}}).to_string())
}

#[tokio::test]
async fn a_peer_that_answers_no_ping_is_lost() {
    let options = LinkOptions::new().ping_every(Duration::from_millis(50));
    let (mut events, mut client, serving) = served(options).await;
    client.send(ask(1, "wait")).await.unwrap();
    // A client answers pings while it reads, and this one never does.
    let cause = within(hang(), "L3: the loss", events.recv()).await;
    assert_eq!(cause, Some(CauseKind::Disconnected));
    serving.abort();
}

#[tokio::test]
async fn a_cancel_reaches_the_handler_while_answers_wait() {
    let (mut events, mut client, serving) = served(LinkOptions::new()).await;
    client.send(ask(0, "wait")).await.unwrap();
    // More than the sender's buffer takes, which grows to a few MiB.
    for id in 1..=96 {
        client.feed(ask(id, "much")).await.unwrap();
    }
    client.flush().await.unwrap();
    let cancel = json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 0}});
    client.send(Message::text(cancel.to_string())).await.unwrap();
    assert_eq!(within(hang(), "L2: the handler's end", events.recv()).await, Some(CauseKind::Peer));
    serving.abort();
}

// Vectors on wires, as in the matrix: those that catch a planted bug.

async fn holds(wire: &str, dialect: &str, vector: &str, quick_handlers: Option<bool>) {
    let scenario = scenarios_of(dialect).find(|scenario| scenario.vector.name == vector);
    let mut scenario = scenario.expect("the vector is there").clone();
    scenario.vector.options.quick_handlers = quick_handlers;
    let mut settings = Settings::default();
    settings.deadline = hang();
    let program = Program::this().expect("the system tells");
    let cell = play_on(wire, &scenario, &settings, &program).await.expect("the wire is there");
    let covers = scenario.vector.covers.join(", ");
    assert!(cell.outcome == CellOutcome::Held, "{covers}: {:?}: {}", cell.outcome, cell.why);
}

macro_rules! cells {
    ($($name:ident: $wire:literal, $dialect:literal, $vector:literal, $quick:expr;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                holds($wire, $dialect, $vector, $quick).await;
            }
        )*
    };
}

cells! {
    memory_acp_call_completes: "memory", "acp", "call_completes", None;
    http_stateless_mcp_2026_cancel_running: "http-stateless", "mcp-2026", "cancel_running", None;
    http_streamable_acp_early_cancel_waits: "http-streamable", "acp", "early_cancel_waits", None;
    quick_memory_lsp_deaf_handler_grace: "memory", "lsp", "deaf_handler_grace", Some(true);
}
