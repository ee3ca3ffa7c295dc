//! Faults that are planted on purpose, to see which test catches each. Feature `failpoints`; never build a release with it.
//!
//! Without the feature [`active`] is `false` when compiling, so that the optimiser drops what a fault would do. With it, the process
//! behaves as ever unless the variable `RESCIND_FAILPOINT` names a fault when it is asked for the first time.

#[cfg(all(feature = "failpoints", not(debug_assertions)))]
compile_error!("the feature `failpoints` is for tests: no optimised build may have it");

macro_rules! failpoints {
    ($($(#[doc = $what:literal])+ $failpoint:ident = $name:literal,)+) => {
        /// A fault that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Failpoint {
            $($(#[doc = $what])+ $failpoint,)+
        }

        impl Failpoint {
            /// Every fault.
            pub const ALL: &'static [Self] = &[$(Self::$failpoint,)+];

            /// What `RESCIND_FAILPOINT` calls it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$failpoint => $name,)+
                }
            }

            /// Where it is, and what it does.
            #[must_use]
            pub fn what(self) -> &'static str {
                let what = match self {
                    $(Self::$failpoint => concat!($($what),+),)+
                };
                what.trim()
            }
        }
    };
}

failpoints! {
    /// Machine: a second cancel signals the handler again.
    DoubleSignal = "double-signal",
    /// Machine: the permit comes back with the answer, though the task goes on.
    EarlyRefund = "early-refund",
    /// Machine: an old key finds what has its place now.
    NoGeneration = "no-generation",
    /// Machine: a second request takes over an id in use.
    OverwriteDuplicate = "overwrite-duplicate",
    /// Machine: a cascade goes down by calling itself.
    RecursiveCascade = "recursive-cascade",
    /// Machine: a call that was not written is cancelled with a message.
    CancelOvertakes = "cancel-overtakes",
    /// Machine: an answer follows the silence that was owed.
    AnswerAfterSilence = "answer-after-silence",
    /// Machine: a critical section holds nothing off.
    ShieldIgnored = "shield-ignored",
    /// Machine: early cancels wait without a bound.
    ParkUnbounded = "park-unbounded",
    /// Machine: an early cancel waits for ever.
    EarlyCancelStays = "early-cancel-stays",
    /// Machine: the timers of a request outlive it.
    TimerLeft = "timer-left",
    /// Machine: a cancel reaches the handshake.
    HandshakeCancelled = "handshake-cancelled",
    /// Machine: a cancelled request may have new children.
    NotBornCancelled = "not-born-cancelled",
    /// Machine: what a handler returns after its cancel is not sent.
    ValueDropped = "value-dropped",
    /// Machine: an answer does not disarm the cancel that waits to be written.
    CancelNotDisarmed = "cancel-not-disarmed",
    /// Machine: a task that was told to end counts as gone at once.
    RapidReset = "rapid-reset",
    /// Machine: the end of a task on a lost connection is not heard.
    LostKeepsSlots = "lost-keeps-slots",
    /// Machine: the end of a critical section does not bring the cancel it held off.
    SignalLost = "signal-lost",
    /// Machine: an answer to a call is not heard.
    AnswerUnheard = "answer-unheard",
    /// Machine: a caller that cancels again is told the later cause.
    LaterCause = "later-cause",
    /// Machine: a cancel is acknowledged twice.
    AckTwice = "ack-twice",
    /// Driver: a cancel that comes before its handler was polled is lost.
    LateRegistration = "late-registration",
    /// Driver: nobody is woken for what is put into the outbox.
    LostWakeup = "lost-wakeup",
    /// Driver: callers are not told that the connection is lost.
    ForgottenCallers = "forgotten-callers",
    /// Driver: what waits to be written for a silenced request is written.
    SilenceLeavesFrames = "silence-leaves-frames",
    /// Framing: the frame behind one that was refused is dropped with it.
    BadFrameSwallowsNext = "bad-frame-swallows-next",
    /// Byte streams: what did not fit into one write is lost.
    TornWrite = "torn-write",
    /// HTTP: nobody is told that the client of an exchange has left.
    ExchangeCloseUntold = "exchange-close-untold",
    /// HTTP: posts count as ordered, so that a cancel ahead of its request is lost.
    PostsCountAsOrdered = "posts-count-as-ordered",
    /// WebSocket: pings that are not answered mean nothing.
    PongDeadlineIgnored = "pong-deadline-ignored",
    /// WebSocket: nothing is read while a write waits.
    ReadingWaitsForWriting = "reading-waits-for-writing",
}

/// Whether this fault is planted.
#[cfg(not(feature = "failpoints"))]
#[inline]
#[must_use]
pub const fn active(_: Failpoint) -> bool {
    false
}

/// Whether this fault is planted.
#[cfg(feature = "failpoints")]
#[must_use]
pub fn active(failpoint: Failpoint) -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<Option<Failpoint>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| {
        let name = std::env::var("RESCIND_FAILPOINT").ok()?;
        Failpoint::ALL.iter().copied().find(|failpoint| failpoint.name() == name)
    });
    *planted == Some(failpoint)
}
