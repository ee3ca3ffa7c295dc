//! The model of the cancel bus: cancellers, watchers, their connections, the engine with its tombstones, and time.
//!
//! Each command is more than one step: it takes effect at the engine, and its reply arrives later. Doorbells of one
//! connection may overtake each other and the replies, which allows more than a real connection does.
//!
//! Time is counted in ticks. A tick comes at any moment, except that a watcher is behind for at most [`AWAY`] ticks at
//! a stretch: from the existence of its request to its first look, or while a doorbell is on its way, or from the loss
//! of its connection to the look after its return. A cancel that takes more than [`SLOW`] ticks returns an error. A
//! tombstone lives for [`TIME_TO_LIVE`] ticks, so it expires no sooner than any watcher has looked.

use super::Bug;
use super::search::{Force, Model};
use crate::invariants::{Broken, holds, holds_and_counts};

const KEYS: usize = 2;
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
pub(super) struct CancelsState {
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
    type State = CancelsState;
    type Step = Step;

    fn starts(&self) -> Vec<CancelsState> {
        let Parts { watchers, cancels, faults } = self.parts;
        let watch = |watcher: &Watcher| Watch::new(*watcher);
        vec![CancelsState {
            engine_away: false,
            tombstones: [None; KEYS],
            connected: [true; NODES],
            watches: std::array::from_fn(|at| watchers.get(at).map(watch)),
            cancellers: std::array::from_fn(|at| cancels.get(at).map(|left| Canceller::new(*left))),
            faults,
        }]
    }

    fn steps(&self, state: &CancelsState) -> Vec<(Step, Force)> {
        let mut steps = Vec::new();
        self.canceller_steps(state, &mut steps);
        watcher_steps(state, &mut steps);
        self.engine_steps(state, &mut steps);
        steps
    }

    fn apply(&self, state: &CancelsState, step: Step) -> Result<(CancelsState, &'static str), Broken> {
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
    fn check_rest(&self, state: &CancelsState) -> Result<(), Broken> {
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

// A canceller: a tombstone, then a doorbell, then the reply.

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
    fn canceller_steps(&self, state: &CancelsState, steps: &mut Vec<(Step, Force)>) {
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
                            (0..).take(KEYS).filter(exists).map(|key| (Step::Cancel(at, key), Force::Free)),
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

    fn canceller_step(&self, state: &mut CancelsState, step: Step) -> Result<&'static str, Broken> {
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

    fn set_tombstone(&self, state: &mut CancelsState, key: Key) -> &'static str {
        let Some(place) = state.tombstones.get_mut(self.name(key)) else { return "" };
        if self.has(Bug::NoTombstone) {
            return "no tombstone set";
        }
        let before = place.replace(Tombstone { of: key, left: self.time_to_live() });
        if before.is_some() { "tombstone refreshed" } else { "tombstone set" }
    }

    fn ring(&self, state: &mut CancelsState, key: Key) -> &'static str {
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
fn acknowledge(state: &mut CancelsState, canceller: &mut Canceller) -> Result<&'static str, Broken> {
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

// A watcher: it subscribes, looks, and is signalled once. It leaves nothing when its request ends.

/// A request and the watch of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about a watch")]
pub(super) struct Watch {
    pub(super) of: Of,
    pub(super) phase: Phase,
    /// Whether it begins again, after its connection was lost.
    again: bool,
    /// Whether the engine sends it doorbells.
    pub(super) subscribed: bool,
    /// The commands on their way to the engine.
    pub(super) command: Command,
    /// The doorbells on their way to it, by the key that was cancelled.
    pub(super) bells: [u8; KEYS],
    /// How often the request was signalled.
    pub(super) signals: u8,
    /// What `is_cancelled` answers.
    pub(super) is_cancelled: bool,
    /// Whether a cancel was acknowledged before the end of the request.
    pub(super) acknowledged: bool,
    /// The ticks since it may have missed a doorbell.
    pub(super) behind: u8,
}

/// What never changes of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Of {
    pub(super) key: Key,
    pub(super) node: u8,
    after: Option<u8>,
}

/// How far a watch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// The request does not exist yet, so nobody knows its key.
    Absent,
    /// The request exists, and its watch has not begun.
    Waiting,
    /// The watch waits for the confirmation of its subscription.
    Subscribing,
    /// The watch asked for the tombstone.
    Looking,
    /// The engine read the tombstone. Its reply is on its way.
    LookReply(Option<Key>),
    /// The watch is up to date, except for doorbells on their way.
    Watching,
    /// The watch has no connection.
    Away,
    /// The request has ended.
    Ended,
}

/// The commands on their way to the engine, in the order in which they were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Command {
    None,
    Subscribe,
    Unsubscribe,
    SubscribeThenUnsubscribe,
}

impl Watch {
    pub(super) fn new(Watcher { key, node, after }: Watcher) -> Self {
        let phase = if after.is_some() { Phase::Absent } else { Phase::Waiting };
        Self {
            of: Of { key, node, after },
            phase,
            again: false,
            subscribed: false,
            command: Command::None,
            bells: [0; KEYS],
            signals: 0,
            is_cancelled: false,
            acknowledged: false,
            behind: 0,
        }
    }

    /// Whether it can have missed nothing, or needs nothing any more.
    fn is_current(&self) -> bool {
        match self.phase {
            Phase::Absent | Phase::Ended => true,
            Phase::Watching => self.signals > 0 || self.bells == [0; KEYS],
            Phase::Waiting | Phase::Subscribing | Phase::Looking | Phase::LookReply(_) | Phase::Away => {
                self.signals > 0
            }
        }
    }

    /// Forgets what can have no effect any more, so that equal situations are equal states.
    fn settle(&mut self) {
        if self.is_current() {
            self.behind = 0;
        }
        if matches!(self.phase, Phase::Watching | Phase::Ended) {
            self.again = false;
        }
        if self.phase == Phase::Ended {
            (self.signals, self.is_cancelled, self.acknowledged) = (0, false, false);
        }
    }

    fn subscribe(&mut self) {
        (self.phase, self.command) = (Phase::Subscribing, Command::Subscribe);
    }

    /// The connection is lost, with all that was on its way. Returns whether a doorbell was.
    fn lose_connection(&mut self, bug: Option<Bug>) -> Result<bool, Broken> {
        let rang = self.bells != [0; KEYS];
        (self.subscribed, self.command, self.bells) = (false, Command::None, [0; KEYS]);
        match self.phase {
            Phase::Absent | Phase::Waiting | Phase::Ended => return Ok(rang),
            Phase::Looking | Phase::LookReply(_) if bug == Some(Bug::FailedLookCancels) => {
                self.signal(None, bug)?;
            }
            Phase::Subscribing | Phase::Looking | Phase::LookReply(_) | Phase::Watching | Phase::Away => {}
        }
        self.phase = Phase::Away;
        Ok(rang)
    }

    /// The connection is there again: every watched key is subscribed again, and then looked at.
    fn regain_connection(&mut self, bug: Option<Bug>) {
        if self.phase == Phase::Away {
            self.again = true;
            if bug == Some(Bug::WatchNotRepeated) {
                self.phase = Phase::Watching;
            } else {
                self.begin(bug);
            }
        }
    }

    fn begin(&mut self, bug: Option<Bug>) {
        if bug == Some(Bug::LookBeforeSubscribing) {
            self.phase = Phase::Looking;
        } else {
            self.subscribe();
        }
    }

    /// A look or a doorbell says that a key was cancelled. Returns whether it is the first.
    fn signal(&mut self, cancelled: Option<Key>, bug: Option<Bug>) -> Result<bool, Broken> {
        if self.signals > 0 && bug != Some(Bug::SignalAgain) {
            return Ok(false);
        }
        let key = self.of.key;
        holds(cancelled.is_some(), "B4", || format!("key {key} is signalled, and nobody cancelled"))?;
        holds(cancelled == Some(key), "B2", || {
            format!("key {key} is signalled by the cancel of key {cancelled:?}")
        })?;
        holds(self.signals == 0, "B3", || format!("key {key} is signalled again"))?;
        holds(self.phase != Phase::Ended, "B3", || format!("key {key} is signalled after its end"))?;
        self.signals += 1;
        self.is_cancelled = true;
        Ok(true)
    }
}

/// The possible steps of the watchers.
fn watcher_steps(state: &CancelsState, steps: &mut Vec<(Step, Force)>) {
    for (at, watch) in state.watches.iter().enumerate() {
        let Some(watch) = watch else { continue };
        let owed = match watch.phase {
            Phase::Waiting => Some(Step::WatchBegins(at)),
            Phase::Subscribing if watch.subscribed => Some(Step::Confirmed(at)),
            Phase::Looking => Some(Step::Looked(at)),
            Phase::LookReply(_) => Some(Step::LookArrives(at)),
            Phase::Absent | Phase::Subscribing | Phase::Watching | Phase::Away | Phase::Ended => None,
        };
        steps.extend(owed.map(|step| (step, Force::Owed)));
        match watch.command {
            Command::None => {}
            Command::Subscribe | Command::SubscribeThenUnsubscribe => {
                steps.push((Step::Subscribed(at), Force::Owed));
            }
            Command::Unsubscribe => steps.push((Step::Unsubscribed(at), Force::Owed)),
        }
        for (key, bells) in (0..).zip(watch.bells) {
            if bells > 0 {
                steps.push((Step::DoorbellArrives(at, key), Force::Owed));
            }
        }
        if !matches!(watch.phase, Phase::Absent | Phase::Ended) {
            steps.push((Step::RequestEnds(at), Force::Free));
        }
    }
}

impl Cancels {
    fn watcher_step(&self, state: &mut CancelsState, step: Step) -> Result<&'static str, Broken> {
        let (Step::WatchBegins(at)
        | Step::Subscribed(at)
        | Step::Confirmed(at)
        | Step::Looked(at)
        | Step::LookArrives(at)
        | Step::DoorbellArrives(at, _)
        | Step::RequestEnds(at)
        | Step::Unsubscribed(at)) = step
        else {
            return Ok("");
        };
        let Some(Some(mut watch)) = state.watches.get(at).copied() else { return Ok("") };
        let event = match step {
            Step::WatchBegins(_) if state.connected.get(usize::from(watch.of.node)) == Some(&true) => {
                watch.begin(self.bug);
                "watch begins"
            }
            Step::WatchBegins(_) => {
                watch.phase = Phase::Away;
                "watch begins without connection"
            }
            Step::Subscribed(_) => {
                watch.subscribed = true;
                let both = watch.command == Command::SubscribeThenUnsubscribe;
                watch.command = if both { Command::Unsubscribe } else { Command::None };
                "subscribed"
            }
            Step::Unsubscribed(_) => {
                (watch.subscribed, watch.command) = (false, Command::None);
                "unsubscribed"
            }
            Step::Confirmed(_) => {
                let is_over =
                    self.has(Bug::LookBeforeSubscribing) || watch.again && self.has(Bug::ReturnWithoutLook);
                watch.phase = if is_over { Phase::Watching } else { Phase::Looking };
                "confirmed"
            }
            Step::Looked(_) => {
                let tombstone = state.tombstones.get(self.name(watch.of.key)).copied().flatten();
                watch.phase = Phase::LookReply(tombstone.map(|tombstone| tombstone.of));
                if tombstone.is_some() { "tombstone found" } else { "tombstone not found" }
            }
            Step::LookArrives(_) => self.look_arrives(&mut watch)?,
            Step::DoorbellArrives(_, key) => self.doorbell_arrives(&mut watch, key)?,
            _ => {
                for next in state.watches.iter_mut().flatten() {
                    if next.of.after.map(usize::from) == Some(at) && next.phase == Phase::Absent {
                        next.phase = Phase::Waiting;
                    }
                }
                self.end(&mut watch)
            }
        };
        if let Some(place) = state.watches.get_mut(at) {
            *place = Some(watch);
        }
        Ok(event)
    }

    fn look_arrives(&self, watch: &mut Watch) -> Result<&'static str, Broken> {
        let Phase::LookReply(found) = watch.phase else { return Ok("") };
        let event = match found {
            None => "look finds nothing",
            Some(_) if !watch.signal(found, self.bug)? => "look repeats",
            Some(_) if watch.again => "signalled by the look after a return",
            Some(_) => "signalled by the first look",
        };
        if found.is_some() && self.has(Bug::LookSetsNoFlag) {
            watch.is_cancelled = false;
        }
        match self.bug {
            Some(Bug::Polling) if found.is_none() => watch.phase = Phase::Looking,
            Some(Bug::LookBeforeSubscribing) => watch.subscribe(),
            _ => watch.phase = Phase::Watching,
        }
        Ok(event)
    }

    fn doorbell_arrives(&self, watch: &mut Watch, key: Key) -> Result<&'static str, Broken> {
        if let Some(bells) = watch.bells.get_mut(usize::from(key)) {
            *bells -= 1;
        }
        // The node has no watch of this key any more.
        if watch.phase == Phase::Ended && !self.has(Bug::LateDoorbellSignals) {
            return Ok("doorbell after the end");
        }
        Ok(if watch.signal(Some(key), self.bug)? { "signalled by the doorbell" } else { "doorbell repeats" })
    }

    fn end(&self, watch: &mut Watch) -> &'static str {
        let event = match watch.phase {
            Phase::Waiting => "request ends before its watch",
            Phase::Away => "request ends while it is away",
            Phase::Subscribing | Phase::Looking | Phase::LookReply(_) | Phase::Watching => {
                watch.command = match watch.command {
                    _ if self.has(Bug::StillSubscribed) => watch.command,
                    Command::Subscribe | Command::SubscribeThenUnsubscribe => {
                        Command::SubscribeThenUnsubscribe
                    }
                    Command::None | Command::Unsubscribe => Command::Unsubscribe,
                };
                "request ends"
            }
            Phase::Absent | Phase::Ended => "",
        };
        watch.phase = Phase::Ended;
        event
    }
}

// The connections to the engine, the engine's absence, and time.

impl Cancels {
    fn engine_steps(&self, state: &CancelsState, steps: &mut Vec<(Step, Force)>) {
        for (node, connected) in state.connected.iter().enumerate() {
            if *connected && self.is_used(node) && state.faults.losses > 0 {
                steps.push((Step::ConnectionLost(node), Force::Free));
            }
            if !connected && !state.engine_away {
                steps.push((Step::ConnectionReturns(node), Force::Owed));
            }
        }
        if state.engine_away {
            steps.push((Step::EngineReturns, Force::Owed));
        } else if state.faults.outages > 0 {
            steps.push((Step::EngineAway, Force::Free));
        }
        // Time changes something only while a tombstone lives or a cancel is on its way.
        let counts = state.tombstones.iter().flatten().copied().any(expires)
            || state.cancellers.iter().flatten().any(|it| it.stage != Stage::Idle && it.took <= SLOW);
        let is_late = state.watches.iter().flatten().any(|it| it.behind >= AWAY && !it.is_current());
        if counts && !is_late {
            steps.push((Step::Tick, Force::Owed));
        }
    }

    fn engine_step(&self, state: &mut CancelsState, step: Step) -> Result<&'static str, Broken> {
        match step {
            Step::ConnectionLost(node) => {
                state.faults.losses -= 1;
                let rang = self.lose(state, node)?;
                Ok(if rang { "doorbell lost" } else { "connection lost" })
            }
            Step::ConnectionReturns(node) => {
                if let Some(connected) = state.connected.get_mut(node) {
                    *connected = true;
                }
                let of_node = |of: u8| usize::from(of) == node;
                let watches = state.watches.iter_mut().flatten().filter(|watch| of_node(watch.of.node));
                watches.for_each(|watch| watch.regain_connection(self.bug));
                Ok("connection returns")
            }
            Step::EngineAway => {
                state.faults.outages -= 1;
                state.engine_away = true;
                if self.has(Bug::EngineForgets) {
                    state.tombstones = [None; KEYS];
                }
                for node in (0..state.connected.len()).filter(|node| self.is_used(*node)) {
                    self.lose(state, node)?;
                }
                Ok("engine away")
            }
            Step::EngineReturns => {
                state.engine_away = false;
                Ok("engine returns")
            }
            _ => Ok(pass_time(state)),
        }
    }

    /// Whether a watcher uses the connection of this node.
    fn is_used(&self, node: usize) -> bool {
        self.parts.watchers.iter().any(|watcher| usize::from(watcher.node) == node)
    }

    /// A node loses its connection. Returns whether a doorbell was on its way.
    fn lose(&self, state: &mut CancelsState, node: usize) -> Result<bool, Broken> {
        if let Some(connected) = state.connected.get_mut(node) {
            *connected = false;
        }
        let mut rang = false;
        for watch in state.watches.iter_mut().flatten() {
            if usize::from(watch.of.node) == node {
                rang |= watch.lose_connection(self.bug)?;
            }
        }
        Ok(rang)
    }
}

/// One tick.
fn pass_time(state: &mut CancelsState) -> &'static str {
    let mut event = "tick";
    for place in &mut state.tombstones {
        let Some(tombstone) = place.as_mut().filter(|tombstone| expires(**tombstone)) else { continue };
        tombstone.left -= 1;
        if tombstone.left == 0 {
            *place = None;
            event = "tombstone expires";
        }
    }
    for watch in state.watches.iter_mut().flatten().filter(|watch| !watch.is_current()) {
        watch.behind += 1;
    }
    for canceller in state.cancellers.iter_mut().flatten().filter(|it| it.stage != Stage::Idle) {
        canceller.took = canceller.took.saturating_add(1).min(SLOW + 1);
    }
    event
}
