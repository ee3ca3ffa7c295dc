//! Credentials that change while a client is connected.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rescind_core::dialect::MCP_2026;
use rescind_http::{Authorization, HttpClient, StatelessTransport, StreamableTransport};
use rescind_testkit::support::in_time;
use serde_json::{Value, json};

use super::server::{Asked, Client, RawServer, response, well};

/// A server that accepts this token, once it was used for something else than the handshake.
fn requires(token: &'static str) -> impl Fn(&Asked) -> Option<String> {
    move |asked| {
        let is_shown = asked.header("authorization") == Some(token) || asked.what() != "echo";
        Some(if is_shown { well(asked) } else { response("401 No", &["WWW-Authenticate: Bearer"], "who?") })
    }
}

fn changing(to: &'static str) -> (Authorization, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let authorization = Authorization::new("Bearer old").unwrap().refresh(move |authorization| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move { authorization.set(to).unwrap() }
    });
    (authorization, count)
}

#[tokio::test]
async fn a_request_that_is_refused_is_sent_once_more_with_new_credentials() {
    let (authorization, count) = changing("Bearer new");
    let server = RawServer::start(requires("Bearer new")).await;
    let http = HttpClient::new(&server.url).unwrap().authorization(&authorization);
    let client = Client::with(StreamableTransport::new(http)).await;
    let calls: Vec<_> = (0..50)
        .map(|n| client.peer.call::<_, Value>("echo", &json!({"n": n})).no_timeout().start().unwrap())
        .collect();
    for call in calls {
        let outcome = in_time("an answer", call.outcome()).await;
        assert!(matches!(outcome, rescind_core::Outcome::Completed(_)), "{outcome:?}");
    }
    assert_eq!(count.load(Ordering::SeqCst), 1, "one refresh for all");
    let (authorization, _) = changing("Bearer new");
    let http = HttpClient::new(&server.url).unwrap().authorization(&authorization);
    Client::connect(StatelessTransport::new(http), MCP_2026).await.works().await;
}

#[tokio::test]
async fn credentials_that_stay_or_are_refused_too_end_the_call() {
    for (to, times) in [("Bearer old", 1), ("Bearer other", 2)] {
        let (authorization, _) = changing(to);
        let server = RawServer::start(requires("Bearer new")).await;
        let http = HttpClient::new(&server.url).unwrap().authorization(&authorization);
        let mut client = Client::with(StreamableTransport::new(http)).await;
        let said = client.fails("echo").await;
        assert!(said.contains("401 Unauthorized") && said.contains("who?"), "{said}");
        assert!(!said.contains("Bearer"), "{said}");
        assert_eq!(server.count("echo"), times);
        authorization.set("Bearer new").unwrap();
        client.works().await;
    }
}

#[tokio::test]
async fn a_cancel_during_the_refresh_ends_the_request() {
    let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    let authorization = Authorization::new("Bearer old").unwrap().refresh(move |_| {
        begun.send(()).unwrap();
        std::future::pending()
    });
    let server = RawServer::start(requires("Bearer new")).await;
    let http = HttpClient::new(&server.url).unwrap().authorization(&authorization);
    let client = Client::with(StreamableTransport::new(http).exchanges(1)).await;
    let call = client.peer.call::<_, Value>("echo", &json!({})).no_timeout().start().unwrap();
    in_time("the refresh", has_begun.recv()).await;
    call.canceller().cancel("enough");
    assert!(in_time("the end", call.outcome()).await.is_cancelled());
    authorization.set("Bearer new").unwrap();
    let since = std::time::Instant::now();
    client.works().await;
    assert!(since.elapsed().as_secs() < 8, "it has not waited");
}
