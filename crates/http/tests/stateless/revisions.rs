//! One endpoint for the revisions with sessions and the one without.

use rescind_core::dialect::{MCP, MCP_2026, Role};
use rescind_core::{CallContext, Listener, Peer, Router, Server};
use rescind_http::{
    HttpClient, HttpServer, McpRevisions, Stateless, StatelessTransport, Streamable, StreamableTransport,
};
use serde_json::{Value, json};

use crate::stateless::support::{USUAL, ask, in_time, message, post};

#[tokio::test]
async fn a_version_unknown_to_both_revisions_is_refused_with_the_supported_ones() {
    let both = McpRevisions::new(Streamable::new(), Stateless::new());
    let listener = HttpServer::new(both).bind("127.0.0.1:0").await.unwrap();
    let address = listener.endpoint().to_string().trim_start_matches("http://").trim_matches('/').to_owned();
    let server = Server::builder([MCP_2026, MCP]).serve(Router::new()).listen(listener);
    let serving = tokio::spawn(async move { server.run().await.unwrap() });
    let mut list = message(5, "tools/list", &json!({}));
    list["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("1999-01-01");
    let headers = [USUAL[0], USUAL[1], ("MCP-Protocol-Version", "1999-01-01"), ("Mcp-Method", "tools/list")];
    let got = ask(&address, "POST", &headers, &list.to_string()).await;
    assert_eq!((got.status, &got.json()["error"]["code"]), (400, &json!(-32022)), "{}", got.body);
    assert_eq!(got.json()["error"]["data"], json!({"supported": ["2026-07-28"], "requested": "1999-01-01"}));
    // If only the header names a version, the refusal has the same revision's form.
    let plain = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/list"}).to_string();
    let got = ask(&address, "POST", &headers[..3], &plain).await;
    assert_eq!((got.status, &got.json()["error"]["code"]), (400, &json!(-32602)), "{}", got.body);
    assert_eq!(
        ask(&address, "GET", &headers[..3], "").await.status,
        400,
        "a GET is of the revisions with sessions"
    );
    serving.abort();
}

#[tokio::test]
async fn each_client_finds_its_own_revision_under_one_path() {
    let both = McpRevisions::new(Streamable::new(), Stateless::new());
    let listener = HttpServer::new(both).bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().to_string();
    let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let router = Router::new()
        .method("initialize", |_: CallContext, _: Value| async move {
            Ok(json!({"protocolVersion": "2025-11-25", "capabilities": {}}))
        })
        .method("tools/list", |_: CallContext, _: Value| async move { Ok(json!({"tools": []})) });
    let server = Server::builder([MCP_2026, MCP]).serve(router).listen(listener);
    let serving = tokio::spawn(async move { server.run().await.unwrap() });

    let old = StreamableTransport::new(HttpClient::new(&url).unwrap());
    let old = Peer::builder(MCP).role(Role::Client).connect(old).await.unwrap();
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}});
    let hello: Value = in_time("the handshake", old.call("initialize", &hello)).await.unwrap();
    assert_eq!(hello["protocolVersion"], "2025-11-25");
    let listed: Value = in_time("a list", old.call("tools/list", &json!({}))).await.unwrap();
    assert!(listed.get("resultType").is_none(), "the older revisions have no such member");

    let new = StatelessTransport::new(HttpClient::new(&url).unwrap());
    let new = Peer::builder(MCP_2026).role(Role::Client).connect(new).await.unwrap();
    let params = message(0, "", &json!({}))["params"].clone();
    let listed: Value = in_time("a list", new.call("tools/list", &params)).await.unwrap();
    assert_eq!(listed["resultType"], "complete");

    let list = message(5, "tools/list", &json!({}));
    let got = ask(&address, "POST", &USUAL[..2], &list.to_string()).await;
    assert_eq!((got.status, &got.json()["error"]["code"]), (400, &json!(-32020)), "its body says what it is");
    assert_eq!(ask(&address, "GET", &USUAL, "").await.status, 405, "its header does");
    let unnamed = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/list"});
    let got = ask(&address, "POST", &USUAL[..2], &unnamed.to_string()).await;
    assert_eq!(got.status, 400, "what says nothing needs a session: {}", got.body);
    let got = post(&address, &[("Mcp-Method", "tools/list")], &list).await;
    assert_eq!(got.status, 200, "{}", got.body);
    serving.abort();
}

#[tokio::test]
async fn initialize_opens_a_session_whatever_version_its_header_names() {
    let both = McpRevisions::new(Streamable::new(), Stateless::new());
    let listener = HttpServer::new(both).bind("127.0.0.1:0").await.unwrap();
    let address = listener.endpoint().to_string().trim_start_matches("http://").trim_matches('/').to_owned();
    let router = Router::new().method("initialize", |_: CallContext, asked: Value| async move {
        Ok(json!({"protocolVersion": asked["protocolVersion"], "capabilities": {}}))
    });
    let server = Server::builder([MCP_2026, MCP])
        .serve(router.method("ping", |_: CallContext, _: Value| async { Ok(json!({})) }));
    let server = server.listen(listener);
    let serving = tokio::spawn(async move { server.run().await.unwrap() });
    let params = json!({"protocolVersion": "2019-12-31", "capabilities": {}});
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).to_string();
    for version in ["1999-01-01", "2026-07-28", "2025-06-18", "x"] {
        let headers = [USUAL[0], USUAL[1], ("MCP-Protocol-Version", version)];
        let got = ask(&address, "POST", &headers, &hello).await;
        assert_eq!(
            (got.status, &got.json()["result"]["protocolVersion"]),
            (200, &json!("2019-12-31")),
            "{version}"
        );
        // The session's own version goes to its session, although no binding lists it.
        let line = got.head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        let session = line.unwrap().trim().to_owned();
        let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
        for (version, status) in [("2019-12-31", 200), ("1999-01-01", 400), ("2025-11-25", 400)] {
            let headers =
                [USUAL[0], USUAL[1], ("MCP-Protocol-Version", version), ("Mcp-Session-Id", session.as_str())];
            let got = ask(&address, "POST", &headers, &ping).await;
            assert_eq!(got.status, status, "{version}: {}", got.body);
        }
    }
    serving.abort();
}
