use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use tokio::sync::oneshot;

use crate::failpoint::{self, Failpoint};
use crate::framing::Framing;
use crate::transport::frames::{Broken, WriteQueue, has_room, oversize};
use crate::transport::link::Framed;
use crate::transport::{CloseReason, Lane, Outbound, Sender, TransportError};

/// The sending half of a stream of bytes.
pub(super) struct ByteSender<W> {
    /// Frames that were taken and not yet passed to the writer.
    staged: WriteQueue,
    framed: Framed,
    /// The framing of the stream. Set by the first frame, when it is decided at the latest.
    framing: Option<Framing>,
    max_frame: usize,
    state: State<W>,
    /// `None`: closed.
    closer: Option<oneshot::Sender<Infallible>>,
}

enum State<W> {
    Open(Pin<Box<W>>),
    Broken(Broken),
}

impl<W: AsyncWrite> ByteSender<W> {
    pub(super) fn new(
        writer: W,
        framed: Framed,
        max_frame: usize,
        closer: oneshot::Sender<Infallible>,
    ) -> Self {
        let state = State::Open(Box::pin(writer));
        Self { staged: WriteQueue::default(), framed, framing: None, max_frame, state, closer: Some(closer) }
    }

    fn writer(&mut self) -> Result<&mut Pin<Box<W>>, TransportError> {
        match &mut self.state {
            State::Open(writer) => Ok(writer),
            State::Broken(why) => Err(why.error()),
        }
    }

    fn fail(&mut self, why: Broken) -> TransportError {
        let error = why.error();
        self.state = State::Broken(why);
        self.staged.clear();
        self.closer = None;
        error
    }

    /// Writes once, as much as the writer accepts.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        let State::Open(writer) = &mut self.state else {
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
        if matches!(self.state, State::Broken(Broken::Closed)) {
            return Poll::Ready(Ok(()));
        }
        ready!(self.as_mut().poll_flush(cx))?;
        ready!(self.poll_step(cx, AsyncWrite::poll_shutdown))?;
        // Drops the writer: with some writers only this ends the peer's input.
        self.fail(Broken::Closed);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
