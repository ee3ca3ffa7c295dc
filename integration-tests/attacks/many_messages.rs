//! Many messages of one peer: requests with one id, notifications in order, and cancels with long reasons.

use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use libtest_mimic::Trial;
use rescind::dialect::{MCP, Role};
use rescind::{CallContext, Event, Limits, Peer, Router, memory_pair};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

use crate::agent::{End, limits};
use crate::raw_client::{Hears, RawClient};
use crate::wires::{Kind, Setting, WIRES, Wire, accept};
use crate::{in_time, trial, until};

// Ten thousand requests with one id, on each wire that allows a client to choose ids freely.

const DUPLICATES: usize = 10_000;
/// How many are on their way at once.
const AT_ONCE: usize = 500;

pub(crate) fn id_trials() -> Vec<Trial> {
    let of = |wire: Wire| {
        trial(format!("ids::ten_thousand_requests_under_one_id::{}", wire.name), move || one_id(wire))
    };
    // In HTTP the second request is refused with 409 on its own exchange; see the table.
    WIRES.into_iter().filter(|wire| wire.kind == Kind::Connection).map(of).collect()
}

async fn one_id(wire: Wire) {
    let open = Arc::new(Notify::new());
    let gate = Arc::clone(&open);
    let router = Router::new()
        .method("initialize", |_: CallContext, _: Value| async { Ok(json!({"protocolVersion": 1})) })
        .method("gate", move |_: CallContext, n: (usize,)| {
            let gate = Arc::clone(&gate);
            async move {
                gate.notified().await;
                Ok(n)
            }
        });
    let mut door = wire.listen(Setting::default()).await;
    let (mut stranger, server) = RawClient::meet(&mut door, router, &limits(), Hears::Keeps).await;
    for n in 0..DUPLICATES {
        stranger.request(&json!(7), "gate", &json!([n])).await;
        if n % AT_ONCE == 0 {
            // A client that sends requests without reading the refusals is cut off; see the fault `slow_reader`.
            stranger.flush().await;
            until("the refusals so far", || stranger.heard() > n).await;
        }
    }
    stranger.flush().await;
    until("all but one are refused", || stranger.heard() == DUPLICATES).await;
    open.notify_one();
    let mut refused = 0;
    loop {
        let frame = stranger.hear().await;
        if frame["id"] == 7 {
            assert_eq!(frame["result"], json!([0]), "I1: the first one's, and no other's: {frame}");
            break;
        }
        assert_eq!((&frame["id"], &frame["error"]["code"]), (&Value::Null, &json!(-32_600)), "{frame}");
        refused += 1;
    }
    let stats = server.stats();
    assert_eq!((refused, stats.duplicate_ids), (DUPLICATES - 1, DUPLICATES as u64 - 1));
    assert_eq!(stats.started, 2, "I4: the handshake and one of them");
    // The id is free again.
    open.notify_one();
    stranger.request(&json!(7), "gate", &json!([DUPLICATES])).await;
    stranger.flush().await;
    assert_eq!(stranger.hear().await["result"], json!([DUPLICATES]));
    stranger.leave();
    in_time("L3: the end", server.shutdown(std::time::Duration::ZERO)).await;
}

// Notifications whose order matters, between requests.

const CHANGES: usize = 10_000;

pub(crate) fn order_trials() -> Vec<Trial> {
    let of = |wire: Wire| {
        trial(format!("order::ten_thousand_changes_between_requests::{}", wire.name), move || changes(wire))
    };
    WIRES.into_iter().filter(|wire| wire.kind == Kind::Connection).map(of).collect()
}

/// A text document in an editor: each change contains the version that it creates.
async fn changes(wire: Wire) {
    let seen: Arc<Mutex<Vec<usize>>> = Arc::default();
    let (record, known) = (Arc::clone(&seen), Arc::clone(&seen));
    let router = Router::new()
        .method("hover", move |_: CallContext, _: Value| {
            let last = known.lock().unwrap().last().copied();
            async move { Ok(last) }
        })
        .notification("didChange", move |_: Peer, (version,): (usize,)| {
            record.lock().unwrap().push(version);
            async { tokio::task::yield_now().await }
        });
    let mut door = wire.listen(Setting::default()).await;
    let connecting = (door.transport)().open();
    let (link, far) = tokio::join!(in_time("connecting", connecting), accept(&mut door.listener));
    let reported = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reported);
    let server = Peer::builder(rescind::dialect::ACP)
        .serve(router)
        .on_event(move |event| {
            if *event == Event::LimitReached("notifications") {
                count.fetch_add(1, Ordering::SeqCst);
            }
        })
        .attach(far)
        .unwrap();
    let (valve, link) = crate::wires::StoppableLink::new(link.unwrap());
    let peer = Peer::builder(rescind::dialect::ACP).attach(link).unwrap();
    let client = End { peer, valve, seen: crate::agent::Seen::new() };
    let limit = Limits::default().max_queued_notifications;
    let mut most = 0;
    let mut answers = Vec::new();
    for version in 0..CHANGES {
        client.peer.notify("didChange", &[version]).await.unwrap();
        if version % 100 == 99 {
            let call = client.peer.call::<_, Option<usize>>("hover", &json!({}));
            answers.push((version, in_time("I13: a request between them", call).await.unwrap()));
        }
        most = most.max(server.queue_stats().notifications_waiting);
    }
    let handled = || seen.lock().unwrap().len();
    let dropped = || usize::try_from(server.queue_stats().notifications_dropped).unwrap();
    until("all were handled or counted", || handled() + dropped() == CHANGES).await;
    eprintln!("counted: {}: {most} waited at most, {} were dropped", wire.name, dropped());
    assert!(seen.lock().unwrap().is_sorted_by(|one, next| one < next), "in their order, and each once");
    assert!(most <= limit, "I11: {most} wait");
    // They arrive faster than they can be handled. The newest ones find no room, and their drop is reported.
    assert!(handled() >= limit, "{} were handled", handled());
    assert_eq!(reported.load(Ordering::SeqCst), dropped(), "each dropped one is counted here");
    assert_eq!(answers.len(), CHANGES / 100, "requests are answered between them");
    assert!(answers.iter().all(|(sent, seen)| seen.is_none_or(|seen| seen <= *sent)), "{answers:?}");
    client.valve.cut();
    for peer in [&client.peer, &server] {
        let _ = in_time("L3: the end", peer.closed()).await;
    }
}

// The reason of a cancel is text from the peer. It is always shown as one short line.

/// In bytes.
const LINE: usize = 1024;
const HUGE: usize = 1 << 20;

pub(crate) fn reason_trials() -> Vec<Trial> {
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

    fn event(&self, event: &tracing::Event<'_>) {
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
