//! What is kept of each call of ours.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::cause::{Cancelled, Cause};
use crate::driver::notifications::Inbox;
use crate::driver::notifications::subscriptions::Seq;
use crate::driver::params::part_of;
use crate::driver::tables::slots::SlotKey;
use crate::driver::timeouts::Renewal;
use crate::id::{CallNumber, ExchangeId, OutboundKey};
use crate::message::{AnswerBody, ErrorObject};
use crate::sync::AbortHandle;

/// The span of a call. A clone of a [`tracing::Span`] asks the subscriber, which may not be done under the lock.
pub(crate) type CallSpan = Option<Arc<tracing::Span>>;

/// Something to be done on another connection, which takes that connection's lock: it runs without this one's (D3).
pub(crate) type RemoteAction = Box<dyn FnOnce() + Send>;

/// A call of ours. One is kept for each in flight, so what stands in it is small.
pub(crate) struct CallEntry {
    pub(crate) key: OutboundKey,
    /// Its frame, until it is written or taken back.
    pub(crate) frame: Option<Box<StagedCall>>,
    /// How it ended, until its handle has read that.
    pub(crate) settled: Option<Box<Settled>>,
    /// Its request goes out on an exchange that its number names.
    pub(crate) own_exchange: bool,
    /// It has ended.
    pub(crate) ended: bool,
    /// A handle will read how it ended.
    pub(crate) held: bool,
    pub(crate) waker: Option<Waker>,
    /// What few calls have.
    pub(crate) extras: Option<Box<Extras>>,
}

/// What few calls have.
#[derive(Default)]
pub(crate) struct Extras {
    /// What its request goes out on, if that is its parent's.
    pub(crate) exchange: Option<ExchangeId>,
    /// It opens the session.
    pub(crate) shakes: bool,
    /// Its cancel, until that is written or disarmed: its number and why.
    pub(crate) cancel: Option<(CallNumber, Cause)>,
    pub(crate) acknowledged: Option<bool>,
    pub(crate) ack_waker: Option<Waker>,
    pub(crate) inbox: Option<Arc<Inbox>>,
    /// How progress moves its deadline.
    pub(crate) renewal: Option<Renewal>,
    /// Its readers among those who are asked whose a notification is.
    pub(crate) readers: Vec<Seq>,
    pub(crate) span: CallSpan,
    pub(crate) watches: Vec<AbortHandle>,
    /// Lets its parent on another connection go.
    pub(crate) release_parent: Option<RemoteAction>,
}

/// A call that was staged.
pub(crate) struct Started {
    pub(crate) ticket: SlotKey,
    pub(crate) number: CallNumber,
    /// Its method, as other calls share it.
    pub(crate) method: Arc<str>,
}

/// The frame of a staged call, not encoded yet.
pub(crate) struct StagedCall {
    pub(crate) method: Arc<str>,
    pub(crate) params: Option<Box<RawValue>>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) progress: bool,
    pub(crate) partial: bool,
}

/// What an answer says.
#[derive(Debug)]
pub(crate) enum Said {
    Value(Bytes),
    Cancelled,
    Error(ErrorObject),
    Malformed(&'static str),
}

impl Said {
    /// Kept without copying the frame it came in.
    pub(crate) fn of_answer(frame: &Bytes, body: AnswerBody<'_>) -> Self {
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
pub(crate) enum Settled {
    Value { value: Bytes, after_cancel: bool },
    Error(ErrorObject),
    Malformed(&'static str),
    Cancelled(Cancelled),
    Disconnected { may_have_run: bool },
}

impl CallEntry {
    pub(crate) fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// What the request of this call, which has this number, goes out on.
    pub(crate) fn exchange(&self, number: CallNumber) -> ExchangeId {
        if self.own_exchange {
            return ExchangeId::of_call(number);
        }
        self.extras.as_ref().and_then(|extras| extras.exchange).unwrap_or(ExchangeId::NONE)
    }

    /// Its cancel is still to be written.
    pub(crate) fn cancel_waits(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.cancel.is_some())
    }

    /// Its cancel, taken to be written.
    pub(crate) fn take_cancel(&mut self) -> Option<(CallNumber, Cause)> {
        self.extras.as_mut()?.cancel.take()
    }

    pub(crate) fn span(&self) -> CallSpan {
        self.extras.as_ref()?.span.clone()
    }

    /// It opens the session.
    pub(crate) fn shakes(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.shakes)
    }

    /// Nobody will ask for it any more.
    pub(crate) fn is_done(&self) -> bool {
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
