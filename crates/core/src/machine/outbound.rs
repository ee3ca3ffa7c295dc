//! Calls of this side: from staging to their settlement (I13). What arrives for them follows their sending.

use std::time::Instant;

use crate::cause::{Cause, CauseKind};
use crate::collections::Pool;
use crate::dialect::{AckStyle, CancelFrom, CancelledReply, Role};
use crate::failpoint::{self, Failpoint};
use crate::id::{CallNumber, InboundKey, OutboundKey};
use crate::machine::interface::{
    AfterCancel, AnswerKind, CallRefused, CallSpec, CancelResult, Event, Output, Settlement,
};
use crate::machine::{Session, Timer, later, lifecycle};
use crate::message::CancelExemption;

impl Session {
    /// Stages a call. Its frame may be written from now on. Call [`local_written`](Self::local_written) when it is
    /// written.
    ///
    /// # Errors
    /// The call is refused: too many calls are in flight, its parent is cancelled, or the connection is gone.
    pub fn local_call(
        &mut self,
        now: Instant,
        spec: &CallSpec<'_>,
    ) -> Result<(OutboundKey, CallNumber), CallRefused> {
        self.may_call(spec.parent)?;
        if self.calls.len() >= self.config.limits.max_calls {
            self.emit(Event::LimitReached("calls"));
            return Err(CallRefused::TooMany);
        }
        let rules = self.rules();
        let no_cancel_message = (spec.exempt == CancelExemption::FromCancelMessages
            && self.agreement.peer_exempts(spec.method))
            || rules.handshake == Some(spec.method)
            || rules.uncancellable.contains(&spec.method)
            || (rules.cancel_from == CancelFrom::Client && self.config.role == Role::Server);
        let by_dialect = match rules.peer_cancelled {
            CancelledReply::Silence => AfterCancel::ReturnNow,
            CancelledReply::Error(_) | CancelledReply::OwnShape => AfterCancel::WaitForPeer,
        };
        let peer_may_end = rules.peer_may_end.contains(&spec.method);
        let number = self.take_number();
        let call = OutboundKey(self.calls.insert(Call {
            number,
            alarm: spec.deadline.map(|at| at.max(now)),
            extras: None,
            state: CallPhase::Staged,
            no_cancel_message,
            peer_may_end,
            after_cancel: spec.after_cancel.unwrap_or(by_dialect),
        }));
        self.numbers.insert(self.numbers.hash(&number), call.0.slot, |slot| {
            self.calls.at(slot).map(|(_, call)| call.number)
        });
        self.open_calls += 1;
        if let Some(at) = spec.deadline {
            self.timers.set(at.max(now), Timer::Deadline(call));
        }
        if let Some(parent) = spec.parent {
            self.link_child(parent, call);
        }
        Ok((call, number))
    }

    /// Moves the deadline of a call that is neither answered nor cancelled, because progress arrived.
    pub fn local_renew(&mut self, now: Instant, call: OutboundKey, deadline: Instant) {
        let Some(open) = self.calls.get_mut(call.0) else { return };
        match open.state {
            CallPhase::Staged | CallPhase::Written => {}
            CallPhase::Cancelling | CallPhase::Settled => return,
        }
        let deadline = deadline.max(now);
        self.timers.clear(open.alarm.replace(deadline), Timer::Deadline(call));
        self.timers.set(deadline, Timer::Deadline(call));
    }

    /// The number of a call that the machine still knows.
    #[must_use]
    pub fn call_number(&self, call: OutboundKey) -> Option<CallNumber> {
        self.calls.get(call.0).map(|call| call.number)
    }

    /// The call with this number, while the machine knows it.
    #[must_use]
    pub fn call_of(&self, number: CallNumber) -> Option<OutboundKey> {
        let is = |slot| self.calls.at(slot).is_some_and(|(_, call)| call.number == number);
        self.calls.at(self.numbers.find(&number, is)?).map(|(key, _)| OutboundKey(key))
    }

    /// The frame of a call was passed to the transport: it counts as written (I12).
    pub fn local_written(&mut self, _now: Instant, call: OutboundKey) {
        if let Some(call) = self.calls.get_mut(call.0) {
            if call.state == CallPhase::Staged {
                call.state = CallPhase::Written;
            }
        }
    }

    /// The caller cancels its call. `after` replaces what the caller does afterwards. A later cancel with
    /// [`AfterCancel::ReturnNow`] ends the wait of an earlier one.
    pub fn local_cancel_call(
        &mut self,
        now: Instant,
        call: OutboundKey,
        cause: Cause,
        after: Option<AfterCancel>,
    ) -> CancelResult {
        let result = self.cancel_call(now, call, cause, after);
        self.advance(now);
        result
    }

    /// Whether the cancel that was output for this call must still be written: an answer disarms it.
    #[must_use]
    pub fn wants_cancel(&self, call: OutboundKey) -> bool {
        self.calls.get(call.0).is_some_and(|call| matches!(call.cancel(), CancelFrame::Waiting(_)))
    }

    /// The cancel of this call that waits to be written: the number of the call, that of the cancel, and its cause.
    /// `None`: [`wants_cancel`](Self::wants_cancel) is false.
    #[must_use]
    pub fn waiting_cancel(&self, call: OutboundKey) -> Option<(CallNumber, CallNumber, &Cause)> {
        let call = self.calls.get(call.0)?;
        match call.cancel() {
            CancelFrame::Waiting(cancel) => Some((call.number, cancel, call.cause()?)),
            CancelFrame::None | CancelFrame::Written(_) => None,
        }
    }

    /// The cancel of this call was passed to the transport.
    pub fn local_cancel_written(&mut self, now: Instant, call: OutboundKey) {
        let Some(open) = self.calls.get_mut(call.0) else { return };
        if let CancelFrame::Waiting(number) = open.cancel() {
            open.set_cancel(CancelFrame::Written(number));
        }
        if open.state == CallPhase::Settled {
            self.free_call(call);
            self.advance(now);
        }
    }

    /// The transition of a cancelled call.
    pub(super) fn cancel_call(
        &mut self,
        now: Instant,
        call: OutboundKey,
        cause: Cause,
        after: Option<AfterCancel>,
    ) -> CancelResult {
        let may_tell = self.agreement.may_send_cancels(self.rules());
        let acknowledged = self.rules().ack == AckStyle::Acknowledged;
        let next = CallNumber(self.next_number);
        let Some(open) = self.calls.get_mut(call.0) else { return CancelResult::AlreadySettled };
        let after = after.unwrap_or(open.after_cancel);
        match open.state {
            CallPhase::Settled => CancelResult::AlreadySettled,
            CallPhase::Cancelling => {
                if after == AfterCancel::ReturnNow {
                    let first = open.cause().cloned().filter(|_| !failpoint::active(Failpoint::LaterCause));
                    let cause = first.unwrap_or(cause);
                    self.settle_call(call, Settlement::Cancelled { cause, confirmed: false });
                }
                CancelResult::AlreadySettled
            }
            CallPhase::Staged if !failpoint::active(Failpoint::CancelOvertakes) => {
                self.push(Output::TakeBack(call));
                self.settle_call(call, Settlement::Cancelled { cause, confirmed: true });
                CancelResult::TakenBack
            }
            CallPhase::Staged | CallPhase::Written if open.no_cancel_message || !may_tell => {
                self.settle_call(call, Settlement::Cancelled { cause, confirmed: false });
                CancelResult::NotSupported
            }
            CallPhase::Staged | CallPhase::Written => {
                let deadline = open.alarm.take();
                if deadline.is_some() {
                    self.timers.clear(deadline, Timer::Deadline(call));
                }
                let extras = open.extras_mut(&mut self.call_extras);
                (extras.cause, extras.cancel) = (Some(cause.clone()), CancelFrame::Waiting(next));
                (extras.cancelled_at, extras.deadline) = (Some(now), deadline);
                open.state = CallPhase::Cancelling;
                let number = open.number;
                self.next_number += 1;
                if acknowledged {
                    self.cancels.insert(next, call);
                }
                self.push(Output::SendCancel { call, number, cancel: next, cause: cause.clone() });
                match after {
                    AfterCancel::WaitForPeer => {
                        let peer_wait = later(now, self.config.limits.cancel_response_timeout);
                        if let Some(open) = self.calls.get_mut(call.0) {
                            open.alarm = Some(peer_wait);
                        }
                        self.timers.set(peer_wait, Timer::PeerWait(call));
                    }
                    AfterCancel::ReturnNow => {
                        self.settle_call(call, Settlement::Cancelled { cause, confirmed: false });
                    }
                }
                CancelResult::Sent
            }
        }
    }

    pub(super) fn deadline_over(&mut self, now: Instant, call: OutboundKey) {
        if let Some(open) = self.calls.get_mut(call.0) {
            open.alarm = None;
        }
        let _ = self.cancel_call(now, call, Cause::new(CauseKind::Deadline), None);
    }

    pub(super) fn peer_wait_over(&mut self, call: OutboundKey) {
        let Some(open) = self.calls.get_mut(call.0) else { return };
        open.alarm = None;
        let Some(cause) = open.cause().cloned() else { return };
        self.emit(Event::Unresponsive(call));
        self.settle_call(call, Settlement::Cancelled { cause, confirmed: false });
    }

    /// The settlement of a call (I13). Its slot stays only while its cancel waits to be written.
    pub(super) fn settle_call(&mut self, call: OutboundKey, settlement: Settlement) {
        let Some(open) = self.calls.get_mut(call.0) else { return };
        let was_open = open.state != CallPhase::Settled;
        if let Some(alarm) = open.alarm.take() {
            self.timers.clear(Some(alarm), open.timer(call));
        }
        open.state = CallPhase::Settled;
        let waits = matches!(open.cancel(), CancelFrame::Waiting(_));
        if open.has_parent() {
            self.unlink_child(call);
        }
        if was_open {
            self.open_calls -= 1;
            self.push(Output::Settle { call, settlement });
        }
        if !waits {
            self.free_call(call);
        }
    }

    pub(super) fn free_call(&mut self, call: OutboundKey) {
        if let Some(gone) = self.calls.remove(call.0) {
            self.numbers.remove(&gone.number, call.0.slot);
            let cancel = gone.cancel();
            self.call_extras.keep(gone.extras);
            match cancel {
                CancelFrame::None => {}
                CancelFrame::Waiting(number) | CancelFrame::Written(number) => {
                    self.cancels.remove(&number);
                }
            }
        }
    }

    fn take_number(&mut self) -> CallNumber {
        let number = CallNumber(self.next_number);
        self.next_number += 1;
        number
    }

    /// Whether a call may be made now, as a child of `parent` if one is given.
    pub(super) fn may_call(&self, parent: Option<InboundKey>) -> Result<(), CallRefused> {
        match self.lifecycle.state() {
            lifecycle::ConnectionState::Lost
            | lifecycle::ConnectionState::Closed
            | lifecycle::ConnectionState::HalfClosed => {
                return Err(CallRefused::Disconnected);
            }
            lifecycle::ConnectionState::Shutdown(_) if parent.is_none() => {
                return Err(CauseKind::Shutdown.into());
            }
            lifecycle::ConnectionState::Open | lifecycle::ConnectionState::Shutdown(_) => {}
        }
        match parent {
            Some(parent) if !self.may_have_children(parent) => Err(CauseKind::Parent.into()),
            Some(_) | None => Ok(()),
        }
    }

    /// Settles all calls without waiting for the peer, which still receives their cancels.
    pub(super) fn cancel_all_calls(&mut self, now: Instant, kind: CauseKind) {
        for call in self.calls.keys() {
            let after = Some(AfterCancel::ReturnNow);
            let _ = self.cancel_call(now, OutboundKey(call), Cause::new(kind), after);
        }
    }
}

/// A call of this side. There is one for each call in flight, so it is small.
#[derive(Debug)]
#[cfg_attr(feature = "verify", derive(Clone))]
pub(super) struct Call {
    pub(super) number: CallNumber,
    /// The deadline while it is staged or written; the end of the wait for the peer while it is cancelling.
    pub(super) alarm: Option<Instant>,
    pub(super) extras: Option<Box<CallExtras>>,
    pub(super) state: CallPhase,
    /// Whether no cancel message is sent for it.
    pub(super) no_cancel_message: bool,
    pub(super) peer_may_end: bool,
    pub(super) after_cancel: AfterCancel,
}

/// The data of calls that are cancelled or have a parent.
#[derive(Debug, Default)]
#[cfg_attr(feature = "verify", derive(Clone))]
pub(super) struct CallExtras {
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
pub(super) enum CallPhase {
    /// Its frame waits on this side.
    Staged,
    /// Its frame was passed to the transport.
    Written,
    /// Its cancel is sent or about to be sent, and the caller waits for the peer.
    Cancelling,
    /// It is settled. Its slot stays until its cancel is written, which limits the cancels that wait.
    Settled,
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
    pub(super) fn extras_mut(&mut self, spares: &mut Pool<CallExtras>) -> &mut CallExtras {
        self.extras.get_or_insert_with(|| spares.take())
    }

    /// Its extras, if it has any.
    pub(super) fn extras_if_any(&mut self) -> Option<&mut CallExtras> {
        self.extras.as_deref_mut()
    }

    pub(super) fn cause(&self) -> Option<&Cause> {
        self.extras.as_ref()?.cause.as_ref()
    }

    /// Whether its request is written and its answer has an effect.
    pub(super) const fn awaits_answer(&self) -> bool {
        match self.state {
            CallPhase::Written | CallPhase::Cancelling => true,
            CallPhase::Staged | CallPhase::Settled => false,
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
    ) -> crate::machine::inspect::CallView {
        use crate::machine::inspect::{CallState, CallView};
        CallView {
            key,
            number: self.number,
            state: match self.state {
                CallPhase::Staged => CallState::Staged,
                CallPhase::Written => CallState::Written,
                CallPhase::Cancelling => CallState::Cancelling,
                CallPhase::Settled => CallState::Leaving,
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
            CallPhase::Staged | CallPhase::Written | CallPhase::Settled => Timer::Deadline(key),
            CallPhase::Cancelling => Timer::PeerWait(key),
        }
    }
}

impl Session {
    /// Receives an answer to a call. `Some`: it settles this call, and `Settle` is an output of this step. An answer to
    /// a call that has ended is late: it is counted and is not an error.
    pub fn recv_answer(
        &mut self,
        now: Instant,
        call: Option<CallNumber>,
        kind: AnswerKind,
    ) -> Option<OutboundKey> {
        if let Some(number) = call.filter(|number| self.cancels.contains_key(number)) {
            // The answer to a cancel, which is a request in dialects that acknowledge cancels.
            self.recv_ack(now, Some(number), kind == AnswerKind::Value);
            return None;
        }
        let found = call
            .filter(|_| !failpoint::active(Failpoint::AnswerUnheard))
            .and_then(|number| self.call_of(number));
        let state = found.and_then(|found| self.calls.get(found.0)).map(|open| open.state);
        match (found, state) {
            (Some(found), Some(CallPhase::Written | CallPhase::Cancelling)) => {
                let asked = self.calls.get(found.0).and_then(|open| open.cause().cloned());
                let settlement = match kind {
                    AnswerKind::Value | AnswerKind::Error => Settlement::Answered { cancelled: asked },
                    AnswerKind::Cancelled => {
                        let cause = asked.unwrap_or(Cause::new(CauseKind::Peer));
                        Settlement::Cancelled { cause, confirmed: true }
                    }
                };
                self.withdraw_cancel(found);
                self.settle_call(found, settlement);
                self.advance(now);
                Some(found)
            }
            (Some(found), Some(CallPhase::Settled)) => {
                self.emit(Event::LateAnswer);
                self.free_call(found);
                self.advance(now);
                None
            }
            _ => {
                let was_ours = call.is_some_and(|number| self.has_numbered(number));
                let staged = state == Some(CallPhase::Staged);
                self.emit(if was_ours && !staged { Event::LateAnswer } else { Event::UnknownAnswer });
                None
            }
        }
    }

    /// Whether a call of this side has or had this number.
    #[must_use]
    pub const fn has_numbered(&self, number: CallNumber) -> bool {
        0 < number.0 && number.0 < self.next_number
    }

    /// Whether the call with this number waits for its answer.
    #[must_use]
    pub fn awaits_answer(&self, number: CallNumber) -> bool {
        self.call_of(number).and_then(|call| self.calls.get(call.0)).is_some_and(Call::awaits_answer)
    }

    /// The only call that waits for its answer. `None`: none or several do, or a cancel waits for its acknowledgement.
    #[must_use]
    pub fn only_awaited(&self) -> Option<CallNumber> {
        let mut awaited = self.calls.iter().map(|(_, call)| call).filter(|call| call.awaits_answer());
        let only = awaited.next()?.number;
        (awaited.next().is_none() && self.cancels.is_empty()).then_some(only)
    }

    /// Receives the acknowledgement of a cancel. "Not cancelled" disarms the wait limit, because the answer follows. A
    /// call with a deadline still ends at its deadline.
    pub fn recv_ack(&mut self, _now: Instant, cancel: Option<CallNumber>, cancelled: bool) {
        let call = cancel.and_then(|number| self.cancels.remove(&number));
        let Some((key, open)) = call.and_then(|key| Some((key, self.calls.get_mut(key.0)?))) else {
            self.emit(Event::LateAnswer);
            return;
        };
        // A call with a deadline ends at its deadline, regardless of the peer.
        let promised = open.cause().is_some_and(|cause| cause.kind() == CauseKind::Deadline);
        if !cancelled && !promised && open.state == CallPhase::Cancelling {
            let waited = open.alarm.take();
            self.timers.clear(waited, Timer::PeerWait(key));
            if let Some(deadline) = open.extras.as_ref().and_then(|extras| extras.deadline) {
                let until = waited.map_or(deadline, |waited| waited.max(deadline));
                open.alarm = Some(until);
                self.timers.set(until, Timer::PeerWait(key));
            }
        }
        self.push(Output::Acked { call: key, cancelled });
    }

    /// The exchange that the message with this number opened has failed, or has ended without an answer. `sent`: the
    /// message was sent. The failure of an exchange that carried only a cancel has no effect.
    pub fn recv_exchange_failed(&mut self, now: Instant, number: CallNumber, sent: bool) {
        if let Some(call) = self.call_of(number) {
            self.recv_call_failed(now, call, sent);
        }
    }

    /// A call failed alone, on transports where one call can fail without the others.
    pub fn recv_call_failed(&mut self, now: Instant, call: OutboundKey, sent: bool) {
        self.lose_call(call, Some(sent));
        self.advance(now);
    }

    /// Settles a call whose answer cannot arrive any more.
    pub(super) fn lose_call(&mut self, call: OutboundKey, sent: Option<bool>) {
        let Some(open) = self.calls.get(call.0) else { return };
        let settlement = match open.cause() {
            Some(cause) => Settlement::Cancelled { cause: cause.clone(), confirmed: false },
            None => {
                Settlement::Disconnected { may_have_run: sent.unwrap_or(open.state != CallPhase::Staged) }
            }
        };
        if open.state == CallPhase::Staged {
            self.push(Output::TakeBack(call));
        }
        self.withdraw_cancel(call);
        self.settle_call(call, settlement);
    }

    /// The peer ends a call, in dialects that allow it. `false`: it may not, or the call has ended.
    pub(super) fn end_by_peer(&mut self, call: OutboundKey) -> bool {
        let Some(open) = self.calls.get(call.0) else { return false };
        match open.state {
            CallPhase::Written | CallPhase::Cancelling if open.peer_may_end => {}
            CallPhase::Staged | CallPhase::Written | CallPhase::Cancelling | CallPhase::Settled => {
                return false;
            }
        }
        let cause = open.cause().cloned().unwrap_or(Cause::new(CauseKind::Peer));
        self.withdraw_cancel(call);
        self.settle_call(call, Settlement::Cancelled { cause, confirmed: true });
        true
    }

    /// Settles all calls, because the peer can no longer answer.
    pub(super) fn lose_all_calls(&mut self) {
        for call in self.calls.keys() {
            self.lose_call(OutboundKey(call), None);
        }
    }

    /// An answer arrived, or none can arrive: a cancel that waits is not written any more.
    fn withdraw_cancel(&mut self, call: OutboundKey) {
        if let Some(open) = self.calls.get_mut(call.0) {
            if let CancelFrame::Waiting(number) = open.cancel() {
                if failpoint::active(Failpoint::CancelNotDisarmed) {
                    return;
                }
                open.set_cancel(CancelFrame::None);
                self.cancels.remove(&number);
            }
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
