//! From the records of the runs to the facts of the report.

use rescind_testkit::runner::{Evidence, TraceLine};
use rescind_testkit::{Answer, Demand, Fact};

use super::facts::{QUESTIONS, Question};
use super::looks::Look;
use super::record::{Play, Record};
use super::server_dialect::ServerDialect;
use super::sources::source;

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
