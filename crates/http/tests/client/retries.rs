//! Requests that a server refuses for now.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rescind_core::dialect::MCP_2026;
use rescind_http::{Authorization, HttpClient, StatelessTransport, StreamableTransport};
use rescind_testkit::support::in_time;
use serde_json::{Value, json};

use crate::client::server::{Asked, Client, RawServer, response, well};

/// Refuses the first `times` requests of the method `echo`.
fn busy(status: &'static str, after: &'static str, times: usize) -> impl Fn(&Asked) -> Option<String> {
    let left = std::sync::atomic::AtomicUsize::new(times);
    move |asked| {
        use std::sync::atomic::Ordering::SeqCst;
        let is_busy =
            asked.what() == "echo" && left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        let busy = || response(status, &[&format!("Retry-After: {after}")], "busy");
        Some(if is_busy { busy() } else { well(asked) })
    }
}

#[tokio::test]
async fn a_request_is_sent_once_more_after_the_time_that_the_server_asks_for() {
    for status in ["429 Too Many Requests", "503 Service Unavailable"] {
        for after in ["0", "1", "Sun, 06 Nov 1994 08:49:37 GMT"] {
            let server = RawServer::start(busy(status, after, 1)).await;
            let client = Client::open(&server.url).await;
            let since = std::time::Instant::now();
            client.works().await;
            assert!(after != "1" || since.elapsed().as_millis() >= 1000);
            assert_eq!(server.count("echo"), 2);
        }
    }
    let server = RawServer::start(busy("503 No", "0", 1)).await;
    let transport = StatelessTransport::new(HttpClient::new(&server.url).unwrap());
    Client::connect(transport, MCP_2026).await.works().await;
}

#[tokio::test]
async fn a_second_refusal_a_long_time_or_none_ends_the_call() {
    for (status, after, asked, why) in [
        ("503 No", "0", 2, "asked again after 0 s"),
        ("429 No", "11", 1, "asked again after 11 s"),
        ("503 No", "99999999999999999999", 1, "asked again after 18446744073709551615 s"),
        ("503 No", "soon", 1, "503 Service Unavailable"),
        ("500 No", "0", 1, "500 Internal Server Error"),
    ] {
        let server = RawServer::start(busy(status, after, usize::MAX)).await;
        let mut client = Client::open(&server.url).await;
        let said = client.fails("echo").await;
        assert!(said.contains(why) && said.contains("busy"), "{said}");
        assert_eq!(server.count("echo"), asked, "{status} {after}");
    }
}

#[tokio::test]
async fn a_cancel_during_the_wait_ends_the_call_and_its_request() {
    let mut server = RawServer::start(busy("503 No", "10", 1)).await;
    let http = HttpClient::new(&server.url).unwrap();
    let client = Client::with(StreamableTransport::new(http).exchanges(1)).await;
    let call = client.peer.call::<_, Value>("echo", &json!({})).no_timeout().start().unwrap();
    server.next("echo").await;
    call.canceller().cancel("enough");
    assert!(in_time("the end", call.outcome()).await.is_cancelled());
    let since = std::time::Instant::now();
    // With one request at a time, the next one is sent when nothing is left of the first.
    client.works().await;
    assert!(since.elapsed().as_secs() < 8, "it has not waited");
    assert_eq!(server.count("echo"), 2);
    // A dropped call is cancelled too.
    let server = RawServer::start(busy("503 No", "10", 1)).await;
    let http = HttpClient::new(&server.url).unwrap();
    let client = Client::with(StreamableTransport::new(http).exchanges(1)).await;
    drop(client.peer.call::<_, Value>("echo", &json!({})).no_timeout().start().unwrap());
    client.works().await;
    // And a client that closes does not wait either.
    let mut server = RawServer::start(busy("503 No", "10", 1)).await;
    let client = Client::open(&server.url).await;
    in_time("a notification", client.peer.notify("echo", &json!({}))).await.unwrap();
    server.next("echo").await;
    let since = std::time::Instant::now();
    in_time("the end", client.peer.shutdown(std::time::Duration::ZERO)).await;
    assert!(since.elapsed().as_secs() < 8, "it has not waited");
}

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
