//! How far one input may reach: a cancel to its request alone, a lost connection to the end of everything.

use rescind_core::dialect::EarlyCancel;
use rescind_core::inspect::{Inspection, RequestState, RequestView};
use rescind_core::{CallNumber, Lost, Output, RequestId};

use super::input::Input;
use super::invariants::{Broken, holds};
use super::ledger::{Kind, Served};
use super::number::Numbers;
use super::world::{IDS, World};

impl World {
    /// A cancel reaches the request it names and its descendants, at once, and nothing else.
    pub(super) fn check_cancel(
        &self,
        id: &RequestId,
        before: &Inspection,
        after: &Inspection,
        outputs: &[Output],
    ) -> Result<(), Broken> {
        if self.is_called_off() {
            return check_called_off(id, before, after, outputs);
        }
        let has = |view: &&RequestView| self.key_of(&view.id.1) == *id && view.state != RequestState::Ended;
        let is_open = |view: &&RequestView| !matches!(view.state, RequestState::Draining(_));
        let mut named = before.requests.iter().filter(has);
        // Of two that have it, the one that drains has left it to the other.
        let target = named.clone().find(is_open).or_else(|| named.next());
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
        let Some(target) = target else { return self.check_unknown(id, before, after) };
        let key = target.key;
        let now = after.requests.iter().find(|view| view.key == key);
        let spared = self.ledger.served.get(&key).is_some_and(|served| served.kind == Kind::Handshake);
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

    /// I8: a cancel that names nothing of its sender leaves nothing, but where it may be early.
    pub(super) fn check_unknown(
        &self,
        id: &RequestId,
        before: &Inspection,
        after: &Inspection,
    ) -> Result<(), Broken> {
        let may_wait = match self.session.dialect().rules().early {
            EarlyCancel::Never => false,
            EarlyCancel::WhereUnordered => !self.ordered,
            EarlyCancel::Always => true,
        };
        let mut unknown = after.clone();
        if may_wait {
            unknown.parked.clone_from(&before.parked);
        }
        // What is remembered may have become too old meanwhile; nothing comes to it.
        let only_ages = after.remembered.iter().all(|entry| before.remembered.contains(entry));
        unknown.remembered.clone_from(&before.remembered);
        holds(only_ages && unknown == *before, "I8", || {
            format!("a cancel of {id:?}, which is unknown, left something")
        })
    }

    /// What a cancel names the request of this id by.
    fn key_of(&self, id: &RequestId) -> RequestId {
        let name = (0..IDS).map(|id| self.name(id)).find(|name| name.id == *id);
        name.map_or_else(|| id.clone(), |name| name.key)
    }

    /// I3 and L3: from here, a lost connection ends, whatever its handlers do, and leaves nothing.
    ///
    /// # Errors
    /// Something is left.
    pub fn ends(self) -> Result<(), Broken> {
        let seen = self.inspect();
        let here = self.number(&seen);
        self.check_end(seen, here, &mut Numbers::default())
    }

    /// The same, with what was seen already: `seen` is the look at it and `here` its number; `known` are states of which it was
    /// seen that they end.
    ///
    /// # Errors
    /// Something is left.
    pub(super) fn check_end(
        mut self,
        mut seen: Inspection,
        mut here: u64,
        known: &mut Numbers,
    ) -> Result<(), Broken> {
        if !self.ledger.lost {
            seen = self.apply(Input::Lost(Lost::CancelNow), &seen)?;
            // What was done before has no part in how it ends.
            here = self.number(&seen);
        }
        // Only what was walked to a good end is known; a walk that comes back to itself never ends.
        let mut walked = Numbers::default();
        loop {
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
            here = self.number(&seen);
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

/// A cancel that names a call of this side ends that, if its dialect lets it, and nothing else (I4).
fn check_called_off(
    id: &RequestId,
    before: &Inspection,
    after: &Inspection,
    outputs: &[Output],
) -> Result<(), Broken> {
    let number = id.as_number().and_then(|number| u64::try_from(number).ok()).map(CallNumber);
    let named = before.calls.iter().find(|view| Some(view.number) == number);
    let others = outputs.iter().find(|output| match output {
        Output::Settle { call, .. } => named.is_none_or(|view| view.key != *call),
        Output::Event(_) | Output::Ack { .. } | Output::Finish { .. } | Output::Close(_) => false,
        _ => true,
    });
    holds(others.is_none(), "I4", || format!("the peer called {id:?} off, and it brought {others:?}"))?;
    let ended = outputs.iter().any(|output| matches!(output, Output::Settle { .. }));
    holds(ended || *before == *after, "I8", || {
        format!("the peer called {id:?} off, which ends nothing, and it left something")
    })
}
