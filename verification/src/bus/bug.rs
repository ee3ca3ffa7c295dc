//! The bugs that are planted in the models, to see that each property can be violated and that the search notices it.

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
