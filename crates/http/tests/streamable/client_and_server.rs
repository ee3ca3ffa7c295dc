//! Our client against our server.

use std::time::Duration;

use rescind_core::dialect::{ABP, ACP, LSP, MCP};
use rescind_core::{Outcome, Peer};
use rescind_http::HttpClient;
use serde_json::{Value, json};

use crate::streamable::support::{Seen, client, in_time, mcp, serve, server, transport};

async fn echo(peer: &Peer, value: Value) -> Value {
    in_time("echo", peer.call::<_, Value>("echo", &value)).await.unwrap()
}

#[tokio::test]
async fn calls_are_answered() {
    let (_served, peer) = mcp().await;
    for n in 0..20 {
        assert_eq!(echo(&peer, json!({"n": n})).await, json!({"n": n}));
    }
    let calls: Vec<_> =
        (0..100).map(|n| peer.call::<_, Value>("echo", &json!({"n": n})).start().unwrap()).collect();
    for (n, call) in calls.into_iter().enumerate() {
        assert!(matches!(call.outcome().await, Outcome::Completed(value) if value == json!({"n": n})));
    }
}

#[tokio::test]
async fn a_cancel_reaches_its_handler_and_silence_ends_the_stream() {
    let (mut served, peer) = mcp().await;
    let call = peer.call::<_, Value>("wait", &json!({"n": 1})).start().unwrap();
    let stop = call.canceller();
    assert_eq!(
        in_time("the start", served.seen.recv()).await,
        Some(Seen::Started(json!({"n": 1}).to_string()))
    );
    stop.cancel("enough");
    assert_eq!(
        in_time("the cancel", served.seen.recv()).await,
        Some(Seen::Cancelled(json!({"n": 1}).to_string()))
    );
    assert!(matches!(in_time("the outcome", call.outcome()).await, Outcome::Cancelled(_)));
    assert_eq!(echo(&peer, json!({"still": "open"})).await, json!({"still": "open"}));
}

#[tokio::test]
async fn an_owed_answer_to_a_cancelled_call_arrives() {
    let mut served = serve(server(), ACP).await;
    let peer = client(transport(&served.url), ACP).await;
    let call = peer.call::<_, Value>("wait", &json!({"n": 1})).start().unwrap();
    let stop = call.canceller();
    in_time("the start", served.seen.recv()).await;
    stop.cancel("enough");
    match in_time("the outcome", call.outcome()).await {
        Outcome::Cancelled(cancelled) => assert!(cancelled.confirmed),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_call_that_is_cancelled_at_once_is_cancelled_on_the_other_side_too() {
    let (mut served, peer) = mcp().await;
    for n in 0..20 {
        let call = peer.call::<_, Value>("wait", &json!({"n": n})).start().unwrap();
        tokio::task::yield_now().await;
        call.canceller().cancel("never mind");
        drop(call);
    }
    // The started handlers are cancelled, and nothing is left running.
    peer.call::<_, Value>("echo", &json!({})).await.unwrap();
    in_time("all handlers end", async {
        while served.running.load(std::sync::atomic::Ordering::SeqCst) > 0 {
            served.seen.recv().await;
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn notifications_of_a_call_come_before_its_answer() {
    let (_served, peer) = mcp().await;
    let call = peer.call::<_, Value>("ticks", &json!({"count": 50})).start().unwrap();
    let mut ticks = call.notifications_where(|events| events.method() == "tick");
    let answer = in_time("the answer", call.outcome()).await;
    assert!(matches!(answer, Outcome::Completed(value) if value == json!({"ticks": 50})));
    let mut count = 0;
    while in_time("a tick", ticks.next()).await.is_some() {
        count += 1;
    }
    assert_eq!(count, 50);
}

#[tokio::test]
async fn the_server_sends_requests_within_a_request_and_outside_of_one() {
    let (mut served, peer) = mcp().await;
    let answer = in_time("the nested call", peer.call::<_, Value>("ask", &json!({"n": 7}))).await.unwrap();
    assert_eq!(answer, json!({"n": 7}));
    let theirs = served.peers.recv().await.unwrap();
    peer.try_notify("notifications/initialized", &json!({})).unwrap();
    let asked = theirs.call::<_, Value>("answer", &json!({"n": 8}));
    assert_eq!(in_time("the server's own call", asked).await.unwrap(), json!({"n": 8}));
}

#[tokio::test]
async fn notifications_keep_their_order() {
    let (mut served, peer) = mcp().await;
    for n in 0..50 {
        peer.try_notify("reported", &json!({"n": n})).unwrap();
    }
    for n in 0..50 {
        let seen = in_time("a notification", served.seen.recv()).await;
        assert_eq!(seen, Some(Seen::Notified(json!({"n": n}).to_string())));
    }
}

#[tokio::test]
async fn every_protocol_is_carried_in_http2_too() {
    for dialect in [MCP, ACP, LSP] {
        let served = serve(server(), dialect.clone()).await;
        let http2 = rescind_http::StreamableTransport::new(HttpClient::new(&served.url).unwrap().http2());
        let peer = client(http2, dialect).await;
        assert_eq!(echo(&peer, json!({"n": 1})).await, json!({"n": 1}));
    }
}

#[tokio::test]
async fn an_envelope_of_its_own_is_carried() {
    let served = serve(server(), ABP).await;
    let peer = client(transport(&served.url), ABP).await;
    assert_eq!(echo(&peer, json!({"n": 1})).await, json!({"n": 1}));
}

#[tokio::test]
async fn closing_ends_the_session_on_both_sides() {
    let (mut served, peer) = mcp().await;
    let theirs = served.peers.recv().await.unwrap();
    in_time("the shutdown", peer.shutdown(Duration::ZERO)).await;
    in_time("their end", theirs.closed()).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_dropped_ends_everything() {
    let (mut served, peer) = mcp().await;
    let theirs = served.peers.recv().await.unwrap();
    let call = peer.call::<_, Value>("wait", &json!({"n": 1})).start().unwrap();
    in_time("the start", served.seen.recv()).await;
    let url = served.url.clone();
    drop(served);
    assert!(matches!(
        in_time("the call", call.outcome()).await,
        Outcome::Disconnected { may_have_run: true }
    ));
    in_time("their end", theirs.closed()).await.unwrap();
    let again = Peer::builder(MCP).connect(transport(&url)).await;
    assert!(again.is_err(), "the port is closed");
}

/// The server closes the connection of an answer and does not report whether it read it. This happens if the idle
/// limit of the connection ends at that moment.
#[tokio::test]
async fn an_answer_lost_with_its_connection_is_sent_again() {
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", socket.local_addr().unwrap());
    let (events_tx, mut events) = tokio::sync::mpsc::unbounded_channel();
    let lost = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let serving = tokio::spawn(async move {
        loop {
            let (stream, _) = socket.accept().await.unwrap();
            let (events_tx, lost) = (events_tx.clone(), lost.clone());
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                loop {
                    let (mut length, mut line, mut method) = (0, String::new(), None);
                    while stream.read_line(&mut line).await.unwrap_or(0) > 2 {
                        method.get_or_insert_with(|| line.split(' ').next().unwrap_or_default().to_owned());
                        if let Some((name, value)) = line.split_once(": ")
                            && name.eq_ignore_ascii_case("content-length")
                        {
                            length = value.trim_end().parse().unwrap();
                        }
                        line.clear();
                    }
                    let mut body = vec![0; length];
                    if method.is_none() || stream.read_exact(&mut body).await.is_err() {
                        return;
                    }
                    if method.as_deref() == Some("GET") {
                        let ask = json!({"jsonrpc": "2.0", "id": 77, "method": "answer", "params": [1]});
                        let events = format!("data: {ask}\n\n");
                        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
                        let _ = stream.write_all(format!("{head}{events}").as_bytes()).await;
                        std::future::pending::<()>().await;
                    }
                    let said = String::from_utf8(body).unwrap();
                    if said.contains("77") {
                        let _ = events_tx.send(said.clone());
                        if !lost.swap(true, std::sync::atomic::Ordering::SeqCst) {
                            return;
                        }
                    }
                    let response = if said.contains("initialize\"") {
                        let result =
                            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {}});
                        let id: Value = serde_json::from_str::<Value>(&said).unwrap()["id"].clone();
                        let body = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
                        let length = body.len();
                        format!(
                            "HTTP/1.1 200 OK\r\nMcp-Session-Id: s\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
                        )
                    } else {
                        "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n".to_owned()
                    };
                    if stream.write_all(response.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let peer = client(transport(&url), MCP).await;
    let first = in_time("the answer", events.recv()).await;
    assert!(first.as_deref().is_some_and(|said| said.contains("\"result\":[1]")), "{first:?}");
    assert_eq!(in_time("the answer again", events.recv()).await, first);
    drop(peer);
    serving.abort();
}
