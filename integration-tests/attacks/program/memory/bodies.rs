//! Bodies and frames that never end, that have no session, or that have sessions with long names.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Field, LARGE};
use crate::http2::{Http2, send_all};
use crate::in_time;
use crate::raw_stream::{Stream, request, tcp, websocket_head};
use crate::target::{Target, Wire};

const SOCKETS: usize = 30;
const STREAMS: usize = 60;
/// How many more bytes are announced than sent.
const MISSING: usize = 1000;
/// A stream that accepts nothing for this time accepts no more.
const STUCK: Duration = Duration::from_secs(4);

pub(super) async fn unfinished_frames(field: &mut Field) {
    let many = if field.target.wire == Wire::Stdio { 1 } else { SOCKETS };
    let part = vec![b' '; LARGE];
    let mut streams = Vec::new();
    for _ in 0..many {
        let mut stream = Stream::connect(&mut field.target).await;
        stream.initialize(field.target.dialect.name()).await;
        streams.push(stream);
    }
    let is_websocket = field.target.wire == Wire::WebSocket;
    let written = streams.iter_mut().map(|stream| async {
        if is_websocket {
            stream.writer.write(&websocket_head(0x81, LARGE + MISSING)).await?;
        }
        stream.writer.write(&part).await
    });
    join_all(written.map(|written| timeout(STUCK, written))).await;
    if field.target.wire == Wire::NamedPipe {
        // Without addresses each connection counts as a client. All of them together leave no room for another
        // client's new request.
        field.others_can_cancel().await;
    } else {
        field.others_are_served().await;
    }
    field.hold(streams);
}

pub(super) async fn unfinished(field: &mut Field) {
    let name = field.target.dialect.name();
    let mut client = Http2::connect(&field.target, 1 << 20).await;
    client.initialize(name).await;
    let part = Bytes::from(vec![b' '; LARGE]);
    let mut sockets = Vec::new();
    for number in 0..SOCKETS {
        let session: &[_] = if number % 2 == 0 { &client.session } else { &[] };
        let mut stream = tcp(&field.target).await;
        stream.write_all(head(&field.target, session, LARGE + MISSING).as_bytes()).await.unwrap();
        sockets.push(stream);
    }
    let written = sockets.iter_mut().map(|stream| timeout(STUCK, stream.write_all(&part)));
    let begun = (0..STREAMS).map(|_| {
        timeout(STUCK, async {
            let (response, mut stream) = client.begin("test/echo", LARGE + MISSING).await?;
            let sent = timeout(STUCK / 2, send_all(&mut stream, part.clone())).await;
            Ok::<_, h2::Error>((response, stream, sent))
        })
    });
    let (_, begun) = tokio::join!(join_all(written), join_all(begun));
    field.others_are_served().await;
    field.hold((sockets, begun, client));
}

/// The head of a POST over HTTP/1.1.
fn head(target: &Target, session: &[(&str, String)], length: usize) -> String {
    use std::fmt::Write as _;
    let mut head = format!(
        "POST /rpc HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {length}\r\n",
        target.address()
    );
    if target.wire == Wire::Stateless {
        head += "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: test/echo\r\n";
    }
    for (name, value) in session {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    head + "\r\n"
}

/// The status of the response, as soon as it arrives.
async fn status(stream: &mut TcpStream) -> u16 {
    let mut line = [0; 12];
    in_time("a status", stream.read_exact(&mut line)).await.unwrap();
    std::str::from_utf8(&line).unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

pub(super) async fn without_a_session(field: &mut Field) {
    let echo = request(1, "test/echo", &json!({"value": "x".repeat(LARGE)}));
    let mut sockets = Vec::new();
    for _ in 0..SOCKETS {
        let mut stream = tcp(&field.target).await;
        stream.write_all(head(&field.target, &[], echo.len()).as_bytes()).await.unwrap();
        assert_eq!(status(&mut stream).await, 413, "before a byte of the body is there");
        // The rest of the body is not read.
        let sent = timeout(STUCK / 2, stream.write_all(echo.as_bytes())).await;
        assert!(!matches!(sent, Ok(Ok(()))), "a body that was refused is read to its end");
        sockets.push(stream);
        if sockets.len() == SOCKETS / 2 {
            field.others_are_served().await;
        }
    }
    field.hold(sockets);
}

pub(super) async fn long_session_names(field: &mut Field) {
    const CONNECTIONS: usize = 4;
    const NAMES: usize = 1024;
    const LENGTH: usize = 60_000;
    for number in 0..CONNECTIONS {
        let mut client = Http2::connect(&field.target, 1 << 20).await;
        client.initialize("acp").await;
        for name in 0..NAMES {
            let name = format!("{name}-{}", "s".repeat(LENGTH));
            let prompt = request(1, "session/prompt", &json!({"sessionId": name, "prompt": []}));
            let mut session = client.session.clone();
            // The name is in the header and in the body, or only in the body. In the header it makes the head too
            // large.
            let in_header = number % 2 == 0;
            if in_header {
                session.push(("Acp-Session-Id", name));
            }
            let post = head(&field.target, &session, prompt.len()) + &prompt;
            // A refusal before the body is read ends the connection.
            let mut stream = tcp(&field.target).await;
            drop(stream.write_all(post.as_bytes()).await);
            let refused = if in_header { 431 } else { 400 };
            assert_eq!(status(&mut stream).await, refused, "a session's name of {LENGTH} bytes");
        }
        if number == CONNECTIONS / 2 {
            field.others_are_served().await;
        }
        field.hold(client);
    }
}
