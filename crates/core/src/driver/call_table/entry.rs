//! The driver's data of each call of this side.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::cause::Cancelled;
use crate::driver::interner::MethodIndex;
use crate::driver::json_text::JsonText;
use crate::driver::notifications::{Inbox, Seq};
use crate::driver::request_log::info::{RequestKey, Stamp};
use crate::driver::timeouts::Renewal;
use crate::id::{CallNumber, ExchangeId, OutboundKey, SlotKey};
use crate::message::{AnswerBody, AnswerFault, ErrorObject};
use crate::sync::AbortHandle;
use crate::trace_context::TraceContext;

/// The span of a call. Cloning a [`tracing::Span`] calls the subscriber, which must not happen under the lock.
pub(crate) type CallSpan = Option<Arc<tracing::Span>>;

/// An action on another connection. It takes that connection's lock, so it runs without the lock of this one (D3).
pub(crate) type RemoteAction = Box<dyn FnOnce() + Send>;

/// A call of this side. There is one entry for each call in flight, so it is small.
pub(crate) struct CallEntry {
    pub(crate) key: OutboundKey,
    /// Its frame, until it is written or removed from the outbox.
    pub(crate) frame: Option<Box<StagedCall>>,
    /// How it ended, until its handle has read it.
    pub(crate) settled: Option<Box<Settled>>,
    /// Whether its request is sent on an exchange of its own, which its number identifies.
    pub(crate) own_exchange: bool,
    /// Whether it has ended.
    pub(crate) ended: bool,
    /// The users of the entry besides the call itself.
    pub(crate) users: Users,
    /// Its method, among those that the connection keeps.
    pub(crate) method: MethodIndex,
    /// When it was made.
    pub(crate) made: Stamp,
    pub(crate) waker: Option<Waker>,
    /// The data that only few calls have.
    pub(crate) extras: Option<Box<Extras>>,
}

/// What needs the entry of a call besides the call itself: its handle, which will read how it ended, and the mark of its
/// cancel in the outbox. The machine has the details of the cancel. One byte, because there is an entry for each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Users(u8);

impl Users {
    /// Its handle alone.
    pub(crate) const HANDLE: Self = Self(1);
    /// The mark of its cancel alone.
    pub(crate) const CANCEL: Self = Self(2);

    pub(crate) const fn has(self, user: Self) -> bool {
        self.0 & user.0 != 0
    }

    pub(crate) const fn add(&mut self, user: Self) {
        self.0 |= user.0;
    }

    /// Returns whether it was one of them.
    pub(crate) const fn remove(&mut self, user: Self) -> bool {
        let was = self.has(user);
        self.0 &= !user.0;
        was
    }
}

/// The data that only few calls have.
#[derive(Default)]
pub(crate) struct Extras {
    /// The exchange of its request, if that is the exchange of its parent.
    pub(crate) exchange: Option<ExchangeId>,
    /// Whether it opens the session.
    pub(crate) shakes: bool,
    pub(crate) acknowledged: Option<bool>,
    pub(crate) ack_waker: Option<Waker>,
    pub(crate) inbox: Option<Arc<Inbox>>,
    /// How progress changes its deadline.
    pub(crate) renewal: Option<Renewal>,
    /// Whether its handle gets the answer only after the notifications before the answer are handled.
    pub(crate) in_order: bool,
    /// How it ended, while the notifications before its answer are not handled.
    pub(crate) held_back: Option<Box<Settled>>,
    /// The readers that select notifications for it.
    pub(crate) readers: Vec<Seq>,
    pub(crate) span: CallSpan,
    /// The trace of its request, until the request is written.
    pub(crate) trace: Option<Arc<TraceContext>>,
    pub(crate) watches: Vec<AbortHandle>,
    /// Releases its parent on another connection.
    pub(crate) release_parent: Option<RemoteAction>,
    /// The same parent.
    pub(crate) foreign_parent: Option<RequestKey>,
}

/// A call that was staged.
pub(crate) struct Started {
    pub(crate) slot_key: SlotKey,
    pub(crate) number: CallNumber,
    /// Its method, shared with other calls of that method.
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

/// The content of an answer.
#[derive(Debug)]
pub(crate) enum AnswerContent {
    Value(JsonText),
    Cancelled,
    Error(ErrorObject),
    Malformed(AnswerFault),
}

impl AnswerContent {
    /// Keeps the value without a copy: it shares the memory of its frame.
    pub(crate) fn of_answer(frame: &Bytes, body: AnswerBody<'_>) -> Self {
        match body {
            AnswerBody::Value(value) => Self::Value(JsonText::in_frame(frame, value)),
            AnswerBody::Cancelled => Self::Cancelled,
            AnswerBody::Error(error) => Self::Error(error),
            AnswerBody::Malformed(what) => Self::Malformed(what),
        }
    }
}

/// How a call ended.
#[derive(Debug)]
pub(crate) enum Settled {
    Value { value: JsonText, after_cancel: bool },
    Error(ErrorObject),
    Malformed(AnswerFault),
    Cancelled(Cancelled),
    Disconnected { may_have_run: bool },
}

impl CallEntry {
    pub(crate) fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// The exchange for the request of this call, which has this number.
    pub(crate) fn exchange(&self, number: CallNumber) -> ExchangeId {
        if self.own_exchange {
            return ExchangeId::of_call(number);
        }
        self.extras.as_ref().and_then(|extras| extras.exchange).unwrap_or(ExchangeId::NONE)
    }

    pub(crate) fn span(&self) -> CallSpan {
        self.extras.as_ref()?.span.clone()
    }

    /// Whether it opens the session.
    pub(crate) fn shakes(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.shakes)
    }

    /// Whether the entry is not needed any more.
    pub(crate) fn is_done(&self) -> bool {
        self.ended && self.users == Users(0)
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
