//! What a cluster runs on: a list of nodes, or a server of Redis or NATS that each test starts for itself.

use std::io::{BufRead as _, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, io, process, thread};

use rustix::process::{Pid, Signal, kill_process};

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
    process: Child,
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
            if let Some(process) = run(backend, port, &folder, options) {
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
        let process = run(self.backend, self.port, &self.folder, self.options);
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
pub(crate) fn wait_until_stopped(id: u32) {
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
fn run(backend: Backend, port: u16, folder: &Path, options: ServerOptions) -> Option<Child> {
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
    let mut log = BufReader::new(log);
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
