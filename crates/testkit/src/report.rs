//! The report of `matrix` and `check`, for JSON and for the tables of the command line.

use serde::Serialize;

use crate::runner::{Outcomes, Played, TraceLine, Verdict};
use crate::vector::Scenario;

/// A whole run. Its JSON format is stable: version 1.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The version of the format.
    pub version: u32,
    /// One cell for each scenario and transport.
    pub cells: Vec<Cell>,
    /// The number of cells with each outcome.
    pub summary: Summary,
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
    /// It could not be played.
    NotAsked,
}

/// The number of cells with each outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// Passed.
    pub held: usize,
    /// Failed.
    pub broke: usize,
    /// Not played.
    pub not_asked: usize,
}

impl Report {
    /// Creates a report of these cells.
    #[must_use]
    pub fn new(cells: Vec<Cell>) -> Self {
        let count = |outcome| cells.iter().filter(|cell| cell.outcome == outcome).count();
        let summary = Summary {
            held: count(CellOutcome::Held),
            broke: count(CellOutcome::Broke),
            not_asked: count(CellOutcome::NotAsked),
        };
        Self { version: 1, cells, summary }
    }
}

impl Cell {
    /// The cell of a vector that was played.
    #[must_use]
    pub fn new(scenario: &Scenario, wire: &str, played: Played) -> Self {
        let (outcome, why) = match played.verdict {
            Verdict::Held => (CellOutcome::Held, String::new()),
            Verdict::Broke { why, step } => (CellOutcome::Broke, format!("step {step}: {why}")),
            Verdict::NotAsked { why } => (CellOutcome::NotAsked, why),
        };
        let vector = &scenario.vector;
        Self {
            dialect: scenario.dialect.to_owned(),
            wire: wire.to_owned(),
            scenario: vector.name.clone(),
            outcome,
            why,
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
        Self::new(
            scenario,
            wire,
            Played { verdict, trace: Vec::new(), cancel: None, outcomes: Outcomes::default() },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::Direction;

    #[test]
    fn the_json_has_the_fields_of_the_contract_and_no_more() {
        let scenario = crate::scenarios().first().unwrap();
        let verdict = Verdict::Broke { why: "nothing came".to_owned(), step: 2 };
        let trace = vec![TraceLine::new(Direction::Sent, "{}")];
        let played = Played {
            verdict,
            trace,
            cancel: Some(std::time::Duration::from_micros(7)),
            outcomes: Outcomes::default(),
        };
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
            ["cancel_us", "dialect", "outcome", "scenario", "sources", "trace", "why", "wire"]
        );
        assert_eq!(cell["outcome"], "broke");
        assert_eq!(json["cells"][1]["outcome"], "not-asked");
        assert_eq!(cell["cancel_us"], 7);
        assert_eq!(cell["trace"][0], serde_json::json!({"direction": "sent", "text": "{}"}));
        assert_eq!(json["summary"], serde_json::json!({"held": 0, "broke": 1, "not_asked": 1}));
    }
}
