//! All inputs of a session: from the peer, the application, the transport and the clock.

use rescind_core::dialect::CapabilityGate;
use rescind_core::inspect::{Inspection, RequestView, TimerView};
use rescind_core::{DisconnectPolicy, HandlerResult, InboundKey};

use super::calls::CallInput;
use super::oracle::Served;
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
