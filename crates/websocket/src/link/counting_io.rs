use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use rescind_core::{ByteBudget, MemoryFull, PartialFrame, WriteQueue};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::keepalive::Carried;

/// The bytes of a control frame in addition to its payload: its head and its mask.
const CONTROL_HEAD: usize = 6;

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
