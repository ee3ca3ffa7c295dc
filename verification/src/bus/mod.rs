//! Exhaustive models of what happens between machines: the cancel bus over an engine (Redis or NATS), and the
//! forwarding of requests between nodes. They are written from the protocol and share no code with its implementation.
//!
//! # The cancel bus
//! A canceller sets a tombstone with a time to live, and then rings a doorbell. A watcher subscribes to the doorbell
//! of its key, waits for the confirmation, and then looks at the tombstone. If the watcher subscribed before the
//! doorbell was rung, it receives the doorbell. Otherwise its look comes after the tombstone was set, and finds it. So no
//! order of these four steps loses the cancel. A watcher whose connection was lost subscribes again to every key that
//! it watches and looks at each again.
//!
//! The search visits every state that can be reached with a few watchers, cancellers and faults: see [`CASES`].
//!
//! # What must hold
//! In every state that can be reached:
//! - B2: a request is only signalled by a cancel of its own key.
//! - B3: the bus signals a request at most once, and not after its end.
//! - B4: the bus signals nothing that nobody cancelled.
//! - B8: a cancel that returned success has set its tombstone and rung its doorbell.
//! - B9: a request is forwarded at most once.
//! - B10: a session is served by the node that made it, in the same life of that node, and this node refuses none of
//!   its requests.
//!
//! In every state in which nothing happens any more unless a client or a fault causes it:
//! - B1: a request whose cancel was acknowledged before its end is signalled, or has ended.
//! - B5: no tombstone is left.
//! - B6: no subscription and no doorbell is left of an ended request.
//! - B7: `is_cancelled` is true for a watched key whose cancel was acknowledged.
//! - B10: every client has an answer, or its request runs at the owner.
//! - B11: a client's own cancel that the owner accepted, on any way, has signalled its request. The same is true if the
//!   client left.
//!
//! B12: every run reaches such a state. Otherwise the conditions above would not say that something happens in the end.
//!
//! # Assumptions
//! The properties of the bus depend on three times (`cancels`): how long a watcher may be behind, how long a cancel
//! may take, and how long a tombstone lives, which must be longer than the sum of the two. The engine keeps its
//! tombstones while it is away. A failover that loses them can lose a cancel, which `engine-forgets` shows.
//!
//! Not in the models: a look that fails alone, while its connection stays (the watcher repeats it); the death of a
//! watcher's node, with which its requests end; `is_cancelled` of keys that are not watched; and NATS, whose watch
//! of a key delivers the look and the doorbells on one stream, which allows fewer orders.

mod cancels;
mod forwarding;
mod search;

pub use search::{Found, Searched};

use Size::{Large, Small};
use cancels::{Cancels, Faults, Parts, Watcher};
use forwarding::{Forwarding, Mishaps};
use search::search;

// The bugs that are planted in the models, to see that each property can be violated and that the search notices it.

macro_rules! bugs {
    ($($(#[doc = $what:literal])+ $bug:ident = $name:literal breaks $property:literal,)+) => {
        /// A bug that can be planted in a model.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Bug {
            $($(#[doc = $what])+ $bug,)+
        }

        impl Bug {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$bug,)+];

            /// Its name on the page.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)+
                }
            }

            /// What it does.
            #[must_use]
            pub fn what(self) -> &'static str {
                match self {
                    $(Self::$bug => concat!($($what,)+).trim(),)+
                }
            }

            /// The property that it violates.
            #[must_use]
            pub const fn breaks(self) -> &'static str {
                match self {
                    $(Self::$bug => $property,)+
                }
            }
        }
    };
}

bugs! {
    /// Cancel bus: a watcher looks at the tombstone before it subscribes.
    LookBeforeSubscribing = "look-before-subscribing" breaks "B1",
    /// Cancel bus: a cancel rings the doorbell and sets no tombstone.
    NoTombstone = "no-tombstone" breaks "B1",
    /// Cancel bus: a cancel rings the doorbell before it sets the tombstone.
    DoorbellFirst = "doorbell-first" breaks "B1",
    /// Cancel bus: after a lost connection the keys are not subscribed again.
    WatchNotRepeated = "watch-not-repeated" breaks "B1",
    /// Cancel bus: after a lost connection the keys are subscribed again, without a look at the tombstones.
    ReturnWithoutLook = "return-without-look" breaks "B1",
    /// Cancel bus: a tombstone lives no longer than a watcher may need until its look.
    TimeToLiveTooShort = "time-to-live-too-short" breaks "B1",
    /// Cancel bus: a cancel that took too long between its tombstone and its doorbell is acknowledged.
    SlowCancelAcknowledged = "slow-cancel-acknowledged" breaks "B1",
    /// Outside of the bus: the engine loses its tombstones while it is away.
    EngineForgets = "engine-forgets" breaks "B1",
    /// Cancel bus: the keys of a slot have no generation.
    NoGenerationInKeys = "no-generation-in-keys" breaks "B2",
    /// Cancel bus: every look and every doorbell signals, also after the first.
    SignalAgain = "signal-again" breaks "B3",
    /// Cancel bus: a doorbell that arrives after the end of the request still signals.
    LateDoorbellSignals = "late-doorbell-signals" breaks "B3",
    /// Cancel bus: a look that fails counts as a cancel.
    FailedLookCancels = "failed-look-cancels" breaks "B4",
    /// Cancel bus: a tombstone has no time to live.
    TombstoneForever = "tombstone-forever" breaks "B5",
    /// Cancel bus: the end of a request does not unsubscribe.
    StillSubscribed = "still-subscribed" breaks "B6",
    /// Cancel bus: a cancel that the look finds signals, and `is_cancelled` stays false.
    LookSetsNoFlag = "look-sets-no-flag" breaks "B7",
    /// Cancel bus: a cancel returns success although the engine is away.
    SilentSuccess = "silent-success" breaks "B8",
    /// Forwarding: a node forwards a request that was forwarded to it.
    ForwardTwice = "forward-twice" breaks "B9",
    /// Forwarding: a node serves a request that was forwarded to it without a check that it owns the session.
    ForwardedIsTrusted = "forwarded-is-trusted" breaks "B10",
    /// Forwarding: a restarted node serves the sessions of its former life.
    FormerLifeServed = "former-life-served" breaks "B10",
    /// Forwarding: a node asks its view of the members who it is, and forwards a request for its own session.
    OwnerAsksItsView = "owner-asks-its-view" breaks "B10",
    /// Forwarding: an entry node waits for an owner that is dead.
    DeadOwnerAwaited = "dead-owner-awaited" breaks "B10",
    /// Forwarding: a node accepts a cancel for a session of another node.
    CancelAcceptedAnywhere = "cancel-accepted-anywhere" breaks "B11",
    /// Forwarding: a client that leaves the stream of its entry node does not leave that of the owner.
    LeaveNotForwarded = "leave-not-forwarded" breaks "B11",
    /// Cancel bus: a watcher looks again and again.
    Polling = "polling" breaks "B12",
}

// The cases that are searched: who takes part, and how often each fault may happen.

/// One search.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name on the page.
    pub name: &'static str,
    /// Which builds search it.
    pub size: Size,
    model: Kind,
}

/// How large a case is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Every build searches it.
    Small,
    /// Only optimised builds search it. `.ci/verify` runs one.
    Large,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Cancels(Parts),
    Forwarding(Mishaps),
}

const fn watcher(key: u8, node: u8) -> Watcher {
    Watcher { key, node, after: None }
}

const fn faults(losses: u8, outages: u8, failures: u8) -> Faults {
    Faults { losses, outages, failures }
}

const fn mishaps(deaths: u8, cuts: u8, new_views: u8) -> Mishaps {
    Mishaps { deaths, cuts, new_views }
}

const ONE: &[Watcher] = &[watcher(0, 0)];
const TWO_KEYS: &[Watcher] = &[watcher(0, 0), watcher(1, 0)];
const TWO_NODES: &[Watcher] = &[watcher(0, 0), watcher(0, 1)];
const ONE_AFTER_THE_OTHER: &[Watcher] = &[watcher(0, 0), Watcher { key: 1, node: 0, after: Some(0) }];

const fn cancels(
    name: &'static str,
    size: Size,
    watchers: &'static [Watcher],
    cancels: &'static [u8],
    faults: Faults,
) -> Case {
    Case { name, size, model: Kind::Cancels(Parts { watchers, cancels, faults }) }
}

const fn forwarding(name: &'static str, size: Size, mishaps: Mishaps) -> Case {
    Case { name, size, model: Kind::Forwarding(mishaps) }
}

/// Every case.
pub const CASES: &[Case] = &[
    cancels("a slot used twice, two cancels", Small, ONE_AFTER_THE_OTHER, &[2], faults(1, 0, 0)),
    cancels("one request, two cancellers", Small, ONE, &[1, 1], faults(1, 1, 1)),
    cancels("two requests on one connection, two cancels", Small, TWO_KEYS, &[2], faults(1, 0, 0)),
    cancels("one key watched on two nodes", Small, TWO_NODES, &[1], faults(1, 1, 1)),
    forwarding("a request and its cancel, lost connections", Small, mishaps(0, 1, 1)),
    forwarding("a request and its cancel, dead nodes", Small, mishaps(1, 0, 0)),
    cancels("a slot used twice, two cancellers", Large, ONE_AFTER_THE_OTHER, &[1, 1], faults(1, 1, 0)),
    cancels("one request, three cancels", Large, ONE, &[2, 1], faults(2, 1, 1)),
    cancels("two requests on one connection, two cancellers", Large, TWO_KEYS, &[1, 1], faults(1, 0, 0)),
    cancels("one key watched on two nodes, two cancellers", Large, TWO_NODES, &[1, 1], faults(1, 0, 0)),
    forwarding("a request and its cancel, every fault", Large, mishaps(1, 1, 1)),
];

/// All that can happen in a step of the models.
pub const EVENTS: [&[&str]; 2] = [cancels::EVENTS, forwarding::EVENTS];

impl Case {
    /// Whether the bug is in the code of this case.
    #[must_use]
    pub fn has(&self, bug: Bug) -> bool {
        let is_of_forwarding = matches!(bug.breaks(), "B9" | "B10" | "B11");
        match self.model {
            Kind::Cancels(_) => !is_of_forwarding,
            Kind::Forwarding(_) => is_of_forwarding,
        }
    }

    /// Searches every state of the case, with a bug if one is planted.
    ///
    /// # Errors
    /// If a property is violated.
    pub fn search(&self, bug: Option<Bug>) -> Result<Searched, Box<Found>> {
        match self.model {
            Kind::Cancels(parts) => search(&Cancels { parts, bug }),
            Kind::Forwarding(mishaps) => search(&Forwarding { mishaps, bug }),
        }
    }
}
