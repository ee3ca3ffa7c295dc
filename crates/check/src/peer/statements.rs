//! What is asked of a peer: each fact's statement, how much the documents demand of it, and the sentence.
//!
//! Some facts exclude each other. Two probes may look at different requests or at different times, and a witness may be
//! wrong. Then the fact that is known less directly is `unsure`, so that no report says both.

use rescind_core::Deviation;
use rescind_testkit::Answer::{No, Yes};
use rescind_testkit::Demand::{Must, Open, Should};
use rescind_testkit::{Answer, Demand, Fact};

/// The facts, in the order of the report. Their names are part of the JSON format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Question {
    CancelsRunning,
    AnswersCancelled,
    CancelledCode,
    StaysSilent,
    AnswersOnce,
    StopsWork,
    FreesSlot,
    SessionSurvives,
    LateCancelIgnored,
    UnknownCancelIgnored,
    MalformedCancelIgnored,
    SiblingsUntouched,
    TellsIdsApart,
    CancelsIdZero,
    ProgressEndsWithAnswer,
    UnknownMethodRefused,
    ReservedMethodRefused,
    UnknownNotificationIgnored,
    ServesConcurrently,
    CleanOutput,
    RepeatsIds,
    NamesVersion,
    AnswerForm,
    WholeCharacters,
    TurnCancelled,
    TurnEndsSoon,
    OtherTurnsUntouched,
    NextTurnServed,
}

/// A question in one dialect.
pub(super) struct Asked {
    pub(super) name: &'static str,
    pub(super) statement: &'static str,
    pub(super) demand: Demand,
    pub(super) source: String,
}

/// The families of dialects whose documents say the same about these questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Acp,
    Lsp,
    Mcp,
}

impl Family {
    fn of(dialect: &str) -> Self {
        match dialect {
            "lsp" => Self::Lsp,
            "mcp" | "mcp-2026" => Self::Mcp,
            _ => Self::Acp,
        }
    }
}

const SILENCE_OF_2026: &str = "MCP 2026-07-28: the page on cancellation says that the server should not send a response, that on stdio that it \
                               must not: so it is held as a recommendation.";
const ONE_ANSWER: &str = "JSON-RPC 2.0: a request is answered by one response.";
const ONLY_ITS_OWN: &str = "JSON-RPC 2.0: each request gets its own response; nobody cancelled this one.";
const ITS_OWN_CALL: &str = "ABP: a cancel is about the call with its callId, and each call gets its result.";
const EACH_BYTE: &str = "each byte of the stream belongs to a message; what does not cannot be read.";
const HALF_A_CHARACTER: &str =
    "RFC 8259: a text may have half of a surrogate pair, and what reads it behaves unpredictably.";
const NOTHING_SAID: &str = "no document says anything about it.";

impl Question {
    pub(super) const ALL: [Self; 28] = [
        Self::CancelsRunning,
        Self::AnswersCancelled,
        Self::CancelledCode,
        Self::StaysSilent,
        Self::AnswersOnce,
        Self::StopsWork,
        Self::FreesSlot,
        Self::SessionSurvives,
        Self::LateCancelIgnored,
        Self::UnknownCancelIgnored,
        Self::MalformedCancelIgnored,
        Self::SiblingsUntouched,
        Self::TellsIdsApart,
        Self::CancelsIdZero,
        Self::ProgressEndsWithAnswer,
        Self::UnknownMethodRefused,
        Self::ReservedMethodRefused,
        Self::UnknownNotificationIgnored,
        Self::ServesConcurrently,
        Self::CleanOutput,
        Self::RepeatsIds,
        Self::NamesVersion,
        Self::AnswerForm,
        Self::WholeCharacters,
        Self::TurnCancelled,
        Self::TurnEndsSoon,
        Self::OtherTurnsUntouched,
        Self::NextTurnServed,
    ];

    /// Those that all messages answer together.
    pub(super) const FORMS: [Self; 5] =
        [Self::CleanOutput, Self::RepeatsIds, Self::NamesVersion, Self::AnswerForm, Self::WholeCharacters];

    /// The question whose answer is no after this. The library takes such messages where their meaning is certain, which does
    /// not make them right.
    pub(super) const fn of_deviation(deviation: Deviation) -> Self {
        match deviation {
            Deviation::IdSpelling | Deviation::NoId => Self::RepeatsIds,
            Deviation::NoVersion => Self::NamesVersion,
            Deviation::BatchOfAnswers | Deviation::InvalidAnswer => Self::AnswerForm,
            Deviation::LoneSurrogate => Self::WholeCharacters,
            // Also whatever else a transport drops.
            _ => Self::CleanOutput,
        }
    }

    /// Whether the question makes sense in a dialect. Where silence is owed, nothing is asked about answers. The calls of
    /// ABP have text as ids, so none of them is zero. Methods in `$/` are reserved in LSP only.
    pub(super) fn applies(self, dialect: &str, owes_silence: bool) -> bool {
        match self {
            Self::AnswersCancelled | Self::CancelledCode => !owes_silence,
            Self::StaysSilent => owes_silence,
            Self::ReservedMethodRefused => Family::of(dialect) == Family::Lsp,
            Self::CancelsIdZero | Self::RepeatsIds | Self::NamesVersion | Self::AnswerForm => {
                dialect != "abp"
            }
            Self::TurnCancelled | Self::TurnEndsSoon | Self::OtherTurnsUntouched | Self::NextTurnServed => {
                Family::of(dialect) == Family::Acp && dialect != "abp"
            }
            Self::CancelsRunning
            | Self::AnswersOnce
            | Self::StopsWork
            | Self::FreesSlot
            | Self::SessionSurvives
            | Self::LateCancelIgnored
            | Self::UnknownCancelIgnored
            | Self::MalformedCancelIgnored
            | Self::SiblingsUntouched
            | Self::TellsIdsApart
            | Self::ProgressEndsWithAnswer
            | Self::UnknownMethodRefused
            | Self::UnknownNotificationIgnored
            | Self::ServesConcurrently
            | Self::CleanOutput
            | Self::WholeCharacters => true,
        }
    }

    pub(super) fn asked(self, dialect: &str) -> Asked {
        let family = Family::of(dialect);
        let (name, statement) = self.words();
        let (demand, source) = match (self, dialect) {
            (Self::StaysSilent, "mcp-2026") => (Should, SILENCE_OF_2026),
            (Self::TurnCancelled, "acp-draft") => {
                (Should, "ACP draft: `session/cancel` stays, and ends the whole prompt turn.")
            }
            (Self::TurnCancelled, "acp-v2") => {
                (Should, "ACP v2: a feature such as the prompt turn may have a cancel of its own.")
            }
            (_, "abp") => self.demand_of_abp(),
            _ => self.demand(family),
        };
        // What is quoted of the two revisions reads the same in both.
        let source = match dialect {
            "mcp-2026" => source.replace("MCP 2025-11-25", "MCP 2026-07-28"),
            _ => source.to_owned(),
        };
        Asked { name, statement, demand, source }
    }

    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::CancelsRunning => ("cancels_running", "cancels a running request"),
            Self::AnswersCancelled => ("answers_cancelled", "answers a request that was cancelled"),
            Self::CancelledCode => ("cancelled_code", "answers it as cancelled or with a result"),
            Self::StaysSilent => ("stays_silent", "sends no answer after a cancel"),
            Self::AnswersOnce => ("answers_once", "answers each request once"),
            Self::StopsWork => ("stops_work", "stops the work of a cancelled request"),
            Self::FreesSlot => ("frees_slot", "serves the next request after many cancels"),
            Self::SessionSurvives => ("session_survives", "keeps the session after a cancel"),
            Self::LateCancelIgnored => ("late_cancel_ignored", "ignores a cancel that comes too late"),
            Self::UnknownCancelIgnored => ("unknown_cancel_ignored", "ignores a cancel for an unknown id"),
            Self::MalformedCancelIgnored => ("malformed_cancel_ignored", "ignores a malformed cancel"),
            Self::SiblingsUntouched => ("siblings_untouched", "leaves other requests alone"),
            Self::TellsIdsApart => ("tells_ids_apart", "takes the ids 1 and \"1\" for two requests"),
            Self::CancelsIdZero => ("cancels_id_zero", "cancels a running request whose id is 0"),
            Self::ProgressEndsWithAnswer => {
                ("progress_ends_with_answer", "reports no progress after the answer")
            }
            Self::UnknownMethodRefused => ("unknown_method_refused", "refuses an unknown method"),
            Self::ReservedMethodRefused => (
                "reserved_method_refused",
                "refuses an unknown request in $/ as a method that does not exist",
            ),
            Self::UnknownNotificationIgnored => {
                ("unknown_notification_ignored", "does not answer an unknown notification")
            }
            Self::ServesConcurrently => ("serves_concurrently", "answers others while a slow request runs"),
            Self::CleanOutput => ("clean_output", "sends messages and nothing else"),
            Self::RepeatsIds => ("repeats_ids", "answers with the id as it was sent"),
            Self::NamesVersion => ("names_version", "names the version of JSON-RPC in each message"),
            Self::AnswerForm => ("answer_form", "answers each request by a result or an error object"),
            Self::WholeCharacters => ("whole_characters", "writes no half of a character in a text"),
            Self::TurnCancelled => {
                ("turn_cancelled", "ends a turn with the stop reason `cancelled` after session/cancel")
            }
            Self::TurnEndsSoon => ("turn_ends_soon", "ends a turn soon after session/cancel"),
            Self::OtherTurnsUntouched => {
                ("other_turns_untouched", "leaves other sessions alone at session/cancel")
            }
            Self::NextTurnServed => ("next_turn_served", "takes the next prompt after session/cancel"),
        }
    }

    #[expect(clippy::too_many_lines, reason = "one table, a row for each question and family")]
    const fn demand(self, family: Family) -> (Demand, &'static str) {
        match (self, family) {
            (Self::CancelsRunning, Family::Lsp) => {
                (Open, "LSP 3.18: a notification whose method begins with $/ may be ignored.")
            }
            (Self::CancelsRunning, Family::Mcp) => {
                (Should, "MCP 2025-11-25: the receiver of a cancel should stop processing the request.")
            }
            (Self::CancelsRunning, Family::Acp) => (
                Should,
                "ACP says that the receiver may cancel the work, ACPRFD that it must: so it is held as a recommendation.",
            ),
            (Self::AnswersCancelled, Family::Lsp) => (
                Must,
                "LSP 3.18: a cancelled request still needs to send a response back; it can not be left open.",
            ),
            (Self::AnswersCancelled, Family::Acp) => (
                Must,
                "ACP: the receiver must answer the cancelled request, with -32800 or a valid response.",
            ),
            (Self::CancelledCode, Family::Lsp) => (
                Should,
                "LSP 3.18: if a cancelled request is answered with an error, its code is advised to be -32800.",
            ),
            (Self::CancelledCode, Family::Acp) => {
                (Must, "ACP: the answer to a cancelled request is the error -32800 or a valid response.")
            }
            (Self::CancelledCode, Family::Mcp)
            | (Self::MalformedCancelIgnored, Family::Acp | Family::Lsp)
            | (Self::ServesConcurrently, _) => (Open, NOTHING_SAID),
            (Self::StaysSilent, _) => (
                Should,
                "MCP 2025-11-25: the receiver of a cancel should not send a response for the request.",
            ),
            (Self::AnswersCancelled, Family::Mcp) | (Self::AnswersOnce, _) => (Must, ONE_ANSWER),
            (Self::StopsWork, Family::Mcp) => (
                Should,
                "MCP 2025-11-25: the receiver of a cancel should stop processing and free its resources.",
            ),
            (Self::StopsWork, Family::Lsp) => (
                Open,
                "LSP 3.18: a notification whose method begins with $/ may be ignored, so the work may go on.",
            ),
            (Self::StopsWork, Family::Acp) => {
                (Should, "ACPRFD: the receiver cancels the work and all that belongs to it.")
            }
            (Self::SessionSurvives, _) => {
                (Must, "JSON-RPC 2.0: a request that is sent after the cancel of another gets its response.")
            }
            (
                Self::FreesSlot
                | Self::SiblingsUntouched
                | Self::LateCancelIgnored
                | Self::UnknownCancelIgnored,
                _,
            ) => (Must, ONLY_ITS_OWN),
            (Self::MalformedCancelIgnored, Family::Mcp) => {
                (Should, "MCP 2025-11-25: invalid cancels, malformed ones among them, should be ignored.")
            }
            (Self::TellsIdsApart, _) => (
                Open,
                "the protocols allow numbers and strings as ids and do not say whether 1 and \"1\" are equal.",
            ),
            (Self::CancelsIdZero, family) => demand_of_zero(family),
            (Self::ReservedMethodRefused, _) => (
                Must,
                "LSP 3.18: an unknown request whose method begins with $/ must get the error -32601. Such a notification may be ignored.",
            ),
            (Self::ProgressEndsWithAnswer, Family::Mcp) => {
                (Must, "MCP 2025-11-25: progress notifications must stop after the request has completed.")
            }
            (Self::ProgressEndsWithAnswer, Family::Lsp) => (
                Should,
                "LSP 3.18: a request's workDoneToken is only valid until its response has been sent.",
            ),
            (Self::ProgressEndsWithAnswer, Family::Acp) => {
                (Open, "the protocol does not bind progress to the answer.")
            }
            (Self::UnknownMethodRefused, _) => {
                (Must, "JSON-RPC 2.0: a request for a method that does not exist is answered with an error.")
            }
            (Self::UnknownNotificationIgnored, _) => {
                (Must, "JSON-RPC 2.0: a notification is never answered, not even with an error.")
            }
            (Self::CleanOutput, Family::Mcp) => (
                Must,
                "MCP 2025-11-25: a server must not write anything to its stdout that is not a message.",
            ),
            (Self::CleanOutput, Family::Acp) => {
                (Must, "ACP: the agent must not write anything to its stdout that is not a message.")
            }
            (Self::CleanOutput, Family::Lsp) => (Must, EACH_BYTE),
            (Self::RepeatsIds, _) => {
                (Must, "JSON-RPC 2.0: the id of an answer must be the same value as the id of its request.")
            }
            (Self::NamesVersion, _) => (
                Must,
                "JSON-RPC 2.0: a message has the member jsonrpc, which must be exactly the text \"2.0\".",
            ),
            (Self::AnswerForm, _) => (
                Must,
                "JSON-RPC 2.0: an answer must have either a result or an error, which is an object, and not both.",
            ),
            (Self::WholeCharacters, _) => (Open, HALF_A_CHARACTER),
            (Self::TurnCancelled, _) => (
                Must,
                "ACP: after `session/cancel` the agent must end the prompt with the stop reason `cancelled`, whatever its work does.",
            ),
            (Self::TurnEndsSoon, _) => (
                Should,
                "ACP: after `session/cancel` the agent should stop its model and its tools as soon as it can.",
            ),
            (Self::OtherTurnsUntouched, _) => (
                Must,
                "ACP: `session/cancel` is about the turn of the session that it names. JSON-RPC 2.0: another request gets its own answer.",
            ),
            (Self::NextTurnServed, _) => {
                (Must, "ACP: when a turn is over, its session takes the next prompt.")
            }
        }
    }

    /// ABP's messages are not those of JSON-RPC.
    const fn demand_of_abp(self) -> (Demand, &'static str) {
        match self {
            Self::CancelsRunning => {
                (Should, "ABP: the app stops the operation if it can and reports whether it did.")
            }
            Self::CancelledCode => {
                (Must, "ABP: a cancelled call is answered with success false and cancelled true.")
            }
            Self::StopsWork => (Should, "ABP: the app stops the operation if it can."),
            Self::CleanOutput => (Must, EACH_BYTE),
            Self::AnswersCancelled
            | Self::AnswersOnce
            | Self::SessionSurvives
            | Self::FreesSlot
            | Self::SiblingsUntouched
            | Self::LateCancelIgnored
            | Self::UnknownCancelIgnored => (Must, ITS_OWN_CALL),
            Self::WholeCharacters => (Open, HALF_A_CHARACTER),
            Self::RepeatsIds
            | Self::NamesVersion
            | Self::AnswerForm
            | Self::TurnCancelled
            | Self::TurnEndsSoon
            | Self::OtherTurnsUntouched
            | Self::NextTurnServed
            | Self::StaysSilent
            | Self::MalformedCancelIgnored
            | Self::TellsIdsApart
            | Self::CancelsIdZero
            | Self::ProgressEndsWithAnswer
            | Self::UnknownMethodRefused
            | Self::ReservedMethodRefused
            | Self::UnknownNotificationIgnored
            | Self::ServesConcurrently => (Open, NOTHING_SAID),
        }
    }
}

/// The sentence against a deviation, where that of its question says too little.
pub(super) fn deviation_source(deviation: Deviation, dialect: &str) -> Option<&'static str> {
    match (deviation, Family::of(dialect)) {
        (Deviation::ByteOrderMark, _) => {
            Some("RFC 8259: a byte order mark must not be added to the beginning of a JSON text.")
        }
        (Deviation::SeveralLines | Deviation::SharedLine | Deviation::Unended, Family::Mcp) => Some(
            "MCP 2025-11-25: over stdio, messages are delimited by newlines and must not contain embedded newlines.",
        ),
        (Deviation::SeveralLines | Deviation::SharedLine | Deviation::Unended, Family::Acp) => Some(
            "ACP: over stdio, messages are delimited by newlines and must not contain embedded newlines.",
        ),
        (Deviation::Unended, Family::Lsp) => {
            Some("LSP 3.17: Content-Length is the length of the content part in bytes.")
        }
        (Deviation::BatchOfAnswers, _) => {
            Some("JSON-RPC 2.0: an array of answers answers an array of requests, and none was sent.")
        }
        _ => None,
    }
}

/// How much is demanded of the cancel of a request with the id 0: as much as of any other.
const fn demand_of_zero(family: Family) -> (Demand, &'static str) {
    match family {
        Family::Lsp => {
            (Open, "LSP 3.18: an id may be any integer, also 0. The cancel of a request may be ignored.")
        }
        Family::Mcp => (
            Should,
            "MCP 2025-11-25: an id may be any integer, also 0. The receiver of a cancel should stop processing the request.",
        ),
        Family::Acp => (
            Should,
            "ACP: an id may be any integer, also 0. Whether the receiver of a cancel stops the work is held as a recommendation.",
        ),
    }
}

/// Two answers of which one must be wrong: what the frames show, and what gives way.
type Exclusion = ((&'static str, Answer), (&'static str, Answer));

const TABLE: [Exclusion; 7] = [
    // A request that ran to its normal end was not stopped, was answered, and not as cancelled.
    (("cancels_running", No), ("stops_work", Yes)),
    (("cancels_running", No), ("stays_silent", Yes)),
    (("cancels_running", No), ("cancelled_code", Yes)),
    (("cancels_running", No), ("cancelled_code", No)),
    (("cancels_running", No), ("cancels_id_zero", Yes)),
    (("answers_cancelled", No), ("cancelled_code", Yes)),
    (("session_survives", No), ("frees_slot", Yes)),
];

/// The pairs of facts that exclude each other, by their names. `facts`: their names and answers.
#[must_use]
pub fn contradictions(facts: &[(&str, Answer)]) -> Vec<(&'static str, &'static str)> {
    let holds = |one: (&'static str, Answer)| facts.contains(&one);
    let both = TABLE.iter().filter(|(sure, other)| holds(*sure) && holds(*other));
    both.map(|((sure, _), (other, _))| (*sure, *other)).collect()
}

/// The detail of a fact that gave way begins so.
pub const CONTRADICTS: &str = "it contradicts another fact";

/// Makes the weaker fact of each contradiction `unsure`.
pub(super) fn resolve_contradictions(facts: &mut [Fact]) {
    let answers: Vec<(&str, Answer)> = facts.iter().map(|fact| (fact.name, fact.answer)).collect();
    for (sure, other) in contradictions(&answers) {
        let found = facts.iter().find(|fact| fact.name == sure);
        let said = found.map_or_else(String::new, |fact| format!("{}: no, {}", fact.statement, fact.detail));
        if let Some(fact) = facts.iter_mut().find(|fact| fact.name == other) {
            fact.answer = Answer::Unsure;
            fact.detail = format!("{CONTRADICTS} ({said}): {}", fact.detail);
            fact.evidence.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use rescind_core::BadMessage;
    use rescind_testkit::Demand;

    use super::*;

    #[test]
    fn each_deviation_is_told_with_a_sentence_that_demands_otherwise() {
        for (deviation, name, says) in [
            (Deviation::IdSpelling, "repeats_ids", "the same value as the id"),
            (Deviation::NoId, "repeats_ids", "the same value as the id"),
            (Deviation::NoVersion, "names_version", "exactly the text \"2.0\""),
            (Deviation::BatchOfAnswers, "answer_form", "an array of answers"),
            (Deviation::InvalidAnswer, "answer_form", "either a result or an error"),
            (Deviation::ByteOrderMark, "clean_output", "a byte order mark must not be added"),
            (Deviation::Noise, "clean_output", "must not write anything to its stdout"),
            (Deviation::SeveralLines, "clean_output", "must not contain embedded newlines"),
            (Deviation::SharedLine, "clean_output", "delimited by newlines"),
            (Deviation::Unended, "clean_output", "delimited by newlines"),
            (
                Deviation::Dropped(BadMessage::NotJson),
                "clean_output",
                "must not write anything to its stdout",
            ),
        ] {
            let asked = Question::of_deviation(deviation).asked("mcp");
            let source = deviation_source(deviation, "mcp").map_or(asked.source, str::to_owned);
            assert!(asked.name == name && asked.demand == Must, "{deviation:?}");
            assert!(source.contains(says), "{deviation:?}: {source}");
            assert!(Question::FORMS.contains(&Question::of_deviation(deviation)), "{deviation:?}");
        }
        // No document forbids it.
        let half = Question::of_deviation(Deviation::LoneSurrogate).asked("mcp");
        assert_eq!((half.name, half.demand), ("whole_characters", Open));
    }

    #[test]
    fn the_fact_that_is_known_less_directly_gives_way() {
        let fact = |name, answer| Fact::new(name, name, answer, Demand::Open);
        let mut facts = [fact("cancels_running", No), fact("stops_work", Yes), fact("frees_slot", Yes)];
        resolve_contradictions(&mut facts);
        assert_eq!(facts.each_ref().map(|fact| fact.answer), [No, Answer::Unsure, Yes]);
        let [_, stops_work, _] = &facts;
        assert!(stops_work.detail.starts_with(CONTRADICTS), "{}", stops_work.detail);
        let answers: Vec<_> = facts.iter().map(|fact| (fact.name, fact.answer)).collect();
        assert_eq!(contradictions(&answers), []);

        let mut facts = [fact("cancels_running", Yes), fact("stops_work", Yes)];
        resolve_contradictions(&mut facts);
        assert!(facts.iter().all(|fact| fact.answer == Yes));
    }

    #[test]
    fn the_table_names_facts_that_there_are() {
        let known: Vec<_> = Question::ALL.into_iter().map(|question| question.asked("mcp").name).collect();
        for ((sure, _), (other, _)) in TABLE {
            assert!(known.contains(&sure) && known.contains(&other), "{sure}, {other}");
        }
    }
}
