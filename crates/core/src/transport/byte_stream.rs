//! A transport over any stream of bytes: its options, its sender and its receiver.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::{Instant, Sleep};
use tokio_util::io::poll_read_buf;

use crate::byte_budget::{ByteBudget, HeldBytes};
use crate::failpoint::{self, Failpoint};
use crate::framing::{BYTE_ORDER_MARK, BadFrame, Decoded, Decoder, Framing, READ_BUFFER, next_capacity};
use crate::id::ExchangeId;
use crate::message::Deviation;
use crate::transport::frames::{Broken, WriteQueue, has_room, oversize};
use crate::transport::{
    BoxFuture, Capabilities, CloseReason, Framed, Inbound, Lane, Link, Outbound, PeerInfo, Receiver, Sender,
    Transport, TransportError, TransportEvent,
};

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
/// The receiver needs a runtime of tokio with timers.
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

// The sender.

/// The sending half of a stream of bytes.
struct ByteSender<W> {
    /// Frames that were taken and not yet passed to the writer.
    staged: WriteQueue,
    framed: Framed,
    /// The framing of the stream. Set by the first frame, when it is decided at the latest.
    framing: Option<Framing>,
    max_frame: usize,
    state: SenderState<W>,
    /// `None`: closed.
    closer: Option<oneshot::Sender<Infallible>>,
}

enum SenderState<W> {
    Open(Pin<Box<W>>),
    Broken(Broken),
}

impl<W: AsyncWrite> ByteSender<W> {
    fn new(writer: W, framed: Framed, max_frame: usize, closer: oneshot::Sender<Infallible>) -> Self {
        let state = SenderState::Open(Box::pin(writer));
        Self { staged: WriteQueue::default(), framed, framing: None, max_frame, state, closer: Some(closer) }
    }

    fn writer(&mut self) -> Result<&mut Pin<Box<W>>, TransportError> {
        match &mut self.state {
            SenderState::Open(writer) => Ok(writer),
            SenderState::Broken(why) => Err(why.error()),
        }
    }

    fn fail(&mut self, why: Broken) -> TransportError {
        let error = why.error();
        self.state = SenderState::Broken(why);
        self.staged.clear();
        self.closer = None;
        error
    }

    /// Writes once, as much as the writer accepts.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        let SenderState::Open(writer) = &mut self.state else {
            return Poll::Ready(self.writer().map(drop));
        };
        match ready!(self.staged.poll_write(writer.as_mut(), cx)) {
            Ok(_) => {
                if failpoint::active(Failpoint::TornWrite) {
                    self.staged.clear();
                }
                Poll::Ready(Ok(()))
            }
            Err(error) => Poll::Ready(Err(self.fail(Broken::by(error)))),
        }
    }

    fn poll_step(
        &mut self,
        cx: &mut Context<'_>,
        step: impl FnOnce(Pin<&mut W>, &mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<Result<(), TransportError>> {
        let writer = self.writer()?;
        let done = ready!(step(writer.as_mut(), cx));
        Poll::Ready(done.map_err(|error| self.fail(Broken::by(error))))
    }
}

/// Appends a frame. The body of a large one is not copied.
fn put(staged: &mut WriteQueue, body: Bytes, framing: Framing) {
    let is_large = body.len() >= WriteQueue::LARGE_BODY;
    let end = is_large.then(|| framing.encode_around(&body, staged.tail_mut())).flatten();
    match end {
        Some(end) => {
            staged.push(body);
            staged.tail_mut().extend_from_slice(end);
        }
        None => framing.encode(&body, staged.tail_mut()),
    }
}

impl<W: AsyncWrite + Send> Sender for ByteSender<W> {
    fn poll_ready(
        mut self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.writer()?;
        while !has_room(lane, self.staged.len()) {
            ready!(self.poll_write(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        self.writer()?;
        if out.body.len() > self.max_frame {
            return Err(oversize(out.exchange, self.max_frame));
        }
        let Self { framing, framed, staged, .. } = &mut *self;
        let framing = *framing.get_or_insert_with(|| framed.to_write());
        put(staged, out.body, framing);
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        self.writer()?;
        while !self.staged.is_empty() {
            ready!(self.poll_write(cx))?;
        }
        self.poll_step(cx, AsyncWrite::poll_flush)
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        _: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        if matches!(self.state, SenderState::Broken(Broken::Closed)) {
            return Poll::Ready(Ok(()));
        }
        ready!(self.as_mut().poll_flush(cx))?;
        ready!(self.poll_step(cx, AsyncWrite::poll_shutdown))?;
        // Drops the writer: with some writers only this ends the peer's input.
        self.fail(Broken::Closed);
        Poll::Ready(Ok(()))
    }
}

// The receiver.

/// How long the rest of a frame may be silent until its call is not waited for any more.
const STALL_TIME: Duration = Duration::from_secs(5);

/// A frame that is not whole.
struct Stall {
    /// The bytes of it that are here. 0: there is none.
    length: usize,
    /// More of it has come since the timer was set. Then the timer is set again at its end, and not at each read: a stall is reported
    /// after one to two times of the timer.
    has_grown: bool,
    /// That it has stalled was reported, once for each frame.
    reported: bool,
    timer: Pin<Box<Sleep>>,
}

/// After this many reads without a frame the other tasks get their turn.
const MAX_READS_PER_POLL: usize = 32;

/// The receiving half of a stream of bytes.
struct ByteReceiver<R> {
    reader: Pin<Box<R>>,
    /// The decoder of the framing. Until the framing is decided, it only collects bytes.
    decoder: Decoder,
    framed: Framed,
    max_frame: usize,
    /// Ends when the sending half is closed or dropped.
    closing: oneshot::Receiver<Infallible>,
    partial: PartialFrame,
    /// The end of the time for a text over several lines, for a line end, or for a refused frame.
    text_time: Option<Pin<Box<Sleep>>>,
    /// The last read found nothing.
    waits_for_input: bool,
    /// Set when a frame was not whole for the first time.
    stall: Option<Box<Stall>>,
    /// The body of a message whose deviation was returned.
    after_report: Bytes,
    state: ReceiverState,
}

#[derive(Clone, Copy, Debug)]
enum ReceiverState {
    /// Nothing was read, and the framing may not be decided.
    Beginning,
    Reading,
    /// A message follows its deviation. `ended`: the input has ended.
    AfterReport {
        ended: bool,
    },
    /// The input has ended. The decoder may have frames.
    Finishing,
    /// The input has ended, and its last frame was returned.
    Ended,
    /// The end of input was returned.
    HalfClosed,
    Closed,
}

impl<R: AsyncRead> ByteReceiver<R> {
    fn new(
        reader: R,
        framed: Framed,
        max_frame: usize,
        closing: oneshot::Receiver<Infallible>,
        partial: PartialFrame,
    ) -> Self {
        let decoder = Framing::Newline.decoder(max_frame);
        let reader = Box::pin(reader);
        Self {
            reader,
            decoder,
            framed,
            max_frame,
            closing,
            partial,
            text_time: None,
            waits_for_input: false,
            stall: None,
            after_report: Bytes::new(),
            state: ReceiverState::Beginning,
        }
    }

    /// Waits until the framing is decided, at the latest by the first byte that is neither blank nor of a byte order mark.
    fn poll_framed(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        let framing = if let Some(framing) = self.framed.decided() {
            framing
        } else {
            let first = loop {
                let buffer = self.decoder.buffer_mut();
                buffer.reserve(READ_BUFFER);
                if ready!(poll_read_buf(self.reader.as_mut(), cx, buffer))? == 0 {
                    self.state = ReceiverState::Finishing;
                    return Poll::Ready(Ok(()));
                }
                match first_byte(buffer) {
                    Some(first) => break first,
                    None if buffer.len() >= READ_BUFFER => break b'\n',
                    None => {}
                }
            };
            self.framed.to_read(first)
        };
        let read = std::mem::take(self.decoder.buffer_mut());
        self.decoder = framing.decoder(self.max_frame);
        *self.decoder.buffer_mut() = read;
        self.state = ReceiverState::Reading;
        Poll::Ready(Ok(()))
    }

    /// The next frame or refusal. `None`: the input has ended.
    fn poll_decoded(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Decoded>, TransportError>> {
        for _ in 0..MAX_READS_PER_POLL {
            if let Some(decoded) = self.decoder.next_frame() {
                self.partial.finish();
                return Poll::Ready(Ok(Some(decoded)));
            }
            match self.partial.poll_grow(self.decoder.partial(), READ_BUFFER, cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(MemoryFull)) => {
                    // If nothing can be skipped, the bytes are a header block, which is small.
                    if let Some(head) = self.decoder.skip_frame() {
                        return Poll::Ready(Ok(Some(Decoded::Bad(BadFrame::MemoryFull, head))));
                    }
                }
                Poll::Pending => return self.poll_text_time(cx).map(|decoded| Ok(Some(decoded))),
            }
            self.decoder.make_room();
            match poll_read_buf(self.reader.as_mut(), cx, self.decoder.buffer_mut()) {
                Poll::Ready(Ok(0)) => {
                    self.state = ReceiverState::Finishing;
                    return Poll::Ready(Ok(None));
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending => {
                    self.waits_for_input = true;
                    return self.poll_text_time(cx).map(|decoded| Ok(Some(decoded)));
                }
            }
        }
        if let Some(decoded) = self.decoder.next_frame() {
            self.partial.finish();
            return Poll::Ready(Ok(Some(decoded)));
        }
        if let Poll::Ready(decoded) = self.poll_text_time(cx) {
            return Poll::Ready(Ok(Some(decoded)));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Waits until the time is over for a text over several lines, for a line end, or for a refused frame. It is asked only when
    /// what has arrived was read, so a text that is here is complete however late this task runs.
    fn poll_text_time(&mut self, cx: &mut Context<'_>) -> Poll<Decoded> {
        if !self.decoder.is_collecting() {
            return Poll::Pending;
        }
        let Some(end) = self.decoder.deadline(Instant::now().into_std()).map(Instant::from_std) else {
            return Poll::Pending;
        };
        let timer = self.text_time.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        if timer.deadline() != end {
            timer.as_mut().reset(end);
        }
        ready!(timer.as_mut().poll(cx));
        self.text_time = None;
        match self.decoder.give_up() {
            Some(decoded) => {
                self.partial.finish();
                Poll::Ready(decoded)
            }
            None => Poll::Pending,
        }
    }

    /// Waits until a frame has begun of which nothing more has come for some time.
    #[cold]
    fn poll_stall(&mut self, cx: &mut Context<'_>) -> Poll<TransportEvent> {
        let length = self.decoder.partial();
        if length == 0 {
            self.end_stall();
            return Poll::Pending;
        }
        let stall = self.stall.get_or_insert_with(|| {
            let timer = Box::pin(tokio::time::sleep(STALL_TIME));
            Box::new(Stall { length, has_grown: false, reported: false, timer })
        });
        if stall.length != length {
            (stall.length, stall.has_grown) = (length, true);
        }
        if stall.reported {
            return Poll::Pending;
        }
        // The clock alone says nothing: this thread may have been busy, and the rest may be here. When the timer ends, the runtime has
        // looked at the input too.
        ready!(stall.timer.as_mut().poll(cx));
        while std::mem::take(&mut stall.has_grown) {
            stall.timer.as_mut().reset(Instant::now() + STALL_TIME);
            ready!(stall.timer.as_mut().poll(cx));
        }
        stall.reported = true;
        Poll::Ready(TransportEvent::Stalled { head: self.decoder.beginning() })
    }

    fn end_stall(&mut self) {
        if let Some(stall) = &mut self.stall {
            (stall.length, stall.reported) = (0, false);
        }
    }

    /// The event about a message, which comes before the message itself.
    fn report_before(&mut self, deviation: Deviation, body: Bytes) -> TransportEvent {
        self.after_report = body.clone();
        self.state = ReceiverState::AfterReport { ended: matches!(self.state, ReceiverState::Finishing) };
        TransportEvent::Deviation { deviation, sent: body }
    }

    /// The event of what was decoded.
    fn event(&mut self, decoded: Decoded) -> TransportEvent {
        match decoded {
            // The end of input has cut it off: whoever waits for the message learns the reason of that end.
            Decoded::Frame(body) | Decoded::Bad(BadFrame::NotJson, body)
                if matches!(self.state, ReceiverState::Finishing) && is_cut_off(&body) =>
            {
                let (why, head) = (BadFrame::Truncated, Bytes::new());
                TransportEvent::Rejected { exchange: ExchangeId::NONE, why, head }
            }
            // The codec says what is wrong with a line that is not JSON, and the driver whether it is answered.
            Decoded::Frame(body) | Decoded::Bad(BadFrame::NotJson, body) => {
                TransportEvent::Message(Inbound::new(body))
            }
            Decoded::SeveralLines(body) => self.report_before(Deviation::SeveralLines, body),
            Decoded::Unended(body) => self.report_before(Deviation::Unended, body),
            Decoded::Bad(why, head) => {
                // No more input can be read, but requests that were accepted before are still answered.
                if self.decoder.is_failed() {
                    self.state = ReceiverState::Ended;
                }
                TransportEvent::Rejected { exchange: ExchangeId::NONE, why, head }
            }
            Decoded::Noise(sent) => TransportEvent::Deviation { deviation: Deviation::Noise, sent },
            Decoded::ByteOrderMark(sent) => {
                TransportEvent::Deviation { deviation: Deviation::ByteOrderMark, sent }
            }
        }
    }
}

impl<R: AsyncRead + Send> Receiver for ByteReceiver<R> {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        loop {
            match self.state {
                ReceiverState::Beginning => {
                    if let Err(error) = ready!(self.poll_framed(cx)) {
                        self.state = ReceiverState::Closed;
                        return Poll::Ready(Some(Err(error)));
                    }
                }
                ReceiverState::Reading => match self.poll_decoded(cx) {
                    Poll::Ready(Ok(Some(decoded))) => {
                        if self.stall.is_some() {
                            self.end_stall();
                        }
                        return Poll::Ready(Some(Ok(self.event(decoded))));
                    }
                    Poll::Ready(Ok(None)) => {}
                    Poll::Pending => {
                        // Other waits are not for the peer.
                        let waits_for_input = std::mem::take(&mut self.waits_for_input);
                        if !waits_for_input || self.stall.is_none() && self.decoder.partial() == 0 {
                            return Poll::Pending;
                        }
                        return self.poll_stall(cx).map(|event| Some(Ok(event)));
                    }
                    Poll::Ready(Err(error)) => {
                        self.state = ReceiverState::Closed;
                        return Poll::Ready(Some(Err(error)));
                    }
                },
                ReceiverState::AfterReport { ended } => {
                    self.state = if ended { ReceiverState::Finishing } else { ReceiverState::Reading };
                    let body = std::mem::take(&mut self.after_report);
                    return Poll::Ready(Some(Ok(TransportEvent::Message(Inbound::new(body)))));
                }
                ReceiverState::Finishing => match self.decoder.finish() {
                    Some(decoded) => return Poll::Ready(Some(Ok(self.event(decoded)))),
                    None => self.state = ReceiverState::Ended,
                },
                ReceiverState::Ended => {
                    if self.closing.try_recv() == Err(TryRecvError::Closed) {
                        self.state = ReceiverState::Closed;
                        continue;
                    }
                    self.state = ReceiverState::HalfClosed;
                    return Poll::Ready(Some(Ok(TransportEvent::HalfClosed)));
                }
                ReceiverState::HalfClosed => {
                    let _ = ready!(Pin::new(&mut self.closing).poll(cx));
                    self.state = ReceiverState::Closed;
                }
                ReceiverState::Closed => return Poll::Ready(None),
            }
        }
    }
}

/// Whether a text is the beginning of a JSON text.
fn is_cut_off(text: &[u8]) -> bool {
    matches!(text.trim_ascii_start().first(), Some(b'{' | b'['))
        && serde_json::from_slice::<serde::de::IgnoredAny>(text).is_err_and(|error| error.is_eof())
}

/// The first byte that tells how frames are delimited.
fn first_byte(input: &[u8]) -> Option<u8> {
    let mut rest = input.trim_ascii_start();
    while let Some(after) = rest.strip_prefix(BYTE_ORDER_MARK) {
        rest = after.trim_ascii_start();
    }
    rest.first().copied().filter(|_| !BYTE_ORDER_MARK.starts_with(rest))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io;

    use bytes::Buf;
    use tokio::io::ReadBuf;

    use super::*;
    use crate::byte_budget::ByteBudget;

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

    #[test]
    fn large_frames_are_framed_as_small_ones_are() {
        let line_end = |at: usize| if at % 1000 == 999 { b'\n' } else { b' ' };
        let bodies = [
            Bytes::from_static(b"{}"),
            Bytes::from(vec![b' '; WriteQueue::LARGE_BODY]),
            Bytes::from((0..2 * WriteQueue::LARGE_BODY).map(line_end).collect::<Vec<_>>()),
            Bytes::from(vec![b'7'; 3 * WriteQueue::LARGE_BODY]),
        ];
        for framing in [Framing::Newline, Framing::ContentLength] {
            let (mut staged, mut expected) = (WriteQueue::default(), bytes::BytesMut::new());
            for body in &bodies {
                put(&mut staged, body.clone(), framing);
                framing.encode(body, &mut expected);
            }
            let mut written = Vec::new();
            let mut cx = Context::from_waker(std::task::Waker::noop());
            while !staged.is_empty() {
                assert!(matches!(staged.poll_write(Pin::new(&mut written), &mut cx), Poll::Ready(Ok(_))));
            }
            assert!(written == expected, "{framing:?}");
        }
    }

    /// Returns its bytes, and counts the reads.
    struct Counted {
        rest: &'static [u8],
        reads: usize,
    }

    impl AsyncRead for Counted {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            room: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.reads += 1;
            let count = self.rest.len().min(room.remaining());
            room.put_slice(&self.rest[..count]);
            self.rest.advance(count);
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn small_frames_share_a_read() {
        let input: &'static [u8] = b"{\"jsonrpc\":\"2.0\"}\n".repeat(8 * 1024).leak();
        let reader = Counted { rest: input, reads: 0 };
        let (_closer, closing) = oneshot::channel();
        let partial = PartialFrame::new(&ByteBudget::default());
        let mut receiver = ByteReceiver::new(reader, Framed::default(), 1024, closing, partial);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut frames = 0;
        while let Poll::Ready(Some(Ok(TransportEvent::Message(_)))) =
            Pin::new(&mut receiver).poll_event(&mut cx)
        {
            frames += 1;
        }
        assert_eq!(frames, 8 * 1024);
        let fewest = input.len() / READ_BUFFER;
        assert!(
            receiver.reader.reads <= 2 * fewest,
            "{} reads, where {fewest} would do",
            receiver.reader.reads
        );
    }
}
