mod blocking;
#[cfg(target_os = "linux")]
mod reopen;

use std::io;
use std::os::fd::OwnedFd;

use rescind_core::{
    BoxFuture, ByteStream, Framing, Link, PeerInfo, Transport, TransportError, TransportErrorKind,
};
use tokio::io::{AsyncRead, AsyncWrite};

use self::blocking::{BlockingReader, BlockingWriter};
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
    _stop: blocking::Stop,
}

impl AsyncRead for StoppingReader {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        out: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.reader).poll_read(cx, out)
    }
}
