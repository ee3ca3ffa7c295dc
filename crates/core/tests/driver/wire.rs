//! The driver's calls of its transport.
//!
//! The driver's calls if the transport has no room, and the order of frames.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use rescind_core::dialect::{ABP, ACP, Dialect, LSP, MCP};
use rescind_core::{
    ApiMisuse, BadFrame, CallContext, CallError, Capabilities, Cause, CauseKind, CloseReason,
    ConnectionError, Endpoint, ExchangeEnd, ExchangeId, FrameKind, HandlerError, Inbound, Lane, Limits, Link,
    Listener, Outbound, Peer, PeerInfo, ProtocolViolation, Receiver, RejectReason, Router, Sender, Server,
    ServerLimits, TransportError, TransportErrorKind, TransportEvent, Unsupported,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Exchanges as in HTTP, in one session.
pub(crate) const TRAITS: Capabilities = Capabilities {
    ordered: false,
    opens_exchanges: true,
    exchange_scoped: false,
    batches: false,
    max_frame: 1 << 20,
};

struct Comes(mpsc::UnboundedReceiver<Result<TransportEvent, TransportError>>);

impl Receiver for Comes {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        self.0.poll_recv(cx)
    }
}

/// The recorded calls, and the settings of the transport.
#[derive(Default)]
pub(crate) struct State {
    reported: Vec<String>,
    /// The lane without room.
    pub(crate) full: Option<Lane>,
    /// The most frames that it holds before a flush.
    pub(crate) holds: Option<usize>,
    held: usize,
    waker: Option<Waker>,
    /// Whether it does not flush.
    pub(crate) keeps: bool,
    /// Whether it does not close.
    pub(crate) stays_open: bool,
    /// How often it had no room.
    pub(crate) asked_in_vain: usize,
    /// The kind of frame that it refuses, and the exchange in its error.
    pub(crate) refuses: Option<(FrameKind, Option<ExchangeId>)>,
    /// Whether it cannot abort an exchange.
    pub(crate) cannot_abort: bool,
    /// The last frame that it accepted.
    pub(crate) frame: Bytes,
}

struct Goes(Arc<Mutex<State>>);

impl Goes {
    fn note(&self, line: String) {
        self.0.lock().unwrap().reported.push(line);
    }
}

fn named(exchange: ExchangeId) -> String {
    match exchange.call() {
        Some(number) => format!("ours {}", number.0),
        None if exchange == ExchangeId::NONE => "none".to_owned(),
        None => exchange.0.to_string(),
    }
}

fn shown(out: &Outbound) -> String {
    let mut words = vec![format!("{:?} {:?}", out.lane, out.head.kind)];
    words.extend(out.head.id.as_ref().map(ToString::to_string));
    words.extend(out.head.method.as_ref().map(ToString::to_string));
    words.push(format!("on {}{}", named(out.exchange), if out.last { ", last" } else { "" }));
    words.join(" ")
}

impl Sender for Goes {
    fn poll_ready(
        self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let mut state = self.0.lock().unwrap();
        if state.full == Some(lane) || state.holds.is_some_and(|holds| state.held >= holds) {
            state.waker = Some(cx.waker().clone());
            state.asked_in_vain += 1;
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        let mut state = self.0.lock().unwrap();
        let line = shown(&out);
        if let Some((_, exchange)) = state.refuses.filter(|(kind, _)| *kind == out.head.kind) {
            state.reported.push(format!("refused {line}"));
            return Err(TransportError {
                exchange,
                ..TransportError::new(TransportErrorKind::Closed, "as asked")
            });
        }
        state.reported.push(line);
        state.held += 1;
        state.frame = out.body;
        Ok(())
    }

    /// The caller of a flush knows that there is room again, so no task is woken.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        let mut state = self.0.lock().unwrap();
        if state.keeps {
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.held = 0;
        Poll::Ready(Ok(()))
    }

    fn begin_exchange(self: Pin<&mut Self>, exchange: ExchangeId) {
        self.note(format!("begin {}", named(exchange)));
    }

    fn note_waiting(self: Pin<&mut Self>, exchange: ExchangeId) {
        self.note(format!("waiting {}", named(exchange)));
    }

    fn note_rejection(self: Pin<&mut Self>, exchange: ExchangeId, fault: RejectReason) {
        self.note(format!("fault {} {fault:?}", named(exchange)));
    }

    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
        self.note(format!("finish {} {how:?}", named(exchange)));
    }

    fn abort_exchange(self: Pin<&mut Self>, exchange: ExchangeId) -> Result<(), Unsupported> {
        self.note(format!("abort {}", named(exchange)));
        if self.0.lock().unwrap().cannot_abort { Err(Unsupported) } else { Ok(()) }
    }

    fn poll_close(
        self: Pin<&mut Self>,
        _: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.note("close".to_owned());
        let mut state = self.0.lock().unwrap();
        if state.stays_open {
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

/// The far end of a connection.
pub(crate) struct Wire {
    says: mpsc::UnboundedSender<Result<TransportEvent, TransportError>>,
    state: Arc<Mutex<State>>,
}

impl Wire {
    /// Delivers a frame on an exchange of the peer; 0: on none.
    pub(crate) fn says(&self, exchange: u64, frame: &impl ToString) {
        let body = Bytes::from(frame.to_string());
        let inbound =
            Inbound { body, exchange: ExchangeId(exchange), principal: None, address: None, trace: None };
        self.tells(TransportEvent::Message(inbound));
    }

    /// Delivers another event.
    pub(crate) fn tells(&self, event: TransportEvent) {
        self.says.send(Ok(event)).unwrap();
    }

    /// Delivers an error.
    pub(crate) fn fails(&self, error: TransportError) {
        self.says.send(Err(error)).unwrap();
    }

    /// The calls since the last query, after the driver has become idle.
    pub(crate) async fn recorded(&self) -> Vec<String> {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        std::mem::take(&mut self.state().reported)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Gives both lanes room again.
    pub(crate) fn make_room(&self) {
        self.state().full = None;
        self.wake();
    }

    /// Wakes the task that waits for the sending half.
    pub(crate) fn wake(&self) {
        let waker = self.state().waker.take();
        waker.unwrap().wake();
    }
}

/// A side that serves, over such a transport.
pub(crate) fn open(dialect: Dialect, traits: Capabilities, limits: Limits) -> (Peer, Wire) {
    serve(router(), dialect, traits, limits)
}

/// The same with the test's own methods.
pub(crate) fn serve(router: Router, dialect: Dialect, traits: Capabilities, limits: Limits) -> (Peer, Wire) {
    let (link, wire) = wire(traits);
    (Peer::builder(dialect).serve(router).limits(limits).attach(link).unwrap(), wire)
}

/// A side that serves nothing.
pub(crate) fn client(dialect: Dialect, traits: Capabilities) -> (Peer, Wire) {
    let (link, wire) = wire(traits);
    (Peer::builder(dialect).attach(link).unwrap(), wire)
}

/// A transport that no driver uses yet.
pub(crate) fn wire(traits: Capabilities) -> (Link, Wire) {
    let (says, comes) = mpsc::unbounded_channel();
    let state = Arc::new(Mutex::new(State::default()));
    let link = Link::new(Comes(comes), Goes(Arc::clone(&state)), traits, PeerInfo::default());
    (link, Wire { says, state })
}

fn router() -> Router {
    Router::new()
        .method("initialize", |_ctx, params: Value| async move {
            Ok(json!({"protocolVersion": params.get("protocolVersion")}))
        })
        .method("big", |_ctx, (size,): (usize,)| async move { Ok("x".repeat(size)) })
        .method("step", |ctx: CallContext, _: Value| async move {
            ctx.try_notify("stepped", &json!({}))?;
            Ok(json!({}))
        })
        .method("deaf", |_: CallContext, _: Value| std::future::pending::<Result<(), HandlerError>>())
        .method("wait", |ctx: CallContext, _: Value| async move {
            ctx.try_notify("waits", &json!({}))?;
            let cause = ctx.cancelled().await;
            ctx.stopped::<Value>(cause)
        })
}

pub(crate) fn request(id: u64, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// A cancel in MCP's form.
pub(crate) fn cancel(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})
}

const LONG: Duration = Duration::from_secs(60);

async fn end(peer: &Peer) -> Result<(), ConnectionError> {
    timeout(LONG, peer.closed()).await.expect("the connection does not end")
}

fn begin_shutdown(peer: &Peer) {
    let peer = peer.clone();
    tokio::spawn(async move { peer.shutdown(Duration::ZERO).await });
}

fn broken() -> TransportError {
    TransportError::new(TransportErrorKind::Io, "broken")
}

#[tokio::test(start_paused = true)]
async fn an_error_about_one_exchange_ends_no_connection_and_any_other_does() {
    let (peer, wire) = open(MCP, TRAITS, Limits::default());
    wire.fails(TransportError { exchange: Some(ExchangeId(3)), ..broken() });
    wire.says(4, &request(1, "step", &json!({})));
    assert_eq!(
        wire.recorded().await,
        ["begin 4", "Data Notification stepped on 4", "Data Answer 1 on 4, last"]
    );
    wire.fails(broken());
    let ended = end(&peer).await;
    assert!(matches!(ended, Err(ConnectionError::Transport(_))), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_transport_is_closed_once_everything_is_written_and_flushed() {
    for (full, keeps) in [(Some(Lane::Data), false), (None, true)] {
        let (peer, wire) = open(MCP, TRAITS, Limits::default());
        let begun = Instant::now();
        (wire.state().full, wire.state().keeps) = (full, keeps);
        peer.try_notify("news", &json!({})).unwrap();
        begin_shutdown(&peer);
        let mut reported = wire.recorded().await;
        assert!(!reported.contains(&"close".to_owned()), "full {full:?}, unflushed {keeps}: {reported:?}");
        wire.state().keeps = false;
        wire.make_room();
        reported.extend(wire.recorded().await);
        assert_eq!(reported, ["Data Notification news on none", "close"]);
        end(&peer).await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_does_not_flush_is_dropped_after_the_flush_timeout() {
    let (peer, wire) = open(MCP, TRAITS, Limits::default());
    let begun = Instant::now();
    wire.state().full = Some(Lane::Data);
    peer.try_notify("news", &json!({})).unwrap();
    begin_shutdown(&peer);
    end(&peer).await.unwrap();
    assert_eq!(begun.elapsed(), Limits::default().flush_timeout);
    assert_eq!(wire.recorded().await, [""; 0], "it is closed although a frame waits");
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_does_not_close_is_dropped_in_time_even_if_it_wakes_the_driver() {
    let (peer, wire) = open(MCP, TRAITS, Limits::default());
    let begun = Instant::now();
    wire.state().stays_open = true;
    begin_shutdown(&peer);
    assert_eq!(wire.recorded().await, ["close"]);
    let gone = Err(CallError::Disconnected { may_have_run: false });
    assert_eq!(peer.try_notify("news", &json!({})), gone, "the connection is being closed");
    while !peer.is_closed() {
        assert!(begun.elapsed() < LONG, "L2: the time to flush begins anew");
        sleep(Duration::from_millis(300)).await;
        wire.wake();
    }
    let took = begun.elapsed();
    assert!(took >= Limits::default().flush_timeout && took < Duration::from_millis(1500), "{took:?}");
    assert_eq!(peer.try_notify("news", &json!({})), gone);
}

#[tokio::test(start_paused = true)]
async fn a_deaf_handler_is_aborted_after_its_grace_although_the_wire_is_lost() {
    let (peer, wire) = open(ACP, TRAITS, Limits::default());
    wire.says(3, &request(1, "deaf", &json!({})));
    assert_eq!(wire.recorded().await, ["begin 3", "waiting 3"]);
    wire.fails(broken());
    assert!(end(&peer).await.is_err());
    assert_eq!((peer.stats().running, peer.stats().slots), (1, 1));
    sleep(Limits::default().cancel_grace * 2).await;
    assert_eq!((peer.stats().aborted, peer.stats().slots), (1, 0), "L3");
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_drops_its_router_with_the_last_handler() {
    let mut limits = Limits::default();
    limits.cancel_grace = Duration::from_secs(3600);
    let (release, held) = oneshot::channel::<()>();
    let held = Arc::new(tokio::sync::Mutex::new(held));
    let methods = Arc::downgrade(&held);
    let router = Router::new().method("hold", move |_: CallContext, _: Value| {
        let held = Arc::clone(&held);
        async move {
            let _ = (&mut *held.lock().await).await;
            Ok(())
        }
    });
    let (peer, wire) = serve(router, ACP, TRAITS, limits);
    wire.says(3, &request(1, "hold", &json!({})));
    assert_eq!(wire.recorded().await, ["begin 3", "waiting 3"]);
    wire.fails(broken());
    assert!(end(&peer).await.is_err());
    assert!(methods.upgrade().is_some(), "a handler runs");
    release.send(()).unwrap();
    wire.recorded().await;
    assert!(methods.upgrade().is_none(), "I3: the connection's task goes on with nothing to do");
}

struct Door(mpsc::UnboundedReceiver<Link>);

impl Listener for Door {
    fn poll_accept(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Link, TransportError>>> {
        self.0.poll_recv(cx).map(|link| link.map(Ok))
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint("a test".to_owned())
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_over_the_limit_is_closed_and_a_freed_permit_admits_the_next() {
    let (knock, door) = mpsc::unbounded_channel();
    let mut bounds = ServerLimits::default();
    bounds.max_connections = 1;
    let server = Server::builder([ACP])
        .serve(Router::new().method("echo", |_: CallContext, value: Value| async move { Ok(value) }))
        .server_limits(bounds)
        .listen(Door(door));
    let serving = tokio::spawn(server.run());
    let come = || {
        let (link, wire) = wire(TRAITS);
        assert!(knock.send(link).is_ok(), "the server has ended");
        wire.says(1, &request(1, "echo", &json!({})));
        wire
    };
    let first = come();
    assert_eq!(first.recorded().await, ["begin 1", "Data Answer 1 on 1, last"]);
    let second = come();
    assert_eq!(second.recorded().await, ["close"], "I11");
    first.tells(TransportEvent::HalfClosed);
    tokio::time::sleep(Duration::from_secs(60)).await;
    first.recorded().await;
    let third = come();
    assert_eq!(third.recorded().await, ["begin 1", "Data Answer 1 on 1, last"], "I3: the place is not free");
    serving.abort();
}

#[test]
fn a_server_run_outside_a_runtime_returns_an_error() {
    let (_knock, door) = mpsc::unbounded_channel();
    let server = Server::builder([ACP]).serve(Router::new()).listen(Door(door));
    let ended = pin!(server.run()).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(ended, Poll::Ready(Err(ConnectionError::Misuse(ApiMisuse::NoRuntime)))), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_of_a_connection_that_does_nothing_is_done_at_once() {
    let (peer, wire) = open(ACP, TRAITS, Limits::default());
    assert_eq!(wire.recorded().await, [""; 0]);
    let begun = Instant::now();
    timeout(LONG, peer.shutdown(LONG * 2)).await.expect("it is not done");
    assert_eq!(wire.recorded().await, ["close"]);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_new_earliest_timer_fires_in_time() {
    let (peer, wire) = open(ACP, TRAITS, Limits::default());
    let begun = Instant::now();
    let start = |wait| peer.call::<_, Value>("work", &json!({})).timeout(wait).start().unwrap();
    let _late = start(Duration::from_secs(50));
    let _soon = start(Duration::from_secs(1));
    // The driver sleeps until the first deadline.
    wire.recorded().await;
    let _sooner = start(Duration::from_millis(500));
    wire.recorded().await;
    for (millis, cancelled) in [(500, "3 on ours 4"), (1000, "2 on ours 5"), (50_000, "1 on ours 6")] {
        sleep_until(begun + Duration::from_millis(millis - 1)).await;
        assert_eq!(wire.recorded().await, [""; 0]);
        sleep_until(begun + Duration::from_millis(millis)).await;
        assert_eq!(wire.recorded().await, [format!("Control Cancel {cancelled}")], "L2");
    }
}

#[tokio::test(start_paused = true)]
async fn a_grace_that_begins_without_a_frame_ends_in_its_time() {
    ends_in_its_time(None).await;
}

#[tokio::test(start_paused = true)]
async fn a_grace_is_not_delayed_by_a_later_timer() {
    ends_in_its_time(Some(LONG)).await;
}

/// `later`: the timeout of a call of this side, which ends after the grace.
async fn ends_in_its_time(later: Option<Duration>) {
    let (tell, mut contexts) = mpsc::unbounded_channel();
    let router = Router::new().method("deaf", move |ctx: CallContext, _: Value| {
        tell.send(ctx).unwrap();
        std::future::pending::<Result<(), HandlerError>>()
    });
    let (peer, wire) = serve(router, ACP, TRAITS, Limits::default());
    wire.says(3, &request(1, "deaf", &json!({})));
    assert_eq!(wire.recorded().await, ["begin 3", "waiting 3"]);
    let context = contexts.recv().await.unwrap();
    let _late = later.map(|wait| peer.call::<_, Value>("work", &json!({})).timeout(wait).start().unwrap());
    // The driver sleeps until then.
    wire.recorded().await;
    assert!(context.cancel_local(Cause::new(CauseKind::Local)));
    assert_eq!(wire.recorded().await, [""; 0]);
    tokio::time::sleep(Limits::default().cancel_grace).await;
    assert_eq!(wire.recorded().await, ["Data Answer 1 on 3, last"], "L2");
    assert_eq!(peer.stats().aborted, 1);
}

#[tokio::test(start_paused = true)]
async fn a_cascade_goes_on_slice_by_slice_although_nothing_can_be_written() {
    const CHILDREN: u64 = 100;
    let mut limits = Limits::default();
    limits.max_cancels_per_step = 1;
    let router = Router::new().method("many", |ctx: CallContext, _: Value| async move {
        let call = || ctx.call::<_, Value>("work", &json!({})).start().unwrap();
        let _calls: Vec<_> = (0..CHILDREN).map(|_| call()).collect();
        std::future::pending::<Result<(), HandlerError>>().await
    });
    let (peer, wire) = serve(router, MCP, TRAITS, limits);
    wire.state().full = Some(Lane::Data);
    wire.says(3, &request(1, "many", &json!({})));
    assert_eq!(wire.recorded().await, ["begin 3", "waiting 3"]);
    assert_eq!(peer.stats().calls, CHILDREN);
    wire.says(4, &cancel(1));
    wire.recorded().await;
    assert_eq!(peer.stats().calls, 0, "I6: the cascade has stopped half way");
}

/// This many messages that no dialect recognises end the connection.
const ATTEMPTS: u64 = 16;

type Opened = JoinHandle<Result<Peer, ConnectionError>>;

fn negotiate() -> (Opened, Wire) {
    let (link, wire) = wire(TRAITS);
    let reported = Router::new()
        .method("initialize", |_, reported: Value| async move { Ok::<_, HandlerError>(reported) });
    let opened =
        tokio::spawn(async move { Peer::builder([MCP, ACP, LSP]).serve(reported).connect(link).await });
    (opened, wire)
}

#[tokio::test(start_paused = true)]
async fn messages_that_no_dialect_recognises_are_refused_a_few_times() {
    for (attempts, opens) in [(ATTEMPTS - 1, true), (ATTEMPTS, false)] {
        let (opened, wire) = negotiate();
        for attempt in 1..=attempts {
            wire.says(attempt, &"[]");
            let refused =
                [format!("fault {attempt} BadMessage"), format!("Control Answer on {attempt}, last")];
            assert_eq!(wire.recorded().await, refused);
        }
        assert_eq!(opened.is_finished(), !opens, "after {attempts}");
        if opens {
            wire.says(99, &request(1, "initialize", &json!({"protocolVersion": "2025-06-18"})));
            assert_eq!(wire.recorded().await, ["begin 99", "Data Answer 1 on 99, last"]);
            assert_eq!(opened.await.unwrap().unwrap().dialect().name(), "mcp");
        } else {
            let ended = opened.await.unwrap().err();
            let unknown = Some(ConnectionError::Protocol(ProtocolViolation::UnknownDialect));
            assert_eq!(ended.map(|ended| ended.to_string()), unknown.map(|ended| ended.to_string()));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_message_is_counted_and_ends_its_exchange() {
    let (opened, wire) = negotiate();
    for exchange in (1..=ATTEMPTS).map(ExchangeId) {
        assert!(!opened.is_finished());
        wire.tells(TransportEvent::Rejected { exchange, why: BadFrame::NotUtf8, head: bytes::Bytes::new() });
        assert_eq!(wire.recorded().await, [format!("finish {} Refused", exchange.0)]);
    }
    assert!(opened.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_message_refused_without_an_answer_ends_its_exchange() {
    let (link, wire) = wire(TRAITS);
    // ABP has no message for the refusal of an invalid message.
    let opened = tokio::spawn(async move { Peer::builder([ABP, ABP]).connect(link).await });
    wire.says(3, &"{}");
    assert_eq!(wire.recorded().await, ["finish 3 Refused"]);
    opened.abort();
}

#[tokio::test(start_paused = true)]
async fn an_error_about_one_exchange_ends_no_opening_and_any_other_does() {
    let broken = TransportError::new(TransportErrorKind::Io, "broken");
    let (opened, wire) = negotiate();
    wire.fails(TransportError { exchange: Some(ExchangeId(1)), ..broken.clone() });
    wire.tells(TransportEvent::ExchangeClosed { exchange: ExchangeId(1) });
    assert_eq!(wire.recorded().await, [""; 0]);
    assert!(!opened.is_finished());
    wire.fails(broken);
    assert!(matches!(opened.await.unwrap(), Err(ConnectionError::Transport(_))));
}

// The driver's calls if the transport has no room, and the order of frames.

#[tokio::test(start_paused = true)]
async fn cancels_overtake_a_blocked_frame_only_on_unordered_transports() {
    for (ordered, passing) in [(false, 20), (true, 8)] {
        let traits = Capabilities { ordered, ..TRAITS };
        let (peer, wire) = open(ACP, traits, Limits::default());
        let start = || peer.call::<_, Value>("work", &json!({})).start().unwrap();
        let calls: Vec<_> = (0..20).map(|_| start()).collect();
        assert_eq!(wire.recorded().await.len(), 20);
        wire.state().full = Some(Lane::Data);
        peer.try_notify("news", &json!({})).unwrap();
        drop(calls);
        let passed = wire.recorded().await;
        assert!(passed.iter().all(|line| line.starts_with("Control Cancel")), "{passed:?}");
        assert_eq!(passed.len(), passing, "a row of cancels at a time, ordered: {ordered}");
        wire.make_room();
        let rest = wire.recorded().await;
        assert_eq!(rest.first().map(String::as_str), Some("Data Notification news on none"));
        assert_eq!(passed.len() + rest.len(), 21, "L1: a cancel that is never written");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wire_without_room_for_bulk_is_not_asked_again_for_each_frame_of_it() {
    let (peer, wire) = open(MCP, TRAITS, Limits::default());
    wire.state().full = Some(Lane::Data);
    for _ in 0..5 {
        peer.try_notify("news", &json!({})).unwrap();
        assert_eq!(wire.recorded().await, [""; 0]);
    }
    assert_eq!(wire.state().asked_in_vain, 1, "the driver wakes for what it cannot write");
    // Control frames pass it.
    wire.says(3, &"{");
    assert_eq!(wire.recorded().await, ["fault 3 BadMessage", "Control Answer on 3, last"]);
    wire.make_room();
    assert_eq!(wire.recorded().await, ["Data Notification news on none"; 5]);
}

#[tokio::test(start_paused = true)]
async fn a_wire_that_is_full_until_it_is_flushed_is_flushed_and_asked_again() {
    let (peer, wire) = open(MCP, TRAITS, Limits::default());
    wire.state().holds = Some(1);
    for _ in 0..3 {
        peer.try_notify("news", &json!({})).unwrap();
    }
    assert_eq!(wire.recorded().await, ["Data Notification news on none"; 3], "a frame is left behind");
}

#[tokio::test(start_paused = true)]
async fn queued_frames_of_a_silenced_request_are_not_written_when_there_is_room() {
    let (peer, wire) = open(MCP, TRAITS, Limits::default());
    wire.state().full = Some(Lane::Data);
    wire.says(3, &request(1, "wait", &json!({})));
    wire.says(4, &request(2, "wait", &json!({})));
    assert_eq!(wire.recorded().await, ["begin 3", "begin 4", "waiting 3", "waiting 4"]);
    assert_eq!(peer.queue_stats().outbox_frames, 2);
    wire.says(5, &cancel(1));
    assert_eq!(wire.recorded().await, ["finish 5 Accepted", "finish 3 Silent"]);
    assert_eq!(peer.queue_stats().outbox_frames, 1, "I2: a frame of the silenced request waits");
    wire.make_room();
    assert_eq!(wire.recorded().await, ["Data Notification waits on 4"], "I2");
}

#[tokio::test(start_paused = true)]
async fn a_handler_sees_a_cancel_that_was_read_before_it_ran() {
    let (_peer, wire) = open(ACP, TRAITS, Limits::default());
    let begun = tokio::time::Instant::now();
    wire.says(0, &request(1, "wait", &json!({})));
    wire.says(0, &json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1}}));
    let reported = wire.recorded().await;
    assert_eq!(
        reported,
        ["Data Notification waits on none", "Data Answer 1 on none"],
        "L1: the signal is lost"
    );
    assert_eq!(begun.elapsed(), std::time::Duration::ZERO, "the grace answered, not the handler");
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_read_where_both_the_wire_and_the_revision_allow_it() {
    let batch = json!([request(1, "step", &json!({})), [request(2, "step", &json!({}))], cancel(9)]);
    let refused = &["Control Answer on none"][..];
    let read = ["Control Answer on none", "Data Notification stepped on none", "Data Answer 1 on none"];
    for (batches, revision, expected) in
        [(true, "2025-03-26", &read[..]), (true, "2025-06-18", refused), (false, "2025-03-26", refused)]
    {
        let (_peer, wire) = open(MCP, Capabilities { batches, ..TRAITS }, Limits::default());
        wire.says(0, &request(0, "initialize", &json!({"protocolVersion": revision})));
        assert_eq!(wire.recorded().await, ["Data Answer 0 on none"]);
        wire.says(0, &batch);
        assert_eq!(wire.recorded().await, expected, "{revision}, over a wire with batches: {batches}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_stop_sending_holds_up_no_timer() {
    let (_peer, wire) = open(ACP, TRAITS, Limits::default());
    wire.says(3, &request(1, "deaf", &json!({})));
    assert_eq!(wire.recorded().await, ["begin 3", "waiting 3"]);
    let cancel = json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1}});
    wire.says(4, &cancel);
    assert_eq!(wire.recorded().await, ["finish 4 Accepted"]);
    for id in 2..2002 {
        wire.says(5, &request(id, "unknown", &json!({})));
    }
    tokio::time::advance(Limits::default().cancel_grace + Duration::from_millis(1)).await;
    let reported = wire.recorded().await;
    let place = reported.iter().position(|line| line == "Data Answer 1 on 3, last");
    assert!(place.is_some_and(|place| place < 200), "L3: the grace is over, and {place:?} lines come first");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_notify_continues_when_there_is_room() {
    let mut limits = Limits::default();
    limits.max_outbox_frames = 1;
    let (peer, wire) = open(MCP, TRAITS, limits);
    wire.state().full = Some(Lane::Data);
    peer.try_notify("news", &json!({})).unwrap();
    let waits = tokio::spawn({
        let peer = peer.clone();
        async move { peer.notify("later", &json!({})).await }
    });
    assert_eq!(wire.recorded().await, [""; 0]);
    assert!(!waits.is_finished(), "there is no room yet");
    wire.make_room();
    let reported = wire.recorded().await;
    assert_eq!(reported, ["Data Notification news on none", "Data Notification later on none"]);
    assert_eq!(waits.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_notification_that_no_frame_could_hold_is_refused_at_once() {
    let mut limits = Limits::default();
    limits.max_frame_bytes = 100;
    let (peer, _wire) = open(MCP, TRAITS, limits);
    let params = |bytes: usize| json!(["x".repeat(bytes - r#"[""]"#.len())]);
    for (bytes, fits) in [(10, true), (98, true), (99, false), (200, false)] {
        let reported = peer.try_notify("ab", &params(bytes));
        assert_eq!(reported.is_ok(), fits, "2 bytes of a method and {bytes} of params: {reported:?}");
    }
}
