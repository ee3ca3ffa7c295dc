//! What a connection must still send when its input can no longer be split into frames.
//!
//! Peers that print other things than messages, over streams of bytes: no call waits forever, no cancel is stuck, and each
//! thing that is dropped is reported.
//!
//! Answers that are not exact: each is taken where its meaning is certain, and otherwise ends its call with an error.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rescind_core::dialect::{self, ACP, Dialect, LSP, Role};
use rescind_core::{
    BadFrame, BadMessage, ByteStream, Call, CallContext, Deviation, ErrorCode, ErrorObject, Framing, Link,
    Outcome, Peer, Router,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use tokio::time::{Instant, timeout};

fn frame(body: &str) -> String {
    format!("Content-Length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test(start_paused = true)]
async fn an_invalid_header_loses_no_pending_answer() {
    let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
    let router =
        Router::new().method("test/echo", |_ctx: CallContext, params: Value| async move { Ok(params) });
    let served = ByteStream::whole(ours).framing(Framing::ContentLength).into_link();
    let peer = Peer::builder(dialect::ACP).serve(router).attach(served).unwrap();
    let burst = [
        frame(r#"{"jsonrpc":"2.0","id":1,"method":"test/echo","params":{"value":1}}"#),
        frame("bad"),
        "Content-Length: -4\r\n\r\n".to_owned(),
    ];
    theirs.write_all(burst.concat().as_bytes()).await.unwrap();
    let mut answered = String::new();
    let read = theirs.read_to_string(&mut answered);
    tokio::time::timeout(Duration::from_secs(60), read).await.expect("the connection closes").unwrap();
    assert!(answered.contains(r#""id":1,"result":{"value":1}"#), "the answer was lost: {answered}");
    assert_eq!(answered.matches("-32700").count(), 2, "each bad frame gets its error: {answered}");
    peer.closed().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_error_for_an_oversize_frame_has_the_limit() {
    let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
    let served = ByteStream::whole(ours).framing(Framing::Newline).max_frame(1024).into_link();
    let peer = Peer::builder(dialect::ACP).role(dialect::Role::Server).serve(Router::new());
    let _peer = peer.attach(served).unwrap();
    theirs.write_all(format!("{}\n", "x".repeat(5000)).as_bytes()).await.unwrap();
    theirs.shutdown().await.unwrap();
    let mut answered = String::new();
    theirs.read_to_string(&mut answered).await.unwrap();
    assert!(answered.contains("1024 bytes"), "{answered}");
}

const ASK: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{}}}"#;
const ASK_ACP: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}"#;
const TOLD: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"capabilities":{}}}"#;

/// Writes a body as a frame.
type Writes = fn(&str) -> String;

fn headed(body: &str) -> String {
    format!("Content-Length: {}\r\n\r\n{body}", body.len())
}

fn line(body: &str) -> String {
    format!("{body}\n")
}

fn unframed() -> (Link, DuplexStream) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    (ByteStream::whole(ours).into_link(), theirs)
}

async fn serve(dialects: &[Dialect], link: Link) -> Peer {
    let router = Router::new().method("initialize", |_: CallContext, _: Value| async {
        Ok(serde_json::json!({ "capabilities": {} }))
    });
    let builder = Peer::builder(dialects.iter().cloned()).serve(router);
    builder.connect(link).await.expect("the connection opens")
}

/// The bytes that the peer receives in answer to these bytes.
async fn answered(theirs: &mut DuplexStream, bytes: &str) -> String {
    theirs.write_all(bytes.as_bytes()).await.expect("it is read");
    theirs.shutdown().await.expect("it is read");
    let mut answered = String::new();
    theirs.read_to_string(&mut answered).await.expect("text comes");
    answered
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_bytes_takes_the_framing_of_its_dialect() {
    let cases: [(Dialect, &str, Writes); 2] = [(LSP, ASK, headed), (ACP, ASK_ACP, line)];
    for (dialect, ask, framed) in cases {
        let (link, mut theirs) = unframed();
        let peer = serve(&[dialect], link).await;
        assert_eq!(answered(&mut theirs, &framed(ask)).await, framed(TOLD));
        peer.closed().await.expect("it ends with its input");
    }
}

#[tokio::test(start_paused = true)]
async fn an_explicit_framing_is_kept() {
    let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
    let link = ByteStream::whole(ours).framing(Framing::Newline).into_link();
    let peer = serve(&[LSP], link).await;
    assert_eq!(answered(&mut theirs, &line(ASK)).await, line(TOLD));
    peer.closed().await.expect("it ends with its input");
}

#[tokio::test(start_paused = true)]
async fn the_first_byte_decides_the_framing_if_dialects_of_both_are_offered() {
    let cases: [(&str, Writes, &str); 2] = [(ASK, headed, "lsp"), (ASK_ACP, line, "acp")];
    for (ask, framed, dialect) in cases {
        let (link, mut theirs) = unframed();
        let opening = tokio::spawn(async move { serve(&[ACP, LSP], link).await });
        assert_eq!(answered(&mut theirs, &framed(ask)).await, framed(TOLD));
        let peer = opening.await.expect("no panic");
        assert_eq!(peer.dialect().name(), dialect);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_writes_first_in_the_framing_of_its_dialect() {
    let (link, mut theirs) = unframed();
    let peer = Peer::builder(LSP).attach(link).expect("the connection opens");
    peer.try_notify("initialized", &serde_json::json!({})).expect("there is room");
    let mut first = [0; 14];
    theirs.read_exact(&mut first).await.expect("a frame comes");
    assert_eq!(&first, b"Content-Length");
}

// Peers that print other things than messages, over streams of bytes: no call waits forever, no cancel is stuck, and each
// thing that is dropped is reported.

type Seen = Arc<Mutex<Vec<(Deviation, String)>>>;

/// A connection whose peer is written byte by byte.
struct Raw {
    peer: Peer,
    stream: DuplexStream,
    seen: Seen,
    read: String,
}

impl Raw {
    fn new(dialect: Dialect, role: Role, framing: Framing) -> Self {
        let (ours, stream) = tokio::io::duplex(1 << 20);
        let seen = Seen::default();
        let reported = Arc::clone(&seen);
        let router = Router::new().method("echo", async |_: CallContext, params: Value| Ok(params)).method(
            "wait",
            async |ctx: CallContext, (): ()| {
                ctx.cancelled().await;
                ctx.stopped::<()>(ctx.cause().unwrap())
            },
        );
        let peer = Peer::builder(dialect)
            .role(role)
            .serve(router)
            .on_deviation(move |report| {
                let sent = String::from_utf8_lossy(report.sent).into_owned();
                reported.lock().unwrap().push((report.deviation, sent));
            })
            .attach(ByteStream::whole(ours).framing(framing).max_frame(64 * 1024).into_link())
            .unwrap();
        Self { peer, stream, seen, read: String::new() }
    }

    async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Reads until the peer has written this.
    async fn until(&mut self, text: &str) {
        while !self.read.contains(text) {
            let mut bytes = [0; 4096];
            let read = timeout(Duration::from_secs(60), self.stream.read(&mut bytes)).await;
            let count = read.unwrap_or_else(|_| panic!("no {text} in {}", self.read)).unwrap();
            assert!(count > 0, "no {text} in {}", self.read);
            self.read.push_str(&String::from_utf8_lossy(bytes.get(..count).unwrap()));
        }
    }

    fn seen(&self) -> Vec<(Deviation, String)> {
        self.seen.lock().unwrap().clone()
    }
}

fn client(framing: Framing) -> Raw {
    let dialect = if framing == Framing::Newline { ACP } else { LSP };
    Raw::new(dialect, Role::Client, framing)
}

fn server(framing: Framing) -> Raw {
    Raw::new(ACP, Role::Server, framing)
}

fn answer(id: u64) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": {"é": id}}).to_string()
}

async fn outcome(call: rescind_core::Call<Value>) -> Outcome<Value> {
    timeout(Duration::from_secs(60), call.outcome()).await.expect("the call ends")
}

async fn is_answered(call: rescind_core::Call<Value>, id: u64) {
    match outcome(call).await {
        Outcome::Completed(value) => assert_eq!(value, json!({"é": id})),
        other => panic!("{other:?}"),
    }
}

async fn unreadable(call: rescind_core::Call<Value>) -> String {
    match outcome(call).await {
        Outcome::Unreadable { what } => what,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_answers_no_noise_and_takes_the_message_after_it() {
    let mut raw = client(Framing::Newline);
    let call = raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap();
    raw.until("\"ask\"").await;
    let noise = "Starting...\n  \n\u{feff}\n[INFO] [x]\n{'a': 1}\n\"text\"\n\nLoading ";
    raw.write(format!("{noise}{}\n", answer(1))).await;
    is_answered(call, 1).await;
    let call = raw.peer.call::<_, Value>("again", &json!({})).start().unwrap();
    raw.until("\"again\"").await;
    assert!(!raw.read.contains("error"), "noise was answered: {}", raw.read);
    let noise = |text: &str| (Deviation::Noise, text.to_owned());
    let expected = [
        noise("Starting..."),
        (Deviation::ByteOrderMark, String::new()),
        noise("[INFO] [x]"),
        noise("{'a': 1}"),
        noise("\"text\""),
        noise("Loading "),
    ];
    assert_eq!(raw.seen(), expected);
    assert_eq!(raw.peer.stats().deviations, 6);
    drop(call);
}

#[tokio::test(start_paused = true)]
async fn each_message_of_a_line_is_taken_in_its_order() {
    let mut raw = client(Framing::Newline);
    let mut calls = Vec::new();
    for method in ["one", "two", "three"] {
        calls.push(raw.peer.call::<_, Value>(method, &json!({})).start().unwrap());
        raw.until(method).await;
    }
    let (both, noisy) = (format!("{}{}", answer(1), answer(2)), format!("{{progress: 5}} {}", answer(3)));
    // A value inside a text is never an answer.
    let nested = format!("{{NaN}}{{\"x\":[{}],\"y\":NaN}}", answer(3));
    raw.write(format!("{nested}\n{both}\n{noisy}\n")).await;
    for (call, number) in calls.into_iter().zip(1..) {
        is_answered(call, number).await;
    }
    let expected =
        [(Deviation::Noise, nested), (Deviation::SharedLine, both), (Deviation::SharedLine, noisy)];
    assert_eq!(raw.seen(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_message_behind_a_bracket_that_a_program_printed_on_its_line_is_taken() {
    for printed in ["{INFO: starting ", "{ x ", "{x: ", "{main.go:32 ", "{'a':", "{'a': 1, ", "{{ "] {
        let mut raw = client(Framing::Newline);
        let calls = [0, 1].map(|_| raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap());
        raw.until("\"id\":2").await;
        let [first, second] = calls;
        let (one, two) = (format!("{printed}{}", answer(1)), format!("{printed}{}", answer(2)));
        raw.write(format!("{one}\n{two} (3 ms)\n")).await;
        is_answered(first, 1).await;
        is_answered(second, 2).await;
        assert!(!raw.read.contains("error"), "{}", raw.read);

        let mut raw = server(Framing::Newline);
        raw.write(format!("{printed}{{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"echo\",\"params\":{{}}}}\n"))
            .await;
        raw.until("\"id\":5,\"result\":{}").await;
        assert!(!raw.read.contains("error"), "{}", raw.read);
    }
}

/// It may be a value of what is before it, so it is not taken as it is.
#[tokio::test(start_paused = true)]
async fn an_answer_where_a_text_that_is_not_json_may_have_a_value_ends_its_call() {
    let answered = r#"{"jsonrpc":"2.0","id":1,"result":{}}}"#;
    for (before, first_ends) in
        [(r#"{"jsonrpc":"2.0","id":1,"result":{"x":NaN,"a":"#, true), (r#"{"a":1}}"#, false)]
    {
        let mut raw = client(Framing::Newline);
        let calls = [0, 1].map(|_| raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap());
        raw.until("\"id\":2").await;
        let [first, second] = calls;
        raw.write(format!("{before}{}\n", answer(2))).await;
        assert_eq!(unreadable(second).await, "it is behind half of another message");
        if first_ends {
            assert!(unreadable(first).await.starts_with("it is not JSON at byte"));
        } else {
            raw.write(format!("{}\n", answer(1))).await;
            is_answered(first, 1).await;
        }
    }
    // A bracket too many.
    let mut raw = client(Framing::Newline);
    let calls = [0, 1].map(|_| raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap());
    raw.until("\"id\":2").await;
    let [first, second] = calls;
    raw.write(format!("{answered}{}\n", answer(2))).await;
    is_answered(second, 2).await;
    assert!(unreadable(first).await.starts_with("it is not JSON at byte"));
}

#[tokio::test(start_paused = true)]
async fn a_message_without_a_line_end_is_taken_after_a_second_whatever_is_behind_it() {
    for behind in [" ", "\t", "\0", "}", ";", "\u{1b}[0m", "\u{feff}"] {
        for before in ["", "> ", "\u{1b}[32m", "{\"jsonrpc\":\"2.0\",\"method\":\"note\"}\0"] {
            let mut raw = client(Framing::Newline);
            for id in [1, 2] {
                let call = raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap();
                raw.until(&format!("\"id\":{id}")).await;
                let start = Instant::now();
                raw.write(format!("{before}{}{behind}", answer(id))).await;
                is_answered(call, id).await;
                let took = start.elapsed();
                assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(2), "{took:?}");
            }
            assert!(!raw.read.contains("error"), "{}", raw.read);
        }
        let mut raw = server(Framing::Newline);
        let start = Instant::now();
        raw.write(format!("{{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"echo\",\"params\":{{}}}}{behind}"))
            .await;
        raw.until("\"id\":5,\"result\":{}").await;
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        assert!(!raw.read.contains("error"), "{}", raw.read);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_answers_a_line_that_is_not_json_and_takes_the_message_after_noise() {
    let mut raw = server(Framing::Newline);
    raw.write("hello\n\"text\"\n{\"jsonrpc\":\n").await;
    raw.write("{\"jsonrpc\":\"2.0\",\"method\":\"note\"}\n$ {\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"echo\",\"params\":{\"a\":1}}\n").await;
    raw.until("\"id\":5,\"result\":{\"a\":1}").await;
    for (code, many) in [("-32700", 2), ("-32600", 1)] {
        assert_eq!(raw.read.matches(code).count(), many, "{}", raw.read);
    }
    let kinds: Vec<_> = raw.seen().into_iter().map(|(deviation, _)| deviation).collect();
    let dropped = |why| Deviation::Dropped(why);
    let not_json = dropped(BadMessage::NotJson);
    assert_eq!(kinds, [not_json, dropped(BadMessage::NotAnObject), not_json, Deviation::Noise]);
}

#[tokio::test(start_paused = true)]
async fn an_indented_answer_is_one_message() {
    let mut raw = client(Framing::Newline);
    let call = raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap();
    raw.until("\"ask\"").await;
    let indented = serde_json::to_string_pretty(&serde_json::from_str::<Value>(&answer(1)).unwrap()).unwrap();
    let (first, rest) = indented.split_at(20);
    raw.write(first).await;
    tokio::time::sleep(Duration::from_millis(900)).await;
    raw.write(format!("{rest}\n")).await;
    is_answered(call, 1).await;
    assert_eq!(raw.seen(), [(Deviation::SeveralLines, indented)]);
}

#[tokio::test(start_paused = true)]
async fn a_text_that_never_completes_ends_its_call_after_a_second() {
    let mut raw = client(Framing::Newline);
    let call = raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap();
    raw.until("\"ask\"").await;
    let start = Instant::now();
    // Lines without an end do not lengthen its time.
    let mut lines = "{\"jsonrpc\":\"2.0\",\"id\":1,\n\"result\":[\n".to_owned();
    let endless = async {
        loop {
            raw.write(std::mem::replace(&mut lines, "1,\n".to_owned())).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let what = tokio::select! {
        what = unreadable(call) => what,
        () = endless => unreachable!(),
    };
    assert!(what.contains("it is cut off at byte"), "{what}");
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(2), "{took:?}");
    // The line that was written last is noise.
    raw.write(format!("]\n{}\n", answer(7))).await;
    let call = raw.peer.call::<_, Value>("again", &json!({})).start().unwrap();
    raw.until("\"again\"").await;
    raw.write(format!("{}\n", answer(2))).await;
    is_answered(call, 2).await;
    assert_eq!(raw.seen().first().map(|(deviation, _)| *deviation), Some(Deviation::InvalidAnswer));
}

/// Half of an answer in each framing, and the rest of it.
fn halves(framing: Framing, id: u64) -> [String; 2] {
    let whole = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"a\":{{}},\"b\":[1,2]}}}}");
    let (first, rest) = whole.split_at(whole.len() - 9);
    match framing {
        Framing::Newline => [first.to_owned(), format!("{rest}\n")],
        Framing::ContentLength => {
            [format!("Content-Length: {}\r\n\r\n{first}", whole.len()), rest.to_owned()]
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_stops_in_its_middle_ends_its_call_after_five_seconds() {
    for framing in [Framing::Newline, Framing::ContentLength] {
        let mut raw = client(framing);
        let calls = [0, 1].map(|_| raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap());
        raw.until("\"id\":2").await;
        let [first, second] = calls;
        let [half, rest] = halves(framing, 2);
        let start = Instant::now();
        raw.write(half).await;
        let what = unreadable(second).await;
        assert!(what.contains("it stopped in its middle, and nothing more of it came within 5 s"), "{what}");
        let took = start.elapsed();
        assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(7), "{took:?}");
        assert_eq!(
            raw.seen().iter().map(|(deviation, _)| *deviation).collect::<Vec<_>>(),
            [Deviation::InvalidAnswer]
        );
        // The rest is a late answer, and the next one is read.
        let [half, end] = halves(framing, 1);
        raw.write(rest).await;
        raw.write(half).await;
        raw.write(end).await;
        let Outcome::Completed(value) = outcome(first).await else { panic!("it was not answered") };
        assert_eq!(value, json!({"a": {}, "b": [1, 2]}));
        assert!(!raw.read.contains("error"), "{}", raw.read);
    }
}

/// Its rest may name each of them.
#[tokio::test(start_paused = true)]
async fn half_an_answer_that_names_no_call_ends_none_of_several() {
    let mut raw = client(Framing::Newline);
    let calls = [0, 1].map(|_| raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap());
    raw.until("\"id\":2").await;
    raw.write("{\"jsonrpc\":\"2.0\",\"result\":{\"a\":").await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    raw.write(format!("[1,2]}},\"id\":1}}\n{}\n", answer(2))).await;
    for call in calls {
        assert!(matches!(outcome(call).await, Outcome::Completed(_)));
    }
    assert_eq!(raw.seen(), []);
}

#[tokio::test(start_paused = true)]
async fn half_an_answer_that_names_no_call_ends_the_only_one() {
    for framing in [Framing::Newline, Framing::ContentLength] {
        let mut raw = client(framing);
        let first = raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap();
        raw.until("\"id\":1").await;
        let (half, rest) = ("{\"jsonrpc\":\"2.0\",\"result\":{\"a\":", "[1,2]},\"id\":1}");
        let (head, end) = match framing {
            Framing::Newline => (String::new(), "\n"),
            Framing::ContentLength => (format!("Content-Length: {}\r\n\r\n", half.len() + rest.len()), ""),
        };
        raw.write(format!("{head}{half}")).await;
        let what = unreadable(first).await;
        assert!(what.contains("it stopped in its middle, and nothing more of it came within 5 s"), "{what}");
        // Its rest is a late answer, also while another call is the only one.
        let second = raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap();
        raw.until("\"id\":2").await;
        raw.write(format!("{rest}{end}")).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        let body = answer(2);
        raw.write(match framing {
            Framing::Newline => format!("{body}\n"),
            Framing::ContentLength => format!("Content-Length: {}\r\n\r\n{body}", body.len()),
        })
        .await;
        is_answered(second, 2).await;
    }
}

/// It may be a value of the half, so it is not taken as it is.
#[tokio::test(start_paused = true)]
async fn an_answer_where_half_a_message_has_a_value_ends_its_call() {
    for rest in ["\n", "\n{\"jsonrpc\":\"2.0\",\"method\":\"note\"}\n"] {
        let mut raw = client(Framing::Newline);
        let calls = [0, 1].map(|_| raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap());
        raw.until("\"id\":2").await;
        let [first, second] = calls;
        let start = Instant::now();
        raw.write(format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{\"a\":{}{rest}", answer(2))).await;
        assert!(unreadable(first).await.contains("it is cut off"));
        assert_eq!(unreadable(second).await, "it is behind half of another message");
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_slowly_is_waited_for() {
    for framing in [Framing::Newline, Framing::ContentLength] {
        let mut raw = client(framing);
        let call = raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap();
        raw.until("\"ask\"").await;
        for byte in halves(framing, 1).concat().bytes() {
            tokio::time::sleep(Duration::from_secs(4)).await;
            raw.write([byte]).await;
        }
        let Outcome::Completed(value) = outcome(call).await else { panic!("it was not answered") };
        assert_eq!(value, json!({"a": {}, "b": [1, 2]}));
        assert_eq!(raw.seen(), []);
    }
}

/// A frame of the same length long after another one that was slow.
#[tokio::test(start_paused = true)]
async fn the_time_of_a_half_answer_is_not_that_of_the_one_before() {
    let mut raw = client(Framing::Newline);
    for id in [1, 2] {
        let call = raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap();
        raw.until(&format!("\"id\":{id}")).await;
        let [half, rest] = halves(Framing::Newline, id);
        raw.write(half).await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        raw.write(rest).await;
        assert!(matches!(outcome(call).await, Outcome::Completed(_)));
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(raw.seen(), []);
}

/// Of an answer that has only its id, the result is in the rest that never came.
#[tokio::test(start_paused = true)]
async fn the_beginning_of_an_answer_without_its_result_ends_the_call_that_it_names() {
    for framing in [Framing::Newline, Framing::ContentLength] {
        for half in [
            "{\"jsonrpc\":\"2.0\",\"id\":2,\"re",
            "{\"jsonrpc\":\"2.0\",\"id\":2,",
            "{\"id\":2,\"jsonrpc\":\"2.0\",\"err",
        ] {
            let mut raw = client(framing);
            let calls =
                [0, 1].map(|_| raw.peer.call::<_, Value>("ask", &json!({})).no_timeout().start().unwrap());
            raw.until("\"id\":2").await;
            let [first, second] = calls;
            let head = if framing == Framing::Newline { "" } else { "Content-Length: 100\r\n\r\n" };
            let start = Instant::now();
            raw.write(format!("{head}{half}")).await;
            let what = unreadable(second).await;
            assert!(
                what.contains("it stopped in its middle, and nothing more of it came within 5 s"),
                "{what}"
            );
            let took = start.elapsed();
            assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(7), "{took:?}");
            raw.write(if framing == Framing::Newline {
                format!("\n{}\n", answer(1))
            } else {
                frame(&answer(1)).repeat(2)
            })
            .await;
            is_answered(first, 1).await;
        }
    }
}

/// The id may go on, or the name of the next member may be that of a request.
#[tokio::test(start_paused = true)]
async fn the_beginning_of_a_message_that_may_be_a_request_or_names_no_call_ends_none() {
    for half in [
        "{\"jsonrpc\":\"2.0\",\"id\":1",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"m",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"par",
        "{\"jsonrpc\":\"2.0\",",
        "{\"jsonrpc\":\"2.0\",\"id\":7,\"re",
        "{\"level\":\"info\",",
        "{",
    ] {
        let mut raw = client(Framing::Newline);
        let call = raw.peer.call::<_, Value>("ask", &json!({})).no_timeout().start().unwrap();
        raw.until("\"ask\"").await;
        raw.write(half).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(raw.seen(), [], "{half}");
        assert_eq!(raw.peer.stats().late_answers, 0, "{half}");
        drop(call);
    }
}

/// The id of a request of the peer may be that of a call, and its method may come last.
#[tokio::test(start_paused = true)]
async fn half_a_request_of_the_peer_ends_no_call() {
    for half in [
        "{\"jsonrpc\":\"2.0\",\"method\":\"echo\",\"id\":1,",
        "{\"id\":1,\"jsonrpc\":\"2.0\",\"params\":{\"a\":1}",
        "{\"id\":1,\"params\":{\"a\"",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"sampling/cre",
    ] {
        let mut raw = client(Framing::Newline);
        let call = raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap();
        raw.until("\"ask\"").await;
        raw.write(half).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(raw.seen(), [], "{half}");
        raw.write(format!("\n{}\n", answer(1))).await;
        is_answered(call, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancel_does_not_wait_for_a_text_that_is_not_complete() {
    let mut raw = server(Framing::Newline);
    raw.write("{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"wait\"}\n").await;
    while raw.peer.stats().running == 0 {
        tokio::task::yield_now().await;
    }
    let start = Instant::now();
    raw.write("{\n\"jsonrpc\": \"2.0\",\n").await;
    raw.write("{\"jsonrpc\":\"2.0\",\"method\":\"$/cancel_request\",\"params\":{\"requestId\":5}}\n").await;
    raw.until("\"id\":5").await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(raw.peer.stats().cancelled, 1);
    raw.until("-32700").await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_above_the_limit_ends_the_call_that_it_names() {
    for framing in [Framing::Newline, Framing::ContentLength] {
        let mut raw = client(framing);
        let calls = [0, 1].map(|_| raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap());
        raw.until("\"id\":2").await;
        let [first, second] = calls;
        let filler = "x".repeat(100_000);
        let large = format!("{{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{{\"x\":\"{filler}\"}}}}");
        let framed = match framing {
            Framing::Newline => format!("{large}\n{}\n", answer(1)),
            Framing::ContentLength => {
                let next = answer(1);
                format!(
                    "Content-Length: {}\r\n\r\n{large}Content-Length: {}\r\n\r\n{next}",
                    large.len(),
                    next.len()
                )
            }
        };
        raw.write(framed).await;
        let what = unreadable(second).await;
        assert!(what.contains("larger than the limit"), "{what}");
        is_answered(first, 1).await;
        assert!(!raw.read.contains("error"), "{}", raw.read);
    }
}

#[tokio::test(start_paused = true)]
async fn a_deviation_is_new_again_after_a_minute() {
    let (ours, mut theirs) = tokio::io::duplex(4096);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let reported = Arc::clone(&seen);
    let link = ByteStream::whole(ours).framing(Framing::Newline).into_link();
    let _peer = Peer::builder(ACP)
        .role(Role::Client)
        .on_deviation(move |report| reported.lock().unwrap().push((report.deviation, report.is_repeated)))
        .attach(link)
        .unwrap();
    let noise = "Loading...\n";
    for (written, seconds) in
        [(noise, 0), (noise, 59), ("\u{feff}\n", 0), (noise, 1), (noise, 59), (noise, 2)]
    {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        theirs.write_all(written.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (noise, mark) = (Deviation::Noise, Deviation::ByteOrderMark);
    let expected =
        [(noise, false), (noise, true), (mark, false), (noise, false), (noise, true), (noise, false)];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn endless_noise_is_bounded_and_not_answered() {
    let mut raw = client(Framing::Newline);
    let call = raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap();
    raw.until("\"ask\"").await;
    for _ in 0..64 {
        raw.write("x".repeat(64 * 1024)).await;
    }
    for _ in 0..64 {
        raw.write(" ".repeat(64 * 1024)).await;
    }
    raw.write("\n").await;
    raw.write(format!("{}\n{}\n", " ".repeat(100_000), answer(1))).await;
    is_answered(call, 1).await;
    let seen = raw.seen();
    assert_eq!(seen.len(), 2, "each line once");
    assert!(seen.iter().all(|(deviation, sent)| *deviation == Deviation::Noise && sent.len() == 1024));
    assert!(!raw.read.contains("error"), "{}", raw.read);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_writes_only_blank_lines_takes_no_memory_and_no_turn_of_others() {
    for (before, blank) in [("", "\n"), ("", "\r\n"), ("", " \n"), ("starting {\n", "\n")] {
        let mut raw = client(Framing::Newline);
        let call = raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap();
        raw.until("\"ask\"").await;
        raw.write(before).await;
        let mut other = client(Framing::Newline);
        let flood = async {
            let blanks = blank.repeat(32 * 1024);
            for _ in 0..64 {
                raw.write(&blanks).await;
                assert!(raw.peer.queue_stats().memory <= 1 << 20, "{before:?}, {blank:?}");
            }
        };
        let beside = async {
            let call = other.peer.call::<_, Value>("ask", &json!({})).start().unwrap();
            other.until("\"ask\"").await;
            other.write(format!("{}\n", answer(1))).await;
            is_answered(call, 1).await;
        };
        tokio::join!(flood, beside);
        raw.write(format!("{}\n", answer(1))).await;
        is_answered(call, 1).await;
        assert!(raw.seen().len() <= 3, "{before:?}, {blank:?}: {:?}", raw.seen().len());
    }
}

#[tokio::test(start_paused = true)]
async fn a_length_that_counts_characters_ends_its_call_and_reading_goes_on() {
    let mut raw = client(Framing::ContentLength);
    let calls = [0, 1].map(|_| raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap());
    raw.until("\"id\":2").await;
    let framed = |body: &str| format!("Content-Length: {}\r\n\r\n{body}", body.chars().count());
    let [first, second] = calls;
    raw.write(framed(&answer(1)) + &framed(&answer(2))).await;
    for call in [first, second] {
        let what = unreadable(call).await;
        assert!(what.contains("a Content-Length counts bytes and not characters"), "{what}");
    }
    let call = raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap();
    raw.until("\"id\":3").await;
    let plain = r#"{"jsonrpc":"2.0","id":3,"result":{"a":1}}"#;
    raw.write(framed(plain)).await;
    assert!(matches!(outcome(call).await, Outcome::Completed(value) if value == json!({"a": 1})));
}

#[tokio::test(start_paused = true)]
async fn what_is_printed_between_blocks_is_thrown_away_and_reported() {
    let mut raw = client(Framing::ContentLength);
    let call = raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap();
    raw.until("\"ask\"").await;
    let body = answer(1);
    raw.write(format!("\u{feff}\r\n\r\nready\nX: y\r\n\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
        .await;
    is_answered(call, 1).await;
    let kinds: Vec<_> = raw.seen().into_iter().map(|(deviation, _)| deviation).collect();
    assert_eq!(kinds, [Deviation::ByteOrderMark, Deviation::Noise, Deviation::Noise]);
    // A length that cannot be read still ends the connection.
    raw.write("Content-Length: -1\r\n\r\n{}").await;
    timeout(Duration::from_secs(60), raw.peer.closed()).await.expect("it closes").unwrap();
    let last = raw.seen().pop().unwrap();
    assert_eq!(last.0, Deviation::Dropped(BadMessage::Frame(BadFrame::BadLength)));
    assert!(last.1.starts_with("Content-Length: -1"), "{}", last.1);
}

#[tokio::test(start_paused = true)]
async fn of_a_message_over_several_lines_the_end_of_input_is_the_end() {
    let mut raw = server(Framing::Newline);
    raw.write("{\n\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"echo\",\n\"params\":{}\n}").await;
    raw.stream.shutdown().await.unwrap();
    raw.until("\"id\":5,\"result\":{}").await;
}

/// Of each the call that it names is certain in a body, although several calls are open.
#[tokio::test(start_paused = true)]
async fn a_body_with_something_around_its_answer_ends_the_call_that_it_names() {
    let (first, second) = (r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#, answer(2));
    let utf_16: Vec<u8> = first.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let framed =
        |length: usize, body: &[u8]| [format!("Content-Length: {length}\r\n\r\n").as_bytes(), body].concat();
    for (body, fault) in [
        (framed(first.len(), format!("loading {first}").as_bytes()), "other output is in its body"),
        (framed(first.len(), format!("[1/2] {first}").as_bytes()), "other output is in its body"),
        (
            framed(first.len() + 14, format!("{{\"message\": {first}}}").as_bytes()),
            "it is inside of another object",
        ),
        (framed(utf_16.len(), &utf_16), "it is UTF-16, not UTF-8"),
        (framed(60, &utf_16), "it is UTF-16, not UTF-8"),
        (framed(first.len() + 40, first.replace("\"a\"", "NaN").as_bytes()), "it is not JSON at byte 34"),
    ] {
        let mut raw = client(Framing::ContentLength);
        let calls =
            [0, 1].map(|_| raw.peer.call::<_, Value>("ask", &json!({})).no_timeout().start().unwrap());
        raw.until("\"id\":2").await;
        raw.stream.write_all(&body).await.unwrap();
        let [one, other] = calls;
        let start = Instant::now();
        assert_eq!(unreadable(one).await, fault, "{}", String::from_utf8_lossy(&body));
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        // The connection goes on.
        raw.write(format!("\n{}", frame(&second))).await;
        is_answered(other, 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_not_json_and_names_nothing_ends_the_only_open_call_and_never_one_of_two() {
    for (body, ends) in [
        ("Internal error", Some("it is not JSON at byte")),
        ("{jsonrpc: '2.0', result: 5}", Some("it is not JSON at byte")),
        (r#"{"jsonrpc":"2.0","params":{"a":NaN},"method":"m"}"#, None),
        (r#"{"jsonrpc":"2.0","params":{"a":"#, None),
        (r#"{"result":{"a":"half of an answ"#, Some("it is cut off")),
        (r#"{"jsonrpc":"2.0","id":"x","result":NaN}"#, None),
        (" ", None),
    ] {
        for calls in [1, 2] {
            let mut raw = client(Framing::ContentLength);
            let call = || raw.peer.call::<_, Value>("ask", &json!({})).no_timeout().start().unwrap();
            let mut open: Vec<_> = (0..calls).map(|_| call()).collect();
            raw.until(&format!("\"id\":{calls}")).await;
            raw.write(frame(body)).await;
            if let (Some(why), 1) = (ends, calls) {
                let what = unreadable(open.remove(0)).await;
                assert!(what.starts_with(why), "{what}");
                continue;
            }
            for (call, id) in open.into_iter().zip(1..) {
                raw.write(frame(&answer(id))).await;
                is_answered(call, id).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn white_space_around_a_body_is_not_other_output() {
    let mut raw = client(Framing::ContentLength);
    let call = raw.peer.call::<_, Value>("ask", &json!({})).no_timeout().start().unwrap();
    raw.until("\"ask\"").await;
    raw.write(frame(" {\"jsonrpc\":\"2.0\",\"id\":1,\"id\":2,\"result\":5}\r\n")).await;
    assert_eq!(unreadable(call).await, "it has a duplicate member");
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_a_length_has_swallowed_ends_its_call() {
    let mut raw = client(Framing::ContentLength);
    let calls = [0, 1, 2].map(|_| raw.peer.call::<_, Value>("ask", &json!({})).no_timeout().start().unwrap());
    raw.until("\"id\":3").await;
    let [first, second, third] = calls;
    let rest = format!("{}{}", frame(&answer(2)), frame(&answer(3)));
    raw.write(format!("Content-Length: {}\r\n\r\n{}{rest}", answer(1).len() + 50, answer(1))).await;
    is_answered(first, 1).await;
    assert!(unreadable(second).await.contains("a Content-Length counts bytes"));
    is_answered(third, 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_length_that_counts_a_line_end_too_much_costs_no_call() {
    for behind in ["\n", "\r\n", " ", "\0"] {
        for is_followed in [true, false] {
            let mut raw = client(Framing::ContentLength);
            let calls = [0, 1].map(|_| raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap());
            raw.until("\"id\":2").await;
            let [first, second] = calls;
            let start = Instant::now();
            let body = format!("{}{behind}", answer(1));
            raw.write(format!("Content-Length: {}\r\n\r\n{body}", body.len() + 1)).await;
            if is_followed {
                raw.write(frame(&answer(2))).await;
            }
            is_answered(first, 1).await;
            assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
            if !is_followed {
                raw.write(frame(&answer(2))).await;
            }
            is_answered(second, 2).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_frame_behind_a_body_that_is_cut_or_was_never_written_is_read() {
    let half = r#"{"jsonrpc":"2.0","id":1,"result":{"a":"#;
    for before in [half, r#"{"jsonrpc":"2.0","id":1,"result":"he"#, ""] {
        let next = frame(&answer(2));
        // By the last of them, the whole frame is in the body, and more.
        for length in before.len() + 1..before.len() + next.len() + 10 {
            let mut raw = client(Framing::ContentLength);
            let calls =
                [0, 1].map(|_| raw.peer.call::<_, Value>("ask", &json!({})).no_timeout().start().unwrap());
            raw.until("\"id\":2").await;
            let [first, second] = calls;
            let start = Instant::now();
            raw.write(format!("Content-Length: {length}\r\n\r\n{before}{next}")).await;
            let ended = outcome(second).await;
            let is_in_brackets = before.starts_with('{')
                && length >= before.len()
                && format!("{before}{next}").get(..length).is_some_and(|body| body.ends_with(['}', ']']));
            match ended {
                Outcome::Completed(value) => assert_eq!(value, json!({"é": 2})),
                Outcome::Unreadable { .. } if is_in_brackets => {}
                other => panic!("{length} of {before:?}: {other:?}"),
            }
            if !before.is_empty() {
                unreadable(first).await;
            }
            assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
            // The connection goes on.
            let call = raw.peer.call::<_, Value>("ask", &json!({})).start().unwrap();
            raw.until("\"id\":3").await;
            raw.write(frame(&answer(3))).await;
            is_answered(call, 3).await;
        }
    }
}

/// A length can be wrong by any number of bytes, which then never arrive.
#[tokio::test(start_paused = true)]
async fn a_length_far_above_the_limit_ends_the_call_that_its_body_names_within_a_second() {
    let mut raw = client(Framing::ContentLength);
    let call = raw.peer.call::<_, Value>("ask", &json!({})).no_timeout().start().unwrap();
    raw.until("\"ask\"").await;
    let start = Instant::now();
    raw.write(format!("Content-Length: 99999999\r\n\r\n{}", answer(1))).await;
    assert_eq!(unreadable(call).await, "it is larger than the limit of a frame");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(raw.seen(), [(Deviation::InvalidAnswer, answer(1))]);
}

// Answers that are not exact: each is taken where its meaning is certain, and otherwise ends its call with an error.

/// A client, and the raw other side of its connection.
struct Bench {
    client: Peer,
    server: BufReader<DuplexStream>,
    deviations: Arc<Mutex<Vec<Deviation>>>,
}

impl Bench {
    fn new(dialect: Dialect) -> Self {
        let (ours, theirs) = tokio::io::duplex(1024 * 1024);
        let deviations = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&deviations);
        let client = Peer::builder(dialect)
            .on_deviation(move |report| noted.lock().unwrap().push(report.deviation))
            .attach(ByteStream::whole(ours).framing(Framing::Newline).into_link())
            .unwrap();
        Self { client, server: BufReader::new(theirs), deviations }
    }

    /// Starts a call, and waits until it is written.
    async fn call(&mut self) -> Call<Value> {
        let call = self.client.call::<_, Value>("m", &json!({})).no_timeout().start().unwrap();
        let mut line = String::new();
        self.server.read_line(&mut line).await.unwrap();
        assert!(line.contains("\"m\""), "{line}");
        call
    }

    async fn says(&mut self, line: &str) {
        self.server.write_all(line.as_bytes()).await.unwrap();
        self.server.write_all(b"\n").await.unwrap();
    }

    fn deviations(&self) -> Vec<Deviation> {
        std::mem::take(&mut *self.deviations.lock().unwrap())
    }
}

fn unreadable_outcome(what: &str) -> Outcome<Value> {
    Outcome::Unreadable { what: what.to_owned() }
}

#[tokio::test(start_paused = true)]
async fn each_answer_to_the_first_call_ends_it() {
    let completed = || Outcome::Completed(json!(5));
    for (answer, expected, deviation) in [
        (r#"{"jsonrpc":"2.0","id":"1","result":5}"#, completed(), Deviation::IdSpelling),
        (r#"{"jsonrpc":"2.0","id":1.0,"result":5}"#, completed(), Deviation::IdSpelling),
        (r#"{"id":1,"result":5}"#, completed(), Deviation::NoVersion),
        (r#"{"jsonrpc":"2.0","id":1,"result":5,"error":null}"#, completed(), Deviation::NullMember),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":-1,"message":"m"}}"#,
            Outcome::Failed(ErrorObject::new(ErrorCode(-1), "m")),
            Deviation::NullMember,
        ),
        (r#"[{"jsonrpc":"2.0","id":1,"result":5}]"#, completed(), Deviation::BatchOfAnswers),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":5,"error":{"code":1,"message":"m"}}"#,
            unreadable_outcome("it has a result and an error"),
            Deviation::InvalidAnswer,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"error":"no"}"#,
            unreadable_outcome("its error is not an object: \"no\""),
            Deviation::InvalidAnswer,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{},"result":5}"#,
            unreadable_outcome("it has a method beside its result or error"),
            Deviation::InvalidAnswer,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1}"#,
            unreadable_outcome("it has neither a result nor an error"),
            Deviation::InvalidAnswer,
        ),
        (
            r#"{"Jsonrpc":"2.0","Id":1,"Result":5,"Error":null}"#,
            unreadable_outcome("its member names are case-sensitive: they have no capital letters"),
            Deviation::InvalidAnswer,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":NaN}"#,
            unreadable_outcome("it is not JSON at byte 33"),
            Deviation::InvalidAnswer,
        ),
        (r#"{"jsonrpc":"2.0","result":5}"#, unreadable_outcome("it has no id"), Deviation::InvalidAnswer),
        (
            r#"{"jsonrpc":"2.0","id":"undefined","result":5}"#,
            unreadable_outcome("it has no id"),
            Deviation::InvalidAnswer,
        ),
        (
            r#"{"jsonrpc":"2.0","result":{"a":1 /* one */},"id":1}"#,
            unreadable_outcome("it is not JSON at byte 33"),
            Deviation::InvalidAnswer,
        ),
        (
            r#"{"jsonrpc":"2.0","id":" 1 ","result":5}"#,
            unreadable_outcome("its id has blanks around it"),
            Deviation::InvalidAnswer,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"id":7,"result":5}"#,
            unreadable_outcome("it has a duplicate member"),
            Deviation::InvalidAnswer,
        ),
        (
            r#"[[{"jsonrpc":"2.0","id":1,"result":5}]]"#,
            unreadable_outcome("it is in an array inside of another"),
            Deviation::InvalidAnswer,
        ),
        (
            r#""{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":5}""#,
            unreadable_outcome("it is inside of a JSON text"),
            Deviation::InvalidAnswer,
        ),
    ] {
        let mut bench = Bench::new(dialect::LSP);
        let call = bench.call().await;
        bench.says(answer).await;
        assert_eq!(outcome(call).await, expected, "{answer}");
        assert_eq!(bench.deviations(), [deviation], "{answer}");
        assert_eq!(bench.client.stats().deviations, 1, "{answer}");
        // The connection goes on.
        let call = bench.call().await;
        bench.says(r#"{"jsonrpc":"2.0","id":2,"result":6}"#).await;
        assert_eq!(outcome(call).await, Outcome::Completed(json!(6)), "{answer}");
        assert_eq!(bench.deviations(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_behind_half_an_answer_is_taken_and_the_half_ends_its_call() {
    let mut bench = Bench::new(dialect::MCP);
    let (first, second) = (bench.call().await, bench.call().await);
    bench.says(r#"{"jsonrpc":"2.0","i{"jsonrpc":"2.0","id":1,"result":1}"#).await;
    assert_eq!(outcome(first).await, Outcome::Completed(json!(1)));
    let third = bench.call().await;
    bench.says(r#"{"jsonrpc":"2.0","id":2,"resu{"jsonrpc":"2.0","id":3,"result":3}"#).await;
    assert_eq!(outcome(third).await, Outcome::Completed(json!(3)));
    assert_eq!(outcome(second).await, unreadable_outcome("it is cut off at byte 29"));
    let expected = [Deviation::SharedLine, Deviation::Noise, Deviation::SharedLine, Deviation::InvalidAnswer];
    assert_eq!(bench.deviations(), expected);
}

#[tokio::test(start_paused = true)]
async fn each_answer_of_an_array_that_is_not_json_is_taken_alone() {
    let note = r#"{"jsonrpc":"2.0","method":"m","params":{"x":NaN}}"#;
    let right = r#"{"jsonrpc":"2.0","id":1,"result":5}"#;
    let completed = || Outcome::Completed(json!(5));
    for (batch, expected) in [
        (
            r#"[{"jsonrpc":"2.0","id":1,"result":NaN}]"#.to_owned(),
            unreadable_outcome("it is not JSON at byte 33"),
        ),
        (format!("[{note},{right}]"), completed()),
        (format!("[{right},{note}]"), completed()),
        (format!("[{right},"), completed()),
        (format!("[{right}] (3 ms)"), completed()),
        (r#"[{"jsonrpc":"2.0","id":1,"resu"#.to_owned(), unreadable_outcome("it is cut off at byte 29")),
        (
            format!(r#"[{{"jsonrpc":"2.0","id":9,"result":"he said "x""}},{right}]"#),
            unreadable_outcome("it is in an array that is not JSON"),
        ),
        (format!("[{}{right}]", r#"{"jsonrpc":"2.0","id":77,"result":1},"#.repeat(2000)), completed()),
    ] {
        let mut bench = Bench::new(dialect::MCP);
        let call = bench.call().await;
        bench.says(&batch).await;
        assert_eq!(outcome(call).await, expected, "{batch:.200}");
        // The connection goes on.
        let call = bench.call().await;
        bench.says(r#"{"jsonrpc":"2.0","id":2,"result":6}"#).await;
        assert_eq!(outcome(call).await, Outcome::Completed(json!(6)), "{batch:.200}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_names_no_call_ends_the_only_open_one_and_never_one_of_two() {
    for id in ["", r#""id":null,"#, r#""id":-1,"#, r#""id":"","#, r#""id":"undefined","#, r#""id":[1],"#] {
        let mut bench = Bench::new(dialect::MCP);
        let error = format!(r#"{{"jsonrpc":"2.0",{id}"error":{{"code":-32700,"message":"no"}}}}"#);
        // None is open.
        bench.says(&error).await;
        let (first, second) = (bench.call().await, bench.call().await);
        bench.says(&error).await;
        bench.says(r#"{"jsonrpc":"2.0","id":1,"result":1}"#).await;
        assert_eq!(outcome(first).await, Outcome::Completed(json!(1)), "{id}");
        bench.says(&error).await;
        match outcome(second).await {
            Outcome::Failed(error) => assert_eq!((error.code.0, &*error.message), (-32700, "no")),
            other => panic!("{id}: {other:?}"),
        }
        let unnamed = Deviation::Dropped(BadMessage::NoId);
        assert_eq!(bench.deviations(), [unnamed, unnamed, Deviation::NoId], "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_method_without_an_id_is_about_a_notification_if_one_was_sent() {
    for id in ["", r#""id":null,"#] {
        let mut bench = Bench::new(dialect::MCP);
        let error = format!(r#"{{"jsonrpc":"2.0",{id}"error":{{"code":-32601,"message":"no"}}}}"#);
        bench.client.notify("notifications/initialized", &json!({})).await.unwrap();
        let mut line = String::new();
        bench.server.read_line(&mut line).await.unwrap();
        let first = bench.call().await;
        bench.says(&error).await;
        bench.says(r#"{"jsonrpc":"2.0","id":1,"result":1}"#).await;
        assert_eq!(outcome(first).await, Outcome::Completed(json!(1)), "{id}");
        // Each notification has one such answer.
        let second = bench.call().await;
        bench.says(&error).await;
        assert!(matches!(outcome(second).await, Outcome::Failed(error) if error.code.0 == -32601), "{id}");
        assert_eq!(bench.deviations(), [Deviation::Dropped(BadMessage::NoId), Deviation::NoId], "{id}");
    }
}

/// Each names no call, or not certainly one, or another one. None of them may end the open call.
#[tokio::test(start_paused = true)]
async fn ten_thousand_answers_of_unclear_meaning_end_no_call() {
    let mut bench = Bench::new(dialect::MCP);
    let call = bench.call().await;
    let other = bench.call().await;
    let unclear = [
        r#"{"jsonrpc":"2.0","result":{"id":1,"x":NaN}}"#,
        r#"{"jsonrpc":"2.0","id":1,"id":2,"result":1}"#,
        r#"{"jsonrpc":"2.0","id":"01","result":1}"#,
        r#"{"jsonrpc":"2.0","id":1.5,"result":1}"#,
        r#"{"jsonrpc":"2.0","id":[1],"result":1}"#,
        r#"{"jsonrpc":"2.0","id":9,"result":NaN}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"notifications/m","params":NaN}"#,
        r#"{"jsonrpc":"2.0","result":{"text":"he said "hi"},"id":1,"x":"}"#,
        r#"{"jsonrpc":"2.0","error":{"code":1,"message":"to nobody"}}"#,
        r#"[{"jsonrpc":"2.0","id":"x","result":1},[{"jsonrpc":"2.0","id":1,"result":1}]]"#,
        r#"[[{"jsonrpc":"2.0","id":1,"result":1},{"jsonrpc":"2.0","method":"notifications/m"}]]"#,
        r#"[[[{"jsonrpc":"2.0","id":1,"result":1}]]]"#,
        r#"{"sent":{"jsonrpc":"2.0","id":1,"result":1}}"#,
        r#""sent {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":1}""#,
    ];
    for _ in 0..1000 {
        for line in unclear {
            bench.says(line).await;
        }
        // This side answers bad frames, up to a limit.
        let drained = bench.server.fill_buf();
        if let Ok(Ok(buffer)) = tokio::time::timeout(Duration::from_millis(1), drained).await {
            let read = buffer.len();
            bench.server.consume(read);
        }
    }
    bench.says(r#"{"jsonrpc":"2.0","id":1,"result":1}"#).await;
    assert_eq!(outcome(call).await, Outcome::Completed(json!(1)));
    bench.says(r#"{"jsonrpc":"2.0","id":2,"result":2}"#).await;
    assert_eq!(outcome(other).await, Outcome::Completed(json!(2)));
    let stats = bench.client.stats();
    assert_eq!((stats.calls, stats.late_answers), (0, 0));
    assert!(stats.deviations >= 5000, "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_ends_with_an_answer_that_cannot_be_read() {
    let mut bench = Bench::new(dialect::LSP);
    let call = bench.call().await;
    call.canceller().cancel("");
    let mut line = String::new();
    bench.server.read_line(&mut line).await.unwrap();
    bench.says(r#"{"jsonrpc":"2.0","id":"1","error":{"code":-32800,"message":"cancelled"}}"#).await;
    assert!(matches!(outcome(call).await, Outcome::Cancelled(cancelled) if cancelled.confirmed));
    let call = bench.call().await;
    call.canceller().cancel("");
    line.clear();
    bench.server.read_line(&mut line).await.unwrap();
    let cancel: Value = serde_json::from_str(&line).unwrap();
    bench.says(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"cut":"#, cancel["params"]["id"])).await;
    assert_eq!(outcome(call).await, unreadable_outcome("it is cut off at byte 40"));
}

#[tokio::test(start_paused = true)]
async fn an_error_without_an_id_in_an_array_ends_the_only_open_call() {
    let mut bench = Bench::new(dialect::LSP);
    let call = bench.call().await;
    bench.says(r#"[{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}]"#).await;
    assert!(matches!(outcome(call).await, Outcome::Failed(error) if error.message == "no"));
    assert_eq!(bench.deviations(), [Deviation::NoId, Deviation::BatchOfAnswers]);
    // A notification in an array is refused and reported.
    bench.says(r#"[{"jsonrpc":"2.0","method":"note"}]"#).await;
    let mut refusal = String::new();
    bench.server.read_line(&mut refusal).await.unwrap();
    assert!(refusal.contains("error"), "{refusal}");
    assert_eq!(bench.deviations(), [Deviation::Dropped(BadMessage::BatchNotAllowed)]);
}
