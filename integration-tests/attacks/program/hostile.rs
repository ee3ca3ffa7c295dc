//! Malformed input at each level: messages over every transport, the framing of byte streams, frames of WebSocket,
//! requests of HTTP.
//!
//! After each class an honest client is served, no handler runs, the process has as many descriptors as before, and
//! its stderr has no panic.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::clients::{Honest, Http2, Stream, request, tcp, upgrade, websocket_head};
use crate::target::{Target, Wire};
use crate::{in_time, play, poll_until};

/// The seed of the list of inputs, which is the same each time.
const SEED: u64 = 17;
/// How many inputs of a class a debug build plays.
const SAMPLE: usize = 4;
/// How long a reader waits for more after malformed input.
const SILENCE: Duration = Duration::from_millis(20);
/// Concurrent connections, each with one input.
const AT_ONCE: usize = 16;

type Inputs = Vec<Vec<u8>>;

/// A list of `hostile_inputs.json`.
fn listed(name: &str) -> Vec<String> {
    let mut lists: BTreeMap<String, Vec<String>> =
        serde_json::from_str(include_str!("hostile_inputs.json")).unwrap();
    lists.remove(name).unwrap()
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut count = 0;
    let mut add = |class: &str, wire: Wire, inputs: Inputs, test: fn(Wire, &Inputs)| {
        let inputs = sample(inputs);
        count += inputs.len();
        let name = format!("hostile::{class}::{}", wire.name());
        trials.push(Trial::test(name, move || {
            test(wire, &inputs);
            Ok(())
        }));
    };
    for wire in Wire::ALL {
        for (class, inputs) in message_classes() {
            add(class, wire, inputs, if wire.is_http() { posts } else { frames });
        }
        match wire {
            Wire::Stdio | Wire::NamedPipe => {
                add("content_length_framing", wire, header_block_inputs(), play_header_blocks);
            }
            Wire::WebSocket => {
                add("websocket_frames", wire, websocket_inputs(), play_websocket);
                add("websocket_handshakes", wire, handshakes(), sockets);
            }
            Wire::Streamable | Wire::Stateless | Wire::Acp => {
                add("http_requests", wire, http1_inputs(wire), sockets);
            }
        }
    }
    eprintln!("attacks: {count} hostile inputs, seed {SEED}");
    trials
}

/// All inputs in release, otherwise some of them from the first to the last.
fn sample(inputs: Inputs) -> Inputs {
    if !cfg!(debug_assertions) {
        return inputs;
    }
    let step = inputs.len().div_ceil(SAMPLE).max(1);
    inputs.into_iter().step_by(step).collect()
}

/// Messages over a transport of frames. Each is followed by an echo, which is answered unless the connection was
/// closed.
fn frames(wire: Wire, inputs: &Inputs) {
    run(async {
        let mut field = Field::open(wire, &[]).await;
        let mut stream: Option<Stream> = None;
        for (number, input) in (0..).zip(inputs) {
            let mut open = match stream.take() {
                Some(stream) => stream,
                None => field.stream().await,
            };
            let probe = format!("probe-{number}");
            let echo =
                json!({"jsonrpc": "2.0", "id": probe, "method": "test/echo", "params": {}}).to_string();
            let shown = shown(input);
            let _closed_early = open.writer.send(&[Bytes::from(input.clone())]).await;
            let _closed_early = open.writer.send(&[Bytes::from(echo)]).await;
            let what = format!("an answer or the end after {shown}");
            let answered = in_time(&what, async {
                while let Some(message) = open.reader.message().await {
                    if message["id"] == probe.as_str() {
                        return true;
                    }
                }
                false
            });
            if answered.await {
                stream = Some(open);
            } else {
                assert_eq!(wire, Wire::WebSocket, "the connection ended after {shown}");
            }
        }
        if wire == Wire::Stdio {
            // The honest client uses the same streams.
            honest_over(stream.as_mut().unwrap()).await;
        }
        drop(stream);
        field.close().await;
    });
}

/// Messages as bodies of POSTs, in a session if there are sessions. Each has a response.
fn posts(wire: Wire, inputs: &Inputs) {
    run(async {
        let field = Field::open(wire, &[]).await;
        let mut client = Http2::connect(&field.target, 1 << 20).await;
        client.initialize(wire.dialect()).await;
        for input in inputs {
            let what = format!("a response to {}", shown(input));
            let response = in_time(&what, client.post("test/echo", vec![input.clone().into()])).await;
            assert!(response.is_ok(), "{what}: {response:?}");
        }
        drop(client);
        field.close().await;
    });
}

/// Bytes on a separate socket each. Some of them are answered.
fn sockets(wire: Wire, inputs: &Inputs) {
    run(async {
        let field = Field::open(wire, &[]).await;
        for some in inputs.chunks(AT_ONCE) {
            futures_util::future::join_all(some.iter().map(async |input| {
                let mut stream = tcp(&field.target).await;
                let _closed_early = timeout(SILENCE, stream.write_all(input)).await;
                let mut answer = Vec::new();
                let _silent = timeout(SILENCE, stream.read_to_end(&mut answer)).await;
            }))
            .await;
        }
        field.close().await;
    });
}

/// Runs `play`. Its failures become panics.
fn run(test: impl Future<Output = ()>) {
    play(test).unwrap_or_else(|failed| panic!("{:?}", failed.message()));
}

/// The beginning of an input, by which it can be found in the list.
fn shown(input: &[u8]) -> String {
    let start: Vec<u8> = input.iter().copied().take(160).collect();
    format!("{:?} ({} bytes)", String::from_utf8_lossy(&start), input.len())
}

/// The fixture, and its state before the attack.
struct Field {
    target: Target,
    honest: Option<Honest>,
    descriptors: u64,
}

impl Field {
    async fn open(wire: Wire, more: &[&str]) -> Self {
        let target = Target::speaking(wire, wire.dialect(), more);
        let honest = if wire == Wire::Stdio { None } else { Some(Honest::connect(&target).await) };
        if let Some(honest) = &honest {
            honest.is_served().await;
        }
        let descriptors = target.descriptors();
        Self { target, honest, descriptors }
    }

    /// Another connection, with a session.
    async fn stream(&mut self) -> Stream {
        let mut stream = Stream::connect(&mut self.target).await;
        stream.initialize(self.target.dialect.name()).await;
        stream
    }

    /// Checks that everything is as before.
    async fn close(mut self) {
        if let Some(honest) = &self.honest {
            self.target.assert_runs();
            honest.is_served().await;
            honest.nothing_is_left().await;
            let (target, before) = (&self.target, self.descriptors);
            poll_until("its descriptors are as they were", async || target.descriptors() <= before).await;
            self.target.assert_runs();
        }
        self.target.end();
    }
}

/// The honest client of stdio, on the streams of the attacker: an echo, a cancel, and no handler that still runs.
async fn honest_over(stream: &mut Stream) {
    let echoed = ask(stream, 1001, "test/echo", json!({"value": 5})).await;
    assert_eq!(echoed["result"]["value"], 5);
    // Handlers run on several threads: an echo of the attack may end after a later one was answered.
    let mut id = 2000;
    poll_until("the attack's requests have ended", async || {
        id += 1;
        ask(stream, id, "test/stats", json!({})).await["result"]["running"] == 0
    })
    .await;
    stream.writer.send(&[request(1002, "test/wait", &json!({})).into()]).await.unwrap();
    let stats = ask(stream, 1003, "test/stats", json!({})).await;
    assert_eq!(stats["result"]["running"], 1, "{stats}");
    let cancel = json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1002}});
    stream.writer.send(&[cancel.to_string().into()]).await.unwrap();
    assert_eq!(answer(stream, 1002).await["error"]["code"], -32_800);
    let stats = ask(stream, 1004, "test/stats", json!({})).await;
    for count in ["running", "queued", "draining", "slots"] {
        assert_eq!(stats["result"][count], 0, "{stats}");
    }
}

async fn ask(stream: &mut Stream, id: u64, method: &str, params: Value) -> Value {
    stream.writer.send(&[request(id, method, &params).into()]).await.unwrap();
    answer(stream, id).await
}

async fn answer(stream: &mut Stream, id: u64) -> Value {
    loop {
        let message = in_time("an answer", stream.reader.message()).await.unwrap();
        if message["id"] == id {
            return message;
        }
    }
}

// Messages that are not JSON, or JSON that is not a message. Errors in characters are further below.

/// The members that each request carries, so that those of MCP 2026-07-28 are processed up to their error.
const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
const VALUES: [&str; 9] = ["null", "true", "1", "1.5", r#""x""#, "[]", "{}", "[1]", r#"{"a":1}"#];

fn message_classes() -> [(&'static str, Inputs); 10] {
    [
        ("broken_json", broken()),
        ("deep_nesting", deep()),
        ("numbers", numbers()),
        ("invalid_utf8", invalid_utf8()),
        ("duplicate_keys", duplicate_keys()),
        ("wrong_types", wrong_types()),
        ("ids", ids()),
        ("batches", batches()),
        ("cancels", cancels()),
        ("characters", characters()),
    ]
}

/// An echo with this id and value, written unchanged.
fn echo(id: &str, value: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"test/echo","params":{{"value":{value},{META}}}}}"#)
}

fn bytes(texts: impl IntoIterator<Item = String>) -> Inputs {
    texts.into_iter().map(String::into_bytes).collect()
}

/// Pseudorandom numbers, the same each time.
struct Numbers(u64);

impl Numbers {
    const fn new() -> Self {
        Self(SEED)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }
}

fn broken() -> Inputs {
    let whole = echo("1", "1");
    let mut inputs = bytes(listed("broken_json"));
    inputs.extend((1..whole.len()).step_by(6).map(|end| whole.as_bytes()[..end].to_vec()));
    let mut numbers = Numbers::new();
    inputs.extend((0..40).map(|_| {
        let mut broken = whole.clone().into_bytes();
        let at = numbers.below(broken.len());
        broken[at] = b"{}[]\",:\\\0/-e.t"[numbers.below(14)];
        broken
    }));
    inputs
}

fn deep() -> Inputs {
    let mut inputs = Vec::new();
    for depth in [10, 125, 126, 127, 128, 129, 1000, 100_000] {
        let array = "[".repeat(depth) + &"]".repeat(depth);
        let object = r#"{"a":"#.repeat(depth) + "1" + &"}".repeat(depth);
        inputs.extend([echo("1", &array), echo("1", &object), echo(&array, "1"), array, "[".repeat(depth)]);
    }
    bytes(inputs)
}

fn numbers() -> Inputs {
    let numbers = [listed("numbers"), vec!["1".repeat(400), "7".repeat(100_000)]].concat();
    bytes(numbers.iter().flat_map(|number| [echo("1", number), echo(number, "1")]))
}

fn duplicate_keys() -> Inputs {
    let members = [r#""jsonrpc":"2.0""#, r#""id":1"#, r#""method":"test/echo""#, r#""params":{}"#];
    let all = members.join(",");
    let mut inputs: Vec<String> = members.iter().map(|again| format!("{{{all},{again}}}")).collect();
    inputs.extend(["id", "method", "params", "jsonrpc"].map(|name| format!("{{{all},\"{name}\":null}}")));
    let escaped = [r#""\u0069d":2"#, r#""m\u0065thod":"test/stats""#, r#""par\u0061ms":[]"#];
    inputs.extend(escaped.map(|again| format!("{{{all},{again}}}")));
    inputs.push(echo("1", r#"1,"value":2,"value":3"#));
    inputs.push(format!("{{{all},{}}}", vec![r#""x":1"#; 10_000].join(",")));
    for method in CANCELS {
        inputs.push(cancel(method, r#"{"requestId":1,"requestId":2,"id":3,"id":4}"#));
    }
    bytes(inputs)
}

fn wrong_types() -> Inputs {
    let whole = [("jsonrpc", r#""2.0""#), ("id", "1"), ("method", r#""test/echo""#), ("params", "{}")];
    let mut inputs = Vec::new();
    for value in VALUES {
        for (wrong, _) in whole {
            let members = whole
                .map(|(name, right)| format!("\"{name}\":{}", if name == wrong { value } else { right }));
            inputs.push(format!("{{{}}}", members.join(",")));
        }
        for more in ["result", "error"] {
            inputs.push(format!(r#"{{"jsonrpc":"2.0","id":1,"{more}":{value}}}"#));
            inputs.push(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"test/echo","{more}":{value}}}"#));
        }
        inputs.push(format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{value},"message":{value}}}}}"#));
        inputs.push(format!(r#"{{"jsonrpc":"2.0","method":{value}}}"#));
        inputs.push(value.to_owned());
    }
    bytes(inputs)
}

fn ids() -> Inputs {
    let mut ids: Vec<String> = VALUES.map(str::to_owned).to_vec();
    for length in [0, 1, 255, 256, 257, 100_000] {
        ids.push(format!("\"{}\"", "i".repeat(length)));
    }
    ids.extend([r#""\u0000""#, r#""é""#, r#""1""#, "-1", "0", "2.0", "1e3", "false"].map(str::to_owned));
    let requests = ids.iter().map(|id| echo(id, "1"));
    let answers = ids.iter().map(|id| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#));
    bytes(requests.chain(answers))
}

fn batches() -> Inputs {
    let one = echo("1", "1");
    let notification = r#"{"jsonrpc":"2.0","method":"test/nothing"}"#;
    let many = |text: &str, count: usize| format!("[{}]", vec![text; count].join(","));
    let mut inputs = vec!["[]".to_owned(), "[[]]".to_owned(), "[[[]],[]]".to_owned(), "[1,2,3]".to_owned()];
    inputs.extend(VALUES.map(|value| format!("[{value}]")));
    for count in [1, 2, 1024, 1025, 10_000] {
        inputs.extend([many("1", count), many("{}", count), many(notification, count)]);
    }
    inputs.extend([
        many(&one, 1),
        many(&one, 2),
        many(&one, 1025),
        format!("[[{one}]]"),
        format!("[{one},[{one}]]"),
    ]);
    inputs.extend([format!("[{one}"), format!("[{one},"), format!("[{one},]"), format!("[{one}]]")]);
    bytes(inputs)
}

const CANCELS: [&str; 4] =
    ["$/cancel_request", "$/cancelRequest", "notifications/cancelled", "session/cancel"];

fn cancel(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}

fn cancels() -> Inputs {
    let long = format!("\"{}\"", "r".repeat(100_000));
    let keys = ["1000000", "-1", r#""nobody""#, r#""""#, "1.0", "1e400", "9223372036854775808", &long];
    let mut inputs = Vec::new();
    for method in CANCELS {
        for key in keys.iter().copied().chain(VALUES) {
            inputs.push(cancel(
                method,
                &format!(r#"{{"requestId":{key},"id":{key},"sessionId":{key},"reason":{key}}}"#),
            ));
        }
        inputs.extend(["null", "[]", "[1]", "{}", "1"].map(|params| cancel(method, params)));
        inputs.push(cancel(method, "{}").replace(r#""method""#, r#""id":77,"method""#));
    }
    bytes(inputs)
}

// Bytes and characters that are invalid or rare in text.

/// The places of text in a message. `TEXT` is replaced.
const PLACES: [&str; 5] = [
    r#"{"jsonrpc":"2.0","id":1,"method":"test/echo","params":{"value":"TEXT"}}"#,
    r#"{"jsonrpc":"2.0","id":"TEXT","method":"test/echo","params":{}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"TEXT","params":{}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"test/echo","params":{"TEXT":1}}"#,
    r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"TEXT"}}"#,
];

fn in_each_place(text: &[u8]) -> Inputs {
    let place = |place: &str| {
        let (before, after) = place.split_once("TEXT").unwrap();
        [before.as_bytes(), text, after.as_bytes()].concat()
    };
    PLACES.into_iter().map(place).collect()
}

fn invalid_utf8() -> Inputs {
    let sequences: [&[u8]; 8] = [
        b"\xff",
        b"\x80",
        b"\xc0\xaf",
        b"\xe2\x82",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xf8\x88\x80\x80\x80",
        b"a\xfeb",
    ];
    let mut inputs: Inputs = sequences.iter().flat_map(|text| in_each_place(text)).collect();
    inputs.extend(sequences.iter().map(|text| [text, echo("1", "1").as_bytes()].concat()));
    inputs.extend(sequences.iter().map(|text| text.to_vec()));
    inputs.push(echo("1", "1").encode_utf16().flat_map(u16::to_le_bytes).collect());
    inputs
}

fn characters() -> Inputs {
    let mut inputs: Inputs =
        (0..0x20_u8).map(|control| echo("1", &format!("\"{}\"", control as char)).into()).collect();
    inputs.extend(listed("escapes").iter().flat_map(|text| in_each_place(text.as_bytes())));
    inputs
}

// Header blocks of Content-Length framing, over byte streams.

fn header_block_inputs() -> Inputs {
    let body = echo("1", "1");
    let length = body.len();
    let mut inputs: Inputs = listed("content_length_heads")
        .iter()
        .map(|head| format!("{head}\r\n\r\n{body}").into_bytes())
        .collect();
    let twice = [(length, length), (length, 1), (1, length)];
    inputs.extend(twice.map(|(one, two)| {
        format!("Content-Length: {one}\r\nContent-Length: {two}\r\n\r\n{body}").into_bytes()
    }));
    for separator in ["\n\n", "\r\r", "\n\r\n\r", "\r\n", " \r\n\r\n"] {
        inputs.push(format!("Content-Length: {length}{separator}{body}").into_bytes());
    }
    for name in ["content-length", "CONTENT-LENGTH", "Content-Length ", " Content-Length", "Content_Length"] {
        inputs.push(format!("{name}: {length}\r\n\r\n{body}").into_bytes());
    }
    for wrong in [length - 1, length + 1, length * 2] {
        inputs.push(format!("Content-Length: {wrong}\r\n\r\n{body}").into_bytes());
    }
    inputs.push(body.clone().into_bytes());
    inputs.push(format!("X: {}\r\nContent-Length: {length}\r\n\r\n{body}", "x".repeat(10_000)).into_bytes());
    inputs.push("x".repeat(100_000).into_bytes());
    inputs.push(format!("{}Content-Length: {length}\r\n\r\n{body}", "X: 1\r\n".repeat(2000)).into_bytes());
    inputs.push(format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes());
    inputs
}

/// Each on a separate connection; over stdio, in a separate process.
fn play_header_blocks(wire: Wire, inputs: &Inputs) {
    const FRAMING: [&str; 2] = ["--framing", "content-length"];
    run(async {
        if wire == Wire::Stdio {
            for input in inputs {
                let mut target = Target::speaking(wire, wire.dialect(), &FRAMING);
                play_header_block(&mut target, input).await;
                // The process ends with its input, with a success status.
                poll_until("it ends with its input", async || target.has_ended_well()).await;
                target.end();
            }
            return;
        }
        let mut field = Field::open(wire, &FRAMING).await;
        for input in inputs {
            play_header_block(&mut field.target, input).await;
        }
        field.close().await;
    });
}

async fn play_header_block(target: &mut Target, input: &[u8]) {
    let mut stream = Stream::connect(target).await;
    let _closed_early = in_time("a write", timeout(Duration::from_secs(1), stream.writer.write(input))).await;
    let mut answer = Vec::new();
    let _silent = timeout(SILENCE, stream.reader.bytes.read_to_end(&mut answer)).await;
}

// Frames that RFC 6455 forbids, and frames without an end.

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
/// No further fragment follows.
const LAST: u8 = 0x80;

fn websocket_frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&websocket_head(kind, payload.len())[..], payload].concat()
}

fn websocket_inputs() -> Inputs {
    let message = echo("1", "1").into_bytes();
    let mut inputs = Inputs::new();
    // Every opcode and reserved bit, whole and as a fragment.
    for opcode in 0..16_u8 {
        inputs.push(websocket_frame(LAST | opcode, &message));
        inputs.push(websocket_frame(opcode, b"x"));
        inputs.push([websocket_frame(opcode, b"x"), websocket_frame(LAST | TEXT, &message)].concat());
    }
    for reserved in [0x10, 0x20, 0x40, 0x70] {
        inputs.extend(
            [TEXT, BINARY, PING, CLOSE].map(|opcode| websocket_frame(LAST | reserved | opcode, &message)),
        );
    }
    // Without a mask.
    for opcode in [TEXT, BINARY, CLOSE, PING] {
        inputs.push(vec![LAST | opcode, 2, b'{', b'}']);
    }
    // Lengths: over the limit, over 63 bits, longer than needed, and longer than the data.
    for length in [0_u64, 1, 125, 126, 65_535, 16 << 20, (16 << 20) + 1, 1 << 40, u64::MAX >> 1, u64::MAX] {
        for opcode in [TEXT, BINARY, CLOSE, PING, PONG] {
            let length = length.to_be_bytes();
            inputs.push([&[LAST | opcode, 0xff][..], &length, &[0; 4], b"{}"].concat());
        }
    }
    for opcode in [CLOSE, PING, PONG] {
        inputs.push(websocket_frame(LAST | opcode, &[b'x'; 126]));
    }
    // Close frames: an incomplete code, forbidden codes, reasons that are not UTF-8.
    inputs.push(websocket_frame(LAST | CLOSE, b"\x03"));
    for code in [0_u16, 999, 1004, 1005, 1006, 1015, 2999, 5000, 65_535] {
        inputs.push(websocket_frame(LAST | CLOSE, &code.to_be_bytes()));
    }
    inputs.push(websocket_frame(LAST | CLOSE, b"\x03\xe8\xff\xff"));
    inputs.push([websocket_frame(LAST | CLOSE, b""), websocket_frame(LAST | TEXT, &message)].concat());
    // Text that is not UTF-8, also across fragments.
    for bad in [&b"\xff"[..], b"\xc0\xaf", b"\xed\xa0\x80", b"{\"a\":\"\x80\"}"] {
        inputs.push(websocket_frame(LAST | TEXT, bad));
        inputs.push([websocket_frame(TEXT, &bad[..1]), websocket_frame(LAST, &bad[1..])].concat());
    }
    // Fragments that are many, empty, or of two messages at once.
    inputs.push(websocket_frame(TEXT, b"").repeat(2));
    inputs.push(
        [websocket_frame(TEXT, b"{"), websocket_frame(0, b"").repeat(5000), websocket_frame(LAST, b"}")]
            .concat(),
    );
    inputs.push(
        [websocket_frame(TEXT, b"{"), websocket_frame(LAST | PING, b""), websocket_frame(LAST, b"}")]
            .concat(),
    );
    inputs.push(websocket_frame(LAST | PING, b"x").repeat(5000));
    let mut numbers = Numbers::new();
    inputs.extend((0..40).map(|_| {
        let length = 1 + numbers.below(60);
        (0..length).map(|_| u8::try_from(numbers.below(256)).unwrap()).collect()
    }));
    inputs
}

/// Each input after a separate handshake.
fn play_websocket(wire: Wire, inputs: &Inputs) {
    run(async {
        let mut field = Field::open(wire, &[]).await;
        for input in inputs {
            let mut stream = Stream::connect(&mut field.target).await;
            let _closed_early = timeout(SILENCE, stream.writer.write(input)).await;
            let mut answer = Vec::new();
            let _silent = timeout(SILENCE / 2, stream.reader.bytes.read_to_end(&mut answer)).await;
        }
        field.close().await;
    });
}

// HTTP/1.1 requests that are malformed or name something that does not exist.

const TYPE: &str = "Content-Type: application/json";
const ACCEPT: &str = "Accept: application/json, text/event-stream";
const HOST: &str = "Host: 127.0.0.1";

fn raw(line: &str, headers: &[&str], body: &str) -> Vec<u8> {
    let head = [&[line], headers].concat().join("\r\n");
    format!("{head}\r\n\r\n{body}").into_bytes()
}

fn post(headers: &[&str], body: &str) -> Vec<u8> {
    raw("POST /rpc HTTP/1.1", &[&[HOST, TYPE, ACCEPT], headers].concat(), body)
}

fn http1_inputs(wire: Wire) -> Inputs {
    let body = echo("1", "1");
    let length = format!("Content-Length: {}", body.len());
    [
        lines(&body, &length),
        lengths(&body, &length),
        heads(&body, &length),
        sessions(wire, &body, &length),
        others(),
    ]
    .concat()
}

fn lines(body: &str, length: &str) -> Inputs {
    let lines = listed("request_lines");
    lines.iter().map(|line| raw(line, &[HOST, TYPE, ACCEPT, length], body)).collect()
}

/// Errors in the length of the body.
fn lengths(body: &str, length: &str) -> Inputs {
    let lengths = listed("lengths");
    let mut inputs: Inputs = lengths.iter().map(|header| post(&[header], body)).collect();
    inputs.push(post(&[length, "Transfer-Encoding: chunked"], &format!("0\r\n\r\n{body}")));
    inputs.push(post(&["Content-Length: 5", length], body));
    inputs.push(post(&[], body));
    inputs.extend(listed("chunked").iter().map(|body| post(&["Transfer-Encoding: chunked"], body)));
    inputs
}

fn heads(body: &str, length: &str) -> Inputs {
    let mut inputs = Inputs::new();
    let long = format!("X: {}", "x".repeat(70_000));
    inputs.push(post(&[&long, length], body));
    inputs.push(post(&vec!["X: 1"; 200], body));
    inputs.extend(listed("headers").iter().map(|header| post(&[header, length], body)));
    for accept in ["*/*", "application/json", "text/event-stream", "text/html", ";q=0", ",,,"] {
        inputs.push(raw("POST /rpc HTTP/1.1", &[HOST, TYPE, &format!("Accept: {accept}"), length], body));
    }
    inputs
}

fn sessions(wire: Wire, body: &str, length: &str) -> Inputs {
    let mut inputs = Inputs::new();
    let session = match wire {
        Wire::Acp => "Acp-Connection-Id",
        Wire::Stdio | Wire::NamedPipe | Wire::WebSocket | Wire::Streamable | Wire::Stateless => {
            "Mcp-Session-Id"
        }
    };
    let long = "s".repeat(10_000);
    for id in ["", "x", "0", "../..", "%00", "\u{e9}", "00000000000000000000000000000000", &long] {
        let id = format!("{session}: {id}");
        inputs.push(post(&[&id, length], body));
        inputs.push(post(&[&id, &id, length], body));
        inputs.push(raw("GET /rpc HTTP/1.1", &[HOST, "Accept: text/event-stream", &id], ""));
        inputs.push(raw("DELETE /rpc HTTP/1.1", &[HOST, &id], ""));
    }
    inputs
}

/// Invalid HTTP/2, and TLS to a server without TLS.
fn others() -> Inputs {
    let settings = b"\0\0\0\x04\0\0\0\0\0\0\0\x05\x01\x05\0\0\0\x01\xff\xff\xff\xff\xff";
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    vec![
        [&preface[..], &[0xff; 9]].concat(),
        [&preface[..], settings].concat(),
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03".to_vec(),
        vec![0; 1000],
    ]
}

/// WebSocket handshakes with one error each.
fn handshakes() -> Inputs {
    let right = upgrade("127.0.0.1");
    // In pairs: a part, and what takes its place.
    let wrong = listed("handshakes");
    let mut inputs: Inputs =
        wrong.chunks(2).map(|pair| right.replacen(&pair[0], &pair[1], 1).into_bytes()).collect();
    inputs.push(right.replace("\r\n\r\n", &format!("\r\nX: {}\r\n\r\n", "x".repeat(70_000))).into_bytes());
    inputs.push(right.replace("\r\n\r\n", &format!("\r\n{}\r\n", "X: 1\r\n".repeat(500))).into_bytes());
    inputs.push([right.as_bytes(), &[0xff; 100]].concat());
    inputs.push(right.as_bytes()[..right.len() / 2].to_vec());
    inputs
}
