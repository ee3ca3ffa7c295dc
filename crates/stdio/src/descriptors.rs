use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll};

use rescind_core::{
    BoxFuture, ByteStream, Framing, Link, PeerInfo, Transport, TransportError, TransportErrorKind,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::threads::{ThreadReader, ThreadWriter};

/// A transport on two descriptors of any kind: pipes, files, terminals, sockets.
///
/// On Linux a pipe uses the reactor, with a file description of its own: the flags of the description that it shares
/// with other processes stay unchanged. Every other descriptor uses one thread for each direction.
#[derive(Debug)]
#[must_use = "a transport does nothing until it is opened"]
pub struct Descriptors {
    input: OwnedFd,
    output: OwnedFd,
    framing: Option<Framing>,
    max_frame: Option<usize>,
    peer: &'static str,
}

impl Descriptors {
    /// A transport that reads from `input` and writes to `output`. Each is closed with its half.
    pub fn new(input: OwnedFd, output: OwnedFd) -> Self {
        Self { input, output, framing: None, max_frame: None, peer: "descriptors" }
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

    pub(crate) fn peer(mut self, peer: &'static str) -> Self {
        self.peer = peer;
        self
    }

    fn into_link(self) -> io::Result<Link> {
        let mut stream =
            ByteStream::new(reader(self.input)?, writer(self.output)?).meta(PeerInfo::of_peer(self.peer));
        if let Some(framing) = self.framing {
            stream = stream.framing(framing);
        }
        if let Some(bytes) = self.max_frame {
            stream = stream.max_frame(bytes);
        }
        Ok(stream.into_link())
    }
}

impl Transport for Descriptors {
    fn name(&self) -> &'static str {
        "stdio"
    }

    /// # Panics
    /// Outside a tokio runtime whose I/O driver is enabled.
    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(async move {
            self.into_link().map_err(|error| TransportError::new(TransportErrorKind::Open, error))
        })
    }
}

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

fn reader(input: OwnedFd) -> io::Result<Reader> {
    #[cfg(target_os = "linux")]
    if let Some(pipe) = reopen::reader(&input) {
        return Ok(Box::new(pipe));
    }
    let (source, stop) = BlockingReader::new(input)?;
    Ok(Box::new(StoppingReader { reader: ThreadReader::new(source)?, _stop: stop }))
}

fn writer(output: OwnedFd) -> io::Result<Writer> {
    #[cfg(target_os = "linux")]
    if let Some(pipe) = reopen::writer(&output) {
        return Ok(Box::new(pipe));
    }
    Ok(Box::new(ThreadWriter::new(BlockingWriter::new(output))?))
}

/// Dropping it ends the thread, also while the thread waits for input.
struct StoppingReader {
    reader: ThreadReader,
    _stop: Stop,
}

impl AsyncRead for StoppingReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(cx, out)
    }
}

/// Reads and waits until there is input or [`Stop`] is dropped, whether the descriptor is in blocking mode or not.
struct BlockingReader {
    input: OwnedFd,
    stop: UnixStream,
}

/// Dropping it ends the reading.
struct Stop {
    _end: UnixStream,
}

impl BlockingReader {
    fn new(input: OwnedFd) -> io::Result<(Self, Stop)> {
        let (stop, end) = UnixStream::pair()?;
        Ok((Self { input, stop }, Stop { _end: end }))
    }
}

impl Read for BlockingReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut watched = [wait_for(&self.stop, PollFlags::IN), wait_for(&self.input, PollFlags::IN)];
            match poll(&mut watched, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let [stop, _] = watched;
            if !stop.revents().is_empty() {
                return Ok(0);
            }
            match rustix::io::read(&self.input, &mut *out) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                done => return Ok(done?),
            }
        }
    }
}

/// Writes and waits, whether the descriptor is in blocking mode or not.
struct BlockingWriter(OwnedFd);

impl BlockingWriter {
    fn new(output: OwnedFd) -> Self {
        Self(output)
    }
}

impl Write for BlockingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::io::write(&self.0, bytes) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let mut watched = [wait_for(&self.0, PollFlags::OUT)];
                    match poll(&mut watched, None) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                done => return Ok(done?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn wait_for(descriptor: &impl AsFd, flags: PollFlags) -> PollFd<'_> {
    PollFd::from_borrowed_fd(descriptor.as_fd(), flags)
}

/// Pipes that are opened again, with file descriptions of their own.
#[cfg(target_os = "linux")]
mod reopen {
    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::fs::{FileType, Mode, OFlags};
    use tokio::net::unix::pipe;

    /// The read end of an anonymous pipe, opened again. A named pipe is left to a thread: opened again after its writers
    /// are gone, it would never report its end to a reactor.
    pub(super) fn reader(input: &OwnedFd) -> Option<pipe::Receiver> {
        let path = path(input)?;
        let target = std::fs::read_link(&path).ok()?;
        if !target.to_string_lossy().starts_with("pipe:") {
            return None;
        }
        pipe::Receiver::from_owned_fd(open(&path, OFlags::RDONLY)?).ok()
    }

    /// The write end of a pipe, opened again. `None`: it is not a pipe, or its reader is gone.
    pub(super) fn writer(output: &OwnedFd) -> Option<pipe::Sender> {
        pipe::Sender::from_owned_fd(open(&path(output)?, OFlags::WRONLY)?).ok()
    }

    fn path(descriptor: &OwnedFd) -> Option<String> {
        let mode = rustix::fs::fstat(descriptor).ok()?.st_mode;
        FileType::from_raw_mode(mode).is_fifo().then(|| format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
    }

    fn open(path: &str, access: OFlags) -> Option<OwnedFd> {
        rustix::fs::open(path, access | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()
    }
}
