//! Tasks that wait for room in the outbox of a connection whose peer does not read.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use rescind_core::dialect::MCP;
use rescind_core::{
    CallContext, CallError, Capabilities, CloseReason, Inbound, Lane, Limits, Link, Outbound, Peer, PeerInfo,
    Receiver, Router, Sender, TransportError, TransportEvent,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

struct Comes(mpsc::UnboundedReceiver<Value>);

impl Receiver for Comes {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        let message = |body: Value| TransportEvent::Message(Inbound::new(Bytes::from(body.to_string())));
        self.0.poll_recv(cx).map(|body| body.map(|body| Ok(message(body))))
    }
}

/// Accepts no frame.
struct Full;

impl Sender for Full {
    fn poll_ready(self: Pin<&mut Self>, _: Lane, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Pending
    }

    fn start_send(self: Pin<&mut Self>, _: Outbound) -> Result<(), TransportError> {
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Pending
    }

    fn poll_close(
        self: Pin<&mut Self>,
        _: &CloseReason,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        Poll::Ready(Ok(()))
    }
}

const TRAITS: Capabilities = Capabilities::of_stream(1 << 20);

/// A side whose outbox is full, and the input from its peer.
fn full(router: Router) -> (Peer, mpsc::UnboundedSender<Value>) {
    let (says, comes) = mpsc::unbounded_channel();
    let mut limits = Limits::default();
    limits.max_outbox_frames = 1;
    let link = Link::new(Comes(comes), Full, TRAITS, PeerInfo::default());
    let peer = Peer::builder(MCP).limits(limits).serve(router).attach(link).unwrap();
    peer.try_notify("noise", &json!({})).unwrap();
    assert!(matches!(peer.try_notify("noise", &json!({})), Err(CallError::OutboxFull)));
    (peer, says)
}

fn request(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "work", "params": {}})
}

fn cancel(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_waits_to_notify_is_woken_at_the_end_of_its_request() {
    let (tell, mut heard) = mpsc::unbounded_channel();
    let router = Router::new().method("work", move |ctx: CallContext, _: Value| {
        let tell = tell.clone();
        async move {
            tell.send(None).unwrap();
            let reported = ctx.notify("step", &json!({})).await;
            tell.send(Some(reported)).unwrap();
            Ok(())
        }
    });
    let (_peer, says) = full(router);
    says.send(request(1)).unwrap();
    assert!(heard.recv().await.unwrap().is_none());
    says.send(cancel(1)).unwrap();
    let reported = tokio::time::timeout(std::time::Duration::from_secs(1), heard.recv()).await;
    assert!(matches!(reported, Ok(Some(Some(Err(CallError::Ended))))), "{reported:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_handler_whose_value_waits_for_room_gives_its_permit_back_at_once() {
    let router = Router::new().method("work", |_: CallContext, _: Value| async { Ok(()) });
    let (peer, says) = full(router);
    for id in 1..=100 {
        says.send(request(id)).unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        assert_eq!((peer.stats().running, peer.stats().finished), (1, id - 1));
        says.send(cancel(id)).unwrap();
        let begun = tokio::time::Instant::now();
        while peer.stats().finished < id {
            assert!(begun.elapsed().as_secs() < 1, "a value that nobody may have holds a permit");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
    assert_eq!((peer.stats().aborted, peer.stats().slots), (0, 0));
}

/// A waker of a waiting task.
struct Waits;

impl Wake for Waits {
    fn wake(self: Arc<Self>) {}
}

#[tokio::test]
async fn a_dropped_notify_leaves_no_waiter() {
    let (peer, _says) = full(Router::new());
    let params = json!({});
    for _ in 0..10 {
        let waits = Arc::new(Waits);
        let waker = Waker::from(Arc::clone(&waits));
        let mut notify = Box::pin(peer.notify("step", &params));
        assert!(notify.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop((notify, waker));
        assert_eq!(Arc::strong_count(&waits), 1, "I11: the waker of one who is gone is kept");
    }
}
