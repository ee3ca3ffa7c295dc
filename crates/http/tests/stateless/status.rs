use rescind_core::dialect::{MCP_2026, Role};
use rescind_core::{CallError, Peer};
use rescind_http::{HttpClient, HttpServer, Stateless, StatelessTransport};
use serde_json::{Value, json};

use crate::stateless::support::{USUAL, ask, in_time, listen, message, post, serve};

/// The error, the headers, the body, the status and the code.
type Case<'a> = (&'a str, Vec<(&'a str, &'a str)>, &'a Value, u16, i64);

#[tokio::test]
async fn every_refusal_has_its_status_and_its_code() {
    // covers: RULE-11
    let served = serve().await;
    let address = served.address();
    let list = message(7, "tools/list", &json!({}));
    let call = message(7, "tools/call", &json!({"name": "echo"}));
    let mut no_meta = list.clone();
    no_meta["params"] = json!({});
    let mut no_capabilities = list.clone();
    no_capabilities["params"]["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    let mut old = list.clone();
    old["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("v999");
    let named = |method: &'static str| vec![("Mcp-Method", method)];
    let cases: [Case<'_>; 9] = [
        ("no method header", vec![], &list, 400, -32020),
        ("another method", named("prompts/list"), &list, 400, -32020),
        ("another case", named("TOOLS/LIST"), &list, 400, -32020),
        ("no name", named("tools/call"), &call, 400, -32020),
        ("another name", vec![("Mcp-Method", "tools/call"), ("Mcp-Name", "ECHO")], &call, 400, -32020),
        (
            "a broken name",
            vec![("Mcp-Method", "tools/call"), ("Mcp-Name", "=?base64?!?=")],
            &call,
            400,
            -32020,
        ),
        ("no metadata", named("tools/list"), &no_meta, 400, -32602),
        ("no capabilities", named("tools/list"), &no_capabilities, 400, -32602),
        ("header and body of two versions", named("tools/list"), &old, 400, -32020),
    ];
    for (what, headers, body, status, code) in cases {
        let got = post(address, &headers, body).await;
        let error = got.json();
        assert_eq!(
            (got.status, &error["error"]["code"], &error["id"]),
            (status, &json!(code), &json!(7)),
            "{what}"
        );
    }
    let unknown = message(8, "nobody/serves", &json!({}));
    let got = post(address, &[("Mcp-Method", "nobody/serves")], &unknown).await;
    assert_eq!(
        (got.status, &got.json()["error"]["code"], &got.json()["id"]),
        (404, &json!(-32601), &json!(8))
    );
    let picky = message(9, "picky", &json!({}));
    let got = post(address, &[("Mcp-Method", "picky")], &picky).await;
    assert_eq!(
        (got.status, &got.json()["error"]["code"]),
        (400, &json!(-32021)),
        "its capability is missing"
    );
}

#[tokio::test]
async fn an_unsupported_version_is_refused_with_the_supported_ones() {
    // covers: RULE-11
    let served = serve().await;
    let mut body = message(7, "tools/list", &json!({}));
    body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("v999");
    let headers = [USUAL[0], USUAL[1], ("MCP-Protocol-Version", "v999"), ("Mcp-Method", "tools/list")];
    let got = ask(served.address(), "POST", &headers, &body.to_string()).await;
    let error = got.json()["error"].clone();
    assert_eq!((got.status, &error["code"]), (400, &json!(-32022)));
    assert_eq!(error["data"], json!({"supported": ["2026-07-28"], "requested": "v999"}));
    let got = ask(served.address(), "POST", &headers[..2], &body.to_string()).await;
    assert_eq!((got.status, &got.json()["error"]["code"]), (400, &json!(-32020)), "no version at all");
}

#[tokio::test]
async fn an_invalid_message_is_refused_before_any_handler_runs() {
    // covers: RULE-11
    let served = serve().await;
    let address = served.address();
    for method in ["GET", "DELETE"] {
        let got = ask(address, method, &USUAL, "").await;
        assert_eq!(got.status, 405, "{method}");
        assert!(got.head.contains("allow: post"), "{}", got.head);
    }
    let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {}});
    for (body, code) in [
        ("{", -32700),
        ("[]", -32600),
        ("[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}]", -32600),
        (answer.to_string().as_str(), -32600),
        ("{\"method\":\"a\",\"method\":\"b\"}", -32600),
    ] {
        let got = ask(address, "POST", &USUAL, body).await;
        let error = got.json();
        assert_eq!((got.status, &error["error"]["code"]), (400, &json!(code)), "{body}");
        assert!(error.get("id").is_none(), "RULE-03: {error}");
    }
    let list = message(1, "tools/list", &json!({})).to_string();
    let usual = |at: usize, value: &'static str| {
        let mut headers = [USUAL[0], USUAL[1], USUAL[2], ("Mcp-Method", "tools/list")];
        headers[at].1 = value;
        headers
    };
    let too_long = format!("{list}{}", " ".repeat(70_000));
    for (headers, body, status) in [
        (usual(0, "text/plain"), list.as_str(), 415),
        (usual(0, "application/json; charset=latin1"), list.as_str(), 415),
        (usual(1, "application/json"), list.as_str(), 406),
        (usual(2, "2026-07-28"), too_long.as_str(), 413),
        (usual(2, "2026-07-28"), "", 400),
    ] {
        assert_eq!(ask(address, "POST", &headers, body).await.status, status, "{headers:?}");
    }
    let mut page = usual(2, "2026-07-28").to_vec();
    page.push(("Origin", "https://evil.example"));
    assert_eq!(ask(address, "POST", &page, &list).await.status, 403);
}

#[tokio::test]
async fn an_answer_has_its_content_type_and_a_notification_gets_202() {
    // covers: RULE-11
    let served = serve().await;
    let address = served.address();
    // White space around a header's value and the case of its name do not matter.
    let call = message(3, "tools/call", &json!({"name": "echo"}));
    let got = post(address, &[("mcp-METHOD", "tools/call"), ("MCP-NAME", "  echo  ")], &call).await;
    assert_eq!(got.status, 200, "{}", got.body);
    let list = message(3, "tools/list", &json!({}));
    let got = post(address, &[("Mcp-Method", "tools/list"), ("Mcp-Session-Id", "old")], &list).await;
    assert_eq!((got.status, &got.json()["result"]["resultType"]), (200, &json!("complete")));
    assert!(!got.head.contains("mcp-session-id"), "no session is made or named");
    let reported = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}});
    let got = post(address, &[("Mcp-Method", "notifications/cancelled")], &reported).await;
    assert_eq!((got.status, got.body.as_str()), (202, ""), "RULE-12: it is taken and does nothing");
    // The document does not define which headers a notification has. A header that it has must match.
    assert_eq!(post(address, &[], &reported).await.status, 202);
    let got = post(address, &[("Mcp-Method", "notifications/progress")], &reported).await;
    assert_eq!((got.status, &got.json()["error"]["code"]), (400, &json!(-32020)), "another method's header");
}

#[tokio::test]
async fn a_message_about_a_task_has_the_tasks_id_as_its_name() {
    // covers: RULE-11
    let served = serve().await;
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let body = message(5, method, &json!({"taskId": "t-1"}));
        for (name, status, code) in
            [(None, 400, -32020), (Some("t-2"), 400, -32020), (Some("t-1"), 404, -32601)]
        {
            let name = name.map(|name| ("Mcp-Name", name));
            let headers: Vec<_> = std::iter::once(("Mcp-Method", method)).chain(name).collect();
            let got = post(served.address(), &headers, &body).await;
            let code_told = &got.json()["error"]["code"];
            assert_eq!((got.status, code_told), (status, &json!(code)), "{method} {name:?}");
        }
        // Our client writes the header. The method is not served, which the server checks after the headers.
        let transport = StatelessTransport::new(HttpClient::new(&served.url).unwrap());
        let peer = Peer::builder(MCP_2026).role(Role::Client).connect(transport).await.unwrap();
        let call = in_time("an answer", peer.call::<_, Value>(method, &body["params"])).await;
        assert!(matches!(&call, Err(CallError::Failed(error)) if error.code.0 == -32601), "{call:?}");
    }
}

#[tokio::test]
async fn a_mirrored_header_must_equal_its_argument() {
    // covers: RULE-11
    let binding = Stateless::new().mirror("query", &["region"], "Region").unwrap();
    let served = listen(HttpServer::new(binding).bind("127.0.0.1:0").await.unwrap());
    let arguments = json!({"name": "query", "arguments": {"region": "größe"}});
    let body = message(1, "tools/call", &arguments);
    let named = [("Mcp-Method", "tools/call"), ("Mcp-Name", "query")];
    for (header, status) in [
        (Some(("mcp-param-region", "=?base64?Z3LDtsOfZQ==?=")), 200),
        (Some(("mcp-param-region", "us-west1")), 400),
        (None, 400),
    ] {
        let headers: Vec<_> = named.into_iter().chain(header).collect();
        let got = post(served.address(), &headers, &body).await;
        assert_eq!(got.status, status, "{header:?}: {}", got.body);
        if status == 400 {
            assert_eq!(got.json()["error"]["code"], -32020);
        }
    }
    // Our client makes the header if it is configured.
    for (mirrors, works) in [(true, true), (false, false)] {
        let mut transport = StatelessTransport::new(HttpClient::new(&served.url).unwrap());
        if mirrors {
            transport = transport.mirror("query", &["region"], "Region").unwrap();
        }
        let peer = Peer::builder(MCP_2026).role(Role::Client).connect(transport).await.unwrap();
        let params = message(0, "", &arguments)["params"].clone();
        let answer = in_time("an answer", peer.call::<_, Value>("tools/call", &params)).await;
        assert_eq!(answer.is_ok(), works, "{answer:?}");
    }
}
