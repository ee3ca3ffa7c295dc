//! What arrives for the calls of this side: answers, acknowledgements of cancels, and losses after which none can arrive.

use std::time::Instant;

use super::Session;
use super::call::{Call, CancelFrame, State};
use super::input::AnswerKind;
use super::output::{Event, Output, Settlement};
use super::timers::Timer;
use crate::cause::{Cause, CauseKind};
use crate::failpoint::{self, Failpoint};
use crate::id::{CallNumber, OutboundKey};

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
            (Some(found), Some(State::Written | State::Cancelling)) => {
                let asked = self.calls.get(found.0).and_then(|open| open.cause().cloned());
                let settlement = match kind {
                    AnswerKind::Value | AnswerKind::Error => Settlement::Answered { cancelled: asked },
                    AnswerKind::Cancelled => {
                        let cause = asked.unwrap_or(Cause::new(CauseKind::Peer));
                        Settlement::Cancelled { cause, confirmed: true }
                    }
                };
                self.disarm(found);
                self.settle_call(found, settlement);
                self.advance(now);
                Some(found)
            }
            (Some(found), Some(State::Leaving)) => {
                self.emit(Event::LateAnswer);
                self.free_call(found);
                self.advance(now);
                None
            }
            _ => {
                let was_ours = call.is_some_and(|number| number.0 < self.next_number && number.0 > 0);
                let staged = state == Some(State::Staged);
                self.emit(if was_ours && !staged { Event::LateAnswer } else { Event::UnknownAnswer });
                None
            }
        }
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
        if !cancelled && !promised && open.state == State::Cancelling {
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
            None => Settlement::Disconnected { may_have_run: sent.unwrap_or(open.state != State::Staged) },
        };
        if open.state == State::Staged {
            self.push(Output::TakeBack(call));
        }
        self.disarm(call);
        self.settle_call(call, settlement);
    }

    /// The peer ends a call, in dialects that allow it. `false`: it may not, or the call has ended.
    pub(super) fn end_by_peer(&mut self, call: OutboundKey) -> bool {
        let Some(open) = self.calls.get(call.0) else { return false };
        match open.state {
            State::Written | State::Cancelling if open.peer_may_end => {}
            State::Staged | State::Written | State::Cancelling | State::Leaving => return false,
        }
        let cause = open.cause().cloned().unwrap_or(Cause::new(CauseKind::Peer));
        self.disarm(call);
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
    fn disarm(&mut self, call: OutboundKey) {
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
