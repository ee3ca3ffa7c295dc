//! A server with an auth hook, and a client that writes HTTP/1.1 or HTTP/2 by hand.

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rescind_core::dialect::{ACP, MCP, MCP_2026};
use rescind_core::{CallContext, Listener, Router, Server};
use rescind_http::HttpListener;
pub(crate) use rescind_testkit::support::in_time;
use rescind_testkit::support::{Serving, mcp_meta};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    Streamable,
    Stateless,
    Acp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Http {
    One,
    Two,
}

/// Every binding with both versions of HTTP.
pub(crate) const WAYS: [(Binding, Http); 6] = [
    (Binding::Streamable, Http::One),
    (Binding::Streamable, Http::Two),
    (Binding::Stateless, Http::One),
    (Binding::Stateless, Http::Two),
    (Binding::Acp, Http::One),
    (Binding::Acp, Http::Two),
];

/// A server that ends with the test.
pub(crate) struct Served {
    pub(crate) address: String,
    /// `started`, and how each handler of `wait` was cancelled.
    pub(crate) events: mpsc::UnboundedReceiver<&'static str>,
    _serving: Serving,
}

/// Serves a binding with a server that `set` configures.
macro_rules! served {
    ($binding:expr, $set:expr) => {{
        use crate::auth::support::{Binding, listen};
        match $binding {
            Binding::Streamable => listen(
                $set(rescind_http::HttpServer::new(rescind_http::Streamable::new()))
                    .bind("127.0.0.1:0")
                    .await,
            ),
            Binding::Stateless => listen(
                $set(rescind_http::HttpServer::new(rescind_http::Stateless::new())).bind("127.0.0.1:0").await,
            ),
            Binding::Acp => listen(
                $set(rescind_http::HttpServer::new(rescind_http::Acp::new())).bind("127.0.0.1:0").await,
            ),
        }
    }};
}
pub(crate) use served;

pub(crate) fn listen(listener: Result<HttpListener, rescind_core::TransportError>) -> Served {
    let listener = listener.unwrap();
    let address = listener.endpoint().0.split('/').nth(2).unwrap().to_owned();
    let (events_tx, events) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("initialize", |_: CallContext, _: Value| async {
            Ok(json!({"protocolVersion": 1, "capabilities": {}}))
        })
        .method("tools/list", |_: CallContext, _: Value| async { Ok(json!({"tools": []})) })
        .method("wait", move |ctx: CallContext, _: Value| {
            let events_tx = events_tx.clone();
            async move {
                let _ = events_tx.send("started");
                let cause = ctx.cancelled().await;
                let _ = events_tx.send(cause.kind().name());
                ctx.stopped::<Value>(cause)
            }
        });
    let server = Server::builder([MCP, MCP_2026, ACP]).serve(router).listen(listener);
    let serving = Serving::spawn(async move { server.run().await.unwrap() });
    Served { address, events, _serving: serving }
}

/// A connection to a server.
pub(crate) enum Client {
    One(hyper::client::conn::http1::SendRequest<Full<Bytes>>),
    Two(hyper::client::conn::http2::SendRequest<Full<Bytes>>),
}

/// An answer whose body is not read yet.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    body: Incoming,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Vec<&str> {
        self.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }

    /// The whole body. A stream has ended then.
    pub(crate) async fn text(self) -> String {
        let body = in_time("the end of the body", self.body.collect()).await.unwrap();
        String::from_utf8(body.to_bytes().to_vec()).unwrap()
    }
}

impl Client {
    pub(crate) async fn connect(address: &str, http: Http) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap(), http).await
    }

    pub(crate) async fn over<S>(stream: S, http: Http) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = TokioIo::new(stream);
        match http {
            Http::One => {
                let (client, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
                tokio::spawn(connection);
                Self::One(client)
            }
            Http::Two => {
                let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
                let (client, connection) = handshake.await.unwrap();
                tokio::spawn(connection);
                Self::Two(client)
            }
        }
    }

    pub(crate) async fn ask(&mut self, request: Request<Full<Bytes>>) -> Answer {
        let response = match self {
            Self::One(client) => {
                in_time("the connection", client.ready()).await.unwrap();
                in_time("an answer", client.send_request(request)).await.unwrap()
            }
            Self::Two(client) => in_time("an answer", client.send_request(request)).await.unwrap(),
        };
        let (head, body) = response.into_parts();
        Answer { status: head.status, headers: head.headers, body }
    }
}

/// A request with these headers in addition to those that the binding requires.
pub(crate) fn request(
    (binding, http): (Binding, Http),
    method: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> Request<Full<Bytes>> {
    let uri = match http {
        Http::One => "/agent?mode=test",
        Http::Two => "http://localhost/agent?mode=test",
    };
    let mut request = Request::builder().method(method).uri(uri);
    if http == Http::One {
        request = request.header("Host", "localhost");
    }
    let accepts = if method == "POST" { "application/json, text/event-stream" } else { "text/event-stream" };
    request = request.header("Accept", accepts);
    if method == "POST" {
        request = request.header("Content-Type", "application/json");
    }
    if binding == Binding::Stateless {
        let method = body["method"].as_str().unwrap_or_default();
        request = request.header("MCP-Protocol-Version", "2026-07-28").header("Mcp-Method", method);
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if method == "POST" { Bytes::from(body.to_string()) } else { Bytes::new() };
    request.body(Full::new(body)).unwrap()
}

/// A message of the binding.
pub(crate) fn message(binding: Binding, method: &str) -> Value {
    let params = match binding {
        Binding::Streamable => json!({"protocolVersion": "2025-11-25", "capabilities": {}}),
        Binding::Stateless => json!({"_meta": mcp_meta()}),
        Binding::Acp => json!({"protocolVersion": 1, "clientCapabilities": {}}),
    };
    json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
}

/// A request that the binding answers with 200 and without a session.
pub(crate) fn first(way: (Binding, Http), headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let method = match way.0 {
        Binding::Streamable | Binding::Acp => "initialize",
        Binding::Stateless => "tools/list",
    };
    request(way, "POST", headers, &message(way.0, method))
}

/// The header with the session that `first` opened, if the binding has sessions.
pub(crate) fn session(answer: &Answer) -> Option<(&'static str, String)> {
    let names = ["mcp-session-id", "acp-connection-id"];
    names.into_iter().find_map(|name| Some((name, answer.headers.get(name)?.to_str().ok()?.to_owned())))
}
