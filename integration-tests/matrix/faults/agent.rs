//! The agent at either end: its methods, and its observations.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rescind::dialect::{ACP, Role};
use rescind::transport::Link;
use rescind::{Call, CallContext, Limits, Outcome, Peer, RequestId, Router, Stats};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::wires::StoppableLink;
use crate::wires::{Door, Setting, Wire, accept};
use crate::{in_time, until};

/// The observations of handlers, in their order, and the gate at which some of them wait.
#[derive(Clone)]
pub(crate) struct Seen {
    lines: watch::Sender<Vec<String>>,
    ids: watch::Sender<Vec<RequestId>>,
    gate: watch::Sender<bool>,
    alive: Arc<AtomicUsize>,
}

/// A handler that exists: its future, or its thread.
struct Alive {
    seen: Seen,
    name: String,
}

impl Seen {
    pub(crate) fn new() -> Self {
        Self {
            lines: watch::Sender::new(Vec::new()),
            ids: watch::Sender::new(Vec::new()),
            gate: watch::Sender::new(false),
            alive: Arc::default(),
        }
    }

    fn say(&self, line: String) {
        self.lines.send_modify(|lines| lines.push(line));
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.borrow().clone()
    }

    /// Waits until a handler has recorded this.
    pub(crate) async fn until(&self, line: &str) {
        let mut lines = self.lines.subscribe();
        let found = lines.wait_for(|lines| lines.iter().any(|known| known == line));
        // A missing signal violates L1, or L3 if the connection's loss was not detected. A handler that does not
        // start violates I1.
        let number = match line.split_once(" signalled: ") {
            Some((_, "disconnected")) => "L3",
            Some(_) => "L1",
            None => "I1",
        };
        in_time(&format!("{number}: {line}"), found).await.unwrap();
    }

    /// The ids of the requests that have handlers, in their order.
    pub(crate) fn ids(&self) -> Vec<RequestId> {
        self.ids.borrow().clone()
    }

    /// How many handlers exist, regardless of the machine's counters.
    pub(crate) fn alive(&self) -> usize {
        self.alive.load(Ordering::SeqCst)
    }

    /// Opens the gate for those who wait at it, now and later.
    pub(crate) fn open_gate(&self) {
        self.gate.send_replace(true);
    }

    async fn pass_gate(&self) {
        let _ = self.gate.subscribe().wait_for(|open| *open).await;
    }

    fn enter(&self, ctx: &CallContext, params: &Value) -> Alive {
        self.alive.fetch_add(1, Ordering::SeqCst);
        self.ids.send_modify(|ids| ids.push(ctx.request_id().clone()));
        let name = format!("{} {}", ctx.method(), params["n"]);
        self.say(format!("{name} began"));
        Alive { seen: self.clone(), name }
    }
}

impl Alive {
    fn say(&self, what: &str) {
        self.seen.say(format!("{} {what}", self.name));
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.seen.alive.fetch_sub(1, Ordering::SeqCst);
        self.say("gone");
    }
}

/// A string with this many bytes in its JSON form. It is made once, because a debug build takes tens of milliseconds
/// to escape a long one.
fn text_of(bytes: usize) -> Box<RawValue> {
    static MADE: Mutex<BTreeMap<usize, Box<RawValue>>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let text = || RawValue::from_string(format!("\"{}\"", "x".repeat(bytes))).expect("a string");
    made.entry(bytes).or_insert_with(text).clone()
}

/// The methods of an agent.
pub(crate) fn router(seen: &Seen) -> Router {
    let (wait, clean, deaf, shield, block, reported) =
        (seen.clone(), seen.clone(), seen.clone(), seen.clone(), seen.clone(), seen.clone());
    Router::new()
        .method("initialize", |_: CallContext, _: Value| async { Ok(json!({"protocolVersion": 1})) })
        .method("echo", |_: CallContext, value: Value| async { Ok(value) })
        .method("much", |_: CallContext, params: Value| async move {
            let bytes = params["bytes"].as_u64().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
            Ok(text_of(bytes))
        })
        // The observations so far.
        .method("seen", move |_: CallContext, _: Value| {
            let lines = reported.lines();
            async move { Ok(lines) }
        })
        // Calls `wait` on its caller.
        .method("ask", |ctx: CallContext, params: Value| async move {
            let answer: Value = ctx.call("wait", &params).await?;
            Ok(answer)
        })
        // Waits for its cancel.
        .method("wait", move |ctx: CallContext, params: Value| {
            let alive = wait.enter(&ctx, &params);
            async move {
                let cause = ctx.cancelled().await;
                alive.say(&format!("signalled: {}", cause.kind().name()));
                ctx.stopped::<Value>(cause)
            }
        })
        // Waits for its cancel, and then at the gate to clean up.
        .method("clean", move |ctx: CallContext, params: Value| {
            let alive = clean.enter(&ctx, &params);
            async move {
                let cause = ctx.cancelled().await;
                alive.say(&format!("signalled: {}", cause.kind().name()));
                alive.seen.pass_gate().await;
                ctx.stopped::<Value>(cause)
            }
        })
        // Ignores its cancel.
        .method("deaf", move |ctx: CallContext, params: Value| {
            let alive = deaf.enter(&ctx, &params);
            async move {
                std::future::pending::<()>().await;
                drop(alive);
                Ok(Value::Null)
            }
        })
        // Waits at the gate in a critical section, and then for its cancel.
        .method("shield", move |ctx: CallContext, params: Value| {
            let alive = shield.enter(&ctx, &params);
            async move {
                let shielded = async {
                    alive.say("shielded");
                    alive.seen.pass_gate().await;
                    alive.say(if ctx.is_cancelled() { "was disturbed" } else { "was not disturbed" });
                };
                ctx.shield(shielded).await;
                let cause = ctx.cancelled().await;
                alive.say(&format!("signalled: {}", cause.kind().name()));
                ctx.stopped::<Value>(cause)
            }
        })
        // Waits at the gate on a thread that cannot be stopped.
        .blocking("block", move |ctx: CallContext, params: Value| {
            let _alive = block.enter(&ctx, &params);
            tokio::runtime::Handle::current().block_on(block.pass_gate());
            Ok(Value::Null)
        })
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) peer: Peer,
    pub(crate) valve: StoppableLink,
    pub(crate) seen: Seen,
}

impl End {
    pub(crate) fn attach(link: Link, role: Role, limits: Limits, seen: Seen) -> Self {
        let (valve, link) = StoppableLink::new(link);
        let peer = Peer::builder(ACP).role(role).serve(router(&seen)).limits(limits).attach(link).unwrap();
        Self { peer, valve, seen }
    }

    pub(crate) fn call(&self, method: &str, n: u64) -> Call<Value> {
        self.peer.call::<_, Value>(method, &json!({"n": n})).start().unwrap()
    }

    pub(crate) async fn shake_hands(&self) {
        let hello = json!({"protocolVersion": 1, "clientCapabilities": {}});
        let shaken = in_time("I13: the handshake", self.peer.call::<_, Value>("initialize", &hello)).await;
        shaken.expect("the handshake");
        self.peer.try_notify("notifications/initialized", &json!({})).expect("room");
    }

    /// Checks both directions with a complete answer.
    pub(crate) async fn echoes(&self) {
        let answer = in_time("I13: an echo", self.peer.call::<_, Value>("echo", &json!({"n": 1}))).await;
        assert_eq!(answer.expect("an echo"), json!({"n": 1}));
    }

    /// Waits until nothing of any request, handler or call is left.
    pub(crate) async fn is_clean(&self, which: &str) {
        let clean = |stats: Stats| {
            (stats.slots, stats.running, stats.queued, stats.draining, stats.calls) == (0, 0, 0, 0, 0)
        };
        until(&format!("I3: {which} has nothing left"), || {
            clean(self.peer.stats()) && self.seen.alive() == 0
        })
        .await;
    }
}

/// Both ends of one connection, and its listener.
pub(crate) struct Ends {
    pub(crate) client: End,
    pub(crate) server: End,
    /// Over HTTP everything ends with it.
    pub(crate) door: Door,
}

impl Ends {
    /// A connection after its handshake, with the same limits on both sides.
    pub(crate) async fn open(wire: Wire, limits: &Limits) -> Self {
        Self::open_with(wire, Setting::default(), limits).await
    }

    pub(crate) async fn open_with(wire: Wire, setting: Setting, limits: &Limits) -> Self {
        let mut door = wire.listen(setting).await;
        let (client, server) = open_at(&mut door, limits).await;
        Self { client, server, door }
    }
}

impl Ends {
    /// Closes both ends at once.
    pub(crate) async fn close(self) {
        close(&self.client, &self.server).await;
    }
}

/// Closes both ends at once.
pub(crate) async fn close(client: &End, server: &End) {
    for end in [client, server] {
        end.valve.cut();
        let _ = in_time("L3: the end", end.peer.closed()).await;
    }
}

/// One more connection through a door. Over HTTP it is accepted with its first message, so both ends are opened
/// together.
pub(crate) async fn open_at(door: &mut Door, limits: &Limits) -> (End, End) {
    let Door { listener, transport, .. } = door;
    let opening = async {
        let link = in_time("connecting", transport().open()).await.expect("a connection");
        let client = End::attach(link, Role::Client, limits.clone(), Seen::new());
        client.shake_hands().await;
        client
    };
    let serving = async { End::attach(accept(listener).await, Role::Server, limits.clone(), Seen::new()) };
    tokio::join!(opening, serving)
}

/// How a call ended, in one line.
pub(crate) async fn ended(call: Call<Value>) -> String {
    match in_time("I13: a call", call.outcome()).await {
        Outcome::Completed(_) => "completed".to_owned(),
        Outcome::CompletedAfterCancel(_) => "completed after its cancel".to_owned(),
        Outcome::Cancelled(cancelled) => {
            let confirmed = if cancelled.confirmed { "confirmed" } else { "unconfirmed" };
            format!("cancelled by {}, {confirmed}", cancelled.cause.kind().name())
        }
        Outcome::Failed(error) => format!("failed {}", error.code.0),
        Outcome::Disconnected { may_have_run } => {
            format!("disconnected, {}", if may_have_run { "may have run" } else { "was not sent" })
        }
        other => format!("{other:?}"),
    }
}

/// Short limits, so that timeouts end soon.
pub(crate) fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.detach_grace = Duration::from_millis(50);
    limits.lost_stream_grace = Some(Duration::from_millis(50));
    limits.half_close_grace = Duration::from_millis(50);
    limits.flush_timeout = Duration::from_millis(200);
    limits
}
