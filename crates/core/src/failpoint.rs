//! Faults that are planted on purpose, to see which test finds each. Feature `failpoints`. No release is built with it.
//!
//! Without the feature [`active`] is the constant `false`, and the optimiser removes the code of the faults. With the
//! feature the process behaves normally, unless the variable `RESCIND_FAILPOINT` names a fault at the first call.

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

            /// Its name in `RESCIND_FAILPOINT`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$failpoint => $name,)+
                }
            }

            /// Where the fault is, and what it does.
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
    /// Machine: the permit is returned with the answer, although the task still runs.
    EarlyRefund = "early-refund",
    /// Machine: an old key finds the new request in its slot.
    NoGeneration = "no-generation",
    /// Machine: a second request takes over an id in use.
    OverwriteDuplicate = "overwrite-duplicate",
    /// Machine: a cascade is recursive.
    RecursiveCascade = "recursive-cascade",
    /// Machine: a call that was not written is cancelled with a message.
    CancelOvertakes = "cancel-overtakes",
    /// Machine: a request that must not be answered is answered.
    AnswerAfterSilence = "answer-after-silence",
    /// Machine: a critical section does not delay a cancel.
    ShieldIgnored = "shield-ignored",
    /// Machine: the number of early cancels that wait is not limited.
    ParkUnbounded = "park-unbounded",
    /// Machine: an early cancel waits forever.
    EarlyCancelStays = "early-cancel-stays",
    /// Machine: the timers of a request stay after its end.
    TimerLeft = "timer-left",
    /// Machine: a cancel reaches the handshake.
    HandshakeCancelled = "handshake-cancelled",
    /// Machine: a cancelled request may have new children.
    NotBornCancelled = "not-born-cancelled",
    /// Machine: the value that a handler returns after its cancel is not sent.
    ValueDropped = "value-dropped",
    /// Machine: an answer does not disarm the cancel that waits to be written.
    CancelNotDisarmed = "cancel-not-disarmed",
    /// Machine: an aborted task counts as ended at once.
    RapidReset = "rapid-reset",
    /// Machine: the end of a task on a lost connection is ignored.
    LostKeepsSlots = "lost-keeps-slots",
    /// Machine: the end of a critical section does not deliver the cancel that it delayed.
    SignalLost = "signal-lost",
    /// Machine: an answer to a call is ignored.
    AnswerUnheard = "answer-unheard",
    /// Machine: a caller that cancels again gets the later cause.
    LaterCause = "later-cause",
    /// Machine: a cancel is acknowledged twice.
    AckTwice = "ack-twice",
    /// Machine: a task is reported as cancelled, and its handler is not signalled.
    TaskGoesOn = "task-goes-on",
    /// Machine: a task that was cancelled is reported as ended again when its handler ends, and the later end is kept.
    TaskEndsTwice = "task-ends-twice",
    /// Machine: a task keeps the id of its request, and the cancel of that id reaches it.
    TaskKeepsId = "task-keeps-id",
    /// Machine: the cancel of a task reaches the request that has the id of the task's first request now.
    TaskCancelTakesId = "task-cancel-takes-id",
    /// Driver: a cancel that arrives before its handler was polled is lost.
    LateRegistration = "late-registration",
    /// Driver: no task is woken for frames that are put into the outbox.
    LostWakeup = "lost-wakeup",
    /// Driver: callers are not notified that the connection is lost.
    ForgottenCallers = "forgotten-callers",
    /// Driver: the frames of a silenced request that wait to be written are written.
    SilenceLeavesFrames = "silence-leaves-frames",
    /// Driver: a quick handler that became a task cannot be aborted.
    QuickNotAborted = "quick-not-aborted",
    /// Driver: a quick handler is polled before the frames behind its request are read.
    QuickTooEarly = "quick-too-early",
    /// Framing: the frame after a refused frame is dropped too.
    BadFrameSwallowsNext = "bad-frame-swallows-next",
    /// Byte streams: bytes that did not fit into one write are lost.
    TornWrite = "torn-write",
    /// HTTP: the server is not notified that the client of an exchange has left.
    ExchangeCloseUntold = "exchange-close-untold",
    /// HTTP: POST requests count as ordered, so that a cancel that arrives before its request is lost.
    PostsCountAsOrdered = "posts-count-as-ordered",
    /// WebSocket: pings without an answer have no effect.
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
