//! What does not move: a peer that reads nothing, handlers that end by no means, and both sides waiting for each other.

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
use tokio::time::Instant;

use crate::agent::{Ends, ended};
use crate::counts::TIMED;
use crate::wires::{Kind, WIRES};
use crate::{alone, in_time, trial, until};

/// Within so long of its time a thing happens that has one.
const PROMPT: Duration = Duration::from_millis(50);
const RESULTS: usize = 4000;
const HANDLERS: usize = 1024;
const ROUNDS: usize = 100;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for wire in WIRES {
        let name = format!("stuck::a_handler_is_stopped_behind_4000_unread_results::{}", wire.name);
        trials.push(trial(name, move || unread(wire)));
    }
    trials.push(trial("stuck::an_async_handler_that_loops_is_answered_by_its_grace".into(), loops));
    for blocking in [false, true] {
        let name = if blocking { "blocking" } else { "async" };
        let name = format!("stuck::a_handler_that_never_yields_drains_and_is_reported::{name}");
        trials.push(alone(name, move || async move { never_yields(blocking) }));
    }
    let name = "stuck::deaf_blocking_handlers_keep_to_the_servers_cap".to_owned();
    trials.push(alone(name, || async { deaf_and_blocking() }));
    trials.push(trial("stuck::handlers_that_all_wait_for_queued_callbacks_are_refused".into(), deadlock));
    trials
}

/// The time is the test's own: nothing that goes by it can be late.
async fn unread(wire: crate::wires::Wire) {
    let limits = Limits::default();
    let ends = Ends::open(wire, &limits).await;
    let (asker, agent) = (&ends.client, &ends.server);
    let wait = asker.call("wait", 1);
    agent.seen.until("wait 1 began").await;
    asker.valve.stop_reading();
    let before = agent.peer.stats().finished;
    let much = json!({"bytes": 2048});
    let results: Vec<_> =
        (0..RESULTS).map(|_| asker.peer.call::<_, Value>("much", &much).start().unwrap()).collect();
    // A client of HTTP has 1024 requests in flight; the others wait on its side.
    let handled = if wire.kind == Kind::Connection { RESULTS } else { 1000 };
    until("the results wait", || agent.peer.stats().finished - before >= handled as u64).await;
    let is_bounded = || {
        let load = agent.peer.load();
        load.outbox_frames <= limits.outbox_frames && load.outbox_bytes <= limits.outbox_bytes
    };
    assert!(is_bounded(), "I11: {:?}", agent.peer.load());
    let since = std::time::Instant::now();
    let _ = wait.canceller().cancel("stop");
    agent.seen.until("wait 1 signalled: peer").await;
    let took = since.elapsed();
    eprintln!("counted: {}: a cancel behind {handled} unread results is heard after {took:?}", wire.name);
    assert!(!TIMED || took <= PROMPT, "it took {took:?}");
    assert!(is_bounded(), "I11: {:?}", agent.peer.load());
    drop(results);
    ends.close().await;
}

/// A loop that awaits and does not look at its cancel: the answer comes with the grace, to the millisecond.
async fn loops() {
    tokio::time::pause();
    let (near, far) = memory_pair();
    let router = Router::new().method("loop", |_: CallContext, _: Value| async {
        loop {
            tokio::time::sleep(Duration::from_millis(7)).await;
        }
        #[expect(unreachable_code, reason = "it says what the answer would be")]
        Ok(Value::Null)
    });
    let limits = Limits::default();
    let server = Peer::builder(ACP).serve(router).limits(limits.clone()).attach(far).unwrap();
    let client = Peer::builder(ACP).attach(near).unwrap();
    let call = client.call::<_, Value>("loop", &json!({})).start().unwrap();
    until("it runs", || server.stats().running == 1).await;
    let since = Instant::now();
    let _ = call.canceller().cancel("stop");
    assert_eq!(ended(call).await, "cancelled by caller, confirmed");
    let took = since.elapsed();
    assert!((limits.cancel_grace..=limits.cancel_grace + PROMPT).contains(&took), "{took:?}");
    until("I10: an async one is aborted, and its permit free", || server.stats().slots == 0).await;
    assert_eq!(server.stats().aborted, 1);
}

/// A runtime of several threads, as a handler that never yields takes one for itself.
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
    let _ = call.canceller().cancel("stop");
    assert_eq!(ended(call).await, "cancelled by caller, confirmed");
    let took = since.elapsed();
    eprintln!("counted: a {method} handler that never yields is answered for after {took:?}");
    assert!(took >= limits.cancel_grace, "{took:?}");
    assert!(!TIMED || took <= limits.cancel_grace + PROMPT, "{took:?}");
    let stats = server.stats();
    assert_eq!((stats.draining, stats.slots, stats.aborted), (1, 1, 1), "I10: its permit is held");
    assert_eq!(in_time("others", client.call::<_, Value>("echo", &json!([1]))).await, Ok(json!([1])));
    assert_eq!(
        in_time("the shutdown", server.shutdown(Duration::ZERO)).await,
        1,
        "it says how many still run"
    );
    stop.store(true, Ordering::Relaxed);
    until("I3: and then it is gone", || server.stats().slots == 0).await;
}

/// Threads that wait here until the test lets them go.
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

/// Reconnecting does not reset what a server counts.
fn deaf_and_blocking() {
    std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(HANDLERS * 2)
            .thread_stack_size(128 * 1024)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(reconnects());
        runtime.shutdown_timeout(Duration::from_secs(10));
    })
    .join()
    .unwrap();
}

async fn reconnects() {
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
    limits.blocking = HANDLERS;
    limits.cancel_grace = Duration::from_millis(5);
    let cap = ServerLimits::default();
    let (listener, transport) = memory_listener();
    let server = Server::builder([ACP]).serve(router).limits(limits).server_limits(cap).listen(listener);
    let serving = tokio::spawn(server.run());
    let hello = json!({"protocolVersion": 1});
    let (mut most, mut refused) = (0, 0);
    for round in 0..ROUNDS {
        let client = Peer::builder(ACP).role(Role::Client).connect(transport.clone()).await.unwrap();
        if round == 0 {
            in_time("the handshake", client.call::<_, Value>("initialize", &hello)).await.unwrap();
        } else {
            // Who comes now is told that too many still drain.
            assert_overloaded(in_time("a refusal", client.call::<_, Value>("initialize", &hello)).await);
        }
        let calls: Vec<_> =
            (0..HANDLERS).map(|_| client.call::<_, Value>("block", &json!({})).start().unwrap()).collect();
        if round == 0 {
            until("all of them block", || threads.alive() == HANDLERS).await;
            drop(client);
            drop(calls);
        } else {
            for call in calls {
                match in_time("a refusal", call.outcome()).await {
                    Outcome::Failed(error) => assert_overloaded(Err(CallError::Failed(error))),
                    other => panic!("round {round}: {other:?}"),
                }
                refused += 1;
            }
        }
        most = most.max(threads.alive());
        if round == 0 {
            // The graces are over when the others are refused.
            until_draining(&transport, &hello).await;
        }
    }
    eprintln!(
        "counted: at most {most} threads of {HANDLERS} a connection over {ROUNDS} connections, {refused} refused"
    );
    assert_eq!(most, HANDLERS, "I10: the cap of the server holds");
    assert!(most <= cap.running);
    threads.let_go();
    until("all are gone", || threads.alive() == 0).await;
    // And it serves again.
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

/// Each handler asks its caller for something that has no permit there: nobody gets one until the queue time is over.
async fn deadlock() {
    tokio::time::pause();
    let limits = Limits::default();
    assert_eq!(limits.running, HANDLERS);
    let asks = |method: &'static str| {
        move |ctx: CallContext, params: Value| async move {
            let answer: Value = ctx.call(method, &params).await?;
            Ok(answer)
        }
    };
    let (near, far) = memory_pair();
    let server = Router::new()
        .method("ask", asks("ask_back"))
        .method("leaf", |_: CallContext, value: Value| async { Ok(value) });
    let client = Router::new().method("ask_back", asks("leaf"));
    let server = Peer::builder(ACP).serve(server).limits(limits.clone()).attach(far).unwrap();
    let client =
        Peer::builder(ACP).role(Role::Client).serve(client).limits(limits.clone()).attach(near).unwrap();
    let since = Instant::now();
    let calls: Vec<_> =
        (0..HANDLERS).map(|n| client.call::<_, Value>("ask", &json!([n])).start().unwrap()).collect();
    until("their callbacks wait for a permit", || server.stats().queued == HANDLERS as u64).await;
    assert_eq!(server.stats().running, HANDLERS as u64);
    let mut refused = 0;
    for call in calls {
        match tokio::time::timeout(limits.queue_time * 2, call.outcome()).await.expect("a deadlock") {
            Outcome::Failed(error) => {
                assert!(format!("{:?}", error.data).contains("overloaded"), "{error:?}");
                refused += 1;
            }
            Outcome::Completed(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let took = since.elapsed();
    assert!(refused > 0, "the first are refused; what they held serves others");
    assert!((limits.queue_time..=limits.queue_time + PROMPT).contains(&took), "{took:?}");
    until("I3", || {
        server.stats().slots + client.stats().slots + server.stats().calls + client.stats().calls == 0
    })
    .await;
    // Who serves stays open.
    client.shutdown(Duration::ZERO).await;
    in_time("the other side's end", server.closed()).await.unwrap();
    tokio::time::resume();
}
