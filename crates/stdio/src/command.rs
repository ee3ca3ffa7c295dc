use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Stdio;
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
/// left the group (`setsid`, or a shell with job control) is not ended. On Windows a job object has the part of the group. It
/// ends after one grace, because no signal asks for the end, and also if this process is killed.
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
    /// Starts `program`, which is found as [`std::process::Command`] finds it. On Windows a name without a path also finds the
    /// script `NAME.cmd` or `NAME.bat` on the `PATH`.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        #[cfg(windows)]
        if let Some(script) = script_of(program.as_ref(), std::env::var_os("PATH").as_deref()) {
            return Self::of(script.as_ref());
        }
        Self::of(program.as_ref())
    }

    fn of(program: &OsStr) -> Self {
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
        let mut child = crate::child::spawn(self.program)?;
        let pid = child.id();
        let pipes = pipes(&mut child);
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
fn pipes(child: &mut std::process::Child) -> io::Result<(Output, Pipes)> {
    use std::os::fd::OwnedFd;
    use tokio::net::unix::pipe;
    let output = Output::of(child)?;
    let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let reader = pipe::Receiver::from_owned_fd(OwnedFd::from(stdout))?;
    let writer = pipe::Sender::from_owned_fd(OwnedFd::from(stdin))?;
    Ok((output, ByteStream::new(reader, writer)))
}

#[cfg(windows)]
type Pipes = ByteStream<crate::threads::ThreadReader, crate::threads::ThreadWriter>;

#[cfg(windows)]
fn pipes(child: &mut crate::child::Started) -> io::Result<(Output, Pipes)> {
    use crate::threads::{ThreadReader, ThreadWriter};
    let (stdin, stdout) = child.pipes.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let reader = ThreadReader::new(stdout)?;
    Ok((Output::of(&reader), ByteStream::new(reader, ThreadWriter::new(stdin)?)))
}

/// The script of a bare name, such as `npx.cmd` of `npx`. Windows itself finds only `NAME.exe`, and what npm installs are
/// scripts.
#[cfg(any(windows, test))]
fn script_of(program: &OsStr, path: Option<&OsStr>) -> Option<std::path::PathBuf> {
    let name = program.to_str()?;
    if name.is_empty() || name.contains(['/', '\\', ':']) || Path::new(name).extension().is_some() {
        return None;
    }
    let file = |directory: &Path, ending| {
        Some(directory.join(format!("{name}.{ending}"))).filter(|file| file.is_file())
    };
    for directory in std::env::split_paths(path?) {
        if ["com", "exe"].iter().any(|ending| file(&directory, ending).is_some()) {
            return None;
        }
        if let Some(script) = ["bat", "cmd"].iter().find_map(|ending| file(&directory, ending)) {
            return Some(script);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_is_the_script_that_npm_installed_for_it() {
        let place = std::env::temp_dir().join(format!("rescind-scripts-{}", std::process::id()));
        let (first, second) = (place.join("first"), place.join("second"));
        for file in ["first/npx.cmd", "first/npx", "second/npx.exe", "second/both.exe", "second/both.cmd"] {
            std::fs::create_dir_all(place.join(file).parent().unwrap()).unwrap();
            std::fs::write(place.join(file), "").unwrap();
        }
        let path = std::env::join_paths([&first, &second]).unwrap();
        let found = |name: &str| script_of(OsStr::new(name), Some(&path));
        assert_eq!(found("npx"), Some(first.join("npx.cmd")));
        for none in ["both", "npx.exe", "./npx", "C:npx", "", "no-such"] {
            assert_eq!(found(none), None, "{none}");
        }
        std::fs::remove_dir_all(&place).unwrap();
    }
}
