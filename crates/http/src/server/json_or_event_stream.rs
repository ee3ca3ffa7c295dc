//! The response to a POST, and when it is decided: JSON, an event stream, or a status without a message.
//!
//! The driver decides it by an answer (JSON), by a message before the answer (an event stream), or by an end without an
//! answer. If it has decided nothing after some time, the response to a request becomes an event stream, so that the
//! client knows that the request has arrived.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::sync::{DelayFuture, SharedDelay};

/// The default of `stream_after`, for a handler that runs without awaiting anything, and for a request that is queued.
const STREAM_AFTER: Duration = Duration::from_millis(10);
/// The default for a handler that awaits something. Not zero: many handlers await for a shorter time, and a response in
/// one piece costs less.
const STREAM_AFTER_WAIT: Duration = Duration::from_millis(1);

/// How far a request has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// When its handler started, if the binding notes it.
    pub(crate) started: Option<Instant>,
    /// Whether its handler awaits something.
    pub(crate) waits: bool,
    /// Whether its time is over: its response becomes an event stream as soon as the driver has read it.
    pub(crate) is_due: bool,
}

/// The time after which the response to a request becomes an event stream.
pub(crate) struct StreamDelay {
    delay: Arc<SharedDelay>,
    /// For a handler that awaits something. `None`: the user has set the time, and it is the same for every handler.
    waiting: Option<Arc<SharedDelay>>,
}

impl StreamDelay {
    /// `None`: the defaults.
    pub(crate) fn new(set: Option<Duration>) -> Self {
        let waiting = set.is_none().then(|| SharedDelay::new(STREAM_AFTER_WAIT));
        Self { delay: SharedDelay::new(set.unwrap_or(STREAM_AFTER)), waiting }
    }

    /// The time of a handler that does not await anything.
    pub(crate) fn wait(&self) -> Duration {
        self.delay.wait()
    }

    /// The time of one request.
    pub(crate) const fn timer(&self, from: TimeFrom) -> StreamTimer<'_> {
        StreamTimer { delay: self, from, running: None, rest: None }
    }
}

/// When the time of a request begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeFrom {
    /// When it comes.
    Arrival,
    /// When its handler starts.
    Start,
}

/// The time after which the response to one request becomes an event stream.
pub(crate) struct StreamTimer<'a> {
    delay: &'a StreamDelay,
    from: TimeFrom,
    /// The time that runs, and whether it is that of a handler that awaits something.
    running: Option<(bool, DelayFuture<'a>)>,
    /// The rest of the time of a handler that started after its request came.
    rest: Option<Pin<Box<Sleep>>>,
}

impl StreamTimer<'_> {
    /// Ready when the time of a request that has come this far is over. If it is over before the handler starts, the
    /// caller polls again then.
    fn poll(&mut self, progress: Progress, cx: &mut Context<'_>) -> Poll<()> {
        let waiting = self.delay.waiting.as_ref().filter(|_| progress.waits);
        let is_right = |running: &(bool, DelayFuture<'_>)| running.0 == waiting.is_some();
        if !self.running.as_ref().is_some_and(is_right) {
            self.running = Some((waiting.is_some(), waiting.unwrap_or(&self.delay.delay).over()));
        }
        let Some((is_waiting, running)) = &mut self.running else { return Poll::Pending };
        ready!(Pin::new(running).poll(cx));
        match (self.from, progress.started) {
            (TimeFrom::Arrival, _) => Poll::Ready(()),
            (TimeFrom::Start, _) if *is_waiting => Poll::Ready(()),
            (TimeFrom::Start, None) => Poll::Pending,
            (TimeFrom::Start, Some(started)) => {
                let due = started + self.delay.wait();
                self.rest.get_or_insert_with(|| Box::pin(sleep_until(due))).as_mut().poll(cx)
            }
        }
    }
}

/// The response to a POST.
#[derive(Debug)]
pub(crate) enum ResponseKind {
    /// One message, as JSON.
    Json(StatusCode, Bytes),
    /// An event stream.
    EventStream,
    /// 202: its message needs no answer.
    Accepted,
    /// This status, without a message: the protocol defines none for it.
    Refused(StatusCode),
    /// The link has ended.
    Ended,
}

/// How far the response to one POST is.
#[derive(Debug)]
pub(crate) enum ResponseState {
    /// Nothing is decided. The POST waits.
    Undecided(Option<Waker>),
    /// Decided, and not taken yet.
    Decided(ResponseKind),
    /// Its head is sent.
    Sent,
    /// The client left before the head.
    Gone,
}

impl ResponseState {
    /// Decides the response, if nothing is decided yet.
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
        match self {
            Self::Undecided(Some(waker)) => waker.clone_from(cx.waker()),
            Self::Undecided(waker) => *waker = Some(cx.waker().clone()),
            Self::Decided(_) | Self::Sent | Self::Gone => return Poll::Ready(()),
        }
        Poll::Pending
    }

    /// The waker of the task that waits.
    pub(crate) fn waker(&mut self) -> Option<Waker> {
        if let Self::Undecided(waker) = self { waker.take() } else { None }
    }

    pub(crate) const fn is_undecided(&self) -> bool {
        matches!(self, Self::Undecided(_))
    }

    /// Waits until it is decided, and takes the decision.
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

/// Waits for the response to a POST. `poll` polls it, and returns the progress of the request while it is pending. If the
/// timer ends first, `open_stream` decides, as soon as it is ready.
pub(crate) async fn decided(
    mut poll: impl FnMut(&mut Context<'_>) -> Result<ResponseKind, Progress>,
    mut timer: StreamTimer<'_>,
    mut open_stream: impl FnMut(&mut Context<'_>) -> Poll<()>,
) -> ResponseKind {
    let mut is_open = false;
    poll_fn(|cx| {
        loop {
            let progress = match poll(cx) {
                Ok(kind) => return Poll::Ready(kind),
                Err(progress) => progress,
            };
            if is_open {
                return Poll::Pending;
            }
            ready!(timer.poll(progress, cx));
            ready!(open_stream(cx));
            is_open = true;
        }
    })
    .await
}
