use std::io::{self, Write};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::AsyncWrite;

use super::MAX_BUFFERED;
use crate::sync::{Condvar, Mutex, MutexGuard, thread};

/// Writes on a thread. A shutdown waits until everything is written and the target is dropped. Dropping does not wait,
/// and bytes that were accepted are still written.
#[derive(Debug)]
pub(crate) struct ThreadWriter(Arc<PipeInner>);

#[derive(Debug, Default)]
struct PipeInner {
    state: Mutex<State>,
    given: Condvar,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<u8>,
    /// The thread is writing.
    writing: bool,
    closing: bool,
    /// The thread has ended, and the target is dropped.
    ended: bool,
    error: Option<(io::ErrorKind, String)>,
    waiting: Option<Waker>,
}

impl State {
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
        let inner = Arc::<PipeInner>::default();
        let theirs = Arc::clone(&inner);
        thread::Builder::new().name("rescind-write".into()).spawn(move || theirs.write(target))?;
        Ok(Self(inner))
    }

    fn poll_until(&self, cx: &mut Context<'_>, done: impl FnOnce(&State) -> bool) -> Poll<io::Result<()>> {
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

impl PipeInner {
    fn state(&self) -> MutexGuard<'_, State> {
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

fn wake(mut state: MutexGuard<'_, State>) {
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
