use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rescind_core::{
    BoxFuture, ByteStream, Framing, Link, PeerInfo, Transport, TransportError, TransportErrorKind,
};

use crate::child::{ChildError, ChildHandle, Output, Process, child_link, supervise};

/// A transport that starts a child process and uses its stdin and stdout. No shell is involved.
///
/// On Unix the child leads a process group of its own. Its stderr is always read, and the last 8 KiB of it are part of
/// the error when the child fails ([`ChildError`]).
///
/// Closing the connection closes the child's stdin and waits. After one grace the process group gets SIGTERM, after
/// another one SIGKILL. Dropping the connection without closing it kills the group at once. In both cases the child is
/// waited for, also after the runtime has ended, and processes that remain in its group are killed. A descendant that
/// left the group (`setsid`, or a shell with job control) is not ended.
///
/// If the child closes its stdout and runs on, the connection is half closed. If the child exits with status 0 after it
/// has sent a message, the connection ends normally. Any other exit before closing is an error. The exit counts, and not the
/// end of a pipe: a process that left the child's group may hold the pipes open (Unix only). Output that the child wrote
/// before its exit is still read.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use rescind_core::{Peer, dialect};
/// use rescind_stdio::Command;
///
/// let agent = Command::new("my-agent").arg("--stdio").env("LOG", "debug");
/// let peer = Peer::builder(dialect::ACP).connect(agent).await?;
/// # drop(peer);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is started until it is opened"]
pub struct Command {
    program: std::process::Command,
    framing: Option<Framing>,
    max_frame: Option<usize>,
    grace: Duration,
}

impl Command {
    /// Starts `program`, which is found as [`std::process::Command`] finds it.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: std::process::Command::new(program),
            framing: None,
            max_frame: None,
            grace: Duration::from_secs(2),
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.program.arg(argument);
        self
    }

    /// Adds arguments.
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.program.args(arguments);
        self
    }

    /// Sets an environment variable of the child.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.program.env(name, value);
        self
    }

    /// Clears the child's environment, also variables that were set before. Set the needed ones afterwards with
    /// [`env`](Self::env). On Windows most programs need at least `SystemRoot`.
    pub fn env_clear(mut self) -> Self {
        self.program.env_clear();
        self
    }

    /// Removes an environment variable.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.program.env_remove(name);
        self
    }

    /// The working directory of the child.
    pub fn current_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.program.current_dir(directory);
        self
    }

    /// How frames are delimited. Default: the framing of the dialect.
    pub fn framing(mut self, framing: Framing) -> Self {
        self.framing = Some(framing);
        self
    }

    /// The largest frame, in bytes. Default: 16 MiB.
    pub fn max_frame(mut self, bytes: usize) -> Self {
        self.max_frame = Some(bytes);
        self
    }

    /// The grace between two steps of ending the child. Default: 2 s.
    pub fn child_kill_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Starts the child, and returns the link and a handle of the process.
    ///
    /// # Errors
    /// The child could not be started, or there is no tokio runtime. The source is a [`ChildError`] that names the
    /// program.
    ///
    /// # Panics
    /// Within a tokio runtime whose I/O driver is not enabled.
    pub fn start(self) -> Result<(Link, ChildHandle), TransportError> {
        let name = self.program.get_program().to_string_lossy().into_owned();
        self.try_start(&name).map_err(|error| {
            let what = format!("it could not be started: {error}");
            let error = ChildError { command: name, what, status: None, stderr_tail: String::new() };
            TransportError::new(TransportErrorKind::Open, error)
        })
    }

    fn try_start(mut self, name: &str) -> io::Result<(Link, ChildHandle)> {
        tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
        let (wake_sender, wake_receiver) = crate::child::WakeSender::new()?;
        self.program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut self.program, 0);
        let mut child = self.program.spawn()?;
        let pid = child.id();
        let pipes = Output::of(&child).and_then(|output| Ok((output, pipes(&mut child)?)));
        let process = Arc::new(Process::new(name.to_owned(), pid, self.grace, wake_sender));
        supervise(child, &process, wake_receiver)?;
        let link = pipes.map(|(output, stream)| {
            let stream = match self.framing {
                Some(framing) => stream.framing(framing),
                None => stream,
            };
            let stream = match self.max_frame {
                Some(bytes) => stream.max_frame(bytes),
                None => stream,
            };
            let stream = stream.meta(PeerInfo::of_peer(&format!("{name} (process {pid})")));
            child_link(stream.into_link(), output, &process)
        });
        match link {
            Ok(link) => Ok((link, ChildHandle::new(process))),
            Err(error) => {
                process.kill();
                Err(error)
            }
        }
    }
}

impl Transport for Command {
    fn name(&self) -> &'static str {
        "stdio"
    }

    /// # Panics
    /// Within a tokio runtime whose I/O driver is not enabled.
    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(async move { self.start().map(|(link, _)| link) })
    }
}

#[cfg(unix)]
type Pipes = ByteStream<tokio::net::unix::pipe::Receiver, tokio::net::unix::pipe::Sender>;

/// The ends of this side have file descriptions of their own. So non-blocking mode here does not affect the child.
#[cfg(unix)]
fn pipes(child: &mut Child) -> io::Result<Pipes> {
    use std::os::fd::OwnedFd;
    use tokio::net::unix::pipe;
    let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let reader = pipe::Receiver::from_owned_fd(OwnedFd::from(stdout))?;
    let writer = pipe::Sender::from_owned_fd(OwnedFd::from(stdin))?;
    Ok(ByteStream::new(reader, writer))
}

#[cfg(not(unix))]
type Pipes = ByteStream<crate::threads::ThreadReader, crate::threads::ThreadWriter>;

#[cfg(not(unix))]
fn pipes(child: &mut Child) -> io::Result<Pipes> {
    use crate::threads::{ThreadReader, ThreadWriter};
    let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    Ok(ByteStream::new(ThreadReader::new(stdout)?, ThreadWriter::new(stdin)?))
}
