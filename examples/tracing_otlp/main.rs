//! One trace over three hops: a client, a bridge and a server export their spans to an OpenTelemetry collector, over
//! OTLP.
//!
//! Run it with `cargo run -p rescind-example-tracing-otlp -- http://127.0.0.1:4318`, the address of a collector. It
//! prints the id of the trace. Without an address nothing is exported.

mod exporter;

use std::error::Error;
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider,
};
use rescind::bridge::{Bridge, Upstream};
use rescind::dialect::MCP;
use rescind::http::{HttpClient as Http, HttpServer, Streamable, StreamableTransport};
use rescind::transport::{Listener, Transport, TransportError};
use rescind::{CallContext, Peer, Router, Server, TraceContext, TracePropagator};
use serde_json::{Value, json};
use tracing::{Instrument, Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Joins the spans of Rescind with OpenTelemetry's traces.
struct OpenTelemetry;

impl TracePropagator for OpenTelemetry {
    fn set_parent(&self, span: &Span, parent: &TraceContext) {
        let (trace, id) = (TraceId::from_bytes(*parent.trace_id()), SpanId::from_bytes(*parent.span_id()));
        let state =
            parent.tracestate().and_then(|state| state.parse::<TraceState>().ok()).unwrap_or_default();
        let remote = SpanContext::new(trace, id, TraceFlags::new(parent.flags()), true, state);
        let _ = span.set_parent(Context::new().with_remote_span_context(remote));
    }

    fn context(&self, span: &Span) -> Option<TraceContext> {
        let context = span.context();
        let span = context.span().span_context().clone();
        let (trace, id) = (span.trace_id().to_bytes(), span.span_id().to_bytes());
        let found = TraceContext::new(trace, id, span.trace_flags().to_u8())?;
        Some(found.with_state(Some(&span.trace_state().header())))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let collector = std::env::args().nth(1);
    let provider = exporter::provider(collector.as_deref())?;
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("rescind"));
    tracing_subscriber::registry().with(layer).init();

    let router = Router::new()
        .method("initialize", async |_: CallContext, _: Value| Ok(json!({ "protocolVersion": "2025-11-25" })))
        .method("tools/call", async |_: CallContext, _: Value| Ok(json!({ "content": [] })));
    let listener = HttpServer::new(Streamable::new()).bind("127.0.0.1:0").await?;
    let server = Http::new(&listener.endpoint().to_string())?;
    let serving = Server::builder(MCP).serve(router).trace_propagator(OpenTelemetry).listen(listener);
    tokio::spawn(serving.run());

    let upstream = move || {
        let transport = Box::new(StreamableTransport::new(server.clone()));
        async move { Ok::<_, TransportError>(Upstream::new("the server", transport.open().await?)) }
    };
    let listener = HttpServer::new(Streamable::new()).bind("127.0.0.1:0").await?;
    let bridge = Http::new(&listener.endpoint().to_string())?;
    let bridging = Bridge::new(MCP)?.trace_propagator(OpenTelemetry).serve(upstream).listen(listener);
    tokio::spawn(bridging.run());

    let client = StreamableTransport::new(bridge);
    let client = Peer::builder(MCP).trace_propagator(OpenTelemetry).connect(client).await?;
    client.call::<_, Value>("initialize", &json!({ "protocolVersion": "2025-11-25" })).await?;
    let span = info_span!("find a file");
    let find = async { client.call::<_, Value>("tools/call", &json!({ "name": "find" })).await };
    find.instrument(span.clone()).await?;
    println!("trace {}", span.context().span().span_context().trace_id());
    drop(span);
    client.shutdown(Duration::from_secs(1)).await;
    tokio::task::spawn_blocking(move || provider.shutdown()).await??;
    Ok(())
}
