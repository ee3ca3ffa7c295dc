//! The widest and deepest trees of requests, in a small stack.

use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rescind::dialect::{ACP, Role};
use rescind::{CallContext, Limits, Outcome, Peer, Router, memory_pair};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::floods::{TIMED, spent};
use crate::{in_time, trial, until};

/// A fifth in a debug build, in which each child takes ten times as long. There the machine alone still walks all of
/// them.
const WIDE: u64 = if TIMED { 100_000 } else { 20_000 };
const DEEP: u64 = 1000;
/// The stack size of the thread in which all of it runs.
const STACK: usize = 256 * 1024;
/// The limit in time of a core: both sides and all handlers share one thread, and the waits that other processes
/// cause do not count.
const SOON: Duration = Duration::from_secs(1);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("cascade::a_hundred_thousand_children_in_a_small_stack".into(), || async {
            small(wide_in_time);
        }),
        trial("cascade::a_thousand_hops_in_a_small_stack".into(), || async { small(deep) }),
    ]
}

fn small<F: Future<Output = ()> + 'static>(test: fn() -> F) {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
    };
    std::thread::Builder::new().stack_size(STACK).spawn(run).unwrap().join().unwrap();
}

/// The best of three runs: other processes on the machine can make a run slower, but not faster.
async fn wide_in_time() {
    let mut best = Duration::MAX;
    for _ in 0..3 {
        best = best.min(wide().await);
        if !TIMED || best <= SOON {
            return;
        }
    }
    panic!("{best:?} of a core at best");
}

/// The time of a core that it takes.
async fn wide() -> Duration {
    let mut limits = Limits::default();
    limits.max_running_handlers = 200_000;
    limits.max_calls = 200_000;
    limits.max_outbox_frames = 200_000;
    // Each child is kept with its data at both ends.
    limits.max_memory_bytes = 256 << 20;
    let (near, far) = memory_pair();
    let all = Arc::new(Notify::new());
    let asked = Arc::clone(&all);
    let parent = Router::new().method("echo", |_: CallContext, value: Value| async { Ok(value) }).method(
        "wide",
        move |ctx: CallContext, _: Value| {
            let all = Arc::clone(&asked);
            async move {
                let children: Result<Vec<_>, _> =
                    (0..WIDE).map(|_| ctx.call::<_, Value>("wait", &json!({})).start()).collect();
                all.notify_one();
                let cause = ctx.cancelled().await;
                for child in children? {
                    let outcome = child.outcome().await;
                    if !matches!(outcome, Outcome::Cancelled(_)) {
                        return Ok(json!(format!("{outcome:?}")));
                    }
                }
                ctx.stopped(cause)
            }
        },
    );
    let child = Router::new().method("wait", |ctx: CallContext, _: Value| async move {
        let cause = ctx.cancelled().await;
        ctx.stopped::<Value>(cause)
    });
    limits.cancel_grace = Duration::from_secs(60);
    limits.cancel_response_timeout = Duration::from_secs(60);
    let server = Peer::builder(ACP).serve(parent).limits(limits.clone()).attach(far).unwrap();
    let client = Peer::builder(ACP).role(Role::Client).serve(child).limits(limits).attach(near).unwrap();
    let root = client.call::<_, Value>("wide", &json!({})).start().unwrap();
    in_time("all are asked", all.notified()).await;
    until("all run", || client.stats().running == WIDE).await;
    let (since, before) = (Instant::now(), spent());
    root.canceller().cancel("stop");
    let (mut echoes, mut slowest) = (0, Duration::ZERO);
    while client.stats().cancelled < WIDE {
        let asked = Instant::now();
        let answer = in_time("I13: an echo", client.call::<_, Value>("echo", &json!([echoes]))).await;
        assert_eq!(answer, Ok(json!([echoes])), "others are answered meanwhile");
        slowest = slowest.max(asked.elapsed());
        echoes += 1;
    }
    let (took, passed) = (spent().saturating_sub(before), since.elapsed());
    eprintln!(
        "counted: {WIDE} children cancelled in {took:?} of a core and {passed:?} in all, {echoes} echoes meanwhile, the slowest {slowest:?}"
    );
    assert!(echoes > 0, "others are answered meanwhile");
    match in_time("I13: the root", root.outcome()).await {
        Outcome::Cancelled(cancelled) => assert!(cancelled.confirmed),
        other => panic!("{other:?}"),
    }
    let stats = client.stats();
    assert_eq!((stats.started, stats.cancelled), (WIDE, WIDE), "I5: each once");
    until("I3", || client.stats().slots + server.stats().slots + server.stats().calls == 0).await;
    took
}

async fn deep() {
    let deepest = Arc::new(Notify::new());
    let side = || {
        let deepest = Arc::clone(&deepest);
        Router::new().method("echo", |_: CallContext, value: Value| async { Ok(value) }).method(
            "deeper",
            move |ctx: CallContext, (depth,): (u64,)| {
                let deepest = Arc::clone(&deepest);
                async move {
                    if depth == 0 {
                        deepest.notify_one();
                        let cause = ctx.cancelled().await;
                        return ctx.stopped::<Value>(cause);
                    }
                    let answer = ctx.call::<_, Value>("deeper", &[depth - 1]).await;
                    ctx.check()?;
                    Ok(answer?)
                }
            },
        )
    };
    let mut limits = Limits::default();
    limits.cancel_grace = Duration::from_secs(60);
    let (near, far) = memory_pair();
    let server = Peer::builder(ACP).serve(side()).limits(limits.clone()).attach(far).unwrap();
    let client = Peer::builder(ACP).role(Role::Client).serve(side()).limits(limits).attach(near).unwrap();
    let root = client.call::<_, Value>("deeper", &[DEEP]).start().unwrap();
    in_time("the deepest", deepest.notified()).await;
    let before = spent();
    root.canceller().cancel("stop");
    let answer = in_time("I13: an echo", client.call::<_, Value>("echo", &json!([1]))).await;
    assert_eq!(answer, Ok(json!([1])), "others are answered meanwhile");
    assert!(in_time("I13: the root", root.outcome()).await.is_cancelled());
    let took = spent().saturating_sub(before);
    eprintln!("counted: {DEEP} hops cancelled in {took:?} of a core");
    assert!(!TIMED || took <= SOON, "{took:?}");
    until("I3", || client.stats().slots + server.stats().slots == 0).await;
    let (here, there) = (client.stats(), server.stats());
    assert_eq!(here.cancelled + there.cancelled, DEEP + 1, "I5: each once");
}
