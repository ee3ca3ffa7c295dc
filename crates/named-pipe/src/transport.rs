use rescind_core::{BoxFuture, ByteStream, Framing, Link, PeerInfo, Transport, TransportError};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{PipeAddress, system};

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

const NAME: &str = "named-pipe";

/// The settings that both sides of a pipe have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) framing: Option<Framing>,
    pub(crate) max_frame: Option<usize>,
}

impl Settings {
    pub(crate) fn link<R, W>(self, reader: R, writer: W, peer: Option<String>) -> Link
    where
        R: AsyncRead + Send + 'static,
        W: AsyncWrite + Send + 'static,
    {
        let peer = peer.unwrap_or_else(|| "a process of this user".to_owned());
        let stream = ByteStream::new(reader, writer).name(NAME).meta(PeerInfo::of_peer(&peer));
        let stream = match self.framing {
            Some(framing) => stream.framing(framing),
            None => stream,
        };
        match self.max_frame {
            Some(bytes) => stream.max_frame(bytes).into_link(),
            None => stream.into_link(),
        }
    }
}
