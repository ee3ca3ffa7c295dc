//! A transport that records each call of the driver as a line. It has room only if a test allows it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use rescind_core::dialect::Dialect;
use rescind_core::{
    CallContext, Capabilities, CloseReason, ExchangeEnd, ExchangeId, FrameKind, HandlerError, Inbound, Lane,
    Limits, Link, Outbound, Peer, PeerInfo, Receiver, RejectReason, Router, Sender, TransportError,
    TransportErrorKind, TransportEvent, Unsupported,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

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
