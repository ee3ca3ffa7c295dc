use serde_json::{Value, json};

use crate::acp::support::{JSON, ask, hello, listen, open, post, prompt, request, serve, server};

#[tokio::test]
async fn every_refusal_has_its_status() {
    // covers: RULE-13
    let served = serve().await;
    let address = served.address();
    let id = open(address, &[]).await;
    let known = ("Acp-Connection-Id", id.as_str());
    let unknown = ("Acp-Connection-Id", "0123456789abcdef0123456789abcdef");
    let new = request(1, "session/new", &json!({}));
    let bare = request(1, "session/prompt", &json!({}));
    let of_s1 = prompt(1, "s1");
    let stop =
        json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s1"}}).to_string();
    let own = request(1, "_own/method", &json!({"sessionId": "s1"}));
    let long = format!("{new}{}", " ".repeat(70_000));
    let (longest, too_long) = ("s".repeat(256), "s".repeat(257));
    let (of_longest, of_too_long) = (prompt(2, &longest), prompt(2, &too_long));
    let of_nothing = json!({"jsonrpc": "2.0", "method": "_own/nothing"}).to_string();
    let again = hello();
    let batch = format!("[{new}]");
    let events = ("Accept", "text/event-stream");
    let s1 = ("Acp-Session-Id", "s1");
    for (what, method, headers, body, status, code) in [
        ("text", "POST", vec![("Content-Type", "text/plain"), known], new.as_str(), 415, -32600),
        ("no connection", "POST", vec![JSON], &new, 400, -32600),
        ("unknown connection", "POST", vec![JSON, unknown], &new, 404, -32600),
        ("no session", "POST", vec![JSON, known], &bare, 400, -32600),
        ("a session in the body alone", "POST", vec![JSON, known], &of_s1, 400, -32600),
        ("that of a notification", "POST", vec![JSON, known], &stop, 400, -32600),
        ("that of a method of one's own", "POST", vec![JSON, known], &own, 400, -32600),
        ("two sessions", "POST", vec![JSON, known, ("Acp-Session-Id", "s2")], &of_s1, 400, -32600),
        (
            "a name that is too long",
            "POST",
            vec![JSON, known, ("Acp-Session-Id", &too_long)],
            &of_too_long,
            400,
            -32600,
        ),
        (
            "one in the header alone",
            "POST",
            vec![JSON, known, ("Acp-Session-Id", &too_long)],
            &of_nothing,
            400,
            -32600,
        ),
        (
            "a stream of such a session",
            "GET",
            vec![events, known, ("Acp-Session-Id", &too_long)],
            "",
            400,
            -32600,
        ),
        ("initialize once more", "POST", vec![JSON, known], &again, 400, -32600),
        ("a batch", "POST", vec![JSON, known], &batch, 501, -32600),
        ("a batch that opens nothing", "POST", vec![JSON], &batch, 501, -32600),
        ("an array of nothing, which is no batch", "POST", vec![JSON, known], "[]", 400, -32600),
        ("a number", "POST", vec![JSON, known], "7", 400, -32600),
        ("half an object", "POST", vec![JSON, known], "{", 400, -32700),
        ("half an object that opens nothing", "POST", vec![JSON], "{", 400, -32700),
        ("half an array", "POST", vec![JSON, known], "[1,", 400, -32700),
        ("an empty body", "POST", vec![JSON, known], "", 400, -32600),
        ("too long", "POST", vec![JSON, known], &long, 413, -32600),
        ("a stream of JSON", "GET", vec![("Accept", "application/json"), known], "", 406, -32600),
        ("a stream of nothing", "GET", vec![events], "", 400, -32600),
        ("a stream of an unknown", "GET", vec![events, unknown], "", 404, -32600),
        ("a stream of an unknown session", "GET", vec![events, known, s1], "", 404, -32600),
        ("ending nothing", "DELETE", vec![], "", 400, -32600),
        ("ending an unknown", "DELETE", vec![unknown], "", 404, -32600),
        ("put", "PUT", vec![JSON, known], &new, 405, -32600),
        ("a page", "POST", vec![JSON, known, ("Origin", "https://evil.example")], &new, 403, -32600),
        ("a stranger", "POST", vec![JSON, known, ("X-User", "nobody")], &new, 401, -32600),
        ("another host", "POST", vec![JSON, known, ("Host", "evil.example")], &new, 421, -32600),
    ] {
        let got = ask(address, method, &headers, body).await;
        assert_eq!(got.status, status, "{what}: {}", got.body);
        let reported: Value = serde_json::from_str(&got.body).unwrap();
        assert_eq!(
            (&reported["error"]["code"], reported.get("id")),
            (&json!(code), Some(&Value::Null)),
            "{what}: {reported}"
        );
        assert!(
            reported["error"]["message"].as_str().is_some_and(|text| text.len() > 10),
            "{what}: {reported}"
        );
    }
    // The connection stays open and is ended only once.
    for (method, headers, body, status) in [
        ("POST", vec![JSON, known], new.as_str(), 202),
        ("POST", vec![JSON, known, s1], &of_s1, 202),
        ("POST", vec![JSON, known, ("Acp-Session-Id", &longest)], &of_longest, 202),
        ("DELETE", vec![known], "", 202),
        ("POST", vec![JSON, known], &new, 404),
    ] {
        assert_eq!(ask(address, method, &headers, body).await.status, status, "{method} {body}");
    }
}

#[tokio::test]
async fn a_connection_belongs_to_the_principal_that_opened_it() {
    // covers: RULE-06, RULE-13
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
    // covers: RULE-13
    let served = serve().await;
    let address = served.address();
    let got = post(address, &[], &hello()).await;
    assert_eq!(got.status, 200);
    assert!(got.body.contains("agentCapabilities"), "{}", got.body);
    let id = got.head.lines().find_map(|line| line.strip_prefix("acp-connection-id: "));
    let id = id.unwrap_or_else(|| panic!("{}", got.head));
    assert!(got.body.contains(&format!(r#""connectionId":"{id}""#)), "{}", got.body);
    let got = post(address, &[], &request(0, "initialize", &json!({"protocolVersion": 9}))).await;
    assert!(!got.head.contains("acp-connection-id"), "{}", got.head);
}

const MOST: usize = 8;

#[tokio::test]
async fn a_flood_of_initialize_displaces_only_its_own_unused_connections() {
    let listener = server().sessions(MOST).bind("127.0.0.1:0").await.unwrap();
    let counts = listener.counts();
    let served = listen(listener);
    let address = served.address();
    let [mallory, ada] = ["mallory", "ada"].map(|user| ("X-User", user));
    let known = |id: &str| ("Acp-Connection-Id", id.to_owned());
    let new = request(1, "session/new", &json!({}));
    let uses = async |user: (&str, &str), id: &str| {
        let (name, id) = known(id);
        post(address, &[user, (name, &id)], &new).await.status
    };
    let kept = open(address, &[ada]).await;
    assert_eq!(uses(ada, &kept).await, 202);
    let mut opened = Vec::new();
    for _ in 0..5 * MOST {
        opened.push(open(address, &[mallory]).await);
    }
    assert_eq!(usize::try_from(counts.displaced_sessions()).unwrap(), 5 * MOST - MOST / 2);
    assert_eq!(uses(mallory, &opened[0]).await, 404, "it made room");
    // Used connections keep their places. A client has half of them at most.
    for id in opened.iter().rev().take(MOST / 2) {
        assert_eq!(uses(mallory, id).await, 202);
    }
    let refused = post(address, &[mallory], &hello()).await;
    assert_eq!((refused.status, refused.head.contains("retry-after: 1")), (429, true), "{}", refused.body);
    assert!(refused.body.contains("this client"), "{}", refused.body);
    let other = open(address, &[ada]).await;
    assert_eq!((uses(ada, &other).await, uses(ada, &kept).await), (202, 202), "another client is served");
}
