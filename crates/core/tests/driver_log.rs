//! A subscriber is application code: it may call back into the connection that emits the event (D2).
#![cfg(feature = "tokio")]
#![expect(clippy::unwrap_used, reason = "the subscriber is part of the test")]

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use rescind_core::{CallContext, Peer, Router, dialect, memory_pair};
use serde_json::{Value, json};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

thread_local! {
    /// Prevents the subscriber from receiving events that it causes.
    static TELLING: Cell<bool> = const { Cell::new(false) };
}

/// Reads the connection on each event and each span, and makes a call over it.
#[derive(Clone, Default)]
struct CallsBack {
    peers: Arc<Mutex<Vec<Peer>>>,
    events: Arc<AtomicUsize>,
    spans: Arc<AtomicU64>,
}

impl CallsBack {
    fn call_back(&self) {
        if TELLING.replace(true) {
            return;
        }
        let peers = self.peers.lock().unwrap().clone();
        for peer in &peers {
            let _ = (peer.stats(), peer.queue_stats(), peer.is_closed());
            drop(peer.call::<_, Value>("echo", &json!([])).start());
            let _ = peer.try_notify("reported", &json!([]));
        }
        self.events.fetch_add(peers.len(), Ordering::SeqCst);
        TELLING.set(false);
    }
}

impl Subscriber for CallsBack {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        self.call_back();
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        self.call_back();
        Id::from_u64(self.spans.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {
        self.call_back();
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.call_back();
    }

    fn enter(&self, _: &Id) {
        self.call_back();
    }

    fn exit(&self, _: &Id) {
        self.call_back();
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.call_back();
        id.clone()
    }

    fn try_close(&self, _: Id) -> bool {
        self.call_back();
        true
    }
}

async fn cancel_a_request(subscriber: &CallsBack) {
    let (client, server) = memory_pair();
    let router = Router::new()
        .method("echo", |_ctx: CallContext, value: Value| async move { Ok(value) })
        .method("work", |ctx: CallContext, _: Value| async move {
            ctx.try_notify("started", &json!({}))?;
            let cause = ctx.cancelled().await;
            ctx.stopped::<Value>(cause)
        })
        .method("fail", |_ctx: CallContext, _: Value| async move {
            panic!("a handler panics");
            #[expect(unreachable_code, reason = "says the type")]
            Ok(())
        });
    let server = Peer::builder(dialect::ACP).serve(router).attach(server).unwrap();
    let peer = Peer::builder(dialect::ACP).attach(client).unwrap();
    *subscriber.peers.lock().unwrap() = vec![peer.clone(), server.clone()];
    let work = peer.call::<_, Value>("work", &json!({}));
    let call = work.notifications_where(|notification| notification.method() == "started").start().unwrap();
    let stop = call.canceller();
    call.notifications().next().await;
    stop.cancel("enough");
    assert!(call.outcome().await.is_cancelled());
    assert!(peer.call::<_, Value>("fail", &json!({})).await.is_err());
    assert!(peer.call::<_, Value>("nobody serves this", &json!({})).await.is_err());
    drop(peer.call::<_, Value>("work", &json!({})).start());
    subscriber.peers.lock().unwrap().clear();
}

#[test]
fn a_subscriber_that_calls_back_into_the_connection_does_not_deadlock() {
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let subscriber = CallsBack::default();
        let _subscribed = tracing::subscriber::set_default(subscriber.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(cancel_a_request(&subscriber));
        drop(runtime);
        done.send(subscriber.events.load(Ordering::SeqCst)).unwrap();
    });
    let reported =
        ended.recv_timeout(Duration::from_secs(60)).expect("a deadlock: the connection does nothing more");
    thread.join().unwrap();
    assert!(reported > 20, "the subscriber was called {reported} times");
}
