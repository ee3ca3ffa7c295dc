//! The bytes of frames that wait to be written to a stream. The bodies of large frames are not copied.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::AsyncWrite;

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
