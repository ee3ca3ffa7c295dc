//! The spans that an operator sees.
#![cfg(feature = "tokio")]
#![expect(clippy::unwrap_used, reason = "the subscriber is part of the test")]

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use rescind_core::{CallContext, Peer, Router, TraceContext, TracePropagator, dialect, memory_pair};
use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps the fields of spans, by the span's name.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// The name of each span, by its id.
    names: Vec<&'static str>,
    fields: BTreeMap<(&'static str, String), String>,
    /// The events, each with its span.
    reported: Vec<(String, Option<&'static str>)>,
    open: usize,
}

impl Spans {
    fn fields_of(&self, span: &'static str) -> BTreeMap<String, String> {
        let seen = self.0.lock().unwrap();
        let fields = seen.fields.iter().filter(|((name, _), _)| *name == span);
        fields.map(|((_, field), value)| (field.clone(), value.clone())).collect()
    }

    fn visitor(&self, id: &Id) -> Fields<'_> {
        let place = usize::try_from(id.into_u64()).unwrap() - 1;
        let seen = self.0.lock().unwrap();
        let name = *seen.names.get(place).unwrap();
        Fields { spans: self, name }
    }

    /// Checks that an event was emitted once, in this span.
    fn assert_told(&self, event: &str, span: Option<&'static str>) {
        let reported = self.0.lock().unwrap().reported.clone();
        let under: Vec<_> =
            reported.iter().filter(|(reported, _)| reported == event).map(|(_, under)| *under).collect();
        assert_eq!(under, [span], "{event}: {reported:?}");
    }

    fn assert_fields(&self, span: &'static str, expected: &[(&str, &str)]) {
        let seen = self.fields_of(span);
        for (field, value) in expected {
            assert_eq!(seen.get(*field).map(String::as_str), Some(*value), "{span}: {seen:?}");
        }
    }
}

struct Fields<'a> {
    spans: &'a Spans,
    name: &'static str,
}

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let mut seen = self.spans.0.lock().unwrap();
        seen.fields.insert((self.name, field.name().to_owned()), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// An event: its message, followed by its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        write!(self.fields, ", {field} {value}").unwrap();
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => write!(self.fields, ", {name} {value:?}").unwrap(),
        }
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() || metadata.name().starts_with("rescind.")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = {
            let mut seen = self.0.lock().unwrap();
            seen.names.push(span.metadata().name());
            seen.open += 1;
            Id::from_u64(seen.names.len() as u64)
        };
        span.record(&mut self.visitor(&id));
        id
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        values.record(&mut self.visitor(id));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let under = event.parent().map(|id| self.visitor(id).name);
        self.0.lock().unwrap().reported.push((text.message + &text.fields, under));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    /// No span is cloned here, so each is closed once.
    fn try_close(&self, _: Id) -> bool {
        self.0.lock().unwrap().open -= 1;
        true
    }
}

#[tokio::test]
async fn the_spans_of_a_cancelled_request_have_its_cause_and_outcome_on_both_sides() {
    let spans = Spans::default();
    let _subscribed = tracing::subscriber::set_default(spans.clone());
    let (client, server) = memory_pair();
    let router = Router::new().method("work", |ctx: CallContext, _: Value| async move {
        ctx.try_notify("started", &json!({}))?;
        let cause = ctx.cancelled().await;
        ctx.stopped::<Value>(cause)
    });
    let server = Peer::builder(dialect::ACP).serve(router).attach(server).unwrap();
    let peer = Peer::builder(dialect::ACP).attach(client).unwrap();
    let call = peer
        .call::<_, Value>("work", &json!({}))
        .notifications_where(|notification| notification.method() == "started")
        .start()
        .unwrap();
    let stop = call.canceller();
    call.notifications().next().await;
    stop.cancel("a secret\nreason");
    assert!(call.outcome().await.is_cancelled());
    let asked = [("rpc.system.name", "jsonrpc"), ("rpc.method", "work"), ("jsonrpc.request.id", "1")];
    spans.assert_fields("rescind.request", &asked);
    spans.assert_fields("rescind.request", &[("cancel.source", "peer"), ("cancel.outcome", "cancelled")]);
    spans.assert_fields("rescind.call", &asked);
    spans.assert_fields("rescind.call", &[("cancel.source", "caller"), ("cancel.outcome", "cancelled")]);
    let request = "rpc.method work, jsonrpc.request.id 1";
    spans.assert_told("a call is cancelled, call 1, cancel.source caller", Some("rescind.call"));
    spans.assert_told("a call has ended, cancel.outcome cancelled", Some("rescind.call"));
    spans.assert_told(&format!("a request is cancelled, {request}, cancel.source peer"), None);
    spans.assert_told(&format!("a request is answered, {request}, cancel.outcome cancelled"), None);
    assert_eq!(server.stats().slots, 0);
    assert_eq!(spans.0.lock().unwrap().open, 0, "I3: a span is left open");
}

#[tokio::test]
async fn the_span_of_a_call_that_is_not_cancelled_records_no_cancel() {
    let spans = Spans::default();
    let _subscribed = tracing::subscriber::set_default(spans.clone());
    let (client, server) = memory_pair();
    let router = Router::new().method("echo", |_ctx: CallContext, value: Value| async move { Ok(value) });
    let _server = Peer::builder(dialect::ACP).serve(router).attach(server).unwrap();
    let peer = Peer::builder(dialect::ACP).attach(client).unwrap();
    let answer: Value = peer.call("echo", &json!([1])).await.unwrap();
    assert_eq!(answer, json!([1]));
    spans.assert_fields("rescind.call", &[("rpc.method", "echo"), ("jsonrpc.request.id", "1")]);
    let answered = "a request is answered, rpc.method echo, jsonrpc.request.id 1, cancel.outcome completed";
    spans.assert_told(answered, None);
    for span in ["rescind.call", "rescind.request"] {
        let seen = spans.fields_of(span);
        assert!(!seen.contains_key("cancel.source") && !seen.contains_key("cancel.outcome"), "{seen:?}");
    }
    assert_eq!(spans.0.lock().unwrap().open, 0, "I3: a span is left open");
}

/// Keeps the names of the spans that it is asked about.
#[derive(Clone, Default)]
struct Propagator(Arc<Mutex<Vec<String>>>);

impl Propagator {
    fn note(&self, what: &str, span: &tracing::Span, trace: &str) {
        let name = span.metadata().map_or("none", Metadata::name);
        self.0.lock().unwrap().push(format!("{what} {name} {trace}"));
    }
}

impl TracePropagator for Propagator {
    fn set_parent(&self, span: &tracing::Span, parent: &TraceContext) {
        self.note("parent of", span, &parent.traceparent());
    }

    fn context(&self, span: &tracing::Span) -> Option<TraceContext> {
        self.note("context of", span, "");
        None
    }
}

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[tokio::test]
async fn the_span_of_a_request_gets_the_parent_that_its_meta_names() {
    let spans = Spans::default();
    let _subscribed = tracing::subscriber::set_default(spans.clone());
    let (client, server) = memory_pair();
    let router = Router::new().method("trace", |ctx: CallContext, _: Value| async move {
        Ok(ctx.trace_context().map(TraceContext::traceparent))
    });
    let (near, far) = (Propagator::default(), Propagator::default());
    let server = Peer::builder(dialect::MCP).serve(router).trace_propagator(far.clone()).attach(server);
    let _server = server.unwrap();
    let peer = Peer::builder(dialect::MCP).trace_propagator(near.clone()).attach(client).unwrap();
    let trace = async |params: Value| peer.call::<_, Option<String>>("trace", &params).await.unwrap();
    assert_eq!(trace(json!({"_meta": {"traceparent": PARENT}})).await.as_deref(), Some(PARENT));
    assert_eq!(trace(json!({"_meta": {"traceparent": "00-no-trace-01"}})).await, None);
    assert_eq!(trace(json!({})).await, None);
    assert_eq!(*far.0.lock().unwrap(), [format!("parent of rescind.request {PARENT}")]);
    assert_eq!(*near.0.lock().unwrap(), ["context of rescind.call "; 3]);
}

#[tokio::test]
async fn without_a_propagator_no_trace_is_read() {
    // tracing asks the first thread that reaches an event whether anybody wants it. A thread without a subscriber would
    // say no for the tests beside this one.
    let _subscribed = tracing::subscriber::set_default(Spans::default());
    let (client, server) = memory_pair();
    let router = Router::new().method("trace", |ctx: CallContext, _: Value| async move {
        Ok(ctx.trace_context().map(TraceContext::traceparent))
    });
    let _server = Peer::builder(dialect::MCP).serve(router).attach(server).unwrap();
    let peer = Peer::builder(dialect::MCP).attach(client).unwrap();
    let params = json!({"_meta": {"traceparent": PARENT}});
    assert_eq!(peer.call::<_, Option<String>>("trace", &params).await.unwrap(), None);
}
