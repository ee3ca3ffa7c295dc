//! All that can be done to a session: by the peer, the user, the wire and the clock.

use rescind_core::inspect::{Inspection, TimerView};
use rescind_core::{HandlerEnd, InboundKey, Lost};

use super::calls::CallInput;
use super::ledger::Served;
use super::world::{CALLS, CHILD, GENERATIONS, IDS, World};

/// One thing that happens. Requests and calls are named by their keys, which are the same in each replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Input {
    /// The peer asks, under one of the ids.
    Request(u8),
    /// The peer begins the handshake, under an id of its own.
    Hello,
    /// The handshake is over: both sides cancel.
    Agreed,
    /// The peer cancels this id.
    Cancel(u8),
    /// The peer cancels the handshake.
    CancelHello,
    /// Somebody else cancels the first of the ids.
    CancelByStranger,
    /// The peer cancels nothing.
    CancelNothing,
    /// A handler says how it ends.
    Offer(InboundKey, HandlerEnd),
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
    Lost(Lost),
    /// This side shuts down.
    Shutdown,
    /// Time passes until something is due.
    Time,
    /// So much time passes that no early cancel counts any more.
    Wait,
}

impl World {
    /// Everything that can happen now.
    #[must_use]
    pub fn inputs(&self, seen: &Inspection) -> Vec<Input> {
        let mut inputs = Vec::with_capacity(40);
        if !self.ledger.lost {
            self.peers_inputs(&mut inputs);
            inputs.extend([Input::Lost(Lost::CancelNow), Input::Lost(Lost::Detach), Input::HalfClose]);
        }
        inputs.push(Input::Shutdown);
        if self.session.next_timeout().is_some() {
            inputs.push(Input::Time);
        }
        let longest = self.session.limits().parked_time;
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
        for id in 0..IDS {
            if self.done.requests.get(usize::from(id)).is_some_and(|asked| *asked < GENERATIONS) {
                inputs.push(Input::Request(id));
            }
            inputs.push(Input::Cancel(id));
        }
        if self.done.hello {
            inputs.push(Input::CancelHello);
        } else if self.session.dialect().rules().handshake.is_some() {
            inputs.push(Input::Hello);
        }
        if !self.done.agreed && self.agreed_needed {
            inputs.push(Input::Agreed);
        }
        inputs.extend([Input::CancelNothing, Input::CancelByStranger]);
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
            let ends = [HandlerEnd::Value, HandlerEnd::Error, HandlerEnd::Stopped, HandlerEnd::Panicked];
            inputs.extend(ends.map(|end| Input::Offer(key, end)));
            if self.done.calls < CALLS {
                inputs.push(Input::Call(CallInput::Make(Some(key))));
            }
            if !self.ledger.foreign.contains_key(&CHILD) {
                inputs.push(Input::Call(CallInput::Adopt(key)));
            }
        }
        if served.shields > 0 {
            inputs.push(Input::Unshield(key));
        } else {
            inputs.push(Input::Shield(key));
        }
    }
}
