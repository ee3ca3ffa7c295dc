use serde_json::json;

use crate::support::{JSON, ask, hello, open, post, request, serve};

#[tokio::test]
async fn every_refusal_has_its_status() {
    // covers: X-13
    let served = serve().await;
    let address = served.address();
    let id = open(address, &[]).await;
    let known = ("Acp-Connection-Id", id.as_str());
    let unknown = ("Acp-Connection-Id", "0123456789abcdef0123456789abcdef");
    let new = request(1, "session/new", &json!({}));
    let prompt = request(1, "session/prompt", &json!({}));
    let elsewhere = request(1, "session/prompt", &json!({"sessionId": "s1"}));
    let long = format!("{new}{}", " ".repeat(70_000));
    let events = ("Accept", "text/event-stream");
    for (what, method, headers, body, status) in [
        ("text", "POST", vec![("Content-Type", "text/plain"), known], new.as_str(), 415),
        ("no connection", "POST", vec![JSON], &new, 400),
        ("unknown connection", "POST", vec![JSON, unknown], &new, 404),
        ("no session", "POST", vec![JSON, known], &prompt, 400),
        ("two sessions", "POST", vec![JSON, known, ("Acp-Session-Id", "s2")], &elsewhere, 400),
        ("a batch", "POST", vec![JSON, known], r#"[{"jsonrpc":"2.0","method":"x"}]"#, 501),
        ("an array of nothing, which is no batch", "POST", vec![JSON, known], "[]", 202),
        ("an empty body", "POST", vec![JSON, known], "", 400),
        ("too long", "POST", vec![JSON, known], &long, 413),
        ("a stream of JSON", "GET", vec![("Accept", "application/json"), known], "", 406),
        ("a stream of nothing", "GET", vec![events], "", 400),
        ("a stream of an unknown", "GET", vec![events, unknown], "", 404),
        ("ending nothing", "DELETE", vec![], "", 400),
        ("ending an unknown", "DELETE", vec![unknown], "", 404),
        ("put", "PUT", vec![JSON, known], &new, 405),
        ("a page", "POST", vec![JSON, known, ("Origin", "https://evil.example")], &new, 403),
        ("taken", "POST", vec![JSON, known], &new, 202),
        ("no longer", "DELETE", vec![known], "", 202),
        ("gone", "POST", vec![JSON, known], &new, 404),
    ] {
        assert_eq!(ask(address, method, &headers, body).await.status, status, "{what}");
    }
}

#[tokio::test]
async fn a_connection_is_its_openers_alone() {
    // covers: X-06, X-13
    let served = serve().await;
    let address = served.address();
    let id = open(address, &[("X-User", "ann")]).await;
    let known = ("Acp-Connection-Id", id.as_str());
    let new = request(1, "session/new", &json!({}));
    assert_eq!(post(address, &[known, ("X-User", "bob")], &new).await.status, 404);
    assert_eq!(post(address, &[known, ("X-User", "ann")], &new).await.status, 202);
}

#[tokio::test]
async fn initialize_is_answered_on_its_own_post_and_a_refused_one_opens_nothing() {
    // covers: X-13
    let served = serve().await;
    let address = served.address();
    let got = post(address, &[], &hello()).await;
    assert_eq!(got.status, 200);
    assert!(
        got.body.contains("agentCapabilities") && got.head.contains("acp-connection-id: "),
        "{}",
        got.head
    );
    let got = post(address, &[], &request(0, "initialize", &json!({"protocolVersion": 9}))).await;
    assert!(!got.head.contains("acp-connection-id"), "{}", got.head);
}
