//! Handlers that never end: they hold threads of the runtime, and neither their grace nor a reconnect frees these.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use libtest_mimic::Trial;
use rescind::dialect::{ACP, Role};
use rescind::{
    CallContext, CallError, ErrorCode, Limits, Outcome, Peer, Router, Server, ServerLimits, memory_listener,
    memory_pair,
};
use serde_json::{Value, json};

use crate::agent::ended;
use crate::blocked_sides::{HANDLERS, PROMPT};
use crate::flood_sizes::TIMED;
use crate::{alone, in_time, until};

const ROUNDS: usize = 100;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for blocking in [false, true] {
        let name = if blocking { "blocking" } else { "async" };
        let name = format!("blocked_sides::a_handler_that_never_yields_drains_and_is_reported::{name}");
        trials.push(alone(name, move || async move { never_yields(blocking) }));
    }
    for (cap, which) in caps() {
        let name = format!("blocked_sides::deaf_blocking_handlers_keep_to_the_servers_cap::{which}");
        trials.push(alone(name, move || async move { deaf_and_blocking(cap) }));
    }
    trials
}

/// A runtime with several threads, because a handler that never yields blocks one of them.
fn never_yields(blocking: bool) {
    std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
        runtime.block_on(spins(blocking));
        runtime.shutdown_timeout(Duration::from_secs(10));
    })
    .join()
    .unwrap();
}

fn spin(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
}

async fn spins(blocking: bool) {
    let stop = Arc::new(AtomicBool::new(false));
    let (until_async, until_blocking) = (Arc::clone(&stop), Arc::clone(&stop));
    let router = Router::new()
        .method("async", move |_: CallContext, _: Value| {
            let stop = Arc::clone(&until_async);
            async move {
                spin(&stop);
                Ok(Value::Null)
            }
        })
        .blocking("blocking", move |_: CallContext, _: Value| {
            spin(&until_blocking);
            Ok(Value::Null)
        })
        .method("echo", |_: CallContext, value: Value| async { Ok(value) });
    let mut limits = Limits::default();
    limits.cancel_grace = Duration::from_millis(200);
    let (near, far) = memory_pair();
    let server = Peer::builder(ACP).serve(router).limits(limits.clone()).attach(far).unwrap();
    let client = Peer::builder(ACP).attach(near).unwrap();
    let method = if blocking { "blocking" } else { "async" };
    let call = client.call::<_, Value>(method, &json!({})).start().unwrap();
    until("it runs", || server.stats().running == 1).await;
    let since = std::time::Instant::now();
    call.canceller().cancel("stop");
    assert_eq!(ended(call).await, "cancelled by caller, confirmed");
    let took = since.elapsed();
    eprintln!("counted: a {method} handler that never yields is answered for after {took:?}");
    assert!(took >= limits.cancel_grace, "{took:?}");
    assert!(!TIMED || took <= limits.cancel_grace + PROMPT, "{took:?}");
    let stats = server.stats();
    assert_eq!((stats.draining, stats.slots, stats.aborted), (1, 1, 1), "I10: its permit is held");
    assert_eq!(in_time("I13: others", client.call::<_, Value>("echo", &json!([1]))).await, Ok(json!([1])));
    assert_eq!(
        in_time("L3: the shutdown", server.shutdown(Duration::ZERO)).await,
        1,
        "it says how many still run"
    );
    stop.store(true, Ordering::Relaxed);
    until("I3: and then it is gone", || server.stats().slots == 0).await;
}

/// Threads that wait here until the test releases them.
#[derive(Clone, Default)]
struct Threads(Arc<(Mutex<bool>, Condvar, AtomicUsize)>);

impl Threads {
    fn wait(&self) {
        let (open, opened, alive) = &*self.0;
        alive.fetch_add(1, Ordering::SeqCst);
        drop(opened.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
        alive.fetch_sub(1, Ordering::SeqCst);
    }

    fn alive(&self) -> usize {
        self.0.2.load(Ordering::SeqCst)
    }

    fn let_go(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

/// The limit that draining handlers reach first, and the limit of all handlers, as large as the number of threads of
/// this process.
fn caps() -> [(ServerLimits, &'static str); 2] {
    let draining = ServerLimits::default();
    let mut running = ServerLimits::default();
    running.max_draining_handlers = usize::MAX;
    running.max_running_handlers = 2 * HANDLERS;
    [(draining, "draining"), (running, "running")]
}

/// A reconnect does not reset the counts of a server.
fn deaf_and_blocking(cap: ServerLimits) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(HANDLERS * 3 + 16)
            .thread_stack_size(128 * 1024)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(reconnects(cap));
        runtime.shutdown_timeout(Duration::from_secs(10));
    })
    .join()
    .unwrap();
}

async fn reconnects(cap: ServerLimits) {
    let threads = Threads::default();
    let blocked = threads.clone();
    let router = Router::new()
        .method("initialize", |_: CallContext, _: Value| async { Ok(json!({"protocolVersion": 1})) })
        .method("echo", |_: CallContext, value: Value| async { Ok(value) })
        .blocking("block", move |_: CallContext, _: Value| {
            blocked.wait();
            Ok(Value::Null)
        });
    let mut limits = Limits::default();
    limits.max_blocking_handlers = HANDLERS;
    limits.cancel_grace = Duration::from_millis(5);
    let (listener, transport) = memory_listener();
    let server = Server::builder([ACP]).serve(router).limits(limits).server_limits(cap).listen(listener);
    let serving = tokio::spawn(server.run());
    let hello = json!({"protocolVersion": 1});
    // A connection in memory counts as a client, and its share of the draining handlers is counted. Above the limit
    // the next one is refused.
    let drains = cap.max_draining_handlers < HANDLERS;
    let filling = if drains {
        cap.max_draining_handlers / cap.client_share.of(cap.max_draining_handlers) + 1
    } else {
        cap.max_running_handlers / HANDLERS
    };
    let (mut most, mut refused) = (0, 0);
    for round in 0..ROUNDS {
        let client = Peer::builder(ACP).role(Role::Client).connect(transport.clone()).await.unwrap();
        let calls = (0..HANDLERS).map(|_| client.call::<_, Value>("block", &json!({})).start().unwrap());
        let calls: Vec<_> = calls.collect();
        if round < filling {
            until("all of them block", || threads.alive() == HANDLERS * (round + 1)).await;
            drop(client);
            drop(calls);
            if drains && round + 1 == filling {
                // The graces have ended when others are refused.
                until_draining(&transport, &hello).await;
            }
        } else {
            for call in calls {
                match in_time("I13: a refusal", call.outcome()).await {
                    Outcome::Failed(error) => assert_overloaded(Err(CallError::Failed(error))),
                    other => panic!("round {round}: {other:?}"),
                }
                refused += 1;
            }
        }
        most = most.max(threads.alive());
    }
    eprintln!(
        "counted: at most {most} threads, {HANDLERS} a connection over {ROUNDS} connections, {refused} refused"
    );
    assert_eq!((most, refused), (HANDLERS * filling, HANDLERS * (ROUNDS - filling)), "I10: the cap holds");
    assert!(most <= cap.max_running_handlers);
    threads.let_go();
    until("all are gone", || threads.alive() == 0).await;
    // After that it serves again.
    let client = Peer::builder(ACP).role(Role::Client).connect(transport.clone()).await.unwrap();
    in_time("serving again", async {
        while client.call::<_, Value>("echo", &json!([1])).await != Ok(json!([1])) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    serving.abort();
}

/// Waits until a new connection's request is refused.
async fn until_draining(transport: &rescind::MemoryTransport, hello: &Value) {
    in_time("they drain", async {
        loop {
            let client = Peer::builder(ACP).role(Role::Client).connect(transport.clone()).await.unwrap();
            if client.call::<_, Value>("initialize", hello).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

fn assert_overloaded(answer: Result<Value, CallError>) {
    match answer {
        Err(CallError::Failed(error)) => {
            assert_eq!(error.code, ErrorCode::INTERNAL_ERROR, "{error}");
            assert!(format!("{:?}", error.data).contains("overloaded"), "{error:?}");
        }
        other => panic!("{other:?}"),
    }
}
