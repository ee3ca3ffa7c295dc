//! A watcher: it subscribes, looks, and is signalled once. It leaves nothing when its request ends.

use super::{Cancels, KEYS, Key, State, Step, Watcher};
use crate::bus::Bug;
use crate::bus::search::Force;
use crate::invariants::{Broken, holds};

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
    pub(super) fn is_current(&self) -> bool {
        match self.phase {
            Phase::Absent | Phase::Ended => true,
            Phase::Watching => self.signals > 0 || self.bells == [0; KEYS],
            Phase::Waiting | Phase::Subscribing | Phase::Looking | Phase::LookReply(_) | Phase::Away => {
                self.signals > 0
            }
        }
    }

    /// Forgets what can have no effect any more, so that equal situations are equal states.
    pub(super) fn settle(&mut self) {
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
    pub(super) fn lose_connection(&mut self, bug: Option<Bug>) -> Result<bool, Broken> {
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
    pub(super) fn regain_connection(&mut self, bug: Option<Bug>) {
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
pub(super) fn watcher_steps(state: &State, steps: &mut Vec<(Step, Force)>) {
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
    pub(super) fn watcher_step(&self, state: &mut State, step: Step) -> Result<&'static str, Broken> {
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
