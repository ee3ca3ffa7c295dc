//! A client that writes arbitrary frames over any wire and reads the answers.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use rescind::dialect::Role;
use rescind::machine::CallNumber;
use rescind::transport::{ExchangeId, FrameInfo, FrameKind, Lane, Link, Outbound, Sender, TransportEvent};
use rescind::{Limits, Peer, Router};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::in_time;
use crate::wires::{Door, accept};

/// How received frames are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hears {
    /// They are counted.
    Counts,
    /// They are kept.
    Keeps,
}

pub(crate) struct RawClient {
    tx: Pin<Box<dyn Sender>>,
    heard: Arc<AtomicUsize>,
    kept: mpsc::UnboundedReceiver<Value>,
    /// It reads on a separate thread, which is not one of the server's and ends with the sender.
    reading: (oneshot::Sender<()>, JoinHandle<()>),
    exchanges: u64,
}

impl RawClient {
    /// A stranger after its handshake, and the peer that serves it.
    pub(crate) async fn meet(door: &mut Door, router: Router, limits: &Limits, mode: Hears) -> (Self, Peer) {
        let serve = |link| {
            Peer::builder(rescind::dialect::ACP)
                .role(Role::Server)
                .serve(router)
                .limits(limits.clone())
                .attach(link)
                .expect("a runtime")
        };
        Self::meet_with(door, serve, mode).await
    }

    /// A stranger after its handshake, and the task that serves it.
    pub(crate) async fn meet_with<S>(
        door: &mut Door,
        serve: impl FnOnce(Link) -> S,
        mode: Hears,
    ) -> (Self, S) {
        let Door { listener, transport, .. } = door;
        let opening = async {
            let link = in_time("connecting", transport().open()).await.expect("a connection");
            let mut stranger = Self::at(link, mode);
            let hello = json!({"protocolVersion": 1, "clientCapabilities": {}});
            stranger.request(&json!("hello"), "initialize", &hello).await;
            assert_eq!(stranger.hear().await["id"], "hello");
            stranger
        };
        let serving = async { serve(accept(listener).await) };
        tokio::join!(opening, serving)
    }

    fn at(link: Link, mode: Hears) -> Self {
        let (mut rx, heard) = (link.rx, Arc::new(AtomicUsize::new(0)));
        let (keep, kept) = mpsc::unbounded_channel();
        let count = Arc::clone(&heard);
        let (leaves, mut left) = oneshot::channel();
        let reading = async move {
            while let Some(Ok(event)) = poll_fn(|cx| rx.as_mut().poll_event(cx)).await {
                let TransportEvent::Message(inbound) = event else { continue };
                let first = count.fetch_add(1, Ordering::SeqCst) == 0;
                if first || mode == Hears::Keeps {
                    let _ = keep.send(serde_json::from_slice(&inbound.body).expect("JSON"));
                }
            }
        };
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
            runtime.block_on(async {
                tokio::select! { () = reading => {}, _ = &mut left => {} }
            });
        });
        Self { tx: link.tx, heard, kept, reading: (leaves, thread), exchanges: 0 }
    }

    /// The next frame that was kept.
    pub(crate) async fn hear(&mut self) -> Value {
        self.flush().await;
        in_time("a frame", self.kept.recv()).await.expect("the connection goes on")
    }

    /// How many frames have arrived.
    pub(crate) fn heard(&self) -> usize {
        self.heard.load(Ordering::SeqCst)
    }

    pub(crate) async fn request(&mut self, id: &Value, method: &'static str, params: &Value) {
        self.exchanges += 1;
        let exchange = ExchangeId::of_call(CallNumber(self.exchanges));
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        self.write(body, FrameKind::Request, exchange).await;
    }

    pub(crate) async fn cancel(&mut self, id: &Value) {
        let body = json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": id}});
        // For the transport it is an answer, because an answer is never held back.
        self.write(body.to_string(), FrameKind::Answer, ExchangeId::NONE).await;
    }

    async fn write(&mut self, body: String, kind: FrameKind, exchange: ExchangeId) {
        let tx = &mut self.tx;
        let ready = poll_fn(|cx| match tx.as_mut().poll_ready(Lane::Data, cx) {
            std::task::Poll::Pending => {
                // Frames that are not flushed make no room.
                let _ = tx.as_mut().poll_flush(cx);
                tx.as_mut().poll_ready(Lane::Data, cx)
            }
            ready @ std::task::Poll::Ready(_) => ready,
        });
        in_time("room", ready).await.expect("the connection goes on");
        let head = FrameInfo { kind, id: None, method: None, trace: None };
        let out = Outbound { body: body.into(), exchange, lane: Lane::Data, head, last: false };
        tx.as_mut().start_send(out).expect("the connection goes on");
    }

    pub(crate) async fn flush(&mut self) {
        let tx = &mut self.tx;
        in_time("flushing", poll_fn(|cx| tx.as_mut().poll_flush(cx))).await.expect("the connection goes on");
    }

    /// Disconnects without a close.
    pub(crate) fn leave(self) {
        let (leaves, thread) = self.reading;
        drop(leaves);
        thread.join().expect("it reads what is JSON");
    }
}
