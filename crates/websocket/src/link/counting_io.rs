use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use rescind_core::{ByteBudget, MemoryFull, PartialFrame, WriteQueue};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

/// The bytes of a control frame in addition to its payload: its head and its mask.
const CONTROL_HEAD: usize = 6;
/// The longest head of a frame, in bytes: two, a length of eight, and a key of four (RFC 6455, section 5.2).
const MAX_HEAD: usize = 14;

/// A stream that counts its bytes and its messages. So a large message on a slow line is not mistaken for silence, and the message that
/// is being read counts in the server's memory.
///
/// A large message that is sent waits here, and what is written after it waits behind it. Otherwise bytes are passed on
/// directly.
#[derive(Debug)]
pub(crate) struct CountingIo<S> {
    io: S,
    carried: Carried,
    budget: ByteBudget,
    partial: PartialFrame,
    /// Bytes that were read of an incomplete message, with its framing.
    unread: usize,
    queue: WriteQueue,
    /// Everything that is written goes to the queue, and a flush does nothing.
    is_corked: bool,
    /// There was no memory for the rest of a message. Further input is dropped and not counted.
    is_torn: bool,
}

/// The amounts that a stream has carried so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Carried {
    /// Messages of any kind that were received.
    pub(super) messages: u64,
    /// Bytes that were read and written.
    pub(super) bytes: u64,
}

impl<S> CountingIo<S> {
    pub(crate) fn new(io: S) -> Self {
        let budget = ByteBudget::default();
        let partial = PartialFrame::new(&budget);
        Self {
            io,
            carried: Carried::default(),
            budget,
            partial,
            unread: 0,
            queue: WriteQueue::default(),
            is_corked: false,
            is_torn: false,
        }
    }

    pub(super) const fn carried(&self) -> Carried {
        self.carried
    }

    /// The budget of its connection.
    pub(super) const fn budget(&self) -> &ByteBudget {
        &self.budget
    }

    /// A message is complete. From now on the code that handles it counts it.
    pub(super) fn message_came(&mut self) {
        self.unread = 0;
        self.carried.messages += 1;
        self.partial.finish();
    }

    /// A control frame, such as a ping, was received. It may be between the parts of a message.
    pub(super) fn control_came(&mut self, bytes: usize) {
        self.unread = self.unread.saturating_sub(bytes + CONTROL_HEAD);
        self.carried.messages += 1;
    }

    /// From now on written bytes are collected, whatever the stream accepts.
    pub(super) const fn cork(&mut self) {
        self.is_corked = true;
    }

    /// Puts a message behind the collected bytes. The next flush writes them.
    pub(super) fn uncork(&mut self, head: &[u8], body: Bytes) {
        self.is_corked = false;
        self.queue.tail_mut().extend_from_slice(head);
        self.queue.push(body);
    }

    fn count(&mut self, bytes: usize) {
        self.carried.bytes = self.carried.bytes.wrapping_add(bytes as u64);
    }
}

impl<S: AsyncWrite + Unpin> CountingIo<S> {
    fn poll_queue(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.queue.is_empty() {
            let count = ready!(self.queue.poll_write(Pin::new(&mut self.io), cx))?;
            self.count(count);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountingIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.is_torn {
            let grown = this.partial.poll_grow(this.unread, buffer.remaining(), cx);
            if ready!(grown) == Err(MemoryFull) {
                this.is_torn = true;
                return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
            }
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buffer);
        let count = buffer.filled().len() - before;
        this.unread = this.unread.saturating_add(count);
        this.count(count);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountingIo<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_corked || !self.queue.is_empty() {
            self.queue.tail_mut().extend_from_slice(bytes);
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = &written {
            self.count(*count);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_corked {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_queue(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_queue(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// The key by which a message is masked. A server masks none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask(Option<[u8; 4]>);

/// Draws a key that the peer's user cannot guess (RFC 6455, section 5.3). `None`: the system gives no random bytes.
pub(super) fn draw_mask(role: Role) -> Option<Mask> {
    match role {
        Role::Server => Some(Mask(None)),
        Role::Client => {
            let mut key = [0; 4];
            getrandom::fill(&mut key).ok()?;
            Some(Mask(Some(key)))
        }
    }
}

/// The head of a text message in one frame, and its payload. The payload is the text itself, in the same memory.
///
/// The library would copy the message into its buffer, would move the rest of the buffer after each write that the
/// socket accepts in part, and would keep the buffer until the connection ends.
pub(super) fn large_frame(text: Bytes, mask: Mask) -> (Vec<u8>, Bytes) {
    let Mask(key) = mask;
    let header = FrameHeader { opcode: OpCode::Data(Data::Text), mask: key, ..FrameHeader::default() };
    let mut head = Vec::with_capacity(MAX_HEAD);
    // A write into memory cannot fail.
    drop(header.format(text.len() as u64, &mut head));
    let payload = match key {
        Some(key) => masked(text, key),
        None => text,
    };
    (head, payload)
}

fn masked(text: Bytes, key: [u8; 4]) -> Bytes {
    // The driver gives its only handle to a frame away.
    let mut payload = text.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&*shared));
    // Several bytes at once.
    let mut repeated = [0; 16];
    for (byte, key) in repeated.iter_mut().zip(key.into_iter().cycle()) {
        *byte = key;
    }
    let mut words = payload.chunks_exact_mut(repeated.len());
    for word in &mut words {
        for (byte, key) in word.iter_mut().zip(repeated) {
            *byte ^= key;
        }
    }
    for (byte, key) in words.into_remainder().iter_mut().zip(repeated) {
        *byte ^= key;
    }
    payload.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_masked_in_its_own_memory() {
        for length in [0, 1, 3, 4, 5, 125, 126, 65_535, 65_536, 70_001] {
            let text: Vec<u8> = (b'a'..=b'z').cycle().take(length).collect();
            let key = [1, 2, 4, 8];
            let bytes = Bytes::from(text.clone());
            let memory = bytes.as_ptr();
            let (head, payload) = large_frame(bytes, Mask(Some(key)));
            assert!(length == 0 || payload.as_ptr() == memory, "a copy of {length} bytes");
            let unmasked: Vec<u8> =
                payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key).collect();
            assert_eq!(unmasked, text, "{length} bytes");
            let mut read = std::io::Cursor::new(&head);
            let (header, told) = FrameHeader::parse(&mut read).unwrap().unwrap();
            assert_eq!((told, header.mask, header.is_final), (length as u64, Some(key), true));
            assert_eq!(read.position(), head.len() as u64);
        }
    }

    #[test]
    fn a_text_that_others_hold_too_is_copied_before_it_is_masked() {
        let held = Bytes::from(vec![b'x'; 100]);
        let (_, payload) = large_frame(held.clone(), Mask(Some([1; 4])));
        assert_eq!((&held[..], &payload[..]), (&[b'x'; 100][..], &[b'y'; 100][..]));
        let (bare, same) = large_frame(held.clone(), Mask(None));
        assert_eq!((bare, same.as_ptr()), (vec![0x81, 100], held.as_ptr()));
    }
}
