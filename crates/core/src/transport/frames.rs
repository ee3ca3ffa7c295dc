use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::byte_stream::DEFAULT_MAX_FRAME;
use super::send_buffer::{Broken, has_room, oversize};
use super::{
    BoxFuture, Capabilities, CloseReason, Inbound, Lane, Link, Outbound, PeerInfo, Receiver, Sender,
    Transport, TransportError, TransportErrorKind, TransportEvent,
};
use crate::framing::BadFrame;
use crate::id::ExchangeId;

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
