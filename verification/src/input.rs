//! All inputs of a session: from the peer, the application, the transport and the clock.

use std::time::{Duration, Instant};

use rescind_core::dialect::CapabilityGate;
use rescind_core::inspect::{Inspection, RequestView, TimerView};
use rescind_core::{
    AfterCancel, AnswerKind, CallNumber, CallRefused, CallSpec, Cause, CauseKind, DisconnectPolicy,
    ForeignChild, HandlerResult, InboundKey, OutboundKey,
};

use super::invariants::{Broken, holds};
use super::oracle::{Ending, Served};
use super::state::{CALLS, CHILD, GENERATIONS, IDS, MachineState};

/// The most bad frames that are answered in a burst. A separate test of the machine checks what happens above that.
const BAD_FRAMES: u32 = 100;

/// An input. Requests and calls are named by their keys, which are the same in each replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Input {
    /// The peer sends a request with one of the ids.
    Request(u8),
    /// The peer sends a request with the first of the ids, and the server has no room for it on any connection.
    RequestOver,
    /// The peer sends a request with the last of the ids that no cancel message can cancel.
    RequestExempt,
    /// The peer begins the handshake, with a separate id.
    Hello,
    /// The handshake is complete.
    Agreed(Declared),
    /// The peer cancels this id.
    Cancel(u8),
    /// The peer cancels the handshake.
    CancelHello,
    /// Another principal cancels the first of the ids.
    CancelByStranger,
    /// A sender without a principal cancels the request of a principal.
    CancelByNobody,
    /// The peer cancels the first of the ids in a scope in which no request has it.
    CancelElsewhere,
    /// The peer sends a cancel that names nothing.
    CancelNothing,
    /// A frame of the peer is not a message.
    Bad,
    /// Only the id of the peer's request can be read: the first of the ids.
    BadRequest,
    /// A handler reports its result.
    Offer(InboundKey, HandlerResult),
    /// A handler's task has ended.
    Ended(InboundKey),
    /// A handler makes its request a task.
    BecomeTask(InboundKey),
    /// A handler enters a critical section.
    Shield(InboundKey),
    /// A handler leaves it.
    Unshield(InboundKey),
    /// This side cancels a request it serves.
    LocalCancel(InboundKey),
    /// The deadline of a request that this side serves has passed.
    Deadline(InboundKey),
    /// An earlier input for a request that is gone is repeated.
    Stale(InboundKey),
    /// The stream of a request is lost.
    StreamLost(InboundKey),
    /// The stream is resumed.
    StreamBack(InboundKey),
    /// An input for a call of this side.
    Call(CallInput),
    /// The input ends.
    HalfClose,
    /// The connection is lost.
    Lost(DisconnectPolicy),
    /// This side shuts down.
    Shutdown,
    /// The connection was unused for too long.
    Idle,
    /// A cascade in progress continues.
    Advance,
    /// Time passes until a timer is due.
    Time,
    /// Time passes until every early cancel has expired.
    Wait,
}

impl Input {
    /// Whether the input names no existing request, regardless of earlier inputs. It then changes nothing, and its
    /// answer has no effect.
    pub(super) const fn names_no_request(self) -> bool {
        matches!(
            self,
            Self::CancelNothing
                | Self::Bad
                | Self::BadRequest
                | Self::Stale(_)
                | Self::Call(CallInput::LateAnswer | CallInput::CancelFailed(_))
        )
    }
}

/// Which sides have declared in the handshake that they handle cancels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Declared {
    /// Both of them.
    PerSide,
    /// Only this side.
    Ours,
    /// Only the peer.
    Peers,
    /// Neither.
    Neither,
}

impl Declared {
    /// Whether this side handles cancels.
    pub(super) const fn ours(self) -> bool {
        matches!(self, Self::PerSide | Self::Ours)
    }

    /// Whether the peer handles cancels.
    pub(super) const fn peers(self) -> bool {
        matches!(self, Self::PerSide | Self::Peers)
    }
}

impl MachineState {
    /// All inputs that are possible now.
    #[must_use]
    pub fn inputs(&self, seen: &Inspection) -> Vec<Input> {
        let mut inputs = Vec::with_capacity(40);
        if !self.ledger.lost {
            self.peers_inputs(&mut inputs);
            let lost = [DisconnectPolicy::CancelNow, DisconnectPolicy::Detach, DisconnectPolicy::Keep];
            inputs.extend(lost.map(Input::Lost));
            inputs.push(Input::HalfClose);
        }
        inputs.extend([Input::Shutdown, Input::Idle]);
        if self.session.has_work() {
            inputs.push(Input::Advance);
        }
        if self.session.next_timeout().is_some() {
            inputs.push(Input::Time);
        }
        let longest = self.session.limits().early_cancel_timeout;
        if seen.parked.iter().any(|(.., age)| *age < longest) {
            inputs.push(Input::Wait);
        }
        inputs.extend(self.gone.map(Input::Stale));
        for (key, served) in &self.ledger.served {
            self.handlers_inputs(*key, served, seen, &mut inputs);
        }
        self.calls_inputs(&mut inputs);
        inputs
    }

    fn peers_inputs(&self, inputs: &mut Vec<Input>) {
        let may_ask =
            |id: u8| self.done.requests.get(usize::from(id)).is_some_and(|asked| *asked < GENERATIONS);
        for id in 0..IDS {
            if may_ask(id) {
                inputs.push(Input::Request(id));
            }
            inputs.push(Input::Cancel(id));
        }
        if may_ask(0) {
            inputs.push(Input::RequestOver);
        }
        if may_ask(IDS - 1) && self.class.has_exempt_requests() {
            inputs.push(Input::RequestExempt);
        }
        if self.done.hello {
            inputs.push(Input::CancelHello);
        } else if self.session.dialect().rules().handshake.is_some() {
            inputs.push(Input::Hello);
        }
        if self.done.agreed.is_none() && self.agreed_needed {
            inputs.push(Input::Agreed(Declared::PerSide));
            if self.session.dialect().rules().gate == CapabilityGate::Declared {
                let less = [Declared::Ours, Declared::Peers, Declared::Neither];
                inputs.extend(less.map(Input::Agreed));
            }
        }
        inputs.extend([Input::CancelNothing, Input::CancelByStranger]);
        // A call of this side belongs to the connection: the peer that serves it may end it.
        if !self.is_called_off() {
            inputs.extend([Input::CancelByNobody, Input::CancelElsewhere]);
        }
        if self.bad_frames < BAD_FRAMES {
            inputs.push(Input::Bad);
        }
        inputs.push(Input::BadRequest);
    }

    fn handlers_inputs(&self, key: InboundKey, served: &Served, seen: &Inspection, inputs: &mut Vec<Input>) {
        inputs.extend([Input::LocalCancel(key), Input::Deadline(key)]);
        if !self.ordered {
            let is_lost = seen.timers.iter().any(|(_, timer)| *timer == TimerView::Detach(key));
            inputs.push(if is_lost { Input::StreamBack(key) } else { Input::StreamLost(key) });
        }
        if !served.started || served.ended {
            return;
        }
        inputs.push(Input::Ended(key));
        if self.class.has_tasks() {
            inputs.push(Input::BecomeTask(key));
        }
        if !served.offered {
            let ends =
                [HandlerResult::Value, HandlerResult::Error, HandlerResult::Stopped, HandlerResult::Panicked];
            inputs.extend(ends.map(|end| Input::Offer(key, end)));
            if self.done.calls < CALLS {
                inputs.push(Input::Call(CallInput::Make(Some(key))));
            }
            if !self.ledger.foreign.contains_key(&CHILD) {
                inputs.push(Input::Call(CallInput::Adopt(key)));
            }
        }
        let view = |view: &&RequestView| view.key == key;
        let entered = seen.requests.iter().find(view).map_or(0, |view| view.shields);
        let nests = self.class.nests_shields() && served.shields == 1 && entered == 1;
        if served.shields > 0 {
            inputs.push(Input::Unshield(key));
        }
        if served.shields == 0 || nests {
            inputs.push(Input::Shield(key));
        }
    }
}

// The calls of this side: their possible inputs, the effect of each on the session, and what the ledger records of
// it.

/// An input for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallInput {
    /// This side calls, possibly for a request that it serves.
    Make(Option<InboundKey>),
    /// This side calls, with a deadline of one second.
    MakeWithin,
    /// A handler calls on another connection.
    Adopt(InboundKey),
    /// That call ends.
    Release(u64),
    /// A call is detached from its parent.
    Detach(OutboundKey),
    /// A call's frame is written.
    Written(OutboundKey),
    /// Its caller cancels it, and waits or returns. Without a choice: as usual in its dialect.
    Cancel(OutboundKey, Option<AfterCancel>),
    /// Its cancel is written.
    CancelWritten(OutboundKey),
    /// The peer answers it.
    Answer(OutboundKey, AnswerKind),
    /// The peer acknowledges its cancel: it is cancelled.
    Acked(OutboundKey),
    /// The peer acknowledges its cancel: it is not cancelled.
    AckedNot(OutboundKey),
    /// It fails on its way to the peer.
    Failed(OutboundKey),
    /// The exchange that it opened fails. Only the number of the exchange is known.
    ExchangeFailed(OutboundKey),
    /// The exchange that its cancel opened fails.
    CancelFailed(OutboundKey),
    /// An answer arrives for which no call waits.
    LateAnswer,
}

impl MachineState {
    /// All inputs that are possible now for the existing calls, and a call without a parent.
    fn calls_inputs(&self, inputs: &mut Vec<Input>) {
        let mut push = |input| inputs.push(Input::Call(input));
        if self.done.calls < CALLS {
            push(CallInput::Make(None));
            push(CallInput::MakeWithin);
        }
        if self.done.calls > 0 && !self.ledger.lost {
            push(CallInput::LateAnswer);
        }
        for child in self.ledger.foreign.keys() {
            push(CallInput::Release(*child));
        }
        for (key, made) in &self.ledger.made {
            let key = *key;
            if !made.written {
                push(CallInput::Written(key));
            }
            if made.parent.is_some() {
                push(CallInput::Detach(key));
            }
            push(CallInput::Cancel(key, None));
            push(CallInput::Cancel(key, Some(AfterCancel::WaitForPeer)));
            push(CallInput::Cancel(key, Some(AfterCancel::ReturnNow)));
            if made.cancel.is_some_and(|(_, written)| !written) {
                push(CallInput::CancelWritten(key));
            }
            if self.ledger.lost {
                continue;
            }
            push(CallInput::Answer(key, AnswerKind::Value));
            push(CallInput::Answer(key, AnswerKind::Cancelled));
            push(CallInput::Answer(key, AnswerKind::Error));
            if made.cancel.is_some_and(|(_, written)| written) {
                push(CallInput::Acked(key));
                push(CallInput::AckedNot(key));
            }
            if !self.ordered {
                push(CallInput::Failed(key));
                push(CallInput::ExchangeFailed(key));
                if made.cancel.is_some_and(|(_, written)| written) {
                    push(CallInput::CancelFailed(key));
                }
            }
        }
    }

    pub(super) fn give_to_call(&mut self, input: CallInput) -> Result<(), Broken> {
        let now = self.now;
        match input {
            CallInput::Make(parent) => return self.call(parent, None),
            CallInput::MakeWithin => return self.call(None, Some(now + Duration::from_secs(1))),
            CallInput::Adopt(parent) => {
                let may_be = self.may_have_children(parent);
                let adopted = self.session.local_adopt(now, parent, ForeignChild(CHILD));
                holds(adopted.is_ok() == may_be, "I5", || {
                    format!("a child elsewhere of {parent:?}, which may have some: {may_be}: {adopted:?}")
                })?;
                if may_be {
                    self.ledger.foreign.insert(CHILD, parent);
                }
            }
            CallInput::Release(child) => {
                if let Some(parent) = self.ledger.foreign.remove(&child) {
                    self.session.local_release(parent, ForeignChild(child));
                }
            }
            CallInput::Detach(key) => {
                // A call that is already cancelled was cancelled as a child.
                if let Some(made) = self.ledger.made.get_mut(&key).filter(|made| made.cancel.is_none()) {
                    made.parent = None;
                }
                self.session.local_detach(key);
            }
            CallInput::Written(key) => {
                if let Some(made) = self.ledger.made.get_mut(&key).filter(|made| !made.settled) {
                    made.written = true;
                    self.session.local_written(now, key);
                }
            }
            CallInput::Cancel(key, after) => {
                let result = self.cancel_ends(key, after).result();
                let reported = self.session.local_cancel_call(now, key, Cause::new(CauseKind::Caller), after);
                holds(reported == result, "I13", || {
                    format!("the cancel of {key:?} should return {result:?}, and returns {reported:?}")
                })?;
            }
            // As in the driver: a cancel that an answer has disarmed is not written.
            CallInput::CancelWritten(key) => {
                if self.session.wants_cancel(key) {
                    let cancel = self.ledger.made.get_mut(&key).and_then(|made| made.cancel.as_mut());
                    if let Some((_, written)) = cancel {
                        *written = true;
                    }
                    self.session.local_cancel_written(now, key);
                }
            }
            CallInput::Answer(key, kind) => {
                let number = self.ledger.made.get(&key).filter(|made| made.written).map(|made| made.number);
                let settled = self.session.recv_answer(now, number, kind);
                holds(settled.is_none_or(|settled| settled == key), "I4", || {
                    format!("the answer to {key:?} settled {settled:?}")
                })?;
            }
            CallInput::Acked(key) => self.ack(key, true),
            CallInput::AckedNot(key) => self.ack(key, false),
            CallInput::Failed(key) => {
                let written = self.ledger.made.get(&key).is_some_and(|made| made.written);
                self.session.recv_call_failed(now, key, written);
            }
            CallInput::ExchangeFailed(key) => {
                if let Some(made) = self.ledger.made.get(&key) {
                    self.session.recv_exchange_failed(now, made.number, made.written);
                }
            }
            CallInput::CancelFailed(key) => {
                let cancel = self.ledger.made.get(&key).and_then(|made| made.cancel);
                if let Some((number, written)) = cancel {
                    self.session.recv_exchange_failed(now, number, written);
                }
            }
            CallInput::LateAnswer => {
                let settled = self.session.recv_answer(now, Some(CallNumber(99)), AnswerKind::Value);
                holds(settled.is_none(), "I4", || format!("an answer to nothing settled {settled:?}"))?;
            }
        }
        Ok(())
    }

    fn call(&mut self, parent: Option<InboundKey>, deadline: Option<Instant>) -> Result<(), Broken> {
        self.done.calls += 1;
        let ended = self.session.dialect().rules().peer_may_end.first();
        let mut spec = CallSpec::new(ended.copied().unwrap_or("ask"));
        (spec.parent, spec.deadline) = (parent, deadline);
        let refused = self.refused(parent);
        let made = self.session.local_call(self.now, &spec);
        holds(made.as_ref().err() == refused.as_ref(), if parent.is_some() { "I5" } else { "I13" }, || {
            format!("a call for {parent:?} was to come to {refused:?}, and came to {made:?}")
        })?;
        match made {
            Ok((key, number)) => self.ledger.make(key, number, parent),
            Err(_) => Ok(()),
        }
    }

    /// Why a call is refused, derived from the ledger. Only the number of calls is taken from the session.
    fn refused(&self, parent: Option<InboundKey>) -> Option<CallRefused> {
        let Ending { half_closed, shutdown } = self.ledger.ending;
        if self.ledger.lost || self.ledger.closed || half_closed && !shutdown {
            return Some(CallRefused::Disconnected);
        }
        match parent {
            None if shutdown => return Some(CauseKind::Shutdown.into()),
            Some(parent) if !self.may_have_children(parent) => return Some(CauseKind::Parent.into()),
            None | Some(_) => {}
        }
        (self.inspect().calls.len() >= self.session.limits().max_calls).then_some(CallRefused::TooMany)
    }

    /// I5: a child of a request that is cancelled or has ended is cancelled before it starts.
    fn may_have_children(&self, parent: InboundKey) -> bool {
        self.ledger.served.get(&parent).is_some_and(|parent| {
            !parent.signalled && !parent.is_settled() && !parent.offered && !parent.ended && !parent.aborted
        })
    }

    fn ack(&mut self, key: OutboundKey, cancelled: bool) {
        let cancel = self.ledger.made.get(&key).and_then(|made| made.cancel);
        self.session.recv_ack(self.now, cancel.map(|(number, _)| number), cancelled);
    }
}
