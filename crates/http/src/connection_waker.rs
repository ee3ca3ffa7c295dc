//! Spares an HTTP/1.1 connection the turn that hyper gives it whenever a piece of a body is taken.
//!
//! hyper wakes the connection's task so that it reads the next piece. Nothing follows the last piece, which is the first
//! one of nearly every body, but the turn costs a twentieth of an echo. So the wake-ups of a connection that happen
//! while a piece is taken are collected, and are passed on only if the body goes on.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use smallvec::SmallVec;

thread_local! {
    /// The connections that were woken while a piece is taken on this thread. `None`: none is taken.
    static WOKEN: RefCell<Option<SmallVec<[Arc<ConnectionWaker>; 1]>>> = const { RefCell::new(None) };
}

/// Wakes the task of one connection.
#[derive(Debug, Default)]
struct ConnectionWaker {
    task: AtomicWaker,
}

impl Wake for ConnectionWaker {
    fn wake(self: Arc<Self>) {
        let kept = WOKEN.with_borrow_mut(|woken| match woken {
            Some(woken) => {
                woken.push(Arc::clone(&self));
                true
            }
            None => false,
        });
        if !kept {
            self.task.wake();
        }
    }
}

/// The waker of one connection.
#[derive(Debug)]
pub(crate) struct OwnWaker {
    connection: Arc<ConnectionWaker>,
    waker: Waker,
}

impl Default for OwnWaker {
    fn default() -> Self {
        let connection = Arc::<ConnectionWaker>::default();
        let waker = Waker::from(Arc::clone(&connection));
        Self { connection, waker }
    }
}

impl OwnWaker {
    /// Polls the connection, so that it is woken with this waker.
    pub(crate) fn poll<F: Future + Unpin>(&self, connection: &mut F, cx: &Context<'_>) -> Poll<F::Output> {
        self.connection.task.register(cx.waker());
        Pin::new(connection).poll(&mut Context::from_waker(&self.waker))
    }
}

/// Takes the next piece of a body of HTTP/1.1.
pub(crate) fn poll_piece(
    body: &mut Incoming,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
    WOKEN.set(Some(SmallVec::new()));
    let piece = Pin::new(&mut *body).poll_frame(cx);
    let woken = WOKEN.take().unwrap_or_default();
    if !body.is_end_stream() {
        woken.into_iter().for_each(|connection| connection.task.wake());
    }
    piece
}
