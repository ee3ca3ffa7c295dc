//! How far one input may reach: a cancel to its request alone, a lost connection to the end of everything.

use std::collections::HashSet;

use rescind_core::dialect::EarlyCancel;
use rescind_core::inspect::{Inspection, RequestState, Standing};
use rescind_core::{Lost, Output, RequestId};

use super::input::Input;
use super::invariants::{Broken, holds};
use super::ledger::Served;
use super::world::{World, number_of};

impl World {
    /// A cancel reaches the request it names and its descendants, at once, and nothing else.
    pub(super) fn check_cancel(
        &self,
        id: &RequestId,
        before: &Inspection,
        after: &Inspection,
        outputs: &[Output],
    ) -> Result<(), Broken> {
        let target =
            before.requests.iter().find(|view| view.id.1 == *id && view.state != RequestState::Ended);
        for output in outputs {
            let reached = match output {
                Output::Signal { key, .. } | Output::Silence { key, .. } | Output::Start(key) => Some(*key),
                Output::Reply(reply) => Some(reply.key),
                Output::SendCancel { call, .. } | Output::TakeBack(call) => {
                    before.calls.iter().find(|view| view.key == *call).and_then(|view| view.parent)
                }
                _ => continue,
            };
            let own = reached.is_some() && reached == target.map(|view| view.key);
            holds(own, "I4", || format!("a cancel of {id:?} brought {output:?}"))?;
        }
        let Some(target) = target else {
            let mut unknown = after.clone();
            let may_wait = match self.session.dialect().rules().early {
                EarlyCancel::Never => false,
                EarlyCancel::WhereUnordered => !self.ordered,
                EarlyCancel::Always => true,
            };
            if may_wait {
                unknown.parked.clone_from(&before.parked);
            }
            // What is remembered may have become too old meanwhile; nothing comes to it.
            let only_ages = after.remembered.iter().all(|entry| before.remembered.contains(entry));
            unknown.remembered.clone_from(&before.remembered);
            return holds(only_ages && unknown == *before, "I8", || {
                format!("a cancel of {id:?}, which is unknown, left something")
            });
        };
        let key = target.key;
        let now = after.requests.iter().find(|view| view.key == key);
        let spared = self.ledger.served.get(&key).is_some_and(|served| served.is_handshake);
        if target.cause.is_some() || spared || !self.hears_cancels() {
            let same = now.map(|now| (now.state, now.cause)) == Some((target.state, target.cause));
            return holds(same, "I7", || {
                format!("a cancel that counts for nothing moved {key:?}: {target:?}, {now:?}")
            });
        }
        let signalled =
            outputs.iter().any(|output| matches!(output, Output::Signal { key: to, .. } if *to == key));
        match target.state {
            RequestState::Running if target.shields == 0 => {
                holds(signalled, "L1", || format!("{key:?} was cancelled and not signalled"))
            }
            RequestState::Queued => {
                let entered = outputs.iter().any(|output| matches!(output, Output::Start(to) if *to == key));
                holds(now.is_none() && !entered, "L1", || {
                    format!("{key:?} was cancelled in the queue and is there")
                })
            }
            _ => {
                holds(!signalled, "I6", || format!("{key:?} was signalled, though it is decided or shielded"))
            }
        }
    }

    /// I8: a request that comes while all is open and is stopped without a refusal had an early cancel, and one that still counted.
    pub(super) fn check_early(
        &self,
        id: &RequestId,
        before: &Inspection,
        outputs: &[Output],
    ) -> Result<(), Broken> {
        let refused = outputs.iter().any(|output| matches!(output, Output::Refuse { .. }));
        if refused || before.standing != Standing::Open {
            return Ok(());
        }
        let longest = self.session.limits().parked_time;
        let counts = before.parked.iter().any(|(_, parked, age)| parked == id && *age < longest);
        holds(counts, "I8", || format!("{id:?} was stopped by a cancel that is no longer there"))
    }

    /// I3 and L3: from here, a lost connection ends, whatever its handlers do, and leaves nothing. `known` are states of which that was
    /// seen.
    ///
    /// # Errors
    /// Something is left.
    pub fn check_end(mut self, known: &mut HashSet<u64>) -> Result<(), Broken> {
        let mut seen = self.inspect();
        if !self.ledger.lost {
            seen = self.apply(Input::Lost(Lost::CancelNow), &seen)?;
        }
        // Only what was walked to a good end is known; a walk that comes back to itself never ends.
        let mut walked = HashSet::new();
        loop {
            // What was done before has no part in how it ends.
            let here = number_of(&(&seen, &self.ledger));
            if known.contains(&here) {
                known.extend(walked);
                return Ok(());
            }
            holds(walked.insert(here), "L3", || format!("the lost connection goes in circles: {seen:?}"))?;
            let over = |served: &Served| !served.ended && (served.aborted || served.offered);
            let ended = self.ledger.served.iter().find(|(_, served)| over(served));
            let next = match ended.map(|(key, _)| *key) {
                Some(key) => Input::Ended(key),
                None if self.session.next_timeout().is_some() => Input::Time,
                None => break,
            };
            seen = self.apply(next, &seen)?;
        }
        let unsettled = self.ledger.made.values().filter(|made| !made.settled).count();
        holds(unsettled == 0, "I13", || {
            format!("{unsettled} callers wait for ever: {:?}", self.ledger.made)
        })?;
        holds(self.session.is_finished(), "L3", || format!("the lost connection does not end: {seen:?}"))?;
        let foreign = &self.ledger.foreign;
        holds(foreign.is_empty(), "I5", || format!("children elsewhere were not told: {foreign:?}"))?;
        let left = seen.timers.len() + seen.queue.len() + seen.exchanges.len() + seen.cancel_keys.len();
        let left = left + seen.cancels.len() + seen.foreign.len() + seen.permits.0 + seen.permits.1;
        holds(left == 0, "I3", || format!("the ended connection has left: {seen:?}"))?;
        known.extend(walked);
        Ok(())
    }
}

/// A request that is not accepted is refused once, or dropped where the dialect has no words.
pub(super) fn check_refusal(outputs: &[Output]) -> Result<(), Broken> {
    let refusals = outputs.iter().filter(|output| {
        matches!(output, Output::Refuse { .. } | Output::RefuseCancelled { .. } | Output::Finish { .. })
    });
    let refusals = refusals.count();
    holds(refusals <= 1, "I1", || format!("one request was refused {refusals} times: {outputs:?}"))
}
