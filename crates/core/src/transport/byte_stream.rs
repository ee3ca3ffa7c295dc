//! A transport over any stream of bytes.

mod receiver;
mod sender;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use crate::byte_budget::{ByteBudget, HeldBytes};
use crate::framing::{Framing, next_capacity};
use crate::transport::byte_stream::receiver::ByteReceiver;
use crate::transport::byte_stream::sender::ByteSender;
use crate::transport::link::Framed;
use crate::transport::{BoxFuture, Capabilities, Link, PeerInfo, Transport, TransportError};

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

/// The bytes of a frame that are read without being counted. So cancels, acknowledgements and usual answers are read
/// although memory is full.
const UNCOUNTED_BYTES: usize = 16 * 1024;
/// The longest time that a frame waits for memory that others hold, all its waits together. So a frame that gets a
/// little room from time to time does not hold its memory for longer.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The frame that a connection is reading, as the budget of its server counts it.
///
/// It counts in the parent of the connection's budget and not in that budget itself. A complete
/// frame for which the connection itself has no room is refused by its session, with the frame's id. So a connection
/// never waits here for memory that it holds itself.
#[derive(Debug)]
pub struct PartialFrame {
    connection: ByteBudget,
    held: Option<HeldBytes>,
    /// Set when the frame has to wait for the first time.
    wait: Option<Box<Wait>>,
}

#[derive(Debug)]
struct Wait {
    /// While it waits: the start of the wait.
    since: Option<Instant>,
    /// How long it may still wait, from that start.
    left: Duration,
    end: Pin<Box<Sleep>>,
}

impl Wait {
    fn new() -> Self {
        Self { since: None, left: MAX_WAIT, end: Box::pin(tokio::time::sleep(MAX_WAIT)) }
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.since.is_none() {
            let now = Instant::now();
            self.since = Some(now);
            self.end.as_mut().reset(now + self.left);
        }
        self.end.as_mut().poll(cx)
    }

    fn pause(&mut self) {
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
    }
}

/// The frame waited for memory for 10 s in total. It must be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFull;

impl PartialFrame {
    /// For the connection with this budget.
    #[must_use]
    pub fn new(connection: &ByteBudget) -> Self {
        Self { connection: connection.clone(), held: None, wait: None }
    }

    /// The frame is complete or dropped. From now on the code that handles it counts it.
    pub fn finish(&mut self) {
        self.held = None;
        self.wait = None;
    }

    /// The size of the buffer, in bytes, for a frame whose length was announced and of which `have` bytes have arrived,
    /// when it needs a larger buffer: at most four times what has arrived, and 16 KiB, and never more than the length.
    #[must_use]
    pub fn buffer_size(announced: usize, have: usize) -> usize {
        next_capacity(announced, have)
    }

    /// Makes room to read `more` bytes, in addition to the `partial` bytes of the frame that were read already. The
    /// first 16 KiB of a frame are not counted.
    ///
    /// # Errors
    /// [`MemoryFull`] when the waits of this frame are 10 s in total.
    pub fn poll_grow(
        &mut self,
        partial: usize,
        more: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), MemoryFull>> {
        if partial < UNCOUNTED_BYTES {
            self.finish();
            return Poll::Ready(Ok(()));
        }
        let Some(shared) = self.connection.parent() else { return Poll::Ready(Ok(())) };
        let held = self.held.get_or_insert_with(|| shared.hold(0));
        let wanted = partial.saturating_add(more);
        if wanted <= held.bytes() {
            return Poll::Ready(Ok(()));
        }
        loop {
            if held.try_resize(wanted) {
                if let Some(wait) = &mut self.wait {
                    wait.pause();
                }
                return Poll::Ready(Ok(()));
            }
            if shared.poll_room(wanted - held.bytes(), cx).is_ready() {
                continue;
            }
            ready!(self.wait.get_or_insert_with(|| Box::new(Wait::new())).poll_end(cx));
            self.finish();
            return Poll::Ready(Err(MemoryFull));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_frame_that_gets_memory_in_small_amounts_has_the_same_total_wait_limit() {
        let server = ByteBudget::new(2 * UNCOUNTED_BYTES);
        let mut others = server.hold(UNCOUNTED_BYTES);
        let mut frame = PartialFrame::new(&server.child(usize::MAX));
        poll_fn(|cx| frame.poll_grow(UNCOUNTED_BYTES, 0, cx)).await.unwrap();
        let since = Instant::now();
        for read in 1..=3 {
            let mut grown = std::pin::pin!(poll_fn(|cx| frame.poll_grow(UNCOUNTED_BYTES + read - 1, 1, cx)));
            let waited = tokio::time::timeout(Duration::from_secs(3), grown.as_mut()).await;
            assert!(waited.is_err(), "there is no room");
            others.resize(UNCOUNTED_BYTES - read);
            grown.await.unwrap();
            // Time in which it does not wait is not counted.
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        assert_eq!(poll_fn(|cx| frame.poll_grow(UNCOUNTED_BYTES + 3, 1, cx)).await, Err(MemoryFull));
        let waited = since.elapsed().as_secs() - 3 * 60;
        assert_eq!(waited, MAX_WAIT.as_secs());
        assert_eq!(server.used(), others.bytes(), "it holds nothing any more");
    }
}
