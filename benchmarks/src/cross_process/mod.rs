//! The transports between two processes. Both processes run this program.
//!
//! A server sends all additional messages (where it listens, when a handler was signalled) to its stderr, so that no
//! measured transport carries them.

mod client;
pub mod echoes;
mod server;

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rescind_core::dialect::{ACP, Dialect, MCP, MCP_2026};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe;

use crate::limits;
use crate::load_test::processor_time;

pub use client::OurClient;
pub(crate) use server::own_pipes;
#[cfg(feature = "count")]
pub(crate) use server::router;
pub use server::serve_if_asked;

const SERVE: &str = "RESCIND_BENCHMARK_SERVES_APART";
/// A suffix of what is served: the server runs on another core.
const OTHER_CORE: &str = " other-core";
/// How long a process may take to end after it was asked to.
const ENDING: Duration = Duration::from_secs(2);

/// A transport between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// The pipes of a child's stdin and stdout.
    Stdio,
    /// A Unix domain socket.
    NamedPipe,
    /// A WebSocket.
    WebSocket,
    /// The binding `streamable` in HTTP/1.1.
    Streamable,
    /// The same in HTTP/2.
    Streamable2,
    /// The binding `stateless` in HTTP/1.1.
    Stateless,
    /// The same in HTTP/2.
    Stateless2,
    /// The binding `acp`, which is HTTP/2.
    Acp,
}

impl Wire {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Stdio,
        Self::NamedPipe,
        Self::WebSocket,
        Self::Streamable,
        Self::Streamable2,
        Self::Stateless,
        Self::Stateless2,
        Self::Acp,
    ];

    /// Its name in the table and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::NamedPipe => "named-pipe",
            Self::WebSocket => "websocket",
            Self::Streamable => "http-streamable",
            Self::Streamable2 => "http-streamable-h2",
            Self::Stateless => "http-stateless",
            Self::Stateless2 => "http-stateless-h2",
            Self::Acp => "http-acp",
        }
    }

    /// Whether frames are posted.
    #[must_use]
    pub const fn is_http(self) -> bool {
        !matches!(self, Self::Stdio | Self::NamedPipe | Self::WebSocket)
    }

    /// W1: the microseconds that an echo of 64 B may take above the floor.
    #[must_use]
    pub const fn echo_limit(self) -> f64 {
        if self.is_http() { limits::ECHO_OVER_HTTP } else { limits::ECHO_BETWEEN_PROCESSES }
    }

    pub(crate) const fn is_http2(self) -> bool {
        matches!(self, Self::Streamable2 | Self::Stateless2 | Self::Acp)
    }

    /// Whether the server may send messages without a request.
    const fn is_two_way(self) -> bool {
        !matches!(self, Self::Stateless | Self::Stateless2)
    }

    pub(crate) const fn dialect(self) -> Dialect {
        match self {
            Self::Stdio | Self::NamedPipe | Self::WebSocket | Self::Acp => ACP,
            Self::Streamable | Self::Streamable2 => MCP,
            Self::Stateless | Self::Stateless2 => MCP_2026,
        }
    }

    /// Params of an echo with this many bytes.
    #[must_use]
    pub fn params(self, bytes: usize) -> Box<serde_json::value::RawValue> {
        let mut params = serde_json::json!({ "text": "x".repeat(bytes) });
        if !self.is_two_way() {
            params["_meta"] = serde_json::json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        serde_json::value::to_raw_value(&params).expect("params are JSON")
    }
}

/// What a server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// A router, through `Peer`.
    Ours,
    /// An echo without our code.
    Raw,
    /// The router of a load test, through `Peer`.
    LoadTest,
}

/// A server in a separate process, which ends on drop.
#[derive(Debug)]
pub struct Far {
    child: Child,
    /// Closing it ends the process, unless it is the transport.
    stdin: Option<ChildStdin>,
    /// The transport, if it is stdio: the server's output and its input.
    pipes: Option<(OwnedFd, OwnedFd)>,
    told: BufReader<pipe::Receiver>,
    /// Where it listens.
    pub endpoint: String,
}

impl Far {
    /// Starts a server with this transport.
    ///
    /// # Panics
    /// If the process does not start or does not serve.
    pub async fn start(wire: Wire, serves: Serves) -> Self {
        Self::begin(wire, serves, "").await
    }

    /// The same, on another core than that of a pinned client, if there are two.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub async fn start_on_other_core(wire: Wire, serves: Serves) -> Self {
        Self::begin(wire, serves, OTHER_CORE).await
    }

    async fn begin(wire: Wire, serves: Serves, place: &str) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut child = Command::new(program)
            .env(SERVE, format!("{} {serves:?}{place}", wire.name()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this program starts once more");
        let told = OwnedFd::from(child.stderr.take().expect("piped"));
        let told = BufReader::new(pipe::Receiver::from_owned_fd(told).expect("a pipe"));
        let (mut stdin, stdout) = (child.stdin.take(), child.stdout.take().expect("piped"));
        let pipes = (wire == Wire::Stdio)
            .then(|| (OwnedFd::from(stdout), OwnedFd::from(stdin.take().expect("piped"))));
        let mut far = Self { child, stdin, pipes, told, endpoint: String::new() };
        far.endpoint = far.hear("listening").await;
        far
    }

    /// The server's output and its input, if they are the transport.
    pub(crate) fn take_pipes(&mut self) -> (OwnedFd, OwnedFd) {
        self.pipes.take().expect("a child has one client")
    }

    /// The time of the next handler's signal.
    ///
    /// # Panics
    /// If the server ended.
    pub async fn signalled(&mut self) -> u64 {
        self.hear("signalled").await.parse().expect("a time")
    }

    /// The rest of the next line that begins with this. Other lines are passed on.
    async fn hear(&mut self, about: &str) -> String {
        loop {
            let mut line = String::new();
            let read = self.told.read_line(&mut line).await.expect("stderr can be read");
            assert!(read > 0, "the server ended");
            if let Some(rest) = line.strip_prefix(about) {
                return rest.trim().to_owned();
            }
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    /// Seconds of processor time that it has used.
    ///
    /// # Panics
    /// If there is no `/proc`.
    #[must_use]
    pub fn processor_time(&self) -> f64 {
        processor_time(self.child.id())
    }

    /// Its resident memory, in bytes.
    ///
    /// # Panics
    /// If there is no `/proc`.
    #[must_use]
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
        line.trim_end_matches("kB").trim().parse::<u64>().expect("a number") * 1024
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        if self.stdin.take().is_some() {
            let by = Instant::now() + ENDING;
            while Instant::now() < by {
                if matches!(self.child.try_wait(), Ok(Some(_))) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
