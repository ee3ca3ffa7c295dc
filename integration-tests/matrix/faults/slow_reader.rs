//! A peer that sends many requests and does not read.

use libtest_mimic::Trial;
use rescind::{Call, Limits};
use serde_json::{Value, json};

use crate::agent::{End, Ends, ended, limits};
use crate::wires::{Kind, WIRES, Wire};
use crate::{HANG, in_time, trial, until};

/// Results that wait for the reader, each of `BYTES`.
const RESULTS: usize = 4000;
const BYTES: usize = 4 * 1024;
/// The limit of an outbox here, in bytes: far less than the results, and than a wire buffers for its reader.
const OUTBOX: usize = 1 << 20;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for wire in WIRES {
        let name = format!("slow_reader::a_cancel_is_heard_behind_four_thousand_results::{}", wire.name);
        trials.push(trial(name, move || heard(wire)));
        // In HTTP each request is an exchange, and a client has 1024 of them: the reserve is not used up.
        if wire.kind == Kind::Connection {
            let name = format!("slow_reader::who_sends_and_never_reads_is_told_so::{}", wire.name);
            trials.push(trial(name, move || reported(wire)));
        }
    }
    trials
}

fn much(asker: &End, bytes: usize) -> Call<Value> {
    asker.peer.call::<_, Value>("much", &json!({"bytes": bytes})).start().unwrap()
}

fn is_bounded(end: &End, limits: &Limits) {
    let load = end.peer.queue_stats();
    assert!(load.outbox_frames <= limits.max_outbox_frames, "I11: {load:?}");
    assert!(load.outbox_bytes <= limits.max_outbox_bytes, "I11: {load:?}");
}

/// The handler gets its cancel although none of the waiting answers is read before, and nothing is lost when they are
/// read.
async fn heard(wire: Wire) {
    // The duration of the later reads is not part of the test.
    let mut limits = limits();
    limits.cancel_response_timeout = HANG;
    limits.max_outbox_bytes = OUTBOX;
    limits.max_queued_requests = RESULTS;
    let ends = Ends::open(wire, &limits).await;
    let (asker, agent) = (&ends.client, &ends.server);
    let wait = asker.call("wait", 1);
    agent.seen.until("wait 1 began").await;
    asker.valve.stop_reading();
    let before = agent.peer.stats().finished;
    let results: Vec<_> = (0..RESULTS).map(|_| much(asker, BYTES)).collect();
    let handled = if wire.kind == Kind::Connection {
        let permits = limits.max_running_handlers as u64;
        until("I11: results wait with their permits", || agent.peer.stats().running == permits).await;
        assert!(
            agent.peer.queue_stats().outbox_bytes > OUTBOX / 2,
            "what waits is queued: {:?}",
            agent.peer.queue_stats()
        );
        RESULTS
    } else {
        // A client of HTTP has 1024 requests in flight. The others wait on its side. Each has a separate response.
        let in_flight = 1000;
        until("the results wait", || agent.peer.stats().finished - before >= in_flight as u64).await;
        in_flight
    };
    is_bounded(agent, &limits);
    let since = std::time::Instant::now();
    wait.canceller().cancel("stop");
    agent.seen.until("wait 1 signalled: peer").await;
    eprintln!("{}: a cancel behind {handled} unread results is heard after {:?}", wire.name, since.elapsed());
    is_bounded(agent, &limits);
    asker.valve.read_again();
    assert_eq!(ended(wait).await, "cancelled by caller, confirmed");
    for result in results {
        assert_eq!(ended(result).await, "completed");
    }
    asker.is_clean("who asked").await;
    agent.is_clean("who was asked").await;
    ends.close().await;
}

/// When the reserve for refusals is used up, the connection ends with the reason.
async fn reported(wire: Wire) {
    let limits = limits();
    let ends = Ends::open(wire, &limits).await;
    let (asker, agent) = (&ends.client, &ends.server);
    let wait = asker.call("wait", 1);
    agent.seen.until("wait 1 began").await;
    asker.valve.stop_reading();
    // First the wire is filled.
    let mut calls: Vec<_> = (0..8).map(|_| much(asker, 2 << 20)).collect();
    let before = agent.peer.stats().started;
    until("results wait", || {
        agent.peer.queue_stats().outbox_frames > 0 || agent.peer.stats().started > before
    })
    .await;
    for _ in 0..2 * limits.max_reserve_frames {
        calls.push(asker.peer.call::<_, Value>("no/such", &json!({})).start().unwrap());
    }
    let why = in_time("L3: the end", agent.peer.closed()).await.unwrap_err().to_string();
    assert!(why.contains("sends and does not read"), "{why}");
    agent.seen.until("wait 1 signalled: disconnected").await;
    agent.is_clean("who was asked").await;
    asker.valve.read_again();
    in_time("L3: the client's end", asker.peer.closed()).await.ok();
    assert_eq!(ended(wait).await, "disconnected, may have run");
    let mut lost = 0;
    for call in calls {
        match ended(call).await.as_str() {
            "completed" | "failed -32601" => {}
            "disconnected, may have run" | "disconnected, was not sent" => lost += 1,
            other => panic!("{other}"),
        }
    }
    assert!(lost > 0);
    asker.is_clean("who asked").await;
}
