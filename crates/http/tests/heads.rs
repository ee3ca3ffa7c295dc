//! The heads of requests and responses.
//!
//! # When a response begins
//!
//! With its answer, or as an event stream before it. These tests use virtual time and no sockets.
//!
//! # Traces
//!
//! The headers `traceparent` and `tracestate`, over each binding.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use rescind_core::dialect::{ACP, Dialect, MCP, MCP_2026};
use rescind_core::{
    CallContext, Limits, Listener, Peer, Router, Server, TraceContext, TracePropagator, Transport,
};
use rescind_http::{
    Acp, AcpTransport, HttpClient, HttpListener, HttpServer, HttpService, Stateless, StatelessTransport,
    Streamable, StreamableTransport,
};
use rescind_testkit::support::{Serving, in_time, mcp_meta};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tower_service::Service;

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// The default delay for a request whose handler awaits nothing.
const LATEST: Duration = Duration::from_millis(10);
/// The default delay for a request whose handler awaits something, plus one tick of the timer.
const SOON: Duration = Duration::from_millis(2);

/// A server without sockets.
#[derive(Clone)]
struct Served {
    service: HttpService,
    session: Option<http::HeaderValue>,
}

impl Served {
    async fn new(service: HttpService, listener: rescind_http::HttpListener, dialect: Dialect) -> Self {
        let router = Router::new()
            .method("initialize", async |_: CallContext, _: Value| {
                Ok(json!({"protocolVersion": "2025-11-25", "capabilities": {}}))
            })
            .method("echo", async |_: CallContext, _: Value| Ok(1))
            .method("yields", |_: CallContext, _: Value| async {
                tokio::task::yield_now().await;
                Ok(1)
            })
            .method("sleeps", |_: CallContext, params: Value| async move {
                sleep(Duration::from_millis(params.get("ms").and_then(Value::as_u64).unwrap())).await;
                Ok(1)
            });
        let with_sessions = dialect.name() == "mcp";
        let mut limits = Limits::default();
        limits.max_running_handlers = 1;
        tokio::spawn(Server::builder([dialect]).serve(router).limits(limits).listen(listener).run());
        let mut served = Self { service, session: None };
        if with_sessions {
            let response = served.post(0, "initialize", 0).await;
            served.session = response.headers().get("mcp-session-id").cloned();
        }
        served
    }

    async fn streamable(binding: Streamable) -> Self {
        let (service, listener) = HttpServer::new(binding).mount();
        Self::new(service, listener, MCP).await
    }

    async fn stateless(binding: Stateless) -> Self {
        let (service, listener) = HttpServer::new(binding).mount();
        Self::new(service, listener, MCP_2026).await
    }

    async fn post(&mut self, id: u64, method: &str, ms: u64) -> http::Response<rescind_http::ResponseBody> {
        let params = json!({"ms": ms, "_meta": {VERSION: "2026-07-28", CAPABILITIES: {}}});
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        let request = http::Request::post("http://127.0.0.1/")
            .header("host", "127.0.0.1")
            .header("content-length", body.len())
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        let request = match &self.session {
            Some(session) => request.header("mcp-session-id", session),
            None if method == "initialize" => request,
            None => request.header("mcp-protocol-version", "2026-07-28").header("mcp-method", method),
        };
        self.service.call(request.body(Full::from(body)).unwrap()).await.unwrap()
    }

    /// Which kind of response is sent, and when.
    async fn head(&self, id: u64, method: &str, ms: u64) -> (String, Duration) {
        let begun = Instant::now();
        let response = self.clone().post(id, method, ms).await;
        let after = begun.elapsed();
        let kind = response.headers().get("content-type").unwrap().to_str().unwrap().to_owned();
        let status = response.status();
        assert!(status == 200, "{status}: {:?}", response.into_body().collect().await);
        (kind, after)
    }
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

async fn both() -> [Served; 2] {
    [Served::streamable(Streamable::new()).await, Served::stateless(Stateless::new()).await]
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_awaits_little_is_answered_in_one_piece() {
    for served in both().await {
        for (id, method) in [(1, "echo"), (2, "yields")] {
            assert_eq!(served.head(id, method, 0).await, (JSON.to_owned(), Duration::ZERO), "{method}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_head_of_a_handler_that_waits_does_not_wait_for_the_whole_delay() {
    for served in both().await {
        let (kind, after) = served.head(1, "sleeps", 600_000).await;
        assert_eq!(kind, EVENTS);
        assert!(after >= Duration::from_millis(1) && after <= SOON, "{after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_its_turn_keeps_the_usual_delay() {
    let [streamable, stateless] = both().await;
    for (served, wanted) in [(streamable, LATEST), (stateless, Duration::from_secs(1))] {
        let first = served.clone();
        let first = tokio::spawn(async move { first.clone().post(1, "sleeps", 1000).await });
        tokio::task::yield_now().await;
        let (_, after) = served.head(2, "sleeps", 1000).await;
        assert!(after >= wanted && after <= wanted + SOON, "{after:?}");
        first.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_delay_that_was_set_is_kept_whatever_the_handler_does() {
    let delay = Duration::from_secs(2);
    let streamable = Served::streamable(Streamable::new().stream_after(delay)).await;
    let stateless = Served::stateless(Stateless::new().stream_after(delay)).await;
    for served in [streamable, stateless] {
        let (kind, after) = served.head(1, "sleeps", 1000).await;
        assert!(kind == JSON && after < delay, "{kind} {after:?}");
        let (kind, after) = served.head(2, "sleeps", 10_000).await;
        assert!(kind == EVENTS && after >= delay && after <= delay + SOON, "{kind} {after:?}");
    }
}

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const ANOTHER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

/// Each call belongs to this trace.
struct Always(Option<TraceContext>);

impl TracePropagator for Always {
    fn set_parent(&self, _: &tracing::Span, _: &TraceContext) {}

    fn context(&self, _: &tracing::Span) -> Option<TraceContext> {
        self.0.clone()
    }
}

/// A server that answers with the trace that it read.
fn serve(dialect: Dialect, listener: HttpListener) -> (HttpClient, Serving) {
    let client = HttpClient::new(&listener.endpoint().to_string()).unwrap();
    let trace = |ctx: CallContext, _: Value| async move {
        let found = ctx.trace_context();
        let state = found.and_then(TraceContext::tracestate).unwrap_or_default();
        Ok(json!({"parent": found.map(TraceContext::traceparent), "state": state, "protocolVersion": 1}))
    };
    let router = Router::new().method("initialize", trace).method("trace", trace);
    let server = Server::builder([dialect]).serve(router).trace_propagator(()).listen(listener);
    (client, Serving::spawn(async move { drop(server.run().await) }))
}

/// What the server read of a request that belongs to this trace, with these params.
async fn read(
    dialect: &Dialect,
    transport: impl Transport,
    trace: Option<TraceContext>,
    params: &Value,
) -> (Option<String>, String) {
    let peer = Peer::builder([dialect.clone()]).trace_propagator(Always(trace));
    let peer = in_time("the connection", peer.connect(transport)).await.unwrap();
    if dialect.name() != MCP_2026.name() {
        in_time("the handshake", peer.call::<_, Value>("initialize", &json!({"protocolVersion": 1})))
            .await
            .unwrap();
    }
    let read: Value = in_time("the answer", peer.call("trace", params)).await.unwrap();
    (read["parent"].as_str().map(ToOwned::to_owned), read["state"].as_str().unwrap().to_owned())
}

/// Over one binding: the header, both, and neither.
async fn check<T: Transport>(dialect: Dialect, listener: HttpListener, transport: impl Fn(HttpClient) -> T) {
    let (client, _serving) = serve(dialect.clone(), listener);
    let read = async |trace: Option<TraceContext>, meta: Value| {
        let mut params = json!({"_meta": mcp_meta()});
        params["_meta"].as_object_mut().unwrap().extend(meta.as_object().unwrap().clone());
        read(&dialect, transport(client.clone()), trace, &params).await
    };
    let trace = |state| TraceContext::parse(PARENT, state);
    let expected = |parent: &str, state: &str| (Some(parent.to_owned()), state.to_owned());
    assert_eq!(read(None, json!({})).await, (None, String::new()));
    assert_eq!(read(trace(None), json!({})).await, expected(PARENT, ""));
    assert_eq!(read(trace(Some("a=1,b=2")), json!({})).await, expected(PARENT, "a=1,b=2"));
    let meta = json!({"traceparent": ANOTHER, "tracestate": "c=3"});
    assert_eq!(read(trace(Some("a=1")), meta).await, expected(ANOTHER, "c=3"), "two traces");
    let meta = json!({"traceparent": PARENT.replace("00f0", "00f1")});
    assert_eq!(read(trace(Some("a=1")), meta).await, expected(PARENT, "a=1"), "one trace");
}

#[tokio::test]
async fn the_trace_of_a_call_is_in_the_headers_of_streamable_http() {
    let listener = HttpServer::new(Streamable::new()).bind("127.0.0.1:0").await.unwrap();
    check(MCP, listener, StreamableTransport::new).await;
}

#[tokio::test]
async fn the_trace_of_a_call_is_in_the_headers_of_stateless_http() {
    let listener = HttpServer::new(Stateless::new()).bind("127.0.0.1:0").await.unwrap();
    check(MCP_2026, listener, StatelessTransport::new).await;
}

#[tokio::test]
async fn the_trace_of_a_call_is_in_the_headers_of_acps_http() {
    let listener = HttpServer::new(Acp::new()).bind("127.0.0.1:0").await.unwrap();
    check(ACP, listener, AcpTransport::new).await;
}

/// Headers of one request that no single caller can have written, and lists that are one.
#[test]
fn headers_are_one_context_or_none() {
    let headers = |lines: &[(&'static str, &str)]| {
        let mut headers = http::HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        TraceContext::of_headers(&headers)
    };
    assert_eq!(headers(&[("traceparent", PARENT), ("traceparent", PARENT)]), None);
    assert_eq!(headers(&[("tracestate", "a=1")]), None);
    assert_eq!(headers(&[("traceparent", "nonsense")]), None);
    assert_eq!(headers(&[("traceparent", "00-\u{e9}")]), None);
    let listed = headers(&[("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")]);
    assert_eq!(listed, TraceContext::parse(PARENT, Some("a=1,b=2")));
    let mut written = http::HeaderMap::new();
    listed.as_ref().unwrap().set_headers(&mut written);
    assert_eq!(TraceContext::of_headers(&written), listed);
    TraceContext::parse(PARENT, None).unwrap().set_headers(&mut written);
    assert_eq!(
        TraceContext::of_headers(&written).unwrap().tracestate(),
        None,
        "the earlier state is replaced"
    );
}
