//! Many connections, sessions and cancels at once.

use libtest_mimic::Trial;
use rescind::dialect::{MCP_2026, Role};
use rescind::http::{HttpClient, HttpServer, Stateless, StatelessTransport};
use rescind::transport::Listener as _;
use rescind::{CallContext, Outcome, Peer, Router, Server};
use rescind_testkit::support::{HANG, mcp_meta};
use serde_json::{Value, json};

use crate::agent::{End, Ends, Seen, close, ended, limits, open_at, router};
use crate::wires::{IS_REPORTED, Setting, WIRES, Way, Wire, descriptors};
use crate::{alone, in_time, trial, until};

// Many connections at once, each count in a separate process.

/// A debug build opens a quarter: a connection takes it ten times as long. `.ci/attacks` plays all in release.
const CONNECTIONS: usize = if cfg!(debug_assertions) { 250 } else { 1000 };
/// The most descriptors of a connection here, for both ends and with a separate connection for every POST: HTTP/1.1.
const DESCRIPTORS: usize = 8;
/// The most memory of a connection with its two drivers and a running handler, in bytes, for both ends.
const BUDGET: usize = 192 * 1024;

pub(crate) fn trials() -> Vec<Trial> {
    let thousand = WIRES.into_iter().map(|wire| {
        let name = format!(
            "many_connections::a_thousand_connections_and_half_of_their_requests_cancelled::{}",
            wire.name
        );
        alone(name, move || thousand(wire))
    });
    thousand.collect()
}

/// Prints that nothing can be counted, because a count of zero would satisfy any limit.
pub(crate) fn say_if_untold(what: &str) {
    if !IS_REPORTED {
        eprintln!("counted: NOTHING of {what}: this system does not tell what a process holds");
    }
}

async fn thousand(wire: Wire) {
    say_if_untold(wire.name);
    // Fewer connections would be a different test: it fails if it may not open this many files.
    rescind_testkit::allow_open_files((CONNECTIONS * DESCRIPTORS) as u64).unwrap();
    let count = CONNECTIONS;
    let limits = limits();
    let before = descriptors();
    {
        let setting = Setting { idle: std::time::Duration::from_secs(300), ..Setting::default() };
        let mut door = wire.listen(setting).await;
        let mut pairs: Vec<(End, End)> = Vec::with_capacity(count);
        let mut calls = Vec::with_capacity(count);
        let mut resident = 0;
        for number in 0..count {
            let (client, server) = open_at(&mut door, &limits).await;
            calls.push(client.peer.call::<_, Value>("wait", &json!({"n": number})).start().unwrap());
            server.seen.until(&format!("wait {number} began")).await;
            pairs.push((client, server));
            // The first connections also allocate what the process needs once.
            if number == 20 {
                resident = crate::wires::resident();
            }
        }
        let each = crate::wires::resident().saturating_sub(resident) / count;
        eprintln!("counted: {count} connections over {}, {each} bytes each with both ends", wire.name);
        assert!(each <= BUDGET, "a connection holds {each} bytes");
        let mut rest = Vec::new();
        for (number, call) in calls.into_iter().enumerate() {
            if number % 2 == 0 {
                call.canceller().cancel("half");
                assert_eq!(ended(call).await, "cancelled by caller, confirmed");
            } else {
                rest.push(call);
            }
        }
        let alive = |pairs: &[(End, End)]| pairs.iter().map(|(_, server)| server.seen.alive()).sum::<usize>();
        assert_eq!(alive(&pairs), rest.len(), "I4: half of them, and no other");
        for (client, _) in &pairs {
            client.valve.cut();
        }
        for call in rest {
            assert_eq!(ended(call).await, "disconnected, may have run");
        }
        until("I3: every handler is gone", || alive(&pairs) == 0).await;
        for (client, server) in &pairs {
            server.valve.cut();
            client.is_clean("the client").await;
            server.is_clean("the server").await;
        }
    }
    until("I3: no descriptor is left", || descriptors() <= before).await;
}

// Sessions whose requests have the same ids: a cancel affects its own session and no other (I4).

const SESSIONS: usize = 64;

pub(crate) fn cross_session_trials() -> Vec<Trial> {
    let of = |wire: Wire| {
        trial(format!("cross_session::cancels_hit_their_own_session_alone::{}", wire.name), move || {
            alone_hit(wire)
        })
    };
    WIRES.into_iter().map(of).collect()
}

async fn alone_hit(wire: Wire) {
    let limits = limits();
    let setting = Setting { idle: std::time::Duration::from_secs(300), ..Setting::default() };
    let mut door = wire.listen(setting).await;
    let mut sessions: Vec<(End, End)> = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(open_at(&mut door, &limits).await);
    }
    let mut calls = Vec::new();
    let (stranger, others) = sessions.split_first().unwrap();
    for (client, server) in others {
        let pair = (client.call("wait", 1), client.call("wait", 2));
        server.seen.until("wait 1 began").await;
        server.seen.until("wait 2 began").await;
        calls.push(pair);
    }
    // A session without requests cancels every id that the others use, as a number and as text.
    let ids = others[0].1.seen.ids();
    for (_, server) in others {
        let mut theirs = server.seen.ids();
        theirs.sort();
        let mut ours = ids.clone();
        ours.sort();
        assert_eq!(theirs, ours, "the sessions use the same ids");
    }
    for number in 0..32 {
        for id in [json!(number), json!(number.to_string())] {
            assert_ne!(id, json!(null));
            stranger.0.peer.try_notify("$/cancel_request", &json!({"requestId": id})).unwrap();
        }
    }
    // They name nothing in their session: they are dropped, or kept for a later request if the wire has no order
    // (I8).
    let named_nothing = || {
        let stats = stranger.1.peer.stats();
        stats.unknown_cancels + stats.parked_cancels + stats.ignored_cancels
    };
    until("the stranger's cancels are taken in", || named_nothing() == 64).await;
    for (client, _) in others {
        client.echoes().await;
    }
    for (_, server) in others {
        assert_eq!(server.seen.alive(), 2, "I4: nobody's request was cancelled: {:?}", server.seen.lines());
    }
    // Every other session cancels its first request.
    let mut kept = Vec::new();
    for (at, (first, second)) in calls.into_iter().enumerate() {
        if at % 2 == 0 {
            first.canceller().cancel("mine");
            assert_eq!(ended(first).await, "cancelled by caller, confirmed");
            kept.push((None, second));
        } else {
            kept.push((Some(first), second));
        }
    }
    for (at, (_, server)) in others.iter().enumerate() {
        let alive = if at % 2 == 0 { 1 } else { 2 };
        assert_eq!(server.seen.alive(), alive, "I4: session {at}: {:?}", server.seen.lines());
        let hit = server.seen.lines().iter().filter(|line| line.contains("signalled")).count();
        assert_eq!(hit, 2 - alive, "I4: session {at}: {:?}", server.seen.lines());
    }
    drop(kept);
    for (client, server) in &sessions {
        client.is_clean("the client").await;
        server.is_clean("the server").await;
    }
    for (client, server) in sessions {
        close(&client, &server).await;
    }
}

// Ten thousand cancels on one connection, of which a debug build sends a fifth: the connection and every other request on it are
// not affected.

const ROUNDS: usize = if cfg!(debug_assertions) { 4 } else { 20 };
const CALLS: usize = 500;
/// Our client resets 33 streams a second after a burst of 200, so ten thousand take five minutes. The nightly run,
/// which is a release build, plays all of them.
const STATELESS_ROUNDS: usize = if cfg!(debug_assertions) { 1 } else { ROUNDS };

pub(crate) fn burst_trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for wire in WIRES {
        let name = format!("burst::ten_thousand_cancels_end_no_connection::{}", wire.name);
        trials.push(trial(name, move || cancels(wire)));
    }
    let two = WIRES.into_iter().find(|wire| wire.name == "http2-streamable").unwrap();
    let name = "burst::ten_thousand_handlers_are_signalled_over_one_connection::http2-streamable".to_owned();
    trials.push(trial(name, move || signalled(two)));
    let name = "burst::many_cancels_end_no_connection::http2-stateless".to_owned();
    trials.push(trial(name, stateless));
    trials
}

async fn cancels(wire: Wire) {
    let ends = Ends::open(wire, &limits()).await;
    let (asker, agent) = (&ends.client, &ends.server);
    let kept = asker.call("wait", 0);
    agent.seen.until("wait 0 began").await;
    for _ in 0..ROUNDS {
        let calls: Vec<_> = (1..=CALLS as u64).map(|n| asker.call("wait", n)).collect();
        let began = agent.peer.stats().started;
        until("some of them run", || agent.peer.stats().started > began || agent.seen.alive() > 1).await;
        for call in &calls {
            call.canceller().cancel("a burst");
        }
        for call in calls {
            let end = ended(call).await;
            assert!(end.starts_with("cancelled by caller"), "{end}");
        }
        until("the round is over", || agent.seen.alive() == 1).await;
    }
    asker.echoes().await;
    assert_eq!(agent.seen.alive(), 1, "I4: the first of them was not cancelled");
    kept.canceller().cancel("");
    assert_eq!(ended(kept).await, "cancelled by caller, confirmed");
    asker.is_clean("who asked").await;
    agent.is_clean("who was asked").await;
    ends.close().await;
}

/// No call is taken back before it is sent: each has a running handler, which gets the cancel. A server of HTTP/2
/// closes a connection because of a burst of streams that end early.
async fn signalled(wire: Wire) {
    let setting = Setting { way: Way::Cuttable, ..Setting::default() };
    // How long so many answers take depends on the machine.
    let limits = limits().cancel_response_timeout(HANG);
    let ends = Ends::open_with(wire, setting, &limits).await;
    let (asker, agent) = (&ends.client, &ends.server);
    let kept = asker.call("wait", 0);
    agent.seen.until("wait 0 began").await;
    let before = agent.peer.stats().started;
    let line = ends.door.line.as_ref().unwrap();
    // The connections that were opened and closed at the start of the session have ended.
    until("one connection is left", || line.connections().0 - line.connections().1 == 1).await;
    let opened = line.connections();
    for _ in 0..ROUNDS {
        let calls: Vec<_> = (1..=CALLS as u64).map(|n| asker.call("wait", n)).collect();
        until("they run", || agent.seen.alive() == 1 + CALLS).await;
        for call in &calls {
            call.canceller().cancel("a burst");
        }
        for call in calls {
            assert_eq!(ended(call).await, "cancelled by caller, confirmed");
        }
        until("the round is over", || agent.seen.alive() == 1).await;
    }
    let saw = usize::try_from(agent.peer.stats().started - before).unwrap();
    let heard = agent.seen.lines().iter().filter(|line| line.ends_with("signalled: peer")).count();
    assert_eq!(
        (saw, heard),
        (ROUNDS * CALLS, ROUNDS * CALLS),
        "calls the server saw, and handlers that heard"
    );
    asker.echoes().await;
    assert_eq!(line.connections(), opened, "the one connection carried all of it: no end, no other");
    kept.canceller().cancel("");
    assert_eq!(ended(kept).await, "cancelled by caller, confirmed");
    asker.is_clean("who asked").await;
    agent.is_clean("who was asked").await;
    ends.close().await;
}

/// If closing an exchange is the cancel, a burst of cancels is a burst of resets. It must not cause a GOAWAY.
async fn stateless() {
    let listener = HttpServer::new(Stateless::new()).bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().0;
    let seen = Seen::new();
    let router: Router = router(&seen)
        .method("tools/call", |_: CallContext, params: Value| async move { Ok(params["name"].clone()) });
    let serving = tokio::spawn(Server::builder([MCP_2026]).serve(router).listen(listener).run());
    let transport = StatelessTransport::new(HttpClient::new(&url).unwrap().http2());
    let peer =
        in_time("connecting", Peer::builder(MCP_2026).role(Role::Client).connect(transport)).await.unwrap();
    let params = |n: usize| json!({"n": n, "name": "still", "_meta": mcp_meta()});
    let kept = peer.call::<_, Value>("wait", &params(0)).no_timeout().start().unwrap();
    seen.until("wait 0 began").await;
    for _ in 0..STATELESS_ROUNDS {
        let calls: Vec<_> =
            (1..=CALLS).map(|n| peer.call::<_, Value>("wait", &params(n)).start().unwrap()).collect();
        until("they run", || seen.alive() == 1 + CALLS).await;
        for call in &calls {
            call.canceller().cancel("a burst");
        }
        for call in calls {
            let outcome = in_time("I13: a cancelled call", call.outcome()).await;
            assert!(matches!(outcome, Outcome::Cancelled(_)), "{outcome:?}");
        }
        until("every handler heard of it", || seen.alive() == 1).await;
    }
    let named: Value = in_time("I13: a call after", peer.call("tools/call", &params(1))).await.unwrap();
    assert_eq!(named, json!("still"));
    assert_eq!(seen.alive(), 1, "I4: the first of them was not cancelled, nor its connection closed");
    drop(kept);
    until("the last handler is gone", || seen.alive() == 0).await;
    in_time("L3: the end", peer.shutdown(std::time::Duration::ZERO)).await;
    serving.abort();
}
