use rescind_core::dialect::MCP_2026;
use rescind_core::{CancelResult, Outcome, Peer};
use rescind_http::{HttpClient, StatelessTransport};
use rescind_testkit::support::http1::read_until;
use serde_json::{Value, json};

use crate::stateless::support::{Served, USUAL, begin, in_time, message, serve};

async fn ask_to_wait(served: &Served, name: &str, ticks: bool) -> tokio::net::TcpStream {
    let body = message(1, "wait", &json!({"name": name, "ticks": ticks})).to_string();
    let headers = [USUAL[0], USUAL[1], USUAL[2], ("Mcp-Method", "wait")];
    begin(served.address(), "POST", &headers, &body).await
}

#[tokio::test]
async fn closing_an_event_stream_cancels_only_its_request() {
    // covers: RULE-12, RULE-15
    let mut served = serve().await;
    let mut one = ask_to_wait(&served, "one", true).await;
    served.hears("one started").await;
    // The same id, on a separate POST.
    let mut two = ask_to_wait(&served, "two", false).await;
    served.hears("two started").await;
    assert!(read_until(&mut one, "tick").await.contains("text/event-stream"));
    read_until(&mut two, "text/event-stream").await;
    drop(one);
    served.hears("one peer").await;
    drop(two);
    served.hears("two peer").await;
}

#[tokio::test]
async fn closing_before_the_head_cancels_too() {
    // covers: RULE-15
    let listener = rescind_http::HttpServer::new(
        rescind_http::Stateless::new().stream_after(std::time::Duration::from_secs(600)),
    );
    let mut served = crate::stateless::support::listen(listener.bind("127.0.0.1:0").await.unwrap());
    let stream = ask_to_wait(&served, "one", false).await;
    served.hears("one started").await;
    drop(stream);
    served.hears("one peer").await;
}

async fn client(served: &Served, http2: bool) -> Peer {
    let client = HttpClient::new(&served.url).unwrap();
    let client = if http2 { client.http2() } else { client };
    Peer::builder(MCP_2026)
        .role(rescind_core::dialect::Role::Client)
        .connect(StatelessTransport::new(client))
        .await
        .unwrap()
}

fn params(name: &str) -> Value {
    message(0, "", &json!({"name": name}))["params"].clone()
}

#[tokio::test]
async fn our_client_cancels_by_closing_its_stream_in_http1_and_http2() {
    // covers: RULE-11, RULE-15
    for http2 in [false, true] {
        let mut served = serve().await;
        let client = client(&served, http2).await;
        let call = client.call::<_, Value>("wait", &params("one")).start().unwrap();
        let other = client.call::<_, Value>("wait", &params("two")).start().unwrap();
        let mut started = vec![served.events.recv().await.unwrap(), served.events.recv().await.unwrap()];
        started.sort_unstable();
        assert_eq!(started, ["one started", "two started"]);
        assert_eq!(call.canceller().cancel("enough"), CancelResult::Sent);
        served.hears("one peer").await;
        let outcome = in_time("the call", call.outcome()).await;
        assert!(matches!(outcome, Outcome::Cancelled(_)), "http2 {http2}: {outcome:?}");
        let named: Value =
            in_time("the other call", client.call("tools/call", &params("größe"))).await.unwrap();
        assert_eq!(named, json!("größe"), "a name no header may hold goes in base64");
        drop(other);
        served.hears("two peer").await;
    }
}

#[tokio::test]
async fn a_burst_of_cancels_keeps_the_connection_despite_the_reset_limit() {
    // More than may be reset at once: all of them are cancelled, and the other calls are not affected.
    const BURST: usize = 230;
    let mut served = serve().await;
    let client = client(&served, true).await;
    let calls: Vec<_> =
        (0..BURST).map(|_| client.call::<_, Value>("wait", &params("x")).start().unwrap()).collect();
    for _ in 0..BURST {
        served.hears("x started").await;
    }
    let since = std::time::Instant::now();
    drop(calls);
    let named: Value =
        in_time("a call meanwhile", client.call("tools/call", &params("still"))).await.unwrap();
    assert_eq!(named, json!("still"));
    for _ in 0..BURST {
        served.hears("x peer").await;
    }
    assert!(since.elapsed() >= std::time::Duration::from_millis(800), "30 of them wait for their turn");
    let named: Value = in_time("a call after", client.call("tools/call", &params("still"))).await.unwrap();
    assert_eq!(named, json!("still"));
}
