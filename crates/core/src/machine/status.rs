//! The status of a request or a call, for views from outside.

use std::time::Instant;

use crate::cause::Cause;
use crate::id::{CallNumber, InboundKey, OutboundKey};
use crate::machine::interface::Event;
use crate::machine::request::RequestState;
use crate::machine::{Session, outbound};

/// How far a request or a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestStatus {
    /// A received request waits for a permit. A call is not written yet.
    Queued,
    /// The handler of a received request runs. The peer has a call.
    Running,
    /// A received request is cancelled, and a critical section of its handler delays the signal.
    Shielded,
    /// The handler of a received request was signalled and decides the answer. The cancel of a call is sent or about
    /// to be sent, and its caller waits for the peer.
    Cancelling,
    /// A received request is answered with the handle of a task, and its handler does the task's work.
    Task,
    /// A received request is answered, or needs no answer, and its handler still runs. A call has ended, and its cancel
    /// waits to be written.
    Draining,
}

impl RequestStatus {
    /// The status as one lower-case word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Shielded => "shielded",
            Self::Cancelling => "cancelling",
            Self::Task => "task",
            Self::Draining => "draining",
        }
    }
}

/// The first accepted cancel of a request or a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AcceptedCancel {
    /// Why.
    pub cause: Cause,
    /// When it was accepted.
    pub at: Instant,
}

impl AcceptedCancel {
    /// A cancel that was accepted at this time.
    #[must_use]
    pub const fn new(cause: Cause, at: Instant) -> Self {
        Self { cause, at }
    }
}

/// The state of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallState {
    /// Its number.
    pub number: CallNumber,
    /// How far it is.
    pub status: RequestStatus,
    /// The request to which it belongs. `None` also when the cancel of that request has reached the call.
    pub parent: Option<InboundKey>,
    /// Its cancel.
    pub cancel: Option<AcceptedCancel>,
}

impl Session {
    /// How far a received request is, and its cancel. `None`: it has ended.
    #[must_use]
    pub fn request_status(&self, key: InboundKey) -> Option<(RequestStatus, Option<AcceptedCancel>)> {
        let request = self.requests.get(key.0)?;
        let status = match request.state {
            RequestState::Queued => RequestStatus::Queued,
            RequestState::Running => RequestStatus::Running,
            RequestState::CancelPending => RequestStatus::Shielded,
            RequestState::Cancelling => RequestStatus::Cancelling,
            RequestState::Task => RequestStatus::Task,
            RequestState::Draining { .. } | RequestState::Ended => RequestStatus::Draining,
        };
        let cancelled_at = request.extras().cancelled_at;
        let cancel =
            request.cause().zip(cancelled_at).map(|(cause, at)| AcceptedCancel::new(cause.clone(), at));
        Some((status, cancel))
    }

    /// How far a call of this side is. `None`: the machine has forgotten it.
    #[must_use]
    pub fn call_status(&self, key: OutboundKey) -> Option<CallState> {
        let call = self.calls.get(key.0)?;
        let extras = call.extras.as_deref();
        let status = match call.state {
            outbound::CallPhase::Staged => RequestStatus::Queued,
            outbound::CallPhase::Written => RequestStatus::Running,
            outbound::CallPhase::Cancelling => RequestStatus::Cancelling,
            outbound::CallPhase::Settled => RequestStatus::Draining,
        };
        let cancelled_at = extras.and_then(|extras| extras.cancelled_at);
        Some(CallState {
            number: call.number,
            status,
            parent: extras.and_then(|extras| extras.parent),
            cancel: call.cause().zip(cancelled_at).map(|(cause, at)| AcceptedCancel::new(cause.clone(), at)),
        })
    }
}

/// Counters of a session. They only increase, except the gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Handlers started.
    pub started: u64,
    /// Handlers that have ended.
    pub finished: u64,
    /// Handlers that ended because they were signalled or aborted.
    pub cancelled: u64,
    /// Gauge: handlers that run and whose requests are not settled, and those of tasks that have not ended.
    pub running: u64,
    /// Gauge: those of them that do the work of a task.
    pub tasks: u64,
    /// Gauge: requests that wait for a permit.
    pub queued: u64,
    /// Gauge: handlers that still run after their requests are settled.
    pub draining: u64,
    /// Gauge: all requests of the peer that have not ended.
    pub slots: u64,
    /// Gauge: calls of this side in flight.
    pub calls: u64,
    /// Cancels that named no open request.
    pub unknown_cancels: u64,
    /// Cancels that named no valid id.
    pub malformed_cancels: u64,
    /// Cancels that the dialect's rules ignore.
    pub ignored_cancels: u64,
    /// Notifications that arrived before the session was open and were dropped.
    pub early_notifications: u64,
    /// Early cancels that waited for their request.
    pub parked_cancels: u64,
    /// Answers that arrived after their call had ended.
    pub late_answers: u64,
    /// Answers to calls that were never made.
    pub unknown_answers: u64,
    /// Frames that were not messages.
    pub bad_frames: u64,
    /// What the peer did against its protocol while the connection went on: [`Deviation`](crate::Deviation).
    pub deviations: u64,
    /// Progress tokens that were ignored for their type or length.
    pub ignored_tokens: u64,
    /// Requests refused because their id was in use.
    pub duplicate_ids: u64,
    /// Requests, calls and cancels refused because a limit was reached.
    pub refused: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Handlers whose task was aborted after the grace.
    pub aborted: u64,
    /// Handlers that returned an error of their own after their cancel.
    pub errors_after_cancel: u64,
    /// Cancelled calls whose peer did not answer in time.
    pub unresponsive: u64,
}

impl Stats {
    pub(super) const fn count(&mut self, event: &Event) {
        match event {
            Event::UnknownCancel => self.unknown_cancels += 1,
            Event::MalformedCancel => self.malformed_cancels += 1,
            Event::IgnoredCancel => self.ignored_cancels += 1,
            Event::EarlyNotification => self.early_notifications += 1,
            Event::ParkedCancel => self.parked_cancels += 1,
            Event::LateAnswer => self.late_answers += 1,
            Event::UnknownAnswer => self.unknown_answers += 1,
            Event::LimitReached(_) => self.refused += 1,
            Event::DuplicateId => self.duplicate_ids += 1,
            Event::BadFrame => self.bad_frames += 1,
            Event::Deviation(_) => self.deviations += 1,
            Event::IgnoredToken => self.ignored_tokens += 1,
            Event::Unresponsive(_) => self.unresponsive += 1,
            Event::HandlerPanicked(_) => self.panics += 1,
            Event::ErrorAfterCancel(_) => self.errors_after_cancel += 1,
            Event::Aborted(_) => self.aborted += 1,
        }
    }
}

impl Session {
    /// The present counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats;
        stats.running = stats.started - stats.finished - stats.draining;
        stats.queued = self.queue.len() as u64;
        stats.slots = self.requests.len() as u64;
        stats.calls = self.calls.len() as u64;
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{CallKey, InboundKey, OutboundKey};
    use crate::message::Deviation;

    type Counter = fn(&Stats) -> u64;

    #[test]
    fn each_event_has_a_counter_of_its_own() {
        let any = CallKey { slot: 0, generation: 0 };
        let (key, call) = (InboundKey(any), OutboundKey(any));
        let counters: [(Event, Counter); 16] = [
            (Event::UnknownCancel, |stats| stats.unknown_cancels),
            (Event::MalformedCancel, |stats| stats.malformed_cancels),
            (Event::IgnoredCancel, |stats| stats.ignored_cancels),
            (Event::EarlyNotification, |stats| stats.early_notifications),
            (Event::ParkedCancel, |stats| stats.parked_cancels),
            (Event::LateAnswer, |stats| stats.late_answers),
            (Event::UnknownAnswer, |stats| stats.unknown_answers),
            (Event::LimitReached("calls"), |stats| stats.refused),
            (Event::DuplicateId, |stats| stats.duplicate_ids),
            (Event::BadFrame, |stats| stats.bad_frames),
            (Event::Deviation(Deviation::NoId), |stats| stats.deviations),
            (Event::IgnoredToken, |stats| stats.ignored_tokens),
            (Event::Unresponsive(call), |stats| stats.unresponsive),
            (Event::HandlerPanicked(key), |stats| stats.panics),
            (Event::ErrorAfterCancel(key), |stats| stats.errors_after_cancel),
            (Event::Aborted(key), |stats| stats.aborted),
        ];
        let mut stats = Stats::default();
        for (times, (event, _)) in counters.iter().enumerate() {
            (0..=times).for_each(|_| stats.count(event));
        }
        for (times, (event, counted)) in counters.iter().enumerate() {
            assert_eq!(counted(&stats), times as u64 + 1, "{event:?}");
        }
    }
}
