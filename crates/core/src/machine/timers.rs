//! The timers. Every timer can be removed, and takes no room for longer than others wait (I3).

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::id::{InboundKey, OutboundKey};

/// The purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A request has waited too long for a permit.
    Queue(InboundKey),
    /// The grace of a signalled handler has elapsed.
    Grace(InboundKey),
    /// The longest time of a shield has elapsed.
    Shield(InboundKey),
    /// A lost stream was not resumed.
    Detach(InboundKey),
    /// The deadline of a call.
    Deadline(OutboundKey),
    /// The peer did not answer a cancelled call in time.
    PeerWait(OutboundKey),
    /// The timer of the connection: half-close, drain, grace, detach. Only one of them at a time.
    Lifecycle,
}

/// A time later than this is never reached: a limit may be as long as the longest `Duration`.
const NEVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The end of a period that begins now.
pub(super) fn later(now: Instant, time: Duration) -> Instant {
    now.checked_add(time).unwrap_or(now + NEVER)
}

/// A timer and its time. Timers of the same time fire in the order of their purposes and keys.
type Alarm = (Instant, Timer);

/// The timers, the earliest first. Calls and handlers nearly always have equally long timers of each purpose, so these
/// are set in the order in which they fire: adding one, and taking one that fires, costs no search.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    deadlines: InOrder,
    peer_waits: InOrder,
    graces: InOrder,
    /// Those of other purposes, and those that fire earlier than one that was set before.
    rest: BTreeSet<Alarm>,
}

impl Timers {
    fn in_order(&mut self, timer: Timer) -> Option<&mut InOrder> {
        match timer {
            Timer::Deadline(_) => Some(&mut self.deadlines),
            Timer::PeerWait(_) => Some(&mut self.peer_waits),
            Timer::Grace(_) => Some(&mut self.graces),
            Timer::Queue(_) | Timer::Shield(_) | Timer::Detach(_) | Timer::Lifecycle => None,
        }
    }

    /// Sets a timer that is not set.
    pub(super) fn set(&mut self, at: Instant, timer: Timer) {
        if !self.in_order(timer).is_some_and(|timers| timers.push((at, timer))) {
            self.rest.insert((at, timer));
        }
    }

    pub(super) fn clear(&mut self, at: Option<Instant>, timer: Timer) {
        if let Some(at) = at
            && !self.in_order(timer).is_some_and(|timers| timers.remove((at, timer)))
        {
            self.rest.remove(&(at, timer));
        }
    }

    fn first(&self) -> Option<Alarm> {
        let mut first = self.rest.first().copied();
        for timers in [&self.deadlines, &self.peer_waits, &self.graces] {
            if let Some(alarm) = timers.first()
                && first.is_none_or(|first| alarm < first)
            {
                first = Some(alarm);
            }
        }
        first
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.first().map(|(at, _)| at)
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Timer> {
        let (at, timer) = self.first().filter(|(at, _)| *at <= now)?;
        self.clear(Some(at), timer);
        Some(timer)
    }

    #[cfg(feature = "verify")]
    pub(super) fn inspect(&self) -> impl Iterator<Item = Alarm> {
        let in_order =
            [&self.deadlines, &self.peer_waits, &self.graces].into_iter().flat_map(InOrder::alarms);
        in_order.chain(self.rest.iter().copied()).collect::<BTreeSet<_>>().into_iter()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let in_order = [&self.deadlines, &self.peer_waits, &self.graces];
        in_order.into_iter().map(|timers| timers.alarms().count()).sum::<usize>() + self.rest.len()
    }
}

/// Room for this many is kept.
const KEPT_ROOM: usize = 64;

/// Timers that were set in the order in which they fire. One that is removed between others stays, marked, until it is
/// the first or the last, or until half of them are marked.
#[derive(Clone, Debug, Default)]
struct InOrder {
    /// With the mark. The first and the last have none.
    alarms: VecDeque<(Alarm, bool)>,
    removed: usize,
}

impl InOrder {
    fn first(&self) -> Option<Alarm> {
        self.alarms.front().map(|(alarm, _)| *alarm)
    }

    #[cfg(any(test, feature = "verify"))]
    fn alarms(&self) -> impl Iterator<Item = Alarm> {
        self.alarms.iter().filter(|(_, removed)| !removed).map(|(alarm, _)| *alarm)
    }

    /// `false`: it fires earlier than another one, so it is not added.
    fn push(&mut self, alarm: Alarm) -> bool {
        let is_last = self.alarms.back().is_none_or(|(last, _)| *last < alarm);
        if is_last {
            self.alarms.push_back((alarm, false));
        }
        is_last
    }

    /// `false`: it is not here.
    fn remove(&mut self, alarm: Alarm) -> bool {
        let place = if self.first() == Some(alarm) {
            0
        } else {
            let Ok(place) = self.alarms.binary_search_by(|(known, _)| known.cmp(&alarm)) else {
                return false;
            };
            place
        };
        let Some((_, removed)) = self.alarms.get_mut(place) else { return false };
        if std::mem::replace(removed, true) {
            return false;
        }
        self.removed += 1;
        self.trim();
        true
    }

    /// Drops marked ones from both ends, or all of them if they are half.
    fn trim(&mut self) {
        while self.alarms.front().is_some_and(|(_, removed)| *removed) {
            self.alarms.pop_front();
            self.removed -= 1;
        }
        while self.alarms.back().is_some_and(|(_, removed)| *removed) {
            self.alarms.pop_back();
            self.removed -= 1;
        }
        if self.removed * 2 > self.alarms.len() {
            self.alarms.retain(|(_, removed)| !removed);
            self.removed = 0;
        }
        if self.alarms.capacity() > KEPT_ROOM && self.alarms.len() < self.alarms.capacity() / 4 {
            self.alarms.shrink_to((self.alarms.len() * 2).max(KEPT_ROOM));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::id::CallKey;

    fn timer(kind: u8, slot: u32) -> Timer {
        let key = CallKey { slot, generation: 0 };
        match kind {
            0 => Timer::Deadline(OutboundKey(key)),
            1 => Timer::PeerWait(OutboundKey(key)),
            2 => Timer::Grace(InboundKey(key)),
            _ => Timer::Queue(InboundKey(key)),
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Set(u8, u32, u64),
        Clear(u8, u32, u64),
        Pop(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let named = || (0..4_u8, 0..24_u32, 0..40_u64);
        prop_oneof![
            3 => named().prop_map(|(kind, slot, at)| Step::Set(kind, slot, at)),
            2 => named().prop_map(|(kind, slot, at)| Step::Clear(kind, slot, at)),
            1 => (0..40_u64).prop_map(Step::Pop),
        ]
    }

    proptest! {
        #[test]
        fn they_fire_as_from_one_ordered_set(steps in prop::collection::vec(step(), 0..400)) {
            let start = Instant::now();
            let time = |at: u64| start + Duration::from_millis(at);
            let (mut timers, mut set) = (Timers::default(), BTreeSet::new());
            for step in steps {
                match step {
                    Step::Set(kind, slot, at) => {
                        if set.insert((time(at), timer(kind, slot))) {
                            timers.set(time(at), timer(kind, slot));
                        }
                    }
                    Step::Clear(kind, slot, at) => {
                        timers.clear(Some(time(at)), timer(kind, slot));
                        set.remove(&(time(at), timer(kind, slot)));
                    }
                    Step::Pop(at) => {
                        let due = set.first().copied().filter(|(first, _)| *first <= time(at));
                        due.map(|due| set.remove(&due));
                        prop_assert_eq!(timers.pop_due(time(at)), due.map(|(_, timer)| timer));
                    }
                }
                prop_assert_eq!(timers.next(), set.first().map(|(at, _)| *at));
                prop_assert_eq!(timers.len(), set.len());
            }
        }
    }

    #[test]
    fn timers_that_are_gone_take_little_room() {
        let start = Instant::now();
        let mut timers = Timers::default();
        let time = |slot: u32| start + Duration::from_secs(60) + Duration::from_micros(slot.into());
        // One call that lasts, and many short ones after it.
        timers.set(time(0), timer(0, 0));
        for slot in 1..100_000 {
            timers.set(time(slot), timer(0, slot));
            if let Some(before) = slot.checked_sub(100).filter(|before| *before > 0) {
                timers.clear(Some(time(before)), timer(0, before));
            }
        }
        assert_eq!(timers.len(), 101);
        assert!(timers.deadlines.alarms.capacity() <= 1024, "I3: timers that are gone take room");
        for slot in 0..100_000 {
            timers.clear(Some(time(slot)), timer(0, slot));
        }
        assert_eq!(timers.len(), 0);
        assert!(timers.deadlines.alarms.capacity() <= KEPT_ROOM, "I3: no timer waits");
    }
}
