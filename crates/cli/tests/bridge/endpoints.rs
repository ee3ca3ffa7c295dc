//! Endpoints behind a bridge, and a client that speaks over stdio only.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::Stdio;

use rescind::dialect::{Dialect, Role};
use rescind::http::{HttpClient, HttpServer, LegacySseTransport, Streamable, StreamableTransport};
use rescind::transport::Listener as _;
use rescind::{CallContext, CauseKind, Credential, Outcome, Peer, Router, Server};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::bridge::{Bridge, connect, error_of, fixture, hello, soon, transport, words};
use crate::common::{Files, Fixture, rescind, text};

/// A client that writes lines to the bridge's stdin.
#[test]
fn a_client_over_stdio_reaches_a_server_over_http_and_the_end_of_its_input_ends_the_bridge() {
    // A server that speaks only the transport of 2024-11-05 is found.
    let behind: [(&str, &[&str]); 3] =
        [("/mcp", &[]), ("/sse", &["--to-binding", "legacy-sse"]), ("/sse", &[])];
    for (path, flags) in behind {
        let server = Fixture::listen("mcp", "http://127.0.0.1:0/mcp", &["--legacy-sse"]);
        let url = server.endpoint.replace("/mcp", path);
        client_over_stdio(&[flags, &[&url]].concat());
    }
}

/// A client of a bridge over stdio, with what is behind it. It calls, cancels a call and leaves.
fn client_over_stdio(behind: &[&str]) {
    let mut bridge = rescind(&["bridge", "--dialect", "mcp", "--listen", "stdio"])
        .args(behind)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = bridge.stdin.take().unwrap();
    let mut lines = BufReader::new(bridge.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    let mut send = |message: Value| writeln!(stdin, "{message}").unwrap();
    send(json!({"jsonrpc": "2.0", "id": "a", "method": "initialize", "params": hello("mcp")}));
    assert_eq!(next()["id"], "a");
    send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    send(json!({"jsonrpc": "2.0", "id": 1, "method": "test/wait", "params": {}}));
    send(json!({"jsonrpc": "2.0", "id": 2, "method": "test/echo", "params": {"value": 1.5}}));
    let echoed = next();
    assert_eq!((&echoed["id"], &echoed["result"]["value"]), (&json!(2), &json!(1.5)));
    send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}));
    loop {
        send(json!({"jsonrpc": "2.0", "id": 3, "method": "test/stats", "params": {}}));
        let stats = next();
        assert_eq!(stats["id"], 3, "a cancelled request was answered: {stats}");
        if stats["result"]["cancelled"] == 1 {
            break;
        }
    }
    drop(stdin);
    let done = bridge.wait_with_output().unwrap();
    assert_eq!((done.status.code(), text(&done.stderr)), (Some(0), ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_the_old_transport_have_a_child_each_and_lose_it_with_their_stream() {
    let child = fixture("mcp");
    let behind = [&["--legacy-sse"], &words(&child)[..]].concat();
    let bridge = Bridge::listen("mcp", "http://127.0.0.1:0/mcp", &behind);
    let old = bridge.endpoint.replace("/mcp", "/sse");
    let client = async || {
        let transport = LegacySseTransport::new(HttpClient::new(&old).unwrap());
        let client = connect("mcp", Box::new(transport)).await;
        soon("the handshake", client.call::<_, Value>("initialize", &hello("mcp"))).await.unwrap();
        client
    };
    let (one, two) = (client().await, client().await);
    let waiting = one.call::<_, Value>("test/wait", &json!({})).start().unwrap();
    let other = two.call::<_, Value>("test/wait", &json!({})).start().unwrap();
    let stats = async |peer: &Peer| peer.call::<_, Value>("test/stats", &json!({})).await.unwrap();
    while stats(&one).await["running"] != 1 || stats(&two).await["running"] != 1 {}
    waiting.canceller().cancel("enough");
    assert!(matches!(soon("the outcome", waiting.outcome()).await, Outcome::Cancelled(_)));
    while stats(&one).await["cancelled"] != 1 {}
    assert_eq!(stats(&two).await["cancelled"], 0, "another client's");
    drop(other);
    let streamable = bridge.client("mcp").await;
    assert_eq!(stats(&streamable).await["started"], 0, "a child of its own");
    bridge.signal(Signal::TERM);
    assert_eq!(bridge.ended().await.0, Some(0));
}

#[test]
fn over_stdio_the_end_of_the_program_ends_the_bridge_with_status_1() {
    let script = "echo 'no licence' >&2; exit 3";
    let mut bridge = rescind(&["bridge", "--dialect", "mcp", "--listen", "stdio", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The client keeps its end open.
    let mut stdin = bridge.stdin.take().unwrap();
    writeln!(stdin, "{}", json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello("mcp")}))
        .unwrap();
    let done = bridge.wait_with_output().unwrap();
    let answer: Value = serde_json::from_slice(&done.stdout).unwrap();
    let message = answer["error"]["message"].as_str().unwrap();
    assert_eq!(message, "`sh` ended: exit status: 3; stderr ends: no licence");
    assert_eq!((done.status.code(), text(&done.stderr)), (Some(1), format!("rescind: {message}\n").as_str()));
    drop(stdin);
}

#[test]
fn a_language_server_over_stdio_is_ended_by_exit_with_its_status() {
    for (shuts_down, status) in [(true, 0), (false, 1)] {
        let mut bridge =
            rescind(&["bridge", "--dialect", "lsp", "--listen", "stdio", "--framing", "newline"])
                .args(fixture("lsp"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
        let mut stdin = bridge.stdin.take().unwrap();
        let mut lines = BufReader::new(bridge.stdout.take().unwrap()).lines();
        let mut send = |message: Value| writeln!(stdin, "{message}").unwrap();
        send(json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello("lsp")}));
        assert!(lines.next().unwrap().unwrap().contains(r#""id":1,"result""#));
        if shuts_down {
            send(json!({"jsonrpc": "2.0", "id": 2, "method": "shutdown"}));
            assert!(lines.next().unwrap().unwrap().contains(r#""id":2,"result":null"#));
        }
        send(json!({"jsonrpc": "2.0", "method": "exit"}));
        assert_eq!(bridge.wait().unwrap().code(), Some(status));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_refuses_connections_is_named_in_the_answer() {
    // A port that was free a moment ago, and that nothing listens on.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for (dialect, url) in [
        ("acp", format!("ws://127.0.0.1:{port}/acp")),
        ("acp", "pipe:/tmp/nobody/listens.sock".to_owned()),
        ("mcp", format!("http://127.0.0.1:{port}/mcp")),
        ("mcp", format!("https://127.0.0.1:{port}/mcp")),
    ] {
        let bridge = Bridge::listen(dialect, "ws://127.0.0.1:0/x", &[&url]);
        let error = error_of(&bridge.stranger(dialect).await, "initialize", &hello(dialect)).await;
        assert!(error.message.starts_with(&format!("{url} could not be reached: ")), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_lost_and_restarts_serves_the_next_session() {
    let endpoint = format!("pipe:rescind-bridge-restarts-{}", std::process::id());
    let bridge = Bridge::listen("acp", "ws://127.0.0.1:0/acp", &[&endpoint]);
    for round in 0..2 {
        let server = Fixture::listen("acp", &endpoint, &[]);
        let client = bridge.client("acp").await;
        let call = client.call::<_, Value>("test/wait", &json!({})).start().unwrap();
        let stats: Value = soon("the stats", client.call("test/stats", &json!({}))).await.unwrap();
        assert_eq!(stats["running"], 1, "round {round}");
        drop(server);
        match soon("the error", call.outcome()).await {
            Outcome::Failed(error) => assert!(error.message.contains(&endpoint), "{error}"),
            other => panic!("round {round}: {other:?}"),
        }
    }
    bridge.signal(Signal::TERM);
    assert_eq!(bridge.ended().await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_passes_two_bridges() {
    let far = Bridge::listen("acp", "ws://127.0.0.1:0/acp", &words(&fixture("acp")));
    let name = format!("pipe:rescind-bridge-near-{}", std::process::id());
    let near = Bridge::listen("acp", &name, &[&far.endpoint]);
    let client = near.client("acp").await;
    let call = client.call::<_, Value>("test/partial", &json!({})).start().unwrap();
    let stats: Value = soon("the stats", client.call("test/stats", &json!({}))).await.unwrap();
    assert_eq!(stats["running"], 1);
    call.canceller().cancel("");
    match soon("the answer", call.outcome()).await {
        Outcome::CompletedAfterCancel(value) => assert_eq!(value["partial"], true, "{value}"),
        other => panic!("{other:?}"),
    }
}

/// The program asks its client while it works for it, over HTTP too, and a cancel of the work reaches what it asked.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_the_program_reach_its_client_over_each_transport_and_are_cancelled_with_their_parent() {
    for (dialect, listen) in
        [("mcp", "http://127.0.0.1:0/mcp"), ("mcp", "ws://127.0.0.1:0/mcp"), ("acp", "ws://127.0.0.1:0/acp")]
    {
        let bridge = Bridge::listen(dialect, listen, &words(&fixture(dialect)));
        let (asked, mut asks) = tokio::sync::mpsc::unbounded_channel();
        let (stopped, mut stops) = tokio::sync::mpsc::unbounded_channel();
        let router = Router::new().method("test/wait", move |ctx: CallContext, _: Value| {
            asked.send(()).unwrap();
            let stopped = stopped.clone();
            async move {
                let cause = ctx.cancelled().await;
                stopped.send(cause.kind()).unwrap();
                ctx.stopped::<Value>(cause)
            }
        });
        let link = soon("the connection", transport(&bridge.endpoint).open()).await.unwrap();
        let dialect_of = Dialect::by_name(dialect).unwrap();
        let client = Peer::builder(dialect_of).role(Role::Client).serve(router).attach(link).unwrap();
        soon("the handshake", client.call::<_, Value>("initialize", &hello(dialect))).await.unwrap();
        if dialect == "mcp" {
            client.notify("notifications/initialized", &json!({})).await.unwrap();
        }
        let nested = json!({"depth": 1, "width": 2});
        let call = client.call::<_, Value>("test/nested", &nested).start().unwrap();
        for _ in 0..2 {
            soon("a request of the program", asks.recv()).await.unwrap();
        }
        call.canceller().cancel("");
        for _ in 0..2 {
            assert_eq!(soon("its cancel", stops.recv()).await, Some(CauseKind::Peer), "{dialect} {listen}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_answers_no_request_is_named_in_the_answer() {
    for (status, part) in [
        ("500 Internal Server Error", "500 Internal Server Error"),
        ("302 Found\r\nLocation: http://127.0.0.1:1/", "302 Found"),
        ("200 OK", "200 OK"),
    ] {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", server.local_addr().unwrap());
        let response = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let serving = tokio::spawn(async move {
            loop {
                let (mut stream, _) = server.accept().await.unwrap();
                let response = response.clone();
                tokio::spawn(async move {
                    let mut head = [0; 4096];
                    let _read = stream.read(&mut head).await;
                    let _written = stream.write_all(response.as_bytes()).await;
                    let _closed = stream.shutdown().await;
                    // Unread data would reset the connection.
                    while stream.read(&mut head).await.is_ok_and(|count| count > 0) {}
                });
            }
        });
        let bridge = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &[&url]);
        let error = error_of(&bridge.stranger("mcp").await, "initialize", &hello("mcp")).await;
        assert!(error.message.starts_with(&url) && error.message.contains(part), "{error}");
        serving.abort();
    }
}

/// An upstream over HTTP sees the trace in its headers, whether it came in headers or in `_meta`, and `_meta` unchanged.
#[tokio::test(flavor = "multi_thread")]
async fn a_trace_is_carried_to_the_headers_of_the_upstream_and_the_params_stay_as_they_are() {
    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const META: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let (head, mut heads) = tokio::sync::mpsc::unbounded_channel();
    let server = HttpServer::new(Streamable::new()).auth(move |request| {
        let header = |name: &str| request.header(name).map(ToOwned::to_owned);
        if request.method() == "POST" {
            head.send((header("traceparent"), header("tracestate"))).unwrap();
        }
        async { Ok(Credential::anonymous()) }
    });
    let listener = server.bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().to_string();
    let router = Router::new()
        .method("initialize", async |_: CallContext, _: Value| Ok(json!({"protocolVersion": "2025-11-25"})))
        .method("params", async |_: CallContext, params: Box<serde_json::value::RawValue>| Ok(params));
    let serving = tokio::spawn(Server::builder(rescind::dialect::MCP).serve(router).listen(listener).run());
    let bridge = Bridge::listen("mcp", "http://127.0.0.1:0/mcp", &[&url]);
    for (header, meta, expected) in [
        (None, None, None),
        (Some(HEADER), None, Some(HEADER)),
        (None, Some(META), Some(META)),
        (Some(HEADER), Some(META), Some(META)),
        (Some("00-no-trace-01"), Some("neither"), None),
    ] {
        let mut client = HttpClient::new(&bridge.endpoint).unwrap();
        if let Some(header) = header {
            client = client.header("traceparent", header).unwrap();
            client = client.header("tracestate", "vendor=1").unwrap();
        }
        let client = connect("mcp", Box::new(StreamableTransport::new(client))).await;
        soon("the handshake", client.call::<_, Value>("initialize", &hello("mcp"))).await.unwrap();
        while heads.try_recv().is_ok() {}
        let meta = meta.map_or(json!({}), |meta| json!({"traceparent": meta}));
        let params = json!({"z": 1.50, "_meta": meta, "a": []});
        let passed: Value = soon("the answer", client.call("params", &params)).await.unwrap();
        assert_eq!(passed, params);
        let state = (expected == Some(HEADER)).then(|| "vendor=1".to_owned());
        let sent = soon("the request", heads.recv()).await.unwrap();
        assert_eq!(sent, (expected.map(ToOwned::to_owned), state), "{header:?} {params}");
    }
    serving.abort();
}

// Who may connect to a bridge.

const TOKEN: &str = "a-long-and-secret-token";

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_with_a_token_serves_only_clients_that_show_it() {
    let files = Files::new();
    let file = files.write("token", &format!("{TOKEN}\n"));
    let child = fixture("mcp");
    let more = [&["--token-file", &file], words(&child).as_slice()].concat();
    let bridge = Bridge::listen("mcp", "http://127.0.0.1:0/mcp", &more);
    for (shown, is_served) in [
        (None, false),
        (Some("Bearer wrong-and-long-token"), false),
        (Some("Bearer a-long-and-secret-token"), true),
    ] {
        let mut client = HttpClient::new(&bridge.endpoint).unwrap();
        if let Some(shown) = shown {
            client = client.header("authorization", shown).unwrap();
        }
        let peer = connect("mcp", Box::new(StreamableTransport::new(client))).await;
        let answer = soon("the answer", peer.call::<_, Value>("initialize", &hello("mcp"))).await;
        assert_eq!(answer.is_ok(), is_served, "{shown:?}: {answer:?}");
    }
    // A bridge in front of it without the token gets 401, and with the token it is served.
    let front = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &[&bridge.endpoint]);
    let error = error_of(&front.stranger("mcp").await, "initialize", &hello("mcp")).await;
    assert!(error.message.contains("401 Unauthorized"), "{error}");
    let front = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &["--to-token-file", &file, &bridge.endpoint]);
    let client = front.client("mcp").await;
    let echoed: Value = soon("an echo", client.call("test/echo", &json!({"value": 1}))).await.unwrap();
    assert_eq!(echoed["value"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_page_of_another_origin_is_refused_unless_it_is_allowed() {
    for (allowed, is_served) in
        [(None, false), (Some("https://app.example"), true), (Some("https://other.example"), false)]
    {
        let child = fixture("acp");
        let mut more = Vec::new();
        if let Some(origin) = allowed {
            more.extend(["--allow-origin", origin]);
        }
        more.extend(words(&child));
        let bridge = Bridge::listen("acp", "ws://127.0.0.1:0/acp", &more);
        let page = rescind::websocket::connect(&bridge.endpoint).header("origin", "https://app.example");
        let opened = soon("the upgrade", rescind::transport::Transport::open(Box::new(page))).await;
        assert_eq!(opened.is_ok(), is_served, "{allowed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_checked_on_both_sides_of_a_bridge() {
    let files = Files::new();
    let write = |name: &str, host: &str| {
        let made = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        let certificate = files.write(&format!("{name}.pem"), &made.cert.pem());
        (certificate, files.write(&format!("{name}.key"), &made.signing_key.serialize_pem()))
    };
    let (certificate, key) = write("server", "localhost");
    let (stranger, _) = write("stranger", "localhost");
    let child = fixture("mcp");
    let tls = ["--tls-cert", &certificate, "--tls-key", &key];
    let far =
        Bridge::listen("mcp", "https://127.0.0.1:0/mcp", &[&tls[..], words(&child).as_slice()].concat());
    let url = far.endpoint.replace("127.0.0.1", "localhost");
    for (authority, is_served) in [(&certificate, true), (&stranger, false)] {
        let near = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &["--tls-ca", authority, &url]);
        let client = near.stranger("mcp").await;
        if is_served {
            soon("the handshake", client.call::<_, Value>("initialize", &hello("mcp"))).await.unwrap();
        } else {
            let error = error_of(&client, "initialize", &hello("mcp")).await;
            assert!(error.message.contains("could not be reached"), "{error}");
        }
    }
    // With an authority for clients it refuses a client that shows no certificate.
    let more = [&tls[..], &["--client-ca", &stranger], words(&child).as_slice()].concat();
    let strict = Bridge::listen("mcp", "https://127.0.0.1:0/mcp", &more);
    let url = strict.endpoint.replace("127.0.0.1", "localhost");
    let near = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &["--tls-ca", &certificate, &url]);
    error_of(&near.stranger("mcp").await, "initialize", &hello("mcp")).await;
}
