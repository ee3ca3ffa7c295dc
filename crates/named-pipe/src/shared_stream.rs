//! A stream that cannot close one direction alone: shutting its output down drops the whole stream.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The two halves of one stream. After the output is shut down, the input has ended too.
pub(crate) fn split<S: AsyncRead + AsyncWrite>(stream: S) -> (Half<S>, Half<S>) {
    let state = SharedState { stream: Some(Box::pin(stream)), reading: None };
    let shared = Arc::new(Mutex::new(state));
    (Half(Arc::clone(&shared)), Half(shared))
}

/// One of the two halves.
pub(crate) struct Half<S>(Arc<Mutex<SharedState<S>>>);

struct SharedState<S> {
    stream: Option<Pin<Box<S>>>,
    /// Waits for input. A shutdown by this side ends the input too.
    reading: Option<Waker>,
}

impl<S> Half<S> {
    fn state(&self) -> MutexGuard<'_, SharedState<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: AsyncRead> AsyncRead for Half<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.state();
        let Some(stream) = &mut state.stream else { return Poll::Ready(Ok(())) };
        let read = stream.as_mut().poll_read(cx, buffer);
        if read.is_pending() {
            state.reading = Some(cx.waker().clone());
        }
        read
    }
}

impl<S: AsyncWrite> AsyncWrite for Half<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.state().stream {
            Some(stream) => stream.as_mut().poll_write(cx, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// The system has all written bytes already. A flush of a Windows pipe would wait until the peer has read
    /// everything.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (stream, reading) = {
            let mut state = self.state();
            (state.stream.take(), state.reading.take())
        };
        // Not under the lock: both run other code.
        drop(stream);
        if let Some(reading) = reading {
            reading.wake();
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn shutting_down_drops_the_stream_for_both_sides_and_wakes_the_reader() {
        let (ours, mut theirs) = duplex(64);
        let (mut reading, mut writing) = split(ours);
        writing.write_all(b"last words").await.unwrap();
        let waits = tokio::spawn(async move { reading.read(&mut [0; 8]).await });
        tokio::task::yield_now().await;
        writing.shutdown().await.unwrap();
        assert_eq!(waits.await.unwrap().unwrap(), 0);
        let mut heard = String::new();
        theirs.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "last words");
        assert!(theirs.write_all(b"too late").await.is_err());
        let again = writing.write_all(b"too late").await.unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::BrokenPipe);
        writing.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn both_ways_are_open_at_once() {
        let (ours, mut theirs) = duplex(64);
        let (mut reading, mut writing) = split(ours);
        theirs.write_all(b"in").await.unwrap();
        writing.write_all(b"out").await.unwrap();
        let (mut one, mut other) = ([0; 2], [0; 3]);
        reading.read_exact(&mut one).await.unwrap();
        theirs.read_exact(&mut other).await.unwrap();
        assert_eq!((&one, &other), (b"in", b"out"));
    }
}
