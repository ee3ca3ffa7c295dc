use std::io::{self, Read};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

use super::MAX_BUFFERED;
use crate::sync::{Condvar, Mutex, MutexGuard, thread};

/// Reads on a thread. The thread ends at the end of input, or with the first read after this is dropped.
#[derive(Debug)]
pub(crate) struct ThreadReader(Arc<PipeInner>);

#[derive(Debug, Default)]
struct PipeInner {
    state: Mutex<State>,
    taken: Condvar,
}

#[derive(Debug, Default)]
struct State {
    held: BytesMut,
    end: Option<Result<(), io::Error>>,
    dropped: bool,
    waiting: Option<Waker>,
}

impl ThreadReader {
    pub(crate) fn new(source: impl Read + Send + 'static) -> io::Result<Self> {
        let inner = Arc::<PipeInner>::default();
        let theirs = Arc::clone(&inner);
        thread::Builder::new().name("rescind-read".into()).spawn(move || theirs.read(source))?;
        Ok(Self(inner))
    }
}

impl PipeInner {
    fn state(&self) -> MutexGuard<'_, State> {
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
