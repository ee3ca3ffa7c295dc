//! What a program needs that passes messages on: answers after the notifications before them, reading that stops while
//! nobody takes the notifications, and the peer and the clients of a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rescind_core::{
    ByteBudget, CallContext, Clients, Limits, Outcome, Peer, Router, Server, Share, dialect, memory_listener,
    memory_pair,
};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};

/// Handles `step` when it may, and counts what it has handled.
#[derive(Clone)]
struct Steps {
    taken: Arc<Notify>,
    allowed: Arc<Semaphore>,
    handled: Arc<AtomicUsize>,
}

impl Steps {
    fn allowing(many: usize) -> Self {
        Self { taken: Arc::default(), allowed: Arc::new(Semaphore::new(many)), handled: Arc::default() }
    }

    fn router(&self) -> Router {
        let steps = self.clone();
        Router::new().notification("step", move |_, _: Value| {
            let steps = steps.clone();
            async move {
                steps.taken.notify_one();
                steps.allowed.acquire().await.unwrap().forget();
                steps.handled.fetch_add(1, Ordering::SeqCst);
            }
        })
    }

    fn handled(&self) -> usize {
        self.handled.load(Ordering::SeqCst)
    }
}

/// A peer that answers `work` after three notifications, and its client with this router.
fn connect(router: Router) -> (Peer, Peer) {
    let (near, far) = memory_pair();
    let work = Router::new().method("work", |ctx: CallContext, _: Value| async move {
        for _ in 0..3 {
            ctx.try_notify("step", &json!({}))?;
        }
        Ok("done")
    });
    let server = Peer::builder(dialect::ACP).serve(work).attach(far).unwrap();
    let client = Peer::builder(dialect::ACP).serve(router).attach(near).unwrap();
    (client, server)
}

async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_answer_in_order_comes_after_the_notifications_before_it() {
    let steps = Steps::allowing(0);
    let (client, server) = connect(steps.router());
    let mut call = client.call::<_, String>("work", &json!({})).in_order().start().unwrap();
    while server.stats().finished < 1 {
        tokio::task::yield_now().await;
    }
    for handled in 1..=3 {
        tokio::select! {
            biased;
            early = &mut call => panic!("the answer {early:?} came before notification {handled} was handled"),
            () = settle() => {}
        }
        steps.allowed.add_permits(1);
    }
    assert_eq!(call.await.unwrap(), "done");
    assert_eq!(steps.handled(), 3);
}

#[tokio::test]
async fn an_answer_in_order_without_notifications_does_not_wait() {
    let (client, _server) = connect(Router::new());
    let answer: String = client.call("work", &json!({})).in_order().await.unwrap();
    assert_eq!(answer, "done");
}

#[tokio::test]
async fn a_cancelled_call_in_order_does_not_wait_for_notifications() {
    let steps = Steps::allowing(0);
    let (near, far) = memory_pair();
    let work = Router::new().method("work", |ctx: CallContext, _: Value| async move {
        ctx.try_notify("step", &json!({}))?;
        ctx.run_until_cancelled(std::future::pending::<()>()).await?;
        Ok(Value::Null)
    });
    let _server = Peer::builder(dialect::ACP).serve(work).attach(far).unwrap();
    let client = Peer::builder(dialect::ACP).serve(steps.router()).attach(near).unwrap();
    let call = client.call::<_, Value>("work", &json!({})).in_order().start().unwrap();
    steps.taken.notified().await;
    call.canceller().cancel("");
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => assert!(cancelled.confirmed),
        other => panic!("{other:?}"),
    }
    assert_eq!(steps.handled(), 0);
}

#[tokio::test]
async fn a_call_in_order_that_is_dropped_while_it_waits_leaves_the_others_alone() {
    let steps = Steps::allowing(0);
    let (client, server) = connect(steps.router());
    let start = || client.call::<_, String>("work", &json!({})).in_order().start().unwrap();
    let (dropped, kept) = (start(), start());
    while server.stats().finished < 2 {
        tokio::task::yield_now().await;
    }
    settle().await;
    drop(dropped);
    steps.allowed.add_permits(6);
    assert_eq!(kept.await.unwrap(), "done");
}

#[tokio::test]
async fn reading_pauses_while_notifications_wait_and_none_is_lost() {
    const MANY: usize = 5_000;
    let steps = Steps::allowing(0);
    let (near, far) = memory_pair();
    let limits = Limits::default().max_queued_notifications(200);
    let router = steps.router().pause_reading_at(100);
    let client = Peer::builder(dialect::ACP).serve(router).limits(limits).attach(near).unwrap();
    let server = Peer::builder(dialect::ACP).attach(far).unwrap();
    let sender = server.clone();
    let sends = tokio::spawn(async move {
        for _ in 0..MANY {
            sender.notify("step", &json!({})).await.unwrap();
        }
    });
    steps.taken.notified().await;
    settle().await;
    assert!(client.queue_stats().notifications_waiting < 200, "{:?}", client.queue_stats());
    steps.allowed.add_permits(MANY);
    sends.await.unwrap();
    while steps.handled() < MANY {
        tokio::task::yield_now().await;
    }
    assert_eq!(client.queue_stats().notifications_dropped, 0);
}

#[tokio::test]
async fn each_connection_of_a_server_may_have_options_of_its_own() {
    let (listener, transport) = memory_listener();
    let opened = Arc::new(AtomicUsize::new(0));
    let number = Arc::clone(&opened);
    let server = Server::builder(dialect::ACP).each_peer(move |peer| {
        let number = number.fetch_add(1, Ordering::SeqCst);
        peer.serve(Router::new().method("which", move |_: CallContext, _: Value| async move { Ok(number) }))
    });
    let serving = tokio::spawn(server.listen(listener).run());
    for expected in 0..3 {
        let peer = Peer::builder(dialect::ACP).connect(transport.clone()).await.unwrap();
        for _ in 0..2 {
            let number: usize = peer.call("which", &json!({})).await.unwrap();
            assert_eq!(number, expected);
        }
    }
    assert_eq!(opened.load(Ordering::SeqCst), 3);
    serving.abort();
}

#[tokio::test]
async fn a_request_knows_its_peer_and_the_clients_that_count_it() {
    let (near, far) = memory_pair();
    let router = Router::new().method("call_back", |ctx: CallContext, _: Value| async move {
        let answer: String = ctx.peer().call("work", &json!({})).await?;
        Ok((answer, ctx.peer().clients().budget().limit()))
    });
    let clients = Clients::with_budget(Share::ALL, 64, ByteBudget::new(77 << 20));
    let _server = Peer::builder(dialect::ACP).serve(router).clients(&clients).attach(far).unwrap();
    let work = Router::new().method("work", |_: CallContext, _: Value| async move { Ok("here") });
    let client = Peer::builder(dialect::ACP).serve(work).attach(near).unwrap();
    let answer: (String, usize) = client.call("call_back", &json!({})).await.unwrap();
    assert_eq!(answer, ("here".to_owned(), 77 << 20));
}

#[tokio::test]
async fn notifications_before_the_end_are_handled_where_none_may_be_lost() {
    for pauses in [true, false] {
        let steps = Steps::allowing(0);
        let (near, far) = memory_pair();
        let router = if pauses { steps.router().pause_reading_at(100) } else { steps.router() };
        let client = Peer::builder(dialect::ACP).serve(router).attach(near).unwrap();
        let server = Peer::builder(dialect::ACP).attach(far).unwrap();
        for _ in 0..5 {
            server.try_notify("step", &json!({})).unwrap();
        }
        steps.taken.notified().await;
        drop(server);
        client.closed().await.unwrap();
        steps.allowed.add_permits(5);
        client.notifications_handled().await;
        // Without the option only the handler that ran at the end runs on.
        assert_eq!(steps.handled(), if pauses { 5 } else { 1 });
        client.notifications_handled().await;
    }
}
