//! A transport over any stream of bytes.

mod receiver;
mod sender;

use std::fmt;

use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::sync::oneshot;

use self::receiver::ByteReceiver;
use self::sender::ByteSender;
use super::framed::Framed;
use super::partial_frame::PartialFrame;
use super::{BoxFuture, Capabilities, Link, PeerInfo, Transport, TransportError};
use crate::byte_budget::ByteBudget;
use crate::framing::Framing;

/// The default limit of a frame: 16 MiB.
pub(super) const DEFAULT_MAX_FRAME: usize = 16 * 1024 * 1024;

/// A transport over any [`AsyncRead`] and [`AsyncWrite`].
///
/// Default framing: the framing of the dialect. A [`PeerBuilder`](crate::PeerBuilder) sets it, whether it opens the
/// transport or gets an open [`Link`]. [`framing`](Self::framing) replaces it. If several dialects with different
/// framings are offered, the peer's first byte decides.
///
/// Input is read while output is blocked. At the end of input the receiver returns
/// [`HalfClosed`](super::TransportEvent::HalfClosed) if output is still open, and `None` when it is not. A bad frame
/// after which the next one cannot be found is returned as [`Rejected`](super::TransportEvent::Rejected) and ends the
/// input. Other output than frames is dropped and reported as [`Deviation`](super::TransportEvent::Deviation). Closing shuts the writer down and drops it, because some writers end only when they are dropped.
///
/// ```
/// # use rescind_core::{ByteStream, Link};
/// let (ours, _theirs) = tokio::io::duplex(4096);
/// let link: Link = ByteStream::whole(ours).max_frame(1 << 20).into_link();
/// assert!(link.traits.ordered);
/// ```
#[must_use = "a transport does nothing until it is opened"]
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
    /// A transport over a reader and a writer.
    pub fn new(reader: R, writer: W) -> Self {
        let max_frame = DEFAULT_MAX_FRAME;
        Self { reader, writer, framing: None, max_frame, name: "byte stream", meta: PeerInfo::default() }
    }

    /// Sets how frames are delimited. Default: the framing of the dialect.
    pub fn framing(mut self, framing: Framing) -> Self {
        self.framing = Some(framing);
        self
    }

    /// Sets the largest frame in both directions, in bytes, without its framing. Default: 16 MiB.
    pub fn max_frame(mut self, bytes: usize) -> Self {
        self.max_frame = bytes;
        self
    }

    /// Sets the name of the transport in reports.
    pub fn name(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// Sets what is known about the peer.
    pub fn meta(mut self, meta: PeerInfo) -> Self {
        self.meta = meta;
        self
    }

    /// The open link.
    #[must_use]
    pub fn into_link(self) -> Link {
        let traits = Capabilities::of_stream(self.max_frame);
        let (closer, closing) = oneshot::channel();
        let framed = Framed::default();
        if let Some(framing) = self.framing {
            framed.decide(framing);
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
    /// A transport over one stream that reads and writes: TCP, TLS, a duplex.
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
