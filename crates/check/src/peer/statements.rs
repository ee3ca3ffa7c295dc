//! What is asked of a peer: each fact's statement, how much the documents demand of it, and the sentence.
//!
//! Some facts exclude each other. Two probes may look at different requests or at different times, and a witness may be
//! wrong. Then the fact that is known less directly is `unsure`, so that no report says both.

use rescind_core::Deviation;
use rescind_testkit::Answer::{No, Yes};
use rescind_testkit::Demand::Open;
use rescind_testkit::dialects::{DialectFacts, statement};
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
    TaskHandle,
    TaskGoesOn,
    TaskCancelled,
    TaskStopsWork,
    TaskStaysEnded,
    TaskEndedCancelRefused,
    TaskUnknownRefused,
    TaskIdsSecret,
    TaskIdsUnique,
    TaskBeginsWorking,
    TaskHasTimes,
    TaskResultAtEnd,
    TaskResultRelated,
    TaskFoundAtOnce,
    TaskNeedsExtension,
    TaskOnlyDeclared,
    TaskResultTypes,
    TaskCancelEmpty,
}

/// A question in one dialect.
pub(super) struct Asked {
    pub(super) name: &'static str,
    pub(super) statement: &'static str,
    pub(super) demand: Demand,
    pub(super) source: String,
}

/// What the documents of a dialect say about the question of this name, or JSON-RPC and JSON where the dialect uses them.
pub(crate) fn said(facts: &DialectFacts, question: &str) -> (Demand, String) {
    let of_json_rpc = || statement(&[include_str!("../json_rpc.tsv")], question);
    let own = statement(facts.statements, question);
    let found = own.or_else(|| of_json_rpc().filter(|_| facts.is_json_rpc()));
    let (demand, sentence) = found.unwrap_or((Open, "no document says anything about it."));
    (demand, sentence.replace("{document}", facts.document))
}

impl Question {
    pub(super) const ALL: [Self; 46] = [
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
        Self::TaskHandle,
        Self::TaskGoesOn,
        Self::TaskCancelled,
        Self::TaskStopsWork,
        Self::TaskStaysEnded,
        Self::TaskEndedCancelRefused,
        Self::TaskUnknownRefused,
        Self::TaskIdsSecret,
        Self::TaskIdsUnique,
        Self::TaskBeginsWorking,
        Self::TaskHasTimes,
        Self::TaskResultAtEnd,
        Self::TaskResultRelated,
        Self::TaskFoundAtOnce,
        Self::TaskNeedsExtension,
        Self::TaskOnlyDeclared,
        Self::TaskResultTypes,
        Self::TaskCancelEmpty,
    ];

    /// Those that all messages answer together.
    pub(super) const FORMS: [Self; 5] =
        [Self::CleanOutput, Self::RepeatsIds, Self::NamesVersion, Self::AnswerForm, Self::WholeCharacters];

    /// The question whose answer is no after this. The library takes such messages where their meaning is certain, which does
    /// not make them right.
    pub(super) const fn of_deviation(deviation: Deviation) -> Self {
        match deviation {
            Deviation::IdSpelling | Deviation::NoId | Deviation::UnknownId => Self::RepeatsIds,
            Deviation::NoVersion => Self::NamesVersion,
            Deviation::NullMember | Deviation::BatchOfAnswers | Deviation::InvalidAnswer => Self::AnswerForm,
            Deviation::LoneSurrogate => Self::WholeCharacters,
            // Also whatever else a transport drops.
            _ => Self::CleanOutput,
        }
    }

    /// Whether the question makes sense in a dialect. Where silence is owed, nothing is asked about answers. Where the
    /// messages are not those of JSON-RPC, ids are text, so none of them is zero. Reserved methods, turns and tasks are those
    /// of dialects whose documents say something about them.
    pub(super) fn applies(self, facts: &DialectFacts) -> bool {
        match self {
            Self::AnswersCancelled | Self::CancelledCode => !facts.owes_silence(),
            Self::StaysSilent => facts.owes_silence(),
            Self::CancelsIdZero | Self::RepeatsIds | Self::NamesVersion | Self::AnswerForm => {
                facts.is_json_rpc()
            }
            Self::ReservedMethodRefused
            | Self::TurnCancelled
            | Self::TurnEndsSoon
            | Self::OtherTurnsUntouched
            | Self::NextTurnServed
            | Self::TaskHandle
            | Self::TaskGoesOn
            | Self::TaskCancelled
            | Self::TaskStopsWork
            | Self::TaskStaysEnded
            | Self::TaskEndedCancelRefused
            | Self::TaskUnknownRefused
            | Self::TaskIdsSecret
            | Self::TaskIdsUnique
            | Self::TaskBeginsWorking
            | Self::TaskHasTimes
            | Self::TaskResultAtEnd
            | Self::TaskResultRelated
            | Self::TaskFoundAtOnce
            | Self::TaskNeedsExtension
            | Self::TaskOnlyDeclared
            | Self::TaskResultTypes
            | Self::TaskCancelEmpty => statement(facts.statements, self.words().0).is_some(),
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

    /// Whether it is put only to a peer that declares tasks.
    pub(super) fn is_about_tasks(self) -> bool {
        self.words().0.starts_with("task_")
    }

    pub(super) fn asked(self, facts: &DialectFacts) -> Asked {
        let (name, text) = self.words();
        let (demand, source) = said(facts, name);
        Asked { name, statement: text, demand, source }
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
            Self::TaskHandle => ("task_handle", "answers a request for a task with the task's handle"),
            Self::TaskGoesOn => (
                "task_goes_on",
                "goes on with a task when the request that began it is answered and cancelled",
            ),
            Self::TaskCancelled => ("task_cancelled", "takes the cancel of a task"),
            Self::TaskStopsWork => ("task_stops_work", "stops the work of a cancelled task"),
            Self::TaskStaysEnded => ("task_stays_ended", "keeps the status of a task that has ended"),
            Self::TaskEndedCancelRefused => {
                ("task_ended_cancel_refused", "refuses the cancel of a task that has ended")
            }
            Self::TaskUnknownRefused => ("task_unknown_refused", "refuses questions about an unknown task"),
            Self::TaskIdsSecret => ("task_ids_secret", "gives its tasks ids that nobody can guess"),
            Self::TaskIdsUnique => ("task_ids_unique", "gives each task an id of its own"),
            Self::TaskBeginsWorking => ("task_begins_working", "begins a task in the status `working`"),
            Self::TaskHasTimes => ("task_has_times", "gives a task with its times"),
            Self::TaskResultAtEnd => ("task_result_at_end", "answers tasks/result when the task has ended"),
            Self::TaskResultRelated => {
                ("task_result_related", "names the task in the answer to tasks/result")
            }
            Self::TaskFoundAtOnce => ("task_found_at_once", "finds a task whose handle it gave"),
            Self::TaskNeedsExtension => (
                "task_needs_extension",
                "refuses questions about tasks of a client that does not declare them",
            ),
            Self::TaskOnlyDeclared => {
                ("task_only_declared", "gives tasks only to a client that declares them")
            }
            Self::TaskResultTypes => ("task_result_types", "names the type of results about tasks"),
            Self::TaskCancelEmpty => {
                ("task_cancel_empty", "answers the cancel of a task with an empty result")
            }
        }
    }
}

/// The sentence against a deviation, where that of its question says too little.
pub(super) fn deviation_source(deviation: Deviation, facts: &DialectFacts) -> Option<&'static str> {
    match deviation {
        Deviation::ByteOrderMark => {
            Some("RFC 8259: a byte order mark must not be added to the beginning of a JSON text.")
        }
        Deviation::SeveralLines | Deviation::SharedLine | Deviation::Unended => {
            let named = |name| statement(facts.statements, name);
            named("one_line").or_else(|| named("content_length")).map(|(_, source)| source)
        }
        Deviation::NullMember => Some(
            "JSON-RPC 2.0: the error of an answer must not exist if there was none, and its result must not exist beside an error.",
        ),
        Deviation::BatchOfAnswers => {
            Some("JSON-RPC 2.0: an array of answers answers an array of requests, and none was sent.")
        }
        _ => None,
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
    use rescind_testkit::Demand::Must;
    use rescind_testkit::dialects::MCP;

    use super::*;

    #[test]
    fn each_deviation_is_told_with_a_sentence_that_demands_otherwise() {
        for (deviation, name, says) in [
            (Deviation::IdSpelling, "repeats_ids", "the same value as the id"),
            (Deviation::NoId, "repeats_ids", "the same value as the id"),
            (Deviation::UnknownId, "repeats_ids", "the same value as the id"),
            (Deviation::NoVersion, "names_version", "exactly the text \"2.0\""),
            (Deviation::NullMember, "answer_form", "must not exist"),
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
            let asked = Question::of_deviation(deviation).asked(&MCP);
            let source = deviation_source(deviation, &MCP).map_or(asked.source, str::to_owned);
            assert!(asked.name == name && asked.demand == Must, "{deviation:?}");
            assert!(source.contains(says), "{deviation:?}: {source}");
            assert!(Question::FORMS.contains(&Question::of_deviation(deviation)), "{deviation:?}");
        }
        // No document forbids it.
        let half = Question::of_deviation(Deviation::LoneSurrogate).asked(&MCP);
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
        let known: Vec<_> = Question::ALL.into_iter().map(|question| question.asked(&MCP).name).collect();
        for ((sure, _), (other, _)) in TABLE {
            assert!(known.contains(&sure) && known.contains(&other), "{sure}, {other}");
        }
    }
}
