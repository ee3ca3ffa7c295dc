//! The fixture as a separate process with stdin and stdout, and the options of a scenario for it. If the scenario acts as
//! the server, the process is a relay.

use std::io;
use std::path::{Path, PathBuf};
use std::process::id;
use std::sync::atomic::{AtomicU64, Ordering};

use rescind_core::{BoxFuture, ByteStream, Link, Transport};
use rescind_stdio::Command;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::{Served, Wire, framing_of, only};
use crate::vector::Scenario;

pub(super) struct Stdio(Program);

impl Stdio {
    pub(super) fn new(program: &Program) -> Self {
        Self(program.clone())
    }

    fn start(&self, scenario: &Scenario) -> Result<Served, String> {
        let mut command = self
            .0
            .command()
            .args(["fixture", "--dialect", scenario.dialect, "--listen", "stdio"])
            .framing(framing_of(scenario));
        let options = OptionsFile::write(scenario)?;
        if let Some(file) = &options {
            command = command.arg("--options").arg(file.path());
        }
        let (link, child) = command.start().map_err(|error| error.to_string())?;
        let ended = child.clone();
        let exit_report = move || {
            let status = ended.exit_status()?;
            (!status.success()).then(|| format!("{status}; stderr: {}", ended.stderr_tail()))
        };
        let end = async move {
            let _status = child.wait().await;
            drop(options);
        };
        Ok(Served {
            connect: only(link),
            many_lines: false,
            half_close: true,
            exit_report: Some(Box::new(exit_report)),
            end: Box::pin(end),
        })
    }
}

impl Wire for Stdio {
    fn fixture<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Served, String>> {
        Box::pin(async move { self.start(scenario) })
    }

    /// Our end is the stdio of a real process. The other side of that process is connected back to us.
    fn pair<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<(Link, Link), String>> {
        Box::pin(async move {
            let framing = framing_of(scenario);
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(|error| error.to_string())?;
            let address = listener.local_addr().map_err(|error| error.to_string())?;
            let word = format!("relay {} {}\n", id(), address.port());
            let command = self.0.command().arg("relay").arg(address.to_string()).arg(&word).framing(framing);
            let (ours, child) = command.start().map_err(|error| error.to_string())?;
            let stream = tokio::select! {
                found = accept_with_word(&listener, word.as_bytes()) => found.map_err(|error| error.to_string())?,
                status = child.wait() => return Err(format!("the relay ended: {status}")),
            };
            stream.set_nodelay(true).map_err(|error| error.to_string())?;
            let (from, to) = stream.into_split();
            let far = Box::new(ByteStream::new(from, to).framing(framing)).open().await;
            Ok((ours, far.map_err(|error| error.to_string())?))
        })
    }
}

/// The connection on which this word arrives first. Other connections come from programs that used this port before.
async fn accept_with_word(listener: &TcpListener, word: &[u8]) -> io::Result<TcpStream> {
    let mut callers = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (mut stream, _) = accepted?;
                let mut said = vec![0; word.len()];
                callers.spawn(async move { stream.read_exact(&mut said).await.is_ok().then_some((stream, said)) });
            }
            Some(Ok(Some((stream, said)))) = callers.join_next() => {
                if said == word {
                    return Ok(stream);
                }
            }
        }
    }
}

/// The options of a vector as a file, which is deleted on drop.
pub(super) struct OptionsFile(PathBuf);

impl OptionsFile {
    /// Writes the options of this scenario. `None`: they are the defaults.
    pub(super) fn write(scenario: &Scenario) -> Result<Option<Self>, String> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        if scenario.vector.options.is_default() {
            return Ok(None);
        }
        let name = format!("rescind-options-{}-{}.json", id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let text = serde_json::to_string(&scenario.vector.options).map_err(|error| error.to_string())?;
        std::fs::write(&path, text)
            .map_err(|error| format!("the options could not be written to {}: {error}", path.display()))?;
        Ok(Some(Self(path)))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for OptionsFile {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

/// The program that is started if a wire needs separate processes.
///
/// It is run as `PROGRAM ARG.. fixture --dialect D --listen stdio [--options FILE.json]` to serve the fixture, and as
/// `PROGRAM ARG.. relay ADDRESS WORD` to send the word to a TCP address and then copy between it and its stdin and
/// stdout. The command line `rescind` is such a program. A test binary can be one too.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    leading: Vec<String>,
}

impl Program {
    /// This program, without leading arguments.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), leading: Vec::new() }
    }

    /// The running program.
    ///
    /// # Errors
    /// If the system does not report its path.
    pub fn this() -> io::Result<Self> {
        Ok(Self::new(std::env::current_exe()?))
    }

    /// Adds a leading argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.leading.push(argument.into());
        self
    }

    /// The program as a process that is not a peer by its stdin and stdout.
    pub(super) fn process(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.path);
        command.args(&self.leading);
        command
    }

    pub(super) fn command(&self) -> Command {
        Command::new(&self.path).args(&self.leading)
    }
}
