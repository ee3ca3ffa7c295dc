//! Requests with the hosts and origins of a case, as bytes, and the status of the response.

use std::time::Duration;

use rescind_testkit::support::http1::read_head;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::hosts::cases::Case;

const HANG: Duration = Duration::from_secs(30);

/// The kind of request of a case.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked {
    /// PUT, which no binding serves: 405 if it passes.
    Put,
    /// PUT over HTTP/2.
    PutOverHttp2,
    /// GET with the upgrade to a WebSocket: 101.
    Upgrade,
}

/// The status of the response to a case.
pub(crate) async fn ask(address: &str, path: &str, asked: Asked, case: &Case) -> u16 {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let answer = async {
        match asked {
            Asked::Put => http1(&mut socket, "PUT", path, "Content-Length: 0\r\n", case).await,
            Asked::Upgrade => {
                let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                               Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
                http1(&mut socket, "GET", path, upgrade, case).await
            }
            Asked::PutOverHttp2 => http2(&mut socket, path, case).await,
        }
    };
    tokio::time::timeout(HANG, answer).await.unwrap_or_else(|_| panic!("hangs: {case:?}"))
}

async fn http1(socket: &mut TcpStream, method: &str, path: &str, fields: &str, case: &Case) -> u16 {
    let target = case.target.map_or_else(String::new, |target| format!("http://{target}"));
    let mut request = format!("{method} {target}{path} HTTP/1.1\r\n{fields}");
    for host in &case.hosts {
        request.extend(["Host: ", host, "\r\n"]);
    }
    for origin in &case.origins {
        request.extend(["Origin: ", origin, "\r\n"]);
    }
    request += "\r\n";
    socket.write_all(request.as_bytes()).await.unwrap();
    let head = read_head(socket).await;
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
/// The stream and its headers end with this frame.
const END: u8 = 5;

async fn http2(socket: &mut TcpStream, path: &str, case: &Case) -> u16 {
    let mut block = Vec::new();
    for (name, value) in [(":method", "PUT"), (":scheme", "http"), (":path", path)] {
        field(&mut block, name, value);
    }
    if let Some(target) = case.target {
        field(&mut block, ":authority", target);
    }
    for host in &case.hosts {
        field(&mut block, "host", host);
    }
    for origin in &case.origins {
        field(&mut block, "origin", origin);
    }
    let mut request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(&mut request, SETTINGS, 0, 0, &[]);
    frame(&mut request, HEADERS, END, 1, &block);
    socket.write_all(&request).await.unwrap();
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut body = vec![0; usize::try_from(length).unwrap()];
        socket.read_exact(&mut body).await.unwrap();
        match head[3] {
            HEADERS => return status(&body),
            // A malformed request is an error of its stream, which counts as a refusal.
            RST_STREAM => return 400,
            _ => {}
        }
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, body: &[u8]) {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    out.extend(&length[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(body);
}

/// A literal that is not added to the table (RFC 7541, 6.2.2).
fn field(out: &mut Vec<u8>, name: &str, value: &str) {
    out.push(0);
    for text in [name, value] {
        assert!(text.len() < 127);
        out.push(u8::try_from(text.len()).unwrap());
        out.extend(text.as_bytes());
    }
}

/// The status at the start of a block: an index of the static table, or a literal of three digits, which may be
/// Huffman-coded (5 bits for 0 to 2, 6 for the others).
fn status(block: &[u8]) -> u16 {
    match block {
        [0x88, ..] => 200,
        [0x8c, ..] => 400,
        [0x8d, ..] => 404,
        [0x8e, ..] => 500,
        [0x48, 3, digits @ ..] => std::str::from_utf8(&digits[..3]).unwrap().parse().unwrap(),
        [0x48, length, coded @ ..] => {
            let bits: Vec<u8> = coded[..usize::from(length & 0x7f)]
                .iter()
                .flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1))
                .collect();
            let number = |bits: &[u8]| bits.iter().fold(0_u16, |sum, bit| sum * 2 + u16::from(*bit));
            let (mut at, mut status) = (0, 0);
            for _ in 0..3 {
                let short = number(&bits[at..at + 5]);
                let digit = if short <= 2 { short } else { number(&bits[at..at + 6]) - 0x19 + 3 };
                at += if short <= 2 { 5 } else { 6 };
                status = status * 10 + digit;
            }
            status
        }
        other => panic!("{other:02x?}"),
    }
}
