//! Our [`Peer`] as the client of programs made with other people's libraries: `interop/acp-agent.mjs` and
//! `interop/lsp-server.mjs`, each over the stdio of a process of its own, and the latter also over a named pipe that we
//! listen on, as editors do.
//!
//! They need Node, so `cargo test` says that they are ignored, and `interop/run` runs them. That 1 and `"1"` are two
//! requests is not asked here: a [`Peer`] gives numbers only. `rescind check` asks it with frames of its own.
#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "what the tests share is part of them")]

use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rescind::dialect::{self, Dialect, Role};
use rescind::named_pipe::{NamedPipeListener, PipeAddress};
use rescind::stdio::{ChildHandle, Command};
use rescind::{
    Call, CallContext, CancelResult, CauseKind, ErrorCode, Link, Listener as _, Outcome, Peer, Router,
};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

/// Far more than any of these needs: what hangs fails.
const LIMIT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
enum Program {
    AcpAgent,
    LspServer,
    LspServerOverPipe,
}

/// What the client's own handler of `test/wait` says.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Started,
    Cancelled(CauseKind),
}

/// A program that runs, and our side of its connection, after the handshake.
struct Run {
    peer: Peer,
    child: ChildHandle,
    said: UnboundedReceiver<Said>,
    cancel_method: &'static str,
    cancel_key: &'static str,
    /// Held where frames go another way: the process ends with its stdio.
    _stdio: Option<Link>,
}

impl Run {
    async fn start(program: Program) -> Self {
        let (file, dialect, cancel_method, cancel_key): (_, Dialect, _, _) = match program {
            Program::AcpAgent => ("acp-agent.mjs", dialect::ACP, "$/cancel_request", "requestId"),
            Program::LspServer | Program::LspServerOverPipe => {
                ("lsp-server.mjs", dialect::LSP, "$/cancelRequest", "id")
            }
        };
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop");
        assert!(folder.join("node_modules").is_dir(), "run `npm ci` in {}", folder.display());
        let framing = dialect.rules().framing;
        let command = Command::new("node").arg(folder.join(file)).framing(framing);
        let (link, child, stdio) = match program {
            Program::AcpAgent | Program::LspServer => {
                let (link, child) = command.start().expect("the program starts");
                (link, child, None)
            }
            Program::LspServerOverPipe => {
                let mut listener = pipe().await.framing(framing);
                let started = command.arg("--pipe").arg(listener.file()).start();
                let (stdio, child) = started.expect("the program starts");
                let accepted = poll_fn(|cx| Pin::new(&mut listener).poll_accept(cx)).await;
                let link = accepted.expect("the listener is there").expect("it is our own process");
                (link, child, Some(stdio))
            }
        };
        let (say, said) = unbounded_channel();
        let peer = Peer::builder(dialect).role(Role::Client).serve(client(say)).attach(link);
        let run = Self {
            peer: peer.expect("the connection opens"),
            child,
            said,
            cancel_method,
            cancel_key,
            _stdio: stdio,
        };
        match program {
            Program::AcpAgent => {
                run.answer("initialize", json!({"protocolVersion": 1, "clientCapabilities": {}})).await;
            }
            Program::LspServer | Program::LspServerOverPipe => {
                run.answer("initialize", json!({"processId": null, "rootUri": null, "capabilities": {}}))
                    .await;
                run.peer.notify("initialized", &json!({})).expect("there is room");
            }
        }
        run
    }

    async fn answer(&self, method: &str, params: Value) -> Value {
        match self.peer.call::<_, Value>(method, &params).await {
            Ok(value) => value,
            Err(error) => panic!("{method}: {error}"),
        }
    }

    fn call(&self, method: &str, params: &Value) -> Call<Value> {
        self.peer.call(method, params).start().expect("a call starts")
    }

    /// The same, once its handler runs there.
    async fn running(&self, method: &str, params: &Value) -> Call<Value> {
        let call = self.call(method, params);
        self.counts(1, 0).await;
        call
    }

    /// The witness: waits until the program counts so many running and so many cancelled handlers.
    async fn counts(&self, running: u64, cancelled: u64) {
        loop {
            let stats = self.answer("test/stats", json!({})).await;
            if stats["running"] == running && stats["cancelled"] == cancelled {
                return;
            }
        }
    }

    fn raw_cancel(&self, id: u64) {
        let params = json!({ self.cancel_key: id });
        self.peer.notify(self.cancel_method, &params).expect("there is room");
    }

    async fn echoes(&self) {
        assert_eq!(self.answer("test/echo", json!({"value": 7})).await, json!({"value": 7}));
    }

    /// Closes the connection; the program ends by itself, as its input does.
    async fn end(self) {
        self.peer.shutdown(Duration::ZERO).await;
        let status = self.child.wait().await;
        assert!(status.success(), "{status}: {}", self.child.stderr_tail());
    }
}

/// A pipe of this test's own.
async fn pipe() -> NamedPipeListener {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("rescind-third-party-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let address = PipeAddress::name(&name).expect("a name");
    NamedPipeListener::bind(&address).await.expect("a pipe of our own")
}

fn client(say: UnboundedSender<Said>) -> Router {
    Router::new().method("test/wait", move |ctx: CallContext, _: Value| {
        let say = say.clone();
        async move {
            drop(say.send(Said::Started));
            let cause = ctx.cancelled().await;
            drop(say.send(Said::Cancelled(cause.kind())));
            ctx.stopped::<Value>(cause)
        }
    })
}

fn is_confirmed(outcome: &Outcome<Value>, cause: CauseKind) {
    match outcome {
        Outcome::Cancelled(cancelled) => {
            assert!(cancelled.confirmed, "{cancelled:?}");
            assert_eq!(cancelled.cause.kind(), cause);
        }
        other => panic!("{other:?}"),
    }
}

async fn cancel_running(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/wait", &json!({})).await;
    assert_eq!(call.canceller().cancel("the user pressed stop"), CancelResult::Sent);
    is_confirmed(&call.outcome().await, CauseKind::Caller);
    run.counts(0, 1).await;
    run.end().await;
}

/// Either the request is taken back, or it and its cancel may leave in one write.
async fn cancel_at_once(program: Program) {
    let run = Run::start(program).await;
    let call = run.call("test/wait", &json!({}));
    let said = call.canceller().cancel("");
    assert!(matches!(said, CancelResult::Sent | CancelResult::TakenBack), "{said:?}");
    is_confirmed(&call.outcome().await, CauseKind::Caller);
    run.echoes().await;
    assert_eq!(run.answer("test/stats", json!({})).await["running"], 0);
    run.end().await;
}

async fn cancel_twice(program: Program) {
    let run = Run::start(program).await;
    let (one, other) = (run.running("test/wait", &json!({})).await, run.call("test/wait", &json!({})));
    run.counts(2, 0).await;
    let stop = one.canceller();
    assert_eq!(stop.cancel(""), CancelResult::Sent);
    assert_eq!(stop.clone().cancel(""), CancelResult::AlreadySettled);
    is_confirmed(&one.outcome().await, CauseKind::Caller);
    assert_eq!(stop.cancel(""), CancelResult::AlreadySettled);
    // The other one was not touched.
    run.counts(1, 1).await;
    assert_eq!(other.canceller().cancel(""), CancelResult::Sent);
    is_confirmed(&other.outcome().await, CauseKind::Caller);
    run.counts(0, 2).await;
    run.end().await;
}

async fn cancel_finished(program: Program) {
    let run = Run::start(program).await;
    let mut call = run.call("test/echo", &json!({"value": 7}));
    assert_eq!((&mut call).await, Ok(json!({"value": 7})));
    assert_eq!(call.canceller().cancel("too late"), CancelResult::AlreadySettled);
    // We say nothing then; a cancel that was under way does no harm either. Our ids count up from a small number.
    for id in 0..4 {
        run.raw_cancel(id);
    }
    run.echoes().await;
    run.counts(0, 0).await;
    run.end().await;
}

async fn cancel_unknown(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/wait", &json!({})).await;
    run.raw_cancel(4_000_000);
    run.echoes().await;
    run.counts(1, 0).await;
    assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
    is_confirmed(&call.outcome().await, CauseKind::Caller);
    run.end().await;
}

async fn partial_result(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/partial", &json!({})).await;
    assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
    assert_eq!(call.outcome().await, Outcome::CompletedAfterCancel(json!({"partial": true})));
    run.end().await;
}

async fn deaf_handler(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/ignore", &json!({"ms": 300})).await;
    assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
    assert_eq!(call.outcome().await, Outcome::CompletedAfterCancel(json!({"ignored": true})));
    run.counts(0, 0).await;
    run.end().await;
}

/// Both libraries answer -32603 then, so the peer did not confirm the cancel: see docs/interop.md.
async fn fails_after_cancel(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/fail_on_cancel", &json!({})).await;
    assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
    match call.outcome().await {
        Outcome::Failed(error) => assert_eq!(error.code, ErrorCode::INTERNAL_ERROR, "{error:?}"),
        other => panic!("{other:?}"),
    }
    run.counts(0, 1).await;
    run.end().await;
}

async fn nested_requests(program: Program) {
    let mut run = Run::start(program).await;
    let call = run.call("test/nested", &json!({"depth": 1, "width": 2}));
    for _ in 0..2 {
        assert_eq!(run.said.recv().await, Some(Said::Started));
    }
    assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
    for _ in 0..2 {
        assert_eq!(run.said.recv().await, Some(Said::Cancelled(CauseKind::Peer)));
    }
    is_confirmed(&call.outcome().await, CauseKind::Caller);
    run.counts(0, 1).await;
    assert_eq!(run.peer.stats().running, 0);
    run.end().await;
}

async fn dropped_call(program: Program) {
    let run = Run::start(program).await;
    drop(run.running("test/wait", &json!({})).await);
    run.counts(0, 1).await;
    run.end().await;
}

async fn deadline(program: Program) {
    let run = Run::start(program).await;
    let late = run.peer.call::<_, Value>("test/wait", &json!({})).timeout(Duration::from_millis(100));
    is_confirmed(&late.start().expect("a call starts").outcome().await, CauseKind::Deadline);
    run.counts(0, 1).await;
    run.end().await;
}

/// Both a call that nobody cancelled and one that was, whose cancel nobody can confirm any more.
async fn killed_in_the_middle(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/wait", &json!({})).await;
    let deaf = run.call("test/ignore", &json!({"ms": 600_000}));
    run.counts(2, 0).await;
    assert_eq!(deaf.canceller().cancel(""), CancelResult::Sent);
    run.echoes().await;
    kill(run.child.pid());
    assert_eq!(call.outcome().await, Outcome::Disconnected { may_have_run: true });
    match deaf.outcome().await {
        Outcome::Cancelled(cancelled) => assert!(!cancelled.confirmed, "{cancelled:?}"),
        other => panic!("{other:?}"),
    }
    let error = run.peer.closed().await.expect_err("a killed program is no end in good order");
    assert!(error.to_string().contains("`node`"), "{error}");
}

/// The connection is closed while work goes on: the call ends here, and the program, whose input ended, ends too.
async fn closed_in_the_middle(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/wait", &json!({})).await;
    run.peer.shutdown(Duration::ZERO).await;
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => assert_eq!(cancelled.cause.kind(), CauseKind::Shutdown),
        other => panic!("{other:?}"),
    }
    run.child.wait().await;
}

fn kill(pid: u32) {
    let mut command = std::process::Command::new(if cfg!(windows) { "taskkill" } else { "kill" });
    command.args(if cfg!(windows) { ["/F", "/PID"].as_slice() } else { ["-KILL"].as_slice() });
    assert!(command.arg(pid.to_string()).status().is_ok_and(|status| status.success()));
}

async fn in_time(name: &str, test: impl Future<Output = ()>) {
    assert!(timeout(LIMIT, test).await.is_ok(), "{name} hangs");
}

macro_rules! third_party {
    (in $module:ident: $program:expr; $($name:ident: $test:ident,)*) => {
        mod $module {
            $(
                #[tokio::test]
                #[ignore = "needs node and `npm ci` in integration-tests/interop; .ci/interop runs it"]
                async fn $name() {
                    super::in_time(stringify!($name), super::$test($program)).await;
                }
            )*
        }
    };
    ($($name:ident: $test:ident,)*) => {
        third_party! { in acp_agent: super::Program::AcpAgent; $($name: $test,)* }
        third_party! { in lsp_server: super::Program::LspServer; $($name: $test,)* }
    };
}

third_party! {
    a_cancelled_call_is_confirmed_and_its_work_stops: cancel_running,
    a_call_cancelled_at_once_leaves_no_work_behind: cancel_at_once,
    cancelling_twice_is_cancelling_once: cancel_twice,
    a_cancel_after_the_answer_is_ignored: cancel_finished,
    a_cancel_for_an_unknown_id_is_ignored: cancel_unknown,
    a_partial_result_is_told_as_completed_after_the_cancel: partial_result,
    a_deaf_handler_is_waited_for: deaf_handler,
    a_handler_that_fails_after_its_cancel_is_told_as_failed: fails_after_cancel,
    what_it_asks_of_us_is_cancelled_with_its_parent: nested_requests,
    a_dropped_call_stops_its_work: dropped_call,
    a_deadline_stops_its_work: deadline,
    a_program_killed_in_the_middle_settles_every_call: killed_in_the_middle,
    a_call_ends_when_the_connection_is_closed_in_the_middle: closed_in_the_middle,
}

// What a killed program's stdio tells, its status and its stderr, a pipe does not.
third_party! { in lsp_server_over_pipe: super::Program::LspServerOverPipe;
    a_cancelled_call_is_confirmed_and_its_work_stops: cancel_running,
    a_call_cancelled_at_once_leaves_no_work_behind: cancel_at_once,
    cancelling_twice_is_cancelling_once: cancel_twice,
    a_cancel_after_the_answer_is_ignored: cancel_finished,
    a_cancel_for_an_unknown_id_is_ignored: cancel_unknown,
    a_partial_result_is_told_as_completed_after_the_cancel: partial_result,
    a_deaf_handler_is_waited_for: deaf_handler,
    a_handler_that_fails_after_its_cancel_is_told_as_failed: fails_after_cancel,
    what_it_asks_of_us_is_cancelled_with_its_parent: nested_requests,
    a_dropped_call_stops_its_work: dropped_call,
    a_deadline_stops_its_work: deadline,
    a_call_ends_when_the_connection_is_closed_in_the_middle: closed_in_the_middle,
}
