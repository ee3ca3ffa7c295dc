//! Requests that a server refuses for now.

use rescind_core::dialect::MCP_2026;
use rescind_http::{HttpClient, StatelessTransport, StreamableTransport};
use rescind_testkit::support::in_time;
use serde_json::{Value, json};

use super::server::{Asked, Client, RawServer, response, well};

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
