//! Wrong usage: exit code 2, and one sentence that says what to do.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rescind::Outcome;
use rescind::dialect::TaskStatus;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bridge::{Bridge, Lives, connect, error_of, fixture, hello, soon, transport, words};
use crate::common::{Files, output, rescind, text};

#[test]
fn wrong_usage_is_refused_with_a_sentence() {
    let files = Files::new();
    let (token, short) = (files.write("token", "0123456789abcdef"), files.write("short", "secret"));
    let cases: &[(&[&str], &str)] = &[
        (&["--dialect", "abp", "--listen", "stdio", "--", "x"], "does not carry abp"),
        (&["--dialect", "mcp", "--to-dialect", "acp", "--listen", "stdio", "--", "x"], "mcp and acp differ"),
        (&["--dialect", "mcp-2026", "--listen", "http://127.0.0.1:0/mcp", "--", "x"], "have no sessions"),
        (
            &["--dialect", "mcp", "--listen", "http://0.0.0.0:0/mcp", "--", "x"],
            "give --token-file FILE or --client-ca",
        ),
        (
            &["--dialect", "mcp", "--listen", "http://0.0.0.0:0/mcp", "--insecure", "--", "x"],
            "give --token-file FILE or",
        ),
        (
            &["--dialect", "mcp", "--listen", "ws://[::]:0/mcp", "--token-file", &token, "--", "x"],
            "without TLS",
        ),
        (
            &[
                "--dialect",
                "mcp",
                "--listen",
                "http://agent.example:0/mcp",
                "--token-file",
                &token,
                "--",
                "x",
            ],
            "without TLS",
        ),
        (
            &["--dialect", "mcp", "--listen", "http://127.0.0.1:0/mcp", "--token-file", &short, "--", "x"],
            "16 or more",
        ),
        (
            &[
                "--dialect",
                "mcp",
                "--listen",
                "http://127.0.0.1:0/mcp",
                "--token-file",
                "/nowhere",
                "--",
                "x",
            ],
            "could not be read",
        ),
        (
            &["--dialect", "mcp", "--listen", "stdio", "--token-file", &token, "--", "x"],
            "for ws:// and http://",
        ),
        (
            &["--dialect", "mcp", "--listen", "pipe:x", "--allow-origin", "https://a.example", "--", "x"],
            "for ws:// and http://",
        ),
        (&["--dialect", "mcp", "--listen", "https://127.0.0.1:0/mcp", "--", "x"], "needs --tls-cert FILE"),
        (
            &["--dialect", "mcp", "--listen", "http://127.0.0.1:0/mcp", "stdio"],
            "stdio is the side of the clients",
        ),
        (
            &["--dialect", "mcp", "--listen", "stdio", "--env", "RESCIND_NOT_SET", "--", "x"],
            "no such variable",
        ),
        (&["--dialect", "mcp", "--listen", "stdio", "--env", "A=1", "ws://127.0.0.1:1/"], "for a COMMAND"),
        (&["--dialect", "mcp", "--listen", "stdio", "--inherit-env", "ws://127.0.0.1:1/"], "for a COMMAND"),
        (
            &["--dialect", "mcp", "--listen", "stdio", "--to-token-file", &token, "pipe:x"],
            "for ws:// and http://",
        ),
        (&["--dialect", "mcp", "--listen", "stdio", "--to-token-file", &token, "--", "x"], "for an ENDPOINT"),
        (&["--dialect", "mcp", "--listen", "stdio", "--tls-ca", &token, "--", "x"], "for an ENDPOINT"),
        (&["--dialect", "mcp", "--listen", "stdio"], "required"),
        (&["--dialect", "mcp", "--listen", "stdio", "pipe:x", "--", "x"], "cannot be used with"),
        (&["--dialect", "mcp", "--listen", "stdio", "--max-sessions", "0", "--", "x"], "0"),
        (
            &[
                "--dialect",
                "mcp",
                "--listen",
                "http://127.0.0.1:0/mcp",
                "--allow-origin",
                "not an origin",
                "--",
                "x",
            ],
            "origin",
        ),
    ];
    for (arguments, word) in cases {
        let done = output(&[&["bridge"], *arguments].concat());
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?}: {said}");
        assert!(!said.contains("0123456789abcdef"), "{said}");
    }
}

#[test]
fn a_name_that_is_in_use_is_refused() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("http://{}/mcp", taken.local_addr().unwrap());
    let done = output(&["bridge", "--dialect", "mcp", "--listen", &listen, "--", "x"]);
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains("cannot listen on"), "{}", text(&done.stderr));
}

#[test]
fn a_host_that_cannot_be_allowed_is_refused() {
    for (command, listen, host, word) in [
        ("bridge", "pipe:x", "tools.example", "for ws:// and http://"),
        ("fixture", "stdio", "tools.example", "for ws:// and http://"),
        ("bridge", "http://127.0.0.1:0/mcp", "http://tools.example", "`name` or `name:port`"),
        ("bridge", "ws://127.0.0.1:0/mcp", "tools.example/mcp", "`name` or `name:port`"),
        ("fixture", "http://127.0.0.1:0/mcp", "*", "`name` or `name:port`"),
    ] {
        let mut arguments = vec![command, "--dialect", "mcp", "--listen", listen, "--allow-host", host];
        if command == "bridge" {
            arguments.extend(["--", "x"]);
        }
        let done = output(&arguments);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?}: {said}");
    }
}

// Programs behind a bridge, and clients of one, that print other things than messages: what the bridge says on stderr, and
// how it ends.

const WS: &str = "ws://127.0.0.1:0/acp";

/// Answers the handshake in a shell.
const HANDSHAKE: &str =
    "read -r hello; echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocolVersion\":1}}'";

#[tokio::test(flavor = "multi_thread")]
async fn each_thing_that_a_program_prints_is_one_line_on_stderr() {
    let script = format!(
        "echo 'Starting \x1b[1mup'; {HANDSHAKE}; read -r ask; printf '\\357\\273\\277\\n  \\n'; \
         echo 'Loading {{\"jsonrpc\":\"2.0\",\"id\":2,'; \
         printf '{{\\n \"jsonrpc\": \"2.0\",\\n \"id\": 2,\\n \"result\": 7\\n}}\\n'; \
         read -r again; printf '{{\"jsonrpc\":\"2.0\",\"id\":3,\\n\"result\":[\\n'; cat > /dev/null"
    );
    let bridge = Bridge::listen("acp", WS, &["--", "sh", "-c", &script]);
    let client = bridge.client("acp").await;
    let answer: Value = soon("the answer", client.call("ask", &json!({}))).await.unwrap();
    assert_eq!(answer, 7);
    let error = error_of(&client, "again", &json!({})).await;
    assert!(error.message.contains("the answer of `sh` cannot be passed on: it is cut off"), "{error}");
    drop(client);
    bridge.signal(Signal::TERM);
    let (code, said) = bridge.ended().await;
    let expected = [
        "rescind: `sh`: output that is not a message was dropped: Starting \\u{1b}[1mup",
        "rescind: `sh`: a byte order mark before a message was dropped",
        "rescind: `sh`: output that is not a message was dropped: Loading {\"jsonrpc\":\"2.0\",\"id\":2,",
        "rescind: `sh`: a message over several lines was joined: ",
        "rescind: `sh`: an answer cannot be read; its call ended with an error: ",
    ];
    let lines: Vec<_> = said.lines().collect();
    assert_eq!((code, lines.len()), (Some(0), expected.len()), "{said}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_ended_for_what_it_wrote_is_reported_with_that() {
    let script = "read -r hello; printf 'Content-Length: -5\\r\\n\\r\\n'; cat > /dev/null";
    let more = ["--to-framing", "content-length", "--", "sh", "-c", script];
    let bridge = Bridge::listen("acp", WS, &more);
    let error = error_of(&bridge.stranger("acp").await, "initialize", &hello("acp")).await;
    for part in ["`sh` was ended: it wrote something that is not a frame", "Content-Length: -5"] {
        assert!(error.message.contains(part), "{error}");
    }
    assert!(!error.message.contains("signal: 9"), "{error}");
    bridge.signal(Signal::TERM);
    let (code, said) = bridge.ended().await;
    assert_eq!(code, Some(0));
    assert!(said.contains("rescind: `sh`: a frame was dropped: the Content-Length header"), "{said}");
    assert!(said.contains("rescind: `sh` was ended: it wrote something that is not a frame"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_for_ever_is_bounded_and_stops_no_call() {
    // Nobody reads the bridge's stderr until its end, and the child fills it many times.
    let script = format!(
        "{HANDSHAKE}; (yes 'a line that says nothing' | head -n 50000); \
         read -r ask; echo '{{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":7}}'; cat > /dev/null"
    );
    let bridge = Bridge::listen("acp", WS, &["--", "sh", "-c", &script]);
    let client = bridge.client("acp").await;
    let answer: Value = soon("the answer", client.call("ask", &json!({}))).await.unwrap();
    assert_eq!(answer, 7);
    drop(client);
    bridge.signal(Signal::TERM);
    let (code, said) = bridge.ended().await;
    assert_eq!(code, Some(0));
    assert!(said.contains("`sh`: output that is not a message was dropped: a line that says nothing"));
    assert!(said.lines().count() < 50_000, "{} lines", said.lines().count());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_ends_within_eight_seconds_although_its_program_ignores_everything() {
    let lives = Lives::new();
    // It ignores the end of its input and SIGTERM. The command for which it waits ends with the signal, and its loop goes on.
    let update = "read -r ask; echo '{\"jsonrpc\":\"2.0\",\"method\":\"update\"}'";
    let child = lives.child(&format!("trap '' TERM; {HANDSHAKE}; {update}; while :; do sleep 1 9>&-; done"));
    let bridge = Bridge::listen("acp", WS, &words(&child));
    let (client, life) = tokio::join!(bridge.client("acp"), lives.begun());
    let call = client.call::<_, Value>("ask", &json!({})).notifications_where(|_| true).start().unwrap();
    soon("the update", call.notifications().next()).await.unwrap();
    let start = Instant::now();
    bridge.signal(Signal::TERM);
    let outcome = soon("the end of the call", call.outcome()).await;
    assert!(!matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    life.ended().await;
    assert_eq!(bridge.ended().await.0, Some(0));
    let took = start.elapsed();
    // The drain and two graces, or it did not ignore them.
    assert!(took > Duration::from_secs(5) && took < Duration::from_secs(8), "{took:?}");
}

/// Runs a program over stdio with this input, and returns its exit code, stdout and stderr.
fn fed(arguments: &[&str], input: &[u8]) -> (Option<i32>, String, String) {
    let mut program = rescind(arguments);
    program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut program = program.spawn().unwrap();
    // It may end before it has read everything.
    drop(program.stdin.take().unwrap().write_all(input));
    let (mut out, mut err) = (String::new(), String::new());
    program.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    program.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    (program.wait().unwrap().code(), out, err)
}

#[test]
fn input_after_which_no_message_can_be_found_is_on_stderr_and_in_the_exit_code() {
    let fixture = ["fixture", "--dialect", "lsp", "--listen", "stdio"];
    let bridge = ["bridge", "--dialect", "lsp", "--listen", "stdio", "--", "cat"];
    for program in [&fixture[..], &bridge[..]] {
        for (input, why) in [
            ("Content-Length: -1\r\n\r\n{}", "the Content-Length header is missing or invalid"),
            (
                "Content-Length: 1\r\nContent-Length: 1\r\n\r\n{}",
                "the Content-Length header is missing or invalid",
            ),
            (
                "Content-Length: 99999999999999999999\r\n\r\n{}",
                "the Content-Length header is missing or invalid",
            ),
            (
                &format!("Content-Length: 1\r\nX: {}\r\n\r\n{{}}", "x".repeat(9000)),
                "the header block is invalid",
            ),
            (&"noise\n".repeat(20_000), "the header block is invalid"),
        ] {
            let (code, _, said) = fed(program, input.as_bytes());
            assert_eq!(code, Some(2), "{program:?} {why}: {said}");
            assert!(said.contains(&format!("rescind: the client: a frame was dropped: {why}")), "{said}");
        }
        // A client that leaves in the middle of a frame has left.
        assert_eq!(fed(program, b"Content-Length: 10\r\n\r\n{").0, Some(0), "{program:?}");
    }
}

#[test]
fn an_answer_without_a_header_ends_its_call_and_is_in_the_exit_code() {
    let answer =
        r#"head -c 1 >/dev/null; printf '%s\n' '{"jsonrpc":"2.0","id":1,"result":{}}'; cat >/dev/null"#;
    let bridge = ["bridge", "--dialect", "lsp", "--listen", "stdio", "--", "sh", "-c", answer];
    let request = r#"{"jsonrpc":"2.0","id":7,"method":"initialize","params":{}}"#;
    let input = format!("Content-Length: {}\r\n\r\n{request}", request.len());
    let (code, out, said) = fed(&bridge, input.as_bytes());
    assert!(out.contains("\"id\":7") && out.contains("Content-Length header is missing"), "{out}");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("a frame was dropped: the header block is invalid"), "{said}");
}

#[test]
fn the_noise_of_a_client_is_on_the_stderr_of_a_fixture() {
    let input = "hello\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":1}}\n";
    let (code, out, said) = fed(&["fixture", "--dialect", "acp", "--listen", "stdio"], input.as_bytes());
    assert_eq!(code, Some(0));
    assert!(out.contains("-32700") && out.contains("\"id\":1,\"result\""), "{out}");
    assert_eq!(said, "rescind: the client: a frame was dropped: the frame is not JSON: hello\n");
}

// `rescind bridge --page`.

/// A bridge with a page. Killed on drop.
struct WithPage {
    child: Child,
    page: String,
    endpoint: String,
}

impl WithPage {
    fn start(dialect: &str) -> Self {
        let mut child = rescind(&[
            "bridge",
            "--dialect",
            dialect,
            "--listen",
            "ws://127.0.0.1:0/",
            "--page",
            "127.0.0.1:0",
        ])
        .args(words(&fixture(dialect)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let page = lines.next().unwrap().strip_prefix("page on ").unwrap().to_owned();
        let endpoint = lines.next().unwrap().strip_prefix("listening on ").unwrap().to_owned();
        // Its later lines are read too, so that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, page, endpoint }
    }

    fn open(&self, method: &str, path: &str) -> BufReader<TcpStream> {
        let (host, token) = self.page.strip_prefix("http://").unwrap().split_once('/').unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        let head = format!("{method} /{token}{path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n");
        write!(stream, "{head}Content-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        BufReader::new(stream)
    }

    /// The first view that this reader of the page gets and that fits.
    fn view(&self, fits: impl Fn(&Value) -> bool) -> Value {
        for line in self.open("GET", "events").lines().map(Result::unwrap) {
            let Some(data) = line.strip_prefix("data:") else { continue };
            let event: Value = serde_json::from_str(data.trim()).unwrap();
            let view = event["view"].clone();
            if fits(&view) {
                return view;
            }
        }
        panic!("the page has ended")
    }

    fn stop(&self, key: &str) -> String {
        let mut response = String::new();
        self.open("POST", &format!("stop/{key}")).read_to_string(&mut response).unwrap();
        response
    }
}

impl Drop for WithPage {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test]
async fn a_request_is_shown_with_its_call_and_stopped_at_the_child() {
    let bridge = WithPage::start("lsp");
    let client = connect("lsp", transport(&bridge.endpoint)).await;
    soon("the handshake", client.call::<_, Value>("initialize", &hello("lsp"))).await.unwrap();
    let slow = client.call::<_, Value>("test/wait", &json!({})).start().unwrap();
    let (bridge, shown) = soon(
        "the request on the page",
        tokio::task::spawn_blocking(move || {
            let both = |view: &Value| {
                let requests = view["requests"].as_array().unwrap();
                requests.iter().filter(|request| request["method"] == "test/wait").count() == 2
            };
            let view = bridge.view(both);
            (bridge, view)
        }),
    )
    .await
    .unwrap();
    let requests = shown["requests"].as_array().unwrap();
    let one = |direction: &str| requests.iter().find(|request| request["direction"] == direction).unwrap();
    assert_eq!(one("made")["parent"], one("received")["key"], "{shown}");
    let key = one("received")["key"].as_str().unwrap().to_owned();
    let stopped = soon("the stop", tokio::task::spawn_blocking(move || (bridge.stop(&key), bridge)));
    let (response, _bridge) = stopped.await.unwrap();
    assert!(response.starts_with("HTTP/1.1 204"), "{response}");

    let error = match soon("the answer", slow.outcome()).await {
        Outcome::Failed(error) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(&*error.message, "Request cancelled by an operator");
    let stats: Value = soon("the counters", client.call("test/stats", &json!({}))).await.unwrap();
    assert_eq!((&stats["cancelled"], &stats["running"]), (&json!(1), &json!(0)), "{stats}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_of_a_child_is_shown_and_stopped_there() {
    for (dialect, arguments, meta) in [
        ("mcp", json!({}), json!({})),
        ("mcp-2026", json!({"as_task": true}), rescind_testkit::support::mcp_meta()),
    ] {
        let bridge = WithPage::start(dialect);
        let client = connect(dialect, transport(&bridge.endpoint)).await;
        if dialect == "mcp" {
            soon("the handshake", client.call::<_, Value>("initialize", &hello(dialect))).await.unwrap();
        }
        let wait = json!({"name": "wait", "arguments": arguments, "_meta": meta});
        let task = soon("the task", client.call::<_, Value>("tools/call", &wait).task(None)).await.unwrap();
        let shown = tokio::task::spawn_blocking(move || {
            let row = |view: &Value| {
                let requests = view["requests"].as_array().unwrap();
                requests.iter().find(|request| request["status"] == "task").cloned()
            };
            let view = bridge.view(|view| row(view).is_some());
            let row = row(&view).unwrap();
            let response = bridge.stop(row["key"].as_str().unwrap());
            bridge.view(|view| {
                let ended = view["ended"].as_array().unwrap().iter();
                ended.clone().any(|ended| ended["request"]["key"] == row["key"])
            });
            (bridge, row, response)
        });
        let (_bridge, row, response) = soon("the end on the page", shown).await.unwrap();
        assert_eq!((&row["method"], &row["about"]), (&json!("tools/call"), &json!("wait")), "{row}");
        assert_eq!(row["stoppable"], true, "{row}");
        assert!(response.starts_with("HTTP/1.1 204"), "{response}");
        let report = soon("the status", task.status()).await.unwrap();
        assert_eq!(report.status, TaskStatus::Cancelled, "{dialect}");
        let stats = client.call::<_, Value>("test/stats", &json!({"_meta": meta}));
        let stats = soon("the counters", stats).await.unwrap();
        assert_eq!((&stats["cancelled"], &stats["running"]), (&json!(1), &json!(0)), "{stats}");
    }
}

#[test]
fn a_page_beyond_this_machine_is_refused_before_a_child_is_started() {
    let arguments =
        ["bridge", "--dialect", "acp", "--listen", "stdio", "--page", "0.0.0.0:0", "--", "no-such-program"];
    let output = rescind(&arguments).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("not a loopback address") && said.lines().count() == 1, "{said}");
}
