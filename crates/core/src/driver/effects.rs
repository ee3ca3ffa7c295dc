//! The effects of a step outside of its connection's lock (D2, D3), and the log entries among them.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tracing::Level;
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};

use crate::cause::{Cause, CauseKind};
use crate::driver::call_table::{CallSpan, RemoteAction};
use crate::driver::notifications::{Inbox, Matcher};
use crate::driver::request_log::Notified;
use crate::driver::state::{ConnectionInner, Request, Start};
use crate::driver::task::{Task, TaskEnd};
use crate::id::CallNumber;
use crate::log_text::LogText;
use crate::machine::{Event, ReplyBody, Settlement};
use crate::message::{Deviation, DeviationReport};
use crate::sync::AbortHandle;

/// Collected with the lock held, run without it: first signals, then starts, aborts, wakers, the rare effects, and last
/// the drops.
///
/// There is one for each step, so it is small: most steps have one effect or none.
#[derive(Default)]
pub(crate) struct Effects {
    /// The first signal, as of each kind below. Further ones are among the rare effects.
    signal: Option<Arc<Request>>,
    start: Option<Start>,
    waker: Option<Waker>,
    pub(crate) driver: Option<Waker>,
    /// A request whose slot was removed. Its contexts may still share it.
    gone: Option<Arc<Request>>,
    rare: Option<Box<RareEffects>>,
}

/// Effects that only few steps have. They run in the order of the fields.
#[derive(Default)]
pub(crate) struct RareEffects {
    signals: Vec<Arc<Request>>,
    starts: Vec<Start>,
    pub(crate) aborts: Vec<Arc<Request>>,
    wakers: Vec<Waker>,
    pub(crate) watches: Vec<AbortHandle>,
    pub(crate) inboxes: Vec<Arc<Inbox>>,
    pub(crate) matchers: Vec<Matcher>,
    /// Cancels of children on other connections.
    pub(crate) child_cancels: Vec<RemoteAction>,
    /// Parents on other connections whose children have ended.
    pub(crate) parent_releases: Vec<RemoteAction>,
    /// Tasks that have ended.
    pub(crate) tasks: Vec<(Arc<Task>, TaskEnd)>,
    pub(crate) events: Vec<Event>,
    /// The request logs in which something was recorded.
    pub(crate) recorded: Notified,
    /// The connection has closed.
    pub(crate) closed: bool,
    pub(crate) log: Vec<Entry>,
    gone: Vec<Arc<Request>>,
}

impl Effects {
    pub(crate) fn rare(&mut self) -> &mut RareEffects {
        self.rare.get_or_insert_default()
    }

    /// Signals a request.
    pub(crate) fn signal(&mut self, request: Arc<Request>) {
        match self.signal {
            None => self.signal = Some(request),
            Some(_) => self.rare().signals.push(request),
        }
    }

    /// Starts a handler.
    pub(crate) fn start(&mut self, start: Start) {
        match self.start {
            None => self.start = Some(start),
            Some(_) => self.rare().starts.push(start),
        }
    }

    pub(crate) fn wake(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        for waker in wakers {
            match self.waker {
                None => self.waker = Some(waker),
                Some(_) => self.rare().wakers.push(waker),
            }
        }
    }

    /// Drops a request.
    pub(crate) fn drop_request(&mut self, request: Arc<Request>) {
        match self.gone {
            None => self.gone = Some(request),
            Some(_) => self.rare().gone.push(request),
        }
    }

    /// Adds an entry for the log, if its level is enabled. Only the level is checked, because a question to the
    /// subscriber would run code of the user.
    pub(crate) fn log(&mut self, level: Level, entry: impl FnOnce() -> Entry) {
        if level <= STATIC_MAX_LEVEL && level <= LevelFilter::current() {
            self.rare().log.push(entry());
        }
    }

    pub(crate) fn run(mut self, connection: &Arc<ConnectionInner>) {
        if let Some(request) = self.signal {
            request.data.wake_signalled();
        }
        if let Some(rare) = &mut self.rare {
            for request in rare.signals.drain(..) {
                request.data.wake_signalled();
            }
        }
        if let Some(first) = self.start {
            let more = self.rare.as_mut().map(|rare| std::mem::take(&mut rare.starts));
            start_all(first, more.unwrap_or_default());
        }
        if let Some(rare) = &mut self.rare {
            for request in rare.aborts.drain(..) {
                request.data.abort();
            }
        }
        if let Some(waker) = self.waker {
            waker.wake();
        }
        if let Some(rare) = &mut self.rare {
            for waker in rare.wakers.drain(..) {
                waker.wake();
            }
        }
        if let Some(driver) = self.driver {
            driver.wake();
        }
        if let Some(rare) = self.rare {
            rare.run(connection);
        }
        drop(self.gone);
    }
}

impl RareEffects {
    /// Runs everything that follows the wakers.
    fn run(self, connection: &Arc<ConnectionInner>) {
        for watch in self.watches {
            watch.abort();
        }
        for inbox in self.inboxes {
            inbox.close();
        }
        for matcher in self.matchers {
            matcher.inbox.close();
        }
        for cancel in self.child_cancels {
            cancel();
        }
        for release in self.parent_releases {
            release();
        }
        for (task, end) in self.tasks {
            task.end(end);
        }
        if let Some(hook) = &connection.on_event {
            for event in &self.events {
                // A hook that panics must not end the connection.
                if catch_unwind(AssertUnwindSafe(|| hook(event))).is_err() {
                    tracing::warn!("the event hook panicked");
                }
            }
        }
        for log in self.recorded {
            log.changed.notify_waiters();
        }
        if self.closed {
            connection.closed.notify_waiters();
        }
        for entry in self.log {
            entry.write();
        }
        drop(self.gone);
    }
}

thread_local! {
    /// Handlers that start after the one that is starting on this thread.
    static STARTING: RefCell<Option<Vec<Start>>> = const { RefCell::new(None) };
}

/// Starts handlers one after another. A runtime that shuts down drops a task during its start, which ends its request
/// and may start the next one. Such starts run in turn and not inside each other.
fn start_all(first: Start, more: Vec<Start>) {
    let first = STARTING.with_borrow_mut(|starting| {
        if let Some(later) = starting {
            later.push(first);
            later.extend(more);
            return None;
        }
        *starting = Some(more);
        Some(first)
    });
    let Some(first) = first else { return };
    start_one(first);
    loop {
        let turn = STARTING.with_borrow_mut(|starting| match starting {
            Some(later) if !later.is_empty() => std::mem::take(later),
            _ => {
                *starting = None;
                Vec::new()
            }
        });
        if turn.is_empty() {
            return;
        }
        turn.into_iter().for_each(start_one);
    }
}

pub(crate) fn start_one(start: Start) {
    let Start { handler, request, params } = start;
    let abort = handler.start(Arc::clone(&request), params);
    request.data.set_abort(abort);
}

// The log entries of a step. They are written after the connection's lock is released, because a subscriber is code of
// the user (D2).

/// An entry for the log.
pub(crate) enum Entry {
    RequestCancelled { request: Arc<Request>, cause: Cause },
    RequestAnswered { request: Arc<Request>, outcome: &'static str },
    HandlerEndedBadly { request: Arc<Request>, event: &'static str },
    CallCancelled { call: CallNumber, span: CallSpan, source: CauseKind },
    CallEnded { span: CallSpan, source: Option<CauseKind>, outcome: &'static str },
    LimitReached(&'static str),
    NotificationDropped(Arc<str>),
    Unresponsive,
    NoEffect(&'static str),
}

impl Entry {
    /// Passes the entry to the subscriber.
    pub(crate) fn write(self) {
        match self {
            // GETMCP-11: the reason of a cancel should be logged.
            Self::RequestCancelled { request, cause } => tracing::debug!(
                rpc.method = %LogText::name(&request.data.method),
                jsonrpc.request.id = %LogText::name(&request.data.id),
                cancel.source = cause.kind().name(),
                cancel.reason = cause.reason().map(|reason| tracing::field::display(LogText::text(reason))),
                "a request is cancelled"
            ),
            Self::RequestAnswered { request, outcome } => tracing::trace!(
                rpc.method = %LogText::name(&request.data.method),
                jsonrpc.request.id = %LogText::name(&request.data.id),
                cancel.outcome = outcome,
                "a request is answered"
            ),
            Self::HandlerEndedBadly { request, event } => tracing::debug!(
                rpc.method = %LogText::name(&request.data.method),
                jsonrpc.request.id = %LogText::name(&request.data.id),
                event,
                "a handler did not end regularly"
            ),
            Self::CallCancelled { call, span, source } => {
                let parent = span.as_ref().and_then(|span| span.id());
                tracing::debug!(
                    parent: parent,
                    call = call.0,
                    cancel.source = source.name(),
                    "a call is cancelled"
                );
            }
            Self::CallEnded { span, source, outcome } => {
                if let (Some(span), Some(source)) = (&span, source) {
                    span.record("cancel.source", source.name());
                    span.record("cancel.outcome", outcome);
                }
                let parent = span.as_ref().and_then(|span| span.id());
                tracing::trace!(parent: parent, cancel.outcome = outcome, "a call has ended");
            }
            Self::LimitReached(limit) => tracing::debug!(limit, "a limit was reached"),
            Self::NotificationDropped(method) => {
                tracing::debug!(rpc.method = %LogText::name(&method), "a notification was dropped: too many wait");
            }
            Self::Unresponsive => {
                tracing::debug!("the peer did not answer a cancelled call within the wait limit");
            }
            Self::NoEffect(event) => tracing::trace!(event, "a message had no effect"),
        }
    }
}

/// The time between two warnings about deviations of one kind on a connection.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(60);

impl ConnectionInner {
    /// Counts what the peer did against its protocol, and tells the hook and the log.
    pub(crate) fn deviates(self: &Arc<Self>, deviation: Deviation, sent: &[u8]) {
        let is_logged = self.step(|state, now, _| {
            state.session.recv_deviation(deviation);
            let logged = state.logged_deviations.get_or_insert_default().get_mut(deviation.kind());
            logged.is_some_and(|last| match last {
                Some(last) if now.saturating_duration_since(*last) < BETWEEN_WARNINGS => false,
                _ => {
                    *last = Some(now);
                    true
                }
            })
        });
        let report = DeviationReport { deviation, sent, is_repeated: !is_logged };
        if is_logged {
            let peer = self.meta.peer.as_deref().map(|peer| tracing::field::display(LogText::name(peer)));
            tracing::warn!(peer, "{report}");
        }
        if let Some(hook) = &self.on_deviation {
            // A hook that panics must not end the connection.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| hook(&report))).is_err() {
                tracing::warn!("the deviation hook panicked");
            }
        }
    }
}

/// How a request was answered.
pub(crate) const fn outcome_of_reply(body: &ReplyBody) -> &'static str {
    match body {
        ReplyBody::Handler => "completed",
        ReplyBody::TaskHandle => "task",
        ReplyBody::Cancelled(_) => "cancelled",
        ReplyBody::Graceful(_) => "ended",
        ReplyBody::Refused(_) => "refused",
    }
}

/// How a call ended, and the cause of its cancel, if it was cancelled. `is_error`: the answer was an error.
pub(crate) fn end_of_call(settlement: &Settlement, is_error: bool) -> (&'static str, Option<CauseKind>) {
    match settlement {
        Settlement::Answered { cancelled } => {
            let outcome = if is_error { "failed" } else { "completed" };
            (outcome, cancelled.as_ref().map(Cause::kind))
        }
        Settlement::Cancelled { cause, confirmed: true } => ("cancelled", Some(cause.kind())),
        Settlement::Cancelled { cause, confirmed: false } => ("unconfirmed", Some(cause.kind())),
        Settlement::Disconnected { .. } => ("disconnected", None),
    }
}

/// An event as one lower-case word.
pub(crate) const fn name(event: &Event) -> &'static str {
    match event {
        Event::UnknownCancel => "unknown_cancel",
        Event::MalformedCancel => "malformed_cancel",
        Event::IgnoredCancel => "ignored_cancel",
        Event::EarlyNotification => "early_notification",
        Event::ParkedCancel => "parked_cancel",
        Event::LateAnswer => "late_answer",
        Event::UnknownAnswer => "unknown_answer",
        Event::LimitReached(_) => "limit_reached",
        Event::DuplicateId => "duplicate_id",
        Event::BadFrame => "bad_frame",
        Event::Deviation(_) => "deviation",
        Event::IgnoredToken => "ignored_token",
        Event::Unresponsive(_) => "unresponsive",
        Event::HandlerPanicked(_) => "panicked",
        Event::ErrorAfterCancel(_) => "error_after_cancel",
        Event::Aborted(_) => "aborted",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{CallKey, InboundKey, OutboundKey};

    #[test]
    fn each_event_is_logged_under_a_different_name() {
        let any = CallKey { slot: 0, generation: 0 };
        let (request, call) = (InboundKey(any), OutboundKey(any));
        for event in [
            Event::UnknownCancel,
            Event::MalformedCancel,
            Event::IgnoredCancel,
            Event::EarlyNotification,
            Event::ParkedCancel,
            Event::LateAnswer,
            Event::UnknownAnswer,
            Event::LimitReached("calls"),
            Event::DuplicateId,
            Event::BadFrame,
            Event::Deviation(Deviation::NoId),
            Event::IgnoredToken,
            Event::Unresponsive(call),
            Event::ErrorAfterCancel(request),
            Event::Aborted(request),
        ] {
            let debug = format!("{event:?}");
            let own = debug.split('(').next().unwrap_or_default();
            assert_eq!(name(&event).replace('_', ""), own.to_lowercase(), "{debug}");
        }
        assert_eq!(name(&Event::HandlerPanicked(request)), "panicked");
    }
}
