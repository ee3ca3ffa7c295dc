//! A peer that exists and does nothing: it neither reads nor writes, and does not disconnect.

use std::time::Duration;

use libtest_mimic::Trial;

use crate::agent::{Ends, ended, limits};
use crate::disconnect::Side;
use crate::wires::{Setting, WIRES, Wire};
use crate::{in_time, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for wire in WIRES {
        trials
            .push(trial(format!("half_open::a_cancelled_call_ends_unconfirmed::{}", wire.name), move || {
                cancelled(wire)
            }));
        trials
            .push(trial(format!("half_open::a_dropped_call_and_a_shutdown_end::{}", wire.name), move || {
                shut_down(wire)
            }));
    }
    let pinged = WIRES.into_iter().find(|wire| wire.name == "websocket").unwrap();
    for (asks, asker) in Side::BOTH {
        let name = format!("half_open::a_client_that_answers_no_ping_is_lost_asked_by_{asker}::websocket");
        trials.push(trial(name, move || unanswered_pings(pinged, asks)));
    }
    trials
}

async fn frozen_while_it_serves(wire: Wire) -> (Ends, rescind::Call<serde_json::Value>) {
    let mut limits = limits();
    limits.cancel_response_timeout = Duration::from_millis(100);
    let ends = Ends::open(wire, &limits).await;
    let call = ends.client.call("wait", 1);
    ends.server.seen.until("wait 1 began").await;
    ends.server.valve.stop_reading();
    ends.server.valve.stop_writing();
    (ends, call)
}

/// Its call ends as cancelled and unconfirmed.
async fn cancelled(wire: Wire) {
    let (ends, call) = frozen_while_it_serves(wire).await;
    call.canceller().cancel("stop");
    assert_eq!(ended(call).await, "cancelled by caller, unconfirmed");
    assert_eq!(ends.client.peer.stats().unresponsive, 1);
    assert_eq!(ends.server.seen.lines(), ["wait 1 began"], "it did not hear of it");
    ends.client.is_clean("who asked").await;
    ends.client.valve.cut();
    ends.server.valve.cut();
    ends.server.is_clean("who was asked").await;
}

/// Neither a dropped call nor a shutdown waits for it.
async fn shut_down(wire: Wire) {
    let (ends, call) = frozen_while_it_serves(wire).await;
    drop(call);
    let waits = ends.client.call("wait", 2);
    let since = tokio::time::Instant::now();
    assert_eq!(in_time("L3: the shutdown", ends.client.peer.shutdown(Duration::ZERO)).await, 0);
    assert!(since.elapsed() < Duration::from_secs(20), "it took {:?}", since.elapsed());
    assert_eq!(ended(waits).await, "cancelled by shutdown, unconfirmed");
    ends.client.is_clean("who asked").await;
    ends.server.valve.cut();
    ends.server.is_clean("who was asked").await;
}

/// The client freezes, and the server sends pings: its side of the connection ends within a few pings, with the
/// reason.
async fn unanswered_pings(wire: Wire, asks: Side) {
    const PING: Duration = Duration::from_millis(50);
    let setting = Setting { ping: PING, ..Setting::default() };
    let ends = Ends::open_with(wire, setting, &limits()).await;
    let (asker, agent) = asks.of(&ends);
    let call = asker.call("wait", 1);
    agent.seen.until("wait 1 began").await;
    ends.client.valve.stop_reading();
    let since = tokio::time::Instant::now();
    let why = in_time("L3: the loss", ends.server.peer.closed()).await.unwrap_err();
    let took = since.elapsed();
    // Two pings without an answer, and the time until the first.
    assert!(took >= PING, "{took:?}");
    assert!(cfg!(debug_assertions) || took <= 2 * 3 * PING, "{took:?}");
    assert!(reported(&why).contains("ping"), "the reason is reported: {}", reported(&why));
    ends.client.valve.read_again();
    assert_eq!(ended(call).await, "disconnected, may have run");
    agent.seen.until("wait 1 signalled: disconnected").await;
    ends.client.is_clean("the client").await;
    ends.server.is_clean("the server").await;
}

/// An error with all of its sources.
fn reported(error: &dyn std::error::Error) -> String {
    let behind = error.source().map_or_else(String::new, |source| format!(": {}", reported(source)));
    format!("{error}{behind}")
}
