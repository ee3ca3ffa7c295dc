//! What is kept of each call of ours.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::notifications::Inbox;
use super::params::part_of;
use super::slots::SlotKey;
use super::subscriptions::Seq;
use super::timeouts::Renewal;
use crate::cause::{Cancelled, Cause};
use crate::id::{CallNumber, ExchangeId, OutboundKey};
use crate::message::{AnswerBody, ErrorObject};
use crate::sync::AbortHandle;

/// The span of a call. A clone of a [`tracing::Span`] asks the subscriber, which may not be done under the lock.
pub(super) type CallSpan = Option<Arc<tracing::Span>>;

/// Something to be done on another connection, which takes that connection's lock: it runs without this one's (D3).
pub(super) type RemoteAction = Box<dyn FnOnce() + Send>;

/// A call of ours. One is kept for each in flight, so what stands in it is small.
pub(super) struct CallEntry {
    pub(super) key: OutboundKey,
    /// Its frame, until it is written or taken back.
    pub(super) frame: Option<Box<StagedCall>>,
    /// How it ended, until its handle has read that.
    pub(super) settled: Option<Box<Settled>>,
    /// Its request goes out on an exchange that its number names.
    pub(super) own_exchange: bool,
    /// It has ended.
    pub(super) ended: bool,
    /// A handle will read how it ended.
    pub(super) held: bool,
    pub(super) waker: Option<Waker>,
    /// What few calls have.
    pub(super) extras: Option<Box<Extras>>,
}

/// What few calls have.
#[derive(Default)]
pub(super) struct Extras {
    /// What its request goes out on, if that is its parent's.
    pub(super) exchange: Option<ExchangeId>,
    /// It opens the session.
    pub(super) shakes: bool,
    /// Its cancel, until that is written or disarmed: its number and why.
    pub(super) cancel: Option<(CallNumber, Cause)>,
    pub(super) acknowledged: Option<bool>,
    pub(super) ack_waker: Option<Waker>,
    pub(super) inbox: Option<Arc<Inbox>>,
    /// How progress moves its deadline.
    pub(super) renewal: Option<Renewal>,
    /// Its readers among those who are asked whose a notification is.
    pub(super) readers: Vec<Seq>,
    pub(super) span: CallSpan,
    pub(super) watches: Vec<AbortHandle>,
    /// Lets its parent on another connection go.
    pub(super) release_parent: Option<RemoteAction>,
}

/// A call that was staged.
pub(super) struct Started {
    pub(super) ticket: SlotKey,
    pub(super) number: CallNumber,
    /// Its method, as other calls share it.
    pub(super) method: Arc<str>,
}

/// The frame of a staged call, not encoded yet.
pub(super) struct StagedCall {
    pub(super) method: Arc<str>,
    pub(super) params: Option<Box<RawValue>>,
    pub(super) timeout: Option<Duration>,
    pub(super) progress: bool,
    pub(super) partial: bool,
}

/// What an answer says.
#[derive(Debug)]
pub(super) enum Said {
    Value(Bytes),
    Cancelled,
    Error(ErrorObject),
    Malformed(&'static str),
}

impl Said {
    /// Kept without copying the frame it came in.
    pub(super) fn of_answer(frame: &Bytes, body: AnswerBody<'_>) -> Self {
        match body {
            AnswerBody::Value(value) => Self::Value(part_of(frame, value)),
            AnswerBody::Cancelled => Self::Cancelled,
            AnswerBody::Error(error) => Self::Error(error),
            AnswerBody::Malformed(what) => Self::Malformed(what),
        }
    }
}

/// How a call ended.
#[derive(Debug)]
pub(super) enum Settled {
    Value { value: Bytes, after_cancel: bool },
    Error(ErrorObject),
    Malformed(&'static str),
    Cancelled(Cancelled),
    Disconnected { may_have_run: bool },
}

impl CallEntry {
    pub(super) fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// What the request of this call, which has this number, goes out on.
    pub(super) fn exchange(&self, number: CallNumber) -> ExchangeId {
        if self.own_exchange {
            return ExchangeId::of_call(number);
        }
        self.extras.as_ref().and_then(|extras| extras.exchange).unwrap_or(ExchangeId::NONE)
    }

    /// Its cancel is still to be written.
    pub(super) fn cancel_waits(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.cancel.is_some())
    }

    /// Its cancel, taken to be written.
    pub(super) fn take_cancel(&mut self) -> Option<(CallNumber, Cause)> {
        self.extras.as_mut()?.cancel.take()
    }

    pub(super) fn span(&self) -> CallSpan {
        self.extras.as_ref()?.span.clone()
    }

    /// It opens the session.
    pub(super) fn shakes(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.shakes)
    }

    /// Nobody will ask for it any more.
    pub(super) fn is_done(&self) -> bool {
        self.ended && !self.held && !self.cancel_waits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_in_flight_takes_little() {
        let bytes = size_of::<CallEntry>();
        assert!(bytes <= 56, "W8: a call's entry takes {bytes} bytes");
    }
}
