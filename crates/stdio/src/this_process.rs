use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use rescind_core::{BoxFuture, Framing, Link, Transport, TransportError, TransportErrorKind};

/// A process has only one stdin and one stdout.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// A transport on this process's stdin and stdout. Nothing changes until it is opened.
///
/// Opening it moves the descriptors. Afterwards stdin is empty, and what other code of the process prints to stdout,
/// such as a stray `println!`, goes to stderr (not on Windows). The descriptors are not moved back.
pub fn this_process() -> ThisProcess {
    ThisProcess { framing: None, max_frame: None }
}

/// The transport of [`this_process`].
#[derive(Debug)]
#[must_use = "a transport does nothing until it is opened"]
pub struct ThisProcess {
    framing: Option<Framing>,
    max_frame: Option<usize>,
}

impl ThisProcess {
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
}

impl Transport for ThisProcess {
    fn name(&self) -> &'static str {
        "stdio"
    }

    /// # Panics
    /// Outside a tokio runtime whose I/O driver is enabled.
    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(async move {
            if TAKEN.swap(true, Ordering::AcqRel) {
                let text = "this process's stdin and stdout already are a connection";
                return Err(TransportError::new(TransportErrorKind::Open, text));
            }
            open(*self).await
        })
    }
}

#[cfg(unix)]
async fn open(own: ThisProcess) -> Result<Link, TransportError> {
    let (input, output) =
        move_away().map_err(|error| TransportError::new(TransportErrorKind::Open, error))?;
    let mut wire = crate::Descriptors::new(input, output).peer("the process that started this one");
    if let Some(framing) = own.framing {
        wire = wire.framing(framing);
    }
    if let Some(bytes) = own.max_frame {
        wire = wire.max_frame(bytes);
    }
    Box::new(wire).open().await
}

#[cfg(unix)]
fn move_away() -> io::Result<(std::os::fd::OwnedFd, std::os::fd::OwnedFd)> {
    use rustix::stdio::{dup2_stdin, dup2_stdout, stderr, stdin, stdout};
    let input = rustix::io::fcntl_dupfd_cloexec(stdin(), 3)?;
    let output = rustix::io::fcntl_dupfd_cloexec(stdout(), 3)?;
    let nothing = std::fs::File::open("/dev/null")?;
    dup2_stdin(&nothing)?;
    dup2_stdout(stderr())?;
    Ok((input, output))
}

#[cfg(not(unix))]
async fn open(own: ThisProcess) -> Result<Link, TransportError> {
    use crate::threads::{ThreadReader, ThreadWriter};
    let opened: io::Result<_> =
        ThreadReader::new(io::stdin()).and_then(|reader| Ok((reader, ThreadWriter::new(io::stdout())?)));
    let (reader, writer) = opened.map_err(|error| TransportError::new(TransportErrorKind::Open, error))?;
    let mut wire = rescind_core::ByteStream::new(reader, writer)
        .meta(rescind_core::PeerInfo::of_peer("the process that started this one"));
    if let Some(framing) = own.framing {
        wire = wire.framing(framing);
    }
    if let Some(bytes) = own.max_frame {
        wire = wire.max_frame(bytes);
    }
    Ok(wire.into_link())
}
