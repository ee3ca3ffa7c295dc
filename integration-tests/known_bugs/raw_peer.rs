//! A peer that writes arbitrary frames, the agent that it talks to, and waits that fail instead of hanging.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rescind::dialect::{Dialect, Role};
use rescind::transport::Link;
use rescind::{CallContext, ErrorCode, ErrorObject, Limits, Peer, RequestId, Router, memory_pair};
pub(crate) use rescind_testkit::support::http1::read_until;
use rescind_testkit::support::{self, frames, http1};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};

#[path = "../matrix/faults/failure_report.rs"]
mod reported;

pub(crate) use self::reported::RerunCommand;
use self::reported::numbered;

/// Names the invariants that the test is about. If the test fails, it prints that these are violated and how to run
/// it alone.
macro_rules! is_about {
    ($numbers:literal) => {
        let _again = {
            fn here() {}
            let name = std::any::type_name_of_val(&here).trim_end_matches("::{{closure}}::here");
            let name = name.split_once("::").map_or(name, |(_, name)| name);
            $crate::raw_peer::RerunCommand::new(name, Some($numbers))
        };
    };
}
pub(crate) use is_about;

/// A wait of this length counts as a hang.
const HANG: Duration = Duration::from_secs(60);

pub(crate) async fn in_time<T>(what: &str, wait: impl IntoFuture<Output = T>) -> T {
    support::within(HANG, &numbered(what), wait).await
}

pub(crate) async fn until(what: &str, is_so: impl FnMut() -> bool) {
    support::until(HANG, &numbered(what), is_so).await;
}

/// The messages of handlers, in their order, and the gate at which some of them wait.
pub(crate) struct AgentEvents {
    lines: mpsc::UnboundedReceiver<String>,
    pub(crate) gate: Arc<Notify>,
    entered: Arc<AtomicUsize>,
    ids: Arc<Mutex<Vec<RequestId>>>,
}

impl AgentEvents {
    /// The ids of the requests whose handlers have started.
    pub(crate) fn ids(&self) -> Vec<RequestId> {
        self.ids.lock().unwrap().clone()
    }

    pub(crate) async fn hears(&mut self, what: &str) {
        assert_eq!(in_time(what, self.lines.recv()).await.as_deref(), Some(what));
    }

    /// How many handlers have started, without echoes.
    pub(crate) fn entered(&self) -> usize {
        self.entered.load(Ordering::SeqCst)
    }
}

/// `wait` ends with its cancel, `deaf` with the gate only, `fails` with an error after its cancel. `ticks` tries to
/// report progress after its cancel, `ask` calls `echo` on its caller.
pub(crate) fn agent() -> (Router, AgentEvents) {
    let (tell, lines) = mpsc::unbounded_channel::<String>();
    let (gate, entered) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let ids: Arc<Mutex<Vec<RequestId>>> = Arc::default();
    let reported =
        AgentEvents { lines, gate: Arc::clone(&gate), entered: Arc::clone(&entered), ids: Arc::clone(&ids) };
    let enter = move |ctx: &CallContext, params: &Value| {
        entered.fetch_add(1, Ordering::SeqCst);
        ids.lock().unwrap().push(ctx.request_id().clone());
        let (tell, name) = (tell.clone(), format!("{} {}", ctx.method(), params["n"]));
        let say = move |what: &str| drop(tell.send(format!("{name} {what}")));
        say("began");
        say
    };
    let (waits, deaf, fails, ticks) = (enter.clone(), enter.clone(), enter.clone(), enter);
    let router = Router::new()
        .method("initialize", |_: CallContext, params: Value| async move {
            Ok(json!({"protocolVersion": params["protocolVersion"], "capabilities": {}}))
        })
        .method("echo", |_: CallContext, value: Value| async { Ok(value) })
        .method("wait", move |ctx: CallContext, params: Value| {
            let say = waits(&ctx, &params);
            async move {
                let cause = ctx.cancelled().await;
                say(cause.kind().name());
                ctx.stopped::<Value>(cause)
            }
        })
        .method("deaf", move |ctx: CallContext, params: Value| {
            let (say, gate) = (deaf(&ctx, &params), Arc::clone(&gate));
            async move {
                gate.notified().await;
                say("ended");
                Ok(params)
            }
        })
        .method("fails", move |ctx: CallContext, params: Value| {
            let say = fails(&ctx, &params);
            async move {
                ctx.cancelled().await;
                say("failed");
                Err::<Value, _>(ErrorObject::new(ErrorCode(-32_603), "its own trouble").into())
            }
        })
        .method("ticks", move |ctx: CallContext, params: Value| {
            let say = ticks(&ctx, &params);
            async move {
                let token: Value = serde_json::from_str(ctx.progress_token().expect("a token").get())?;
                let tick = |n: u32| json!({"progressToken": token, "progress": n});
                ctx.try_notify("notifications/progress", &tick(1))?;
                let cause = ctx.cancelled().await;
                let late = ctx.try_notify("notifications/progress", &tick(2));
                say(if late.is_err() { "was refused" } else { "was taken" });
                ctx.stopped::<Value>(cause)
            }
        })
        .method("ask", |ctx: CallContext, params: Value| async move {
            let answer: Value = ctx.call("echo", &params).await?;
            Ok(answer)
        });
    (router, reported)
}

/// A peer without the library.
pub(crate) struct RawPeer(pub(crate) Link);

impl RawPeer {
    /// Connects to an agent over memory.
    pub(crate) fn meet(dialect: Dialect, limits: Limits) -> (Self, Peer, AgentEvents) {
        let (near, far) = memory_pair();
        let (router, reported) = agent();
        let peer =
            Peer::builder(dialect).role(Role::Server).serve(router).limits(limits).attach(far).unwrap();
        (Self(near), peer, reported)
    }

    /// Does the handshake, if the agent serves nothing before it.
    pub(crate) async fn opens(&mut self) {
        self.ask("initialize", "initialize", &json!({"capabilities": {}})).await;
        assert_eq!(self.hear().await["id"], "initialize");
    }

    pub(crate) async fn say(&mut self, message: &Value) {
        in_time("room", frames::send(&mut self.0, message.to_string())).await.unwrap();
    }

    pub(crate) async fn ask(&mut self, id: impl Into<Value>, method: &str, params: &Value) {
        self.say(&request(id, method, params)).await;
    }

    /// `method` and `key`: the form of a cancel in the dialect.
    pub(crate) async fn cancel(&mut self, id: impl Into<Value>, method: &str, key: &str) {
        let id: Value = id.into();
        self.say(&json!({"jsonrpc": "2.0", "method": method, "params": {key: id}})).await;
    }

    pub(crate) async fn hear(&mut self) -> Value {
        serde_json::from_slice(&in_time("a frame", frames::body(&mut self.0)).await).unwrap()
    }

    /// The messages before the answer to a request that is sent now.
    pub(crate) async fn until_echo(&mut self) -> Vec<Value> {
        self.ask("echo", "echo", &json!({"n": "echo"})).await;
        let mut before = Vec::new();
        loop {
            let frame = self.hear().await;
            if frame["id"] == "echo" {
                assert_eq!(frame["result"], json!({"n": "echo"}), "the session goes on");
                return before;
            }
            before.push(frame);
        }
    }
}

pub(crate) fn request(id: impl Into<Value>, method: &str, params: &Value) -> Value {
    let id: Value = id.into();
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// Waits until nothing of any request is left.
pub(crate) async fn is_clean(peer: &Peer) {
    until("I3: nothing is left", || {
        let stats = peer.stats();
        stats.slots + stats.running + stats.draining + stats.calls == 0
    })
    .await;
}

/// Opens a connection and sends this request, to which the connection's end belongs.
pub(crate) async fn begin(address: &str, request: &str) -> TcpStream {
    let mut stream = in_time("connecting", TcpStream::connect(address)).await.unwrap();
    in_time("writing", stream.write_all(request.as_bytes())).await.unwrap();
    stream
}

pub(crate) async fn post(address: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> TcpStream {
    const USUAL: [(&str, &str); 3] = [
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("Connection", "close"),
    ];
    let headers = [&USUAL, headers].concat();
    begin(address, &http1::request("POST", path, address, &headers, &body.to_string())).await
}

/// The value of a header in the text of a response.
pub(crate) fn header<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let found = |line: &'a str| line.split_once(": ").filter(|(known, _)| known.eq_ignore_ascii_case(name));
    text.lines().find_map(found).map(|(_, value)| value)
}
