//! The client of the binding `streamable`, with servers that speak only the transport of 2024-11-05.

use std::time::Duration;

use rescind_core::dialect::{MCP, Role};
use rescind_core::{Outcome, Peer};
use rescind_http::{HttpClient, StreamableTransport};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::legacy_sse::support::{
    Fake, attach, calls_and_cancels, client, endpoint, served, sse, status, stream_of, value,
};
use crate::streamable::support::in_time;

fn falling_back(url: &str) -> StreamableTransport {
    StreamableTransport::new(HttpClient::new(url).unwrap())
}

#[tokio::test]
async fn a_server_of_2024_is_found_and_spoken_to() {
    let mut served = served().await;
    for transport in [falling_back(&sse(&served)), falling_back(&sse(&served)).in_order()] {
        let peer = client(transport).await;
        calls_and_cancels(&peer, &mut served).await;
    }
}

#[tokio::test]
async fn each_status_that_mcp_names_leads_to_the_old_transport() {
    for refusal in ["400 Bad Request", "404 Not Found", "405 Method Not Allowed"] {
        let mut fake = Fake::serve(move |got| {
            Some(match got.line.as_str() {
                "GET /sse" => endpoint("messages/?session_id=7"),
                "POST /messages/?session_id=7" => status("202 Accepted", "Accepted"),
                _ => status(refusal, "Cannot POST /sse"),
            })
        })
        .await;
        let peer = attach(falling_back(&fake.url)).await;
        let call = peer.call::<_, Value>("initialize", &json!({"n": 1})).start().unwrap();
        let lines = [fake.next().await, fake.next().await, fake.next().await];
        let names: Vec<_> = lines.iter().map(|got| got.line.as_str()).collect();
        assert_eq!(names, ["POST /sse", "GET /sse", "POST /messages/?session_id=7"], "{refusal}");
        assert_eq!(lines[0].body, lines[2].body, "the same request");
        let id = serde_json::from_str::<Value>(&lines[2].body).unwrap()["id"].clone();
        fake.message(&json!({"jsonrpc": "2.0", "id": id, "result": {"ok": true}}));
        let outcome = in_time("the answer", call.outcome()).await;
        assert_eq!(value(outcome)["ok"], true);
        let again = peer.call::<_, Value>("tools/list", &json!({})).start().unwrap();
        assert_eq!(fake.next().await.line, "POST /messages/?session_id=7", "it is not tried twice");
        drop(again);
    }
}

/// Why the first call failed, and the requests that the server got.
async fn failure(transport: StreamableTransport, fake: &mut Fake) -> (String, Vec<String>) {
    let (tell, mut failures) = mpsc::unbounded_channel();
    let builder = Peer::builder(MCP).role(Role::Client).on_call_failure(move |error| {
        let _ = tell.send(error.source.to_string());
    });
    let peer = builder.connect(transport).await.unwrap();
    let outcome =
        in_time("the end", peer.call::<_, Value>("initialize", &json!({})).start().unwrap().outcome()).await;
    assert!(matches!(outcome, Outcome::Disconnected { .. }), "{outcome:?}");
    let why = in_time("the reason", failures.recv()).await.unwrap();
    let mut lines = Vec::new();
    while let Ok(got) = fake.got.try_recv() {
        lines.push(got.line);
    }
    (why, lines)
}

#[tokio::test]
async fn a_server_that_speaks_neither_transport_fails_the_call_with_its_first_refusal() {
    for (get, second) in [
        (Some(status("404 Not Found", "")), "404 Not Found"),
        (Some(status("200 OK", "hello")), "an event stream was expected"),
        (Some(stream_of("data: {}\n\n")), "begins with a message"),
        (Some(endpoint("http://evil.example/messages")), "another origin"),
        // The stream never names an endpoint, or the GET is never answered.
        (Some(stream_of(": waiting\n\nevent: ping\ndata: 1\n\n")), "no event `endpoint` within 2s"),
        (None, "no event `endpoint` within 2s"),
    ] {
        let mut fake = Fake::serve(move |got| {
            if got.line == "GET /sse" { get.clone() } else { Some(status("405 Method Not Allowed", "")) }
        })
        .await;
        let (why, lines) = failure(falling_back(&fake.url), &mut fake).await;
        assert!(why.contains("405"), "{why}");
        assert!(why.contains("with the transport of MCP 2024-11-05: ") && why.contains(second), "{why}");
        assert_eq!(lines, ["POST /sse", "GET /sse"]);
    }
}

#[tokio::test]
async fn other_refusals_and_a_client_without_the_fallback_open_no_stream() {
    for (refusal, falls_back) in
        [("401 Unauthorized", true), ("500 Internal Server Error", true), ("405 Method Not Allowed", false)]
    {
        let mut fake = Fake::serve(move |_| Some(status(refusal, ""))).await;
        let transport = falling_back(&fake.url).cancel_after(Duration::from_millis(20));
        let transport = if falls_back { transport } else { transport.no_fallback() };
        let (_, lines) = failure(transport, &mut fake).await;
        assert_eq!(lines, ["POST /sse"], "{refusal}");
    }
}
