//! Joins the spans of the driver with the traces of other programs.

use std::sync::Arc;

use crate::trace_context::TraceContext;

/// Joins the spans of a connection with the traces of other programs, for example through OpenTelemetry. Set it with
/// [`PeerBuilder::trace_propagator`](crate::PeerBuilder::trace_propagator).
///
/// A connection with a propagator reads the [`TraceContext`] of each request that it serves:
/// [`CallContext::trace_context`](crate::CallContext::trace_context). Each call has one too: that of its span, or else that of
/// the request whose [child](crate::CallBuilder::child_of) it is. A transport with headers for each message (HTTP) sends it as
/// `traceparent` and `tracestate`. The driver does not change params: a caller that wants its context in `_meta` writes it
/// there.
///
/// `()` is the propagator without spans: contexts are passed on as they came.
///
/// ```
/// use rescind_core::{CallContext, Peer, Router, TraceContext, dialect, memory_pair};
/// use serde_json::{Value, json};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = memory_pair();
/// let router = Router::new().method("trace", async |ctx: CallContext, _: Value| {
///     Ok(ctx.trace_context().map(TraceContext::traceparent))
/// });
/// let _server = Peer::builder(dialect::ACP).serve(router).trace_propagator(()).attach(server)?;
/// let peer = Peer::builder(dialect::ACP).attach(client)?;
///
/// let caused = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let found: String = peer.call("trace", &json!({"_meta": {"traceparent": caused}})).await?;
/// assert_eq!(found, caused);
/// # Ok(())
/// # }
/// ```
pub trait TracePropagator: Send + Sync {
    /// Makes the span that caused a request the parent of the request's span, which has not been entered. It must not
    /// block.
    fn set_parent(&self, span: &tracing::Span, parent: &TraceContext);

    /// The context of a call with this span. The span is disabled where the subscriber does not record it. `None`: the
    /// call begins no trace. It must not block.
    fn context(&self, span: &tracing::Span) -> Option<TraceContext>;
}

impl TracePropagator for () {
    fn set_parent(&self, _: &tracing::Span, _: &TraceContext) {}

    fn context(&self, _: &tracing::Span) -> Option<TraceContext> {
        None
    }
}

impl<P: TracePropagator + ?Sized> TracePropagator for Arc<P> {
    fn set_parent(&self, span: &tracing::Span, parent: &TraceContext) {
        (**self).set_parent(span, parent);
    }

    fn context(&self, span: &tracing::Span) -> Option<TraceContext> {
        (**self).context(span)
    }
}
