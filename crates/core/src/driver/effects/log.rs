//! The log entries of a step. They are written after the connection's lock is released, because a subscriber is code of
//! the user (D2).

use std::sync::Arc;
use std::time::Duration;

use crate::cause::{Cause, CauseKind};
use crate::driver::call_table::entry::CallSpan;
use crate::driver::state::{ConnectionInner, Request};
use crate::id::CallNumber;
use crate::log_text::LogText;
use crate::machine::{Event, ReplyBody, Settlement};
use crate::message::{Deviation, DeviationReport};

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
