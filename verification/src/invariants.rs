//! The conditions that must hold after every step, regardless of what drives the machine: the session is compared
//! with its ledger.
//!
//! Each violation names the invariant.

use std::cell::Cell;
use std::fmt;
use std::ops::AddAssign;

use rescind_core::inspect::{CallState, Inspection, RequestState, RequestView, TimerView};
use rescind_core::{InboundKey, Limits, OutboundKey, Session};

use super::coverage::INVARIANTS;
use super::oracle::{Ledger, Says};

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Its number.
    pub invariant: &'static str,
    /// What was observed.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is broken: {}", self.invariant, self.what)
    }
}

impl std::error::Error for Broken {}

/// Returns an error for the invariant unless the condition is true, and counts it as judged.
///
/// # Errors
/// If the condition is false.
#[inline]
pub fn holds(condition: bool, invariant: &'static str, what: impl FnOnce() -> String) -> Result<(), Broken> {
    holds_and_counts(true, condition, invariant, what)
}

/// The same, but it counts only if the subject of the invariant exists. The condition must be true in any case.
#[inline]
pub(super) fn holds_and_counts(
    is_there: bool,
    condition: bool,
    invariant: &'static str,
    what: impl FnOnce() -> String,
) -> Result<(), Broken> {
    if is_there {
        count(invariant);
    }
    if condition { Ok(()) } else { Err(Broken { invariant, what: what() }) }
}

impl Ledger {
    /// Compares the session with the ledger, after all outputs of a step were taken in.
    ///
    /// # Errors
    /// If an invariant is violated.
    pub fn check(&mut self, session: &Session, seen: &Inspection) -> Result<(), Broken> {
        self.made.retain(|key, made| session.call_number(*key).is_some() || !made.settled);
        for (key, made) in &self.made {
            let known = session.call_number(*key).is_some();
            holds(known, "I13", || format!("{key:?} is forgotten, and its caller waits: {made:?}"))?;
        }
        self.check_residue(seen)?;
        self.check_tasks()?;
        check_children(seen)?;
        for (key, request) in &self.served {
            let is_open = request.started && !request.is_settled();
            let is_settled = request.is_settled();
            let wrong = is_settled && session.may_notify(*key);
            holds_and_counts(is_settled, !wrong, "I2", || format!("{key:?} may write, and is settled"))?;
            let tracked = !is_open || seen.requests.iter().any(|view| view.key == *key);
            holds_and_counts(is_open, tracked, "I3", || format!("{key:?} runs and has no slot"))?;
        }
        for (place, view) in seen.requests.iter().enumerate() {
            let has_id = |view: &RequestView| view.state != RequestState::Ended && !self.is_task(view.key);
            let same = |other: &&RequestView| other.id == view.id && has_id(other);
            let other = seen.requests.iter().skip(place + 1).find(same);
            let other = other.filter(|_| has_id(view));
            holds_and_counts(place > 0, other.is_none(), "I4", || {
                format!("{:?} has two owners: {view:?}, {other:?}", view.id)
            })?;
        }
        let alive = self.served.values().filter(|request| request.started && !request.ended).count();
        let out = seen.permits.0 + seen.permits.1 + seen.permits.2;
        holds_and_counts(alive > 0, out == alive, "I10", || {
            format!("{out} permits are out, and {alive} tasks run")
        })?;
        check_gauges(session, seen)?;
        self.check_walked(seen)?;
        self.check_causes(seen)?;
        self.check_acks(seen)?;
        check_bounds(session.limits(), seen)
    }
}

impl Ledger {
    /// I5: when a request is signalled or settled and no cascade is still walking its children, each of them is
    /// cancelled. Derived from the ledger. Only the state of the call is taken from the session.
    fn check_walked(&self, seen: &Inspection) -> Result<(), Broken> {
        for (key, made) in self.made.iter().filter(|(_, made)| !made.settled) {
            let Some(parent) = made.parent.filter(|parent| !seen.cascades.contains(parent)) else { continue };
            let is_over =
                self.served.get(&parent).is_none_or(|parent| parent.signalled || parent.is_settled());
            let asked = seen.calls.iter().any(|call| call.key == *key && call.cause.is_some());
            holds_and_counts(is_over, !is_over || asked, "I5", || {
                format!("{key:?} was not cancelled with its parent {parent:?}")
            })?;
        }
        Ok(())
    }

    /// I3: nothing refers to something that is gone.
    fn check_residue(&self, seen: &Inspection) -> Result<(), Broken> {
        let request = |key: &InboundKey| seen.requests.iter().find(|view| view.key == *key);
        let call = |key: &OutboundKey| seen.calls.iter().any(|view| view.key == *key);
        for (_, timer) in &seen.timers {
            let known = match timer {
                TimerView::Queue(key) => request(key).is_some_and(|view| view.state == RequestState::Queued),
                TimerView::Grace(key) | TimerView::Shield(key) | TimerView::Detach(key) => {
                    request(key).is_some()
                }
                TimerView::Deadline(key) | TimerView::PeerWait(key) => call(key),
                TimerView::Lifecycle => true,
            };
            holds(known, "I3", || format!("a timer is left: {timer:?}"))?;
        }
        for key in &seen.queue {
            let queued = request(key).is_some_and(|view| view.state == RequestState::Queued);
            holds(queued, "I3", || format!("{key:?} is in the queue and does not wait"))?;
        }
        let waits = seen.requests.iter().filter(|view| view.state == RequestState::Queued).count();
        holds_and_counts(waits > 0, waits == seen.queue.len(), "I3", || {
            format!("{waits} wait, and the queue has {}", seen.queue.len())
        })?;
        let links = seen.exchanges.iter().map(|(_, key)| key);
        let links = links.chain(seen.cancel_keys.iter().map(|(_, _, key)| key)).chain(&seen.cascades);
        for key in links.chain(seen.foreign.iter().map(|(key, _)| key)) {
            holds(request(key).is_some(), "I3", || format!("something refers to {key:?}, which is gone"))?;
        }
        // The id of a task is free.
        let has_id = |view: &&RequestView| view.state != RequestState::Ended && !self.is_task(view.key);
        let alive = seen.requests.iter().filter(has_id).count();
        holds_and_counts(alive > 0, seen.indexed.0 == alive, "I3", || {
            format!("{} ids are taken by {alive} requests", seen.indexed.0)
        })?;
        holds_and_counts(seen.indexed.1 > 0, seen.indexed.1 == seen.calls.len(), "I3", || {
            format!("{} numbers are taken by {} calls", seen.indexed.1, seen.calls.len())
        })?;
        let open = seen.calls.iter().filter(|view| view.state != CallState::Leaving).count();
        holds_and_counts(open > 0, seen.open_calls == open, "I3", || {
            format!("{} calls are said to be open: {open}", seen.open_calls)
        })?;
        for (number, key) in &seen.cancels {
            holds(call(key), "I3", || format!("the cancel {number:?} is kept for {key:?}, which is gone"))?;
        }
        Ok(())
    }

    /// I7: the first cancel of a request is kept, and no other cause is ever reported.
    fn check_causes(&mut self, seen: &Inspection) -> Result<(), Broken> {
        for view in &seen.requests {
            let Some(served) = self.served.get(&view.key) else { continue };
            match (view.cause, served.first) {
                (Some(cause), _) => self.take_cause(view.key, cause)?,
                (None, Some(first)) => holds_and_counts(false, served.is_settled(), "L1", || {
                    format!("{:?} was cancelled by {first:?}, and knows nothing of it", view.key)
                })?,
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// I7: each cancel is acknowledged in its step, or waits for the end of a request that is not decided.
    fn check_acks(&self, seen: &Inspection) -> Result<(), Broken> {
        let reported = self.served.iter().find(|(_, served)| served.reported.is_some());
        holds_and_counts(false, reported.is_none(), "I7", || {
            format!("a cancel was acknowledged with an end that did not follow: {reported:?}")
        })?;
        if self.lost {
            return Ok(());
        }
        for owed in &self.acks {
            let waits = match owed.says {
                Says::Now(_) | Says::Something => false,
                Says::End(key) => self.served.get(&key).is_some_and(|served| !served.is_settled()),
            };
            holds(waits, "I7", || format!("a cancel was not acknowledged: {owed:?}"))?;
        }
        let held: usize = seen.requests.iter().map(|view| view.held_acks).sum();
        holds_and_counts(held > 0, held == self.acks.len(), "I7", || {
            format!("{:?} wait for an acknowledgement, and {held} are held back", self.acks)
        })
    }
}

/// I10: the counters of the session are equal to what it holds.
fn check_gauges(session: &Session, seen: &Inspection) -> Result<(), Broken> {
    let (mut running, mut queued, mut draining) = (0, 0, 0);
    for view in &seen.requests {
        match view.state {
            RequestState::Queued => queued += 1,
            RequestState::Running
            | RequestState::CancelPending
            | RequestState::Cancelling
            | RequestState::Task => running += 1,
            RequestState::Draining(_) => draining += 1,
            RequestState::Ended => {}
        }
    }
    let stats = session.stats();
    let counted = (stats.running, stats.queued, stats.draining, stats.slots);
    let held = (running, queued, draining, seen.requests.len() as u64);
    holds_and_counts(running > 0, counted == held, "I10", || {
        format!("running, queued, draining and slots are {held:?}, and counted are {counted:?}")
    })
}

/// I5: the parent of a live child is live, unless a cascade has not reached the child yet.
fn check_children(seen: &Inspection) -> Result<(), Broken> {
    for view in &seen.requests {
        for child in &view.children {
            let back = seen.calls.iter().find(|call| call.key == *child).and_then(|call| call.parent);
            holds(back == Some(view.key), "I3", || {
                format!("{child:?} is a child of {:?} and {back:?}", view.key)
            })?;
        }
    }
    for call in &seen.calls {
        let Some(parent) = call.parent else { continue };
        let parent = seen.requests.iter().find(|view| view.key == parent);
        let listed = parent.is_some_and(|parent| parent.children.contains(&call.key));
        holds(listed, "I3", || format!("{:?} has a parent that does not know it", call.key))?;
        let live = parent.is_some_and(|parent| {
            matches!(
                parent.state,
                RequestState::Queued
                    | RequestState::Running
                    | RequestState::CancelPending
                    | RequestState::Task
            )
        });
        // Between its slices a cascade has not reached every child.
        let waits = parent.is_some_and(|parent| seen.cascades.contains(&parent.key));
        holds_and_counts(!live, live || waits, "I5", || {
            format!("{:?} outlives its cancelled parent", call.key)
        })?;
    }
    Ok(())
}

/// I11: every map and queue is limited.
fn check_bounds(limits: &Limits, seen: &Inspection) -> Result<(), Broken> {
    // The first acknowledgement of each request may always wait. Their number is limited by that of the requests.
    let repeated = seen.requests.iter().map(|view| view.held_acks.saturating_sub(1)).sum();
    let bounds = [
        ("the queue", seen.queue.len(), limits.max_queued_requests),
        ("early cancels", seen.parked.len(), limits.max_early_cancels),
        ("remembered ids", seen.remembered.len(), limits.max_settled_ids),
        ("calls", seen.calls.len(), limits.max_calls),
        ("permits", seen.permits.0 + seen.permits.1, limits.max_running_handlers),
        ("acknowledgements of repeated cancels", repeated, limits.max_early_cancels),
    ];
    for (what, is, may) in bounds {
        holds_and_counts(is >= may, is <= may, "I11", || format!("{what}: {is}, where {may} may be"))?;
    }
    Ok(())
}

// How often each invariant was judged. A check counts only if the subject of the invariant exists.

const NUMBERS: usize = INVARIANTS.len();

thread_local! {
    static JUDGED: [Cell<u64>; NUMBERS] = const { [const { Cell::new(0) }; NUMBERS] };
}

/// How often each invariant was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally([u64; NUMBERS]);

impl Default for Tally {
    fn default() -> Self {
        Self([0; NUMBERS])
    }
}

impl Tally {
    /// The judgements of this thread since the last call.
    #[must_use]
    pub fn taken() -> Self {
        JUDGED.with(|judged| Self(std::array::from_fn(|place| judged.get(place).map_or(0, Cell::take))))
    }

    /// The invariants that were judged, each with its count.
    pub fn judged(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let numbers = INVARIANTS.iter().map(|invariant| invariant.number);
        numbers.zip(self.0).filter(|(_, judged)| *judged > 0)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        for (mine, others) in self.0.iter_mut().zip(other.0) {
            *mine += others;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.judged().try_for_each(|(number, judged)| write!(f, "{number}: {judged} "))
    }
}

/// Counts one judgement.
#[inline]
pub(super) fn count(invariant: &str) {
    JUDGED.with(|judged| {
        if let Some(place) = place_of(invariant).and_then(|place| judged.get(place)) {
            place.set(place.get() + 1);
        }
    });
}

/// The index of an invariant, computed from its number without a search.
#[inline]
fn place_of(invariant: &str) -> Option<usize> {
    let digit = |byte: u8| usize::from(byte.wrapping_sub(b'0'));
    match *invariant.as_bytes() {
        [b'I', ones] => digit(ones).checked_sub(1),
        [b'I', tens, ones] => (10 * digit(tens) + digit(ones)).checked_sub(1),
        [b'L', ones] => Some(digit(ones) + 16),
        [b'B', ones] => Some(digit(ones) + 20),
        [b'B', tens, ones] => Some(10 * digit(tens) + digit(ones) + 20),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_invariant_has_its_own_counter() {
        let _ = Tally::taken();
        for (nth, invariant) in INVARIANTS.iter().enumerate() {
            assert_eq!(place_of(invariant.number), Some(nth), "{}", invariant.number);
            count(invariant.number);
            assert_eq!(Tally::taken().judged().collect::<Vec<_>>(), [(invariant.number, 1)]);
        }
    }
}
