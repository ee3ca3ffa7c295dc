//! A peer's text is one short, escaped line in the log, in events and in the spans around them.
#![cfg(feature = "tokio")]
#![expect(clippy::unwrap_used, reason = "the subscriber is part of the test")]

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use rescind_core::{CallContext, Peer, Router, dialect, memory_pair};
use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Writes lines as a terminal log does: an event's fields after those of its spans.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    spans: HashMap<u64, String>,
    entered: Vec<u64>,
    lines: Vec<String>,
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        // A log writes strings unchanged.
        write!(self.0, " {}={value}", field.name()).unwrap();
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut seen = self.0.lock().unwrap();
        let id = seen.spans.len() as u64 + 1;
        let mut fields = span.metadata().name().to_owned();
        span.record(&mut Fields(&mut fields));
        seen.spans.insert(id, fields);
        Id::from_u64(id)
    }

    fn record(&self, id: &Id, record: &Record<'_>) {
        let mut seen = self.0.lock().unwrap();
        let fields = seen.spans.get_mut(&id.into_u64()).unwrap();
        record.record(&mut Fields(fields));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut seen = self.0.lock().unwrap();
        let parent = event.parent().map(Id::into_u64).or_else(|| seen.entered.last().copied());
        let mut line = parent.and_then(|id| seen.spans.get(&id).cloned()).unwrap_or_default();
        event.record(&mut Fields(&mut line));
        seen.lines.push(line);
    }

    fn enter(&self, id: &Id) {
        self.0.lock().unwrap().entered.push(id.into_u64());
    }

    fn exit(&self, _: &Id) {
        self.0.lock().unwrap().entered.pop();
    }
}

/// Sends a request with this method and cancels it with this reason. A second request names a method without a
/// handler.
async fn cancelled(method: &str, reason: &str) {
    let (client, server) = memory_pair();
    let router = Router::new().method(method, |ctx: CallContext, _: Value| async move {
        ctx.try_notify("started", &json!({}))?;
        let cause = ctx.cancelled().await;
        tracing::info!("the handler's own words");
        ctx.stopped::<Value>(cause)
    });
    let _server = Peer::builder(dialect::MCP).serve(router).attach(server).unwrap();
    let peer = Peer::builder(dialect::MCP).attach(client).unwrap();
    let call = peer.call::<_, Value>(method, &json!({}));
    let call = call.notifications_where(|notification| notification.method() == "started").start().unwrap();
    call.notifications().next().await;
    let stop = call.canceller();
    stop.cancel(reason);
    assert!(call.outcome().await.is_cancelled());
    assert!(peer.call::<_, Value>(format!("{method} too"), &json!({})).await.is_err());
}

#[tokio::test]
async fn a_peers_text_is_one_short_line_in_the_log() {
    let evil = "tools/call\n2026-01-01 INFO all is well \u{1b}[2J\u{202e}";
    for (method, reason) in [(evil.to_owned(), evil.to_owned()), ("x".repeat(3 << 20), evil.repeat(1 << 16))]
    {
        let log = Lines::default();
        let subscribed = tracing::subscriber::set_default(log.clone());
        cancelled(&method, &reason).await;
        drop(subscribed);
        let seen = log.0.lock().unwrap();
        assert!(seen.lines.len() > 4 && seen.spans.len() > 2, "{:?} {:?}", seen.lines, seen.spans);
        for line in seen.lines.iter().chain(seen.spans.values()) {
            assert!(line.len() < 1024, "{} bytes: {:.200}", line.len(), line);
            assert!(!line.contains(|shown: char| shown.is_control() || shown == '\u{202e}'), "{line:?}");
        }
        let start: String = method.chars().take(10).collect();
        let reported =
            |what: &str| seen.lines.iter().any(|line| line.contains(what) && line.contains(&start));
        assert!(
            reported("a request is cancelled") && reported("the handler's own words"),
            "{:?}",
            seen.lines
        );
    }
}

/// MCP, "Cancellation": "Implementations SHOULD log cancellation reasons for debugging".
#[tokio::test]
async fn the_reason_of_a_cancel_is_logged() {
    let log = Lines::default();
    let subscribed = tracing::subscriber::set_default(log.clone());
    cancelled("tools/call", "the user pressed \u{1b}[31mstop").await;
    drop(subscribed);
    let seen = log.0.lock().unwrap();
    let line = seen.lines.iter().find(|line| line.contains("a request is cancelled")).unwrap();
    assert!(line.contains(r"cancel.reason=the user pressed \u{1b}[31mstop"), "{line}");
}

/// The paused clock moves only when the handler advances it, so this test does not depend on the machine.
#[cfg(debug_assertions)]
#[tokio::test(start_paused = true)]
async fn a_debug_build_warns_about_a_quick_handler_that_computes_for_long() {
    use std::time::Duration;
    for (micros, warns) in [(0, false), (1000, false), (1001, true)] {
        let log = Lines::default();
        let subscribed = tracing::subscriber::set_default(log.clone());
        let (client, server) = memory_pair();
        // The first poll of `advance` moves the clock.
        let router = Router::new().quick("compute", move |_: CallContext, _: Value| async move {
            tokio::time::advance(Duration::from_micros(micros)).await;
            Ok(json!({}))
        });
        let _server = Peer::builder(dialect::MCP).serve(router).attach(server).unwrap();
        let peer = Peer::builder(dialect::MCP).attach(client).unwrap();
        peer.call::<_, Value>("compute", &json!({})).await.unwrap();
        drop(subscribed);
        let seen = log.0.lock().unwrap();
        let is_it =
            |line: &&String| line.contains("the first poll of a quick handler") && line.contains("compute");
        assert_eq!(
            seen.lines.iter().filter(is_it).count(),
            usize::from(warns),
            "{micros} us: {:?}",
            seen.lines
        );
    }
}
