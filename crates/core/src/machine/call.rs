//! A call of this side: its data while it is in flight.

use std::time::Instant;

use super::input::AfterCancel;
use super::timers::Timer;
use crate::cause::Cause;
use crate::id::{CallNumber, InboundKey, OutboundKey};
use crate::pool::Pool;

/// A call of this side. There is one for each call in flight, so it is small.
#[derive(Debug)]
#[cfg_attr(feature = "verify", derive(Clone))]
pub(super) struct Call {
    pub(super) number: CallNumber,
    /// The deadline while it is staged or written; the end of the wait for the peer while it is cancelling.
    pub(super) alarm: Option<Instant>,
    pub(super) extras: Option<Box<Extras>>,
    pub(super) state: State,
    /// Whether no cancel message is sent for it.
    pub(super) no_cancel_message: bool,
    pub(super) peer_may_end: bool,
    pub(super) after_cancel: AfterCancel,
}

/// The data of calls that are cancelled or have a parent.
#[derive(Debug, Default)]
#[cfg_attr(feature = "verify", derive(Clone))]
pub(super) struct Extras {
    /// The first cancel.
    pub(super) cause: Option<Cause>,
    /// When that was. It decides nothing: views of the call show it.
    pub(super) cancelled_at: Option<Instant>,
    /// Its deadline, once it is cancelled: it also ends the wait for the peer.
    pub(super) deadline: Option<Instant>,
    pub(super) cancel: CancelFrame,
    pub(super) parent: Option<InboundKey>,
    pub(super) previous: Option<OutboundKey>,
    pub(super) next: Option<OutboundKey>,
}

/// The state of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its frame waits on this side.
    Staged,
    /// Its frame was passed to the transport.
    Written,
    /// Its cancel is sent or about to be sent, and the caller waits for the peer.
    Cancelling,
    /// It is settled. Its slot stays until its cancel is written, which limits the cancels that wait.
    Leaving,
}

/// The state of the cancel of a call (I7, I12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CancelFrame {
    #[default]
    None,
    Waiting(CallNumber),
    Written(CallNumber),
}

impl Call {
    pub(super) fn extras_mut(&mut self, spares: &mut Pool<Extras>) -> &mut Extras {
        self.extras.get_or_insert_with(|| spares.take())
    }

    /// Its extras, if it has any.
    pub(super) fn extras_if_any(&mut self) -> Option<&mut Extras> {
        self.extras.as_deref_mut()
    }

    pub(super) fn cause(&self) -> Option<&Cause> {
        self.extras.as_ref()?.cause.as_ref()
    }

    /// Whether its request is written and its answer has an effect.
    pub(super) const fn awaits_answer(&self) -> bool {
        match self.state {
            State::Written | State::Cancelling => true,
            State::Staged | State::Leaving => false,
        }
    }

    pub(super) fn cancel(&self) -> CancelFrame {
        self.extras.as_ref().map_or(CancelFrame::None, |extras| extras.cancel)
    }

    pub(super) fn has_parent(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.parent.is_some())
    }

    pub(super) fn set_cancel(&mut self, cancel: CancelFrame) {
        if let Some(extras) = self.extras_if_any() {
            extras.cancel = cancel;
        }
    }

    #[cfg(feature = "verify")]
    pub(super) fn next_sibling(&self) -> Option<OutboundKey> {
        self.extras.as_ref()?.next
    }

    #[cfg(feature = "verify")]
    pub(super) fn view(
        &self,
        key: OutboundKey,
        until: impl Fn(Instant) -> std::time::Duration,
    ) -> super::inspect::CallView {
        use super::inspect::{CallState, CallView};
        CallView {
            key,
            number: self.number,
            state: match self.state {
                State::Staged => CallState::Staged,
                State::Written => CallState::Written,
                State::Cancelling => CallState::Cancelling,
                State::Leaving => CallState::Leaving,
            },
            cause: self.cause().map(Cause::kind),
            cancel: match self.cancel() {
                CancelFrame::None => None,
                CancelFrame::Waiting(number) => Some((number, false)),
                CancelFrame::Written(number) => Some((number, true)),
            },
            parent: self.extras.as_ref().and_then(|extras| extras.parent),
            alarm: self.alarm.map(&until),
            deadline: self.extras.as_ref().and_then(|extras| extras.deadline).map(until),
            no_cancel_message: self.no_cancel_message,
            peer_may_end: self.peer_may_end,
            after_cancel: self.after_cancel,
        }
    }

    /// The purpose of its timer.
    pub(super) const fn timer(&self, key: OutboundKey) -> Timer {
        match self.state {
            State::Staged | State::Written | State::Leaving => Timer::Deadline(key),
            State::Cancelling => Timer::PeerWait(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_in_flight_takes_little() {
        let bytes = size_of::<Call>();
        assert!(bytes <= 40, "W8: a call's slot takes {bytes} bytes");
    }
}
