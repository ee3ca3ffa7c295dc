//! The reason of a cancel is text from the peer. It is always shown as one short line.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use libtest_mimic::Trial;
use rescind::dialect::{MCP, Role};
use rescind::{CallContext, Peer, Router, memory_pair};
use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::{in_time, trial};

/// In bytes.
const LINE: usize = 1024;
const HUGE: usize = 1 << 20;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("reasons::each_is_one_log_line_under_a_kilobyte".into(), one_line)]
}

/// Each event as a line, as in a log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line(String::new());
        span.record(&mut line);
        self.0.lock().unwrap().push(line.0);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut line = Line(String::new());
        values.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

async fn one_line() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let (events_tx, mut events) = tokio::sync::mpsc::unbounded_channel();
    let router = Router::new().method("wait", move |ctx: CallContext, _: Value| {
        let events_tx = events_tx.clone();
        async move {
            events_tx.send(None).unwrap();
            let cause = ctx.cancelled().await;
            tracing::info!(%cause, "shown");
            tracing::info!(?cause, "debugged");
            events_tx.send(Some(cause.clone())).unwrap();
            ctx.stopped::<Value>(cause)
        }
    });
    let (near, far) = memory_pair();
    let _server = Peer::builder(MCP).serve(router).attach(far).unwrap();
    let client = Peer::builder(MCP).role(Role::Client).attach(near).unwrap();
    let evil = ["\n", "\r\n", "\u{1b}[2J", "\u{202e}", "\u{0}", "\u{2028}", "e\u{301}", "\u{1f4a9}", "x"];
    for part in evil {
        let reason = part.repeat(HUGE / part.len());
        let call = client.call::<_, Value>("wait", &json!({})).start().unwrap();
        assert_eq!(in_time("it runs", events.recv()).await, Some(None));
        let begun = lines.0.lock().unwrap().len();
        call.canceller().cancel(&reason);
        let cause = in_time("the cancel", events.recv()).await.flatten().unwrap();
        let kept = cause.reason().unwrap();
        assert!(kept.len() <= rescind::MAX_REASON_BYTES && reason.starts_with(kept), "I11: {}", kept.len());
        assert!(in_time("I13: the call", call.outcome()).await.is_cancelled());
        let lines = lines.0.lock().unwrap();
        assert!(lines[begun..].iter().any(|line| line.contains("shown")), "it was logged");
        for line in &lines[begun..] {
            assert!(line.len() < LINE, "I11: {:?}: a line of {} bytes: {line}", part, line.len());
            let hidden = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{202e}');
            assert!(!line.contains(hidden), "{line:?}");
        }
    }
}
