//! The named pipes of Windows.
//!
//! A pipe ends in both directions at once: a peer whose output has ended is gone. So the end of input is the end of the
//! connection, and not a half close, after which requests would run on for nobody.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use interprocess::local_socket::tokio::{Listener, Stream};
use interprocess::local_socket::{GenericFilePath, ListenerOptions, ToFsName as _};
use interprocess::os::windows::local_socket::ListenerOptionsExt as _;
use interprocess::os::windows::security_descriptor::SecurityDescriptor;
use rescind_core::{Link, Receiver, TransportError, TransportEvent};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::windows::named_pipe::ClientOptions;
use tokio::time::{Instant, sleep};
use widestring::u16cstr;

use crate::pipe::{PipeAddress, PipeError, Settings};
use crate::shared_stream;

/// Nothing is inherited. The network is refused. The owner and SYSTEM have full access.
const OWNER_AND_SYSTEM: &widestring::U16CStr = u16cstr!("D:P(D;;GA;;;NU)(A;;GA;;;OW)(A;;GA;;;SY)");
/// `ERROR_PIPE_BUSY`: the waiting instance is in use, and the next one does not exist yet.
const PIPE_BUSY: i32 = 231;
/// How long a connection to a listener without a free instance is tried again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Windows removes a pipe with its last handle.
#[derive(Debug)]
pub(crate) struct SocketLock;

/// The first instance of the pipe, or an error. interprocess requests the first instance, refuses remote clients, and
/// creates the next instance before it returns one.
#[expect(clippy::unused_async, reason = "on Unix it waits to see whether a socket is stale")]
pub(crate) async fn listen(address: &PipeAddress) -> Result<(Listener, SocketLock), PipeError> {
    let file = address.file();
    match bind(&file) {
        Ok(socket) => Ok((socket, SocketLock)),
        // The first instance belongs to another process.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(PipeError::InUse { path: file }),
        Err(error) => Err(PipeError::io("could not listen on", file, error)),
    }
}

fn bind(file: &Path) -> io::Result<Listener> {
    let admitted = SecurityDescriptor::deserialize(OWNER_AND_SYSTEM)?;
    let name = file.to_fs_name::<GenericFilePath>()?;
    ListenerOptions::new().name(name).security_descriptor(admitted).create_tokio()
}

#[expect(clippy::unnecessary_wraps, reason = "on Unix it refuses a peer of another user")]
pub(crate) fn accepted(stream: Stream, settings: Settings) -> Result<Link, TransportError> {
    Ok(link(stream, settings))
}

/// Uses tokio directly, which does not allow the listener to impersonate this user.
pub(crate) async fn connect(file: &Path, settings: Settings) -> Result<Link, TransportError> {
    let begun = Instant::now();
    loop {
        match ClientOptions::new().open(file) {
            Ok(stream) => return Ok(link(stream, settings)),
            Err(error) if error.raw_os_error() == Some(PIPE_BUSY) && begun.elapsed() < CONNECT_TIMEOUT => {
                sleep(RETRY_INTERVAL).await;
            }
            Err(error) => return Err(PipeError::io("could not connect to", file, error).into()),
        }
    }
}

fn link<S: AsyncRead + AsyncWrite + Send + 'static>(stream: S, settings: Settings) -> Link {
    let (reader, writer) = shared_stream::split(stream);
    let mut link = settings.link(reader, writer, None);
    link.rx = Box::pin(BothWays::Open(link.rx));
    link
}

/// Receives until the input ends, and with it the connection.
enum BothWays {
    Open(Pin<Box<dyn Receiver>>),
    Ended,
}

impl Receiver for BothWays {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        let Self::Open(frames) = &mut *self else { return Poll::Ready(None) };
        let event = ready!(frames.as_mut().poll_event(cx));
        match event {
            None | Some(Ok(TransportEvent::HalfClosed)) => {
                *self = Self::Ended;
                Poll::Ready(None)
            }
            event => Poll::Ready(event),
        }
    }
}
