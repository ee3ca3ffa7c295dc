//! The options of the program.

/// The dialects, by the first argument.
pub(super) const DIALECTS: [&str; 3] = ["mcp", "lsp", "acp"];

/// Correct, and awkward for a client that takes its own habits for rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Serves one request at a time. Cancels are still read.
    Serial,
    /// Uses the processor while it works.
    Busy,
    /// Looks at cancels every 300 ms only.
    Slices,
    /// Takes 2 s before it reads its first message.
    SlowStart,
    /// Takes 2 s before its first answer after the opening.
    Lazy,
    /// Answers a cancelled request with what it has so far.
    PartialResults,
    /// Sends logs and notifications of its own.
    Chatty,
    /// Sends requests of its own while it works, and waits for their answers.
    Asks,
    /// Answers the quick request with an error of its own.
    QuickFails,
    /// Serves nothing before a document is open (LSP), a tool was called (MCP) or the client has logged in (ACP).
    NeedsSetup,
    /// Writes more than 64 KiB to stderr.
    StderrNoise,
    /// Has a child process, which does the work if it is `Busy`.
    Forks,
    /// Answers a frame that is not JSON.
    AnswersBadJson,
    /// Refuses a second slow request while one runs.
    OneAtATime,
    /// Ends its frames with a carriage return too, or has a second header.
    OtherFraming,
    /// Does not exit when its input ends.
    Lingers,
    /// Writes each frame in two pieces.
    Pieces,
    /// Takes three times as long from its fourth slow request on, as on a machine that has become busy.
    SlowsDown,
    /// The second slow request ends early without a cancel, as the turn of an agent may.
    SecondIsQuick,
    /// Refuses each slow request after the twelfth, as a service that limits their rate.
    RateLimited,
    /// Ends a slow request with an error when a newer one comes.
    Supersedes,
    /// Says of its tool `add` that it only reads (MCP).
    ReadingTools,
    /// Runs its tool `count` as a task, if the client asks for one (MCP).
    Tasks,
}

/// Wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A cancelled request runs to its normal end. Wrong only where a protocol demands more.
    IgnoresCancel,
    /// A slow request is answered twice: at once where it was cancelled and that is answered, else at its end.
    AnswersTwice,
    /// The result of a cancelled request follows its cancelled answer, when the work is done.
    AnswersTwiceLate,
    /// A cancelled request is answered at the time when it would have ended.
    AnswersAfterSilence,
    /// A cancelled request is answered at once, though the protocol wants silence.
    AnswersCancelled,
    /// A cancelled request is answered with a code of its own.
    WrongCancelledCode,
    /// After a cancel the answers of two requests are swapped.
    CrossingIds,
    /// After a cancel nothing is answered any more.
    DeadAfterCancel,
    /// A cancelled request keeps its place among the eight that run.
    SlotNotFreed,
    /// One more progress notification follows the answer.
    ProgressAfterAnswer,
    /// A cancel for an answered request cancels the next request.
    LateCancelKillsNext,
    /// A cancel for an unknown id ends the program.
    UnknownCancelKills,
    /// A cancelled request is never answered.
    NeverAnswersCancelled,
    /// A cancel is applied to another request that runs.
    CancelsSibling,
    /// A cancelled request is answered, but works on.
    WorkGoesOn,
    /// The program exits after a cancel.
    ExitsAfterCancel,
    /// A cancel without a valid id ends the program.
    MalformedCancelKills,
    /// Text other than messages is written to stdout when a slow request begins.
    StdoutNoise,
    /// An unknown method is answered with a result.
    WrongUnknownMethod,
    /// An unknown notification is answered.
    AnswersNotification,
    /// A cancel for `"1"` cancels the request 1.
    TextIdCancelsNumber,
    /// A cancel for the id 0 is taken for one without an id.
    ZeroIdNotCancelled,
    /// A request with the id 0 is taken for a notification.
    ZeroIdNotServed,
    /// An unknown request in `$/` is dropped, as such a notification is.
    ReservedNotAnswered,
    /// An unknown request in `$/` is refused with a code of its own.
    ReservedCode,
    /// The ids of answers are texts.
    TextIds,
    /// The ids of answers are numbers with a fraction, as 1.0.
    FractionIds,
    /// Answers have no `jsonrpc`.
    NoVersion,
    /// Answers come in an array, though none was asked for.
    AnswersInArray,
    /// An error is its message, and no object.
    ErrorIsText,
    /// `error: null` is beside each result.
    ErrorNull,
    /// A byte order mark precedes each message.
    ByteOrderMark,
    /// A text in each answer has half of a surrogate pair.
    LoneSurrogate,
    /// Whichever request a cancel names, the oldest one that runs is cancelled.
    CancelsOldest,
    /// `session/cancel` ends a turn as if it had come to its own end.
    TurnEndsNormally,
    /// `session/cancel` ends a turn with an error.
    TurnFails,
    /// `session/cancel` is ignored.
    TurnIgnoresCancel,
    /// A turn ends as cancelled when its work would have ended.
    TurnEndsLate,
    /// `session/cancel` ends the turns of all sessions.
    TurnsOfAllSessions,
    /// A session whose turn was cancelled takes no prompt any more.
    SessionDeadAfterTurn,
    /// A cancelled task works on.
    TaskWorkGoesOn,
    /// A cancelled task works on, and is completed at its end.
    TaskCompletesLater,
    /// The cancel of the request that began a task cancels the task.
    TaskEndsWithRequest,
    /// `tasks/cancel` is answered and ignored.
    TaskNotCancelled,
    /// `tasks/cancel` of a cancelled task is answered with the task.
    TaskCancelledTwice,
    /// `tasks/get` of an unknown task is answered with a task that has failed.
    TaskUnknownFound,
}

const MANNERS: [(&str, Manner); 23] = [
    ("--serial", Manner::Serial),
    ("--busy", Manner::Busy),
    ("--slices", Manner::Slices),
    ("--slow-start", Manner::SlowStart),
    ("--lazy", Manner::Lazy),
    ("--partial-results", Manner::PartialResults),
    ("--chatty", Manner::Chatty),
    ("--asks", Manner::Asks),
    ("--quick-fails", Manner::QuickFails),
    ("--needs-setup", Manner::NeedsSetup),
    ("--stderr-noise", Manner::StderrNoise),
    ("--forks", Manner::Forks),
    ("--answers-bad-json", Manner::AnswersBadJson),
    ("--one-at-a-time", Manner::OneAtATime),
    ("--other-framing", Manner::OtherFraming),
    ("--lingers", Manner::Lingers),
    ("--pieces", Manner::Pieces),
    ("--slows-down", Manner::SlowsDown),
    ("--second-is-quick", Manner::SecondIsQuick),
    ("--rate-limited", Manner::RateLimited),
    ("--supersedes", Manner::Supersedes),
    ("--reading-tools", Manner::ReadingTools),
    ("--tasks", Manner::Tasks),
];

const FAULTS: [(&str, Fault); 46] = [
    ("--ignores-cancel", Fault::IgnoresCancel),
    ("--answers-twice", Fault::AnswersTwice),
    ("--answers-twice-late", Fault::AnswersTwiceLate),
    ("--answers-after-silence", Fault::AnswersAfterSilence),
    ("--answers-cancelled", Fault::AnswersCancelled),
    ("--wrong-cancelled-code", Fault::WrongCancelledCode),
    ("--crossing-ids", Fault::CrossingIds),
    ("--dead-after-cancel", Fault::DeadAfterCancel),
    ("--slot-not-freed", Fault::SlotNotFreed),
    ("--progress-after-answer", Fault::ProgressAfterAnswer),
    ("--late-cancel-kills-next", Fault::LateCancelKillsNext),
    ("--unknown-cancel-kills", Fault::UnknownCancelKills),
    ("--never-answers-cancelled", Fault::NeverAnswersCancelled),
    ("--cancels-sibling", Fault::CancelsSibling),
    ("--work-goes-on", Fault::WorkGoesOn),
    ("--exits-after-cancel", Fault::ExitsAfterCancel),
    ("--malformed-cancel-kills", Fault::MalformedCancelKills),
    ("--stdout-noise", Fault::StdoutNoise),
    ("--wrong-unknown-method", Fault::WrongUnknownMethod),
    ("--answers-notification", Fault::AnswersNotification),
    ("--text-id-cancels-number", Fault::TextIdCancelsNumber),
    ("--zero-id-not-cancelled", Fault::ZeroIdNotCancelled),
    ("--zero-id-not-served", Fault::ZeroIdNotServed),
    ("--reserved-not-answered", Fault::ReservedNotAnswered),
    ("--reserved-code", Fault::ReservedCode),
    ("--text-ids", Fault::TextIds),
    ("--fraction-ids", Fault::FractionIds),
    ("--no-version", Fault::NoVersion),
    ("--answers-in-array", Fault::AnswersInArray),
    ("--error-is-text", Fault::ErrorIsText),
    ("--error-null", Fault::ErrorNull),
    ("--byte-order-mark", Fault::ByteOrderMark),
    ("--lone-surrogate", Fault::LoneSurrogate),
    ("--cancels-oldest", Fault::CancelsOldest),
    ("--turn-ends-normally", Fault::TurnEndsNormally),
    ("--turn-fails", Fault::TurnFails),
    ("--turn-ignores-cancel", Fault::TurnIgnoresCancel),
    ("--turn-ends-late", Fault::TurnEndsLate),
    ("--turns-of-all-sessions", Fault::TurnsOfAllSessions),
    ("--session-dead-after-turn", Fault::SessionDeadAfterTurn),
    ("--task-work-goes-on", Fault::TaskWorkGoesOn),
    ("--task-completes-later", Fault::TaskCompletesLater),
    ("--task-ends-with-request", Fault::TaskEndsWithRequest),
    ("--task-not-cancelled", Fault::TaskNotCancelled),
    ("--task-cancelled-twice", Fault::TaskCancelledTwice),
    ("--task-unknown-found", Fault::TaskUnknownFound),
];

/// What was asked for.
#[derive(Debug)]
pub(super) struct Flags {
    manners: Vec<Manner>,
    faults: Vec<Fault>,
    /// How long a slow request works whose params do not say it, in milliseconds.
    pub(super) work_ms: u64,
}

impl Flags {
    /// The error is the first unknown argument.
    pub(super) fn read(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut flags = Self { manners: Vec::new(), faults: Vec::new(), work_ms: 1500 };
        for argument in arguments {
            if let Some(ms) = argument.strip_prefix("--work=").and_then(|ms| ms.parse().ok()) {
                flags.work_ms = ms;
            } else if let Some((_, manner)) = MANNERS.iter().find(|(name, _)| *name == argument) {
                flags.manners.push(*manner);
            } else if let Some((_, fault)) = FAULTS.iter().find(|(name, _)| *name == argument) {
                flags.faults.push(*fault);
            } else {
                return Err(argument);
            }
        }
        Ok(flags)
    }

    pub(super) fn is(&self, manner: Manner) -> bool {
        self.manners.contains(&manner)
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}
