//! A write timeout for a socket whose peer takes nothing. hyper would wait for it forever.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Fails a write that makes no progress for this time, which frees the socket and the data that waits for it.
pub(super) struct Stalling<S> {
    io: S,
    limit: Duration,
    /// When the pending write has waited too long.
    due: Option<Pin<Box<Sleep>>>,
    lifted: Arc<AtomicBool>,
}

/// Removes the limit of a socket that now uses another protocol with its own limits.
#[derive(Clone, Debug)]
pub(super) struct Disarm(Arc<AtomicBool>);

impl Disarm {
    pub(super) fn disarm(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<S> Stalling<S> {
    pub(super) fn new(io: S, limit: Duration) -> (Self, Disarm) {
        let lifted = Arc::<AtomicBool>::default();
        (Self { io, limit, due: None, lifted: Arc::clone(&lifted) }, Disarm(lifted))
    }

    /// Checks the result of a write.
    fn watch<T>(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if wrote.is_ready() || self.lifted.load(Ordering::Relaxed) {
            self.due = None;
            return wrote;
        }
        let limit = self.limit;
        let due = self.due.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        if due.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalling<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalling<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.watch(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.io).poll_write_vectored(cx, bytes);
        self.watch(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.watch(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.watch(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_write_that_makes_no_progress_fails_in_time() {
        let (near, mut far) = tokio::io::duplex(4);
        let (mut near, _lift) = Stalling::new(near, LIMIT);
        near.write_all(b"four").await.unwrap();
        let since = Instant::now();
        let slow = async {
            tokio::time::advance(LIMIT / 2).await;
            far.read_u8().await.unwrap();
        };
        let (wrote, ()) = tokio::join!(near.write_all(b"56"), slow);
        assert_eq!(wrote.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(since.elapsed(), LIMIT + LIMIT / 2, "each step begins anew");
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_without_write_timeout_waits() {
        let (near, mut far) = tokio::io::duplex(4);
        let (mut near, disarm) = Stalling::new(near, LIMIT);
        disarm.disarm();
        let late = async {
            tokio::time::advance(LIMIT * 3).await;
            let mut all = [0; 6];
            far.read_exact(&mut all).await.unwrap();
        };
        let (wrote, ()) = tokio::join!(near.write_all(b"123456"), late);
        wrote.unwrap();
    }
}
