//! Ten thousand cancels on one connection: the connection and every other request on it are not affected.

use libtest_mimic::Trial;
use rescind::dialect::{MCP_2026, Role};
use rescind::http::{HttpClient, HttpServer, Stateless, StatelessTransport};
use rescind::transport::Listener as _;
use rescind::{CallContext, Outcome, Peer, Router, Server};
use rescind_testkit::support::mcp_meta;
use serde_json::{Value, json};

use crate::agent::{Ends, Seen, ended, limits, router};
use crate::wires::{Setting, WIRES, Way, Wire};
use crate::{in_time, trial, until};

const ROUNDS: usize = 20;
const CALLS: usize = 500;
/// Our client resets 33 streams a second after a burst of 200, so ten thousand take five minutes. The nightly run,
/// which is a release build, plays all of them.
const STATELESS_ROUNDS: usize = if cfg!(debug_assertions) { 2 } else { ROUNDS };

pub(crate) fn trials() -> Vec<Trial> {
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
    let ends = Ends::open_with(wire, setting, &limits()).await;
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
