//! `rescind cancel`: an operator stops a request from outside.

use rescind_testkit::support::in_time;
use serde_json::json;

use crate::backend::Backend;
use crate::client::{Binding, Session};
use crate::nodes::{Replicas, Setup};
use crate::trial::poll_until;

const SECRET: &str = "the secret of the proofs";

/// The request is answered with an error that names an operator, where a cancel of its own would owe silence.
pub(crate) async fn an_operator_cancels_a_request(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    // Those of the replicas before it, whose other request its client has cancelled.
    let mut before = Vec::new();
    for (owner, through) in [(0, 1), (1, 1), (2, 0)] {
        let session = replicas.session(owner).await;
        let running = session.begin(all[through], 10, "test/wait", &json!({})).await.unwrap();
        let other = session.begin(all[through], 11, "test/wait", &json!({})).await.unwrap();
        let key = session.key(all[through], 10).await;
        let said = replicas.cancel(&key, &["--reason", "too dear"]).await;
        assert_eq!(said.status.code(), Some(0), "{said:?}");
        let answer = in_time("the answer", running.answer(10)).await.unwrap().expect("it was not answered");
        assert!(answer["error"]["message"].as_str().unwrap().contains("operator"), "{answer}");
        // The same cancel again harms nobody.
        let again = replicas.cancel(&key, &[]).await;
        assert_eq!(again.status.code(), Some(0), "{again:?}");
        let own = [json!({ "id": "10", "cause": "operator" }), json!({ "id": "11", "cause": null })];
        let expected: Vec<_> = own.iter().chain(&before).cloned().collect();
        // A node that does not tell of its handlers within a second is left out.
        poll_until("exactly these handlers ran", async || {
            let ran = session.ask(all[owner], 12, "test/handlers", json!({})).await;
            ran["result"]["handlers"] == json!(expected)
        })
        .await;
        before.extend([json!({ "id": "10", "cause": "operator" }), json!({ "id": "11", "cause": "peer" })]);
        session.cancel(all[through], 11).await;
        assert_eq!(in_time("the other", other.answer(11)).await.unwrap(), None);
    }
}

/// The same for ACP, whose answer comes on the event stream.
pub(crate) async fn an_operator_cancels_a_request_of_acp(backend: Backend) {
    let replicas = Replicas::start_with(backend, Setup { binding: Binding::Acp, ..Setup::default() }).await;
    let all = replicas.addresses();
    let session = Session::open(all[0], Binding::Acp).await;
    let mut events = session.events(all[2], None).await;
    let sent = session.begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    assert_eq!(sent.status, 202);
    let asked = session.begin(all[1], 11, "test/key", &json!({ "id": 10 })).await.unwrap();
    assert_eq!(asked.status, 202);
    let key = in_time("the key", events.answer_of(11)).await.unwrap().unwrap();
    let said = replicas.cancel(key["result"]["key"].as_str().unwrap(), &[]).await;
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    let answer = in_time("the answer", events.answer_of(10)).await.unwrap().unwrap();
    assert!(answer["error"].to_string().contains("operator"), "{answer}");
}

/// With the wrong secret, or a key that was made up, nothing is cancelled, and the exit code says so.
pub(crate) async fn a_wrong_secret_or_key_cancels_nothing(backend: Backend) {
    let replicas = Replicas::start_with(backend, Setup { secret: Some(SECRET), ..Setup::default() }).await;
    let all = replicas.addresses();
    let session = replicas.session(0).await;
    let running = session.begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    let key = session.key(all[1], 10).await;
    let wrong = replicas.file("wrong", "the secret of somebody else");
    let forged = key.replacen("n1", "n2", 1);
    for (key, more) in [(&key, vec!["--secret-file", &wrong]), (&forged, vec![]), (&session.id, vec![])] {
        let said = replicas.cancel(key, &more).await;
        assert_eq!(said.status.code(), Some(1), "{said:?}");
        assert!(said.stderr.starts_with("rescind: "), "{said:?}");
        assert_eq!(said.stderr.lines().count(), 1, "one sentence: {said:?}");
    }
    let stats = session.ask(all[0], 11, "test/stats", json!({})).await;
    assert_eq!((&stats["result"]["running"], &stats["result"]["cancelled"]), (&json!(1), &json!(0)));
    let said = replicas.cancel(&key, &[]).await;
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    poll_until("it has ended", async || {
        let stats = session.ask(all[0], 12, "test/stats", json!({})).await;
        stats["result"]["cancelled"] == 1
    })
    .await;
    assert!(in_time("the answer", running.answer(10)).await.unwrap().is_some());
}

/// A cancel for a node that is dead is no silent success with a list, and is kept for the worker with an engine.
pub(crate) async fn a_cancel_for_a_dead_node_says_so(backend: Backend) {
    let mut replicas = Replicas::start(backend).await;
    let session = replicas.session(0).await;
    let running = session.begin(replicas.nodes[0].address, 10, "test/wait", &json!({})).await.unwrap();
    let key = session.key(replicas.nodes[0].address, 10).await;
    replicas.nodes[0].kill().await;
    drop(running);
    let said = replicas.cancel(&key, &[]).await;
    let expected = i32::from(backend == Backend::List);
    assert_eq!(said.status.code(), Some(expected), "{said:?}");
}
