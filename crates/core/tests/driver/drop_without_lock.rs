//! Values that a program passes in are dropped without the connection's lock, because the drop may run the program's
//! code (D2).

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use rescind_core::dialect::{ABP, ACP, Role};
use rescind_core::{CallContext, Peer, Router, memory_pair};
use serde_json::{Value, json};

/// Reads the connection when it is dropped.
struct Looks(Peer);

impl Drop for Looks {
    fn drop(&mut self) {
        let _ = self.0.stats();
    }
}

impl Wake for Looks {
    fn wake(self: Arc<Self>) {}
}

/// Runs a test that would deadlock if a lock were held too long.
fn within_ten_seconds<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let (event_tx, event_rx) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
        event_tx.send(()).unwrap();
    });
    event_rx.recv_timeout(Duration::from_secs(10)).expect("D2: a user's value was dropped under the lock");
}

#[test]
fn a_refused_call_drops_its_matcher_without_the_lock() {
    within_ten_seconds(|| async {
        let (near, _far) = memory_pair();
        let peer = Peer::builder(ABP).attach(near).unwrap();
        peer.shutdown(Duration::ZERO).await;
        let looks = Looks(peer.clone());
        let call = peer.call::<_, Value>("work", &json!({})).notifications_where(move |_| {
            let _ = &looks;
            true
        });
        assert!(call.start().unwrap().await.is_err());
    });
}

#[test]
fn a_waker_that_is_replaced_is_dropped_without_the_lock() {
    within_ten_seconds(|| async {
        let (near, _far) = memory_pair();
        let peer = Peer::builder(ABP).attach(near).unwrap();
        let mut call = peer.call::<_, Value>("work", &json!({})).start().unwrap();
        let mut acknowledged = pin!(call.acknowledged());
        for _ in 0..2 {
            let waker = Waker::from(Arc::new(Looks(peer.clone())));
            assert!(acknowledged.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
    });
}

/// The shared state of a program's handlers: the contexts of all requests, each a handle of its connection.
type Kept = Arc<Mutex<Vec<CallContext>>>;

/// Serves one request whose context is kept in the state of its handler.
async fn serve_and_keep() -> (Peer, Peer, Weak<Mutex<Vec<CallContext>>>) {
    let kept = Kept::default();
    let watched = Arc::downgrade(&kept);
    let router = Router::new().method("work", move |ctx: CallContext, _: Value| {
        kept.lock().unwrap().push(ctx);
        async { Ok(Value::Null) }
    });
    let (near, far) = memory_pair();
    let server = Peer::builder(ACP).role(Role::Server).serve(router).attach(far).unwrap();
    let client = Peer::builder(ACP).attach(near).unwrap();
    client.call::<_, Value>("work", &json!({})).await.unwrap();
    (client, server, watched)
}

#[test]
fn handlers_that_hold_their_connection_are_dropped_with_it() {
    within_ten_seconds(|| async {
        let (client, server, watched) = serve_and_keep().await;
        assert!(watched.upgrade().is_some(), "the connection is open");
        client.shutdown(Duration::ZERO).await;
        let _ = server.closed().await;
        while watched.upgrade().is_some() {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn handlers_that_hold_their_connection_are_dropped_with_its_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_client, _server, watched) = runtime.block_on(serve_and_keep());
    drop(runtime);
    assert!(watched.upgrade().is_none(), "the runtime is gone");
}
