//! The contract of a transport, where it holds for a wire without order: what the server's end reads is accepted as the
//! driver would.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use rescind_core::{
    CallNumber, CloseReason, ExchangeId, Finish, FrameKind, Head, Lane, Link, Listener, Outbound, Receiver,
    RequestId, Sender, Transport, TransportError, TransportEvent, Unsupported,
};
use rescind_http::HttpListener;
use rescind_testkit::conformance::{self, Harness};

use crate::support::{in_time, server, transport};

#[derive(Debug)]
struct Http;

impl Harness for Http {
    async fn connect(&self) -> (Link, Link) {
        let mut listener = server().bind("127.0.0.1:0").await.unwrap();
        let url = listener.endpoint().to_string();
        let mut client = Box::new(transport(&url)).open().await.unwrap();
        let exchange = ExchangeId::of_call(CallNumber(1));
        let head = Head { kind: FrameKind::Request, id: Some(RequestId::number(1)), method: None };
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#.into();
        let hello = Outbound { body, exchange, lane: Lane::Bulk, head, last: false };
        client.tx.as_mut().start_send(hello).unwrap();
        let accept = std::future::poll_fn(|cx| Pin::new(&mut listener).poll_accept(cx));
        let mut served = in_time("a session", accept).await.unwrap().unwrap();
        let asked =
            in_time("its request", std::future::poll_fn(|cx| served.rx.as_mut().poll_event(cx))).await;
        let Some(Ok(TransportEvent::Message(asked))) = asked else { panic!("{asked:?}") };
        let head = Head { kind: FrameKind::Answer, id: Some(RequestId::number(1)), method: None };
        let body = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#.into();
        let answer = Outbound { body, exchange: asked.exchange, lane: Lane::Bulk, head, last: true };
        served.tx.as_mut().start_send(answer).unwrap();
        let answered = std::future::poll_fn(|cx| client.rx.as_mut().poll_event(cx));
        assert!(matches!(in_time("its answer", answered).await, Some(Ok(TransportEvent::Message(_)))));
        (client, accepting(served, listener))
    }

    fn half_closes(&self) -> bool {
        false
    }
}

/// A link that accepts what it reads, and keeps its server.
fn accepting(link: Link, listener: HttpListener) -> Link {
    let (traits, meta) = (link.traits, link.meta.clone());
    let tx = Arc::new(Mutex::new(link.tx));
    let reader = Accepting { rx: link.rx, tx: Arc::clone(&tx), _listener: listener };
    Link::new(reader, Shared(tx), traits, meta)
}

type Half = Arc<Mutex<Pin<Box<dyn Sender>>>>;

struct Accepting {
    rx: Pin<Box<dyn Receiver>>,
    tx: Half,
    _listener: HttpListener,
}

impl Receiver for Accepting {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        let event = self.rx.as_mut().poll_event(cx);
        if let Poll::Ready(Some(Ok(TransportEvent::Message(inbound)))) = &event {
            self.tx.lock().unwrap().as_mut().finish_exchange(inbound.exchange, Finish::Accepted);
        }
        event
    }
}

struct Shared(Half);

impl Sender for Shared {
    fn poll_ready(
        self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.0.lock().unwrap().as_mut().poll_ready(lane, cx)
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        self.0.lock().unwrap().as_mut().start_send(out)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        self.0.lock().unwrap().as_mut().poll_flush(cx)
    }

    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: Finish) {
        self.0.lock().unwrap().as_mut().finish_exchange(exchange, how);
    }

    fn abort_exchange(self: Pin<&mut Self>, exchange: ExchangeId) -> Result<(), Unsupported> {
        self.0.lock().unwrap().as_mut().abort_exchange(exchange)
    }

    fn poll_close(
        self: Pin<&mut Self>,
        why: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.0.lock().unwrap().as_mut().poll_close(why, cx)
    }
}

#[tokio::test]
async fn frames_arrive_whole_and_in_order() {
    conformance::frames_arrive_whole_and_in_order(&Http).await;
}

#[tokio::test]
async fn dropped_polls_lose_nothing() {
    conformance::dropped_polls_lose_nothing(&Http).await;
}

#[tokio::test]
async fn a_cancel_overtakes_four_thousand_queued_frames() {
    conformance::a_cancel_overtakes_four_thousand_queued_frames(&Http).await;
}

#[tokio::test]
async fn a_peer_that_is_gone_hangs_nobody() {
    conformance::a_peer_that_is_gone_hangs_nobody(&Http).await;
}

#[tokio::test]
async fn a_closed_link_sends_nothing_more() {
    conformance::a_closed_link_sends_nothing_more(&Http).await;
}
