//! The spans an operator sees.

#![expect(clippy::unwrap_used, reason = "the subscriber is part of the test")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use rescind_core::{CallContext, Peer, Router, dialect, memory_pair};
use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps the fields of request spans.
#[derive(Clone, Default)]
struct Fields(Arc<Mutex<BTreeMap<String, String>>>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.lock().unwrap().insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.lock().unwrap().insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl Subscriber for Fields {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span()
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut self.clone());
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut self.clone());
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn the_span_of_a_cancelled_request_says_what_cancelled_it_and_how_it_ended() {
    let fields = Fields::default();
    let _subscribed = tracing::subscriber::set_default(fields.clone());
    let (client, server) = memory_pair();
    let router = Router::new().method("work", |ctx: CallContext, _: Value| async move {
        ctx.notify("started", &json!({}))?;
        let cause = ctx.cancelled().await;
        ctx.stopped::<Value>(cause)
    });
    let _server = Peer::builder(dialect::ACP).serve(router).attach(server).unwrap();
    let peer = Peer::builder(dialect::ACP).attach(client).unwrap();
    let call = peer.call::<_, Value>("work", &json!({})).start().unwrap();
    let mut started = call.notifications_where(|told| told.method() == "started");
    let stop = call.canceller();
    started.next().await;
    let _ = stop.cancel("a secret\nreason");
    assert!(call.outcome().await.is_cancelled());
    let seen = fields.0.lock().unwrap().clone();
    for (field, value) in [
        ("rpc.system.name", "jsonrpc"),
        ("rpc.method", "work"),
        ("jsonrpc.request.id", "1"),
        ("cancel.source", "peer"),
        ("cancel.outcome", "cancelled"),
    ] {
        assert_eq!(seen.get(field).map(String::as_str), Some(value), "{seen:?}");
    }
}
