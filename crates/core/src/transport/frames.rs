//! A transport over a stream and a sink of whole frames, and the queue of bytes that transports of the core write from.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use futures_core::Stream;
use futures_sink::Sink;
use tokio::io::AsyncWrite;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::framing::BadFrame;
use crate::id::ExchangeId;
use crate::transport::byte_stream::DEFAULT_MAX_FRAME;
use crate::transport::{
    BoxFuture, Capabilities, CloseReason, Inbound, Lane, Link, Outbound, PeerInfo, Receiver, Sender,
    Transport, TransportError, TransportErrorKind, TransportEvent,
};

type BoxError = Box<dyn Error + Send + Sync>;

/// A transport made of any [`Stream`] and [`Sink`] of whole frames, for example of a codec, a channel or a WebSocket.
///
/// The sink is flushed before it holds more than 64 KiB, or one larger frame. The end of the stream is reported as
/// [`HalfClosed`](TransportEvent::HalfClosed). An error of the stream ends the connection.
///
/// ```
/// use std::io;
///
/// use bytes::Bytes;
/// use rescind_core::{CallContext, FrameStream, Peer, Router, dialect};
/// use tokio::sync::mpsc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Two channels of frames, as a stream and a sink.
/// let (input, frames) = mpsc::channel::<Bytes>(16);
/// let stream = futures_util::stream::unfold(frames, async |mut frames| {
///     let frame = frames.recv().await?;
///     Some((Ok::<_, io::Error>(frame), frames))
/// });
/// let (frames, mut output) = mpsc::channel::<Bytes>(16);
/// let sink = futures_util::sink::unfold(frames, async |frames, frame| frames.send(frame).await.map(|()| frames));
///
/// let router = Router::new().method("greet", async |_: CallContext, (name,): (String,)| Ok(format!("Hello, {name}")));
/// let transport = FrameStream::new(stream, sink).name("channels");
/// let peer = Peer::builder(dialect::ACP).serve(router).connect(transport).await?;
///
/// input.send(Bytes::from(r#"{"jsonrpc":"2.0","id":1,"method":"greet","params":["Ada"]}"#)).await?;
/// assert_eq!(output.recv().await.as_deref(), Some(&br#"{"jsonrpc":"2.0","id":1,"result":"Hello, Ada"}"#[..]));
/// # drop(peer);
/// # Ok(())
/// # }
/// ```
#[must_use = "a transport does nothing until it is opened"]
pub struct FrameStream<I, O> {
    stream: I,
    sink: O,
    max_frame: usize,
    name: &'static str,
    meta: PeerInfo,
}

impl<I, O, E> FrameStream<I, O>
where
    I: Stream<Item = Result<Bytes, E>> + Send + 'static,
    E: Into<BoxError>,
    O: Sink<Bytes> + Send + 'static,
    O::Error: Into<BoxError>,
{
    /// A transport of a stream and a sink.
    pub fn new(stream: I, sink: O) -> Self {
        Self { stream, sink, max_frame: DEFAULT_MAX_FRAME, name: "frame stream", meta: PeerInfo::default() }
    }

    /// The largest frame in both directions, in bytes. Default: 16 MiB. The stream must limit its own reads: a larger
    /// frame is refused here only after it was read.
    pub fn max_frame(mut self, bytes: usize) -> Self {
        self.max_frame = bytes;
        self
    }

    /// The name of the transport in reports.
    pub fn name(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// Sets what is known about the peer.
    pub fn meta(mut self, meta: PeerInfo) -> Self {
        self.meta = meta;
        self
    }

    /// The open link. The stream and the sink must keep the order of the frames.
    #[must_use]
    pub fn into_link(self) -> Link {
        let traits = Capabilities::of_stream(self.max_frame);
        let (closer, closing) = oneshot::channel();
        let max_frame = self.max_frame;
        let receiver =
            FrameReceiver { stream: Box::pin(self.stream), max_frame, closing, place: Input::Open };
        let sender = FrameSender {
            place: Output::Open(Box::pin(self.sink)),
            unflushed: 0,
            max_frame,
            closer: Some(closer),
        };
        Link::new(receiver, sender, traits, self.meta)
    }
}

impl<I, O, E> Transport for FrameStream<I, O>
where
    I: Stream<Item = Result<Bytes, E>> + Send + 'static,
    E: Into<BoxError> + 'static,
    O: Sink<Bytes> + Send + 'static,
    O::Error: Into<BoxError>,
{
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(async move { Ok(self.into_link()) })
    }
}

impl<I, O> fmt::Debug for FrameStream<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameStream")
            .field("name", &self.name)
            .field("max_frame", &self.max_frame)
            .finish_non_exhaustive()
    }
}

struct FrameReceiver<I> {
    stream: Pin<Box<I>>,
    max_frame: usize,
    /// Ends when the sending half is closed or dropped.
    closing: oneshot::Receiver<Infallible>,
    place: Input,
}

#[derive(Clone, Copy, Debug)]
enum Input {
    Open,
    HalfClosed,
    Closed,
}

impl<I, E> Receiver for FrameReceiver<I>
where
    I: Stream<Item = Result<Bytes, E>> + Send,
    E: Into<BoxError>,
{
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        loop {
            match self.place {
                Input::Open => match ready!(self.stream.as_mut().poll_next(cx)) {
                    Some(Ok(body)) if body.len() > self.max_frame => {
                        let why = BadFrame::TooLarge { limit: self.max_frame };
                        return Poll::Ready(Some(Ok(TransportEvent::Rejected {
                            exchange: ExchangeId::NONE,
                            why,
                            head: body,
                        })));
                    }
                    Some(Ok(body)) => {
                        return Poll::Ready(Some(Ok(TransportEvent::Message(Inbound::new(body)))));
                    }
                    Some(Err(error)) => {
                        self.place = Input::Closed;
                        return Poll::Ready(Some(Err(TransportError::new(TransportErrorKind::Io, error))));
                    }
                    None if self.closing.try_recv() == Err(TryRecvError::Closed) => {
                        self.place = Input::Closed;
                    }
                    None => {
                        self.place = Input::HalfClosed;
                        return Poll::Ready(Some(Ok(TransportEvent::HalfClosed)));
                    }
                },
                Input::HalfClosed => {
                    let _ = ready!(Pin::new(&mut self.closing).poll(cx));
                    self.place = Input::Closed;
                }
                Input::Closed => return Poll::Ready(None),
            }
        }
    }
}

struct FrameSender<O> {
    place: Output<O>,
    /// The bytes since the sink was last flushed.
    unflushed: usize,
    max_frame: usize,
    /// `None`: closed.
    closer: Option<oneshot::Sender<Infallible>>,
}

enum Output<O> {
    Open(Pin<Box<O>>),
    Broken(Broken),
}

impl<O> FrameSender<O>
where
    O: Sink<Bytes>,
    O::Error: Into<BoxError>,
{
    fn sink(&mut self) -> Result<&mut Pin<Box<O>>, TransportError> {
        match &mut self.place {
            Output::Open(sink) => Ok(sink),
            Output::Broken(why) => Err(why.error()),
        }
    }

    fn fail(&mut self, why: Broken) -> TransportError {
        let error = why.error();
        self.place = Output::Broken(why);
        self.closer = None;
        error
    }

    fn checked(&mut self, done: Result<(), O::Error>) -> Result<(), TransportError> {
        done.map_err(|error| self.fail(Broken::By(TransportError::new(TransportErrorKind::Io, error))))
    }
}

impl<O> Sender for FrameSender<O>
where
    O: Sink<Bytes> + Send,
    O::Error: Into<BoxError>,
{
    fn poll_ready(
        mut self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.sink()?;
        if !has_room(lane, self.unflushed) {
            ready!(self.as_mut().poll_flush(cx))?;
        }
        let done = ready!(self.sink()?.as_mut().poll_ready(cx));
        Poll::Ready(self.checked(done))
    }

    fn start_send(mut self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        let limit = self.max_frame;
        let sink = self.sink()?;
        if out.body.len() > limit {
            return Err(oversize(out.exchange, limit));
        }
        let size = out.body.len();
        let done = sink.as_mut().start_send(out.body);
        self.unflushed += size;
        self.checked(done)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        let done = ready!(self.sink()?.as_mut().poll_flush(cx));
        self.unflushed = 0;
        Poll::Ready(self.checked(done))
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        _: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        if matches!(self.place, Output::Broken(Broken::Closed)) {
            return Poll::Ready(Ok(()));
        }
        let done = ready!(self.sink()?.as_mut().poll_close(cx));
        self.checked(done)?;
        self.fail(Broken::Closed);
        Poll::Ready(Ok(()))
    }
}

/// The room that is kept between batches, in bytes. A buffer without a larger frame does not grow above it. Without it
/// each batch would begin with a small buffer again.
const KEPT_ROOM: usize = 256 * 1024;
/// The most pieces of one write.
const MAX_PIECES: usize = 8;

/// The bytes that wait to be written to a stream, in their order.
///
/// It is not limited: the transport that uses it limits what it puts in.
#[derive(Debug, Default)]
pub struct WriteQueue {
    /// Bodies of large frames, and what is in front of each.
    front: VecDeque<Bytes>,
    /// The bytes in `front`.
    front_bytes: usize,
    /// Everything after them: small frames, and the parts of large frames that are not their body.
    tail: BytesMut,
}

impl WriteQueue {
    /// From this size on the body of a frame should be put in with [`push`](Self::push), in bytes. For a smaller one a
    /// copy takes less time than another piece.
    pub const LARGE_BODY: usize = 16 * 1024;

    /// The number of bytes that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.front_bytes + self.tail.len()
    }

    /// Whether no byte waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer of the last bytes, to append to. Only append to it.
    pub fn tail_mut(&mut self) -> &mut BytesMut {
        &mut self.tail
    }

    /// Appends bytes without a copy.
    pub fn push(&mut self, bytes: Bytes) {
        if !self.tail.is_empty() {
            let before = self.tail.split().freeze();
            self.push_front(before);
        }
        self.push_front(bytes);
    }

    fn push_front(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.front_bytes += bytes.len();
            self.front.push_back(bytes);
        }
    }

    /// Writes once, as much as the writer accepts, and returns how much that is.
    ///
    /// # Errors
    /// The error of the writer; [`WriteZero`](io::ErrorKind::WriteZero) if it accepts nothing.
    pub fn poll_write(
        &mut self,
        writer: Pin<&mut (impl AsyncWrite + ?Sized)>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let written = if !self.front.is_empty() && writer.is_write_vectored() {
            self.with_pieces(|pieces| writer.poll_write_vectored(cx, pieces))
        } else {
            writer.poll_write(cx, self.front.front().map_or(&self.tail, |first| first))
        };
        match ready!(written) {
            Ok(0) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Ok(count) => {
                self.advance(count);
                Poll::Ready(Ok(count))
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// The first bytes, as far as they fit into one write of several pieces.
    fn with_pieces<R>(&self, write: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        let mut pieces = [IoSlice::new(&[]); MAX_PIECES];
        let all = self.front.iter().map(|part| &**part).chain(std::iter::once(&*self.tail));
        let mut count = 0;
        for (piece, bytes) in pieces.iter_mut().zip(all) {
            *piece = IoSlice::new(bytes);
            count += 1;
        }
        write(pieces.get(..count).unwrap_or_default())
    }

    /// These bytes were written.
    fn advance(&mut self, mut count: usize) {
        while let Some(first) = self.front.front_mut().filter(|_| count > 0) {
            let written = count.min(first.len());
            self.front_bytes -= written;
            count -= written;
            if written < first.len() {
                first.advance(written);
            } else {
                self.front.pop_front();
            }
        }
        self.tail.advance(count.min(self.tail.len()));
        // The next batch starts at the front of the same memory, unless many frames made it grow. The capacity does
        // not show that: it excludes the memory at the front whose bytes were written.
        if self.is_empty() && self.tail.try_reclaim(KEPT_ROOM + 1) {
            self.tail = BytesMut::new();
        }
    }

    /// Drops all bytes.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// A sender that holds at most this many bytes takes a data frame, so that a usual frame still fits below [`MAX_HELD`].
const MAX_HELD_FOR_DATA: usize = 32 * 1024;
/// The most bytes that a sender holds without a flush, except one larger frame.
const MAX_HELD: usize = 64 * 1024;

/// Whether a sender that holds this many bytes may take a frame of this lane.
pub(super) const fn has_room(lane: Lane, held: usize) -> bool {
    match lane {
        Lane::Control => held < MAX_HELD,
        Lane::Data => held <= MAX_HELD_FOR_DATA,
    }
}

/// Whether a sender that had no room for this lane is woken. A sender that is woken for each frame that leaves would
/// write one frame and wait again.
pub(super) const fn is_half_empty(lane: Lane, held: usize) -> bool {
    match lane {
        Lane::Control => held <= MAX_HELD / 2,
        Lane::Data => held <= MAX_HELD_FOR_DATA / 2,
    }
}

/// Why nothing can be sent any more.
#[derive(Clone, Debug)]
pub(super) enum Broken {
    /// This side closed the connection.
    Closed,
    /// The connection broke.
    By(TransportError),
}

impl Broken {
    pub(super) fn by(error: io::Error) -> Self {
        Self::By(TransportError::from(error))
    }

    pub(super) fn error(&self) -> TransportError {
        match self {
            Self::Closed => TransportError::new(TransportErrorKind::Closed, "this side closed it"),
            Self::By(error) => error.clone(),
        }
    }
}

/// The error of a frame that is too large. It was not taken, and the connection continues.
pub(super) fn oversize(exchange: ExchangeId, limit: usize) -> TransportError {
    let text = format!("the frame is larger than {limit} bytes and was not sent");
    TransportError { exchange: Some(exchange), ..TransportError::new(TransportErrorKind::TooLarge, text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = WriteQueue::LARGE_BODY;

    /// Accepts at most this many bytes in one write.
    struct Slow {
        most: usize,
        is_vectored: bool,
        written: Vec<u8>,
        writes: usize,
    }

    impl AsyncWrite for Slow {
        fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            pieces: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let before = self.written.len();
            let most = self.most;
            self.written.extend(pieces.iter().flat_map(|piece| piece.iter().copied()).take(most));
            self.writes += 1;
            Poll::Ready(Ok(self.written.len() - before))
        }

        fn is_write_vectored(&self) -> bool {
            self.is_vectored
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn put(queue: &mut WriteQueue, bytes: Bytes) {
        if bytes.len() < LARGE {
            queue.tail_mut().extend_from_slice(&bytes);
        } else {
            queue.push(bytes);
        }
    }

    /// Writes everything.
    fn write(queue: &mut WriteQueue, most: usize, is_vectored: bool) -> Slow {
        let mut slow = Slow { most, is_vectored, written: Vec::new(), writes: 0 };
        let mut cx = Context::from_waker(std::task::Waker::noop());
        while !queue.is_empty() {
            assert!(matches!(queue.poll_write(Pin::new(&mut slow), &mut cx), Poll::Ready(Ok(1..))));
        }
        slow
    }

    #[test]
    fn frames_of_all_sizes_are_written_in_their_order() {
        let sizes = [1, LARGE, LARGE - 1, 3 * LARGE, 2, 2 * LARGE, 5 * LARGE, 4 * LARGE, 2 * LARGE, LARGE, 7];
        let bodies: Vec<_> =
            sizes.into_iter().zip(b'a'..).map(|(size, byte)| Bytes::from(vec![byte; size])).collect();
        for most in [1000, LARGE, usize::MAX] {
            for is_vectored in [false, true] {
                let mut queue = WriteQueue::default();
                for body in &bodies {
                    put(&mut queue, body.clone());
                }
                assert_eq!(queue.len(), sizes.iter().sum::<usize>());
                let slow = write(&mut queue, most, is_vectored);
                assert_eq!(slow.written, bodies.concat(), "{most}");
                if is_vectored && most == usize::MAX {
                    assert_eq!(slow.writes, 2, "eleven pieces");
                }
            }
        }
    }

    #[test]
    fn large_bytes_are_not_copied() {
        let body = Bytes::from(vec![b'x'; LARGE]);
        let mut queue = WriteQueue::default();
        queue.tail_mut().extend_from_slice(b"before");
        put(&mut queue, body.clone());
        assert!(queue.front.iter().any(|part| part.as_ptr() == body.as_ptr()));
    }

    #[test]
    fn a_writer_that_accepts_nothing_is_an_error() {
        let mut queue = WriteQueue::default();
        put(&mut queue, Bytes::from_static(b"x"));
        let mut slow = Slow { most: 0, is_vectored: true, written: Vec::new(), writes: 0 };
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let Poll::Ready(Err(error)) = queue.poll_write(Pin::new(&mut slow), &mut cx) else {
            panic!("no error");
        };
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn large_frames_release_their_memory_and_small_ones_keep_theirs() {
        let send = |queue: &mut WriteQueue, body: Bytes, is_copied: bool| {
            if is_copied {
                queue.tail_mut().extend_from_slice(&body);
            } else {
                queue.push(body);
            }
            write(queue, 64 * 1024, true);
        };
        let (small, large) = (Bytes::from(vec![b' '; 32 * 1024]), Bytes::from(vec![b' '; 300 * 1024]));
        let mut queue = WriteQueue::default();
        send(&mut queue, small.clone(), true);
        assert!(queue.tail.try_reclaim(small.len()), "the next batch needs room again");
        send(&mut queue, large.clone(), false);
        assert!(large.is_unique() && queue.tail.try_reclaim(small.len()), "only the large frame is released");
        send(&mut queue, large, true);
        assert!(!queue.tail.try_reclaim(1), "the room of the largest frame stays");
    }
}
