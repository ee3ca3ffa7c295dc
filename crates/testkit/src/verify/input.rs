//! All that can be done to a session: by the peer, the user, the wire and the clock.

use rescind_core::inspect::Inspection;
use rescind_core::{AfterCancel, AnswerKind, HandlerEnd, InboundKey, Lost, OutboundKey};

use super::ledger::Served;
use super::world::{CALLS, CANCELS, GENERATIONS, IDS, World};

/// One thing that happens. Requests and calls are named by their keys, which are the same in each replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// What was said of a request that is gone comes once more.
    Stale(InboundKey),
    /// The stream a request came on is lost.
    StreamLost(InboundKey),
    /// And is taken up again.
    StreamBack(InboundKey),
    /// This side calls, perhaps for a request it serves.
    Call(Option<InboundKey>),
    /// A handler calls on another connection.
    Adopt(InboundKey),
    /// That call ends by itself.
    Release(u64),
    /// A call goes on without its parent.
    Detach(OutboundKey),
    /// A call's frame is written.
    Written(OutboundKey),
    /// Its caller cancels it.
    CancelCall(OutboundKey, AfterCancel),
    /// Its cancel is written.
    CancelWritten(OutboundKey),
    /// The peer answers it.
    Answer(OutboundKey, AnswerKind),
    /// The peer acknowledges its cancel.
    Ack(OutboundKey, bool),
    /// It fails on its way.
    CallFailed(OutboundKey),
    /// An answer comes that nobody waits for.
    LateAnswer,
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
        inputs.extend([Input::Shutdown, Input::Time]);
        if !self.done.waited && !seen.parked.is_empty() {
            inputs.push(Input::Wait);
        }
        inputs.extend(self.gone.map(Input::Stale));
        if self.done.calls < CALLS {
            inputs.push(Input::Call(None));
        }
        for (key, served) in &self.ledger.served {
            self.handlers_inputs(*key, served, &mut inputs);
        }
        inputs.extend(self.ledger.foreign.keys().map(|child| Input::Release(*child)));
        for (key, made) in &self.ledger.made {
            if !made.written {
                inputs.push(Input::Written(*key));
            }
            if made.parent.is_some() {
                inputs.push(Input::Detach(*key));
            }
            inputs.push(Input::CancelCall(*key, AfterCancel::WaitForPeer));
            inputs.push(Input::CancelCall(*key, AfterCancel::ReturnNow));
            if made.cancel.is_some_and(|(_, written)| !written) {
                inputs.push(Input::CancelWritten(*key));
            }
            if self.ledger.lost {
                continue;
            }
            inputs.push(Input::Answer(*key, AnswerKind::Value));
            inputs.push(Input::Answer(*key, AnswerKind::Cancelled));
            if made.cancel.is_some_and(|(_, written)| written) {
                inputs.extend([Input::Ack(*key, true), Input::Ack(*key, false)]);
            }
            if !self.ordered {
                inputs.push(Input::CallFailed(*key));
            }
        }
        inputs
    }

    fn peers_inputs(&self, inputs: &mut Vec<Input>) {
        for id in 0..IDS {
            if self.done.requests.get(usize::from(id)).is_some_and(|asked| *asked < GENERATIONS) {
                inputs.push(Input::Request(id));
            }
            if self.done.cancels.get(usize::from(id)).is_some_and(|cancels| *cancels < CANCELS) {
                inputs.push(Input::Cancel(id));
            }
        }
        match self.done.hello {
            0 if self.session.dialect().rules().handshake.is_some() => inputs.push(Input::Hello),
            1 => inputs.push(Input::CancelHello),
            _ => {}
        }
        if !self.done.agreed && self.agreed_needed {
            inputs.push(Input::Agreed);
        }
        if !self.done.nothing {
            inputs.push(Input::CancelNothing);
        }
        if !self.done.late && self.done.calls > 0 {
            inputs.push(Input::LateAnswer);
        }
    }

    fn handlers_inputs(&self, key: InboundKey, served: &Served, inputs: &mut Vec<Input>) {
        inputs.push(Input::LocalCancel(key));
        if !self.ordered && self.done.streams < 2 {
            inputs.extend([Input::StreamLost(key), Input::StreamBack(key)]);
        }
        if !served.started || served.ended {
            return;
        }
        inputs.push(Input::Ended(key));
        if !served.offered {
            let ends = [HandlerEnd::Value, HandlerEnd::Error, HandlerEnd::Stopped, HandlerEnd::Panicked];
            inputs.extend(ends.map(|end| Input::Offer(key, end)));
            if self.done.calls < CALLS {
                inputs.push(Input::Call(Some(key)));
            }
            if !self.done.adopted {
                inputs.push(Input::Adopt(key));
            }
        }
        if served.shields > 0 {
            inputs.push(Input::Unshield(key));
        } else if self.done.shields < 2 {
            inputs.push(Input::Shield(key));
        }
    }
}
