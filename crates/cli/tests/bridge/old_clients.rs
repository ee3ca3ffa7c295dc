//! Clients over HTTP, written by hand: each revision, and clients that do less than ours.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::bridge::program::{Bridge, fixture, soon, words};

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
    request(&json!(0), "initialize", &params)
}

fn request(id: &Value, method: &str, params: &Value) -> String {
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
        let ping = request(&json!(1), "ping", &json!({}));
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
        let call = request(&json!("call"), "tools/call", &json!({"name": "x"}));
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
    let wait = |id: u64| request(&json!(id), "test/wait", &json!({}));
    let echo = request(&json!(3), "test/echo", &json!({"value": 3}));
    let mut reply = ask(&bridge, "POST", &id, &format!("[{},{},{echo}]", wait(1), wait(2)));
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream")));
    assert_eq!(reply.event().unwrap()["result"]["value"], 3);
    let running = || {
        let stats = request(&json!("stats"), "test/stats", &json!({}));
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
fn a_session_whose_stream_is_read_outlives_its_idle_time() {
    let program = fixture("mcp");
    let more = [&["--idle", "4"], words(&program).as_slice()].concat();
    let bridge = Bridge::listen("mcp", HTTP, &more);
    let (read, _) = open(&bridge, "2025-11-25");
    let (unread, _) = open(&bridge, "2025-11-25");
    let stream = ask(&bridge, "GET", &[("Mcp-Session-Id", &read)], "");
    assert_eq!(stream.status, 200);
    // A request of another session is the clock. That session is in use meanwhile.
    let (clock, _) = open(&bridge, "2025-11-25");
    let sleep = request(&json!(1), "test/sleep", &json!({"ms": 10_000, "value": 1}));
    let slept = ask(&bridge, "POST", &[("Mcp-Session-Id", &clock)], &sleep);
    assert!(slept.text().contains(r#""value":1"#));
    let ping = request(&json!(2), "ping", &json!({}));
    for (session, status) in [(&read, 200), (&unread, 404), (&clock, 200)] {
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
