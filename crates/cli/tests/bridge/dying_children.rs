//! A child that dies, at every point of a call, and what follows.

use rescind::{Outcome, Peer};
use serde_json::{Value, json};

use crate::bridge::program::{Bridge, Lives, fixture_script, soon, words};

/// What the caller of the request sees.
#[derive(Clone, Copy, Debug)]
enum Sees {
    /// An error that names the program and its end.
    Error,
    /// The answer, which the child wrote before its end.
    Answer,
}

/// Lines of a shell script after the handshake, and what the caller sees of the request.
const POINTS: &[(&str, &str, Sees)] = &[
    ("before it reads the request", "kill -9 $$", Sees::Error),
    ("after it has read the request", "read -r request; kill -9 $$", Sees::Error),
    (
        "after an update",
        "read -r request; echo '{\"jsonrpc\":\"2.0\",\"method\":\"update\"}'; kill -9 $$",
        Sees::Error,
    ),
    (
        "in the middle of its answer",
        "read -r request; printf '{\"jsonrpc\":\"2.0\",\"id\":2,\"resu'; kill -9 $$",
        Sees::Error,
    ),
    (
        "before the newline of its answer",
        "read -r request; printf '{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":1}'; kill -9 $$",
        Sees::Answer,
    ),
    (
        "after its answer",
        "read -r request; echo '{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":1}'; kill -9 $$",
        Sees::Answer,
    ),
    (
        "between a request of its own and the answer to it",
        "read -r request; echo '{\"jsonrpc\":\"2.0\",\"id\":\"mine\",\"method\":\"ask\"}'; kill -9 $$",
        Sees::Error,
    ),
];

/// The handshake in a shell.
const HANDSHAKE: &str =
    "read -r hello; echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocolVersion\":\"2025-11-25\"}}'";

fn is_end_of_the_child(error: &rescind::ErrorObject) -> bool {
    error.code.0 == -32603 && error.message.starts_with("`sh` ended: signal: 9")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_killed_at_any_point_of_a_call_is_reported_and_leaves_nothing() {
    for (dialect, listen) in [("acp", "ws://127.0.0.1:0/acp"), ("mcp", "http://127.0.0.1:0/mcp")] {
        for (point, script, sees) in POINTS {
            let lives = Lives::new();
            let child = lives.child(&format!("{HANDSHAKE}; {script}"));
            let bridge = Bridge::listen(dialect, listen, &words(&child));
            // The second client shows that the bridge goes on.
            for round in 0..2 {
                let (client, life) = tokio::join!(bridge.client(dialect), lives.begun());
                let call = client.call::<_, Value>("work", &json!({})).start().unwrap();
                let outcome = soon("the outcome", call.outcome()).await;
                let at = format!("{dialect}, {point}, round {round}: {outcome:?}");
                match (sees, &outcome) {
                    (Sees::Answer, Outcome::Completed(value)) => assert_eq!(value, &json!(1), "{at}"),
                    (Sees::Error, Outcome::Failed(error)) => assert!(is_end_of_the_child(error), "{at}"),
                    // The handshake's answer and the child's end may come before the request is sent.
                    (Sees::Error, Outcome::Disconnected { .. }) if script.starts_with("kill") => {}
                    _ => panic!("{at}"),
                }
                life.ended().await;
                ends(&client).await;
            }
        }
    }
}

/// Its session has ended: the next call is not answered, and nobody waits.
async fn ends(client: &Peer) {
    let call = client.call::<_, Value>("work", &json!({})).start().unwrap();
    match soon("the next call", call.outcome()).await {
        Outcome::Disconnected { .. } => {}
        Outcome::Failed(error) => assert!(is_end_of_the_child(&error), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_killed_after_the_cancel_of_a_call_leaves_nobody_waiting() {
    for (dialect, listen) in [("acp", "ws://127.0.0.1:0/acp"), ("mcp", "http://127.0.0.1:0/mcp")] {
        let lives = Lives::new();
        let update = "read -r request; echo '{\"jsonrpc\":\"2.0\",\"method\":\"update\"}'";
        let child = lives.child(&format!("{HANDSHAKE}; {update}; read -r cancel; kill -9 $$"));
        let bridge = Bridge::listen(dialect, listen, &words(&child));
        let (client, life) = tokio::join!(bridge.client(dialect), lives.begun());
        let call = client.call::<_, Value>("work", &json!({})).notifications_where(|_| true).start().unwrap();
        soon("the update", call.notifications().next()).await.unwrap();
        call.canceller().cancel("");
        let outcome = soon("the outcome", call.outcome()).await;
        assert!(outcome.is_cancelled(), "{dialect}: {outcome:?}");
        life.ended().await;
        ends(&client).await;
    }
}

/// A gateway that lives on with a dead child would answer nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_dies_between_two_calls_ends_its_session_and_the_next_session_is_served() {
    for (dialect, listen) in [("acp", "ws://127.0.0.1:0/acp"), ("mcp", "http://127.0.0.1:0/mcp")] {
        let lives = Lives::new();
        let bridge = Bridge::listen(dialect, listen, &words(&lives.child(&fixture_script(dialect))));
        for _ in 0..2 {
            let (client, life) = tokio::join!(bridge.client(dialect), lives.begun());
            let echo: Value = soon("an echo", client.call("test/echo", &json!({"value": 1}))).await.unwrap();
            assert_eq!(echo["value"], 1);
            life.kill();
            life.ended().await;
            ends(&client).await;
        }
    }
}
