use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::AsyncRead;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::{Instant, Sleep};
use tokio_util::io::poll_read_buf;

use crate::framing::{BYTE_ORDER_MARK, BadFrame, Decoded, Decoder, Framing, READ_BUFFER};
use crate::id::ExchangeId;
use crate::message::Deviation;
use crate::transport::byte_stream::{MemoryFull, PartialFrame};
use crate::transport::link::Framed;
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
    /// The end of the time for a text over several lines.
    text_time: Option<Pin<Box<Sleep>>>,
    /// The body of a message whose deviation was returned.
    joined: Bytes,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Nothing was read, and the framing may not be decided.
    Beginning,
    Reading,
    /// A message follows its deviation. `ended`: the input has ended.
    Joined {
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
    pub(super) fn new(
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
            joined: Bytes::new(),
            state: State::Beginning,
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
                    self.state = State::Finishing;
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
                    self.state = State::Finishing;
                    return Poll::Ready(Ok(None));
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending => return self.poll_text_time(cx).map(|decoded| Ok(Some(decoded))),
            }
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

    /// The event of what was decoded.
    fn event(&mut self, decoded: Decoded) -> TransportEvent {
        match decoded {
            // The end of input has cut it off: whoever waits for the message learns the reason of that end.
            Decoded::Frame(body) | Decoded::Bad(BadFrame::NotJson, body)
                if matches!(self.state, State::Finishing) && is_cut_off(&body) =>
            {
                let (why, head) = (BadFrame::Truncated, Bytes::new());
                TransportEvent::Rejected { exchange: ExchangeId::NONE, why, head }
            }
            // The codec says what is wrong with a line that is not JSON, and the driver whether it is answered.
            Decoded::Frame(body) | Decoded::Bad(BadFrame::NotJson, body) => {
                TransportEvent::Message(Inbound::new(body))
            }
            Decoded::SeveralLines(body) => {
                self.joined = body.clone();
                self.state = State::Joined { ended: matches!(self.state, State::Finishing) };
                TransportEvent::Deviation { deviation: Deviation::SeveralLines, sent: body }
            }
            Decoded::Bad(why, head) => {
                // No more input can be read, but requests that were accepted before are still answered.
                if self.decoder.is_failed() {
                    self.state = State::Ended;
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
                State::Beginning => {
                    if let Err(error) = ready!(self.poll_framed(cx)) {
                        self.state = State::Closed;
                        return Poll::Ready(Some(Err(error)));
                    }
                }
                State::Reading => match ready!(self.poll_decoded(cx)) {
                    Ok(Some(decoded)) => return Poll::Ready(Some(Ok(self.event(decoded)))),
                    Ok(None) => {}
                    Err(error) => {
                        self.state = State::Closed;
                        return Poll::Ready(Some(Err(error)));
                    }
                },
                State::Joined { ended } => {
                    self.state = if ended { State::Finishing } else { State::Reading };
                    let body = std::mem::take(&mut self.joined);
                    return Poll::Ready(Some(Ok(TransportEvent::Message(Inbound::new(body)))));
                }
                State::Finishing => match self.decoder.finish() {
                    Some(decoded) => return Poll::Ready(Some(Ok(self.event(decoded)))),
                    None => self.state = State::Ended,
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
