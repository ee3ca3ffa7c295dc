use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::AsyncWrite;
use tokio::sync::oneshot;

use crate::failpoint::{self, Failpoint};
use crate::transport::framed::Framed;
use crate::transport::send_buffer::{Broken, has_room, oversize};
use crate::transport::{CloseReason, Lane, Outbound, Sender, TransportError};

/// The room that is kept between batches, in bytes. A buffer without a larger frame does not grow above it. Without it
/// each batch would begin with a small buffer again.
const KEPT_ROOM: usize = 256 * 1024;

/// The sending half of a stream of bytes.
pub(super) struct ByteSender<W> {
    /// Frames that were taken and not yet passed to the writer.
    staged: BytesMut,
    framed: Framed,
    /// Appends a frame in the framing of the stream. Set by the first frame, when the framing is decided at the latest.
    encode: Option<fn(&[u8], &mut BytesMut)>,
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
        Self { staged: BytesMut::new(), framed, encode: None, max_frame, state, closer: Some(closer) }
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
        self.staged = BytesMut::new();
        self.closer = None;
        error
    }

    /// Writes once, as much as the writer accepts.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        let State::Open(writer) = &mut self.state else {
            return Poll::Ready(self.writer().map(drop));
        };
        let written = match ready!(writer.as_mut().poll_write(cx, &self.staged)) {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            other => other,
        };
        match written {
            Ok(_) if failpoint::active(Failpoint::TornWrite) => self.staged.clear(),
            Ok(count) => self.staged.advance(count.min(self.staged.len())),
            Err(error) => return Poll::Ready(Err(self.fail(Broken::by(error)))),
        }
        // The next batch starts at the front of the same memory, unless a large frame made it grow. The capacity does
        // not show that: it excludes the memory at the front whose bytes were written.
        if self.staged.is_empty() && self.staged.try_reclaim(KEPT_ROOM + 1) {
            self.staged = BytesMut::new();
        }
        Poll::Ready(Ok(()))
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
        let Self { encode, framed, staged, .. } = &mut *self;
        let encode = encode.get_or_insert_with(|| framed.to_write().encoder());
        encode(&out.body, staged);
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
    use crate::id::ExchangeId;
    use crate::transport::{FrameInfo, FrameKind};

    fn send(sender: &mut ByteSender<tokio::io::Sink>, bytes: usize) {
        let frame = Outbound {
            body: vec![b' '; bytes].into(),
            exchange: ExchangeId::NONE,
            lane: Lane::Data,
            head: FrameInfo { kind: FrameKind::Notification, id: None, method: None, trace: None },
            last: false,
        };
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert_eq!(Pin::new(&mut *sender).start_send(frame).map_err(|error| error.kind), Ok(()));
        assert!(matches!(Pin::new(sender).poll_flush(&mut cx), Poll::Ready(Ok(()))));
    }

    #[test]
    fn a_large_frame_releases_its_buffer_and_a_small_one_keeps_it() {
        let mut sender = ByteSender::new(tokio::io::sink(), Framed::default(), 1 << 20, oneshot::channel().0);
        send(&mut sender, 32 * 1024);
        assert!(sender.staged.try_reclaim(32 * 1024), "the next batch needs room again");
        send(&mut sender, 300 * 1024);
        assert!(!sender.staged.try_reclaim(1), "the room of the largest frame stays");
    }
}
