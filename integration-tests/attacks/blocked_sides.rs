//! Blocked sides: a peer that does not read, a handler that ignores its cancel, and both sides waiting for each other.
//!
//! The handlers that never end are at the end of this file.

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
use crate::floods::TIMED;
use crate::wires::{Kind, WIRES};
use crate::{alone, in_time, trial, until};

/// How much later than its time a timed event may happen.
pub(crate) const PROMPT: Duration = Duration::from_millis(50);
const RESULTS: usize = 4000;
/// In bytes: together more than any wire here buffers for a reader.
const RESULT: usize = 4 * 1024;
/// The limit of frames in an outbox here: far fewer than the results.
const OUTBOX: usize = 256;
const HANDLERS: usize = 1024;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for wire in WIRES {
        let name = format!("blocked_sides::a_handler_is_stopped_behind_4000_unread_results::{}", wire.name);
        trials.push(trial(name, move || unread(wire)));
    }
    trials.push(trial("blocked_sides::an_async_handler_that_loops_is_answered_by_its_grace".into(), loops));
    trials.push(trial("blocked_sides::a_caller_of_a_peer_that_reads_nothing_is_settled".into(), unanswered));
    trials.extend(deaf_trials());
    trials.push(trial(
        "blocked_sides::handlers_that_all_wait_for_queued_callbacks_are_refused".into(),
        deadlock,
    ));
    trials
}

/// The outbox is full with a few of the results. The others wait with their permits, and further requests wait in the
/// queue. The test controls the time, so nothing that depends on it can be late.
async fn unread(wire: crate::wires::Wire) {
    let mut limits = Limits::default();
    limits.max_outbox_frames = OUTBOX;
    limits.max_queued_requests = RESULTS;
    let ends = Ends::open(wire, &limits).await;
    let (asker, agent) = (&ends.client, &ends.server);
    let wait = asker.call("wait", 1);
    agent.seen.until("wait 1 began").await;
    asker.valve.stop_reading();
    let before = agent.peer.stats().finished;
    let much = json!({"bytes": RESULT});
    let results: Vec<_> =
        (0..RESULTS).map(|_| asker.peer.call::<_, Value>("much", &much).start().unwrap()).collect();
    let is_bounded = || agent.peer.queue_stats().outbox_frames <= OUTBOX;
    let waiting = if wire.kind == Kind::Connection {
        let permits = limits.max_running_handlers as u64;
        // Each result is written, is in the outbox, or waits. The additional one is the cancelled request.
        until("L2, I11: all is read, and results wait with their permits", || {
            let stats = agent.peer.stats();
            let all = stats.finished - before + stats.running + stats.queued;
            stats.running == permits && all == RESULTS as u64 + 1
        })
        .await;
        assert_eq!(agent.peer.queue_stats().outbox_frames, OUTBOX, "I11: {:?}", agent.peer.queue_stats());
        RESULTS
    } else {
        // A client of HTTP has 1024 requests in flight. The others wait on its side. Each has a separate response.
        let in_flight = 1000;
        until("L2, I11: all is read, and the results wait", || {
            agent.peer.stats().finished - before >= in_flight as u64
        })
        .await;
        in_flight
    };
    assert!(is_bounded(), "I11: {:?}", agent.peer.queue_stats());
    let since = std::time::Instant::now();
    wait.canceller().cancel("stop");
    agent.seen.until("wait 1 signalled: peer").await;
    let took = since.elapsed();
    eprintln!("counted: {}: a cancel behind {waiting} unread results is heard after {took:?}", wire.name);
    assert!(!TIMED || took <= PROMPT, "it took {took:?}");
    assert!(is_bounded(), "I11: {:?}", agent.peer.queue_stats());
    drop(results);
    ends.close().await;
}

/// Calls without a deadline, on a full wire. I13: a cancel settles its calls although nothing can be written, and the
/// close settles the others.
async fn unanswered() {
    tokio::time::pause();
    let (near, _unread) = memory_pair();
    let limits = Limits::default();
    let client = Peer::builder(ACP).role(Role::Client).limits(limits.clone()).attach(near).unwrap();
    let much = json!({"filler": "x".repeat(1 << 20)});
    let mut calls: Vec<_> =
        (0..40).map(|_| client.call::<_, Value>("work", &much).start().unwrap()).collect();
    until("the wire is full and the rest waits", || (1..40).contains(&client.queue_stats().outbox_frames))
        .await;
    let left = calls.split_off(20);
    let since = Instant::now();
    for call in &calls {
        call.canceller().cancel("stop");
    }
    for call in calls {
        assert!(in_time("I13: who cancels", call.outcome()).await.is_cancelled());
    }
    let took = since.elapsed();
    assert!(took <= limits.cancel_response_timeout + PROMPT, "{took:?}");
    let since = Instant::now();
    let closing = client.clone();
    let closing = tokio::spawn(async move { closing.shutdown(Duration::ZERO).await });
    for call in left {
        let outcome = in_time("I13, L3: who is left at the close", call.outcome()).await;
        assert!(matches!(outcome, Outcome::Disconnected { .. } | Outcome::Cancelled(_)), "{outcome:?}");
    }
    in_time("L3: the close", closing).await.unwrap();
    let took = since.elapsed();
    assert!(took <= limits.flush_timeout + limits.cancel_response_timeout + PROMPT, "{took:?}");
    until("I3: no call is left", || client.stats().calls == 0).await;
}

/// A loop that awaits and ignores its cancel: the answer comes with the grace, to the millisecond.
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
    call.canceller().cancel("stop");
    assert_eq!(ended(call).await, "cancelled by caller, confirmed");
    let took = since.elapsed();
    assert!((limits.cancel_grace..=limits.cancel_grace + PROMPT).contains(&took), "{took:?}");
    until("I10: an async one is aborted, and its permit free", || server.stats().slots == 0).await;
    assert_eq!(server.stats().aborted, 1);
}

/// Each handler calls its caller, where no permit is free: no call gets one until the queue time ends.
async fn deadlock() {
    tokio::time::pause();
    let limits = Limits::default();
    assert_eq!(limits.max_running_handlers, HANDLERS);
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
    until("L2: the callbacks are read, and wait for a permit", || server.stats().queued == HANDLERS as u64)
        .await;
    assert_eq!(server.stats().running, HANDLERS as u64);
    let mut refused = 0;
    for call in calls {
        match tokio::time::timeout(limits.queue_timeout * 2, call.outcome())
            .await
            .expect("L2, I13: a deadlock")
        {
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
    assert!((limits.queue_timeout..=limits.queue_timeout + PROMPT).contains(&took), "{took:?}");
    until("I3", || {
        server.stats().slots + client.stats().slots + server.stats().calls + client.stats().calls == 0
    })
    .await;
    // The serving side stays open.
    client.shutdown(Duration::ZERO).await;
    in_time("L3: the other side's end", server.closed()).await.unwrap();
    tokio::time::resume();
}

// Handlers that never end: they hold threads of the runtime, and neither their grace nor a reconnect frees these.

const ROUNDS: usize = 100;

fn deaf_trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for blocking in [false, true] {
        let name = if blocking { "blocking" } else { "async" };
        let name = format!("deaf_handlers::a_handler_that_never_yields_drains_and_is_reported::{name}");
        trials.push(alone(name, move || async move { never_yields(blocking) }));
    }
    for (cap, which) in caps() {
        let name = format!("deaf_handlers::deaf_blocking_handlers_keep_to_the_servers_cap::{which}");
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
