//! A connection is lost in each state of a request: the request of either side, the loss by either side. The caller's
//! outcome, the handler's observations and what is left are the same on every wire.
//!
//! If sessions outlive connections, a wire detects a vanished client later, but in the same way (L3). Its graces are
//! short here. Over HTTP a dropped client still sends a DELETE. Therefore the path between the two is cut first, and
//! neither gets a message of the other.
//!
//! A connection whose peer neither reads nor writes is at the end of this file.

use std::time::Duration;

use libtest_mimic::Trial;
use rescind::http::HttpCounts;
use rescind::{Call, CancelResult, Limits};
use serde_json::{Value, json};

use crate::agent::{End, Ends, ended, limits};
use crate::wires::{Kind, Setting, WIRES, Way, Wire};
use crate::{in_time, trial, until};

/// The state of a request when its connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The caller has sent it, and the transport has not accepted it.
    Staged,
    /// It waits for a permit, after another request.
    Queued,
    /// Its handler runs.
    Running,
    /// Its handler runs and ignores its cancel.
    Deaf,
    /// Its caller cancelled it, and the transport has not accepted the cancel.
    CancelStaged,
    /// It is cancelled and its handler cleans up.
    InGrace,
    /// It is answered as cancelled and its handler cannot be stopped.
    Draining,
    /// Its handler is in a critical section.
    Shielded,
    /// Its answer waits for a caller that does not read.
    AnswerStaged,
}

pub(crate) const STATES: [(State, &str); 9] = [
    (State::Staged, "staged"),
    (State::Queued, "queued"),
    (State::Running, "running"),
    (State::Deaf, "deaf"),
    (State::CancelStaged, "cancel_staged"),
    (State::InGrace, "in_grace"),
    (State::Draining, "draining"),
    (State::Shielded, "shielded"),
    (State::AnswerStaged, "answer_staged"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Side {
    pub(crate) const BOTH: [(Self, &'static str); 2] = [(Self::Client, "client"), (Self::Server, "server")];

    pub(crate) const fn of(self, ends: &Ends) -> (&End, &End) {
        match self {
            Self::Client => (&ends.client, &ends.server),
            Self::Server => (&ends.server, &ends.client),
        }
    }
}

/// The required observations, on every wire.
pub(crate) struct Expected {
    pub(crate) callers: &'static [&'static str],
    handlers: &'static [&'static str],
}

impl State {
    pub(crate) fn limits(self) -> Limits {
        let mut limits = limits();
        match self {
            Self::Queued => limits.max_running_handlers = 1,
            Self::Deaf | Self::Draining => limits.cancel_grace = Duration::from_millis(50),
            Self::InGrace | Self::Shielded => limits.cancel_grace = Duration::from_secs(300),
            // All of its answers must wait: with less memory the last requests would be refused.
            Self::AnswerStaged => limits.max_memory_bytes = 2 * MUCH * (2 << 20),
            Self::Staged | Self::Running | Self::CancelStaged => {}
        }
        limits
    }

    pub(crate) const fn expected(self) -> Expected {
        const LOST: &str = "disconnected, may have run";
        match self {
            Self::Staged => Expected { callers: &["disconnected, was not sent"], handlers: &[] },
            Self::Queued => Expected {
                callers: &[LOST, LOST],
                handlers: &["wait 1 began", "wait 1 signalled: disconnected", "wait 1 gone"],
            },
            Self::Running => Expected {
                callers: &[LOST],
                handlers: &["wait 1 began", "wait 1 signalled: disconnected", "wait 1 gone"],
            },
            Self::Deaf => Expected { callers: &[LOST], handlers: &["deaf 1 began", "deaf 1 gone"] },
            Self::CancelStaged => Expected {
                callers: &["cancelled by caller, unconfirmed"],
                handlers: &["wait 1 began", "wait 1 signalled: disconnected", "wait 1 gone"],
            },
            Self::InGrace => Expected {
                callers: &["cancelled by caller, unconfirmed"],
                handlers: &["clean 1 began", "clean 1 signalled: peer", "clean 1 gone"],
            },
            Self::Draining => Expected {
                callers: &["cancelled by caller, confirmed"],
                handlers: &["block 1 began", "block 1 gone"],
            },
            Self::Shielded => Expected {
                callers: &[LOST],
                handlers: &[
                    "shield 1 began",
                    "shield 1 shielded",
                    "shield 1 was not disturbed",
                    "shield 1 signalled: disconnected",
                    "shield 1 gone",
                ],
            },
            // See `is_answered_or_lost`.
            Self::AnswerStaged => Expected { callers: &[], handlers: &[] },
        }
    }

    /// Brings a request of `asker` into this state.
    async fn reach(self, asker: &End, agent: &End) -> Vec<Call<Value>> {
        match self {
            Self::Staged => {
                asker.valve.stop_writing();
                vec![asker.call("wait", 1)]
            }
            Self::Queued => {
                let first = asker.call("wait", 1);
                agent.seen.until("wait 1 began").await;
                let second = asker.call("wait", 2);
                until("the second is queued", || agent.peer.stats().queued == 1).await;
                vec![first, second]
            }
            Self::Running => began(asker, agent, "wait").await,
            Self::Deaf => began(asker, agent, "deaf").await,
            Self::CancelStaged => {
                let calls = began(asker, agent, "wait").await;
                asker.valve.stop_writing();
                assert_eq!(calls[0].canceller().cancel("too late"), CancelResult::Sent);
                calls
            }
            Self::InGrace => {
                let calls = began(asker, agent, "clean").await;
                calls[0].canceller().cancel("stop");
                agent.seen.until("clean 1 signalled: peer").await;
                calls
            }
            Self::Draining => {
                let calls = began(asker, agent, "block").await;
                calls[0].canceller().cancel("stop");
                until("it drains", || agent.peer.stats().draining == 1).await;
                calls
            }
            Self::Shielded => {
                let calls = began(asker, agent, "shield").await;
                agent.seen.until("shield 1 shielded").await;
                calls
            }
            Self::AnswerStaged => {
                asker.valve.stop_reading();
                let much = json!({"n": 1, "bytes": 2 << 20});
                let calls: Vec<_> =
                    (0..MUCH).map(|_| asker.peer.call::<_, Value>("much", &much).start().unwrap()).collect();
                until("its answers wait", || agent.peer.stats().started > 1 + MUCH as u64 / 2).await;
                calls
            }
        }
    }
}

/// More answers, of 2 MiB each, than the sockets and the outbox hold.
pub(crate) const MUCH: usize = 24;

async fn began(asker: &End, agent: &End, method: &str) -> Vec<Call<Value>> {
    let call = asker.call(method, 1);
    agent.seen.until(&format!("{method} 1 began")).await;
    vec![call]
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (state, name) in STATES {
        for (asks, asker) in Side::BOTH {
            for (leaves, leaver) in Side::BOTH {
                for wire in WIRES {
                    if !is_reported(wire, state, asks == leaves) {
                        continue;
                    }
                    let name = format!("disconnect::{name}_asked_by_{asker}_lost_by_{leaver}::{}", wire.name);
                    trials.push(trial(name, move || lost(wire, state, asks, leaves)));
                }
            }
        }
    }
    trials
}

/// Whether the serving side detects the loss while its handler runs. The end of a pipe ends the input and may be a
/// half-close. That the reader is gone is detected with the next write, and these handlers write nothing before their
/// end.
fn is_reported(wire: Wire, state: State, asker_left: bool) -> bool {
    wire.name != "pipes" || !asker_left || !matches!(state, State::InGrace | State::Shielded)
}

async fn lost(wire: Wire, state: State, asks: Side, leaves: Side) {
    let setting = Setting { way: Way::Cuttable, ..Setting::default() };
    let mut ends = Ends::open_with(wire, setting, &state.limits()).await;
    let line = ends.door.line.take();
    let (asker, agent) = asks.of(&ends);
    let mut calls = in_time("the state", state.reach(asker, agent)).await;
    let mut callers = Vec::new();
    if state == State::Draining {
        // An outcome that was confirmed before the loss is kept.
        callers.push(ended(calls.remove(0)).await);
    }
    if let Some(line) = line {
        in_time("the cut", line.cut()).await;
    }
    leaves.of(&ends).0.valve.cut();
    // A side that does not read detects nothing.
    asker.valve.read_again();
    for call in calls {
        callers.push(ended(call).await);
    }
    if keeps_its_session(wire, state, asks, leaves) {
        let _ = in_time("L3: who asked notices", asker.peer.closed()).await;
        let (serves, idled) = (agent.peer.stats(), ends.door.counts.as_ref().map(HttpCounts::idle_sessions));
        assert_eq!((serves.running, agent.seen.alive(), idled), (1, 1, Some(0)), "I10");
        agent.seen.open_gate();
    }
    for end in [&ends.client, &ends.server] {
        let _ = in_time("L3: both ends notice", end.peer.closed()).await;
    }
    if let (Some(counts), Side::Client) = (&ends.door.counts, leaves) {
        assert_eq!(counts.idle_sessions(), 1, "L3: its idle time ended the session, and no message did");
    }
    let left = agent.peer.stats();
    if state == State::Draining {
        assert_eq!((left.draining, agent.seen.alive()), (1, 1), "I10");
    }
    if matches!(state, State::InGrace | State::Shielded) && !keeps_its_session(wire, state, asks, leaves) {
        assert_eq!((left.running, agent.seen.alive()), (1, 1), "I10");
    }
    agent.seen.open_gate();
    asker.is_clean("who asked").await;
    agent.is_clean("who was asked").await;
    for end in [&ends.client, &ends.server] {
        let load = end.peer.queue_stats();
        assert_eq!(
            (load.outbox_frames, load.outbox_bytes),
            (0, 0),
            "I3: nothing waits for a wire that is gone"
        );
    }
    if state == State::AnswerStaged {
        // Over HTTP some requests wait for their POST when the path is cut. Requests with a started handler were
        // sent.
        let hello = u64::from(asks == Side::Client);
        let begun = usize::try_from(left.started - hello).unwrap();
        let unsent = if wire.kind == Kind::Conversation { MUCH - begun } else { 0 };
        is_answered_or_lost(&callers, asks == leaves, unsent);
        callers.clear();
    }
    let expected = state.expected();
    assert_eq!(callers, expected.callers, "I15: what the callers saw");
    assert_eq!(agent.seen.lines(), expected.handlers, "I15: what the handlers saw");
}

/// Over streamable HTTP a session lasts as long as it serves, even if its answer cannot be read. Here that is until
/// the end of the handler, which may continue in these states.
fn keeps_its_session(wire: Wire, state: State, asks: Side, leaves: Side) -> bool {
    let may_go_on = matches!(state, State::InGrace | State::Shielded);
    wire.name.ends_with("-streamable") && may_go_on && (asks, leaves) == (Side::Client, Side::Client)
}

/// The number of answers that a wire buffers is not defined. A caller that still exists receives the buffered ones.
/// The others are lost, and at most `most_unsent` of these were never sent. There is no other outcome.
pub(crate) fn is_answered_or_lost(callers: &[String], asker_left: bool, most_unsent: usize) {
    let count = |wanted: &str| callers.iter().filter(|end| *end == wanted).count();
    let (lost, unsent) = (count("disconnected, may have run"), count("disconnected, was not sent"));
    let answered = count("completed");
    assert!(
        unsent <= most_unsent,
        "{unsent} are reported as not sent, {most_unsent} did not begin: {callers:?}"
    );
    assert_eq!((lost + unsent + answered, lost + unsent > 0), (MUCH, true), "{callers:?}");
    assert!(!asker_left || answered == 0, "who has left reads nothing: {callers:?}");
}

// A peer that exists and does nothing: it neither reads nor writes, and does not disconnect.

pub(crate) fn half_open_trials() -> Vec<Trial> {
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
