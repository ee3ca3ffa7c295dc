//! Malformed input at each level: messages over every transport, the framing of byte streams, frames of WebSocket,
//! requests of HTTP.
//!
//! After each class an honest client is served, no handler runs, the process has as many descriptors as before, and
//! its stderr has no panic.

mod content_length;
mod http1;
mod json;
mod text;
mod websocket;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::honest_client::Honest;
use crate::http2::Http2;
use crate::raw_stream::{Stream, request, tcp};
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

/// A list of `inputs.json`.
fn listed(name: &str) -> Vec<String> {
    let mut lists: BTreeMap<String, Vec<String>> = serde_json::from_str(include_str!("inputs.json")).unwrap();
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
        for (class, inputs) in json::classes() {
            add(class, wire, inputs, if wire.is_http() { posts } else { frames });
        }
        match wire {
            Wire::Stdio | Wire::NamedPipe => {
                add("content_length_framing", wire, content_length::inputs(), content_length::play_all);
            }
            Wire::WebSocket => {
                add("websocket_frames", wire, websocket::inputs(), websocket::play_all);
                add("websocket_handshakes", wire, http1::handshakes(), sockets);
            }
            Wire::Streamable | Wire::Stateless | Wire::Acp => {
                add("http_requests", wire, http1::inputs(wire), sockets);
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
