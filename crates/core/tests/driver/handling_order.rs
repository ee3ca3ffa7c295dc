//! Requests whose handlers start after the notifications before them are handled: in LSP, and where the router asks for
//! it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rescind_core::dialect::{ACP, Dialect, LSP, Role};
use rescind_core::{CallContext, CallError, CauseKind, Peer, Router, memory_pair};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};

/// The parts of a server whose notification handlers a test can hold.
#[derive(Clone, Default)]
struct Document {
    version: Arc<AtomicU64>,
    /// How many handlers of requests have started.
    started: Arc<AtomicU64>,
    /// How many notifications were taken by their handler.
    taken: Arc<Notify>,
    gate: Option<Arc<Semaphore>>,
}

impl Document {
    fn held() -> Self {
        Self { gate: Some(Arc::new(Semaphore::new(0))), ..Self::default() }
    }

    fn open(&self, notifications: usize) {
        self.gate.as_ref().unwrap().add_permits(notifications);
    }

    fn router(&self) -> Router {
        let [changed, async_read, blocking_read, slow] = [(); 4].map(|()| self.clone());
        Router::new()
            .method("initialize", |_: CallContext, _: Value| async { Ok(json!({"capabilities": {}})) })
            .notification("change", move |_, (version,): (u64,)| {
                let Self { version: known, taken, gate, .. } = changed.clone();
                async move {
                    taken.notify_one();
                    match gate {
                        Some(gate) => gate.acquire().await.unwrap().forget(),
                        None => tokio::task::yield_now().await,
                    }
                    known.store(version, Ordering::SeqCst);
                }
            })
            .concurrent_notification("slow", move |_, _: Value| {
                slow.taken.notify_one();
                std::future::pending()
            })
            .method("read", move |_: CallContext, _: Value| {
                async_read.started.fetch_add(1, Ordering::SeqCst);
                let version = async_read.version.load(Ordering::SeqCst);
                async move { Ok(version) }
            })
            .blocking("read_blocking", move |_: CallContext, _: Value| {
                blocking_read.started.fetch_add(1, Ordering::SeqCst);
                Ok(blocking_read.version.load(Ordering::SeqCst))
            })
    }

    fn started(&self) -> u64 {
        self.started.load(Ordering::SeqCst)
    }
}

/// A client of this router, after the handshake, and its server.
async fn connect(dialect: Dialect, router: Router) -> (Peer, Peer) {
    let (near, far) = memory_pair();
    let server = Peer::builder(dialect.clone()).serve(router).attach(far).unwrap();
    let client = Peer::builder(dialect).role(Role::Client).attach(near).unwrap();
    client.call::<_, Value>("initialize", &json!({})).await.unwrap();
    (client, server)
}

/// Until so many requests have started: their tasks run, and their handlers may wait for notifications.
async fn until_started(server: &Peer, requests: u64) {
    while server.stats().started < requests {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_request_sees_the_change_that_came_before_it() {
    for (dialect, in_order) in [(LSP, false), (ACP, true)] {
        let document = Document::default();
        let router = document.router();
        let router = if in_order { router.in_order() } else { router };
        let (client, _server) = connect(dialect.clone(), router).await;
        for version in 1..=300 {
            client.try_notify("change", &(version,)).unwrap();
            let method = if version % 2 == 0 { "read" } else { "read_blocking" };
            let seen: u64 = client.call(method, &json!({})).await.unwrap();
            assert_eq!(
                seen, version,
                "{dialect:?}, {method}: its handler started before the change was handled"
            );
        }
    }
}

#[tokio::test]
async fn a_request_that_waits_for_a_notification_is_cancelled_at_once() {
    for method in ["read", "read_blocking"] {
        let document = Document::held();
        let (client, server) = connect(LSP, document.router()).await;
        client.try_notify("change", &(1,)).unwrap();
        document.taken.notified().await;
        let call = client.call::<_, u64>(method, &json!({})).start().unwrap();
        until_started(&server, 2).await;
        call.canceller().cancel("");
        match call.await {
            Err(CallError::Cancelled(cancelled)) => {
                assert!(cancelled.confirmed, "{method}: the server has not answered");
                assert_eq!(cancelled.cause.kind(), CauseKind::Caller);
            }
            other => panic!("{method}: {other:?}"),
        }
        // The next request waits for the same notification, which is not handled yet.
        let next = client.call::<_, u64>(method, &json!({})).start().unwrap();
        document.open(1);
        assert_eq!(next.await.unwrap(), 1);
        assert_eq!(document.started(), 1, "{method}: the handler of a cancelled request has started");
    }
}

#[tokio::test]
async fn in_other_dialects_a_request_does_not_wait_for_notifications() {
    let document = Document::held();
    let (client, _server) = connect(ACP, document.router()).await;
    client.try_notify("change", &(1,)).unwrap();
    document.taken.notified().await;
    assert_eq!(client.call::<_, u64>("read", &json!({})).await.unwrap(), 0);
}

#[tokio::test]
async fn a_concurrent_notification_is_not_waited_for() {
    let document = Document::default();
    let (client, _server) = connect(LSP, document.router()).await;
    client.try_notify("slow", &json!({})).unwrap();
    document.taken.notified().await;
    assert_eq!(client.call::<_, u64>("read", &json!({})).await.unwrap(), 0);
}

/// A notification waits for the handlers that started before it, and they wait for the notifications before them. So a
/// request between two notifications must not make them wait for each other.
#[tokio::test(start_paused = true)]
async fn a_request_and_the_notifications_around_it_do_not_wait_for_each_other() {
    let document = Document::held();
    let (client, _server) = connect(LSP, document.router()).await;
    let since = tokio::time::Instant::now();
    client.try_notify("change", &(1,)).unwrap();
    let between = client.call::<_, u64>("read", &json!({})).start().unwrap();
    client.try_notify("change", &(2,)).unwrap();
    let after = client.call::<_, u64>("read", &json!({})).start().unwrap();
    document.open(2);
    assert_eq!((between.await.unwrap(), after.await.unwrap()), (1, 2));
    assert_eq!(since.elapsed(), Duration::ZERO, "one waited for a time limit of another");
}

/// The connection ends while a request waits.
#[tokio::test]
async fn a_request_that_waits_ends_with_its_connection() {
    let document = Document::held();
    let (client, server) = connect(LSP, document.router()).await;
    client.try_notify("change", &(1,)).unwrap();
    document.taken.notified().await;
    let call = client.call::<_, u64>("read", &json!({})).start().unwrap();
    until_started(&server, 2).await;
    drop((call, client));
    server.closed().await.unwrap();
    assert_eq!((document.started(), server.stats().slots), (0, 0), "I3: a request that waited is left");
}
