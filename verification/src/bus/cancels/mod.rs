//! The model of the cancel bus: cancellers, watchers, their connections, the engine with its tombstones, and time.
//!
//! Each command is more than one step: it takes effect at the engine, and its reply arrives later. Doorbells of one
//! connection may overtake each other and the replies, which allows more than a real connection does.
//!
//! Time is counted in ticks. A tick comes at any moment, except that a watcher is behind for at most [`AWAY`] ticks at
//! a stretch: from the existence of its request to its first look, or while a doorbell is on its way, or from the loss
//! of its connection to the look after its return. A cancel that takes more than [`SLOW`] ticks returns an error. A
//! tombstone lives for [`TIME_TO_LIVE`] ticks, so it expires no sooner than any watcher has looked.

mod canceller;
mod engine;
mod watcher;

use super::Bug;
use super::search::{Force, Model};
use crate::invariants::{Broken, holds, holds_and_counts};
use canceller::{Canceller, Stage};
use watcher::{Command, Phase, Watch};

pub(super) const KEYS: usize = 2;
const WATCHES: usize = 2;
const NODES: usize = 2;
const CANCELLERS: usize = 2;

/// The ticks that a watcher may be behind at a stretch.
const AWAY: u8 = 1;
/// The ticks that a cancel may take.
const SLOW: u8 = 1;
/// The ticks that a tombstone lives. The doorbell may come [`SLOW`] ticks after the tombstone, and the watcher's look
/// [`AWAY`] ticks after the doorbell. The tombstone must outlive both.
const TIME_TO_LIVE: u8 = SLOW + AWAY + 1;
/// The time to live of a tombstone that has none.
const FOREVER: u8 = u8::MAX;

/// A key: the name of a request, with its generation.
pub(super) type Key = u8;

/// A watcher that takes part: the key that it watches, its node, and the watcher before it in the same slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watcher {
    pub(super) key: Key,
    pub(super) node: u8,
    /// The request exists only after this watcher's request has ended.
    pub(super) after: Option<u8>,
}

/// The parts of a run, and how often each fault may happen in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    pub(super) watchers: &'static [Watcher],
    /// How often each canceller may cancel. Each time it chooses the key.
    pub(super) cancels: &'static [u8],
    pub(super) faults: Faults,
}

/// How often each fault may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    /// A node loses its connection to the engine.
    pub(super) losses: u8,
    /// The engine is away for all.
    pub(super) outages: u8,
    /// A canceller's command fails, before or after its effect.
    pub(super) failures: u8,
}

/// Parts, and the bug that is planted in them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cancels {
    pub(super) parts: Parts,
    pub(super) bug: Option<Bug>,
}

/// A cancelled key in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tombstone {
    /// The key that was cancelled. It differs from the name of the tombstone only if that is wrong.
    of: Key,
    /// The ticks until it expires.
    left: u8,
}

/// Everything that distinguishes two situations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    engine_away: bool,
    tombstones: [Option<Tombstone>; KEYS],
    /// Whether a node has its connection to the engine.
    connected: [bool; NODES],
    watches: [Option<Watch>; WATCHES],
    cancellers: [Option<Canceller>; CANCELLERS],
    faults: Faults,
}

/// One step of one part, which the number names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A canceller begins to cancel a key.
    Cancel(usize, Key),
    /// Its tombstone is set in the engine.
    TombstoneSet(usize),
    /// Its doorbell is rung: the engine sends it to every subscriber.
    DoorbellRung(usize),
    /// The last reply arrives, and the cancel returns.
    CancelReturns(usize),
    /// A command of the canceller fails, before or after its effect.
    CommandFails(usize),
    /// A watch begins.
    WatchBegins(usize),
    /// The engine subscribes it.
    Subscribed(usize),
    /// The confirmation arrives.
    Confirmed(usize),
    /// The engine reads the tombstone.
    Looked(usize),
    /// What it read arrives.
    LookArrives(usize),
    /// A doorbell that was rung for this key arrives.
    DoorbellArrives(usize, Key),
    /// The request of the watch ends.
    RequestEnds(usize),
    /// The engine unsubscribes it.
    Unsubscribed(usize),
    /// A node loses its connection.
    ConnectionLost(usize),
    /// A node has its connection again.
    ConnectionReturns(usize),
    /// The engine is away, and every connection is lost.
    EngineAway,
    /// The engine is back.
    EngineReturns,
    /// Time passes.
    Tick,
}

/// All that can happen in a step.
pub(super) const EVENTS: &[&str] = &[
    "cancel begins",
    "tombstone set",
    "tombstone refreshed",
    "doorbell rung with subscriber",
    "doorbell rung without subscriber",
    "cancel acknowledged before the watch",
    "cancel acknowledged in time",
    "cancel acknowledged after the end",
    "cancel refused: too slow",
    "cancel failed",
    "cancel failed: engine away",
    "watch begins",
    "watch begins without connection",
    "subscribed",
    "confirmed",
    "tombstone found",
    "tombstone not found",
    "signalled by the first look",
    "signalled by the look after a return",
    "look finds nothing",
    "look repeats",
    "signalled by the doorbell",
    "doorbell repeats",
    "doorbell after the end",
    "request ends before its watch",
    "request ends",
    "request ends while it is away",
    "unsubscribed",
    "connection lost",
    "doorbell lost",
    "connection returns",
    "engine away",
    "engine returns",
    "tick",
    "tombstone expires",
];

impl Model for Cancels {
    type State = State;
    type Step = Step;

    fn starts(&self) -> Vec<State> {
        let Parts { watchers, cancels, faults } = self.parts;
        let watch = |watcher: &Watcher| Watch::new(*watcher);
        vec![State {
            engine_away: false,
            tombstones: [None; KEYS],
            connected: [true; NODES],
            watches: std::array::from_fn(|at| watchers.get(at).map(watch)),
            cancellers: std::array::from_fn(|at| cancels.get(at).map(|left| Canceller::new(*left))),
            faults,
        }]
    }

    fn steps(&self, state: &State) -> Vec<(Step, Force)> {
        let mut steps = Vec::new();
        self.canceller_steps(state, &mut steps);
        watcher::watcher_steps(state, &mut steps);
        self.engine_steps(state, &mut steps);
        steps
    }

    fn apply(&self, state: &State, step: Step) -> Result<(State, &'static str), Broken> {
        let mut next = *state;
        let event = match step {
            Step::Cancel(..)
            | Step::TombstoneSet(_)
            | Step::DoorbellRung(_)
            | Step::CancelReturns(_)
            | Step::CommandFails(_) => self.canceller_step(&mut next, step)?,
            Step::WatchBegins(_)
            | Step::Subscribed(_)
            | Step::Confirmed(_)
            | Step::Looked(_)
            | Step::LookArrives(_)
            | Step::DoorbellArrives(..)
            | Step::RequestEnds(_)
            | Step::Unsubscribed(_) => self.watcher_step(&mut next, step)?,
            Step::ConnectionLost(_)
            | Step::ConnectionReturns(_)
            | Step::EngineAway
            | Step::EngineReturns
            | Step::Tick => self.engine_step(&mut next, step)?,
        };
        next.watches.iter_mut().flatten().for_each(Watch::settle);
        Ok((next, event))
    }

    /// Nothing moves any more: every acknowledged cancel was signalled, and nothing is left.
    fn check_rest(&self, state: &State) -> Result<(), Broken> {
        for (name, tombstone) in state.tombstones.iter().enumerate() {
            holds(tombstone.is_none(), "B5", || format!("the tombstone of key {name} never expires"))?;
        }
        for watch in state.watches.iter().flatten() {
            let key = watch.of.key;
            let ended = watch.phase == Phase::Ended;
            let acknowledged = watch.acknowledged && !ended;
            holds_and_counts(acknowledged, !acknowledged || watch.signals > 0, "B1", || {
                format!("the acknowledged cancel of key {key} was not signalled: {watch:?}")
            })?;
            holds_and_counts(acknowledged, !acknowledged || watch.is_cancelled, "B7", || {
                format!("is_cancelled of key {key} is false after an acknowledged cancel: {watch:?}")
            })?;
            let left = watch.subscribed || watch.command != Command::None || watch.bells != [0; KEYS];
            holds_and_counts(ended, !ended || !left, "B6", || {
                format!("this is left of the ended request of key {key}: {watch:?}")
            })?;
        }
        Ok(())
    }
}

impl Cancels {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// The name under which the engine knows a key.
    fn name(&self, key: Key) -> usize {
        if self.has(Bug::NoGenerationInKeys) { 0 } else { key.into() }
    }

    /// The ticks that a tombstone lives.
    fn time_to_live(&self) -> u8 {
        match self.bug {
            Some(Bug::TombstoneForever) => FOREVER,
            Some(Bug::TimeToLiveTooShort) => TIME_TO_LIVE - 1,
            _ => TIME_TO_LIVE,
        }
    }
}
