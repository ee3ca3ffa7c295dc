//! A canceller: a tombstone, then a doorbell, then the reply.

use super::{Cancels, FOREVER, Key, Phase, SLOW, State, Step, Tombstone};
use crate::bus::Bug;
use crate::bus::search::Force;
use crate::invariants::{Broken, holds};

/// One that cancels keys, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Canceller {
    /// The cancels that it may still begin.
    left: u8,
    pub(super) stage: Stage,
    key: Key,
    /// The ticks since its cancel began.
    pub(super) took: u8,
}

/// How far a cancel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// There is none.
    Idle,
    /// The first command is sent, and has no effect yet.
    Begun,
    /// The first command had its effect.
    HalfDone,
    /// Both commands had their effect, and the last reply is on its way.
    Done,
}

impl Canceller {
    pub(super) const fn new(left: u8) -> Self {
        Self { left, stage: Stage::Idle, key: 0, took: 0 }
    }

    /// The cancel has returned.
    fn rest(&mut self) {
        *self = Self::new(self.left);
    }
}

impl Cancels {
    pub(super) fn canceller_steps(&self, state: &State, steps: &mut Vec<(Step, Force)>) {
        for (at, canceller) in state.cancellers.iter().enumerate() {
            let Some(canceller) = canceller else { continue };
            let away = state.engine_away;
            match canceller.stage {
                Stage::Idle => {
                    let exists = |key: &Key| {
                        state.watches.iter().flatten().any(|w| w.of.key == *key && w.phase != Phase::Absent)
                    };
                    if canceller.left > 0 {
                        steps.extend(
                            (0..)
                                .take(super::KEYS)
                                .filter(exists)
                                .map(|key| (Step::Cancel(at, key), Force::Free)),
                        );
                    }
                }
                Stage::Begun | Stage::HalfDone if !away => {
                    let is_tombstone = (canceller.stage == Stage::Begun) != self.has(Bug::DoorbellFirst);
                    let step = if is_tombstone { Step::TombstoneSet(at) } else { Step::DoorbellRung(at) };
                    steps.push((step, Force::Owed));
                }
                // The engine is away: the command fails, at the latest by its timeout.
                Stage::Begun | Stage::HalfDone => steps.push((Step::CommandFails(at), Force::Owed)),
                Stage::Done => steps.push((Step::CancelReturns(at), Force::Owed)),
            }
            // Without the last reply the canceller does not know whether its cancel was taken.
            let may_fail = if away { canceller.stage == Stage::Done } else { state.faults.failures > 0 };
            if canceller.stage != Stage::Idle && may_fail {
                steps.push((Step::CommandFails(at), Force::Free));
            }
        }
    }

    pub(super) fn canceller_step(&self, state: &mut State, step: Step) -> Result<&'static str, Broken> {
        let (Step::Cancel(at, _)
        | Step::TombstoneSet(at)
        | Step::DoorbellRung(at)
        | Step::CancelReturns(at)
        | Step::CommandFails(at)) = step
        else {
            return Ok("");
        };
        let Some(Some(mut canceller)) = state.cancellers.get(at).copied() else { return Ok("") };
        let key = canceller.key;
        let event = match step {
            Step::Cancel(_, key) => {
                canceller = Canceller { left: canceller.left - 1, stage: Stage::Begun, key, took: 0 };
                "cancel begins"
            }
            Step::TombstoneSet(_) => {
                canceller.next();
                self.set_tombstone(state, key)
            }
            Step::DoorbellRung(_) => {
                canceller.next();
                self.ring(state, key)
            }
            Step::CommandFails(_) if self.has(Bug::SilentSuccess) => acknowledge(state, &mut canceller)?,
            Step::CommandFails(_) => {
                canceller.rest();
                if state.engine_away {
                    "cancel failed: engine away"
                } else {
                    state.faults.failures -= 1;
                    "cancel failed"
                }
            }
            // The tombstone may be gone before the doorbell arrives: only the canceller knows how long it took.
            _ if canceller.took > SLOW && !self.has(Bug::SlowCancelAcknowledged) => {
                canceller.rest();
                "cancel refused: too slow"
            }
            _ => acknowledge(state, &mut canceller)?,
        };
        if let Some(place) = state.cancellers.get_mut(at) {
            *place = Some(canceller);
        }
        Ok(event)
    }

    fn set_tombstone(&self, state: &mut State, key: Key) -> &'static str {
        let Some(place) = state.tombstones.get_mut(self.name(key)) else { return "" };
        if self.has(Bug::NoTombstone) {
            return "no tombstone set";
        }
        let before = place.replace(Tombstone { of: key, left: self.time_to_live() });
        if before.is_some() { "tombstone refreshed" } else { "tombstone set" }
    }

    fn ring(&self, state: &mut State, key: Key) -> &'static str {
        let mut event = "doorbell rung without subscriber";
        for watch in state.watches.iter_mut().flatten() {
            if watch.subscribed && self.name(watch.of.key) == self.name(key) {
                if let Some(bells) = watch.bells.get_mut(usize::from(key)) {
                    *bells += 1;
                }
                event = "doorbell rung with subscriber";
            }
        }
        event
    }
}

impl Canceller {
    /// A command had its effect.
    fn next(&mut self) {
        self.stage = match self.stage {
            Stage::Begun => Stage::HalfDone,
            Stage::HalfDone => Stage::Done,
            Stage::Idle | Stage::Done => self.stage,
        };
    }
}

/// The cancel returns success.
fn acknowledge(state: &mut State, canceller: &mut Canceller) -> Result<&'static str, Broken> {
    holds(canceller.stage == Stage::Done, "B8", || {
        format!("a cancel returned success, and the engine has not taken it: {canceller:?}")
    })?;
    let mut event = "cancel acknowledged after the end";
    for watch in state.watches.iter_mut().flatten().filter(|watch| watch.of.key == canceller.key) {
        match watch.phase {
            Phase::Ended | Phase::Absent => continue,
            Phase::Waiting => event = "cancel acknowledged before the watch",
            Phase::Subscribing | Phase::Looking | Phase::LookReply(_) | Phase::Watching | Phase::Away => {
                event = "cancel acknowledged in time";
            }
        }
        watch.acknowledged = true;
    }
    canceller.rest();
    Ok(event)
}

/// Whether a tombstone expires at some time.
pub(super) fn expires(tombstone: Tombstone) -> bool {
    tombstone.left != FOREVER
}
