//! The processes of a cluster: the replicas, and the server of the engine on which they run.

use std::io::{BufRead as _, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use std::{env, fs, io, process, thread};

use rescind_cluster::{CancelBus, Cluster, Secret};
use rescind_testkit::support::in_time;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;

use super::client::{Binding, Session};
use super::trial::tell;

// Replicas of the fixture as processes, and the commands of the same program.

/// The names of the replicas.
pub(crate) const NODES: [&str; 3] = ["n1", "n2", "n3"];
const PROGRAM: &str = env!("CARGO_BIN_EXE_rescind");

/// How the replicas are started.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) binding: Binding,
    /// Further arguments of each.
    pub(crate) arguments: Vec<String>,
    /// The content of the file of the secret.
    pub(crate) secret: Option<&'static str>,
    pub(crate) server: ServerOptions,
    /// The engine's address as the replicas see it. Default: its own.
    pub(crate) engine_port: Option<u16>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            binding: Binding::Streamable,
            arguments: Vec::new(),
            secret: None,
            server: ServerOptions::Usual,
            engine_port: None,
        }
    }
}

/// Three replicas and what they share.
pub(crate) struct Replicas {
    pub(crate) setup: Setup,
    pub(crate) engine: Option<EngineServer>,
    folder: Folder,
    pub(crate) nodes: Vec<Node>,
}

/// A running replica. It is killed on drop.
pub(crate) struct Node {
    name: String,
    pub(crate) address: SocketAddr,
    /// The address of its page, if it has one.
    pub(crate) page: Option<SocketAddr>,
    process: Child,
}

/// The output of a command.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: ExitStatus,
    pub(crate) stderr: String,
}

impl Replicas {
    /// Starts three replicas of MCP.
    pub(crate) async fn start(backend: Backend) -> Self {
        Self::start_with(backend, Setup::default()).await
    }

    pub(crate) async fn start_with(backend: Backend, setup: Setup) -> Self {
        let mut replicas = Self::without_nodes(backend, setup);
        let [one, two, three] = NODES.map(|name| replicas.command(name, &[]));
        let started = tokio::join!(
            Node::start(NODES[0], one),
            Node::start(NODES[1], two),
            Node::start(NODES[2], three)
        );
        replicas.nodes = [started.0, started.1, started.2].map(Result::unwrap).into();
        replicas.write_list();
        replicas
    }

    /// The engine alone.
    pub(crate) fn without_nodes(backend: Backend, setup: Setup) -> Self {
        let engine = EngineServer::start(backend, setup.server);
        let replicas = Self { setup, engine, folder: Folder::new(), nodes: Vec::new() };
        if let Some(secret) = replicas.setup.secret {
            fs::write(replicas.folder.0.join("secret"), secret).unwrap();
        }
        replicas.write_list();
        replicas
    }

    /// Adds three nodes. `port`: where they, and the commands, find the engine. `urls`: the cluster of a single node.
    pub(crate) async fn with_nodes(mut self, port: Option<u16>, urls: [Option<String>; 3]) -> Self {
        self.setup.engine_port = port;
        for (name, url) in NODES.into_iter().zip(urls) {
            let command = match url {
                None => self.command(name, &[]),
                Some(url) => self.command_in(&url, name, &[]),
            };
            self.nodes.push(Node::start(name, command).await.unwrap());
        }
        self.write_list();
        self
    }

    /// Starts the nodes one after the other, so that their heartbeats differ: after the loss of all entries each node has a time in
    /// which it reads no entry of another.
    pub(crate) async fn with_heartbeats_apart(backend: Backend, setup: Setup) -> Self {
        let mut replicas = Self::without_nodes(backend, setup);
        for name in NODES {
            let node = Node::start(name, replicas.command(name, &[])).await.unwrap();
            replicas.nodes.push(node);
            tokio::time::sleep(Duration::from_millis(800)).await;
        }
        replicas
    }

    /// This process in the cluster, without a name.
    pub(crate) async fn bus(&self) -> CancelBus {
        let secret = self.setup.secret.map_or_else(Secret::of_loopback, |text| Secret::new(text).unwrap());
        let cluster = Cluster::connect(self.cluster().parse().unwrap(), None, secret).await;
        cluster.unwrap().cancel_bus()
    }

    /// The argument of `--cluster`.
    pub(crate) fn cluster(&self) -> String {
        match (&self.engine, self.setup.engine_port) {
            (Some(engine), Some(port)) => engine.url_at(port),
            (Some(engine), None) => engine.url(),
            (None, _) => format!("static:@{}", self.list().display()),
        }
    }

    fn list(&self) -> PathBuf {
        self.folder.0.join("list")
    }

    /// Writes the addresses of the nodes into the list.
    pub(crate) fn write_list(&self) {
        let lines = self.nodes.iter().map(|node| format!("{}=http://{}/rpc\n", node.name, node.address));
        self.write_lines(&lines.collect::<String>());
    }

    /// Writes this list.
    pub(crate) fn write_lines(&self, lines: &str) {
        // Renamed, so that no replica reads a part of it.
        let part = self.folder.0.join("part");
        fs::write(&part, lines).unwrap();
        fs::rename(&part, self.list()).unwrap();
    }

    /// The addresses of the replicas, in their order.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.address).collect()
    }

    /// The command that starts a node.
    pub(crate) fn command(&self, name: &str, more: &[&str]) -> Command {
        self.command_in(&self.cluster(), name, more)
    }

    fn command_in(&self, cluster: &str, name: &str, more: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(["fixture", "--dialect", self.setup.binding.dialect(), "--node", name]);
        command.args(["--listen", "http://127.0.0.1:0/rpc", "--cluster", cluster]);
        if self.setup.secret.is_some() {
            command.arg("--secret-file").arg(self.folder.0.join("secret"));
        }
        if env::var_os("RESCIND_CLUSTER_LOG").is_some() {
            command.arg("--verbose");
        }
        command.args(&self.setup.arguments).args(more);
        command
    }

    /// Writes a file, for an argument.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let file = self.folder.0.join(name);
        fs::write(&file, text).unwrap();
        file.display().to_string()
    }

    /// Starts a node again, which has ended. It has another port.
    pub(crate) async fn start_again(&mut self, index: usize) {
        let node = Node::start(NODES[index], self.command(NODES[index], &[])).await.unwrap();
        self.nodes[index] = node;
        self.write_list();
    }

    /// `rescind cancel`.
    pub(crate) async fn cancel(&self, key: &str, more: &[&str]) -> Said {
        let mut command = tokio::process::Command::new(PROGRAM);
        command.args(["cancel", "--cluster", &self.cluster()]);
        if let (Some(_), false) = (self.setup.secret, more.contains(&"--secret-file")) {
            command.arg("--secret-file").arg(self.folder.0.join("secret"));
        }
        command.args(more).arg(key);
        run(command).await
    }

    /// The command `rescind worker`.
    pub(crate) fn worker(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(PROGRAM);
        command.args(["worker", "--cluster", &self.cluster()]);
        command
    }

    /// A session at a node.
    pub(crate) async fn session(&self, index: usize) -> Session {
        Session::open(self.nodes[index].address, self.setup.binding).await
    }
}

/// Runs a command to its end.
pub(crate) async fn run(mut command: tokio::process::Command) -> Said {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = in_time("a command", command.output()).await.unwrap();
    Said { status: output.status, stderr: String::from_utf8_lossy(&output.stderr).into_owned() }
}

impl Node {
    /// Starts a node and waits until it listens. An error: what it said before it ended.
    pub(crate) async fn start(name: &str, command: Command) -> Result<Self, Said> {
        let mut command = tokio::process::Command::from(command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut said = String::new();
        let address = |url: &str| -> SocketAddr {
            url.trim_start_matches("http://").split('/').next().unwrap_or_default().parse().unwrap()
        };
        let mut page = None;
        while let Some(line) = in_time("a node starts", lines.next_line()).await.unwrap() {
            if let Some(url) = line.strip_prefix("listening on ") {
                let address = address(url);
                // Its pipe stays open. RESCIND_CLUSTER_LOG prints the rest of its log.
                let (node, shows) = (name.to_owned(), env::var_os("RESCIND_CLUSTER_LOG").is_some());
                tokio::spawn(async move {
                    while let Ok(Some(line)) = lines.next_line().await {
                        if shows {
                            tell(&format!("{node}: {line}"));
                        }
                    }
                });
                return Ok(Self { name: name.to_owned(), address, page, process });
            }
            page = line.strip_prefix("page on ").map(address).or(page);
            said.push_str(&line);
            said.push('\n');
        }
        let status = in_time("a node ends", process.wait()).await.unwrap();
        Err(Said { status, stderr: said })
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.process.id().unwrap()
    }

    fn send(&self, signal: Signal) {
        let id = Pid::from_raw(self.process_id().try_into().unwrap()).unwrap();
        kill_process(id, signal).unwrap();
    }

    /// Ends it as SIGKILL does.
    pub(crate) async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }

    /// Asks it to end, as a supervisor does.
    pub(crate) fn ask_to_end(&self) {
        self.send(Signal::TERM);
    }

    /// Ends it as a supervisor does, and waits until its requests have ended.
    pub(crate) async fn terminate(&mut self) {
        self.ask_to_end();
        self.ended().await;
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&mut self) {
        let ended = in_time("a drain", self.process.wait()).await.unwrap();
        assert!(ended.success(), "{} ended with {ended}", self.name);
    }

    /// Suspends it.
    pub(crate) fn stop(&self) {
        self.send(Signal::STOP);
        wait_until_stopped(self.process_id());
    }

    /// Resumes a suspended node.
    pub(crate) fn go_on(&self) {
        self.send(Signal::CONT);
    }
}

/// A folder that is deleted on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("rescind-cluster-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

// What a cluster runs on: a list of nodes, or a server of Redis or NATS that each test starts for itself.

/// What a cluster runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    List,
    Redis,
    Nats,
}

/// How the server of an engine is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerOptions {
    Usual,
    /// It can store about 1 MB.
    Full,
    /// Redis keeps nothing when it ends.
    Forgetful,
}

impl Backend {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Redis => "redis",
            Self::Nats => "nats",
        }
    }

    /// The variable that names the program of its server.
    pub(crate) const fn variable(self) -> Option<&'static str> {
        match self {
            Self::List => None,
            Self::Redis => Some("RESCIND_REDIS_SERVER"),
            Self::Nats => Some("RESCIND_NATS_SERVER"),
        }
    }

    /// Whether its server can be started.
    pub(crate) fn is_there(self) -> bool {
        self.variable().is_none_or(|variable| env::var_os(variable).is_some())
    }

    /// What the server says when it can be used.
    const fn ready(self) -> &'static str {
        match self {
            Self::List => "",
            Self::Redis => "Ready to accept connections",
            Self::Nats => "Server is ready",
        }
    }

    fn arguments(self, port: u16, folder: &Path, options: ServerOptions) -> Vec<String> {
        let full = match (self, options) {
            (_, ServerOptions::Usual | ServerOptions::Forgetful) | (Self::List, ServerOptions::Full) => "",
            (Self::Redis, ServerOptions::Full) => "maxmemory 2mb\nmaxmemory-policy noeviction\n",
            (Self::Nats, ServerOptions::Full) => "jetstream { max_file_store: 1000000 }\n",
        };
        let file = folder.join("conf");
        fs::write(&file, full).unwrap();
        let (file, port, folder) =
            (file.display().to_string(), port.to_string(), folder.display().to_string());
        let kept = if options == ServerOptions::Forgetful { "no" } else { "yes" };
        let words: &[&str] = match self {
            Self::List => &[],
            Self::Redis => &[
                &file,
                "--port",
                &port,
                "--bind",
                "127.0.0.1",
                "--dir",
                &folder,
                "--save",
                "",
                "--appendonly",
                kept,
            ],
            Self::Nats => &["-c", &file, "-a", "127.0.0.1", "-p", &port, "-js", "-sd", &folder],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }
}

/// A running server. It ends when this is dropped.
pub(crate) struct EngineServer {
    backend: Backend,
    pub(crate) port: u16,
    options: ServerOptions,
    folder: PathBuf,
    process: std::process::Child,
}

impl EngineServer {
    /// `None`: the cluster has a list and no engine.
    pub(crate) fn start(backend: Backend, options: ServerOptions) -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        backend.variable()?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("rescind-proof-{}-{number}", process::id()));
        fs::create_dir(&folder).unwrap();
        // Another process may take the port meanwhile. Then the server ends at once.
        for _ in 0..10 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            if let Some(process) = run_engine(backend, port, &folder, options) {
                return Some(Self { backend, port, options, folder, process });
            }
        }
        panic!("the server of {} did not start on ten ports", backend.name());
    }

    pub(crate) fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// Its URL through a proxy at this port.
    pub(crate) fn url_at(&self, port: u16) -> String {
        format!("{}://127.0.0.1:{port}", self.backend.name())
    }

    /// Ends it at once, as a crash does.
    pub(crate) fn end(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again on the same port.
    pub(crate) fn start_again(&mut self) {
        let process = run_engine(self.backend, self.port, &self.folder, self.options);
        self.process = process.expect("the server did not start again");
    }

    /// Suspends it: its connections stay open, and it does not answer.
    pub(crate) fn stop(&self) {
        self.send(Signal::STOP);
        wait_until_stopped(self.process.id());
    }

    pub(crate) fn go_on(&self) {
        self.send(Signal::CONT);
    }

    fn send(&self, signal: Signal) {
        let id = Pid::from_raw(self.process.id().try_into().unwrap()).unwrap();
        kill_process(id, signal).unwrap();
    }
}

/// The threads of a process stop a moment after its signal, and may answer until then. Systems without `/proc` are believed
/// to stop at once.
fn wait_until_stopped(id: u32) {
    let is_stopped = || {
        let Ok(threads) = fs::read_dir(format!("/proc/{id}/task")) else { return true };
        threads.flatten().all(|one| fs::read_to_string(one.path().join("stat")).unwrap().contains(") T "))
    };
    while !is_stopped() {
        thread::yield_now();
    }
}

impl Drop for EngineServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Starts the program and waits until it can be used. `None`: it ended.
fn run_engine(
    backend: Backend,
    port: u16,
    folder: &Path,
    options: ServerOptions,
) -> Option<std::process::Child> {
    let path = env::var_os(backend.variable()?)?;
    let mut command = Command::new(&path);
    command.args(backend.arguments(port, folder, options)).stdin(Stdio::null());
    // Redis writes its log to stdout, NATS to stderr.
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (stdout, stderr) = (process.stdout.take().unwrap(), process.stderr.take().unwrap());
    let (log, rest): (Box<dyn Read + Send>, Box<dyn Read + Send>) = match backend {
        Backend::List | Backend::Redis => (Box::new(stdout), Box::new(stderr)),
        Backend::Nats => (Box::new(stderr), Box::new(stdout)),
    };
    let mut log = std::io::BufReader::new(log);
    let mut line = String::new();
    while !line.contains(backend.ready()) {
        line.clear();
        if log.read_line(&mut line).unwrap() == 0 {
            process.wait().unwrap();
            return None;
        }
    }
    // A full pipe would stop the server.
    for mut output in [Box::new(log) as Box<dyn Read + Send>, rest] {
        thread::spawn(move || io::copy(&mut output, &mut io::sink()));
    }
    Some(process)
}
