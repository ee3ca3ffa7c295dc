//! A client that follows the protocol. It must be served during an attack and after it.

use rescind::dialect::Role;
use rescind::http::{AcpTransport, HttpClient, StatelessTransport, StreamableTransport};
use rescind::named_pipe::NamedPipeTransport;
use rescind::transport::{Link, Transport};
use rescind::{Call, Outcome, Peer};
use serde_json::{Value, json};

use crate::target::{Target, Wire};
use crate::{in_time, poll_until};

pub(crate) struct Honest {
    peer: Peer,
    wire: Wire,
}

impl Honest {
    /// Connects from 127.0.0.1, and opens a session if the protocol has sessions.
    pub(crate) async fn connect(target: &Target) -> Self {
        let url = &target.endpoint;
        let http = || HttpClient::new(url).unwrap();
        let transport: Box<dyn Transport> = match target.wire {
            Wire::Stdio => panic!("stdio has one client"),
            Wire::NamedPipe => {
                Box::new(NamedPipeTransport::new(url.parse().unwrap()).framing(target.framing))
            }
            Wire::WebSocket => Box::new(rescind::websocket::connect(url)),
            Wire::Streamable => Box::new(StreamableTransport::new(http())),
            Wire::Stateless => Box::new(StatelessTransport::new(http())),
            Wire::Acp => Box::new(AcpTransport::new(http())),
        };
        let link = in_time("the honest client's connection", transport.open()).await.unwrap();
        Self::over(target, link).await
    }

    /// Uses an open connection.
    pub(crate) async fn over(target: &Target, link: Link) -> Self {
        let peer = Peer::builder(target.dialect.clone()).role(Role::Client).attach(link).unwrap();
        let honest = Self { peer, wire: target.wire };
        if target.wire != Wire::Stateless {
            honest.ask("initialize", hello(target.dialect.name())).await;
            if target.dialect.name().starts_with("mcp") {
                honest.peer.try_notify("notifications/initialized", &json!({})).unwrap();
            }
        }
        honest
    }

    async fn ask(&self, method: &'static str, params: Value) -> Value {
        let call = self.peer.call::<_, Value>(method, &params).start().unwrap();
        match in_time(method, call.outcome()).await {
            Outcome::Completed(value) => value,
            other => panic!("{method} of an honest client: {other:?}"),
        }
    }

    fn params(&self, params: Value) -> Value {
        if self.wire == Wire::Stateless { with_meta(params) } else { params }
    }

    /// Checks an echo and the cancel of a running request.
    pub(crate) async fn is_served(&self) {
        let value = json!({"value": "an honest client"});
        let echoed = self.ask("test/echo", self.params(value.clone())).await;
        assert_eq!(echoed["value"], value["value"]);
        self.can_cancel().await;
    }

    async fn can_cancel(&self) {
        let call = self.begin().await;
        self.cancel(call).await;
    }

    /// A request that runs until it is cancelled.
    pub(crate) async fn begin(&self) -> Call<Value> {
        let before = self.stats().await;
        let call = self.peer.call::<_, Value>("test/wait", &self.params(json!({}))).start().unwrap();
        poll_until("the honest client's request runs", async || {
            self.stats().await["started"].as_u64() > before["started"].as_u64()
        })
        .await;
        call
    }

    pub(crate) async fn cancel(&self, call: Call<Value>) {
        let _sent = call.canceller().cancel("the honest client cancels");
        match in_time("the honest client's cancel", call.outcome()).await {
            Outcome::Cancelled(_) => {}
            other => panic!("a cancelled request of an honest client: {other:?}"),
        }
    }

    pub(crate) async fn stats(&self) -> Value {
        self.ask("test/stats", self.params(json!({}))).await
    }

    /// Waits until nothing runs, waits or drains in the fixture.
    pub(crate) async fn nothing_is_left(&self) {
        poll_until("nothing runs in the fixture", async || {
            let stats = self.stats().await;
            ["running", "queued", "draining", "slots"].iter().all(|count| stats[count] == 0)
        })
        .await;
    }
}

/// The params of `initialize`.
pub(crate) fn hello(dialect: &str) -> Value {
    if dialect == "mcp" {
        json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "attacks", "version": "1"}})
    } else {
        json!({"protocolVersion": 1, "clientCapabilities": {}})
    }
}

/// These params with the members that each request of MCP 2026-07-28 carries.
pub(crate) fn with_meta(mut params: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    params
}
