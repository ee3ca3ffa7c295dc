//! Our [`Peer`](rescind::Peer) as the client of programs that use other libraries (`interop/*.mjs`): the ACP SDK's
//! agent over stdio, HTTP/2 and WebSocket; vscode-jsonrpc's server over stdio and over a named pipe on which we
//! listen, as editors do; and the MCP libraries' servers of the 2025 revisions and of 2026-07-28, each over stdio and
//! over HTTP.
//!
//! They need Node, so `cargo test` reports them as ignored, and `interop/run` runs them. That 1 and `"1"` are two
//! requests is not tested here, because a `Peer` uses numbers only. `rescind check` tests it with its own frames.
#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "what the tests share is part of them")]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rescind::dialect::{self, Dialect, Role};
use rescind::http::{AcpTransport, HttpClient, StatelessTransport, StreamableTransport};
use rescind::named_pipe::{NamedPipeListener, PipeAddress};
use rescind::stdio::{ChildHandle, Command};
use rescind::transport::{Link, Listener as _, Transport};
use rescind::{Call, CallBuilder, CallContext, CancelResult, CauseKind, ErrorCode, Outcome, Peer, Router};
use rescind_testkit::support::in_time;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

macro_rules! third_party {
    (in $module:ident: $program:expr; $($name:ident: $test:path,)*) => {
        mod $module {
            use super::Program;

            $(
                #[tokio::test]
                #[ignore = "needs node and `npm ci` in integration-tests/interop; .ci/interop runs it"]
                async fn $name() {
                    super::in_time(stringify!($name), $test($program)).await;
                }
            )*
        }
    };
}

macro_rules! answers_owed {
    (in $module:ident: $program:expr; $($name:ident: $test:path,)*) => {
        third_party! { in $module: $program;
            a_cancelled_call_is_confirmed_and_its_work_stops: crate::third_party::cancel_running,
            a_call_cancelled_at_once_leaves_no_work_behind: crate::third_party::cancel_at_once,
            a_second_cancel_of_a_request_has_no_effect: crate::third_party::cancel_twice,
            a_cancel_after_the_answer_is_ignored: crate::third_party::cancel_finished,
            a_cancel_for_an_unknown_id_is_ignored: crate::third_party::cancel_unknown,
            a_partial_result_is_told_as_completed_after_the_cancel: crate::third_party::partial_result,
            a_deaf_handler_is_waited_for: crate::third_party::deaf_handler,
            a_handler_that_fails_after_its_cancel_is_told_as_failed: crate::third_party::fails_after_cancel,
            what_it_asks_of_us_is_cancelled_with_its_parent: crate::third_party::nested_requests,
            a_dropped_call_stops_its_work: crate::third_party::dropped_call,
            a_deadline_stops_its_work: crate::third_party::deadline,
            $($name: $test,)*
        }
    };
}

macro_rules! silence_owed {
    (in $module:ident: $program:expr) => {
        third_party! { in $module: $program;
            a_cancelled_call_ends_and_its_work_stops: crate::third_party::cancel_running,
            the_other_of_two_calls_goes_on: crate::third_party::cancel_one_of_two,
            a_cancelled_tool_stops: crate::third_party::cancel_tool,
            a_cancel_for_what_is_over_or_never_was_is_ignored: crate::third_party::cancel_finished_and_unknown,
            progress_is_told_to_its_call: crate::third_party::progress,
            a_deadline_stops_its_work: crate::third_party::deadline,
            a_dropped_call_stops_its_work: crate::third_party::dropped_call,
            a_deaf_handler_harms_no_other_call: crate::third_party::deaf_handler_of_mcp,
        }
    };
}

// Only the stdio of a killed program reports its status and its stderr.
answers_owed! { in acp_agent: Program::AcpAgent;
    a_program_killed_in_the_middle_settles_every_call: crate::third_party::killed_in_the_middle,
    a_call_ends_when_the_connection_is_closed_in_the_middle: crate::third_party::closed_in_the_middle,
}
answers_owed! { in lsp_server: Program::LspServer;
    a_program_killed_in_the_middle_settles_every_call: crate::third_party::killed_in_the_middle,
    a_call_ends_when_the_connection_is_closed_in_the_middle: crate::third_party::closed_in_the_middle,
}
answers_owed! { in lsp_server_over_pipe: Program::LspServerOverPipe;
    a_call_ends_when_the_connection_is_closed_in_the_middle: crate::third_party::closed_in_the_middle,
}
answers_owed! { in acp_agent_over_http: Program::AcpAgentOverHttp; }
answers_owed! { in acp_agent_over_websocket: Program::AcpAgentOverWebSocket; }
silence_owed! { in mcp_server: Program::McpServer }
silence_owed! { in mcp_server_over_http: Program::McpServerOverHttp }
silence_owed! { in mcp_2026_server: Program::Mcp2026Server }
silence_owed! { in mcp_2026_server_over_http: Program::Mcp2026ServerOverHttp }

// The reaction of a program of any protocol to our cancels.

async fn cancel_running(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/wait", &json!({})).await;
    assert_eq!(call.canceller().cancel("the user pressed stop"), CancelResult::Sent);
    run.is_cancelled(call, CauseKind::Caller).await;
    run.counts(0, 1).await;
    run.echoes().await;
    run.end().await;
}

/// The request is taken back, or it and its cancel are sent in one write.
async fn cancel_at_once(program: Program) {
    let run = Run::start(program).await;
    let call = run.call("test/wait", &json!({}));
    let said = call.canceller().cancel("");
    assert!(matches!(said, CancelResult::Sent | CancelResult::TakenBack), "{said:?}");
    run.is_cancelled(call, CauseKind::Caller).await;
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
    run.is_cancelled(one, CauseKind::Caller).await;
    assert_eq!(stop.cancel(""), CancelResult::AlreadySettled);
    // The other call was not affected.
    run.counts(1, 1).await;
    assert_eq!(other.canceller().cancel(""), CancelResult::Sent);
    run.is_cancelled(other, CauseKind::Caller).await;
    run.counts(0, 2).await;
    run.end().await;
}

async fn cancel_finished(program: Program) {
    let run = Run::start(program).await;
    let mut call = run.call("test/echo", &json!({"value": 7}));
    assert_eq!((&mut call).await, Ok(json!({"value": 7})));
    assert_eq!(call.canceller().cancel("too late"), CancelResult::AlreadySettled);
    // We send nothing then. A cancel that is on its way has no effect either. Our ids count up from a small number.
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
    run.is_cancelled(call, CauseKind::Caller).await;
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

/// Both libraries answer -32603 then, so the peer did not confirm the cancel: see docs/interop/frames.toml.
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
    run.is_cancelled(call, CauseKind::Caller).await;
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
    let late = run.build("test/wait", &json!({})).timeout(Duration::from_millis(100));
    run.is_cancelled(late.start().expect("a call starts"), CauseKind::Deadline).await;
    run.counts(0, 1).await;
    run.end().await;
}

/// A call without a cancel, and a cancelled one, whose cancel cannot be confirmed any more.
async fn killed_in_the_middle(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/wait", &json!({})).await;
    let deaf = run.call("test/ignore", &json!({"ms": 600_000}));
    run.counts(2, 0).await;
    assert_eq!(deaf.canceller().cancel(""), CancelResult::Sent);
    run.echoes().await;
    kill(run.child().pid());
    assert_eq!(call.outcome().await, Outcome::Disconnected { may_have_run: true });
    match deaf.outcome().await {
        Outcome::Cancelled(cancelled) => assert!(!cancelled.confirmed, "{cancelled:?}"),
        other => panic!("{other:?}"),
    }
    let error = run.peer.closed().await.expect_err("a killed program is no end in good order");
    assert!(error.to_string().contains("`node`"), "{error}");
}

/// The connection is closed during the work: the call ends here, and the program, whose input has ended, ends too.
async fn closed_in_the_middle(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/wait", &json!({})).await;
    run.peer.shutdown(Duration::ZERO).await;
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => assert_eq!(cancelled.cause.kind(), CauseKind::Shutdown),
        other => panic!("{other:?}"),
    }
    run.child().wait().await;
}

fn kill(pid: u32) {
    let mut command = std::process::Command::new(if cfg!(windows) { "taskkill" } else { "kill" });
    command.args(if cfg!(windows) { ["/F", "/PID"].as_slice() } else { ["-KILL"].as_slice() });
    assert!(command.arg(pid.to_string()).status().is_ok_and(|status| status.success()));
}

// The reaction of MCP's servers to our cancels. Their protocol sends no answer to a cancelled request: the call ends
// at once, unconfirmed, and the program's counts show that the work has stopped (their `AbortSignal`).

async fn cancel_one_of_two(program: Program) {
    let run = Run::start(program).await;
    let (one, other) = (run.running("test/wait", &json!({})).await, run.call("test/wait", &json!({})));
    run.counts(2, 0).await;
    assert_eq!(one.canceller().cancel(""), CancelResult::Sent);
    run.is_cancelled(one, CauseKind::Caller).await;
    run.counts(1, 1).await;
    drop(other);
    run.counts(0, 2).await;
    run.end().await;
}

async fn cancel_tool(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("tools/call", &json!({"name": "wait", "arguments": {}})).await;
    assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
    run.is_cancelled(call, CauseKind::Caller).await;
    run.counts(0, 1).await;
    run.end().await;
}

async fn cancel_finished_and_unknown(program: Program) {
    let run = Run::start(program).await;
    let mut call = run.call("test/echo", &json!({"value": 7}));
    assert!((&mut call).await.is_ok());
    assert_eq!(call.canceller().cancel("too late"), CancelResult::AlreadySettled);
    let waits = run.running("test/wait", &json!({})).await;
    for id in [0, 1, 4_000_000] {
        run.raw_cancel(id);
    }
    run.echoes().await;
    run.counts(1, 0).await;
    drop(waits);
    run.counts(0, 1).await;
    run.end().await;
}

async fn progress(program: Program) {
    let run = Run::start(program).await;
    let arguments = json!({"count": 3, "every_ms": 1});
    let call = run.build("tools/call", &json!({"name": "progress", "arguments": arguments})).progress();
    let call = call.start().expect("a call starts");
    let mut reported = call.notifications();
    for n in 1..=3 {
        let params: Value =
            reported.next().await.expect("its progress is reported").params().expect("it is JSON");
        assert_eq!((&params["progress"], &params["total"]), (&json!(n), &json!(3)));
    }
    assert!(matches!(call.outcome().await, Outcome::Completed(_)));
    assert!(reported.next().await.is_none(), "progress after the answer");
    run.end().await;
}

/// The program answers although it was cancelled. The answer is ignored.
async fn deaf_handler_of_mcp(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/ignore", &json!({"ms": 300})).await;
    assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
    run.is_cancelled(call, CauseKind::Caller).await;
    run.counts(0, 0).await;
    run.echoes().await;
    run.end().await;
}

// A running program, and our side of its connection.

/// The events of the client's own handler of `test/wait`.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Started,
    Cancelled(CauseKind),
}

/// A running program, and our side of its connection, after the handshake.
struct Run {
    pub(crate) peer: Peer,
    pub(crate) said: UnboundedReceiver<Said>,
    program: Program,
    running: Running,
}

impl Run {
    pub(crate) async fn start(program: Program) -> Self {
        let (link, running) = program.open().await;
        let (say, said) = unbounded_channel();
        let peer = Peer::builder(program.dialect()).role(Role::Client).serve(client(say)).attach(link);
        let run = Self { peer: peer.expect("the connection opens"), said, program, running };
        run.shake_hands().await;
        run
    }

    async fn shake_hands(&self) {
        match self.program {
            Program::AcpAgent | Program::AcpAgentOverHttp | Program::AcpAgentOverWebSocket => {
                self.answer("initialize", json!({"protocolVersion": 1, "clientCapabilities": {}})).await;
            }
            Program::LspServer | Program::LspServerOverPipe => {
                self.answer("initialize", json!({"processId": null, "rootUri": null, "capabilities": {}}))
                    .await;
                self.peer.try_notify("initialized", &json!({})).expect("there is room");
            }
            Program::McpServer | Program::McpServerOverHttp => {
                let client = json!({"name": "rescind", "version": "0"});
                let asked =
                    json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
                let reported = self.answer("initialize", asked).await;
                assert_eq!(reported["protocolVersion"], "2025-11-25");
                self.peer.try_notify("notifications/initialized", &json!({})).expect("there is room");
            }
            // Each request contains everything, so there is no handshake.
            Program::Mcp2026Server | Program::Mcp2026ServerOverHttp => {}
        }
    }

    pub(crate) async fn answer(&self, method: &str, params: Value) -> Value {
        match self.build(method, &params).await {
            Ok(value) => value,
            Err(error) => panic!("{method}: {error}"),
        }
    }

    /// A call, with the members that the protocol requires in its params.
    pub(crate) fn build(&self, method: &str, params: &Value) -> CallBuilder<Value> {
        let mut params = params.clone();
        if self.program.dialect().name() == "mcp-2026" {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "rescind", "version": "0"},
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        self.peer.call(method, &params)
    }

    pub(crate) fn call(&self, method: &str, params: &Value) -> Call<Value> {
        self.build(method, params).start().expect("a call starts")
    }

    /// The same, after its handler has started in the program.
    pub(crate) async fn running(&self, method: &str, params: &Value) -> Call<Value> {
        let call = self.call(method, params);
        self.counts(1, 0).await;
        call
    }

    /// The call ends as cancelled by this cause, and as confirmed if the protocol answers cancelled requests.
    pub(crate) async fn is_cancelled(&self, call: Call<Value>, cause: CauseKind) {
        match call.outcome().await {
            Outcome::Cancelled(cancelled) => {
                let is_answered = !self.program.dialect().name().starts_with("mcp");
                assert!(cancelled.confirmed || !is_answered, "{cancelled:?}");
                assert_eq!(cancelled.cause.kind(), cause);
            }
            other => panic!("{other:?}"),
        }
    }

    /// The witness: waits until the program counts this many running and this many cancelled handlers.
    pub(crate) async fn counts(&self, running: u64, cancelled: u64) {
        loop {
            let stats = self.answer("test/stats", json!({})).await;
            if stats["running"] == running && stats["cancelled"] == cancelled {
                return;
            }
        }
    }

    pub(crate) fn raw_cancel(&self, id: u64) {
        let (method, key) = self.program.cancel();
        self.peer.try_notify(method, &json!({ key: id })).expect("there is room");
    }

    pub(crate) async fn echoes(&self) {
        assert_eq!(self.answer("test/echo", json!({"value": 7})).await["value"], 7);
    }

    pub(crate) fn child(&self) -> &ChildHandle {
        match &self.running {
            Running::Stdio(child) | Running::Pipe(child, _) => child,
            Running::Listens(_) => panic!("{:?} has no stdio of ours", self.program),
        }
    }

    /// Closes the connection. The program ends with its input, or is killed.
    pub(crate) async fn end(self) {
        self.peer.shutdown(Duration::ZERO).await;
        match self.running {
            Running::Stdio(child) | Running::Pipe(child, _) => {
                let status = child.wait().await;
                assert!(status.success(), "{status}: {}", child.stderr_tail());
            }
            Running::Listens(mut child) => child.kill().await.expect("it is ours to end"),
        }
    }
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

// The programs, and how to connect to each.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    AcpAgent,
    AcpAgentOverHttp,
    AcpAgentOverWebSocket,
    LspServer,
    LspServerOverPipe,
    McpServer,
    McpServerOverHttp,
    Mcp2026Server,
    Mcp2026ServerOverHttp,
}

/// A running program.
pub(crate) enum Running {
    /// It ends with its input.
    Stdio(ChildHandle),
    /// It ends with its input, and frames use another connection.
    Pipe(ChildHandle, #[expect(dead_code, reason = "held: the process ends with its stdio")] Link),
    /// It listens, and ends when it is killed.
    Listens(Child),
}

impl Program {
    pub(crate) const fn dialect(self) -> Dialect {
        match self {
            Self::AcpAgent | Self::AcpAgentOverHttp | Self::AcpAgentOverWebSocket => dialect::ACP,
            Self::LspServer | Self::LspServerOverPipe => dialect::LSP,
            Self::McpServer | Self::McpServerOverHttp => dialect::MCP,
            Self::Mcp2026Server | Self::Mcp2026ServerOverHttp => dialect::MCP_2026,
        }
    }

    /// The method of a cancel in its protocol, and the member that names the request.
    pub(crate) const fn cancel(self) -> (&'static str, &'static str) {
        match self {
            Self::AcpAgent | Self::AcpAgentOverHttp | Self::AcpAgentOverWebSocket => {
                ("$/cancel_request", "requestId")
            }
            Self::LspServer | Self::LspServerOverPipe => ("$/cancelRequest", "id"),
            Self::McpServer | Self::McpServerOverHttp | Self::Mcp2026Server | Self::Mcp2026ServerOverHttp => {
                ("notifications/cancelled", "requestId")
            }
        }
    }

    fn file(self) -> PathBuf {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop");
        assert!(folder.join("node_modules").is_dir(), "run `npm ci` in {}", folder.display());
        folder.join(match self {
            Self::AcpAgent | Self::AcpAgentOverHttp | Self::AcpAgentOverWebSocket => "acp-agent.mjs",
            Self::LspServer | Self::LspServerOverPipe => "lsp-server.mjs",
            Self::McpServer | Self::McpServerOverHttp => "mcp-server.mjs",
            Self::Mcp2026Server | Self::Mcp2026ServerOverHttp => "mcp-2026-server.mjs",
        })
    }

    /// Starts it and connects to it.
    pub(crate) async fn open(self) -> (Link, Running) {
        let command = Command::new("node").arg(self.file());
        match self {
            Self::AcpAgent | Self::LspServer | Self::McpServer | Self::Mcp2026Server => {
                let (link, child) = command.start().expect("the program starts");
                (link, Running::Stdio(child))
            }
            Self::LspServerOverPipe => {
                let mut listener = pipe().await;
                let started = command.arg("--pipe").arg(listener.file()).start();
                let (stdio, child) = started.expect("the program starts");
                let accepted = listener.accept().await;
                let link = accepted.expect("the listener is there").expect("it is our own process");
                (link, Running::Pipe(child, stdio))
            }
            Self::AcpAgentOverWebSocket => {
                let (child, url) = self.listen("--ws").await;
                (connect(rescind::websocket::connect(&url)).await, Running::Listens(child))
            }
            Self::AcpAgentOverHttp => {
                let (child, client) = self.listen_http("--http2").await;
                (connect(AcpTransport::new(client)).await, Running::Listens(child))
            }
            Self::McpServerOverHttp => {
                let (child, client) = self.listen_http("--http").await;
                (connect(StreamableTransport::new(client)).await, Running::Listens(child))
            }
            Self::Mcp2026ServerOverHttp => {
                let (child, client) = self.listen_http("--http").await;
                (connect(StatelessTransport::new(client)).await, Running::Listens(child))
            }
        }
    }

    async fn listen_http(self, option: &str) -> (Child, HttpClient) {
        let (child, url) = self.listen(option).await;
        (child, HttpClient::new(&url).expect("it is a valid URL"))
    }

    /// Starts it. It prints the address on which it listens to stderr.
    async fn listen(self, option: &str) -> (Child, String) {
        let mut command = tokio::process::Command::new("node");
        command.arg(self.file()).arg(option).stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the program starts");
        let mut reported = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        loop {
            let line = reported.next_line().await.expect("it is text").expect("it says where it listens");
            if let Some(url) = line.strip_prefix("listening on ") {
                let url = url.to_owned();
                // The rest of its stderr is read too, because it would block otherwise.
                tokio::spawn(
                    async move { while reported.next_line().await.is_ok_and(|line| line.is_some()) {} },
                );
                return (child, url);
            }
        }
    }
}

async fn connect(transport: impl Transport) -> Link {
    (Box::new(transport) as Box<dyn Transport>).open().await.expect("it accepts us")
}

/// A pipe that only this test uses.
async fn pipe() -> NamedPipeListener {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("rescind-third-party-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let address = PipeAddress::name(&name).expect("a name");
    NamedPipeListener::bind(&address).await.expect("a pipe of our own")
}
