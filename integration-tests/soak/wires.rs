//! The wires: how each is served within this process or by a child, and how it is connected to.

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
use rescind::{Framing, Server, ServerBuilder};

use rescind_testkit::support::mcp_meta;
use serde_json::Value;

use crate::Failure;
use crate::agent::with;

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
