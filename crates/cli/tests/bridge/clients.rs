//! Clients that leave, and clients that send invalid or too large frames.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use rescind::dialect::MCP;
use rescind::http::{HttpClient, StreamableTransport};
use rescind::named_pipe::NamedPipeTransport;
use rescind::transport::{Link, Transport, TransportEvent};
use rescind::websocket::{self, LinkOptions};
use rescind::{Outcome, Peer};
use rescind_testkit::support::frames::{body, event, send};
use rescind_testkit::support::http1::{read_head, read_until, request};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::bridge::{Bridge, Lives, fixture, fixture_script, hello, soon, words};

const ACCEPT: (&str, &str) = ("Accept", "application/json, text/event-stream");
const JSON: (&str, &str) = ("Content-Type", "application/json");
/// Above the limit of 16 MiB.
const TOO_LARGE: usize = 17 << 20;

async fn echo(client: &Peer) {
    let echo: Value = soon("an echo", client.call("test/echo", &json!({"value": 1.5}))).await.unwrap();
    assert_eq!(echo["value"], 1.5);
}

async fn until_running(client: &Peer, many: u64) {
    loop {
        let stats: Value = soon("the stats", client.call("test/stats", &json!({}))).await.unwrap();
        if stats["running"] == many {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_over_http_that_leaves_at_any_point_leaves_no_child() {
    let lives = Lives::new();
    let bridge =
        Bridge::listen("mcp", "http://127.0.0.1:0/mcp", &words(&lives.child(&fixture_script("mcp"))));
    let address = bridge.endpoint.trim_start_matches("http://").trim_end_matches("/mcp").to_owned();
    let hello_text =
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello("mcp")}).to_string();
    let whole = request("POST", "/mcp", &address, &[ACCEPT, JSON], &hello_text);
    // In the middle of its first request, in the head and in the body: no child is started.
    for part in [20, whole.len() - 5] {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        stream.write_all(&whole.as_bytes()[..part]).await.unwrap();
        stream.shutdown().await.unwrap();
        // The bridge has noticed once it closes its side.
        let _refusal = soon("the close", read_head(&mut stream)).await;
    }
    // In its handshake.
    let client = bridge.stranger("mcp").await;
    let call = client.call::<_, Value>("initialize", &hello("mcp")).start().unwrap();
    let life = lives.begun().await;
    drop((call, client));
    life.ended().await;
    // Between two calls, in a call, and after a cancel that is not answered.
    for (running, cancels) in [(0, false), (1, false), (1, true)] {
        let (client, life) = tokio::join!(bridge.client("mcp"), lives.begun());
        let method = if cancels { "test/ignore" } else { "test/wait" };
        let params = json!({"ms": 3_600_000});
        let call = (running > 0).then(|| client.call::<_, Value>(method, &params).start().unwrap());
        until_running(&client, running).await;
        if let (Some(call), true) = (&call, cancels) {
            call.canceller().cancel("");
        }
        drop((call, client));
        life.ended().await;
    }
    let (client, _life) = tokio::join!(bridge.client("mcp"), lives.begun());
    echo(&client).await;
}

/// A client that is killed sends no DELETE.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_over_http_that_vanishes_is_ended_as_idle_with_its_child() {
    let lives = Lives::new();
    let child = lives.child(&fixture_script("mcp"));
    let more = [&["--idle", "1"], words(&child).as_slice()].concat();
    let bridge = Bridge::listen("mcp", "http://127.0.0.1:0/mcp", &more);
    let address = bridge.endpoint.trim_start_matches("http://").trim_end_matches("/mcp").to_owned();
    let hello =
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello("mcp")}).to_string();
    let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
    stream.write_all(request("POST", "/mcp", &address, &[ACCEPT, JSON], &hello).as_bytes()).await.unwrap();
    let head = read_until(&mut stream, "mcp-session-id: ").await;
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let life = lives.begun().await;
    drop(stream);
    life.ended().await;
}

/// A client with a link that is driven by hand, and that may send frames above the limit.
async fn by_hand(endpoint: &str) -> Link {
    let large = 4 * TOO_LARGE;
    let transport: Box<dyn Transport> = match endpoint.strip_prefix("pipe:") {
        Some(address) => Box::new(NamedPipeTransport::new(address.parse().unwrap()).max_frame(large)),
        None => Box::new(websocket::connect(endpoint).options(LinkOptions::new().max_frame(large))),
    };
    soon("the connection", transport.open()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_of_a_client_that_are_no_messages_are_answered_and_its_session_goes_on() {
    let pipe = format!("pipe:rescind-bridge-bad-frames-{}", std::process::id());
    for listen in ["ws://127.0.0.1:0/acp", &pipe] {
        let bridge = Bridge::listen("acp", listen, &words(&fixture("acp")));
        let other = bridge.client("acp").await;
        let mut link = by_hand(&bridge.endpoint).await;
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello("acp")});
        for (frame, code) in [
            ("{\"half\":", -32700),
            ("[]", -32600),
            ("{\"jsonrpc\":\"1.0\",\"id\":7,\"method\":\"m\"}", -32600),
            ("{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"m\"}", -32600),
        ] {
            send(&mut link, frame).await.unwrap();
            let answer: Value = serde_json::from_slice(&soon("the error", body(&mut link)).await).unwrap();
            assert_eq!(answer["error"]["code"], code, "{listen} {frame}: {answer}");
        }
        send(&mut link, hello.to_string()).await.unwrap();
        let answer: Value = serde_json::from_slice(&soon("the handshake", body(&mut link)).await).unwrap();
        assert_eq!((&answer["id"], answer["result"].is_object()), (&json!(1), true), "{answer}");
        echo(&other).await;
    }
}

#[track_caller]
fn is_too_large(answer: &[u8]) {
    let answer: Value = serde_json::from_slice(answer).unwrap();
    let (code, text) = (&answer["error"]["code"], answer["error"]["message"].as_str().unwrap());
    assert_eq!((code, &answer["id"]), (&json!(-32700), &Value::Null), "{answer}");
    assert!(text.contains("larger than 16777216 bytes"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_of_a_client_above_the_limit_is_refused_and_the_other_clients_go_on() {
    let pipe = format!("pipe:rescind-bridge-large-frames-{}", std::process::id());
    let large =
        || json!({"jsonrpc": "2.0", "method": "note", "params": {"x": "x".repeat(TOO_LARGE)}}).to_string();
    for (listen, closes) in [("ws://127.0.0.1:0/acp", true), (&*pipe, false)] {
        let lives = Lives::new();
        let bridge = Bridge::listen("acp", listen, &words(&lives.child(&fixture_script("acp"))));
        let (other, other_life) = tokio::join!(bridge.client("acp"), lives.begun());
        let mut link = by_hand(&bridge.endpoint).await;
        let hello =
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello("acp")}).to_string();
        send(&mut link, hello.clone()).await.unwrap();
        let life = lives.begun().await;
        soon("the handshake", body(&mut link)).await;
        // Over WebSocket the connection may break while the frame is written.
        let sent = soon("the large frame", send(&mut link, large())).await;
        if closes {
            // The error may be lost with the connection, which closes with status 1009.
            loop {
                match soon("the close", event(&mut link)).await {
                    Some(Ok(TransportEvent::Message(error))) => is_too_large(&error.body),
                    None | Some(Err(_) | Ok(TransportEvent::HalfClosed)) => break,
                    other => panic!("{other:?}"),
                }
            }
        } else {
            sent.unwrap();
            is_too_large(&soon("the error", body(&mut link)).await);
            send(&mut link, hello).await.unwrap();
            soon("an answer after it", body(&mut link)).await;
        }
        echo(&other).await;
        drop((other, link));
        // Both children hold both pipes.
        life.ended().await;
        other_life.ended().await;
    }
    // Over HTTP the request gets 413.
    let bridge = Bridge::listen("mcp", "http://127.0.0.1:0/mcp", &words(&fixture("mcp")));
    let transport =
        StreamableTransport::new(HttpClient::new(&bridge.endpoint).unwrap().max_frame(4 * TOO_LARGE));
    let limits = rescind::Limits::default().max_frame_bytes(4 * TOO_LARGE);
    let client = Peer::builder(MCP).limits(limits).connect(transport).await.unwrap();
    soon("the handshake", client.call::<_, Value>("initialize", &hello("mcp"))).await.unwrap();
    let params = json!({"value": "x".repeat(TOO_LARGE)});
    match soon("the refusal", client.call::<_, Value>("test/echo", &params).start().unwrap().outcome()).await
    {
        Outcome::Disconnected { .. } => {}
        other => panic!("{other:?}"),
    }
    echo(&client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_of_a_later_call_arrives_after_a_call_was_cancelled() {
    for listen in ["http://127.0.0.1:0/mcp", "ws://127.0.0.1:0/mcp"] {
        let bridge = Bridge::listen("mcp", listen, &words(&fixture("mcp")));
        let client = bridge.client("mcp").await;
        let call = |count: u64, every_ms: u64| {
            let params = json!({"count": count, "every_ms": every_ms});
            client.call::<_, Value>("test/progress", &params).progress().start().unwrap()
        };
        for _ in 0..3 {
            let cancelled = call(1000, 1000);
            let mut notifications = cancelled.notifications();
            assert!(soon("its progress", notifications.next()).await.is_some());
            cancelled.canceller().cancel("");
            assert!(soon("its end", cancelled.outcome()).await.is_cancelled());

            let later = call(5, 1);
            let mut notifications = later.notifications();
            let mut seen = 0;
            while soon("its progress", notifications.next()).await.is_some() {
                seen += 1;
            }
            assert_eq!(soon("its answer", later).await.unwrap()["ticks"], 5);
            assert_eq!(seen, 5, "{listen}");
        }
    }
}

/// What the clients of a killed bridge see.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_bridge_disconnects_its_clients_and_leaves_no_child() {
    for (dialect, listen) in [("acp", "ws://127.0.0.1:0/acp"), ("mcp", "http://127.0.0.1:0/mcp")] {
        let lives = Lives::new();
        let bridge = Bridge::listen(dialect, listen, &words(&lives.child(&fixture_script(dialect))));
        let (client, life) = tokio::join!(bridge.client(dialect), lives.begun());
        let call = client
            .call::<_, Value>("test/wait", &json!({}))
            .timeout(Duration::from_secs(60))
            .start()
            .unwrap();
        until_running(&client, 1).await;
        bridge.signal(rustix::process::Signal::KILL);
        match soon("the loss", call.outcome()).await {
            Outcome::Disconnected { may_have_run: true } => {}
            other => panic!("{dialect}: {other:?}"),
        }
        life.ended().await;
        assert_eq!(bridge.ended().await.0, None);
    }
}

// Clients over HTTP, written by hand: each revision, and clients that do less than ours.

const HTTP: &str = "http://127.0.0.1:0/mcp";
const REVISIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// Answers `initialize` with `REVISION`, asks `elicitation/create` for each `tools/call` and answers it with what it is
/// told, and answers everything else with `{}`.
const CHILD: &str = r#"
while read -r line; do
    id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9][0-9]*\).*/\1/p')
    case "$line" in
        *'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"REVISION","capabilities":{},"serverInfo":{"name":"c","version":"1"}}}\n' "$id" ;;
        *'"tools/call"'*)
            called=$id
            printf '{"jsonrpc":"2.0","id":"question","method":"elicitation/create","params":{"message":"?"}}\n' ;;
        *'"id":"question"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"told":%s}}\n' "$called" "$line" ;;
        *) [ -z "$id" ] || printf '{"jsonrpc":"2.0","id":%s,"result":{}}\n' "$id" ;;
    esac
done
"#;

/// One request on a connection of its own.
struct Reply {
    status: u16,
    head: String,
    body: BufReader<TcpStream>,
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The rest of the response.
    fn text(mut self) -> String {
        let mut text = String::new();
        self.body.read_to_string(&mut text).unwrap();
        text
    }

    /// The next message of the event stream.
    fn event(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            if self.body.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            match line.strip_prefix("data: ").map(str::trim) {
                None | Some("") => {}
                Some(data) => return Some(serde_json::from_str(data).unwrap()),
            }
        }
    }
}

/// Sends a request with these lines in its head.
fn ask(bridge: &Bridge, method: &str, lines: &[(&str, &str)], body: &str) -> Reply {
    let (host, path) = bridge.endpoint.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
    let names_host = lines.iter().any(|(name, _)| *name == "Host");
    let usual = [
        ("Host", host),
        ("Connection", "close"),
        ("Accept", "application/json, text/event-stream"),
        ("Content-Type", "application/json"),
    ];
    let all = usual.iter().skip(usize::from(names_host)).chain(lines);
    let head: Vec<_> = all.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("{method} /{path} HTTP/1.1\r\n{}", head.concat());
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut body = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(body.read_line(&mut head).unwrap() > 0, "the connection ended in its head: {head}");
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Reply { status, head, body }
}

fn initialize(revision: &str) -> String {
    let params =
        json!({"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
    message(&json!(0), "initialize", &params)
}

fn message(id: &Value, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

/// Opens a session, and returns its id and the answer.
fn open(bridge: &Bridge, revision: &str) -> (String, String) {
    let reply = ask(bridge, "POST", &[], &initialize(revision));
    assert_eq!(reply.status, 200);
    let session = reply.header("mcp-session-id").unwrap().to_owned();
    (session, reply.text())
}

fn child(revision: &str) -> [String; 4] {
    ["--", "sh", "-c", &CHILD.replace("REVISION", revision)].map(str::to_owned)
}

#[test]
fn a_program_of_any_revision_is_reached_by_a_client_that_names_it_or_none() {
    for revision in REVISIONS.into_iter().chain(["2019-01-01"]) {
        let bridge = Bridge::listen("mcp", HTTP, &words(&child(revision)));
        let (session, answer) = open(&bridge, "2025-11-25");
        assert!(answer.contains(revision), "{answer}");
        let ping = message(&json!(1), "ping", &json!({}));
        let id = ("Mcp-Session-Id", session.as_str());
        for lines in [&[id][..], &[id, ("MCP-Protocol-Version", revision)]] {
            let reply = ask(&bridge, "POST", lines, &ping);
            assert_eq!(reply.status, 200, "{revision}: {lines:?}");
            assert!(reply.text().contains(r#""result":{}"#));
            let note = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
            assert_eq!(ask(&bridge, "POST", lines, note).status, 202, "{revision}: {lines:?}");
        }
        for other in REVISIONS.into_iter().filter(|other| *other != revision) {
            let reply = ask(&bridge, "POST", &[id, ("MCP-Protocol-Version", other)], &ping);
            assert_eq!(reply.status, 400, "{other} in {revision}");
            let text = reply.text();
            assert!(text.contains("2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25"), "{text}");
        }
    }
}

#[test]
fn a_question_during_a_call_reaches_a_client_without_a_stream_of_its_own() {
    for revision in REVISIONS {
        let bridge = Bridge::listen("mcp", HTTP, &words(&child(revision)));
        let (session, _) = open(&bridge, revision);
        let id = [("Mcp-Session-Id", session.as_str())];
        let call = message(&json!("call"), "tools/call", &json!({"name": "x"}));
        let mut reply = ask(&bridge, "POST", &id, &call);
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        let question = reply.event().unwrap();
        assert_eq!(question["method"], "elicitation/create");
        let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}});
        assert_eq!(ask(&bridge, "POST", &id, &answer.to_string()).status, 202);
        let answered = reply.event().unwrap();
        assert_eq!(answered["id"], "call", "{answered}");
        assert_eq!(answered["result"]["told"]["result"]["action"], "accept", "{answered}");
        assert_eq!(reply.event(), None);
    }
}

#[test]
fn each_request_of_a_batch_is_passed_on_and_cancelled_alone() {
    let bridge = Bridge::listen("mcp", HTTP, &words(&fixture("mcp")));
    let (session, _) = open(&bridge, "2025-03-26");
    let id = [("Mcp-Session-Id", session.as_str())];
    let wait = |id: u64| message(&json!(id), "test/wait", &json!({}));
    let echo = message(&json!(3), "test/echo", &json!({"value": 3}));
    let mut reply = ask(&bridge, "POST", &id, &format!("[{},{},{echo}]", wait(1), wait(2)));
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream")));
    assert_eq!(reply.event().unwrap()["result"]["value"], 3);
    let running = || {
        let stats = message(&json!("stats"), "test/stats", &json!({}));
        let text = ask(&bridge, "POST", &id, &stats).text();
        let json = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&text).to_owned();
        serde_json::from_str::<Value>(&json).unwrap()["result"]["running"].as_u64().unwrap()
    };
    assert_eq!(running(), 2);
    for (cancelled, left) in [(2, 1), (1, 0)] {
        let params = json!({"requestId": cancelled});
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        assert_eq!(ask(&bridge, "POST", &id, &cancel.to_string()).status, 202);
        while running() > left {}
    }
    assert_eq!(reply.event(), None, "no cancelled request is answered, and the stream ends");
}

#[test]
fn a_host_is_served_if_it_is_allowed_by_name() {
    let program = fixture("mcp");
    let mut more = vec!["--allow-host", "tools.example", "--allow-host", "b.example:81"];
    more.extend(words(&program));
    let bridge = Bridge::listen("mcp", HTTP, &more);
    for (host, status) in [
        ("tools.example", 200),
        ("TOOLS.example.", 200),
        ("tools.example:8080", 200),
        ("b.example:81", 200),
        ("b.example:82", 421),
        ("evil.example", 421),
        ("evil.tools.example", 421),
        ("tools.example.evil.example", 421),
        ("tools.example, localhost", 400),
        ("tools.example@evil.example", 400),
        ("", 400),
    ] {
        let reply = ask(&bridge, "POST", &[("Host", host)], &initialize("2025-11-25"));
        assert_eq!(reply.status, status, "{host}");
        if status == 421 {
            let text = reply.text();
            assert!(text.contains("--allow-host NAME"), "{text}");
        }
    }
    let several = [("Host", "tools.example"), ("Host", "evil.example")];
    assert_eq!(ask(&bridge, "POST", &several, &initialize("2025-11-25")).status, 400);
}

#[test]
fn a_session_whose_stream_is_read_or_whose_task_runs_outlives_its_idle_time() {
    let program = fixture("mcp");
    let more = [&["--idle", "4"], words(&program).as_slice()].concat();
    let bridge = Bridge::listen("mcp", HTTP, &more);
    let (read, _) = open(&bridge, "2025-11-25");
    let (unread, _) = open(&bridge, "2025-11-25");
    let (busy, _) = open(&bridge, "2025-11-25");
    let call = json!({"name": "wait", "arguments": {}, "task": {}});
    let task = ask(&bridge, "POST", &[("Mcp-Session-Id", &busy)], &message(&json!(1), "tools/call", &call));
    assert!(task.text().contains(r#""status":"working""#));
    let stream = ask(&bridge, "GET", &[("Mcp-Session-Id", &read)], "");
    assert_eq!(stream.status, 200);
    // A request of another session is the clock. That session is in use meanwhile.
    let (clock, _) = open(&bridge, "2025-11-25");
    let sleep = message(&json!(1), "test/sleep", &json!({"ms": 10_000, "value": 1}));
    let slept = ask(&bridge, "POST", &[("Mcp-Session-Id", &clock)], &sleep);
    assert!(slept.text().contains(r#""value":1"#));
    let ping = message(&json!(2), "ping", &json!({}));
    for (session, status) in [(&read, 200), (&unread, 404), (&busy, 200), (&clock, 200)] {
        assert_eq!(ask(&bridge, "POST", &[("Mcp-Session-Id", session)], &ping).status, status, "{session}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_client_gets_the_first_subprotocol_that_it_offers_and_the_dialect_knows() {
    for (dialect, offered, selected) in [
        ("mcp", &["x", "jsonrpc", "mcp"][..], "jsonrpc"),
        ("mcp", &["mcp"], "mcp"),
        ("acp", &["mcp", "acp"], "acp"),
        ("lsp", &["lsp", "jsonrpc"], "lsp"),
    ] {
        let bridge = Bridge::listen(dialect, "ws://127.0.0.1:0/", &words(&fixture(dialect)));
        let (sent, answered) = std::sync::mpsc::channel();
        let mut client = rescind::websocket::connect(&bridge.endpoint)
            .on_answer(move |answer| sent.send(answer.subprotocol().map(str::to_owned)).unwrap());
        for name in offered {
            client = client.subprotocol(name);
        }
        soon("the upgrade", rescind::transport::Transport::open(Box::new(client))).await.unwrap();
        assert_eq!(answered.recv().unwrap().as_deref(), Some(selected), "{dialect}: {offered:?}");
    }
}
