//! The client with servers that do what no specification says.
//!
//! # What this file holds
//!
//! A server that a test writes by hand, which answers each request with any bytes; redirects, which are followed with
//! method and body, within limits, and without credentials to other servers; and requests that a server refuses for
//! now.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod answers;
mod lost_sessions;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::poll_immediate;
use rescind_core::dialect::{ACP, Dialect, MCP, MCP_2026, Role};
use rescind_core::{
    CallContext, CloseReason, Deviation, ErrorObject, Outcome, Peer, Router, Transport as _, TransportError,
    TransportEvent,
};
use rescind_http::{AcpTransport, Authorization, HttpClient, StatelessTransport, StreamableTransport};
use rescind_testkit::support::{Serving, frames, in_time};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    headers: HashMap<String, String>,
    pub(crate) body: Value,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The method of its message, or that of the request.
    pub(crate) fn what(&self) -> &str {
        self.body["method"].as_str().unwrap_or(&self.method)
    }

    pub(crate) fn is_request(&self) -> bool {
        self.body["id"].is_number() && self.body["method"].is_string()
    }
}

/// A server until it is dropped.
pub(crate) struct RawServer {
    pub(crate) url: String,
    pub(crate) seen: mpsc::UnboundedReceiver<Asked>,
    all: Arc<Mutex<Vec<Asked>>>,
    /// Allows one response that was [`held`] to be sent.
    pub(crate) gate: Arc<Notify>,
    _serving: Serving,
}

impl RawServer {
    /// Answers each request with what this function returns, and closes the connection. `None`: it is never answered.
    pub(crate) async fn start(answer: impl Fn(&Asked) -> Option<String> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let (saw, seen) = mpsc::unbounded_channel();
        let all = Arc::new(Mutex::new(Vec::new()));
        let (answer, log) = (Arc::new(answer), Arc::clone(&all));
        let gate = Arc::new(Notify::new());
        let held = Arc::clone(&gate);
        let serving = Serving::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, log, saw) = (Arc::clone(&answer), Arc::clone(&log), saw.clone());
                let gate = Arc::clone(&held);
                tokio::spawn(async move { serve(stream, &*answer, &log, &saw, &gate).await });
            }
        });
        Self { url, seen, all, gate, _serving: serving }
    }

    /// All requests until now.
    pub(crate) fn all(&self) -> Vec<Asked> {
        self.all.lock().unwrap().clone()
    }

    /// The messages with this method until now.
    pub(crate) fn count(&self, what: &str) -> usize {
        self.all().iter().filter(|asked| asked.what() == what).count()
    }

    /// Waits for the next request with this method.
    pub(crate) async fn next(&mut self, what: &str) -> Asked {
        loop {
            let asked = in_time(what, self.seen.recv()).await.unwrap();
            if asked.what() == what {
                return asked;
            }
        }
    }
}

async fn serve(
    stream: TcpStream,
    answer: &(impl Fn(&Asked) -> Option<String> + Sync),
    log: &Mutex<Vec<Asked>>,
    saw: &mpsc::UnboundedSender<Asked>,
    gate: &Notify,
) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let (mut line, mut headers) = (String::new(), HashMap::new());
    stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
    let mut first = line.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let mut body = vec![0; headers.get("content-length").map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await.ok()?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let asked = Asked { method, path, headers, body };
    log.lock().unwrap().push(asked.clone());
    let answer = answer(&asked);
    let _ = saw.send(asked);
    let Some(text) = answer else { return std::future::pending().await };
    let text = match text.strip_prefix(HELD) {
        None => text,
        Some(text) => {
            gate.notified().await;
            text.to_owned()
        }
    };
    if let Some(beginning) = text.strip_suffix('\0') {
        // The response begins and does not end.
        stream.get_mut().write_all(beginning.as_bytes()).await.ok()?;
        return std::future::pending().await;
    }
    stream.get_mut().write_all(text.as_bytes()).await.ok()?;
    stream.get_mut().shutdown().await.ok()?;
    // Unread data would reset the connection.
    let mut rest = [0; 64];
    while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {}
    Some(())
}

const HELD: &str = "held ";

/// This response, when the gate of the server opens.
pub(crate) fn held(response: &str) -> String {
    format!("{HELD}{response}")
}

/// A response with these lines of its head.
pub(crate) fn response(status: &str, headers: &[&str], body: &str) -> String {
    let mut head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n", body.len());
    for header in headers {
        let _ = write!(head, "{header}\r\n");
    }
    format!("{head}\r\n{body}")
}

pub(crate) const JSON: &str = "Content-Type: application/json";
pub(crate) const EVENTS: &str = "Content-Type: text/event-stream";

pub(crate) fn answer(asked: &Asked, result: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": asked.body["id"], "result": result}).to_string()
}

pub(crate) fn result(asked: &Asked, result: &Value) -> String {
    response("200 OK", &[JSON], &answer(asked, result))
}

/// The answer to `initialize`, which opens this session.
pub(crate) fn opened(asked: &Asked, session: &str) -> String {
    opened_with(asked, session, "2025-11-25")
}

pub(crate) fn opened_with(asked: &Asked, session: &str, revision: &str) -> String {
    let result = json!({"protocolVersion": revision, "capabilities": {}, "serverInfo": {"name": "raw", "version": "1"}});
    response("200 OK", &[JSON, &format!("Mcp-Session-Id: {session}")], &answer(asked, &result))
}

/// The answers of a server without faults: `initialize` opens the session `one`, each other request gets its params.
pub(crate) fn well(asked: &Asked) -> String {
    match asked.what() {
        "initialize" => opened(asked, "one"),
        _ if asked.is_request() => result(asked, &asked.body["params"]),
        "DELETE" => response("204 No Content", &[], ""),
        "GET" => response("405 Method Not Allowed", &[], ""),
        _ => response("202 Accepted", &[], ""),
    }
}

/// A client of MCP, the errors of its calls, and what its server did against its protocol.
pub(crate) struct Client {
    pub(crate) peer: Peer,
    pub(crate) errors: mpsc::UnboundedReceiver<String>,
    pub(crate) deviations: mpsc::UnboundedReceiver<String>,
}

impl Client {
    /// A client that has shaken hands.
    pub(crate) async fn open(url: &str) -> Self {
        Self::with(StreamableTransport::new(HttpClient::new(url).unwrap())).await
    }

    pub(crate) async fn with(transport: StreamableTransport) -> Self {
        let client = Self::connect(transport, MCP).await;
        client.shake_hands().await;
        client
    }

    pub(crate) async fn connect(transport: impl rescind_core::Transport, dialect: Dialect) -> Self {
        let (failed, errors) = mpsc::unbounded_channel();
        let (deviated, deviations) = mpsc::unbounded_channel();
        let router = Router::new().method("answer", |_: CallContext, value: Value| async move { Ok(value) });
        let peer = Peer::builder(dialect)
            .serve(router)
            .role(Role::Client)
            .on_call_failure(move |error: &TransportError| drop(failed.send(error.source.to_string())))
            .on_deviation(move |report| drop(deviated.send(report.to_string())))
            .connect(transport)
            .await
            .unwrap();
        Self { peer, errors, deviations }
    }

    pub(crate) async fn shake_hands(&self) {
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
        in_time("the handshake", self.peer.call::<_, Value>("initialize", &hello)).await.unwrap();
        in_time("a notification", self.peer.notify("notifications/initialized", &json!({}))).await.unwrap();
    }

    pub(crate) async fn outcome(&self, method: &str) -> Outcome<Value> {
        let call = self.peer.call::<_, Value>(method, &json!({"n": 1})).no_timeout().start().unwrap();
        in_time(method, call.outcome()).await
    }

    /// Calls a method that works.
    pub(crate) async fn works(&self) {
        let outcome = self.outcome("echo").await;
        assert!(matches!(&outcome, Outcome::Completed(value) if *value == json!({"n": 1})), "{outcome:?}");
    }

    /// Calls a method whose call fails alone, and returns why.
    pub(crate) async fn fails(&mut self, method: &str) -> String {
        let outcome = self.outcome(method).await;
        assert!(matches!(outcome, Outcome::Disconnected { .. }), "{method}: {outcome:?}");
        in_time("the reason", self.errors.recv()).await.unwrap()
    }

    /// The error that answers a call.
    pub(crate) async fn error(&self, method: &str) -> ErrorObject {
        match self.outcome(method).await {
            Outcome::Failed(error) => error,
            other => panic!("{method}: {other:?}"),
        }
    }
}

fn moved(status: &str, location: &str) -> String {
    response(status, &[&format!("Location: {location}")], "<a>moved</a>")
}

#[tokio::test]
async fn a_redirect_is_followed_with_method_and_body() {
    for status in ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"] {
        for location in ["/mcp/", "mcp/", "//HOST/mcp/", "http://HOST/mcp/", "./mcp/"] {
            let mut server = RawServer::start(move |asked| match &*asked.path {
                "/mcp" => {
                    let location = location.replace("HOST", asked.header("host").unwrap());
                    Some(moved(status, &location))
                }
                _ => Some(well(asked)),
            })
            .await;
            let mut client = Client::open(&server.url).await;
            client.works().await;
            let is_permanent = status.starts_with("301") || status.starts_with("308");
            let get = server.next("GET").await;
            let path = if is_permanent { "/mcp/" } else { "/mcp" };
            assert_eq!((&*get.path, get.header("mcp-session-id")), (path, Some("one")));
            let deviation = in_time("a deviation", client.deviations.recv()).await.unwrap();
            assert!(deviation.contains("redirected"), "{deviation}");
            let posts: Vec<Asked> = server
                .all()
                .into_iter()
                .filter(|asked| asked.what() == "echo" && asked.path == "/mcp/")
                .collect();
            assert!(
                matches!(&posts[..], [post] if post.method == "POST" && post.body["params"] == json!({"n": 1}))
            );
            // After a permanent redirect the new address is asked at once.
            let first =
                server.all().iter().filter(|asked| asked.path == "/mcp" && asked.what() == "echo").count();
            assert_eq!(first, usize::from(!is_permanent), "{status}");
        }
    }
}

#[tokio::test]
async fn a_notification_that_is_not_sent_again_because_the_client_closes_is_no_fault_of_the_server() {
    let mut server = RawServer::start(|asked| match (asked.what(), &*asked.path) {
        ("told", "/mcp") => Some(held(&moved("307 Temporary", "/mcp/"))),
        _ => Some(well(asked)),
    })
    .await;
    let transport = StreamableTransport::new(HttpClient::new(&server.url).unwrap());
    let mut link = Box::new(transport).open().await.unwrap();
    frames::send(&mut link, r#"{"jsonrpc":"2.0","method":"told"}"#).await.unwrap();
    server.next("told").await;
    let mut close = pin!(poll_fn(|cx| link.tx.as_mut().poll_close(&CloseReason::Normal, cx)));
    assert!(poll_immediate(close.as_mut()).await.is_none(), "it waits for the response");
    server.gate.notify_one();
    in_time("the end", close).await.unwrap();
    while let Some(event) = in_time("an event", frames::event(&mut link)).await {
        let is_redirect =
            matches!(&event, Ok(TransportEvent::Deviation { deviation: Deviation::Redirect, .. }));
        assert!(is_redirect, "{event:?}");
    }
}

#[tokio::test]
async fn every_binding_follows() {
    let redirect = |asked: &Asked| match &*asked.path {
        "/mcp" => Some(moved("307 Temporary", "/mcp/")),
        _ => Some(well(asked)),
    };
    let server = RawServer::start(redirect).await;
    let transport = StatelessTransport::new(HttpClient::new(&server.url).unwrap());
    Client::connect(transport, MCP_2026).await.works().await;
    let server = RawServer::start(redirect).await;
    let transport = AcpTransport::new(HttpClient::new(&server.url).unwrap()).http1();
    let client = Client::connect(transport, ACP).await;
    in_time("a call", client.peer.call::<_, Value>("initialize", &json!({"n": 1}))).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_followed_ends_the_call_with_its_reason() {
    for (location, why) in [
        ("file:///etc/passwd", "neither http nor https"),
        ("ftp://127.0.0.1/mcp", "neither http nor https"),
        ("javascript:alert(1)", "neither http nor https"),
        ("http://user:secret@127.0.0.1/", "user name"),
        ("http://", "its host is not valid"),
        ("/a", "go in a circle"),
        ("/mcp", "go in a circle"),
        ("/0", "too many redirects"),
    ] {
        let server = RawServer::start(move |asked| match (asked.what(), &*asked.path) {
            ("work", "/mcp") => Some(moved("307 Temporary", location)),
            ("work", "/a") => Some(moved("307 Temporary", "/b")),
            ("work", "/b") => Some(moved("307 Temporary", "/a")),
            ("work", path) => {
                let number: usize = path[1..].parse().unwrap();
                Some(moved("302 Found", &format!("/{}", number + 1)))
            }
            _ => Some(well(asked)),
        })
        .await;
        let mut client = Client::open(&server.url).await;
        let said = client.fails("work").await;
        assert!(said.contains(why) && said.contains(&server.url), "{location}: {said}");
        assert!(!said.contains("secret"), "{said}");
        assert!(server.count("work") <= 6, "at most five redirects");
        client.works().await;
    }
    let server = RawServer::start(|asked| match asked.what() {
        "work" => Some(response("307 Temporary", &[], "")),
        _ => Some(well(asked)),
    })
    .await;
    let said = Client::open(&server.url).await.fails("work").await;
    assert!(said.contains("307 Temporary Redirect and no Location"), "{said}");
}

/// The body of a request is kept for further attempts only up to 1 MiB.
#[tokio::test]
async fn a_large_request_is_sent_once_and_its_error_says_so() {
    for (status, why) in [
        (moved("307 Temporary", "/other"), "redirects http://"),
        (response("404 Not Found", &[], ""), "did not know the session any more, which was opened again"),
    ] {
        let server = RawServer::start(move |asked| match asked.what() {
            "work" => Some(status.clone()),
            _ => Some(well(asked)),
        })
        .await;
        let mut client = Client::open(&server.url).await;
        client.works().await;
        let large = json!({"text": "x".repeat(1024 * 1024)});
        in_time("a call", client.peer.call::<_, Value>("work", &large)).await.unwrap_err();
        let said = in_time("the reason", client.errors.recv()).await.unwrap();
        assert!(said.contains(why) && said.contains("larger than 1 MiB"), "{said}");
        assert_eq!(server.count("work"), 1);
        client.works().await;
    }
}

#[tokio::test]
async fn another_server_gets_no_credentials() {
    let other = RawServer::start(|asked| Some(well(asked))).await;
    let to = other.url.clone();
    let server = RawServer::start(move |asked| match asked.what() {
        "echo" => Some(moved("308 Permanent", &to)),
        _ => Some(well(asked)),
    })
    .await;
    let authorization = Authorization::new("Bearer secret").unwrap();
    let http = HttpClient::new(&server.url).unwrap().authorization(&authorization);
    let http = http.header("X-Api-Key", "secret").unwrap().header("Cookie", "a=b").unwrap();
    let client = Client::with(StreamableTransport::new(http)).await;
    client.works().await;
    client.works().await;
    let asked = other.all();
    assert_eq!(asked.len(), 2);
    for asked in asked {
        let names = ["authorization", "cookie", "x-api-key", "mcp-session-id"];
        assert!(names.iter().all(|name| asked.header(name).is_none()), "{asked:?}");
        assert_eq!(
            asked.header("host"),
            Some(other.url.trim_start_matches("http://").trim_end_matches("/mcp"))
        );
    }
    for asked in server.all() {
        assert_eq!(
            (asked.header("authorization"), asked.header("cookie")),
            (Some("Bearer secret"), Some("a=b"))
        );
    }
}

#[tokio::test]
async fn the_id_of_a_session_goes_only_to_the_server_that_opened_it() {
    for status in ["307 Temporary", "308 Permanent"] {
        let mut other = RawServer::start(|asked| match asked.what() {
            "initialize" => Some(opened(asked, "two")),
            _ => Some(well(asked)),
        })
        .await;
        let to = other.url.clone();
        let server = RawServer::start(move |_| Some(moved(status, &to))).await;
        let client = Client::open(&server.url).await;
        client.works().await;
        other.next("GET").await;
        client.peer.shutdown(std::time::Duration::ZERO).await;
        other.next("DELETE").await;
        for asked in other.all().iter().filter(|asked| asked.what() != "initialize") {
            assert_eq!(asked.header("mcp-session-id"), Some("two"), "{asked:?}");
        }
        assert!(server.all().iter().all(|asked| asked.header("mcp-session-id").is_none()));
    }
}

/// The new server refuses a request without its own session, with either status that MCP has for it.
#[tokio::test]
async fn a_session_whose_server_moves_to_another_is_opened_again_there() {
    for refusal in ["400 Bad Request", "404 Not Found"] {
        let other = RawServer::start(move |asked| match (asked.what(), asked.header("mcp-session-id")) {
            ("initialize", None) => Some(opened(asked, "two")),
            (_, Some("two")) => Some(well(asked)),
            _ => {
                let error =
                    json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "no session"}});
                Some(response(refusal, &[JSON], &error.to_string()))
            }
        })
        .await;
        let to = other.url.clone();
        let has_moved = Arc::new(AtomicUsize::new(0));
        let moves = Arc::clone(&has_moved);
        let server = RawServer::start(move |asked| match moves.load(Ordering::SeqCst) {
            0 => Some(well(asked)),
            _ => Some(moved("308 Permanent", &to)),
        })
        .await;
        let client = Client::open(&server.url).await;
        client.works().await;
        has_moved.store(1, Ordering::SeqCst);
        client.works().await;
        client.works().await;
        assert!(other.all().iter().all(|asked| asked.header("mcp-session-id") != Some("one")), "{refusal}");
        assert_eq!(
            server.all().iter().filter(|asked| asked.header("mcp-session-id") == Some("two")).count(),
            0
        );
    }
}

/// A refusal that names the request is its answer, and says nothing about the session.
#[tokio::test]
async fn an_error_of_another_server_for_a_request_is_its_answer() {
    let other = RawServer::start(|asked| {
        let error =
            json!({"jsonrpc": "2.0", "id": asked.body["id"], "error": {"code": -32602, "message": "no"}});
        Some(response("400 Bad Request", &[JSON], &error.to_string()))
    })
    .await;
    let to = other.url.clone();
    let server = RawServer::start(move |asked| match asked.what() {
        "work" => Some(moved("307 Temporary", &to)),
        _ => Some(well(asked)),
    })
    .await;
    let client = Client::open(&server.url).await;
    assert_eq!(client.error("work").await.code.0, -32602);
    client.works().await;
    assert_eq!((other.count("work"), server.count("initialize")), (1, 1));
}

#[tokio::test]
async fn the_id_of_a_connection_of_acp_goes_only_to_the_server_that_opened_it() {
    let with_id = |asked: &Asked, id: &str| {
        well(asked).replacen("\r\n", &format!("\r\nAcp-Connection-Id: {id}\r\n"), 1)
    };
    let other = RawServer::start(move |asked| match asked.what() {
        "away" => Some(with_id(asked, "two")),
        _ => Some(well(asked)),
    })
    .await;
    let to = other.url.clone();
    let server = RawServer::start(move |asked| match asked.what() {
        "initialize" => Some(with_id(asked, "one")),
        "away" => Some(moved("307 Temporary", &to)),
        _ => Some(well(asked)),
    })
    .await;
    let transport = AcpTransport::new(HttpClient::new(&server.url).unwrap()).http1();
    let client = Client::connect(transport, ACP).await;
    for method in ["initialize", "away", "last"] {
        let params = json!({"sessionId": "s"});
        in_time(method, client.peer.call::<_, Value>(method, &params)).await.unwrap();
    }
    let ids = |asked: &Asked| {
        let known = |name| asked.header(name).map(ToOwned::to_owned);
        (known("acp-connection-id"), known("acp-session-id"))
    };
    let away: Vec<_> = other.all().iter().map(ids).collect();
    assert_eq!(away, [(None, None)]);
    let all = server.all();
    let last = all.iter().find(|asked| asked.what() == "last").unwrap();
    assert_eq!(ids(last), (Some("one".to_owned()), Some("s".to_owned())));
}

/// A cookie of another server is not kept for the first one.
#[tokio::test]
async fn another_server_sets_no_cookies() {
    let other = RawServer::start(|asked| {
        let sent = well(asked);
        Some(sent.replacen("\r\n", "\r\nSet-Cookie: evil=1\r\n", 1))
    })
    .await;
    let to = other.url.clone();
    let server = RawServer::start(move |asked| match asked.what() {
        "first" => Some(moved("307 Temporary", &to)),
        _ => Some(well(asked)),
    })
    .await;
    let transport = AcpTransport::new(HttpClient::new(&server.url).unwrap()).http1();
    let client = Client::connect(transport, ACP).await;
    for method in ["initialize", "first", "last"] {
        in_time(method, client.peer.call::<_, Value>(method, &json!({}))).await.unwrap();
    }
    assert!(server.all().iter().all(|asked| asked.header("cookie").is_none()));
    assert_eq!(other.count("first"), 1);
}

/// An address to which a server moved for good, and that is gone.
#[tokio::test]
async fn the_first_address_is_asked_again_when_the_new_one_is_gone() {
    let other = RawServer::start(|asked| Some(well(asked))).await;
    let to = std::sync::Mutex::new(Some(other.url.clone()));
    let server = RawServer::start(move |asked| {
        let to = if asked.what() == "echo" { to.lock().unwrap().take() } else { None };
        Some(to.map_or_else(|| well(asked), |to| moved("308 Permanent", &to)))
    })
    .await;
    let mut client = Client::open(&server.url).await;
    client.works().await;
    client.works().await;
    assert_eq!((other.count("echo"), server.count("echo")), (2, 1));
    let host = other.url.trim_start_matches("http://").trim_end_matches("/mcp").to_owned();
    drop(other);
    in_time("the port closes", async {
        while tokio::net::TcpStream::connect(&host).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    client.fails("echo").await;
    client.works().await;
}

/// No request is sent after its cancel: the redirect comes after that.
#[tokio::test]
async fn a_cancelled_call_is_not_redirected() {
    let mut server = RawServer::start(move |asked| match asked.what() {
        "work" => Some(held(&moved("307 Temporary", "/late"))),
        _ => Some(well(asked)),
    })
    .await;
    let transport = StreamableTransport::new(HttpClient::new(&server.url).unwrap()).exchanges(1);
    let client = Client::with(transport).await;
    let call = client.peer.call::<_, Value>("work", &json!({})).no_timeout().start().unwrap();
    server.next("work").await;
    call.canceller().cancel("enough");
    assert!(in_time("the end", call.outcome()).await.is_cancelled());
    server.next("notifications/cancelled").await;
    server.gate.notify_one();
    // With one request at a time, the next one is sent when nothing is left of the first.
    client.works().await;
    assert!(server.all().iter().all(|asked| asked.path != "/late"));
}

/// Refuses the first `times` requests of the method `echo`.
fn busy(status: &'static str, after: &'static str, times: usize) -> impl Fn(&Asked) -> Option<String> {
    let left = std::sync::atomic::AtomicUsize::new(times);
    move |asked| {
        use std::sync::atomic::Ordering::SeqCst;
        let is_busy =
            asked.what() == "echo" && left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        let busy = || response(status, &[&format!("Retry-After: {after}")], "busy");
        Some(if is_busy { busy() } else { well(asked) })
    }
}

#[tokio::test]
async fn a_request_is_sent_once_more_after_the_time_that_the_server_asks_for() {
    for status in ["429 Too Many Requests", "503 Service Unavailable"] {
        for after in ["0", "1", "Sun, 06 Nov 1994 08:49:37 GMT"] {
            let server = RawServer::start(busy(status, after, 1)).await;
            let client = Client::open(&server.url).await;
            let since = std::time::Instant::now();
            client.works().await;
            assert!(after != "1" || since.elapsed().as_millis() >= 1000);
            assert_eq!(server.count("echo"), 2);
        }
    }
    let server = RawServer::start(busy("503 No", "0", 1)).await;
    let transport = StatelessTransport::new(HttpClient::new(&server.url).unwrap());
    Client::connect(transport, MCP_2026).await.works().await;
}

#[tokio::test]
async fn a_second_refusal_a_long_time_or_none_ends_the_call() {
    for (status, after, asked, why) in [
        ("503 No", "0", 2, "asked again after 0 s"),
        ("429 No", "11", 1, "asked again after 11 s"),
        ("503 No", "99999999999999999999", 1, "asked again after 18446744073709551615 s"),
        ("503 No", "soon", 1, "503 Service Unavailable"),
        ("500 No", "0", 1, "500 Internal Server Error"),
    ] {
        let server = RawServer::start(busy(status, after, usize::MAX)).await;
        let mut client = Client::open(&server.url).await;
        let said = client.fails("echo").await;
        assert!(said.contains(why) && said.contains("busy"), "{said}");
        assert_eq!(server.count("echo"), asked, "{status} {after}");
    }
}

#[tokio::test]
async fn a_cancel_during_the_wait_ends_the_call_and_its_request() {
    let mut server = RawServer::start(busy("503 No", "10", 1)).await;
    let http = HttpClient::new(&server.url).unwrap();
    let client = Client::with(StreamableTransport::new(http).exchanges(1)).await;
    let call = client.peer.call::<_, Value>("echo", &json!({})).no_timeout().start().unwrap();
    server.next("echo").await;
    call.canceller().cancel("enough");
    assert!(in_time("the end", call.outcome()).await.is_cancelled());
    let since = std::time::Instant::now();
    // With one request at a time, the next one is sent when nothing is left of the first.
    client.works().await;
    assert!(since.elapsed().as_secs() < 8, "it has not waited");
    assert_eq!(server.count("echo"), 2);
    // A dropped call is cancelled too.
    let server = RawServer::start(busy("503 No", "10", 1)).await;
    let http = HttpClient::new(&server.url).unwrap();
    let client = Client::with(StreamableTransport::new(http).exchanges(1)).await;
    drop(client.peer.call::<_, Value>("echo", &json!({})).no_timeout().start().unwrap());
    client.works().await;
    // And a client that closes does not wait either.
    let mut server = RawServer::start(busy("503 No", "10", 1)).await;
    let client = Client::open(&server.url).await;
    in_time("a notification", client.peer.notify("echo", &json!({}))).await.unwrap();
    server.next("echo").await;
    let since = std::time::Instant::now();
    in_time("the end", client.peer.shutdown(std::time::Duration::ZERO)).await;
    assert!(since.elapsed().as_secs() < 8, "it has not waited");
}

/// A server that accepts this token, once it was used for something else than the handshake.
fn requires(token: &'static str) -> impl Fn(&Asked) -> Option<String> {
    move |asked| {
        let is_shown = asked.header("authorization") == Some(token) || asked.what() != "echo";
        Some(if is_shown { well(asked) } else { response("401 No", &["WWW-Authenticate: Bearer"], "who?") })
    }
}

fn changing(to: &'static str) -> (Authorization, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let authorization = Authorization::new("Bearer old").unwrap().refresh(move |authorization| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move { authorization.set(to).unwrap() }
    });
    (authorization, count)
}

#[tokio::test]
async fn a_request_that_is_refused_is_sent_once_more_with_new_credentials() {
    let (authorization, count) = changing("Bearer new");
    let server = RawServer::start(requires("Bearer new")).await;
    let http = HttpClient::new(&server.url).unwrap().authorization(&authorization);
    let client = Client::with(StreamableTransport::new(http)).await;
    let calls: Vec<_> = (0..50)
        .map(|n| client.peer.call::<_, Value>("echo", &json!({"n": n})).no_timeout().start().unwrap())
        .collect();
    for call in calls {
        let outcome = in_time("an answer", call.outcome()).await;
        assert!(matches!(outcome, rescind_core::Outcome::Completed(_)), "{outcome:?}");
    }
    assert_eq!(count.load(Ordering::SeqCst), 1, "one refresh for all");
    let (authorization, _) = changing("Bearer new");
    let http = HttpClient::new(&server.url).unwrap().authorization(&authorization);
    Client::connect(StatelessTransport::new(http), MCP_2026).await.works().await;
}

#[tokio::test]
async fn credentials_that_stay_or_are_refused_too_end_the_call() {
    for (to, times) in [("Bearer old", 1), ("Bearer other", 2)] {
        let (authorization, _) = changing(to);
        let server = RawServer::start(requires("Bearer new")).await;
        let http = HttpClient::new(&server.url).unwrap().authorization(&authorization);
        let mut client = Client::with(StreamableTransport::new(http)).await;
        let said = client.fails("echo").await;
        assert!(said.contains("401 Unauthorized") && said.contains("who?"), "{said}");
        assert!(!said.contains("Bearer"), "{said}");
        assert_eq!(server.count("echo"), times);
        authorization.set("Bearer new").unwrap();
        client.works().await;
    }
}

#[tokio::test]
async fn a_cancel_during_the_refresh_ends_the_request() {
    let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    let authorization = Authorization::new("Bearer old").unwrap().refresh(move |_| {
        begun.send(()).unwrap();
        std::future::pending()
    });
    let server = RawServer::start(requires("Bearer new")).await;
    let http = HttpClient::new(&server.url).unwrap().authorization(&authorization);
    let client = Client::with(StreamableTransport::new(http).exchanges(1)).await;
    let call = client.peer.call::<_, Value>("echo", &json!({})).no_timeout().start().unwrap();
    in_time("the refresh", has_begun.recv()).await;
    call.canceller().cancel("enough");
    assert!(in_time("the end", call.outcome()).await.is_cancelled());
    authorization.set("Bearer new").unwrap();
    let since = std::time::Instant::now();
    client.works().await;
    assert!(since.elapsed().as_secs() < 8, "it has not waited");
}
