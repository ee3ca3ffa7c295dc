//! Blocking input and output on separate threads, for descriptors that no reactor can watch. Unlike the blocking
//! threads of the runtime, these threads delay neither the runtime's shutdown nor the end of the process.

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::sync::{Condvar, MAX_BUFFERED, Mutex, MutexGuard, thread};

/// Reads on a thread. The thread ends at the end of input, or with the first read after this is dropped.
#[derive(Debug)]
pub(crate) struct ThreadReader(Arc<ReaderInner>);

#[derive(Debug, Default)]
struct ReaderInner {
    state: Mutex<ReaderState>,
    taken: Condvar,
}

#[derive(Debug, Default)]
struct ReaderState {
    held: BytesMut,
    end: Option<Result<(), io::Error>>,
    dropped: bool,
    waiting: Option<Waker>,
}

impl ThreadReader {
    pub(crate) fn new(source: impl Read + Send + 'static) -> io::Result<Self> {
        let inner = Arc::<ReaderInner>::default();
        let theirs = Arc::clone(&inner);
        thread::Builder::new().name("rescind-read".into()).spawn(move || theirs.read(source))?;
        Ok(Self(inner))
    }
}

/// A view of a [`ThreadReader`]: whether more comes.
#[cfg(windows)]
pub(crate) struct Reading(Arc<ReaderInner>);

#[cfg(windows)]
impl ThreadReader {
    pub(crate) fn reading(&self) -> Reading {
        Reading(Arc::clone(&self.0))
    }
}

#[cfg(windows)]
impl Reading {
    /// Whether the end has not been read yet, or bytes before it wait for their reader.
    pub(crate) fn has_more(&self) -> bool {
        let state = self.0.state();
        !state.dropped && (state.end.is_none() || !state.held.is_empty())
    }
}

impl ReaderInner {
    fn state(&self) -> MutexGuard<'_, ReaderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, mut source: impl Read) {
        let mut piece = vec![0; MAX_BUFFERED];
        loop {
            let read = source.read(&mut piece);
            let mut state = self.state();
            match read {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => state.end = Some(Err(error)),
                Ok(0) => state.end = Some(Ok(())),
                Ok(count) => state.held.extend_from_slice(piece.get(..count).unwrap_or_default()),
            }
            let (ended, waiting) = (state.end.is_some(), state.waiting.take());
            drop(state);
            if let Some(waker) = waiting {
                waker.wake();
            }
            if ended {
                return;
            }
            let taken = self.taken.wait_while(self.state(), |state| !state.held.is_empty() && !state.dropped);
            if taken.unwrap_or_else(PoisonError::into_inner).dropped {
                return;
            }
        }
    }
}

impl AsyncRead for ThreadReader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.state();
        if state.held.is_empty() {
            return match &mut state.end {
                None => {
                    state.waiting = Some(cx.waker().clone());
                    Poll::Pending
                }
                // The error is returned once, and after it the end of input.
                Some(end) => Poll::Ready(std::mem::replace(end, Ok(()))),
            };
        }
        let count = out.remaining().min(state.held.len());
        out.put_slice(state.held.get(..count).unwrap_or_default());
        state.held.advance(count);
        if state.held.is_empty() {
            state.held.clear();
            self.0.taken.notify_one();
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for ThreadReader {
    fn drop(&mut self) {
        self.0.state().dropped = true;
        self.0.taken.notify_one();
    }
}

/// Writes on a thread. A shutdown waits until everything is written and the target is dropped. Dropping does not wait,
/// and bytes that were accepted are still written.
#[derive(Debug)]
pub(crate) struct ThreadWriter(Arc<WriterInner>);

#[derive(Debug, Default)]
struct WriterInner {
    state: Mutex<WriterState>,
    given: Condvar,
}

#[derive(Debug, Default)]
struct WriterState {
    held: Vec<u8>,
    /// The thread is writing.
    writing: bool,
    closing: bool,
    /// The thread has ended, and the target is dropped.
    ended: bool,
    error: Option<(io::ErrorKind, String)>,
    waiting: Option<Waker>,
}

impl WriterState {
    fn check(&self) -> io::Result<()> {
        match &self.error {
            Some((kind, text)) => Err(io::Error::new(*kind, text.clone())),
            None if self.closing => Err(io::ErrorKind::BrokenPipe.into()),
            None => Ok(()),
        }
    }
}

impl ThreadWriter {
    pub(crate) fn new(target: impl Write + Send + 'static) -> io::Result<Self> {
        let inner = Arc::<WriterInner>::default();
        let theirs = Arc::clone(&inner);
        thread::Builder::new().name("rescind-write".into()).spawn(move || theirs.write(target))?;
        Ok(Self(inner))
    }

    fn poll_until(
        &self,
        cx: &mut Context<'_>,
        done: impl FnOnce(&WriterState) -> bool,
    ) -> Poll<io::Result<()>> {
        let mut state = self.0.state();
        if let Some((kind, text)) = &state.error {
            return Poll::Ready(Err(io::Error::new(*kind, text.clone())));
        }
        if done(&state) {
            return Poll::Ready(Ok(()));
        }
        state.waiting = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl WriterInner {
    fn state(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, mut target: impl Write) {
        let mut piece = Vec::new();
        loop {
            let given = self.given.wait_while(self.state(), |state| state.held.is_empty() && !state.closing);
            let mut state = given.unwrap_or_else(PoisonError::into_inner);
            if state.held.is_empty() {
                drop(state);
                break;
            }
            piece.clear();
            std::mem::swap(&mut piece, &mut state.held);
            state.writing = true;
            wake(state);
            let written = target.write_all(&piece).and_then(|()| target.flush());
            let mut state = self.state();
            state.writing = false;
            if let Err(error) = written {
                state.error = Some((error.kind(), error.to_string()));
                drop(state);
                break;
            }
            wake(state);
        }
        drop(target);
        let mut state = self.state();
        state.ended = true;
        wake(state);
    }
}

fn wake(mut state: MutexGuard<'_, WriterState>) {
    let waiting = state.waiting.take();
    drop(state);
    if let Some(waker) = waiting {
        waker.wake();
    }
}

impl AsyncWrite for ThreadWriter {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.0.state();
        state.check()?;
        let room = MAX_BUFFERED.saturating_sub(state.held.len());
        if room == 0 {
            state.waiting = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let taken = bytes.get(..room).unwrap_or(bytes);
        state.held.extend_from_slice(taken);
        self.0.given.notify_one();
        Poll::Ready(Ok(taken.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_until(cx, |state| state.held.is_empty() && !state.writing)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.state().closing = true;
        self.0.given.notify_one();
        self.poll_until(cx, |state| state.ended)
    }
}

impl Drop for ThreadWriter {
    fn drop(&mut self) {
        self.0.state().closing = true;
        self.0.given.notify_one();
    }
}
