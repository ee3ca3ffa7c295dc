//! The Python SDK of MCP.

use rescind::dialect::{MCP, MCP_2026};
use rescind::http::{HttpServer, Stateless};
use rescind::transport::Listener as _;
use rescind::{Limits, Server};
use rescind_testkit::support::mcp_meta;
use serde_json::json;

use crate::raw_peer::{RawPeer, agent, is_about, is_clean, post, read_until, request};

/// The SDK gives every request over stateless HTTP the id 1. Our server must accept this: one after another, and
/// concurrently if each POST has its own ids.
#[tokio::test]
async fn python_sdk_3060_every_request_has_id_1() {
    is_about!("I4 or I14");
    let (mut client, server, _told) = RawPeer::meet(MCP, Limits::default());
    for n in 0..100 {
        client.ask(1, "echo", &json!({"n": n})).await;
        let answer = client.hear().await;
        assert_eq!((&answer["id"], &answer["result"]["n"]), (&json!(1), &json!(n)), "I14");
    }
    is_clean(&server).await;

    let listener = HttpServer::new(Stateless::new()).bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().0;
    let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let (router, mut reported) = agent();
    let serving = tokio::spawn(Server::builder([MCP_2026]).serve(router).listen(listener).run());
    let ask = async |method: &str, n: u64| {
        let params = json!({"n": n, "_meta": mcp_meta()});
        let headers = [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", method)];
        post(&address, "/", &headers, &request(1, method, &params)).await
    };
    let left = ask("wait", 1).await;
    reported.hears("wait 1 began").await;
    let stays = ask("deaf", 2).await;
    reported.hears("deaf 2 began").await;
    drop(left);
    reported.hears("wait 1 peer").await;
    reported.gate.notify_one();
    reported.hears("deaf 2 ended").await;
    let mut stays = stays;
    let said = read_until(&mut stays, "\"id\":1").await;
    assert!(said.contains(" 200 ") && !said.contains("error"), "I4: {said}");
    serving.abort();
}
