use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use interprocess::local_socket::tokio::{Listener as Socket, Stream};
use interprocess::local_socket::traits::tokio::Listener as _;
use rescind_core::{
    BoxFuture, Endpoint, Framing, Link, Listener, Transport, TransportError, TransportErrorKind,
};
use tokio::time::{Sleep, sleep};

use crate::pipe::{NAME, PipeAddress, PipeError, Settings};
use crate::system::{self, SocketLock};

/// The pause after the system could not accept a connection, for example without a free file descriptor. Without a
/// pause the listener would spin.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Connects to a pipe.
#[derive(Debug)]
#[must_use = "a transport does nothing until it is opened"]
pub struct NamedPipeTransport {
    address: PipeAddress,
    settings: Settings,
}

impl NamedPipeTransport {
    /// A connection to the pipe at this address.
    pub const fn new(address: PipeAddress) -> Self {
        Self { address, settings: Settings { framing: None, max_frame: None } }
    }

    /// How frames are delimited. Default: the framing of the dialect.
    pub const fn framing(mut self, framing: Framing) -> Self {
        self.settings.framing = Some(framing);
        self
    }

    /// The largest frame, in bytes. Default: 16 MiB.
    pub const fn max_frame(mut self, bytes: usize) -> Self {
        self.settings.max_frame = Some(bytes);
        self
    }
}

impl Transport for NamedPipeTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    /// If the queue of the listener is full, the attempt is repeated for up to 5 s.
    ///
    /// # Panics
    /// Outside a tokio runtime whose I/O and time drivers are enabled.
    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(async move { system::connect(&self.address.file(), self.settings).await })
    }
}

/// Accepts connections on a pipe. Dropping it removes the pipe.
#[must_use = "a listener does nothing until it is polled"]
pub struct NamedPipeListener {
    next: Next,
    socket: Arc<Socket>,
    file: PathBuf,
    settings: Settings,
    /// Dropped last: it releases the path.
    _claim: SocketLock,
}

enum Next {
    Accepting(BoxFuture<'static, io::Result<Stream>>),
    Resting(Pin<Box<Sleep>>),
}

impl NamedPipeListener {
    /// Listens on this address.
    ///
    /// # Errors
    /// Each [`PipeError`] except `ForeignPeer`: other users can access the directory, another listener has the address,
    /// or the system refuses.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt; nothing remains.
    ///
    /// # Panics
    /// Outside a tokio runtime whose I/O driver is enabled.
    pub async fn bind(address: &PipeAddress) -> Result<Self, PipeError> {
        let (socket, claim) = system::listen(address).await?;
        let socket = Arc::new(socket);
        let next = accept(&socket);
        Ok(Self { next, socket, file: address.file(), settings: Settings::default(), _claim: claim })
    }

    /// How frames are delimited. Default: the framing of the dialect.
    pub fn framing(mut self, framing: Framing) -> Self {
        self.settings.framing = Some(framing);
        self
    }

    /// The largest frame, in bytes. Default: 16 MiB.
    pub fn max_frame(mut self, bytes: usize) -> Self {
        self.settings.max_frame = Some(bytes);
        self
    }

    /// The file of the pipe, for peers that take a path.
    #[must_use]
    pub fn file(&self) -> &std::path::Path {
        &self.file
    }
}

fn accept(socket: &Arc<Socket>) -> Next {
    let socket = Arc::clone(socket);
    Next::Accepting(Box::pin(async move { socket.accept().await }))
}

impl Listener for NamedPipeListener {
    fn poll_accept(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Link, TransportError>>> {
        loop {
            match &mut self.next {
                Next::Accepting(accepting) => match ready!(accepting.as_mut().poll(cx)) {
                    Ok(stream) => {
                        self.next = accept(&self.socket);
                        return Poll::Ready(Some(system::accepted(stream, self.settings)));
                    }
                    Err(error) => {
                        self.next = Next::Resting(Box::pin(sleep(ACCEPT_BACKOFF)));
                        let error = PipeError::io("could not accept a connection on", &self.file, error);
                        return Poll::Ready(Some(Err(TransportError::new(TransportErrorKind::Open, error))));
                    }
                },
                Next::Resting(rest) => {
                    ready!(rest.as_mut().poll(cx));
                    self.next = accept(&self.socket);
                }
            }
        }
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint(format!("pipe:{}", PipeAddress::path(&self.file)))
    }
}

impl fmt::Debug for NamedPipeListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedPipeListener").field("file", &self.file).finish_non_exhaustive()
    }
}
