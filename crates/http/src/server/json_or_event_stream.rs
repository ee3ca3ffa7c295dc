//! What the response to a POST is, and when that is decided: JSON, an event stream, or a status without a message.
//!
//! The driver decides it: by an answer (JSON), by a message before the answer (an event stream), or by an end without one. If it has
//! decided nothing after a while, the response to a request becomes an event stream, so that its client knows that it has arrived.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::StatusCode;

/// What a POST is answered with.
#[derive(Debug)]
pub(crate) enum ResponseKind {
    /// One message, as JSON.
    Json(StatusCode, Bytes),
    /// An event stream.
    EventStream,
    /// 202: its message needs no answer.
    Accepted,
    /// This status, without a message: the protocol has none for it.
    Refused(StatusCode),
    /// The link has ended.
    Ended,
}

/// The response to one POST.
#[derive(Debug)]
pub(crate) enum Response {
    /// Nothing is decided. The POST waits.
    Undecided(Option<Waker>),
    /// Decided, and not taken yet.
    Decided(ResponseKind),
    /// Its head is sent.
    Sent,
    /// The client left before the head.
    Gone,
}

impl Response {
    /// Decides what it is, if nothing is decided yet.
    pub(crate) fn decide(&mut self, kind: ResponseKind) -> Option<Waker> {
        if !self.is_undecided() {
            return None;
        }
        let waker = self.waker();
        *self = Self::Decided(kind);
        waker
    }

    /// Waits until it is decided.
    pub(crate) fn poll_decided(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Self::Undecided(waker) = self else { return Poll::Ready(()) };
        *waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Who waits.
    pub(crate) fn waker(&mut self) -> Option<Waker> {
        if let Self::Undecided(waker) = self { waker.take() } else { None }
    }

    pub(crate) const fn is_undecided(&self) -> bool {
        matches!(self, Self::Undecided(_))
    }

    /// Waits until it is decided, and takes that.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ResponseKind> {
        ready!(self.poll_decided(cx));
        match self {
            Self::Decided(_) => match std::mem::replace(self, Self::Sent) {
                Self::Decided(kind) => Poll::Ready(kind),
                Self::Undecided(_) | Self::Sent | Self::Gone => Poll::Ready(ResponseKind::Ended),
            },
            Self::Undecided(_) | Self::Sent | Self::Gone => Poll::Ready(ResponseKind::EventStream),
        }
    }
}

/// Waits for the response to a POST. `poll` is [`Response::poll`]; if it waits until `late` is over, `open_stream` decides.
pub(crate) async fn decided(
    poll: impl FnMut(&mut Context<'_>) -> Poll<ResponseKind>,
    late: impl Future<Output = ()>,
    open_stream: impl FnOnce(),
) -> ResponseKind {
    let mut decided = pin!(poll_fn(poll));
    tokio::select! {
        biased;
        kind = decided.as_mut() => return kind,
        () = late => {}
    }
    open_stream();
    decided.await
}
