//! HTTP/1.1 requests that are malformed or name something that does not exist.

use super::json::echo;
use super::{Inputs, listed};
use crate::raw_stream::upgrade;
use crate::target::Wire;

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

pub(super) fn inputs(wire: Wire) -> Inputs {
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
pub(super) fn handshakes() -> Inputs {
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
