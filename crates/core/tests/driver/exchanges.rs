//! The driver's calls for exchanges: where each frame goes, and how each exchange of the peer ends.
//!
//! Frames on the exchange of a call, and their receivers.
//!
//! The rules of the core's transports that the conformance tests do not check: their exact limits in bytes, their
//! names, and the tasks that are woken when an end is dropped.

use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use rescind_core::dialect::{ABP, ACP, ACP_DRAFT, Dialect, MCP};
use rescind_core::{
    BadFrame, ByteStream, CallNumber, CancelResult, Capabilities, CloseReason, ConnectionError, ExchangeId,
    FrameInfo, FrameKind, FrameStream, Framing, Inbound, Lane, Limits, Link, Listener, MemoryTransport,
    Outbound, Outcome, Peer, PeerInfo, Receiver, Router, Sender, Transport, TransportError,
    TransportErrorKind, TransportEvent, memory_listener, memory_pair,
};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use crate::driver::wire::{TRAITS, cancel, client, open, request, wire};

#[tokio::test(start_paused = true)]
async fn each_exchange_of_the_peer_is_begun_with_its_handler_and_ended_once() {
    let mut limits = Limits::default();
    limits.max_running_handlers = 1;
    let (_peer, wire) = open(MCP, TRAITS, limits);
    wire.says(3, &request(1, "step", &json!({})));
    let answered = ["begin 3", "Data Notification stepped on 3", "Data Answer 1 on 3, last"];
    assert_eq!(wire.recorded().await, answered);

    wire.says(4, &request(2, "wait", &json!({})));
    wire.says(5, &request(3, "step", &json!({})));
    // The second request waits for a permit, so its handler does not run yet.
    assert_eq!(wire.recorded().await, ["begin 4", "waiting 4", "Data Notification waits on 4"]);
    wire.says(6, &cancel(2));
    let silenced = ["finish 6 Accepted", "finish 4 Silent"];
    let next = ["begin 5", "Data Notification stepped on 5", "Data Answer 3 on 5, last"];
    assert_eq!(wire.recorded().await, [&silenced[..], &next].concat(), "I2");

    for owed_nothing in [
        json!({"jsonrpc": "2.0", "method": "news"}),
        json!({"jsonrpc": "2.0", "id": 99, "result": {}}),
        json!({"jsonrpc": "2.0", "error": {"code": 1, "message": "m"}}),
        cancel(99),
    ] {
        wire.says(7, &owed_nothing);
        assert_eq!(wire.recorded().await, ["finish 7 Accepted"], "{owed_nothing}");
        // Without an exchange there is nothing to end.
        wire.says(0, &owed_nothing);
        assert_eq!(wire.recorded().await, [""; 0], "{owed_nothing}");
    }
    wire.says(0, &request(4, "step", &json!({})));
    assert_eq!(wire.recorded().await, ["Data Notification stepped on none", "Data Answer 4 on none"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_on_an_exchange_of_ours_does_not_end_the_exchange() {
    let (_peer, wire) = open(MCP, TRAITS, Limits::default());
    let ours = ExchangeId::of_call(CallNumber(1)).0;
    wire.says(ours, &request(5, "step", &json!({})));
    wire.says(ours, &"{");
    let expected = ["Control Answer on none", "Data Notification stepped on none", "Data Answer 5 on none"];
    assert_eq!(wire.recorded().await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_transport_gets_the_subject_of_a_refusal_before_the_refusal() {
    let mut limits = Limits::default();
    (limits.max_running_handlers, limits.max_queued_requests, limits.max_frame_bytes) = (1, 0, 4096);
    let dialect = Dialect::builder("strict").handshake("initialize").session_required().build();
    let (_peer, wire) = open(dialect, TRAITS, limits);
    let no_params = json!({});
    for (exchange, frame, expected) in [
        (1, "{".to_owned(), &["fault 1 BadMessage", "Control Answer on 1, last"][..]),
        (
            2,
            request(1, "step", &no_params).to_string(),
            &["fault 2 NotInitialized", "Control Answer 1 on 2, last"],
        ),
        (3, request(2, "initialize", &no_params).to_string(), &["begin 3", "Data Answer 2 on 3, last"]),
        (
            4,
            request(3, "unknown", &no_params).to_string(),
            &["fault 4 MethodNotFound", "Data Answer 3 on 4, last"],
        ),
        (
            5,
            request(4, "big", &json!([5000])).to_string(),
            &["begin 5", "fault 5 Internal", "Data Answer 4 on 5, last"],
        ),
        (
            6,
            request(5, "wait", &no_params).to_string(),
            &["begin 6", "waiting 6", "Data Notification waits on 6"],
        ),
        (
            7,
            request(5, "wait", &no_params).to_string(),
            &["fault 7 DuplicateId", "Control Answer on 7, last"],
        ),
        (
            8,
            request(6, "step", &no_params).to_string(),
            &["fault 8 Overloaded", "Control Answer 6 on 8, last"],
        ),
        (0, request(7, "step", &no_params).to_string(), &["Control Answer 7 on none"]),
    ] {
        wire.says(exchange, &frame);
        assert_eq!(wire.recorded().await, expected, "{frame}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_the_wire_refuses_ends_its_exchange_and_harms_no_other() {
    let refused = Some((FrameKind::Answer, Some(ExchangeId(3))));
    let (_peer, wire) = open(MCP, TRAITS, Limits::default());
    wire.state().refuses = refused;
    wire.says(3, &request(1, "big", &json!([1])));
    assert_eq!(
        wire.recorded().await,
        ["begin 3", "refused Data Answer 1 on 3, last", "finish 3 Refused"],
        "the exchange of a value"
    );
    wire.says(4, &"{");
    assert_eq!(
        wire.recorded().await,
        ["fault 4 BadMessage", "refused Control Answer on 4, last", "finish 4 Refused"],
        "the exchange of a refusal"
    );
    wire.state().refuses = None;
    wire.says(5, &request(2, "big", &json!([1])));
    assert_eq!(wire.recorded().await, ["begin 5", "Data Answer 2 on 5, last"]);

    let (_peer, wire) = open(ABP, TRAITS, Limits::default());
    let cancel = json!({"type": "capabilities/cancel", "id": "c1", "payload": {"callId": "k"}});
    wire.says(6, &cancel);
    assert_eq!(wire.recorded().await, [r#"Control Answer "c1" on 6, last"#]);
    wire.state().refuses = refused;
    wire.says(7, &cancel);
    assert_eq!(
        wire.recorded().await,
        [r#"refused Control Answer "c1" on 7, last"#, "finish 7 Accepted"],
        "the exchange of an acknowledgement: the cancel was taken in"
    );
    // ABP has no message for this, and the driver reports no fault for a frame that it does not write.
    wire.says(8, &"{");
    assert_eq!(wire.recorded().await, ["finish 8 Refused"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_the_wire_refuses_never_ran_and_a_wire_that_breaks_ends_the_connection() {
    let (peer, wire) = open(MCP, TRAITS, Limits::default());
    wire.state().refuses = Some((FrameKind::Request, Some(ExchangeId::of_call(CallNumber(1)))));
    let call = peer.call::<_, Value>("work", &json!({})).start().unwrap();
    let outcome = call.outcome().await;
    assert!(matches!(outcome, Outcome::Disconnected { may_have_run: false }), "{outcome:?}");
    wire.state().refuses = Some((FrameKind::Notification, Some(ExchangeId::NONE)));
    peer.try_notify("news", &json!({})).unwrap();
    let refused = ["refused Data Request 1 work on ours 1", "refused Data Notification news on none"];
    assert_eq!(wire.recorded().await, refused);
    assert!(!peer.is_closed(), "a frame was refused, not the connection");

    wire.state().refuses = Some((FrameKind::Notification, None));
    peer.try_notify("news", &json!({})).unwrap();
    let closed = tokio::time::timeout(Duration::from_secs(1), peer.closed()).await;
    assert!(matches!(closed, Ok(Err(ConnectionError::Transport(_)))), "{closed:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_may_be_just_as_long_as_a_frame() {
    let envelope = r#"{"jsonrpc":"2.0","id":1,"result":""}"#.len();
    let mut limits = Limits::default();
    limits.max_frame_bytes = envelope + 100;
    let (_peer, wire) = open(MCP, TRAITS, limits);
    wire.says(3, &request(1, "big", &json!([100])));
    assert_eq!(wire.recorded().await, ["begin 3", "Data Answer 1 on 3, last"]);
    assert_eq!(wire.state().frame.len(), envelope + 100);
    wire.says(4, &request(2, "big", &json!([101])));
    assert_eq!(wire.recorded().await, ["begin 4", "fault 4 Internal", "Data Answer 2 on 4, last"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_is_cancelled_by_a_message_or_by_closing_its_exchange_if_ids_are_scoped_to_it() {
    let message = ["Control Cancel 1 on ours 2"];
    for (opens_exchanges, exchange_scoped, cannot_abort, sent, cancelled) in [
        (true, false, false, "Data Request 1 work on ours 1", &message[..]),
        (true, true, false, "Data Request 1 work on ours 1", &["abort ours 1"]),
        (true, true, true, "Data Request 1 work on ours 1", &["abort ours 1", message[0]]),
        (false, true, false, "Data Request 1 work on none", &["Control Cancel 1 on none"]),
        (false, false, false, "Data Request 1 work on none", &["Control Cancel 1 on none"]),
    ] {
        let traits = Capabilities { opens_exchanges, exchange_scoped, ..TRAITS };
        let (peer, wire) = open(ACP, traits, Limits::default());
        wire.state().cannot_abort = cannot_abort;
        let call = peer.call::<_, Value>("work", &json!({})).start().unwrap();
        assert_eq!(wire.recorded().await, [sent], "{traits:?}");
        assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
        assert_eq!(wire.recorded().await, cancelled, "I12: {traits:?}");
        // After its exchange is aborted, no answer can arrive. Otherwise the driver waits for the peer.
        let given_up = cancelled == ["abort ours 1"];
        let ended = tokio::time::timeout(Duration::from_secs(1), call.outcome()).await;
        assert_eq!(ended.is_ok(), given_up, "{traits:?}: {ended:?}");
    }
}

/// A connection is shut down in the moment in which it reads its first frame, as by another thread.
struct ShutWhileItReads {
    rx: Pin<Box<dyn Receiver>>,
    peer: Arc<OnceLock<Peer>>,
}

impl Receiver for ShutWhileItReads {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        let read = self.rx.as_mut().poll_event(cx);
        if let (Poll::Ready(_), Some(peer)) = (&read, self.peer.get()) {
            let mut shutdown = pin!(peer.shutdown(Duration::ZERO));
            assert!(shutdown.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        read
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_comes_while_its_connection_closes_is_refused_as_not_begun() {
    let (mut link, wire) = wire(TRAITS);
    let peer = Arc::new(OnceLock::new());
    link.rx = Box::pin(ShutWhileItReads { rx: link.rx, peer: Arc::clone(&peer) });
    let router = Router::new().method("work", |_ctx, _: Value| async { Ok(json!({})) });
    assert!(peer.set(Peer::builder(MCP).serve(router).attach(link).unwrap()).is_ok());
    wire.says(3, &request(1, "work", &json!({})));
    assert_eq!(wire.recorded().await, ["fault 3 Closing", "Control Answer 1 on 3, last", "close"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_comes_during_a_drain_is_refused_as_cancelled() {
    let (peer, wire) = open(MCP, TRAITS, Limits::default());
    wire.says(3, &request(1, "wait", &json!({})));
    wire.recorded().await;
    let shutdown = tokio::spawn(async move { peer.shutdown(Duration::from_secs(60)).await });
    wire.recorded().await;
    wire.says(4, &request(2, "step", &json!({})));
    assert_eq!(wire.recorded().await, ["Control Answer 2 on 4, last"], "its session goes on");
    wire.says(5, &cancel(1));
    assert_eq!(wire.recorded().await, ["finish 5 Accepted", "finish 3 Silent", "close"]);
    assert_eq!(shutdown.await.unwrap(), 0);
}

/// The declaration about cancels in an answer.
fn declared_in(answer: &[u8]) -> Option<bool> {
    let answer: Value = serde_json::from_slice(answer).unwrap();
    answer.pointer("/result/agentCapabilities/cancellation/request").and_then(Value::as_bool)
}

#[tokio::test(start_paused = true)]
async fn a_cancel_goes_to_a_peer_that_declared_it_in_its_half_of_the_handshake() {
    for (declared, result, reported) in [
        (true, CancelResult::Sent, &["Control Cancel 1 on ours 2"][..]),
        (false, CancelResult::NotSupported, &[]),
    ] {
        let (peer, wire) = open(ACP_DRAFT, TRAITS, Limits::default());
        let capabilities = json!({"cancellation": {"request": declared}});
        let params = json!({"protocolVersion": 1, "clientCapabilities": capabilities});
        wire.says(2, &request(9, "big", &json!([1])));
        assert_eq!(wire.recorded().await, ["begin 2", "Data Answer 9 on 2, last"]);
        assert_eq!(declared_in(&wire.state().frame), None);
        wire.says(3, &request(0, "initialize", &params));
        assert_eq!(wire.recorded().await, ["begin 3", "Data Answer 0 on 3, last"]);
        assert_eq!(declared_in(&wire.state().frame), Some(true), "our own half");
        let call = peer.call::<_, Value>("work", &json!({})).start().unwrap();
        assert_eq!(wire.recorded().await, ["Data Request 1 work on ours 1"]);
        assert_eq!(call.canceller().cancel(""), result, "{params}");
        assert_eq!(wire.recorded().await, reported, "{params}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_handshake_answer_decides_whether_a_client_sends_cancels() {
    let capabilities = |declared: bool| json!({"agentCapabilities": {"cancellation": {"request": declared}}});
    for (method, declared, result) in [
        ("initialize", true, CancelResult::Sent),
        ("initialize", false, CancelResult::NotSupported),
        ("work", true, CancelResult::NotSupported),
    ] {
        let (peer, wire) = client(ACP_DRAFT, TRAITS);
        let opening = peer.call::<_, Value>(method, &json!({"protocolVersion": 1})).start().unwrap();
        assert_eq!(wire.recorded().await.len(), 1);
        let answer = json!({"jsonrpc": "2.0", "id": 1, "result": capabilities(declared)});
        wire.says(ExchangeId::of_call(CallNumber(1)).0, &answer);
        assert!(opening.await.is_ok());
        let call = peer.call::<_, Value>("work", &json!({})).start().unwrap();
        wire.recorded().await;
        assert_eq!(call.canceller().cancel(""), result, "the answer to {method} declared {declared}");
    }
}

// Frames on the exchange of a call, and their receivers.

struct Comes(mpsc::UnboundedReceiver<Inbound>);

impl Receiver for Comes {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        self.0.poll_recv(cx).map(|inbound| inbound.map(|inbound| Ok(TransportEvent::Message(inbound))))
    }
}

struct Goes(mpsc::UnboundedSender<Outbound>);

impl Sender for Goes {
    fn poll_ready(self: Pin<&mut Self>, _: Lane, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        let _ = self.0.send(out);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(
        self: Pin<&mut Self>,
        _: &CloseReason,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        Poll::Ready(Ok(()))
    }
}

fn on(exchange: ExchangeId, body: &Value) -> Inbound {
    Inbound { body: Bytes::from(body.to_string()), exchange, principal: None, address: None, trace: None }
}

#[tokio::test]
async fn a_call_without_progress_gets_only_matching_notifications_of_its_exchange() {
    let (says, comes) = mpsc::unbounded_channel();
    let (goes, mut written) = mpsc::unbounded_channel();
    let link = Link::new(Comes(comes), Goes(goes), TRAITS, PeerInfo::default());
    let (tell, mut heard) = mpsc::unbounded_channel();
    let router = Router::new().notification("other", move |_ctx, _: Value| {
        let _ = tell.send("other");
        async {}
    });
    let peer = Peer::builder(MCP).serve(router).attach(link).unwrap();
    let matched = peer.call::<_, Value>("work", &json!({}));
    let matched =
        matched.notifications_where(|notification| notification.method() == "mine").start().unwrap();
    let mut reported = matched.notifications();
    let exchange = written.recv().await.unwrap().exchange;
    // Another call that requests progress does not affect this one.
    let _with_progress = peer.call::<_, Value>("work", &json!({})).progress().start().unwrap();
    for method in ["other", "mine"] {
        says.send(on(exchange, &json!({"jsonrpc": "2.0", "method": method, "params": {}}))).unwrap();
    }
    says.send(on(exchange, &json!({"jsonrpc": "2.0", "id": 1, "result": {}}))).unwrap();
    matched.await.unwrap();
    let mut methods = Vec::new();
    while let Some(notification) = reported.next().await {
        methods.push(notification.method().to_owned());
    }
    assert_eq!(methods, ["mine"], "a notification its matcher does not want");
    assert_eq!(heard.recv().await, Some("other"));
}

// The rules of the core's transports that the conformance tests do not check: their exact limits in bytes, their
// names, and the tasks that are woken when an end is dropped.

/// The default limit of every transport of the core.
const MIB_16: usize = 16 << 20;
/// The limit of a transport with this setting.
const LIMIT: usize = 1000;

fn note(bytes: usize) -> Outbound {
    Outbound {
        body: vec![b' '; bytes].into(),
        exchange: ExchangeId(7),
        lane: Lane::Data,
        head: FrameInfo { kind: FrameKind::Notification, id: None, method: None, trace: None },
        last: false,
    }
}

async fn ready(link: &mut Link) -> Result<(), TransportError> {
    poll_fn(|cx| link.tx.as_mut().poll_ready(Lane::Data, cx)).await
}

async fn flush(link: &mut Link) -> Result<(), TransportError> {
    poll_fn(|cx| link.tx.as_mut().poll_flush(cx)).await
}

async fn event(link: &mut Link) -> Option<TransportEvent> {
    poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await.map(Result::unwrap)
}

/// Counts how often it is woken.
#[derive(Debug, Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Woken {
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

/// These frames, and then the end.
struct Given(Vec<Bytes>);

impl Stream for Given {
    type Item = Result<Bytes, io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = if self.0.is_empty() { None } else { Some(Ok(self.0.remove(0))) };
        Poll::Ready(next)
    }
}

/// Accepts everything, and counts the frames and the flushes.
#[derive(Clone, Default)]
struct Taken {
    frames: Arc<AtomicUsize>,
    flushes: Arc<AtomicUsize>,
}

impl Sink<Bytes> for Taken {
    type Error = io::Error;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, _: Bytes) -> io::Result<()> {
        self.frames.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn given(frames: &[usize]) -> FrameStream<Given, Taken> {
    let frames = frames.iter().map(|bytes| vec![b' '; *bytes].into()).collect();
    FrameStream::new(Given(frames), Taken::default())
}

fn duplex() -> (ByteStream<impl tokio::io::AsyncRead, impl tokio::io::AsyncWrite>, tokio::io::DuplexStream) {
    let (ours, theirs) = tokio::io::duplex(4096);
    (ByteStream::whole(ours).framing(Framing::Newline), theirs)
}

#[tokio::test]
async fn transports_have_the_documented_names_and_limits() {
    let (listener, transport) = memory_listener();
    let names: [(&dyn Transport, &str); 5] = [
        (&duplex().0, "byte stream"),
        (&duplex().0.name("mine"), "mine"),
        (&given(&[]), "frame stream"),
        (&given(&[]).name("mine"), "mine"),
        (&transport, "memory"),
    ];
    for (transport, name) in names {
        assert_eq!(transport.name(), name);
    }
    assert_eq!(listener.endpoint().to_string(), "memory");
    for link in [duplex().0.into_link(), given(&[]).into_link(), memory_pair().0] {
        assert_eq!(link.traits.max_frame, MIB_16);
    }
}

#[tokio::test]
async fn a_frame_as_large_as_the_limit_is_taken_and_one_byte_more_is_not() {
    let (client, _server) = memory_pair();
    let (stream, _peer) = duplex();
    let links = [client, stream.max_frame(LIMIT).into_link(), given(&[]).max_frame(LIMIT).into_link()];
    for mut link in links {
        let limit = link.traits.max_frame;
        ready(&mut link).await.unwrap();
        let refused = link.tx.as_mut().start_send(note(limit + 1)).unwrap_err();
        assert_eq!((refused.kind, refused.exchange), (TransportErrorKind::TooLarge, Some(ExchangeId(7))));
        link.tx.as_mut().start_send(note(limit)).unwrap();
    }
}

#[tokio::test]
async fn a_received_frame_of_the_limit_is_accepted_and_only_a_larger_one_is_refused() {
    let mut link = given(&[LIMIT, LIMIT + 1, 1]).max_frame(LIMIT).into_link();
    let Some(TransportEvent::Message(whole)) = event(&mut link).await else { panic!("none came") };
    assert_eq!(whole.body.len(), LIMIT);
    let Some(TransportEvent::Rejected { why, .. }) = event(&mut link).await else { panic!("it was taken") };
    assert_eq!(why, BadFrame::TooLarge { limit: LIMIT });
    let Some(TransportEvent::Message(next)) = event(&mut link).await else { panic!("none came") };
    assert_eq!(next.body.len(), 1);
}

#[tokio::test]
async fn a_sink_that_takes_everything_is_flushed_before_it_holds_64_kib() {
    let taken = Taken::default();
    let mut link = FrameStream::new(Given(Vec::new()), taken.clone()).into_link();
    for sent in 1..=100 {
        ready(&mut link).await.unwrap();
        link.tx.as_mut().start_send(note(1024)).unwrap();
        assert_eq!(taken.frames.load(Ordering::Relaxed), sent);
        // Data is sent until more than 32 KiB are held.
        assert_eq!(taken.flushes.load(Ordering::Relaxed), (sent - 1) / 33, "after {sent} KiB");
    }
}

#[tokio::test]
async fn a_receiver_behind_the_end_of_input_is_woken_when_its_sender_is_dropped() {
    let (stream, mut peer) = duplex();
    peer.shutdown().await.unwrap();
    let (client, mut server) = memory_pair();
    poll_fn(|cx| server.tx.as_mut().poll_close(&CloseReason::Normal, cx)).await.unwrap();
    for mut link in [stream.into_link(), given(&[]).into_link(), client] {
        assert!(matches!(event(&mut link).await, Some(TransportEvent::HalfClosed)));
        let woken = Arc::<Woken>::default();
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let Link { mut rx, tx, .. } = link;
        assert!(rx.as_mut().poll_event(&mut cx).is_pending());
        assert_eq!(woken.take(), 0);
        drop(tx);
        assert_eq!(woken.take(), 1);
        assert!(matches!(rx.as_mut().poll_event(&mut cx), Poll::Ready(None)));
    }
}

#[tokio::test]
async fn a_send_to_a_dropped_in_process_peer_fails() {
    let (mut client, server) = memory_pair();
    flush(&mut client).await.unwrap();
    drop(server);
    assert_eq!(ready(&mut client).await.unwrap_err().kind, TransportErrorKind::Closed);
    assert_eq!(flush(&mut client).await.unwrap_err().kind, TransportErrorKind::Closed);
}

#[tokio::test]
async fn a_transport_without_exchanges_cannot_abort_one() {
    for mut link in [duplex().0.into_link(), given(&[]).into_link(), memory_pair().0] {
        assert!(link.tx.as_mut().abort_exchange(ExchangeId(7)).is_err());
    }
}

#[tokio::test]
async fn a_listener_ends_when_its_last_connector_is_dropped() {
    let (listener, transport) = memory_listener();
    let mut listener = std::pin::pin!(listener);
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let another = transport.clone();
    assert!(listener.as_mut().poll_accept(&mut cx).is_pending());
    drop(transport);
    assert!(listener.as_mut().poll_accept(&mut cx).is_pending());
    assert_eq!(woken.take(), 0);
    let _client = open_link(another).await.unwrap();
    assert_eq!(woken.take(), 1);
    assert!(matches!(listener.as_mut().poll_accept(&mut cx), Poll::Ready(Some(Ok(_)))));
    assert!(matches!(listener.as_mut().poll_accept(&mut cx), Poll::Ready(None)));
}

#[tokio::test]
async fn nothing_connects_to_a_listener_that_is_gone_or_full() {
    let (listener, transport) = memory_listener();
    let mut waiting = Vec::new();
    for _ in 0..1024 {
        waiting.push(open_link(transport.clone()).await.unwrap());
    }
    assert_eq!(open_link(transport.clone()).await.unwrap_err().kind, TransportErrorKind::Open);
    drop(listener);
    // The links that were not accepted have lost their peer.
    for mut lost in waiting {
        assert!(event(&mut lost).await.is_none());
    }
    assert_eq!(open_link(transport).await.unwrap_err().kind, TransportErrorKind::Open);
}

async fn open_link(transport: MemoryTransport) -> Result<Link, TransportError> {
    Box::new(transport).open().await
}
