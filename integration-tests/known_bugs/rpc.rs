//! The TypeScript SDK of ACP, 2.4.0.

use rescind::dialect::{ACP, ACP_DRAFT, ACP_V2};
use rescind::http::{Acp, HttpServer};
use rescind::transport::Listener as _;
use rescind::{Limits, Server};
use rescind_testkit::support::http1;
use serde_json::json;

use crate::raw_peer::{
    RawPeer, agent, begin, header, in_time, is_about, is_clean, post, read_until, request,
};

/// The SDK answers with -32603: the caller that cancelled gets an internal error of the agent.
#[tokio::test]
async fn acp_typescript_handler_error_after_a_cancel() {
    is_about!("I1");
    for dialect in [ACP, ACP_V2, ACP_DRAFT] {
        let (method, key) = match dialect.name() {
            "acp-draft" => ("$/cancelRequest", "id"),
            _ => ("$/cancel_request", "requestId"),
        };
        let draft = dialect.name() == "acp-draft";
        let (mut client, server, mut reported) = RawPeer::meet(dialect, Limits::default());
        if draft {
            let capabilities = json!({"cancellation": {"request": true}});
            let hello = json!({"protocolVersion": 1, "clientCapabilities": capabilities});
            client.ask(0, "initialize", &hello).await;
            assert_eq!(client.hear().await["id"], 0);
        }
        client.ask(1, "fails", &json!({"n": 1})).await;
        reported.hears("fails 1 began").await;
        client.cancel(1, method, key).await;
        reported.hears("fails 1 failed").await;
        let answer = client.hear().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32_800)), "{answer}");
        assert!(!answer.to_string().contains("trouble"), "{answer}");
        assert_eq!(server.stats().errors_after_cancel, 1, "its own error is counted");
        is_clean(&server).await;
    }
}

/// The SDK drops a cancel that arrives before its request. The POSTs of a client have no order.
#[tokio::test]
async fn acp_typescript_over_http_a_cancel_that_overtakes_its_request_is_lost() {
    is_about!("I8");
    let listener = HttpServer::new(Acp::new()).path("/acp").bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().0;
    let address = url.trim_start_matches("http://").trim_end_matches("/acp").to_owned();
    let (router, reported) = agent();
    let (met, mut peers) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::builder([ACP]).serve(router).on_peer(move |peer| drop(met.send(peer)));
    let serving = tokio::spawn(server.listen(listener).run());
    let hello = json!({"protocolVersion": 1, "clientCapabilities": {}});
    let mut opened = post(&address, "/acp", &[], &request(0, "initialize", &hello)).await;
    let text = read_until(&mut opened, "\"id\":0").await;
    let connection = header(&text, "Acp-Connection-Id").expect("a connection").to_owned();
    let headers = [("Acp-Connection-Id", connection.as_str())];
    let mut stream = get(&address, &headers).await;
    read_until(&mut stream, "\r\n\r\n").await;
    let cancel = json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 7}});
    read_until(&mut post(&address, "/acp", &headers, &cancel).await, " 202 ").await;
    read_until(&mut post(&address, "/acp", &headers, &request(7, "wait", &json!({"n": 7}))).await, " 202 ")
        .await;
    let said = read_until(&mut stream, "\"id\":7").await;
    let said = if said.contains('}') { said } else { said + &read_until(&mut stream, "}").await };
    assert!(said.contains("-32800"), "{said}");
    assert_eq!(reported.entered(), 0, "its handler is never entered");
    let peer = in_time("the peer", peers.recv()).await.unwrap();
    assert_eq!(peer.stats().parked_cancels, 1);
    is_clean(&peer).await;
    drop(stream);
    serving.abort();
}

async fn get(address: &str, headers: &[(&str, &str)]) -> tokio::net::TcpStream {
    let headers = [&[("Accept", "text/event-stream")], headers].concat();
    begin(address, &http1::request("GET", "/acp", address, &headers, "")).await
}
