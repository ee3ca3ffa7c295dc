use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncRead;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio_util::io::poll_read_buf;

use crate::framing::{BadFrame, Decoded, Decoder, Framing, READ_BUFFER};
use crate::id::ExchangeId;
use crate::transport::framed::Framed;
use crate::transport::partial_frame::{MemoryFull, PartialFrame};
use crate::transport::{Inbound, Receiver, TransportError, TransportEvent};

/// After this many reads without a frame the other tasks get their turn.
const MAX_READS_PER_POLL: usize = 32;

/// The receiving half of a stream of bytes.
pub(super) struct ByteReceiver<R> {
    reader: Pin<Box<R>>,
    /// The decoder of the framing. Until the framing is decided, it only collects bytes.
    decoder: Decoder,
    framed: Framed,
    max_frame: usize,
    /// Ends when the sending half is closed or dropped.
    closing: oneshot::Receiver<Infallible>,
    partial: PartialFrame,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Nothing was read, and the framing may not be decided.
    Beginning,
    Reading,
    /// The input has ended, and its last frame was returned.
    Ended,
    /// The end of input was returned.
    HalfClosed,
    Closed,
}

impl<R: AsyncRead> ByteReceiver<R> {
    pub(super) fn new(
        reader: R,
        framed: Framed,
        max_frame: usize,
        closing: oneshot::Receiver<Infallible>,
        partial: PartialFrame,
    ) -> Self {
        let decoder = Framing::Newline.decoder(max_frame);
        let reader = Box::pin(reader);
        Self { reader, decoder, framed, max_frame, closing, partial, state: State::Beginning }
    }

    /// Waits until the framing is decided, at the latest by the first byte.
    fn poll_framed(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        let framing = if let Some(framing) = self.framed.decided() {
            framing
        } else {
            let buffer = self.decoder.buffer_mut();
            buffer.reserve(READ_BUFFER);
            ready!(poll_read_buf(self.reader.as_mut(), cx, buffer))?;
            let Some(first) = buffer.first() else {
                self.state = State::Ended;
                return Poll::Ready(Ok(()));
            };
            self.framed.to_read(*first)
        };
        let read = std::mem::take(self.decoder.buffer_mut());
        self.decoder = framing.decoder(self.max_frame);
        *self.decoder.buffer_mut() = read;
        self.state = State::Reading;
        Poll::Ready(Ok(()))
    }

    /// The next frame or refusal. `None`: the input has ended.
    fn poll_decoded(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Decoded>, TransportError>> {
        for _ in 0..MAX_READS_PER_POLL {
            if let Some(decoded) = self.decoder.next_frame() {
                self.partial.finish();
                return Poll::Ready(Ok(Some(decoded)));
            }
            match ready!(self.partial.poll_grow(self.decoder.partial(), READ_BUFFER, cx)) {
                Err(MemoryFull) if self.decoder.skip_frame() => {
                    return Poll::Ready(Ok(Some(Decoded::Bad(BadFrame::MemoryFull))));
                }
                // If nothing can be skipped, the bytes are a header block, which is small.
                Ok(()) | Err(MemoryFull) => {}
            }
            self.decoder.make_room();
            if ready!(poll_read_buf(self.reader.as_mut(), cx, self.decoder.buffer_mut()))? == 0 {
                self.state = State::Ended;
                return Poll::Ready(Ok(self.decoder.finish()));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<R: AsyncRead + Send> Receiver for ByteReceiver<R> {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        loop {
            match self.state {
                State::Beginning => {
                    if let Err(error) = ready!(self.poll_framed(cx)) {
                        self.state = State::Closed;
                        return Poll::Ready(Some(Err(error)));
                    }
                }
                State::Reading => match ready!(self.poll_decoded(cx)) {
                    Ok(Some(Decoded::Frame(body))) => {
                        return Poll::Ready(Some(Ok(TransportEvent::Message(Inbound::new(body)))));
                    }
                    Ok(Some(Decoded::Bad(why))) => {
                        // No more input can be read, but requests that were accepted before are still answered.
                        if self.decoder.is_failed() {
                            self.state = State::Ended;
                        }
                        return Poll::Ready(Some(Ok(TransportEvent::Rejected {
                            exchange: ExchangeId::NONE,
                            why,
                            head: bytes::Bytes::new(),
                        })));
                    }
                    Ok(None) => {}
                    Err(error) => {
                        self.state = State::Closed;
                        return Poll::Ready(Some(Err(error)));
                    }
                },
                State::Ended => {
                    if self.closing.try_recv() == Err(TryRecvError::Closed) {
                        self.state = State::Closed;
                        continue;
                    }
                    self.state = State::HalfClosed;
                    return Poll::Ready(Some(Ok(TransportEvent::HalfClosed)));
                }
                State::HalfClosed => {
                    let _ = ready!(Pin::new(&mut self.closing).poll(cx));
                    self.state = State::Closed;
                }
                State::Closed => return Poll::Ready(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use bytes::Buf;
    use tokio::io::ReadBuf;

    use super::*;
    use crate::byte_budget::ByteBudget;

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
