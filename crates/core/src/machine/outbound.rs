//! Calls of this side: from staging to their settlement (I13). `answers.rs` has what arrives for them.

use std::time::Instant;

use super::call::{Call, CancelFrame, State};
use super::input::{AfterCancel, CallRefused, CallSpec, CancelResult};
use super::output::{Event, Output, Settlement};
use super::timers::{Timer, later};
use super::{Session, lifecycle};
use crate::cause::{Cause, CauseKind};
use crate::dialect::{AckStyle, CancelFrom, CancelledReply, Role};
use crate::failpoint::{self, Failpoint};
use crate::id::{CallNumber, InboundKey, OutboundKey};
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
            state: State::Staged,
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
            State::Staged | State::Written => {}
            State::Cancelling | State::Leaving => return,
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

    /// The number of a call, while the machine knows it.
    #[must_use]
    pub fn number_of(&self, call: OutboundKey) -> Option<CallNumber> {
        self.calls.get(call.0).map(|call| call.number)
    }

    /// The frame of a call was passed to the transport: it counts as written (I12).
    pub fn local_written(&mut self, _now: Instant, call: OutboundKey) {
        if let Some(call) = self.calls.get_mut(call.0) {
            if call.state == State::Staged {
                call.state = State::Written;
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
        if open.state == State::Leaving {
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
            State::Leaving => CancelResult::AlreadySettled,
            State::Cancelling => {
                if after == AfterCancel::ReturnNow {
                    let first = open.cause().cloned().filter(|_| !failpoint::active(Failpoint::LaterCause));
                    let cause = first.unwrap_or(cause);
                    self.settle_call(call, Settlement::Cancelled { cause, confirmed: false });
                }
                CancelResult::AlreadySettled
            }
            State::Staged if !failpoint::active(Failpoint::CancelOvertakes) => {
                self.push(Output::TakeBack(call));
                self.settle_call(call, Settlement::Cancelled { cause, confirmed: true });
                CancelResult::TakenBack
            }
            State::Staged | State::Written if open.no_cancel_message || !may_tell => {
                self.settle_call(call, Settlement::Cancelled { cause, confirmed: false });
                CancelResult::NotSupported
            }
            State::Staged | State::Written => {
                let deadline = open.alarm.take();
                if deadline.is_some() {
                    self.timers.clear(deadline, Timer::Deadline(call));
                }
                let extras = open.extras_mut(&mut self.call_extras);
                (extras.cause, extras.cancel) = (Some(cause.clone()), CancelFrame::Waiting(next));
                (extras.cancelled_at, extras.deadline) = (Some(now), deadline);
                open.state = State::Cancelling;
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
        let was_open = open.state != State::Leaving;
        if let Some(alarm) = open.alarm.take() {
            self.timers.clear(Some(alarm), open.timer(call));
        }
        open.state = State::Leaving;
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
            lifecycle::State::Lost | lifecycle::State::Closed | lifecycle::State::HalfClosed => {
                return Err(CallRefused::Disconnected);
            }
            lifecycle::State::Shutdown(_) if parent.is_none() => return Err(CauseKind::Shutdown.into()),
            lifecycle::State::Open | lifecycle::State::Shutdown(_) => {}
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
