//! A node serves a message, forwards it once, or refuses it.

use super::{Answer, Client, Forwarding, Life, Message, OWNER, Place, State, Step, Which, Work};
use crate::bus::Bug;
use crate::invariants::{Broken, holds};

impl Forwarding {
    pub(super) fn take(self, state: &mut State, step: Step) -> Result<&'static str, Broken> {
        match step {
            Step::Send(which, entry) => {
                let place = Place::Coming { to: entry, forwarded: false };
                *state.message_mut(which) = Message { place, entry, hops: 0 };
                Ok("sent")
            }
            Step::Arrives(which) => self.arrives(state, which),
            Step::Returns(which) => {
                if let Place::Returning(answer) = state.message(which).place {
                    state.message_mut(which).place = Place::Answered(answer);
                }
                Ok("answer returns")
            }
            Step::WorkEnds => {
                state.work = Work::Ended;
                if state.request.place == Place::AtOwner {
                    state.request.place = Place::Returning(Answer::Accepted);
                }
                Ok("work ends")
            }
            Step::LossNoticed => {
                state.request.place = Place::Returning(Answer::Lost);
                Ok("loss noticed")
            }
            Step::ClientLeaves => {
                state.client = Client::Leaves;
                Ok("client leaves")
            }
            Step::StreamCloses => {
                state.client = Client::Left;
                if state.work != Work::Runs {
                    return Ok("stream closes after the work");
                }
                state.work = Work::Signalled;
                Ok("stream closes")
            }
            Step::EarlyCancelExpires => {
                state.early = false;
                Ok("early cancel expires")
            }
            Step::Dies(_) | Step::Restarts(_) | Step::Cut(_) | Step::NewView(..) => Ok(state.suffer(step)),
        }
    }

    fn arrives(self, state: &mut State, which: Which) -> Result<&'static str, Broken> {
        let Place::Coming { to, forwarded } = state.message(which).place else { return Ok("") };
        let is_owner = to == OWNER && state.life(to) == Life::First;
        match state.life(to) {
            // The connection is refused, so the entry node knows at once. The client of a dead entry node knows it
            // from its balancer.
            Life::Dead if forwarded => {
                state.message_mut(which).place = Place::Returning(Answer::Lost);
                Ok("owner's address dead")
            }
            Life::Dead => {
                state.message_mut(which).place = Place::Answered(Answer::Lost);
                Ok("entry node dead")
            }
            Life::First | Life::Second
                if is_owner && !(self.has(Bug::OwnerAsksItsView) && state.view(to) != Some(to)) =>
            {
                serve(state, which, to)
            }
            Life::Second if to == OWNER && self.has(Bug::FormerLifeServed) => serve(state, which, to),
            Life::Second if to == OWNER => {
                refuse(state, which, to, "refused: the session is of a former life")
            }
            Life::First | Life::Second if forwarded && self.has(Bug::ForwardedIsTrusted) => {
                serve(state, which, to)
            }
            Life::First | Life::Second if forwarded && !self.has(Bug::ForwardTwice) => {
                refuse(state, which, to, "refused: forwarded to a node that is not the owner")
            }
            Life::First | Life::Second => self.forward(state, which, to),
        }
    }

    /// Asks this node's view where the owner is.
    fn forward(self, state: &mut State, which: Which, from: u8) -> Result<&'static str, Broken> {
        if which == Which::Cancel && self.has(Bug::CancelAcceptedAnywhere) {
            state.accepted = true;
            state.cancel.place = Place::Returning(Answer::Accepted);
            return Ok("cancel accepted anywhere");
        }
        match state.view(from) {
            None => refuse(state, which, from, "refused: no address"),
            Some(to) if to == from => refuse(state, which, from, "refused: the address is the node's own"),
            Some(to) => {
                let message = state.message_mut(which);
                message.hops += 1;
                message.place = Place::Coming { to, forwarded: true };
                holds(message.hops == 1, "B9", || format!("it is forwarded again: {message:?}"))?;
                Ok("forwarded")
            }
        }
    }
}

/// A node serves a message.
fn serve(state: &mut State, which: Which, node: u8) -> Result<&'static str, Broken> {
    let life = state.life(node);
    holds(node == OWNER && life == Life::First, "B10", || {
        format!("node {node} in its life {life:?} serves a session that it did not make")
    })?;
    match which {
        Which::Request => {
            holds(state.work == Work::NotYet, "B10", || "the request is served twice".to_owned())?;
            state.request.place = Place::AtOwner;
            let is_cancelled = std::mem::take(&mut state.early);
            state.work = if is_cancelled { Work::Signalled } else { Work::Runs };
            Ok(match state.request.hops {
                _ if is_cancelled => "request served as cancelled",
                0 => "request served at its entry",
                _ => "request served where it was forwarded",
            })
        }
        Which::Cancel => {
            state.cancel.place = Place::Returning(Answer::Accepted);
            state.accepted = true;
            Ok(match state.work {
                Work::NotYet => {
                    state.early = true;
                    "cancel accepted before the request"
                }
                Work::Runs => {
                    state.work = Work::Signalled;
                    "cancel accepted in time"
                }
                Work::Signalled | Work::Ended => "cancel accepted after the end",
            })
        }
    }
}

/// A node answers 404.
fn refuse(state: &mut State, which: Which, node: u8, event: &'static str) -> Result<&'static str, Broken> {
    let is_owner = node == OWNER && state.life(node) == Life::First;
    holds(!is_owner, "B10", || "the owner refuses its own session".to_owned())?;
    state.message_mut(which).place = Place::Returning(Answer::NotFound);
    Ok(event)
}
