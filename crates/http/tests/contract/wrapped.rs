//! Links that carry the bodies of the rules in messages of a protocol.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use rescind_core::{
    CallNumber, CloseReason, ExchangeEnd, ExchangeId, FrameInfo, FrameKind, Inbound, Lane, Link, Listener,
    Outbound, Receiver, RequestId, Sender, Transport, TransportError, TransportEvent, Unsupported,
};
use rescind_http::HttpListener;
use rescind_testkit::support::in_time;

/// The additional content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    Plain,
    /// Its revision, as each message of MCP 2026-07-28 does.
    Version,
}

const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}},"#;

/// A body as part of a message.
pub(crate) fn wrap(says: Says, kind: FrameKind, body: &[u8]) -> Vec<u8> {
    let meta = if says == Says::Version { META } else { "" };
    let start = match kind {
        FrameKind::Answer => r#"{"jsonrpc":"2.0","id":"of nothing","result":{"body":"#.to_owned(),
        FrameKind::Request => {
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{{meta}"body":"#)
        }
        FrameKind::Notification | FrameKind::Cancel => {
            format!(r#"{{"jsonrpc":"2.0","method":"conformance","params":{{{meta}"body":"#)
        }
    };
    [start.as_bytes(), body, b"}}"].concat()
}

/// The body unchanged: reading must not split the body of any rule.
fn unwrap(message: &Bytes) -> Bytes {
    let mark = b"\"body\":";
    let start =
        message.windows(mark.len()).position(|part| part == mark).expect("a message that was wrapped");
    message.slice(start + mark.len()..message.len() - 2)
}

async fn message(link: &mut Link) -> Inbound {
    match in_time("a message", poll_fn(|cx| link.rx.as_mut().poll_event(cx))).await {
        Some(Ok(TransportEvent::Message(inbound))) => inbound,
        other => panic!("expected a message, got {other:?}"),
    }
}

/// Both ends, after the server has accepted the client's first request.
pub(crate) async fn connect<T: Transport>(
    listener: HttpListener,
    transport: impl FnOnce(&str) -> T,
    says: Says,
) -> (Link, Link) {
    let mut client = Box::new(transport(&listener.endpoint().to_string())).open().await.unwrap();
    let head = FrameInfo {
        kind: FrameKind::Request,
        id: Some(RequestId::number(1)),
        method: Some("initialize".into()),
        trace: None,
    };
    let body = wrap(says, FrameKind::Request, b"{}").into();
    let exchange = ExchangeId::of_call(CallNumber(1));
    client.tx.as_mut().start_send(Outbound { body, exchange, lane: Lane::Data, head, last: false }).unwrap();
    let opened = async {
        if says == Says::Plain {
            message(&mut client).await;
        }
        client
    };
    let (client, server) = serve(opened, listener, says).await;
    (wrapped(client, says, None, None), server)
}

/// The server's end, after `opened` has sent its first request. If the binding has requests only, this request stays
/// open for the server's messages.
pub(crate) async fn serve<C>(
    opened: impl Future<Output = C>,
    mut listener: HttpListener,
    says: Says,
) -> (C, Link) {
    let served = async {
        let mut link = listener.accept().await.unwrap().unwrap();
        let asked = message(&mut link).await;
        if says == Says::Version {
            return (link, Some(asked.exchange));
        }
        let head =
            FrameInfo { kind: FrameKind::Answer, id: Some(RequestId::number(1)), method: None, trace: None };
        let body = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#.into();
        let answer = Outbound { body, exchange: asked.exchange, lane: Lane::Data, head, last: true };
        link.tx.as_mut().start_send(answer).unwrap();
        (link, None)
    };
    let (opened, (link, open)) = in_time("the opening", async { tokio::join!(opened, served) }).await;
    (opened, wrapped(link, says, open, Some(listener)))
}

/// `listener`: that of the server's end, which accepts what it reads. `open`: the exchange on which the end sends.
fn wrapped(link: Link, says: Says, open: Option<ExchangeId>, listener: Option<HttpListener>) -> Link {
    let (traits, meta) = (link.traits, link.meta.clone());
    let tx = Arc::new(Mutex::new(link.tx));
    let reader = Unwrapping { rx: link.rx, tx: Arc::clone(&tx), listener };
    Link::new(reader, Wrapping { tx, says, open }, traits, meta)
}

type Half = Arc<Mutex<Pin<Box<dyn Sender>>>>;

struct Unwrapping {
    rx: Pin<Box<dyn Receiver>>,
    tx: Half,
    listener: Option<HttpListener>,
}

impl Receiver for Unwrapping {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        let mut event = self.rx.as_mut().poll_event(cx);
        if let Poll::Ready(Some(Ok(TransportEvent::Message(inbound)))) = &mut event {
            inbound.body = unwrap(&inbound.body);
            if self.listener.is_some() {
                self.tx.lock().unwrap().as_mut().finish_exchange(inbound.exchange, ExchangeEnd::Accepted);
            }
        }
        event
    }
}

struct Wrapping {
    tx: Half,
    says: Says,
    open: Option<ExchangeId>,
}

impl Sender for Wrapping {
    fn poll_ready(
        self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.tx.lock().unwrap().as_mut().poll_ready(lane, cx)
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        let body = wrap(self.says, out.head.kind, &out.body).into();
        let exchange = self.open.unwrap_or(out.exchange);
        self.tx.lock().unwrap().as_mut().start_send(Outbound { body, exchange, ..out })
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        self.tx.lock().unwrap().as_mut().poll_flush(cx)
    }

    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
        self.tx.lock().unwrap().as_mut().finish_exchange(exchange, how);
    }

    fn abort_exchange(self: Pin<&mut Self>, exchange: ExchangeId) -> Result<(), Unsupported> {
        self.tx.lock().unwrap().as_mut().abort_exchange(exchange)
    }

    fn poll_close(
        self: Pin<&mut Self>,
        why: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.tx.lock().unwrap().as_mut().poll_close(why, cx)
    }
}
