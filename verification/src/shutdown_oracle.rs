//! How a connection ends, and by when: what began it, the graces that are written down for it, and the walk to the end.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::time::{Duration, Instant};

use rescind_core::{DisconnectPolicy, Limits, Session};

use super::input::Input;
use super::invariants::{Broken, holds, holds_and_counts};
use super::number::AsItIs;
use super::oracle::Served;
use super::state::MachineState;

/// When what ends all requests began. It is no part of a state: what is left of each grace is.
#[derive(Clone, Debug, Default)]
pub(super) struct Begun {
    lost: Option<Loss>,
    pub(super) half_closed: Option<Instant>,
    /// When a shutdown's drain is over.
    pub(super) shutdown: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Loss {
    at: Instant,
    how: DisconnectPolicy,
    /// The critical sections that were entered then, and those that were entered since: each holds the end off.
    shields: u32,
}

impl Begun {
    pub(super) fn lose(&mut self, at: Instant, how: DisconnectPolicy, shields: usize) {
        let shields = u32::try_from(shields).unwrap_or(u32::MAX);
        self.lost.get_or_insert(Loss { at, how, shields });
    }

    pub(super) fn shielded(&mut self) {
        if let Some(loss) = &mut self.lost {
            loss.shields += 1;
        }
    }

    /// By when everything is gone of a connection that is lost; `None`: when its handlers end.
    fn gone_by(&self, limits: &Limits) -> Option<Instant> {
        let loss = self.lost.as_ref()?;
        let until = match loss.how {
            DisconnectPolicy::CancelNow => Some(loss.at),
            DisconnectPolicy::Detach => Some(loss.at + limits.detach_grace),
            DisconnectPolicy::Keep => None,
        };
        let held = (limits.max_shield_time + limits.cancel_grace) * loss.shields;
        let by_loss = until.map(|until| until + limits.cancel_grace + held);
        // No critical section holds past a drain.
        let by_shutdown = self.shutdown.map(|drained| drained.max(loss.at) + limits.cancel_grace);
        by_loss.into_iter().chain(by_shutdown).min()
    }

    /// By when a connection is closed that is not lost.
    fn closed_by(&self, session: &Session) -> Option<Instant> {
        let limits = session.limits();
        let most = session.dialect().rules().half_close_at_most.unwrap_or(Duration::MAX);
        let half_closed = self.half_closed.map(|at| at + limits.half_close_grace.min(most));
        self.shutdown.or(half_closed).map(|until| until + limits.cancel_grace)
    }
}

/// States of which it was seen that they end, each with how long that takes.
#[derive(Debug, Default)]
pub(super) struct Ends(HashMap<u64, Duration, BuildHasherDefault<AsItIs>>);

/// The two ends of a connection that are walked to.
#[derive(Debug, Default)]
pub(super) struct Known {
    gone: Ends,
    closed: Ends,
}

impl MachineState {
    /// I3 and L3: from here, a lost connection ends, whatever its handlers do, in its time, and leaves nothing; and one that is being
    /// closed is closed in its.
    ///
    /// # Errors
    /// Something is left, or it takes too long.
    pub fn ends(self) -> Result<(), Broken> {
        let seen = self.inspect();
        let (_, here) = self.numbers(&seen);
        self.check_end(here, &mut Known::default())
    }

    /// The same, with what was seen already: `here` is its number, of machine and account.
    ///
    /// # Errors
    /// Something is left, or it takes too long.
    pub(super) fn check_end(mut self, mut here: u64, known: &mut Known) -> Result<(), Broken> {
        if !self.ledger.lost {
            if !self.ledger.closed && self.begun.closed_by(&self.session).is_some() {
                self.clone().check_close(here, &mut known.closed)?;
            }
            let seen = self.apply(Input::Lost(DisconnectPolicy::CancelNow), &self.inspect())?;
            // What was done before has no part in how it ends.
            here = self.numbers(&seen).1;
        }
        let (from, by) = (self.now, self.begun.gone_by(self.session.limits()));
        let takes = self.walk_to(here, &mut known.gone, Self::is_gone)?;
        let limit = by.map(|by| by.saturating_duration_since(from));
        holds_and_counts(limit.is_some(), limit.is_none_or(|limit| takes <= limit), "L3", || {
            format!("the lost connection is gone after {takes:?}, and {limit:?} was left of its graces")
        })
    }

    fn check_close(self, here: u64, known: &mut Ends) -> Result<(), Broken> {
        let (from, by) = (self.now, self.begun.closed_by(&self.session));
        let takes = self.walk_to(here, known, |world| Ok(world.ledger.closed))?;
        let limit = by.map(|by| by.saturating_duration_since(from));
        holds(limit.is_none_or(|limit| takes <= limit), "L3", || {
            format!("the connection is closed after {takes:?}, and {limit:?} was left of its graces")
        })
    }

    /// Goes on until `is_there`, and says how long it took. Handlers end when they are told to and not before, unless nothing else
    /// happens any more.
    fn walk_to(
        mut self,
        mut here: u64,
        known: &mut Ends,
        is_there: impl Fn(&Self) -> Result<bool, Broken>,
    ) -> Result<Duration, Broken> {
        let from = self.now;
        let mut seen = self.inspect();
        let mut walked: Vec<(u64, Instant)> = Vec::new();
        let ended = loop {
            if let Some(left) = known.0.get(&here) {
                break self.now + *left;
            }
            let again = walked.iter().any(|(walked, _)| *walked == here);
            holds(!again, "L3", || format!("the connection goes in circles: {seen:?}"))?;
            walked.push((here, self.now));
            if is_there(&self)? {
                break self.now;
            }
            let next = self.next_of_end();
            let Some(next) = next else {
                return Err(Broken {
                    invariant: "L3",
                    what: format!("the connection does not end: {seen:?}"),
                });
            };
            seen = self.apply(next, &seen)?;
            here = self.numbers(&seen).1;
        };
        known.0.extend(walked.into_iter().map(|(walked, at)| (walked, ended - at)));
        Ok(ended - from)
    }

    fn next_of_end(&self) -> Option<Input> {
        let over = |served: &Served| !served.ended && (served.aborted || served.offered);
        let first = |is: &dyn Fn(&Served) -> bool| {
            self.ledger.served.iter().find(|(_, served)| is(served)).map(|(key, _)| Input::Ended(*key))
        };
        if self.session.has_work() {
            return Some(Input::Advance);
        }
        let due = self.session.next_timeout().map(|_| Input::Time);
        // On a connection that is kept handlers end by themselves.
        let runs = |served: &Served| !served.ended && served.started;
        first(&over).or(due).or_else(|| first(&runs))
    }

    /// Whether nothing is left of a lost connection. What waits to be due last may not be all there is.
    fn is_gone(&self) -> Result<bool, Broken> {
        if self.next_of_end().is_some() {
            return Ok(false);
        }
        let seen = self.inspect();
        let made = self.ledger.made.len();
        let unsettled = self.ledger.made.values().filter(|made| !made.settled).count();
        holds_and_counts(made > 0, unsettled == 0, "I13", || {
            format!("{unsettled} callers wait for ever: {:?}", self.ledger.made)
        })?;
        holds(self.session.is_finished(), "L3", || format!("the lost connection does not end: {seen:?}"))?;
        let foreign = &self.ledger.foreign;
        holds_and_counts(false, foreign.is_empty(), "I5", || {
            format!("children elsewhere were not told: {foreign:?}")
        })?;
        let left = seen.timers.len() + seen.queue.len() + seen.exchanges.len() + seen.cancel_keys.len();
        let left = left + seen.cancels.len() + seen.foreign.len() + seen.permits.0 + seen.permits.1;
        holds(left == 0, "I3", || format!("the ended connection has left: {seen:?}"))?;
        Ok(true)
    }
}
