//! The report of `matrix` and `check`, for JSON and for the tables of the command line.

use serde::Serialize;

use crate::dialects::Demand;
use crate::runner::{Evidence, Outcomes, Played, TraceLine, Verdict};
use crate::vector::Scenario;

/// A whole run. Its JSON format is stable: version 2.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The version of the format.
    pub version: u32,
    /// How the requests that the profile names behave without a cancel. Empty for `matrix`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub baseline: Vec<Baseline>,
    /// Facts about the peer. Empty for `matrix`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<Fact>,
    /// One cell for each scenario and transport.
    pub cells: Vec<Cell>,
    /// The number of cells and facts with each outcome.
    pub summary: Summary,
}

/// How one request of the profile behaves without a cancel.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Baseline {
    /// What the profile uses the request for: `slow`, `quick`, `progress`.
    pub kind: &'static str,
    /// Its method.
    pub method: String,
    /// Microseconds from the request to its answer. `None`: it was not answered within the time of a step.
    pub answered_us: Option<u64>,
    /// The answer in short: `result`, or `error CODE`.
    pub answer: String,
}

/// One fact about a peer: a question that its author would ask, and the answer.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Fact {
    /// The fact's name. It does not change between versions.
    pub name: &'static str,
    /// The question as a statement, such as `cancels a running request`.
    pub statement: String,
    /// Whether the statement is true of this peer.
    pub answer: Answer,
    /// What was measured or seen, or why the question could not be answered.
    pub detail: String,
    /// How much the documents demand of it.
    pub demand: Demand,
    /// How it is known.
    pub evidence: Vec<Evidence>,
    /// The sentence of the document, in our words, after its origin.
    pub source: String,
    /// Microseconds from each cancel to its first visible effect, where that was measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cancel_us: Vec<u64>,
    /// The frames behind the answer.
    pub trace: Vec<TraceLine>,
}

/// The answer to a fact's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The statement is true.
    Yes,
    /// The statement is false.
    No,
    /// It could not be decided.
    Unsure,
    /// The question was not put to this peer.
    NotAsked,
}

/// One scenario on one transport.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Cell {
    /// The dialect.
    pub dialect: String,
    /// The transport, by its name in the matrix.
    pub wire: String,
    /// The scenario.
    pub scenario: String,
    /// Whether it passed.
    pub outcome: CellOutcome,
    /// Why it did not pass. Empty if it did.
    pub why: String,
    /// Of a scenario that is unsure: the peer decides otherwise than a document recommends, or than the scenario where the
    /// documents leave it open. That is no fault. In the JSON only where it is true.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deviates: bool,
    /// How it is known that it passed. Empty if it did not.
    pub evidence: Vec<Evidence>,
    /// How much the documents demand of the scenario.
    pub demand: Demand,
    /// The source sentence with the number of its document, then the rows of the coverage table.
    pub sources: Vec<String>,
    /// Microseconds from the cancel to the first visible effect.
    pub cancel_us: Option<u64>,
    /// What was sent and received.
    pub trace: Vec<TraceLine>,
    /// The result of each request, for comparisons between transports.
    #[serde(skip)]
    pub outcomes: Outcomes,
}

/// Whether a scenario passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CellOutcome {
    /// It passed.
    Held,
    /// It failed.
    Broke,
    /// It could not be brought about, and nothing wrong was seen. Or the peer deviates from what no document demands, see
    /// [`Cell::deviates`].
    Unsure,
    /// It could not be played.
    NotAsked,
}

/// The number of cells with each outcome, and of facts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// Scenarios that passed.
    pub held: usize,
    /// Scenarios that failed.
    pub broke: usize,
    /// Scenarios that could not be brought about, or in which the peer deviates from what no document demands.
    pub unsure: usize,
    /// Those of them in which the peer deviates.
    pub deviating: usize,
    /// Scenarios that were not played.
    pub not_asked: usize,
    /// Facts that break a "must" or a rule of JSON-RPC.
    pub faults: usize,
    /// Facts in which the peer does not do what is recommended, or decides otherwise where the documents leave it
    /// open. They are no faults.
    pub deviations: usize,
}

impl Baseline {
    /// Creates the row of a request that was answered with a result.
    #[must_use]
    pub fn new(kind: &'static str, method: impl Into<String>, answered_us: Option<u64>) -> Self {
        Self { kind, method: method.into(), answered_us, answer: "result".to_owned() }
    }
}

impl Fact {
    /// Creates a fact without a detail, evidence and frames.
    #[must_use]
    pub fn new(name: &'static str, statement: impl Into<String>, answer: Answer, demand: Demand) -> Self {
        Self {
            name,
            statement: statement.into(),
            answer,
            detail: String::new(),
            demand,
            evidence: Vec::new(),
            source: String::new(),
            cancel_us: Vec::new(),
            trace: Vec::new(),
        }
    }
}

impl Report {
    /// Creates a report of these cells.
    #[must_use]
    pub fn new(cells: Vec<Cell>) -> Self {
        Self::of_a_peer(Vec::new(), Vec::new(), cells)
    }

    /// Creates the report of a check of one peer.
    #[must_use]
    pub fn of_a_peer(baseline: Vec<Baseline>, facts: Vec<Fact>, cells: Vec<Cell>) -> Self {
        let count = |outcome| cells.iter().filter(|cell| cell.outcome == outcome).count();
        let refused = |fault: bool| {
            let is_it = |fact: &&Fact| fact.answer == Answer::No && (fact.demand == Demand::Must) == fault;
            facts.iter().filter(is_it).count()
        };
        let summary = Summary {
            held: count(CellOutcome::Held),
            broke: count(CellOutcome::Broke),
            unsure: count(CellOutcome::Unsure),
            deviating: cells.iter().filter(|cell| cell.deviates).count(),
            not_asked: count(CellOutcome::NotAsked),
            faults: refused(true),
            deviations: refused(false),
        };
        Self { version: 2, baseline, facts, cells, summary }
    }
}

impl Cell {
    /// The cell of a vector that was played.
    #[must_use]
    pub fn new(scenario: &Scenario, wire: &str, played: Played) -> Self {
        let (outcome, why) = match played.verdict {
            Verdict::Held => (CellOutcome::Held, String::new()),
            Verdict::Broke { why, step, .. } => (CellOutcome::Broke, format!("step {step}: {why}")),
            Verdict::Unsure { why } => (CellOutcome::Unsure, why),
            Verdict::NotAsked { why } => (CellOutcome::NotAsked, why),
        };
        let vector = &scenario.vector;
        Self {
            dialect: scenario.dialect.to_owned(),
            wire: wire.to_owned(),
            scenario: vector.name.clone(),
            outcome,
            why,
            deviates: false,
            evidence: played.evidence,
            demand: vector.demand,
            sources: std::iter::once(&vector.source).chain(&vector.covers).cloned().collect(),
            cancel_us: played.cancel.and_then(|time| u64::try_from(time.as_micros()).ok()),
            trace: played.trace,
            outcomes: played.outcomes,
        }
    }

    /// The cell of a vector that is not played on this transport or against this peer.
    #[must_use]
    pub fn not_asked(scenario: &Scenario, wire: &str, why: impl Into<String>) -> Self {
        let verdict = Verdict::NotAsked { why: why.into() };
        Self::new(scenario, wire, Played::unplayed(verdict))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::{Direction, Failure};

    #[test]
    fn the_json_has_the_fields_of_the_contract_and_no_more() {
        let scenario = crate::scenarios().first().unwrap();
        let verdict =
            Verdict::Broke { failure: Failure::Unanswered, why: "nothing came".to_owned(), step: 2 };
        let trace = vec![TraceLine::new(Direction::Sent, "{}")];
        let cancel = Some(std::time::Duration::from_micros(7));
        let played = Played { trace, cancel, ..Played::unplayed(verdict) };
        let cells = vec![Cell::new(scenario, "memory", played), Cell::not_asked(scenario, "stdio", "no")];
        let json = serde_json::to_value(Report::new(cells)).unwrap();
        let names = |value: &serde_json::Value| {
            let mut names: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names(&json), ["cells", "summary", "version"]);
        let cell = &json["cells"][0];
        assert_eq!(
            names(cell),
            [
                "cancel_us",
                "demand",
                "dialect",
                "evidence",
                "outcome",
                "scenario",
                "sources",
                "trace",
                "why",
                "wire"
            ]
        );
        assert_eq!(cell["outcome"], "broke");
        assert_eq!(json["cells"][1]["outcome"], "not-asked");
        assert_eq!(cell["cancel_us"], 7);
        assert_eq!(cell["trace"][0], serde_json::json!({"direction": "sent", "text": "{}"}));
        assert_eq!(
            json["summary"],
            serde_json::json!({"held": 0, "broke": 1, "unsure": 0, "deviating": 0, "not_asked": 1, "faults": 0, "deviations": 0})
        );
    }
}
