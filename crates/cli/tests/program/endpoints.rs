//! The fixture as a server, and checks of a running peer: `pipe:`, `ws://` and `http://`.
#![cfg(unix)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Files, Fixture, assert_out_of_reach, check, output, text};

/// A pipe endpoint that no other test uses.
fn pipe() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("pipe:rescind-cli-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

#[test]
fn a_fixture_on_a_pipe_passes_the_check_and_ends_on_a_signal() {
    for (signal, framing) in [(Signal::TERM, "newline"), (Signal::INT, "content-length")] {
        let more = ["--framing", framing];
        let fixture = Fixture::listen("acp", &pipe(), &more);
        let file = PathBuf::from(fixture.endpoint.strip_prefix("pipe:").unwrap());
        assert!(file.exists());
        let report = check("acp", &fixture.endpoint, &more);
        assert_eq!(report["cells"][0]["wire"], "named-pipe");
        assert_eq!(fixture.end_by(signal), (Some(0), String::new()), "{signal:?}");
        assert!(!file.exists(), "the socket is left behind");
    }
}

#[test]
fn a_fixture_on_a_websocket_prints_its_port_and_passes_the_check() {
    let fixture = Fixture::listen("lsp", "ws://127.0.0.1:0/agent", &[]);
    let port = fixture.endpoint.strip_prefix("ws://127.0.0.1:").unwrap().strip_suffix("/agent").unwrap();
    assert_ne!(port.parse::<u16>().unwrap(), 0);
    let report = check("lsp", &fixture.endpoint, &[]);
    assert_eq!(report["cells"][0]["wire"], "websocket");
    assert_eq!(fixture.end_by(Signal::TERM), (Some(0), String::new()));
}

#[test]
fn a_fixture_of_the_old_transport_passes_the_check_where_it_is_named() {
    let named = ["--binding", "legacy-sse"];
    let alone = Fixture::listen("mcp", "http://127.0.0.1:0/old", &named);
    assert_eq!(check("mcp", &alone.endpoint, &named)["cells"][0]["wire"], "http-legacy-sse");
    assert_eq!(alone.end_by(Signal::TERM), (Some(0), String::new()));
}

#[test]
fn a_fixture_of_the_old_transport_passes_the_check_where_the_later_binding_finds_it() {
    let beside = Fixture::listen("mcp", "http://127.0.0.1:0/mcp", &["--legacy-sse"]);
    let sse = beside.endpoint.replace("/mcp", "/sse");
    assert_eq!(check("mcp", &sse, &[])["cells"][0]["wire"], "http-streamable");
    assert_eq!(beside.end_by(Signal::TERM), (Some(0), String::new()));
}

#[test]
fn a_websocket_of_acp_has_a_connection_id_in_its_upgrade_and_another_has_none() {
    let mut ids = Vec::new();
    for (dialect, has) in [("acp", true), ("acp", true), ("lsp", false)] {
        let fixture = Fixture::listen(dialect, "ws://127.0.0.1:0/acp", &[]);
        let host = fixture.endpoint.strip_prefix("ws://").unwrap().strip_suffix("/acp").unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
            Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
        write!(stream, "GET /acp HTTP/1.1\r\nHost: {host}\r\n{upgrade}\r\n").unwrap();
        let lines = BufReader::new(stream).lines().map(Result::unwrap);
        let head: Vec<_> =
            lines.take_while(|line| !line.is_empty()).map(|line| line.to_ascii_lowercase()).collect();
        assert!(head[0].contains("101"), "{head:?}");
        let id = head.iter().find_map(|line| line.strip_prefix("acp-connection-id: "));
        assert_eq!(id.is_some(), has, "{head:?}");
        let is_128_bits = |id: &str| id.len() == 32 && id.bytes().all(|digit| digit.is_ascii_hexdigit());
        assert!(id.is_none_or(is_128_bits), "{id:?}");
        ids.extend(id.map(str::to_owned));
    }
    assert_ne!(ids[0], ids[1]);
}

/// The origin of an id cannot be seen in the id, so this test reads the source.
#[test]
fn the_id_of_a_connection_comes_from_the_generator_of_the_operating_system() {
    let source = include_str!("../../src/open.rs");
    assert!(source.contains("getrandom::fill") && !source.contains("RandomState"));
}

#[test]
fn a_server_without_http_2_is_reported_if_the_dialect_needs_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let server = std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            if is_over.load(Ordering::SeqCst) {
                return;
            }
            let _written = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
            let _ended = stream.read_to_end(&mut Vec::new());
        }
    });
    let done = output(&["check", "--dialect", "acp", &format!("http://{address}/agent")]);
    assert_out_of_reach(&done, "does not speak HTTP/2");
    over.store(true, Ordering::SeqCst);
    drop(TcpStream::connect(address).unwrap());
    server.join().unwrap();
}

/// What a check says of a server that answers each request with this response and closes.
fn said_of(dialect: &str, response: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let server = std::thread::spawn(move || {
        let mut answering = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            if is_over.load(Ordering::SeqCst) {
                break;
            }
            answering.push(std::thread::spawn(move || {
                // Unread data would reset the connection.
                if read_request(&mut stream) {
                    let _written = stream.write_all(response.as_bytes());
                }
            }));
        }
        for each in answering {
            each.join().unwrap();
        }
    });
    let waits = ["--json", "--step-timeout", "2000"];
    let endpoint = format!("http://{address}/mcp");
    let done = output(&[&["check", "--dialect", dialect][..], &waits, &[&endpoint]].concat());
    over.store(true, Ordering::SeqCst);
    drop(TcpStream::connect(address).unwrap());
    server.join().unwrap();
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.trim_end().lines().count() == 1 && done.stdout.is_empty(), "{said}");
    said.to_owned()
}

/// Returns `false` if there was no request.
fn read_request(stream: &mut TcpStream) -> bool {
    let (mut read, mut byte) = (Vec::new(), [0]);
    while !read.ends_with(b"\r\n\r\n") {
        if !matches!(stream.read(&mut byte), Ok(1)) {
            return false;
        }
        read.push(byte[0]);
    }
    let head = String::from_utf8(read).unwrap().to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).is_ok()
}

#[test]
fn a_refusing_server_is_reported_with_its_status_without_a_wait() {
    for (response, why) in [
        (
            "HTTP/1.1 500 Oops\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 4\r\n\r\nboom",
            "the server answered with 500 Internal Server Error and text/html",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi",
            "the server answered with 200 OK and text/html, which does not answer the request",
        ),
        (
            "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
            "the server answered with 202 Accepted and no message",
        ),
        (
            "HTTP/1.1 401 No\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"error\":\"no\"}",
            "the server answered with 401 Unauthorized and application/json",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{\"id\":",
            "end of file before message length reached",
        ),
        ("", "connection closed before message completed"),
    ] {
        let said = said_of("mcp", response);
        let start = "no session could be opened: the answer to `initialize` cannot come: ";
        assert!(said.contains(start) && said.contains(why), "{said}");
    }
}

#[test]
fn a_stateless_server_that_does_not_answer_a_request_is_reported() {
    let said = said_of("mcp-2026", "HTTP/1.1 202 Accepted\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    let why = "cannot come: the server answered with 202 Accepted and no message";
    assert!(said.contains("the first quick request") && said.contains(why), "{said}");
}

/// docs/cli.md: exit code 2 for a peer that cannot be reached, and one sentence with the reason.

#[test]
fn the_next_fixture_takes_over_the_pipe_of_a_killed_one() {
    let endpoint = pipe();
    let first = Fixture::listen("abp", &endpoint, &[]);
    let file = PathBuf::from(first.endpoint.strip_prefix("pipe:").unwrap());
    assert_eq!(first.end_by(Signal::KILL).0, None);
    assert!(file.exists(), "a killed process removes nothing");
    let second = Fixture::listen("abp", &endpoint, &[]);
    check("abp", &second.endpoint, &[]);

    let third = output(&["fixture", "--dialect", "abp", "--listen", &endpoint]);
    assert_eq!(third.status.code(), Some(2));
    assert!(text(&third.stderr).contains("in use"), "{}", text(&third.stderr));
    check("abp", &second.endpoint, &[]);
    assert_eq!(second.end_by(Signal::TERM).0, Some(0));
}

#[test]
fn a_stopped_fixture_cancels_the_requests_of_every_connection() {
    use std::io::{BufRead as _, BufReader};
    let fixture = Fixture::listen("acp", &pipe(), &[]);
    let path = fixture.endpoint.strip_prefix("pipe:").unwrap();
    let mut lines: Vec<_> = (0..3)
        .map(|_| {
            let mut stream = std::os::unix::net::UnixStream::connect(path).unwrap();
            let wait = br#"{"jsonrpc":"2.0","id":1,"method":"test/wait","params":{}}"#;
            let echo = br#"{"jsonrpc":"2.0","id":2,"method":"test/echo","params":{"value":7}}"#;
            stream.write_all(&[&wait[..], b"\n", &echo[..], b"\n"].concat()).unwrap();
            let mut lines = BufReader::new(stream).lines();
            let first: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            assert_eq!(first["id"], 2, "{first}");
            lines
        })
        .collect();
    assert_eq!(fixture.end_by(Signal::TERM), (Some(0), String::new()));
    for lines in &mut lines {
        let answer: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::from(1), &Value::from(-32800)));
        assert!(lines.next().is_none());
    }
}

/// Posts one message over HTTP/1.1. Returns the connection and the head of the response.
fn post(endpoint: &str, headers: &str, body: &str) -> (TcpStream, String) {
    let (host, path) = endpoint.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let fixed = "Content-Type: application/json\r\nAccept: application/json, text/event-stream";
    let length = body.len();
    let text = format!(
        "POST /{path} HTTP/1.1\r\nHost: {host}\r\n{fixed}\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    (stream, String::from_utf8(head).unwrap())
}

/// Stops a fixture with a signal while this request runs, and returns the answer.
fn answered_at_the_end(fixture: Fixture, headers: &str, body: &str) -> String {
    let (mut stream, head) = post(&fixture.endpoint, headers, body);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(fixture.end_by(Signal::TERM), (Some(0), String::new()));
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_stopped_fixture_answers_running_requests_over_http_too() {
    let place = Files::new();
    let options = place.write("options.json", r#"{"limits": {"drain_deadline_ms": 50}}"#);
    let options = ["--options", options.as_str()];
    let fixture = Fixture::listen("lsp", "http://127.0.0.1:0/mcp", &options);
    let opening = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"processId":null,"rootUri":null,"capabilities":{}}}"#;
    let (_stream, head) = post(&fixture.endpoint, "", opening);
    let name = head.lines().find(|line| line.to_ascii_lowercase().starts_with("mcp-session-id")).unwrap();
    let wait = r#"{"jsonrpc":"2.0","id":2,"method":"test/wait","params":{}}"#;
    let answer = answered_at_the_end(fixture, &format!("{name}\r\n"), wait);
    assert!(answer.contains(r#""id":2"#) && answer.contains("-32803"), "{answer}");

    let flags = [&options[..], &["--binding", "stateless"]].concat();
    let fixture = Fixture::listen("mcp-2026", "http://127.0.0.1:0/mcp", &flags);
    let wait = r#"{"jsonrpc":"2.0","id":3,"method":"test/wait","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    let headers = "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: test/wait\r\n";
    let answer = answered_at_the_end(fixture, headers, wait);
    assert!(answer.contains(r#""id":3"#) && answer.contains("error"), "{answer}");
}

#[test]
fn wrong_usage_of_endpoints_exits_2_and_says_what_to_do() {
    let pipe = pipe();
    let ws = "ws://127.0.0.1:9/";
    for (arguments, word) in [
        (&["fixture", "--dialect", "acp", "--listen", "tcp://x:1"][..], "the endpoints are stdio"),
        (&["fixture", "--dialect", "acp", "--listen", "pipe:"], "does not name a pipe"),
        (&["fixture", "--dialect", "acp", "--listen", "ws://h:70000/"], "not a port"),
        (
            &["fixture", "--dialect", "acp", "--listen", ws, "--framing", "newline"],
            "--framing is for byte streams",
        ),
        (&["fixture", "--dialect", "acp", "--listen", &pipe, "--framing", "xml"], "content-length"),
        (&["fixture", "--dialect", "acp", "--listen", &pipe, "--binding", "acp"], "--binding is for http"),
        (&["fixture", "--dialect", "lsp", "--listen", "http://h:1/", "--binding", "acp"], "does not carry"),
        (&["fixture", "--dialect", "acp", "--listen", "http://h:1/", "--binding", "x"], "stateless"),
        (&["fixture", "--dialect", "acp", "--listen", "wss://127.0.0.1:0/"], "needs --tls-cert"),
        (
            &["fixture", "--dialect", "acp", "--listen", ws, "--tls-cert", "a", "--tls-key", "b"],
            "are for wss",
        ),
        (
            &[
                "fixture",
                "--dialect",
                "acp",
                "--listen",
                "wss://127.0.0.1:0/",
                "--tls-cert",
                "no.pem",
                "--tls-key",
                "k",
            ],
            "no.pem",
        ),
        (&["fixture", "--dialect", "acp", "--listen", ws, "--client-ca", "a"], "--client-ca is for wss"),
        (&["check", "--dialect", "acp", ws, "--tls-cert", "a", "--tls-key", "b"], "are for wss"),
        (
            &["check", "--dialect", "acp", "wss://127.0.0.1:9/", "--tls-key", "b"],
            "--tls-key needs --tls-cert",
        ),
        (&["check", "--dialect", "acp"], "ENDPOINT"),
        (&["check", "--dialect", "acp", "stdio"], "after `--`"),
        (&["check", "--dialect", "acp", &pipe, "--", "peer"], "cannot be used with"),
        (&["check", "--dialect", "acp", &pipe], "could not be reached"),
        (&["check", "--dialect", "acp", ws], "could not be reached"),
        (&["check", "--dialect", "acp", "http://127.0.0.1:9/"], "could not be reached"),
        (&["check", "--dialect", "acp", ws, "--tls-ca", "a"], "--tls-ca is for wss"),
        (&["check", "--dialect", "acp", "--step-timeout", "0", &pipe], "1..=600000"),
    ] {
        let reported = output(arguments);
        assert_eq!(reported.status.code(), Some(2), "{arguments:?}: {}", text(&reported.stderr));
        assert!(reported.stdout.is_empty(), "{arguments:?}");
        let error = text(&reported.stderr);
        assert!(error.contains(word), "{arguments:?}: {error}");
        assert!(!error.contains("panicked"), "{error}");
    }
}

// The fixture over `wss` and `https`, and checks of it: authorities, and certificates of clients.

#[test]
fn wss_needs_a_certificate_and_the_client_needs_an_authority() {
    let place = Files::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (
        place.write("cert.pem", &made.cert.pem()),
        place.write("key.pem", &made.signing_key.serialize_pem()),
    );
    let stranger = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let stranger = place.write("stranger.pem", &stranger.cert.pem());

    let tls = ["--tls-cert", &certificate, "--tls-key", &key];
    let fixture = Fixture::listen("mcp", "wss://127.0.0.1:0/", &tls);
    let endpoint = fixture.endpoint.replace("127.0.0.1", "localhost");
    check("mcp", &endpoint, &["--tls-ca", &certificate]);

    let done = output(&["check", "--dialect", "mcp", "--tls-ca", &stranger, &endpoint]);
    assert_eq!(done.status.code(), Some(2));
    let said = text(&done.stderr);
    assert!(said.contains("could not be reached") && said.contains("TLS"), "{said}");
    let (code, rest) = fixture.end_by(Signal::TERM);
    assert_eq!((code, rest.as_str()), (Some(0), ""));
}

#[test]
fn a_fixture_with_a_client_authority_serves_only_clients_with_its_certificate_over_wss() {
    serves_only_clients_with_a_certificate("wss://127.0.0.1:0/");
}

#[test]
fn a_fixture_with_a_client_authority_serves_only_clients_with_its_certificate_over_https() {
    serves_only_clients_with_a_certificate("https://127.0.0.1:0/mcp");
}

fn serves_only_clients_with_a_certificate(endpoint: &str) {
    let place = Files::new();
    let write = |name: &str, made: &rcgen::CertifiedKey<rcgen::KeyPair>| {
        let certificate = place.write(&format!("{name}.pem"), &made.cert.pem());
        (certificate, place.write(&format!("{name}.key"), &made.signing_key.serialize_pem()))
    };
    let made = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let (certificate, key) = write("server", &made("localhost"));
    // A certificate that is its own authority.
    let (ours, our_key) = write("client", &made("client"));
    let (foreign, foreign_key) = write("foreign", &made("client"));

    let tls = ["--tls-cert", &certificate, "--tls-key", &key, "--client-ca", &ours];
    let fixture = Fixture::listen("mcp", endpoint, &tls);
    let endpoint = fixture.endpoint.replace("127.0.0.1", "localhost");
    let trusting = ["--tls-ca", &certificate];
    check("mcp", &endpoint, &[&trusting[..], &["--tls-cert", &ours, "--tls-key", &our_key]].concat());
    for shown in [&[][..], &["--tls-cert", &foreign, "--tls-key", &foreign_key]] {
        let command = ["check", "--dialect", "mcp", "--json", "--start-timeout", "5000", &endpoint];
        let done = output(&[&command[..], &trusting, shown].concat());
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{endpoint} {shown:?}: {said}");
        assert!(
            said.contains("no session could be opened") && said.trim_end().lines().count() == 1,
            "{said}"
        );
        assert!(done.stdout.is_empty(), "{}", text(&done.stdout));
    }
    assert_eq!(fixture.end_by(Signal::TERM).0, Some(0));
}

#[test]
fn https_trusts_the_systems_authorities_by_default() {
    let place = Files::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = place.write("cert.pem", &made.cert.pem());
    let key = place.write("key.pem", &made.signing_key.serialize_pem());
    let stranger = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let stranger = place.write("stranger.pem", &stranger.cert.pem());

    let fixture =
        Fixture::listen("mcp", "https://127.0.0.1:0/mcp", &["--tls-cert", &certificate, "--tls-key", &key]);
    let endpoint = fixture.endpoint.replace("127.0.0.1", "localhost");
    // The variable contains the path of the system's authorities.
    let check = |authorities: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_rescind"));
        command.args(["check", "--dialect", "mcp", &endpoint]).stdin(std::process::Stdio::null());
        command.env("SSL_CERT_FILE", authorities).env_remove("SSL_CERT_DIR").output().unwrap()
    };
    let trusting = check(&certificate);
    assert_eq!(trusting.status.code(), Some(0), "{}", text(&trusting.stderr));
    let wary = check(&stranger);
    assert_out_of_reach(&wary, "certificate");
    assert_eq!(fixture.end_by(Signal::TERM).0, Some(0));
}

#[test]
fn an_untrusted_server_counts_as_unreachable_in_every_binding() {
    let place = Files::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = place.write("cert.pem", &made.cert.pem());
    let key = place.write("key.pem", &made.signing_key.serialize_pem());
    let stranger = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let stranger = place.write("stranger.pem", &stranger.cert.pem());
    for dialect in ["mcp", "mcp-2026", "acp"] {
        let tls = ["--tls-cert", &certificate, "--tls-key", &key];
        let fixture = Fixture::listen(dialect, "https://127.0.0.1:0/agent", &tls);
        let endpoint = fixture.endpoint.replace("127.0.0.1", "localhost");
        let check = ["check", "--dialect", dialect, "--json", "--tls-ca"];
        assert_out_of_reach(&output(&[&check[..], &[&stranger, &endpoint]].concat()), "certificate");
        assert_eq!(fixture.end_by(Signal::TERM).0, Some(0));
        let gone = output(&[&check[..], &[&certificate, &endpoint]].concat());
        assert_out_of_reach(&gone, "refused");
    }
}
