//! HTTP/1.1 requests that are malformed or name something that does not exist.

use super::Inputs;
use super::json::echo;
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
    let lines = [
        "",
        " ",
        "GET",
        "GET /rpc",
        "POST /rpc HTTP/9.9",
        "POST /rpc HTTP/1.0",
        "POST /rpc HTTP/0.9",
        "POST  /rpc  HTTP/1.1",
        "POST\t/rpc\tHTTP/1.1",
        "P\0ST /rpc HTTP/1.1",
        "POST /r pc HTTP/1.1",
        "POST /rpc\u{7f} HTTP/1.1",
        "POST * HTTP/1.1",
        "POST http:// HTTP/1.1",
        "POST http://elsewhere.example/rpc HTTP/1.1",
        "POST //rpc HTTP/1.1",
        "POST /rpc#x HTTP/1.1",
        "POST /../rpc HTTP/1.1",
        "POST /%00 HTTP/1.1",
        "CONNECT x:1 HTTP/1.1",
        "PRI * HTTP/2.0",
        "TRACE /rpc HTTP/1.1",
        "PUT /rpc HTTP/1.1",
        "PATCH /rpc HTTP/1.1",
        "HEAD /rpc HTTP/1.1",
        "OPTIONS /rpc HTTP/1.1",
        "DELETE /rpc HTTP/1.1",
        "GET /rpc HTTP/1.1",
        "post /rpc HTTP/1.1",
        "POST /rpc http/1.1",
    ];
    lines.iter().map(|line| raw(line, &[HOST, TYPE, ACCEPT, length], body)).collect()
}

/// Errors in the length of the body.
fn lengths(body: &str, length: &str) -> Inputs {
    let lengths = [
        "Content-Length: -1",
        "Content-Length: 99999999999999999999",
        "Content-Length: 18446744073709551615",
        "Content-Length: 16777217",
        "Content-Length: x",
        "Content-Length: 1,1",
        "Content-Length: 1, 2",
        "Content-Length:",
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: chunked, gzip",
        "Transfer-Encoding: gzip, chunked",
        "Expect: x",
        "Transfer-Encoding: \u{b}chunked",
        "Transfer-Encoding: identity",
    ];
    let mut inputs: Inputs = lengths.iter().map(|header| post(&[header], body)).collect();
    inputs.push(post(&[length, "Transfer-Encoding: chunked"], &format!("0\r\n\r\n{body}")));
    inputs.push(post(&["Content-Length: 5", length], body));
    inputs.push(post(&[], body));
    let chunked = [
        "",
        "x\r\n",
        "-1\r\n",
        "5\r\nab\r\n",
        "ffffffffffffffffff\r\n",
        "5;x=y\r\n{\"a\":\r\n",
        "2\r\n{}3\r\n",
        "2 \r\n{}\r\n0\r\n\r\n",
        "2\n{}\n0\n\n",
        "0\r\nX: y\r\n\r\n",
        "0\r\nContent-Length: 9\r\n\r\n",
    ];
    inputs.extend(chunked.map(|body| post(&["Transfer-Encoding: chunked"], body)));
    inputs
}

fn heads(body: &str, length: &str) -> Inputs {
    let mut inputs = Inputs::new();
    let long = format!("X: {}", "x".repeat(70_000));
    inputs.push(post(&[&long, length], body));
    inputs.push(post(&vec!["X: 1"; 200], body));
    let headers = [
        "No-Colon",
        ": x",
        "X\0: y",
        "X : y",
        " X: y",
        "X: \u{1}",
        "X: y\rZ: w",
        "Host: 127.0.0.1",
        "Host: a, b",
        "Host:",
        "Origin: null",
        "Origin: http://elsewhere.example",
        "Connection: close, Upgrade",
        "Upgrade: h2c",
        "Accept: x",
        "Accept: ",
        "Content-Type: text/plain",
        "Content-Type: application/json; charset=latin1",
        "Content-Encoding: gzip",
        "MCP-Protocol-Version: 1900-01-01",
        "MCP-Protocol-Version: \u{e9}",
        "Last-Event-ID: x",
        "Mcp-Method: x",
        "Mcp-Name: =?base64?!?=",
    ];
    inputs.extend(headers.map(|header| post(&[header, length], body)));
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
    let wrong = [
        ("GET /", "POST /"),
        ("GET /", "GET /elsewhere"),
        ("HTTP/1.1", "HTTP/1.0"),
        ("HTTP/1.1", "HTTP/2.0"),
        ("Host: 127.0.0.1\r\n", ""),
        ("Host: 127.0.0.1", "Host: elsewhere.example"),
        ("Host: 127.0.0.1", "Host: a\r\nHost: b"),
        ("Connection: Upgrade\r\n", ""),
        ("Connection: Upgrade", "Connection: close"),
        ("Upgrade: websocket\r\n", ""),
        ("Upgrade: websocket", "Upgrade: h2c"),
        ("Version: 13", "Version: 12"),
        ("Version: 13", "Version: x"),
        ("Sec-WebSocket-Version: 13\r\n", ""),
        ("Key: AAAAAAAAAAAAAAAAAAAAAA==", "Key: short"),
        ("Key: AAAAAAAAAAAAAAAAAAAAAA==", "Key: "),
        ("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n", ""),
        ("\r\n\r\n", "\r\nOrigin: http://elsewhere.example\r\n\r\n"),
        ("\r\n\r\n", "\r\nOrigin: null\r\n\r\n"),
        ("\r\n\r\n", "\r\nContent-Length: 5\r\n\r\nhello"),
        ("\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        ("\r\n\r\n", "\r\nSec-WebSocket-Extensions: permessage-deflate; x=\"\r\n\r\n"),
        ("\r\n\r\n", "\r\nSec-WebSocket-Protocol: ,,,\r\n\r\n"),
        ("\r\n\r\n", "\r\n"),
        ("\r\n", "\n"),
    ];
    let mut inputs: Inputs =
        wrong.iter().map(|(from, to)| right.replacen(from, to, 1).into_bytes()).collect();
    inputs.push(right.replace("\r\n\r\n", &format!("\r\nX: {}\r\n\r\n", "x".repeat(70_000))).into_bytes());
    inputs.push(right.replace("\r\n\r\n", &format!("\r\n{}\r\n", "X: 1\r\n".repeat(500))).into_bytes());
    inputs.push([right.as_bytes(), &[0xff; 100]].concat());
    inputs.push(right.as_bytes()[..right.len() / 2].to_vec());
    inputs
}
