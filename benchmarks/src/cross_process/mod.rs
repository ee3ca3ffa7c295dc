//! The transports between two processes. Both processes run this program.
//!
//! A server sends all additional messages (where it listens, when a handler was signalled) to its stderr, so that no
//! measured transport carries them.

mod client;
pub mod echoes;
mod server;
mod wire;

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::time::timeout;

use crate::load_test::processor_time;
use crate::subject::Name;

pub use client::OurClient;
#[cfg(feature = "count")]
pub(crate) use server::router;
pub use server::serve_if_asked;
pub(crate) use server::{own_pipes, serve_router};
pub use wire::Wire;

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
