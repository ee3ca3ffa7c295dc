//! The program under attack, and how a trial runs.

use std::fs;
use std::future::Future;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rescind::Framing;
use rescind::dialect::Dialect;
use rescind_testkit::support::HANG;
pub(crate) use rescind_testkit::support::in_time;
use rescind_testkit::{open_descriptors, resident_memory};
use tokio::net::unix::pipe;

// The program under attack: `rescind fixture` as a separate process.

/// A transport, and the dialect that is attacked over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Stdio,
    NamedPipe,
    WebSocket,
    Streamable,
    Stateless,
    Acp,
}

impl Wire {
    pub(crate) const ALL: [Self; 6] =
        [Self::Stdio, Self::NamedPipe, Self::WebSocket, Self::Streamable, Self::Stateless, Self::Acp];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::NamedPipe => "named-pipe",
            Self::WebSocket => "websocket",
            Self::Streamable => "http-streamable",
            Self::Stateless => "http-stateless",
            Self::Acp => "http-acp",
        }
    }

    pub(crate) const fn dialect(self) -> &'static str {
        match self {
            Self::Stdio | Self::NamedPipe | Self::WebSocket | Self::Acp => "acp",
            Self::Streamable => "mcp",
            Self::Stateless => "mcp-2026",
        }
    }

    pub(crate) const fn is_http(self) -> bool {
        match self {
            Self::Stdio | Self::NamedPipe | Self::WebSocket => false,
            Self::Streamable | Self::Stateless | Self::Acp => true,
        }
    }
}

/// The running fixture. It is killed on drop.
pub(crate) struct Target {
    pub(crate) wire: Wire,
    pub(crate) dialect: Dialect,
    /// The framing, for byte streams.
    pub(crate) framing: Framing,
    /// Where it listens: a URL or a file. Empty for stdio.
    pub(crate) endpoint: String,
    child: Child,
    /// What it wrote to stderr, once it has been read to its end.
    said: String,
    stderr: Option<JoinHandle<String>>,
}

impl Target {
    /// Starts it with this dialect and these further arguments.
    pub(crate) fn speaking(wire: Wire, dialect: &str, more: &[&str]) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let listen = match wire {
            Wire::Stdio => "stdio".to_owned(),
            Wire::NamedPipe => {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                format!("pipe:rescind-attacks-{}-{number}", std::process::id())
            }
            Wire::WebSocket => "ws://127.0.0.1:0/".to_owned(),
            Wire::Streamable | Wire::Stateless | Wire::Acp => "http://127.0.0.1:0/rpc".to_owned(),
        };
        let by_pipes = || if wire == Wire::Stdio { Stdio::piped() } else { Stdio::null() };
        let mut child = Command::new(env!("CARGO_BIN_EXE_rescind"))
            .args(["fixture", "--dialect", dialect, "--listen", &listen])
            .args(more)
            .stdin(by_pipes())
            .stdout(by_pipes())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut endpoint = String::new();
        if wire != Wire::Stdio {
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            let place = line.trim_end().strip_prefix("listening on ");
            let place = place.unwrap_or_else(|| panic!("the fixture wrote: {line}"));
            endpoint.push_str(place.strip_prefix("pipe:").unwrap_or(place));
        }
        let stderr = std::thread::spawn(move || {
            let mut rest = Vec::new();
            let _ended = lines.read_to_end(&mut rest);
            String::from_utf8_lossy(&rest).into_owned()
        });
        let dialect = Dialect::by_name(dialect).unwrap();
        let framing = match more {
            ["--framing", "content-length"] => Framing::ContentLength,
            _ => Framing::Newline,
        };
        Self { wire, dialect, framing, endpoint, child, said: String::new(), stderr: Some(stderr) }
    }

    /// `HOST:PORT`.
    pub(crate) fn address(&self) -> &str {
        let (_, rest) = self.endpoint.split_once("://").unwrap();
        rest.split_once('/').map_or(rest, |(address, _)| address)
    }

    /// Both ends of the fixture's standard streams. Can be called once.
    pub(crate) fn standard_streams(&mut self) -> (pipe::Receiver, pipe::Sender) {
        let output = OwnedFd::from(self.child.stdout.take().unwrap());
        let input = OwnedFd::from(self.child.stdin.take().unwrap());
        (pipe::Receiver::from_owned_fd(output).unwrap(), pipe::Sender::from_owned_fd(input).unwrap())
    }

    /// Its peak memory, in MiB. 0 after it has ended.
    pub(crate) fn peak(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) >> 10
    }

    /// Its current memory, in MiB. 0 after it has ended.
    pub(crate) fn resident(&self) -> u64 {
        resident_memory(Some(self.child.id())).unwrap_or(0) >> 20
    }

    pub(crate) fn descriptors(&self) -> u64 {
        open_descriptors(Some(self.child.id())).unwrap()
    }

    /// Whether the process has ended. Panics if it ended otherwise than after input in which no message can be found: with
    /// code 2, and the reason on stderr.
    pub(crate) fn has_ended_well(&mut self) -> bool {
        let Some(ended) = self.child.try_wait().unwrap() else { return false };
        let said = self.stderr();
        let is_told = ended.code() == Some(2) && said.contains("a frame was dropped");
        assert!(ended.success() || is_told, "it ended with {ended:?}: {said}");
        true
    }

    /// Panics if the process has ended.
    pub(crate) fn assert_runs(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "the fixture ended with {ended:?}: {}", self.stderr());
    }

    /// Ends the process, and checks that its stderr has no panic.
    pub(crate) fn end(mut self) {
        drop(self.child.stdin.take());
        drop(self.child.kill());
        drop(self.child.wait());
        let said = self.stderr();
        assert!(!said.contains("panicked"), "{said}");
    }

    /// The stderr of the process, which must have ended.
    fn stderr(&mut self) -> &str {
        if let Some(reader) = self.stderr.take() {
            self.said = reader.join().unwrap();
        }
        &self.said
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
        if self.wire == Wire::NamedPipe {
            // It was killed, so it leaves them.
            drop(fs::remove_file(&self.endpoint));
            drop(fs::remove_file(format!("{}.lock", self.endpoint)));
        }
    }
}

// How a trial runs and waits.

/// Runs the attack on a separate runtime.
pub(crate) fn play(attack: impl Future<Output = ()>) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(attack);
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(())
}

/// Waits for a condition that must be checked repeatedly.
pub(crate) async fn poll_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let since = Instant::now();
    while !is_so().await {
        assert!(since.elapsed() < HANG, "not within {HANG:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
