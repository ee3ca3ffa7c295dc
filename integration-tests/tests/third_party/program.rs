//! The programs, and how to connect to each.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};

use rescind::dialect::{self, Dialect};
use rescind::http::{AcpTransport, HttpClient, StatelessTransport, StreamableTransport};
use rescind::named_pipe::{NamedPipeListener, PipeAddress};
use rescind::stdio::{ChildHandle, Command};
use rescind::transport::{Link, Listener as _, Transport};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
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
