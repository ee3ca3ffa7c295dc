//! All that can be done to a session: by the peer, the user, the wire and the clock.

use rescind_core::dialect::CapabilityGate;
use rescind_core::inspect::{Inspection, RequestView, TimerView};
use rescind_core::{DisconnectPolicy, HandlerResult, InboundKey};

use super::calls::CallInput;
use super::oracle::Served;
use super::state::{CALLS, CHILD, GENERATIONS, IDS, MachineState};

/// So many frames that are no message are answered in one go. What becomes of more is a test of the machine's own.
const BAD_FRAMES: u32 = 100;

/// One thing that happens. Requests and calls are named by their keys, which are the same in each replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Input {
    /// The peer asks, under one of the ids.
    Request(u8),
    /// The peer asks under the first of the ids, and the server has no room for it on any connection.
    RequestOver,
    /// The peer asks under the last of the ids what no cancel message reaches.
    RequestExempt,
    /// The peer begins the handshake, under an id of its own.
    Hello,
    /// The handshake is over.
    Agreed(Declared),
    /// The peer cancels this id.
    Cancel(u8),
    /// The peer cancels the handshake.
    CancelHello,
    /// Somebody else cancels the first of the ids.
    CancelByStranger,
    /// Nobody known cancels what somebody known has asked.
    CancelByNobody,
    /// The peer cancels the first of the ids in a space where nothing has it.
    CancelElsewhere,
    /// The peer cancels nothing.
    CancelNothing,
    /// A frame of the peer is no message.
    Bad,
    /// Of a request of the peer no more than its id can be read: the first of the ids.
    BadRequest,
    /// A handler says how it ends.
    Offer(InboundKey, HandlerResult),
    /// A handler's task is gone.
    Ended(InboundKey),
    /// A handler enters a critical section.
    Shield(InboundKey),
    /// And leaves it.
    Unshield(InboundKey),
    /// This side cancels a request it serves.
    LocalCancel(InboundKey),
    /// A request this side serves is out of time.
    Deadline(InboundKey),
    /// What was said of a request that is gone comes once more.
    Stale(InboundKey),
    /// The stream a request came on is lost.
    StreamLost(InboundKey),
    /// And is taken up again.
    StreamBack(InboundKey),
    /// Something happens to a call of this side.
    Call(CallInput),
    /// The input ends.
    HalfClose,
    /// The connection is lost.
    Lost(DisconnectPolicy),
    /// This side shuts down.
    Shutdown,
    /// Nobody has used the connection for too long.
    Idle,
    /// A cascade under way goes on.
    Advance,
    /// Time passes until something is due.
    Time,
    /// So much time passes that no early cancel counts any more.
    Wait,
}

impl Input {
    /// Whatever came before, it names nothing there is, so that it changes nothing and is answered with nothing that counts.
    pub(super) const fn names_nothing(self) -> bool {
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
    Both,
    /// This side alone.
    Ours,
    /// The peer alone.
    Peers,
    /// Neither.
    Neither,
}

impl Declared {
    /// This side handles cancels.
    pub(super) const fn ours(self) -> bool {
        matches!(self, Self::Both | Self::Ours)
    }

    /// The peer handles cancels.
    pub(super) const fn peers(self) -> bool {
        matches!(self, Self::Both | Self::Peers)
    }
}

impl MachineState {
    /// Everything that can happen now.
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
            inputs.push(Input::Agreed(Declared::Both));
            if self.session.dialect().rules().gate == CapabilityGate::Declared {
                let less = [Declared::Ours, Declared::Peers, Declared::Neither];
                inputs.extend(less.map(Input::Agreed));
            }
        }
        inputs.extend([Input::CancelNothing, Input::CancelByStranger]);
        // A call of this side is the connection's: whoever serves that may end it.
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
