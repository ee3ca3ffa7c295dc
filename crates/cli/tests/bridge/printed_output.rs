//! Programs behind a bridge, and clients of one, that print other things than messages: what the bridge says on stderr, and
//! how it ends.

use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rescind::Outcome;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bridge::program::{Bridge, Lives, error_of, hello, soon, words};
use crate::common::rescind;

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
        "{HANDSHAKE}; (yes 'a line that says nothing' | head -n 200000); \
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
    assert!(said.lines().count() < 200_000, "{} lines", said.lines().count());
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
fn the_noise_of_a_client_is_on_the_stderr_of_a_fixture() {
    let input = "hello\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":1}}\n";
    let (code, out, said) = fed(&["fixture", "--dialect", "acp", "--listen", "stdio"], input.as_bytes());
    assert_eq!(code, Some(0));
    assert!(out.contains("-32700") && out.contains("\"id\":1,\"result\""), "{out}");
    assert_eq!(said, "rescind: the client: a frame was dropped: the frame is not JSON: hello\n");
}
