//! The wires, and what is served on them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use rescind::dialect::{ACP, Dialect, MCP_2026};
use rescind::http::{
    Acp, AcpTransport, HttpClient, HttpServer, ServerBinding, Stateless, StatelessTransport, Streamable,
    StreamableTransport,
};
use rescind::named_pipe::{NamedPipeListener, NamedPipeTransport, PipeAddress};
use rescind::stdio::Command;
use rescind::transport::{Listener, Transport};
use rescind::websocket::{LinkOptions, UpgradeOptions, WebSocketListener};
use rescind::{CallContext, Framing, Limits, Router, Server, ServerBuilder};
use rescind_testkit::support::mcp_meta;
use serde_json::{Value, json};

use crate::Failure;
use crate::samples::{HELD, Held};

// The wires: how each is served within this process or by a child, and how it is connected to.

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wire {
    Stdio,
    NamedPipe,
    #[value(name = "websocket")]
    WebSocket,
    #[value(name = "http-streamable")]
    Streamable,
    #[value(name = "http2-streamable")]
    Streamable2,
    #[value(name = "http-stateless")]
    Stateless,
    #[value(name = "http-acp")]
    Acp,
}

/// With this argument, this program is an agent on its stdin and stdout.
pub(crate) const AGENT: &str = "--agent";

/// Opens a connection.
pub(crate) type Connect = Arc<dyn Fn() -> Result<Box<dyn Transport>, Failure> + Send + Sync>;

/// The address for a peer without the library.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Tcp { address: String, path: &'static str },
    Pipe(PathBuf),
    Child,
}

/// A wire that is ready for use.
pub(crate) struct Door {
    /// `None`: each connection starts a child that serves.
    pub(crate) server: Option<Server>,
    pub(crate) connect: Connect,
    pub(crate) address: Address,
}

impl Wire {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub(crate) fn dialect(self) -> Dialect {
        if self == Self::Stateless { MCP_2026 } else { ACP }
    }

    /// Whether the server may send requests on a connection of this wire.
    pub(crate) fn asks_back(self) -> bool {
        self != Self::Stateless
    }

    /// Whether each request in flight has a separate connection.
    pub(crate) const fn has_a_connection_each(self) -> bool {
        matches!(self, Self::Streamable | Self::Stateless | Self::Acp)
    }

    /// Params with the members that each request of this wire's protocol carries.
    pub(crate) fn params(self, params: Value) -> Value {
        if self != Self::Stateless {
            return params;
        }
        with(params, "_meta", mcp_meta())
    }

    pub(crate) async fn open(self, server: ServerBuilder) -> Result<Door, Failure> {
        match self {
            Self::Stdio => {
                let program = std::env::current_exe()?;
                let connect: Connect = Arc::new(move || Ok(Box::new(Command::new(&program).arg(AGENT))));
                Ok(Door { server: None, connect, address: Address::Child })
            }
            Self::NamedPipe => named_pipe(server).await,
            Self::WebSocket => websocket(server).await,
            Self::Streamable | Self::Streamable2 => {
                let two = self == Self::Streamable2;
                http(server, Streamable::new(), "/mcp", move |client| {
                    Box::new(StreamableTransport::new(if two { client.http2() } else { client }))
                })
                .await
            }
            Self::Stateless => {
                http(server, Stateless::new(), "/mcp", |client| Box::new(StatelessTransport::new(client)))
                    .await
            }
            Self::Acp => http(server, Acp::new(), "/acp", |client| Box::new(AcpTransport::new(client))).await,
        }
    }
}

async fn named_pipe(server: ServerBuilder) -> Result<Door, Failure> {
    let address = PipeAddress::name(&format!("rescind-soak-{}", std::process::id()))?;
    let listener = NamedPipeListener::bind(&address).await?.framing(Framing::Newline);
    let file = Address::Pipe(listener.file().to_path_buf());
    let connect: Connect = Arc::new(move || Ok(Box::new(NamedPipeTransport::new(address.clone()))));
    Ok(Door { server: Some(server.listen(listener)), connect, address: file })
}

async fn websocket(server: ServerBuilder) -> Result<Door, Failure> {
    let options = UpgradeOptions::new().link(LinkOptions::new().ping_every(Duration::from_secs(2)));
    let listener = WebSocketListener::builder().options(options).bind("127.0.0.1:0").await?;
    let (url, address) = (listener.endpoint().0, listener.address().to_string());
    let connect: Connect = Arc::new(move || Ok(Box::new(rescind::websocket::connect(&url))));
    Ok(Door { server: Some(server.listen(listener)), connect, address: Address::Tcp { address, path: "/" } })
}

async fn http<B: ServerBinding>(
    server: ServerBuilder,
    binding: B,
    path: &'static str,
    transport: impl Fn(HttpClient) -> Box<dyn Transport> + Send + Sync + 'static,
) -> Result<Door, Failure> {
    // The connections of bad peers end soon.
    let soon = Duration::from_secs(5);
    let http = HttpServer::new(binding).path(path).session_idle(soon).header_timeout(soon).body_timeout(soon);
    let listener = http.keep_alive(soon).idle_timeout(2 * soon).bind("127.0.0.1:0").await?;
    let url = listener.endpoint().0;
    let address = url.trim_start_matches("http://").trim_end_matches(path).to_owned();
    let connect: Connect = Arc::new(move || Ok(transport(HttpClient::new(&url)?)));
    Ok(Door { server: Some(server.listen(listener)), connect, address: Address::Tcp { address, path } })
}

// The served methods: they end after a time, with their cancel, or in neither way.

/// Short limits, so that timeouts end soon.
pub(crate) fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.cancel_grace = Duration::from_millis(50);
    limits.detach_grace = Duration::from_millis(200);
    limits.lost_stream_grace = Some(Duration::from_millis(200));
    limits.half_close_grace = Duration::from_millis(200);
    limits.flush_timeout = Duration::from_millis(200);
    limits.early_cancel_timeout = Duration::from_secs(2);
    // A lasting connection reaches the limits of what it remembers within seconds and uses no more later.
    limits.max_settled_ids = 64;
    limits.settled_id_lifetime = Duration::from_secs(1);
    limits
}

pub(crate) fn router() -> Router {
    Router::new()
        .method("initialize", |_: CallContext, _: Value| async { Ok(json!({"protocolVersion": 1})) })
        .method("echo", |_: CallContext, value: Value| async { Ok(value) })
        .method(HELD, |_: CallContext, _: Value| async { Ok(Held::now().reported()) })
        .method("sleep", |ctx: CallContext, value: Value| async move {
            let time = Duration::from_millis(number(&value, "ms"));
            tokio::select! {
                () = tokio::time::sleep(time) => Ok(value),
                cause = ctx.cancelled() => ctx.stopped(cause),
            }
        })
        .method("wait", |ctx: CallContext, _: Value| async move {
            let cause = ctx.cancelled().await;
            ctx.stopped::<Value>(cause)
        })
        // It is aborted after its grace, and ends after a time if it is not cancelled.
        .method("deaf", |_: CallContext, value: Value| async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok(value)
        })
        .method("tell", |ctx: CallContext, value: Value| async move {
            for n in 0..number(&value, "times") {
                ctx.notify("reported", &json!({ "n": n })).await?;
                tokio::task::yield_now().await;
            }
            Ok(value)
        })
        .method("ask", |ctx: CallContext, value: Value| async move {
            let answer: Value = ctx.call("echo", &value).await?;
            Ok(answer)
        })
        .blocking("block", |ctx: CallContext, value: Value| {
            for _ in 0..number(&value, "ms") {
                ctx.check()?;
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(value)
        })
}

/// The methods of a client.
pub(crate) fn client_router() -> Router {
    Router::new().method("echo", |_: CallContext, value: Value| async { Ok(value) })
}

fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// Params with one additional member.
pub(crate) fn with(mut params: Value, name: &str, member: Value) -> Value {
    if let Some(members) = params.as_object_mut() {
        members.insert(name.to_owned(), member);
    }
    params
}
