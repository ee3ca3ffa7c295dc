//! Any stream of bytes with a framing.

mod receiver;
mod sender;

use std::fmt;

use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};

use self::receiver::ByteReceiver;
use self::sender::ByteSender;
use super::closing::closing;
use super::{BoxFuture, Link, LinkTraits, Meta, Transport, TransportError};
use crate::framing::Framing;

/// The default limit of a frame: 16 MiB.
pub(super) const DEFAULT_MAX_FRAME: usize = 16 * 1024 * 1024;

/// Any [`AsyncRead`] and [`AsyncWrite`] as a wire.
///
/// Input is read while output is blocked. At the end of input the receiver tells
/// [`HalfClosed`](super::TransportEvent::HalfClosed) if output is still open, and `None` once it is not. After a bad
/// frame that leaves no way to find the next one it tells [`Rejected`](super::TransportEvent::Rejected), then `None`.
/// Closing shuts the writer down and drops it, as some writers end only so.
///
/// ```
/// # use rescind_core::{ByteStream, Framing, Link};
/// let (ours, _theirs) = tokio::io::duplex(4096);
/// let link: Link = ByteStream::whole(ours, Framing::Newline).max_frame(1 << 20).into_link();
/// assert!(link.traits.ordered);
/// ```
#[must_use = "a wire does nothing until it is opened"]
pub struct ByteStream<R, W> {
    reader: R,
    writer: W,
    framing: Framing,
    max_frame: usize,
    name: &'static str,
    meta: Meta,
}

impl<R, W> ByteStream<R, W>
where
    R: AsyncRead + Send + 'static,
    W: AsyncWrite + Send + 'static,
{
    /// A wire of two halves.
    pub fn new(reader: R, writer: W, framing: Framing) -> Self {
        let max_frame = DEFAULT_MAX_FRAME;
        Self { reader, writer, framing, max_frame, name: "byte stream", meta: Meta::default() }
    }

    /// The largest frame taken in either direction, in bytes, its framing not counted; 16 MiB unless said.
    pub fn max_frame(mut self, bytes: usize) -> Self {
        self.max_frame = bytes;
        self
    }

    /// The wire's name in reports.
    pub fn name(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// What is known of the peer.
    pub fn meta(mut self, meta: Meta) -> Self {
        self.meta = meta;
        self
    }

    /// The open connection.
    #[must_use]
    pub fn into_link(self) -> Link {
        let traits = LinkTraits {
            ordered: true,
            exchanges_abortable: false,
            exchange_scoped: false,
            peer_can_request: true,
            resumable: false,
            batches: true,
            max_frame: self.max_frame,
        };
        let (closer, closing) = closing();
        let receiver = ByteReceiver::new(self.reader, self.framing.decoder(self.max_frame), closing);
        let sender = ByteSender::new(self.writer, self.framing, self.max_frame, closer);
        Link::new(receiver, sender, traits, self.meta)
    }
}

impl<S> ByteStream<ReadHalf<S>, WriteHalf<S>>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    /// A wire of one stream that reads and writes: TCP, TLS, a duplex.
    pub fn whole(stream: S, framing: Framing) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self::new(reader, writer, framing)
    }
}

impl<R, W> Transport for ByteStream<R, W>
where
    R: AsyncRead + Send + 'static,
    W: AsyncWrite + Send + 'static,
{
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(async move { Ok(self.into_link()) })
    }
}

impl<R, W> fmt::Debug for ByteStream<R, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteStream")
            .field("name", &self.name)
            .field("framing", &self.framing)
            .field("max_frame", &self.max_frame)
            .finish_non_exhaustive()
    }
}
