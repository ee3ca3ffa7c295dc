//! Frames on the exchange of a call, and their receivers.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use rescind_core::dialect::MCP;
use rescind_core::{
    Capabilities, CloseReason, ExchangeId, Inbound, Lane, Link, Outbound, Peer, PeerInfo, Receiver, Router,
    Sender, TransportError, TransportEvent,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

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

const TRAITS: Capabilities = Capabilities {
    ordered: false,
    opens_exchanges: true,
    exchange_scoped: false,
    batches: false,
    max_frame: 1 << 20,
};

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
