//! The transports between two processes. Both processes run this program.
//!
//! A server sends all additional messages (where it listens, when a handler was signalled) to its stderr, so that no
//! measured transport carries them.

use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rescind_core::dialect::{ACP, Dialect, MCP, MCP_2026, Role};
use rescind_core::{
    CallContext, Framing, HandlerError, Link, Listener, Outcome, Peer, PeerBuilder, Router, Server,
    ServerLimits, Share, Transport,
};
use rescind_http::{
    Acp, AcpTransport, HttpClient, HttpServer, ServerBinding, Stateless, StatelessTransport, Streamable,
    StreamableTransport,
};
use rescind_named_pipe::{NamedPipeListener, NamedPipeTransport, PipeAddress};
use rescind_stdio::Descriptors;
use rescind_websocket::connect;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::load_test::{self, processor_time};
use crate::raw::{self, RawClient};
use crate::resources::{leave_the_first_core, one_thread, pinned};
use crate::subject::Name;
use crate::{clock, limits, text_between, wire_subjects};

const SERVE: &str = "RESCIND_BENCHMARK_SERVES_APART";
/// A suffix of what is served: the server runs on another core.
const OTHER_CORE: &str = " other-core";
/// The program that counts instructions.
const COUNTER: &str = "valgrind";
/// How long a process may take to end after it was asked to.
const ENDING: Duration = Duration::from_secs(2);
/// The same for one whose instructions are counted.
const ENDING_COUNTED: Duration = Duration::from_secs(60);

/// What a server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// A router, through `Peer`.
    Ours,
    /// An echo without our code.
    Raw,
    /// The router of a load test, through `Peer`.
    LoadTest,
    /// A [subject](crate::wire_subjects) of this name.
    Subject(Name),
}

impl Serves {
    /// Its name in the environment of the server's process.
    fn asked(self) -> String {
        match self {
            Self::Ours => "Ours".to_owned(),
            Self::Raw => "Raw".to_owned(),
            Self::LoadTest => "LoadTest".to_owned(),
            Self::Subject(Name { library, configuration, .. }) => format!("{library}\n{configuration}"),
        }
    }
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

    /// The same, by a program that counts its instructions. `None`: callgrind is not there.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub async fn start_counted(wire: Wire, serves: Serves) -> Option<Self> {
        let mut there = Command::new(COUNTER);
        let there = there.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if !there.status().is_ok_and(|status| status.success()) {
            return None;
        }
        let mut command = Command::new(COUNTER);
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
        command.arg(std::env::current_exe().expect("this program has a path"));
        Some(Self::begin_by(command, wire, serves, "").await)
    }

    async fn begin(wire: Wire, serves: Serves, place: &str) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        Self::begin_by(Command::new(program), wire, serves, place).await
    }

    /// The same, with this command: this program, perhaps run by another one.
    async fn begin_by(mut command: Command, wire: Wire, serves: Serves, place: &str) -> Self {
        let mut child = command
            .env(SERVE, format!("{} {}{place}", wire.name(), serves.asked()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this program starts once more");
        let told = OwnedFd::from(child.stderr.take().expect("piped"));
        let told = BufReader::new(pipe::Receiver::from_owned_fd(told).expect("a pipe"));
        let (mut stdin, stdout) = (child.stdin.take(), child.stdout.take().expect("piped"));
        let pipes = wire
            .is_of_a_child()
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
            // Not those of the program that counts.
            if !line.starts_with("==") {
                let _ = std::io::stderr().write_all(line.as_bytes());
            }
        }
    }

    /// Ends a server that is [counted](Self::start_counted), and returns how many instructions it took. `None`: it does not end, or
    /// does not say.
    pub async fn collected(mut self) -> Option<u64> {
        self.stdin.take();
        let mut told = String::new();
        timeout(ENDING_COUNTED, self.told.read_to_string(&mut told)).await.ok()?.ok()?;
        let (_, collected) = told.lines().find_map(|line| line.split_once("Collected :"))?;
        collected.trim().parse().ok()
    }

    /// The number of its process.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.child.id()
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
        memory_of(self.child.id(), "VmRSS:").expect("there is /proc")
    }
}

/// A line of a process's memory in bytes. `None`: there is no `/proc`.
pub(crate) fn memory_of(process: u32, line: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let value = status.lines().find_map(|one| one.strip_prefix(line))?;
    Some(value.trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
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

// The transports: their names, their dialects, their params and their limits.

/// A transport between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// The pipes of a child's stdin and stdout.
    Stdio,
    /// The same, with headers in place of line ends.
    ContentLength,
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
    /// All that carry small frames: [`ContentLength`](Self::ContentLength) differs from [`Stdio`](Self::Stdio) in how the end of a
    /// large one is found.
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
            Self::ContentLength => "content-length",
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
        !matches!(self, Self::Stdio | Self::ContentLength | Self::NamedPipe | Self::WebSocket)
    }

    /// W1: the microseconds that an echo of 64 B may take above the floor.
    #[must_use]
    pub const fn echo_limit(self) -> f64 {
        if self.is_http() { limits::ECHO_OVER_HTTP } else { limits::ECHO_BETWEEN_PROCESSES }
    }

    /// The second round's limit of the same. `None`: it is that of the first.
    #[must_use]
    pub const fn second_echo_limit(self) -> Option<f64> {
        match self {
            Self::Streamable | Self::Stateless => Some(limits::ECHO_OVER_HTTP1),
            Self::Streamable2 | Self::Stateless2 | Self::Acp => Some(limits::ECHO_OVER_HTTP2),
            Self::Stdio | Self::ContentLength | Self::NamedPipe | Self::WebSocket => None,
        }
    }

    /// The most KiB of an idle session in the server. `None`: it has no limit.
    #[must_use]
    pub const fn idle_limit(self) -> Option<f64> {
        match self {
            Self::Stdio | Self::ContentLength => None,
            Self::NamedPipe => Some(limits::IDLE_NAMED_PIPE),
            Self::WebSocket => Some(limits::IDLE_WEBSOCKET),
            Self::Streamable | Self::Streamable2 | Self::Stateless | Self::Stateless2 | Self::Acp => {
                Some(limits::IDLE_HTTP)
            }
        }
    }

    pub(crate) const fn is_http2(self) -> bool {
        matches!(self, Self::Streamable2 | Self::Stateless2 | Self::Acp)
    }

    /// Whether it is the pipes of a child, which has one client.
    pub(crate) const fn is_of_a_child(self) -> bool {
        matches!(self, Self::Stdio | Self::ContentLength)
    }

    /// Whether the server may send messages without a request.
    pub(crate) const fn is_two_way(self) -> bool {
        !matches!(self, Self::Stateless | Self::Stateless2)
    }

    pub(crate) const fn dialect(self) -> Dialect {
        match self {
            Self::Stdio | Self::ContentLength | Self::NamedPipe | Self::WebSocket | Self::Acp => ACP,
            Self::Streamable | Self::Streamable2 => MCP,
            Self::Stateless | Self::Stateless2 => MCP_2026,
        }
    }

    /// Params of an echo with this many bytes.
    #[must_use]
    pub fn params(self, bytes: usize) -> Box<serde_json::value::RawValue> {
        let begin = if self.is_two_way() {
            r#"{"text":""#
        } else {
            concat!(
                r#"{"_meta":{"io.modelcontextprotocol/clientCapabilities":{},"#,
                r#""io.modelcontextprotocol/protocolVersion":"2026-07-28"},"text":""#,
            )
        };
        text_between(begin, bytes, r#""}"#)
    }
}

// The server's process.

/// The most connections and sessions.
const MOST: usize = 100_000;

/// Serves and does not return, if this process was started by [`Far`](Far).
///
/// # Panics
/// If it cannot serve.
pub fn serve_if_asked() {
    let Ok(asked) = std::env::var(SERVE) else { return };
    let (name, serves) = asked.split_once(' ').expect("a wire and what it serves");
    let (serves, elsewhere) =
        serves.strip_suffix(OTHER_CORE).map_or((serves, false), |serves| (serves, true));
    if elsewhere {
        leave_the_first_core();
    }
    let mut wires = Wire::ALL.into_iter().chain([Wire::ContentLength]);
    let wire = wires.find(|wire| wire.name() == name).expect("a wire");
    one_thread().block_on(async {
        let serving = async {
            match serves {
                "Raw" => raw::serve(wire, raw::Answers::Same, listens).await,
                "LoadTest" => serve_router(wire, load_test::router()).await,
                "Ours" => serve_router(wire, router()).await,
                subject => wire_subjects::serve(wire, subject, listens).await,
            }
        };
        if wire.is_of_a_child() {
            serving.await;
        } else {
            tokio::select! { () = serving => {}, () = asked_to_end() => {} }
        }
    });
    std::process::exit(0);
}

/// Reports the address of this process to the one that measures.
fn listens(endpoint: &str) {
    eprintln!("listening {endpoint}");
}

async fn asked_to_end() {
    let (input, _) = own_pipes();
    let mut input = pipe::Receiver::from_owned_fd(input).expect("stdin is a pipe");
    let _ = input.read_u8().await;
}

/// Stdin and stdout.
pub(crate) fn own_pipes() -> (OwnedFd, OwnedFd) {
    let own = |descriptor: &dyn AsFd| descriptor.as_fd().try_clone_to_owned().expect("a descriptor is free");
    (own(&std::io::stdin()), own(&std::io::stdout()))
}

pub(crate) async fn serve_router(wire: Wire, router: Router) {
    match wire {
        Wire::Stdio | Wire::ContentLength => {
            let (input, output) = own_pipes();
            let link: Link = Box::new(pipes(wire, input, output)).open().await.expect("pipes open");
            let peer = Peer::builder(wire.dialect()).serve(router).attach(link).expect("it opens");
            listens("stdio");
            let _ = peer.closed().await;
        }
        Wire::NamedPipe => {
            let name = format!("rescind-benchmark-{}", std::process::id());
            let address = PipeAddress::name(&name).expect("a name");
            listen(wire, router, NamedPipeListener::bind(&address).await.expect("a pipe"), &name).await;
        }
        Wire::WebSocket => on_port(wire, router, rescind_websocket::bind("127.0.0.1:0").await).await,
        Wire::Streamable | Wire::Streamable2 => {
            on_port(wire, router, many(HttpServer::new(Streamable::new())).bind("127.0.0.1:0").await).await;
        }
        Wire::Stateless | Wire::Stateless2 => {
            on_port(wire, router, HttpServer::new(Stateless::new()).bind("127.0.0.1:0").await).await;
        }
        Wire::Acp => {
            on_port(wire, router, many(HttpServer::new(Acp::new())).path("/acp").bind("127.0.0.1:0").await)
                .await;
        }
    }
}

/// A load test has more sessions than the default permits.
fn many<B: ServerBinding>(server: HttpServer<B>) -> HttpServer<B> {
    server.sessions(MOST).connections(2 * MOST)
}

async fn on_port<L: Listener>(wire: Wire, router: Router, bound: Result<L, rescind_core::TransportError>) {
    let listener = bound.expect("a port is free");
    let endpoint = listener.endpoint().0;
    listen(wire, router, listener, &endpoint).await;
}

async fn listen(wire: Wire, router: Router, listener: impl Listener, endpoint: &str) {
    // All clients have one address.
    let mut limits = ServerLimits::default();
    limits.max_connections = MOST;
    limits.client_share = Share::ALL;
    let server = Server::builder([wire.dialect()]).server_limits(limits).serve(router).on_peer(move |peer| {
        // It shows the client that the direction to it is open, which over HTTP is a separate stream.
        if wire.is_two_way() {
            peer.try_notify("welcome", &json!({})).expect("there is room");
        }
    });
    let server = server.listen(listener);
    listens(endpoint);
    let _ = server.run().await;
}

pub(crate) fn router() -> Router {
    let heard = Arc::new(watch::Sender::new(0_u64));
    let count = Arc::clone(&heard);
    Router::new()
        .method("initialize", |_: CallContext, asked: Value| async move {
            let version = asked["protocolVersion"].clone();
            Ok(json!({
                "protocolVersion": version, "capabilities": {}, "agentCapabilities": {},
                "serverInfo": {"name": "benchmark", "version": "1"},
            }))
        })
        .method("echo", |_: CallContext, params: Box<RawValue>| async move { Ok(params) })
        .method("park", |context: CallContext, _: Value| async move {
            // Over HTTP it is sent with the response's head. After that a cancel need not wait.
            context.try_notify("parked", &json!({}))?;
            context.cancelled().await;
            eprintln!("signalled {}", clock());
            Ok::<_, HandlerError>(json!({}))
        })
        .method("heard", move |_: CallContext, params: Value| {
            let mut heard = heard.subscribe();
            async move {
                let least = params["least"].as_u64().unwrap_or_default();
                let heard = heard.wait_for(|heard| *heard >= least).await.expect("the router lives");
                Ok(json!({ "heard": *heard }))
            }
        })
        .notification("noise", move |_, _: Value| {
            count.send_modify(|heard| *heard += 1);
            async {}
        })
}

// The calling side, through `Peer`.

/// A client of a server in another process.
#[derive(Debug)]
pub struct OurClient {
    wire: Wire,
    pub(crate) peer: Peer,
    pub(crate) parked: mpsc::UnboundedReceiver<()>,
    /// Notifications sent so far.
    noise: u64,
    /// How long it took to queue notifications the last time, in nanoseconds.
    queueing: u64,
}

impl OurClient {
    /// A client after its handshake, whose direction from the server is open too.
    ///
    /// # Panics
    /// If the server does not answer.
    pub async fn open(wire: Wire, far: &mut Far) -> Self {
        let (tell, parked) = mpsc::unbounded_channel();
        let (welcome, mut welcomed) = mpsc::unbounded_channel();
        let router = Router::new()
            .notification("parked", move |_, _: Value| {
                let _ = tell.send(());
                async {}
            })
            .notification("welcome", move |_, _: Value| {
                let _ = welcome.send(());
                async {}
            });
        let peer = Peer::builder(wire.dialect()).serve(router).role(Role::Client);
        let peer = if wire.is_of_a_child() {
            let (input, output) = far.take_pipes();
            over(peer, pipes(wire, input, output)).await
        } else {
            Self::connect(wire, peer, &far.endpoint).await
        };
        Self::shake_hands(wire, &peer).await;
        // A child's pipes have one client, which needs no welcome.
        if wire.is_two_way() && !wire.is_of_a_child() {
            welcomed.recv().await.expect("the server says welcome");
        }
        Self { wire, peer, parked, noise: 0, queueing: 0 }
    }

    /// Connects to a server that listens.
    pub(crate) async fn connect(wire: Wire, peer: PeerBuilder, endpoint: &str) -> Peer {
        match wire {
            Wire::Stdio | Wire::ContentLength => unreachable!("pipes of a child have no address"),
            Wire::NamedPipe => {
                let address = PipeAddress::name(endpoint).expect("a name");
                over(peer, NamedPipeTransport::new(address)).await
            }
            Wire::WebSocket => over(peer, connect(endpoint)).await,
            Wire::Streamable | Wire::Streamable2 => {
                over(peer, StreamableTransport::new(http(wire, endpoint))).await
            }
            Wire::Stateless | Wire::Stateless2 => {
                over(peer, StatelessTransport::new(http(wire, endpoint))).await
            }
            Wire::Acp => over(peer, AcpTransport::new(http(wire, endpoint))).await,
        }
    }

    pub(crate) async fn shake_hands(wire: Wire, peer: &Peer) {
        let hello = match wire {
            Wire::Stateless | Wire::Stateless2 => return,
            Wire::Streamable | Wire::Streamable2 => json!({
                "protocolVersion": "2025-11-25", "capabilities": {},
                "clientInfo": {"name": "benchmark", "version": "1"},
            }),
            Wire::Stdio | Wire::ContentLength | Wire::NamedPipe | Wire::WebSocket | Wire::Acp => {
                json!({"protocolVersion": 1, "clientCapabilities": {}})
            }
        };
        let _: Value = peer.call("initialize", &hello).await.expect("the server shakes hands");
        if matches!(wire, Wire::Streamable | Wire::Streamable2) {
            peer.try_notify("notifications/initialized", &json!({})).expect("there is room");
        }
    }

    /// One round trip, in nanoseconds.
    ///
    /// # Panics
    /// If the server does not echo.
    pub async fn echo(&mut self, params: &RawValue) -> u64 {
        let begin = clock();
        let echoed: Box<RawValue> = self.peer.call("echo", params).await.expect("the server echoes");
        let took = clock() - begin;
        assert!(echoed.get().len() >= params.get().len());
        took
    }

    /// The time from the cancel of a waiting request to its handler's signal, in nanoseconds, after this many
    /// notifications.
    ///
    /// A cancel without notifications before it is sent after a pause as long as the last queueing took. While
    /// notifications are queued, the server's core becomes idle, and waking it costs more than everything else here.
    ///
    /// # Panics
    /// If the cancel is not sent or not signalled.
    pub async fn cancel(&mut self, far: &mut Far, ahead: usize) -> u64 {
        let (params, noise) = (self.wire.params(1), self.wire.params(64));
        let call = self.peer.call::<_, Value>("park", &params).start().expect("a call starts");
        self.parked.recv().await.expect("the handler says that it waits");
        let queueing = clock();
        for _ in 0..ahead {
            self.peer.try_notify("noise", &noise).expect("the outbox has room");
        }
        if ahead > 0 {
            self.queueing = clock() - queueing;
        }
        while clock() - queueing < self.queueing {
            std::hint::spin_loop();
        }
        let canceller = call.canceller();
        let begin = clock();
        canceller.cancel("");
        let outcome = call.outcome().await;
        assert!(matches!(outcome, Outcome::CompletedAfterCancel(_) | Outcome::Cancelled(_)), "{outcome:?}");
        let took = far.signalled().await - begin;
        if ahead > 0 {
            self.noise += ahead as u64;
            let mut params: Value = serde_json::from_str(params.get()).expect("params are JSON");
            params["least"] = json!(self.noise);
            let _: Value = self.peer.call("heard", &params).await.expect("all of it is heard");
        }
        took
    }
}

/// Pipes with the framing of this transport.
pub(super) fn pipes(wire: Wire, input: OwnedFd, output: OwnedFd) -> Descriptors {
    let framing = if wire == Wire::ContentLength { Framing::ContentLength } else { Framing::Newline };
    Descriptors::new(input, output).framing(framing)
}

async fn over(peer: PeerBuilder, transport: impl Transport) -> Peer {
    let link: Link = Box::new(transport).open().await.expect("the wire opens");
    peer.attach(link).expect("the runtime runs")
}

fn http(wire: Wire, url: &str) -> HttpClient {
    let client = HttpClient::new(url).expect("a URL");
    if wire.is_http2() { client.http2() } else { client }
}

// Echoes between two processes, of this library and of the floor in turns.

/// Echoes of one subject before the other has its turn.
const TURN: usize = 25;
/// The number of measured cancels if each resets a stream. After 200 at once a client delays further resets, so that
/// its server does not end the connection.
pub const RESETS: usize = 150;
/// Rounds that warm up and do not count.
pub const WARM: usize = 2;

/// Runs the measurement in a task on one pinned thread, because waking something outside the tasks makes the runtime
/// look for events once more.
pub fn in_a_task<T: Send + 'static>(measure: impl Future<Output = T> + Send + 'static) -> T {
    pinned(|| one_thread().block_on(async { tokio::spawn(measure).await.expect("it does not panic") }))
}

/// Medians, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Through `Peer`.
    pub ours: f64,
    /// The same transport without this library.
    pub floor: f64,
    /// The median of the rounds' differences, which a change of the machine's load hardly affects.
    pub over: f64,
    /// The time from a cancel to its handler's signal.
    pub cancel: Option<f64>,
}

/// Echoes of this library and of the floor in turns, with this many cancels of this library in each round.
///
/// # Panics
/// If the connection does not open.
pub async fn measure_echoes(wire: Wire, rounds: usize, cancels: usize) -> Times {
    let mut far = Far::start(wire, Serves::Ours).await;
    let mut raw_far = Far::start(wire, Serves::Raw).await;
    let mut ours = OurClient::open(wire, &mut far).await;
    let mut floor = RawClient::open(wire, &mut raw_far).await;
    let (params, frame) = (wire.params(64), raw::frame(wire, 64));
    let mut samples: [Vec<f64>; 4] = Default::default();
    let mut cancels_left = if wire == Wire::Stateless2 { RESETS } else { usize::MAX };
    for round in 0..rounds + WARM {
        let [mut echoes, mut floors, mut took]: [Vec<f64>; 3] = Default::default();
        // In the order A B B A, and reversed in the next round.
        for half in 0..2 {
            for first in [round % 2 == half, round % 2 != half] {
                for _ in 0..TURN {
                    if first {
                        echoes.push(micros(ours.echo(&params).await));
                    } else {
                        floors.push(micros(floor.echo(&frame).await));
                    }
                }
            }
        }
        for _ in 0..cancels.min(cancels_left) {
            cancels_left -= 1;
            took.push(micros(ours.cancel(&mut far, 0).await));
        }
        if round >= WARM {
            let (ours, floor) = (median(&mut echoes), median(&mut floors));
            for (samples, value) in samples.iter_mut().zip([ours, floor, ours - floor]) {
                samples.push(value);
            }
            samples[3].append(&mut took);
        }
    }
    let [ours, floor, over, cancel] =
        samples.map(|mut samples| (!samples.is_empty()).then(|| median(&mut samples)));
    let [ours, floor, over] = [ours, floor, over].map(|median| median.expect("there are rounds"));
    Times { ours, floor, over, cancel }
}

/// The time in microseconds.
#[must_use]
pub fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

/// The median.
#[must_use]
pub fn median(samples: &mut [f64]) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    samples[samples.len() / 2]
}
