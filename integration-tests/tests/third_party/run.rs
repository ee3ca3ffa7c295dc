//! A running program, and our side of its connection.

use std::time::Duration;

use rescind::dialect::Role;
use rescind::stdio::ChildHandle;
use rescind::{Call, CallBuilder, CallContext, CauseKind, Outcome, Peer, Router};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::program::{Program, Running};

/// The events of the client's own handler of `test/wait`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Started,
    Cancelled(CauseKind),
}

/// A running program, and our side of its connection, after the handshake.
pub(crate) struct Run {
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
