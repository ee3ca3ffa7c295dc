//! The headers `traceparent` and `tracestate`, over each binding.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

use rescind_core::dialect::{ACP, Dialect, MCP, MCP_2026};
use rescind_core::{CallContext, Listener, Peer, Router, Server, TraceContext, TracePropagator, Transport};
use rescind_http::{
    Acp, AcpTransport, HttpClient, HttpListener, HttpServer, Stateless, StatelessTransport, Streamable,
    StreamableTransport,
};
use rescind_testkit::support::{Serving, in_time, mcp_meta};
use serde_json::{Value, json};

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
