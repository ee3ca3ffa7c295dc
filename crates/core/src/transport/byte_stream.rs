//! Any stream of bytes with a framing.

mod receiver;
mod sender;

use std::fmt;

use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};

use self::receiver::ByteReceiver;
use self::sender::ByteSender;
use super::closing::closing;
use super::framed::Framed;
use super::partial_frame::PartialFrame;
use super::{BoxFuture, Capabilities, Link, PeerInfo, Transport, TransportError};
use crate::byte_budget::ByteBudget;
use crate::framing::Framing;

/// The default limit of a frame: 16 MiB.
pub(super) const DEFAULT_MAX_FRAME: usize = 16 * 1024 * 1024;

/// Any [`AsyncRead`] and [`AsyncWrite`] as a wire.
///
/// Frames stand in the bytes as the dialect spoken on it has them, unless [`framing`](Self::framing) says otherwise: a
/// [`PeerBuilder`](crate::PeerBuilder) tells the wire, whether it opens it or is given an open [`Link`]. Where several dialects are
/// offered that frame differently, the peer's first byte decides.
///
/// Input is read while output is blocked. At the end of input the receiver tells
/// [`HalfClosed`](super::TransportEvent::HalfClosed) if output is still open, and `None` once it is not. After a bad
/// frame that leaves no way to find the next one it tells [`Rejected`](super::TransportEvent::Rejected), then `None`.
/// Closing shuts the writer down and drops it, as some writers end only so.
///
/// ```
/// # use rescind_core::{ByteStream, Link};
/// let (ours, _theirs) = tokio::io::duplex(4096);
/// let link: Link = ByteStream::whole(ours).max_frame(1 << 20).into_link();
/// assert!(link.traits.ordered);
/// ```
#[must_use = "a wire does nothing until it is opened"]
pub struct ByteStream<R, W> {
    reader: R,
    writer: W,
    framing: Option<Framing>,
    max_frame: usize,
    name: &'static str,
    meta: PeerInfo,
}

impl<R, W> ByteStream<R, W>
where
    R: AsyncRead + Send + 'static,
    W: AsyncWrite + Send + 'static,
{
    /// A wire of two halves.
    pub fn new(reader: R, writer: W) -> Self {
        let max_frame = DEFAULT_MAX_FRAME;
        Self { reader, writer, framing: None, max_frame, name: "byte stream", meta: PeerInfo::default() }
    }

    /// How frames are delimited. Default: as the dialect demands.
    pub fn framing(mut self, framing: Framing) -> Self {
        self.framing = Some(framing);
        self
    }

    /// The largest frame taken in either direction, in bytes, its framing not counted. Default: 16 MiB.
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
    pub fn meta(mut self, meta: PeerInfo) -> Self {
        self.meta = meta;
        self
    }

    /// The open connection.
    #[must_use]
    pub fn into_link(self) -> Link {
        let traits = Capabilities {
            ordered: true,
            opens_exchanges: false,
            exchange_scoped: false,
            batches: true,
            max_frame: self.max_frame,
        };
        let (closer, closing) = closing();
        let framed = Framed::default();
        if let Some(framing) = self.framing {
            framed.say(framing);
        }
        let budget = ByteBudget::default();
        let partial = PartialFrame::new(&budget);
        let receiver = ByteReceiver::new(self.reader, framed.clone(), self.max_frame, closing, partial);
        let sender = ByteSender::new(self.writer, framed.clone(), self.max_frame, closer);
        Link::new(receiver, sender, traits, self.meta).unframed(framed).with_budget(budget)
    }
}

impl<S> ByteStream<ReadHalf<S>, WriteHalf<S>>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    /// A wire of one stream that reads and writes: TCP, TLS, a duplex.
    pub fn whole(stream: S) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self::new(reader, writer)
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
