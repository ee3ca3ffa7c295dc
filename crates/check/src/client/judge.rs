//! From the records of the runs to the facts of the report: the questions about a client, what the documents demand, and
//! the answers. The names of the questions do not change.

use rescind_testkit::runner::{Evidence, TraceLine};
use rescind_testkit::{Answer, Demand, Fact};

use super::looks;
use super::looks::Look;
use super::record::{Play, Record};
use super::server_dialect::ServerDialect;
use crate::peer::said;

/// How many runs must agree before something counts against the program.
pub(super) const TIMES: usize = 3;

/// The answer to one question, and the run that shows it.
pub(super) struct Finding {
    question: &'static Question,
    demand: Demand,
    source: String,
    play: Option<Play>,
    answer: Answer,
    detail: String,
    cancel_us: Vec<u64>,
    trace: Vec<TraceLine>,
}

pub(super) fn judge(server: ServerDialect, records: &[Record]) -> Vec<Finding> {
    QUESTIONS.iter().map(|question| answer(server, question, records)).collect()
}

/// A `no` of any run decides, then an `unsure`, then a `yes`.
fn answer(server: ServerDialect, question: &'static Question, records: &[Record]) -> Finding {
    let (demand, source) = source(question.name, server);
    let mut finding = Finding {
        question,
        demand,
        source,
        play: None,
        answer: Answer::NotAsked,
        detail: "no run showed it".to_owned(),
        cancel_us: Vec::new(),
        trace: Vec::new(),
    };
    let rank = |answer| match answer {
        Answer::No => 3,
        Answer::Unsure => 2,
        Answer::Yes => 1,
        Answer::NotAsked => 0,
    };
    for record in records.iter().filter(|record| question.plays.contains(&record.play)) {
        let look = (question.look)(server, record, records);
        finding.cancel_us.extend(look.cancel_us);
        let first = finding.play.is_none();
        if first || rank(look.answer) > rank(finding.answer) {
            finding.play = Some(record.play);
            finding.answer = look.answer;
            finding.detail = look.detail;
            finding.trace = if look.answer == Answer::NotAsked { Vec::new() } else { record.trace() };
        }
    }
    finding
}

/// The runs that must be repeated before something counts against the program.
pub(super) fn to_confirm(findings: &[Finding]) -> Vec<Play> {
    let mut plays = Vec::new();
    for finding in findings.iter().filter(|finding| finding.needs_confirmation()) {
        if let Some(play) = finding.play.filter(|play| !plays.contains(play)) {
            plays.push(play);
        }
    }
    plays
}

/// Compares the findings of this run with its repetitions.
pub(super) fn confirm(
    server: ServerDialect,
    findings: &mut [Finding],
    records: &[Record],
    kind: Play,
    again: &[Record],
) {
    for finding in findings.iter_mut().filter(|it| it.needs_confirmation() && it.play == Some(kind)) {
        let looks: Vec<Look> =
            again.iter().map(|record| (finding.question.look)(server, record, records)).collect();
        let agreed = 1 + looks.iter().filter(|look| look.answer == Answer::No).count();
        if agreed == TIMES {
            finding.detail = format!("{} ({TIMES} times of {TIMES})", finding.detail);
        } else {
            finding.answer = Answer::Unsure;
            finding.detail = format!("{} (only {agreed} times of {TIMES})", finding.detail);
        }
    }
}

impl Finding {
    fn needs_confirmation(&self) -> bool {
        self.answer == Answer::No && self.demand != Demand::Open
    }
}

pub(super) fn facts(findings: Vec<Finding>) -> Vec<Fact> {
    let fact = |finding: Finding| {
        let question = finding.question;
        let mut fact = Fact::new(question.name, question.statement, finding.answer, finding.demand);
        fact.detail = match finding.play {
            Some(play) if matches!(finding.answer, Answer::No | Answer::Unsure) => {
                format!("in the run `{}`: {}", play.name(), finding.detail)
            }
            _ => finding.detail,
        };
        fact.evidence = match finding.answer {
            Answer::Yes | Answer::No => vec![Evidence::Wire],
            Answer::Unsure | Answer::NotAsked => Vec::new(),
        };
        fact.source = finding.source;
        fact.cancel_us = finding.cancel_us;
        fact.trace = finding.trace;
        fact
    };
    findings.into_iter().map(fact).collect()
}

/// One question.
pub(super) struct Question {
    pub(super) name: &'static str,
    pub(super) statement: &'static str,
    /// The runs that can show it.
    pub(super) plays: &'static [Play],
    /// The answer that one run gives. All first runs are there for comparison.
    pub(super) look: fn(ServerDialect, &Record, &[Record]) -> Look,
}

const CANCELS: &[Play] = &[Play::Cancelled, Play::LateResult, Play::LateError];
const ALL: &[Play] = &Play::ALL;

pub(super) const QUESTIONS: [Question; 17] = [
    Question {
        name: "sends_cancel",
        statement: "sends a cancel when its request is cancelled",
        plays: CANCELS,
        look: looks::sends_cancel,
    },
    Question {
        name: "spells_cancel",
        statement: "spells the cancel as the protocol does",
        plays: ALL,
        look: looks::spells_cancel,
    },
    Question {
        name: "names_request",
        statement: "the cancel names the request that it means",
        plays: ALL,
        look: looks::names_request,
    },
    Question {
        name: "keeps_id_type",
        statement: "the id in the cancel has the type that it has in the request",
        plays: ALL,
        look: looks::keeps_id_type,
    },
    Question {
        name: "cancels_once",
        statement: "sends one cancel for one request",
        plays: ALL,
        look: looks::cancels_once,
    },
    Question {
        name: "cancel_follows_request",
        statement: "sends no cancel before its request",
        plays: ALL,
        look: looks::follows_request,
    },
    Question {
        name: "never_cancels_initialize",
        statement: "never cancels `initialize`",
        plays: ALL,
        look: looks::never_cancels_initialize,
    },
    Question {
        name: "goes_on",
        statement: "goes on once the cancelled request has ended",
        plays: &[Play::Cancelled],
        look: looks::goes_on,
    },
    Question {
        name: "late_result_ignored",
        statement: "a normal answer that comes after the cancel does no harm",
        plays: &[Play::LateResult],
        look: looks::late_answer,
    },
    Question {
        name: "late_error_ignored",
        statement: "an error that comes long after the cancel does no harm",
        plays: &[Play::LateError],
        look: looks::late_answer,
    },
    Question {
        name: "no_cancel_when_answered",
        statement: "sends no cancel for a request that was answered",
        plays: &[Play::AnsweredFirst],
        look: looks::no_cancel_when_answered,
    },
    Question {
        name: "ids_not_reused",
        statement: "does not use the id of a request again",
        plays: ALL,
        look: looks::ids_not_reused,
    },
    Question {
        name: "other_calls_untouched",
        statement: "cancels only the request that it was asked to cancel",
        plays: &[Play::Pair],
        look: looks::other_calls_untouched,
    },
    Question {
        name: "honours_cancels",
        statement: "stops its own work when the server cancels a request",
        plays: &[Play::Serve],
        look: looks::honours_cancels,
    },
    Question {
        name: "timeout_sends_cancel",
        statement: "sends a cancel when its time limit is over",
        plays: &[Play::Timeout],
        look: looks::timeout_sends_cancel,
    },
    Question {
        name: "closes_cleanly",
        statement: "closes in the middle of a request and ends",
        plays: &[Play::Close],
        look: looks::closes_cleanly,
    },
    Question {
        name: "message_form",
        statement: "sends messages in the form of the protocol, and nothing else",
        plays: ALL,
        look: looks::message_form,
    },
];

/// How much the documents demand of the fact with this name, and where they say so.
pub(super) fn source(name: &str, server: ServerDialect) -> (Demand, String) {
    said(server.wire.facts, name)
}
