//! A server that a test writes by hand: it answers each request with any bytes.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use rescind_core::dialect::{Dialect, MCP, Role};
use rescind_core::{CallContext, ErrorObject, Outcome, Peer, Router, TransportError};
use rescind_http::{HttpClient, StreamableTransport};
use rescind_testkit::support::{Serving, in_time};
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
