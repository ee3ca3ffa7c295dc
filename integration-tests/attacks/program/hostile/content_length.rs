//! Header blocks of Content-Length framing, over byte streams.

use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use super::json::echo;
use super::{Field, Inputs, SILENCE, listed, run};
use crate::raw_stream::Stream;
use crate::target::{Target, Wire};
use crate::{in_time, poll_until};

pub(super) fn inputs() -> Inputs {
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
pub(super) fn play_all(wire: Wire, inputs: &Inputs) {
    const FRAMING: [&str; 2] = ["--framing", "content-length"];
    run(async {
        if wire == Wire::Stdio {
            for input in inputs {
                let mut target = Target::speaking(wire, wire.dialect(), &FRAMING);
                one(&mut target, input).await;
                // The process ends with its input, with a success status.
                poll_until("it ends with its input", async || target.has_ended_well()).await;
                target.end();
            }
            return;
        }
        let mut field = Field::open(wire, &FRAMING).await;
        for input in inputs {
            one(&mut field.target, input).await;
        }
        field.close().await;
    });
}

async fn one(target: &mut Target, input: &[u8]) {
    let mut stream = Stream::connect(target).await;
    let _closed_early = in_time("a write", timeout(Duration::from_secs(1), stream.writer.write(input))).await;
    let mut answer = Vec::new();
    let _silent = timeout(SILENCE, stream.reader.bytes.read_to_end(&mut answer)).await;
}
