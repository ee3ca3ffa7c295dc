//! Application code that panics in unexpected places: only its own request is affected.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use libtest_mimic::Trial;
use rescind::dialect::{ACP, Role};
use rescind::{Call, CallContext, ErrorCode, HandlerError, Limits, Outcome, Peer, Router, memory_pair};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::{in_time, trial, until};

pub(crate) fn trials() -> Vec<Trial> {
    let places = [
        "call",
        "drop_of_future",
        "handler",
        "drop_at_its_end",
        "drop_when_aborted",
        "drop_when_lost",
        "value",
        "blocking_drop",
    ];
    let mut trials: Vec<_> = places
        .into_iter()
        .map(|place| {
            let name = format!("user_code::a_panic_costs_its_own_request::{place}");
            trial(name, move || panics(place, Handlers::Tasks))
        })
        .collect();
    // A function that blocks is never quick. The first poll of the others is made by the connection's task.
    trials.extend(places.into_iter().filter(|place| *place != "blocking_drop").map(|place| {
        let name = format!("user_code::a_panic_costs_its_own_request::quick::{place}");
        trial(name, move || panics(place, Handlers::Quick))
    }));
    trials.push(trial("user_code::a_panic_costs_its_own_request::matcher".into(), matcher));
    trials.push(trial("user_code::a_panic_costs_its_own_request::notification".into(), notification));
    trials
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "as asked, in Drop");
    }
}

/// Panics when it is serialized.
struct Unwritable;

impl Serialize for Unwritable {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("as asked, when it is written")
    }
}

/// How the handlers are registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handlers {
    Tasks,
    Quick,
}

/// A router whose async handlers are registered in one of the ways.
struct Routes(Router, Handlers);

impl Routes {
    fn method<R, Fut>(
        self,
        name: &str,
        handler: impl Fn(CallContext, Value) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
        R: Serialize + Send + 'static,
    {
        let Self(router, handlers) = self;
        let router = match handlers {
            Handlers::Tasks => router.method(name, handler),
            Handlers::Quick => router.quick(name, handler),
        };
        Self(router, handlers)
    }
}

/// A future that panics when it is dropped, after its end too.
struct BombAround;

impl Future for BombAround {
    type Output = Result<(), HandlerError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for BombAround {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "as asked, in the future's Drop");
    }
}

fn router(handlers: Handlers) -> Router {
    let Routes(router, _) = Routes(Router::new(), handlers)
        .method("echo", |_: CallContext, value: Value| async { Ok(value) })
        .method("wait", |ctx: CallContext, _: Value| async move {
            let cause = ctx.cancelled().await;
            ctx.stopped::<Value>(cause)
        })
        .method("call", |_: CallContext, _: Value| {
            assert!(std::thread::panicking(), "as asked, before there is a future");
            async { Ok(()) }
        })
        .method("handler", |_: CallContext, _: Value| async {
            assert!(std::thread::panicking(), "as asked");
            Ok(())
        })
        .method("drop_of_future", |_: CallContext, _: Value| BombAround)
        .method("drop_at_its_end", |_: CallContext, _: Value| async {
            let _bomb = Bomb;
            Ok(())
        })
        .method("drop_when_aborted", |_: CallContext, _: Value| async {
            let _bomb = Bomb;
            std::future::pending::<()>().await;
            Ok(())
        })
        .method("drop_when_lost", |_: CallContext, _: Value| async {
            let _bomb = Bomb;
            std::future::pending::<()>().await;
            Ok(())
        })
        .method("value", |_: CallContext, _: Value| async { Ok(Unwritable) });
    router.blocking("blocking_drop", |_: CallContext, _: Value| {
        let _bomb = Bomb;
        Ok(())
    })
}

fn pair(handlers: Handlers) -> (Peer, Peer) {
    let mut limits = Limits::default();
    limits.cancel_grace = Duration::from_millis(5);
    let (near, far) = memory_pair();
    let server = Peer::builder(ACP).serve(router(handlers)).limits(limits).attach(far).unwrap();
    (Peer::builder(ACP).role(Role::Client).attach(near).unwrap(), server)
}

async fn sibling(client: &Peer, server: &Peer) -> Call<Value> {
    let call = client.call::<_, Value>("wait", &json!({})).start().unwrap();
    until("the sibling runs", || server.stats().running == 1).await;
    call
}

async fn lives(client: &Peer, server: &Peer, sibling: Call<Value>) {
    assert_eq!(in_time("I13: an echo", client.call::<_, Value>("echo", &json!([1]))).await, Ok(json!([1])));
    assert_eq!(server.stats().running, 1, "I4: the sibling still runs");
    sibling.canceller().cancel("");
    assert!(
        matches!(in_time("I13: the sibling", sibling.outcome()).await, Outcome::Cancelled(it) if it.confirmed)
    );
    until("I3, I10", || {
        let stats = server.stats();
        stats.slots + stats.running + stats.draining + client.stats().calls == 0
    })
    .await;
}

async fn panics(place: &'static str, handlers: Handlers) {
    let (client, server) = pair(handlers);
    let sibling = sibling(&client, &server).await;
    let call = client.call::<_, Value>(place, &json!({})).start().unwrap();
    match place {
        "drop_when_aborted" => {
            until("it runs", || server.stats().running == 2).await;
            call.canceller().cancel("");
            let outcome = in_time("I13: the answer", call.outcome()).await;
            assert!(matches!(outcome, Outcome::Cancelled(cancelled) if cancelled.confirmed));
        }
        "drop_when_lost" => {
            until("it runs", || server.stats().running == 2).await;
            drop((client, sibling, call));
            until("I3, I10: nothing is left of a lost connection", || {
                let stats = server.stats();
                stats.slots + stats.running + stats.draining == 0
            })
            .await;
            return;
        }
        _ => match in_time("I13: the answer", call.outcome()).await {
            Outcome::Failed(error) => assert_eq!(error.code, ErrorCode::INTERNAL_ERROR, "{error}"),
            // A value that is dropped at the end of the handler is dropped after the answer.
            Outcome::Completed(_) if place.contains("drop") => {}
            other => panic!("{other:?}"),
        },
    }
    lives(&client, &server, sibling).await;
}

/// A reader of notifications whose filter panics.
async fn matcher() {
    let (near, far) = memory_pair();
    let router = router(Handlers::Tasks).method("tell", |ctx: CallContext, _: Value| async move {
        ctx.try_notify("reported", &json!([1]))?;
        Ok(1)
    });
    let server = Peer::builder(ACP).serve(router).attach(far).unwrap();
    let client = Peer::builder(ACP).role(Role::Client).attach(near).unwrap();
    let sibling = sibling(&client, &server).await;
    let call = client.call::<_, Value>("tell", &json!({}));
    let call = call.notifications_where(|_| panic!("as asked, in a matcher")).start().unwrap();
    assert_eq!(in_time("I13: the answer", call).await, Ok(json!(1)), "its answer comes all the same");
    assert!(!client.is_closed());
    lives(&client, &server, sibling).await;
}

async fn notification() {
    let (near, far) = memory_pair();
    let router = router(Handlers::Tasks)
        .notification("reported", |_: Peer, _: Value| async { panic!("as requested, by a notification") });
    let server = Peer::builder(ACP).serve(router).attach(far).unwrap();
    let client = Peer::builder(ACP).role(Role::Client).attach(near).unwrap();
    let sibling = sibling(&client, &server).await;
    for _ in 0..3 {
        client.try_notify("reported", &json!([1])).unwrap();
    }
    until("each is handled", || server.queue_stats().notifications_waiting == 0).await;
    lives(&client, &server, sibling).await;
}
