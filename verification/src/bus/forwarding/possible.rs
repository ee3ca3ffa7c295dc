//! The steps that are possible in a state.

use super::{Answer, Client, Forwarding, Life, NODES, OWNER, Place, State, Step, VIEWS, Which, Work};
use crate::bus::Bug;
use crate::bus::search::Force;

impl Forwarding {
    pub(super) fn possible(self, state: &State) -> Vec<(Step, Force)> {
        let mut owed = Vec::new();
        let mut free = Vec::new();
        for which in [Which::Request, Which::Cancel] {
            let message = state.message(which);
            match message.place {
                Place::Unsent => {
                    let may = which == Which::Request || state.request.place != Place::Unsent;
                    let entries = (0..NODES).filter(|node| may && state.life(*node) != Life::Dead);
                    free.extend(entries.map(|entry| Step::Send(which, entry)));
                }
                Place::Coming { .. } => owed.push(Step::Arrives(which)),
                Place::Returning(_) => owed.push(Step::Returns(which)),
                Place::AtOwner if state.life(OWNER) != Life::First => {
                    owed.extend((!self.has(Bug::DeadOwnerAwaited)).then_some(Step::LossNoticed));
                }
                Place::AtOwner | Place::Answered(_) => {}
            }
            let crosses = match message.place {
                Place::Coming { forwarded, .. } => forwarded,
                Place::AtOwner | Place::Returning(Answer::Accepted | Answer::NotFound) => message.hops > 0,
                Place::Unsent | Place::Returning(Answer::Lost) | Place::Answered(_) => false,
            };
            free.extend((crosses && state.mishaps.cuts > 0).then_some(Step::Cut(which)));
        }
        match state.work {
            Work::Runs => free.push(Step::WorkEnds),
            // A handler ends in the end, once it is signalled.
            Work::Signalled => owed.push(Step::WorkEnds),
            Work::NotYet | Work::Ended => {}
        }
        self.client_steps(state, &mut owed, &mut free);
        mishaps(state, &mut free);
        let owed = owed.into_iter().map(|step| (step, Force::Owed));
        owed.chain(free.into_iter().map(|step| (step, Force::Free))).collect()
    }

    fn client_steps(self, state: &State, owed: &mut Vec<Step>, free: &mut Vec<Step>) {
        let place = state.request.place;
        let is_coming = matches!(place, Place::Coming { .. });
        if state.client == Client::Waits && !matches!(place, Place::Unsent | Place::Answered(_)) {
            free.push(Step::ClientLeaves);
        }
        // The request reaches the owner before the close of its own stream.
        let is_passed_on = state.request.entry == OWNER || !self.has(Bug::LeaveNotForwarded);
        if state.client == Client::Leaves && !is_coming && is_passed_on {
            owed.push(Step::StreamCloses);
        }
        // The owner keeps an early cancel longer than its request may be on its way.
        if state.early && !is_coming {
            owed.push(Step::EarlyCancelExpires);
        }
    }
}

/// The faults that can change something: until all has ended, and for views until both messages have passed their
/// entry nodes.
fn mishaps(state: &State, free: &mut Vec<Step>) {
    let places = [state.request.place, state.cancel.place];
    let is_sent = |place: &Place| !matches!(place, Place::Unsent | Place::Coming { forwarded: false, .. });
    let is_answered = |place: &Place| matches!(place, Place::Answered(_));
    if places.iter().all(is_answered) && !matches!(state.work, Work::Runs | Work::Signalled) {
        return;
    }
    let is_routed = places.iter().all(is_sent);
    for node in 0..NODES {
        match state.life(node) {
            Life::Dead => free.push(Step::Restarts(node)),
            Life::First | Life::Second if state.mishaps.deaths > 0 => free.push(Step::Dies(node)),
            Life::First | Life::Second => {}
        }
        if state.mishaps.new_views > 0 && !is_routed {
            let others = VIEWS.into_iter().filter(|view| *view != state.view(node));
            free.extend(others.map(|view| Step::NewView(node, view)));
        }
    }
}
