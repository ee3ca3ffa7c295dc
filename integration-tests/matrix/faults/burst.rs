//! Ten thousand cancels on one connection: it stays as it was, and so does every other request on it.

use libtest_mimic::Trial;
use rescind::dialect::{MCP_2026, Role};
use rescind::http::{HttpClient, HttpServer, Stateless, StatelessTransport};
use rescind::{CallContext, Listener as _, Outcome, Peer, Router, Server};
use serde_json::{Value, json};

use crate::agent::{Ends, Seen, ended, limits, router};
use crate::wires::{WIRES, Wire};
use crate::{in_time, trial, until};

const ROUNDS: usize = 20;
const CALLS: usize = 500;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    // Streamable HTTP/2 has its own; see `covered.rs`.
    for wire in WIRES.into_iter().filter(|wire| wire.name != "http2-streamable") {
        let name = format!("burst::ten_thousand_cancels_end_no_connection::{}", wire.name);
        trials.push(trial(name, move || cancels(wire)));
    }
    let name = "burst::ten_thousand_cancels_end_no_connection::http2-stateless".to_owned();
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
            let _ = call.canceller().cancel("a burst");
        }
        for call in calls {
            let end = ended(call).await;
            assert!(end.starts_with("cancelled by caller"), "{end}");
        }
        until("the round is over", || agent.seen.alive() == 1).await;
    }
    asker.echoes().await;
    assert_eq!(agent.seen.alive(), 1, "I4: the first of them was not cancelled");
    let _ = kept.canceller().cancel("");
    assert_eq!(ended(kept).await, "cancelled by caller, confirmed");
    asker.is_clean("who asked").await;
    agent.is_clean("who was asked").await;
    ends.close().await;
}

/// Where leaving an exchange is the cancel, a burst of them is a burst of resets: no GOAWAY comes of it.
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
    let params = |n: usize| {
        json!({"n": n, "name": "still", "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }})
    };
    let kept = peer.call::<_, Value>("wait", &params(0)).start().unwrap();
    seen.until("wait 0 began").await;
    for _ in 0..ROUNDS {
        let calls: Vec<_> =
            (1..=CALLS).map(|n| peer.call::<_, Value>("wait", &params(n)).start().unwrap()).collect();
        until("they run", || seen.alive() == 1 + CALLS).await;
        for call in &calls {
            let _ = call.canceller().cancel("a burst");
        }
        for call in calls {
            let outcome = in_time("a cancelled call", call.outcome()).await;
            assert!(matches!(outcome, Outcome::Cancelled(_)), "{outcome:?}");
        }
        until("every handler heard of it", || seen.alive() == 1).await;
    }
    let named: Value = in_time("a call after", peer.call("tools/call", &params(1))).await.unwrap();
    assert_eq!(named, json!("still"));
    assert_eq!(seen.alive(), 1, "I4: the first of them was not cancelled, nor its connection closed");
    drop(kept);
    until("the last handler is gone", || seen.alive() == 0).await;
    in_time("the end", peer.shutdown(std::time::Duration::ZERO)).await;
    serving.abort();
}
