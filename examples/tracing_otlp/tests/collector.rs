//! The example exports its spans to a collector of this test.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use serde_json::Value;

/// A span, as a collector receives it.
#[derive(Clone, Debug)]
struct Span {
    name: String,
    trace: String,
    id: String,
    parent: String,
    kind: u64,
    method: Option<String>,
}

/// Accepts exports over OTLP in JSON, and sends each body to the test.
fn collector() -> (String, mpsc::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (bodies, received) = mpsc::channel();
    thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            let bodies = bodies.clone();
            thread::spawn(move || while export(&connection, &bodies).is_some() {});
        }
    });
    (url, received)
}

/// Answers one request. `None`: the connection has ended.
fn export(mut connection: &TcpStream, bodies: &mpsc::Sender<Value>) -> Option<()> {
    let mut reader = BufReader::new(connection);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    assert_eq!(line.trim_end(), "POST /v1/traces HTTP/1.1");
    loop {
        line.clear();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        match line.trim_end().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", bytes)) => length = bytes.parse().unwrap(),
            Some(("content-type", media)) => assert_eq!(media, "application/json"),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    bodies.send(serde_json::from_slice(&body).unwrap()).ok()?;
    let answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    connection.write_all(answer.as_bytes()).ok()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn spans(export: &Value) -> Vec<Span> {
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let scopes = list(export, "resourceSpans").into_iter().flat_map(|of| list(&of, "scopeSpans"));
    let spans = scopes.flat_map(|of| list(&of, "spans"));
    spans
        .map(|span| Span {
            name: text(&span["name"]),
            trace: text(&span["traceId"]),
            id: text(&span["spanId"]),
            parent: text(&span["parentSpanId"]),
            kind: span["kind"].as_u64().unwrap_or_default(),
            method: list(&span, "attributes")
                .iter()
                .find(|attribute| attribute["key"] == "rpc.method")
                .map(|attribute| text(&attribute["value"]["stringValue"])),
        })
        .collect()
}

#[test]
fn the_spans_of_client_bridge_and_server_are_one_trace_with_the_right_parents() {
    const CLIENT: u64 = 3;
    const SERVER: u64 = 2;
    let (url, received) = collector();
    let ended = Command::new(env!("CARGO_BIN_EXE_tracing_otlp")).arg(&url).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let printed = String::from_utf8(ended.stdout).unwrap();
    let trace = printed.trim_end().strip_prefix("trace ").unwrap();
    assert_eq!(trace.len(), 32, "{printed}");

    // The example has ended, so its exports have been answered.
    let exported: Vec<Span> = received.try_iter().flat_map(|export| spans(&export)).collect();
    let ours: Vec<Span> = exported.iter().filter(|span| span.trace == trace).cloned().collect();
    assert_eq!(ours.len(), 5, "{exported:#?}");

    // The span of the program, the client's call, the bridge's request and call, the server's request.
    let mut parent = ours.iter().find(|span| span.name == "find a file").unwrap();
    assert_eq!(parent.parent, "", "it begins the trace");
    for (name, kind) in [
        ("rescind.call", CLIENT),
        ("rescind.request", SERVER),
        ("rescind.call", CLIENT),
        ("rescind.request", SERVER),
    ] {
        let children: Vec<&Span> = ours.iter().filter(|span| span.parent == parent.id).collect();
        let [child] = children[..] else { panic!("{} has {children:#?}", parent.name) };
        assert_eq!((child.name.as_str(), child.kind), (name, kind), "{ours:#?}");
        assert_eq!(child.method.as_deref(), Some("tools/call"));
        parent = child;
    }
}

#[test]
fn without_a_collector_the_example_ends_well() {
    let ended = Command::new(env!("CARGO_BIN_EXE_tracing_otlp")).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(ended.stdout.starts_with(b"trace "));
}
