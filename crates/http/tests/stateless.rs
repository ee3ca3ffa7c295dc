//! The binding `stateless`: its vectors over real sockets, its status table, the effect of closing a POST, one endpoint
//! for the revisions with sessions and the one without, and hanging calls of one client that do not delay those of
//! others.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

use std::sync::{Arc, Mutex};

use rescind_core::dialect::{MCP, MCP_2026, Role};
use rescind_core::{
    BoxFuture, CallContext, CallError, CancelResult, ErrorObject, Limits, Link, Listener, Outcome, Peer,
    Router, Server, Transport,
};
use rescind_http::{
    HttpClient, HttpListener, HttpServer, McpRevisions, Stateless, StatelessTransport, Streamable,
    StreamableTransport,
};
use rescind_testkit::fixture::Fixture;
use rescind_testkit::runner::{CallingSubject, LinkSubject, PeerCaller, Played, Settings, play};
use rescind_testkit::support::http1::{self, Response, read_response, read_until};
use rescind_testkit::support::{Serving, mcp_meta};
use rescind_testkit::{Part, Scenario, scenarios_of};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

pub(crate) use rescind_testkit::support::in_time;

/// A server that serves until it is dropped.
pub(crate) struct Served {
    pub(crate) url: String,
    pub(crate) events: mpsc::UnboundedReceiver<String>,
    _serving: Serving,
}

impl Served {
    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("http://").trim_end_matches('/')
    }

    pub(crate) async fn hears(&mut self, what: &str) {
        assert_eq!(in_time(what, self.events.recv()).await.as_deref(), Some(what));
    }
}

pub(crate) async fn serve() -> Served {
    listen(HttpServer::new(Stateless::new()).max_frame(64 * 1024).bind("127.0.0.1:0").await.unwrap())
}

pub(crate) fn listen(listener: HttpListener) -> Served {
    listen_with(listener, Limits::default())
}

pub(crate) fn listen_with(listener: HttpListener, limits: Limits) -> Served {
    let url = listener.endpoint().to_string();
    let (events_tx, events) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("tools/list", |_: CallContext, _: Value| async move { Ok(json!({"tools": []})) })
        .method("tools/call", |_: CallContext, params: Value| async move { Ok(params["name"].clone()) })
        .method("picky", |_: CallContext, _: Value| async move {
            let data = serde_json::value::to_raw_value(&json!({"requiredCapabilities": {"sampling": {}}}));
            let mut error = ErrorObject::new(rescind_core::ErrorCode(-32021), "sampling is required");
            error.data = data.ok();
            Err::<Value, _>(error.into())
        })
        .method("wait", move |ctx: CallContext, params: Value| {
            let events_tx = events_tx.clone();
            async move {
                let name = params["name"].as_str().unwrap_or_default().to_owned();
                let _ = events_tx.send(format!("{name} started"));
                if params["ticks"] == true {
                    ctx.try_notify("tick", &json!({}))?;
                }
                let cause = ctx.cancelled().await;
                let _ = events_tx.send(format!("{name} {}", cause.kind().name()));
                ctx.stopped::<Value>(cause)
            }
        });
    let server = Server::builder([MCP_2026]).serve(router).limits(limits).listen(listener);
    let serving = Serving::spawn(async move { server.run().await.unwrap() });
    Served { url, events, _serving: serving }
}

/// A request of revision 2026-07-28.
pub(crate) fn message(id: u64, method: &str, params: &Value) -> Value {
    let mut params = params.clone();
    params["_meta"] = mcp_meta();
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

pub(crate) const USUAL: [(&str, &str); 3] = [
    ("Content-Type", "application/json"),
    ("Accept", "application/json, text/event-stream"),
    ("MCP-Protocol-Version", "2026-07-28"),
];

/// Writes one request and leaves the connection open.
pub(crate) async fn begin(address: &str, method: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
    begin_from("127.0.0.1", address, method, headers, body).await
}

/// The same, from this address of the machine.
pub(crate) async fn begin_from(
    from: &str,
    address: &str,
    method: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
    let headers = [&[("Connection", "close")], headers].concat();
    stream.write_all(http1::request(method, "/", address, &headers, body).as_bytes()).await.unwrap();
    stream
}

pub(crate) async fn ask(address: &str, method: &str, headers: &[(&str, &str)], body: &str) -> Response {
    read_response(&mut begin(address, method, headers, body).await).await
}

/// A POST with the usual headers and these.
pub(crate) async fn post(address: &str, more: &[(&str, &str)], body: &Value) -> Response {
    let headers: Vec<_> = USUAL.iter().chain(more).copied().collect();
    ask(address, "POST", &headers, &body.to_string()).await
}

async fn accept(listener: &mut HttpListener) -> Link {
    listener.accept().await.unwrap().unwrap()
}

async fn bind() -> (HttpListener, Link, StatelessTransport) {
    let mut listener = HttpServer::new(Stateless::new()).bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().to_string();
    let link = accept(&mut listener).await;
    (listener, link, StatelessTransport::new(HttpClient::new(&url).unwrap()))
}

async fn play_over(scenario: &'static Scenario) -> Played {
    let settings = Settings::default();
    let fixture = Fixture::new(scenario.dialect, scenario.vector.options.clone()).unwrap();
    match scenario.vector.role {
        Part::Serve => {
            // Without sessions, each connection of a vector is a separate server of the same fixture.
            let listeners: Arc<Mutex<Vec<HttpListener>>> = Arc::default();
            let connect = move || -> BoxFuture<'static, Result<Link, String>> {
                let (fixture, listeners) = (fixture.clone(), Arc::clone(&listeners));
                Box::pin(async move {
                    let (listener, link, transport) = bind().await;
                    listeners.lock().unwrap().push(listener);
                    fixture.serve(link).map_err(|error| error.to_string())?;
                    Box::new(transport).open().await.map_err(|error| error.to_string())
                })
            };
            let mut subject = LinkSubject::new(Box::new(connect)).with_many_lines().with_options();
            play(scenario, &mut subject, &settings).await
        }
        Part::Call => {
            let (_listener, served, transport) = bind().await;
            let link = Box::new(transport).open().await.unwrap();
            let caller = PeerCaller::open(fixture, link).unwrap();
            let mut served = Some(served);
            let wire = LinkSubject::new(Box::new(move || {
                let served = served.take().ok_or_else(|| "there is one link".to_owned());
                Box::pin(async move { served })
            }));
            play(scenario, &mut CallingSubject::new(wire, caller), &settings).await
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_vector_holds() {
    let held = crate::play_all(scenarios_of("mcp-2026"), play_over, |_| false).await;
    assert!(held >= 50, "only {held} vectors were played");
}

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
        (&message(1, "tools/list", &json!({})).to_string().repeat(2), -32600),
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
    let mut served = crate::stateless::listen(listener.bind("127.0.0.1:0").await.unwrap());
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

/// A client: an address of this machine, and the name that the auth hook gives it.
#[cfg(target_os = "linux")]
type Who = (&'static str, &'static str);

/// The limit of running handlers, and of waiting requests.
#[cfg(target_os = "linux")]
const MOST: usize = 8;

#[cfg(target_os = "linux")]
async fn begin_as(address: &str, (from, user): Who, method: &str) -> TcpStream {
    let body = message(1, method, &json!({"name": user})).to_string();
    let headers = [USUAL[0], USUAL[1], USUAL[2], ("Mcp-Method", method), ("X-User", user)];
    begin_from(from, address, "POST", &headers, &body).await
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn hanging_calls_of_one_client_delay_no_other_client() {
    use rescind_core::Principal;
    use rescind_net::{AuthRefusal, AuthRequest, Credential};

    let pairs: [(Who, Who); 2] =
        [(("127.0.0.1", "all"), ("127.0.0.2", "all")), (("127.0.0.1", "mallory"), ("127.0.0.1", "ada"))];
    for (mallory, ada) in pairs {
        let mut limits = Limits::default();
        (limits.max_running_handlers, limits.max_queued_requests) = (MOST, MOST);
        let mut http = HttpServer::new(Stateless::new());
        if mallory.1 != "all" {
            let auth = async |request: AuthRequest| match request.header("X-User") {
                Some(user) => Ok(Credential::of(Principal(user.into()))),
                None => Err(AuthRefusal::unauthorized("Bearer")),
            };
            http = http.auth(auth);
        }
        let mut served = listen_with(http.bind("127.0.0.1:0").await.unwrap(), limits);
        let address = served.address().to_owned();
        // More than all handlers and the whole queue.
        let (tell, mut refused) = mpsc::unbounded_channel();
        let mut hanging = Vec::new();
        for _ in 0..3 * MOST {
            let (mut stream, tell) = (begin_as(&address, mallory, "wait").await, tell.clone());
            hanging.push(tokio::spawn(async move {
                let mut text = read_until(&mut stream, "\r\n\r\n").await;
                if text.starts_with("HTTP/1.1 429") {
                    if !text.contains("client_queued") {
                        text.push_str(&read_until(&mut stream, "client_queued").await);
                    }
                    let _ = tell.send(text);
                }
                // It hangs until it is dropped.
                std::future::pending::<TcpStream>().await
            }));
        }
        // Half of the handlers run, half of the queue is taken.
        for _ in 0..MOST / 2 {
            served.hears(&format!("{} started", mallory.1)).await;
        }
        for _ in 0..2 * MOST {
            let refused = in_time("a refusal", refused.recv()).await.unwrap();
            assert!(refused.contains("retry-after: 1"), "{refused}");
        }
        let mut other = begin_as(&address, ada, "tools/list").await;
        let answered = in_time("another client's call", read_until(&mut other, "tools")).await;
        assert!(answered.starts_with("HTTP/1.1 200"), "{mallory:?} locks {ada:?} out: {answered}");
        assert!(refused.try_recv().is_err(), "half of the queue waits");
        for task in hanging {
            task.abort();
        }
    }
}
