//! What a program hands over is dropped without the connection's lock: to drop it may run the program's code (D2).
#![cfg(feature = "tokio")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use rescind_core::dialect::ABP;
use rescind_core::{Peer, memory_pair};
use serde_json::{Value, json};

/// Looks at the connection when it is dropped.
struct Looks(Peer);

impl Drop for Looks {
    fn drop(&mut self) {
        let _ = self.0.stats();
    }
}

impl Wake for Looks {
    fn wake(self: Arc<Self>) {}
}

/// Runs a test that would stand still under a lock held too long.
fn within_ten_seconds<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
        tell.send(()).unwrap();
    });
    told.recv_timeout(Duration::from_secs(10)).expect("D2: a user's value was dropped under the lock");
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
