//! How and when a connection ends: what began the end, the graces defined for it, and the walk to the end.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::time::{Duration, Instant};

use rescind_core::{DisconnectPolicy, Limits, Session};

use super::input::Input;
use super::invariants::{Broken, holds, holds_and_counts};
use super::oracle::Served;
use super::state::{IdentityHasher, MachineState};

/// The start times of the events that end all requests. They are not part of a state: the rest of each grace is.
#[derive(Clone, Debug, Default)]
pub(super) struct Begun {
    lost: Option<Loss>,
    pub(super) half_closed: Option<Instant>,
    /// When the drain of a shutdown ends.
    shutdown: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Loss {
    at: Instant,
    how: DisconnectPolicy,
    /// The number of critical sections that were entered then or later. Each of them delays the end.
    shields: u32,
}

impl Begun {
    pub(super) fn lose(&mut self, at: Instant, how: DisconnectPolicy, shields: usize) {
        let shields = u32::try_from(shields).unwrap_or(u32::MAX);
        self.lost.get_or_insert(Loss { at, how, shields });
    }

    /// Of two drains the earlier end counts.
    pub(super) fn shut_down(&mut self, drained: Instant) {
        self.shutdown = Some(self.shutdown.map_or(drained, |earlier| earlier.min(drained)));
    }

    pub(super) fn shielded(&mut self) {
        if let Some(loss) = &mut self.lost {
            loss.shields += 1;
        }
    }

    /// The time at which nothing of a lost connection may be left. `None`: when its handlers end. Only a shutdown ends the
    /// handlers of tasks.
    fn gone_by(&self, limits: &Limits, has_tasks: bool) -> Option<Instant> {
        let loss = self.lost.as_ref()?;
        let until = match loss.how {
            DisconnectPolicy::CancelNow => Some(loss.at),
            DisconnectPolicy::Detach => Some(loss.at + limits.detach_grace),
            DisconnectPolicy::Keep => None,
        };
        let until = until.filter(|_| !has_tasks);
        let held = (limits.max_shield_time + limits.cancel_grace) * loss.shields;
        let by_loss = until.map(|until| until + limits.cancel_grace + held);
        // A critical section does not delay the end of a drain.
        let by_shutdown = self.shutdown.map(|drained| drained.max(loss.at) + limits.cancel_grace);
        by_loss.into_iter().chain(by_shutdown).min()
    }

    /// The time at which a connection that is not lost must be closed.
    fn closed_by(&self, session: &Session) -> Option<Instant> {
        let limits = session.limits();
        let most = session.dialect().rules().half_close_at_most.unwrap_or(Duration::MAX);
        let half_closed = self.half_closed.map(|at| at + limits.half_close_grace.min(most));
        self.shutdown.or(half_closed).map(|until| until + limits.cancel_grace)
    }
}

/// States that were seen to end, each with the duration until then.
#[derive(Debug, Default)]
pub(super) struct Ends(HashMap<u64, Duration, BuildHasherDefault<IdentityHasher>>);

/// The ends of both kinds of walk.
#[derive(Debug, Default)]
pub(super) struct Known {
    gone: Ends,
    closed: Ends,
}

impl MachineState {
    /// I3 and L3: from here, a lost connection ends in time, regardless of its handlers, and leaves nothing; a
    /// closing connection is closed in time.
    ///
    /// # Errors
    /// If something is left, or if it takes too long.
    pub fn ends(self) -> Result<(), Broken> {
        let seen = self.inspect();
        let (_, here) = self.numbers(&seen);
        self.check_end(here, &mut Known::default())
    }

    /// The same, for an inspection that already exists. `here`: the hash of machine and ledger.
    ///
    /// # Errors
    /// If something is left, or if it takes too long.
    pub(super) fn check_end(mut self, mut here: u64, known: &mut Known) -> Result<(), Broken> {
        if !self.ledger.lost {
            if !self.ledger.closed && self.begun.closed_by(&self.session).is_some() {
                self.clone().check_close(here, &mut known.closed)?;
            }
            let seen = self.apply(Input::Lost(DisconnectPolicy::CancelNow), &self.inspect())?;
            // The history does not affect how it ends.
            here = self.numbers(&seen).1;
        }
        let has_tasks = self.ledger.served.values().any(|served| served.is_task && !served.ended);
        let (from, by) = (self.now, self.begun.gone_by(self.session.limits(), has_tasks));
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

    /// Continues until `is_there`, and returns the duration. Handlers end when they are aborted or have a result, and
    /// not before, unless nothing else is possible.
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
        // On a kept connection, handlers end voluntarily.
        let runs = |served: &Served| !served.ended && served.started;
        first(&over).or(due).or_else(|| first(&runs))
    }

    /// Whether nothing is left of a lost connection. Something may be left after the last timer.
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
            format!("children on other connections were not cancelled: {foreign:?}")
        })?;
        let permits = seen.permits.0 + seen.permits.1 + seen.permits.2;
        let left = seen.timers.len() + seen.queue.len() + seen.exchanges.len() + seen.cancel_keys.len();
        let left = left + seen.cancels.len() + seen.foreign.len() + permits;
        holds(left == 0, "I3", || format!("the ended connection has left: {seen:?}"))?;
        Ok(true)
    }
}
