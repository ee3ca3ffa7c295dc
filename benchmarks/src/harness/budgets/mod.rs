//! The budgets, and whether this run met them.
//!
//! Each part has a fixed list of lines, regardless of what was measured: a line without its figure is not met, and
//! its note has the reason.

mod budget_defs;
mod evaluator;
mod second_round;
#[cfg(test)]
mod tests;
mod wire_budgets;

use serde_json::{Value, json};

use super::figures::{Figure, Row};
use super::{Place, Results};
use crate::subjects;
use evaluator::Court;

/// One line of the table of budgets.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The required property.
    pub name: String,
    /// Whether it is met.
    pub ruling: Ruling,
    /// The measured value. `None` if there is no figure; the note then has the reason.
    pub value: Option<f64>,
    /// The highest allowed value. `None` if there is no limit.
    pub limit: Option<f64>,
    /// The unit of both.
    pub unit: &'static str,
    /// The components of the value, or the reason why there is none or why it is not judged.
    pub note: String,
}

/// Whether a budget is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// The value is at most the limit.
    Met,
    /// It is above the limit, or there is none.
    NotMet,
    /// This build or this run cannot judge it, or it has no limit.
    NotJudged,
}

impl Ruling {
    /// Its name in the tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::NotMet => "not met",
            Self::NotJudged => "not judged",
        }
    }
}

impl Verdict {
    /// The line as JSON. "met" is null if it is not judged, "value" is null if there is none: "reason" then has the
    /// reason.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let Self { name, ruling, value, limit, unit, note } = self;
        let met = match ruling {
            Ruling::Met => Some(true),
            Ruling::NotMet => Some(false),
            Ruling::NotJudged => None,
        };
        let mut line = json!({
            "name": name, "verdict": ruling.name(), "met": met, "value": value, "limit": limit, "unit": unit, "note": note,
        });
        if value.is_none() {
            line["reason"] = json!(note);
        }
        line
    }

    /// The value with this many decimal places, as in the tables.
    #[must_use]
    pub fn value_shown(&self, digits: usize) -> String {
        let shown = self.value.map(|value| format!("{value:.digits$} {}", self.unit));
        shown.map_or("-".to_owned(), |shown| shown.trim_end().to_owned())
    }

    /// The limit, as in the tables.
    #[must_use]
    pub fn limit_shown(&self) -> String {
        let shown = self.limit.map(|limit| format!("{limit} {}", self.unit));
        shown.map_or("-".to_owned(), |shown| shown.trim_end().to_owned())
    }

    /// Whether a required figure was not measured.
    #[must_use]
    pub fn lacks_its_figure(&self) -> bool {
        self.ruling == Ruling::NotMet && self.value.is_none()
    }
}

/// The number of met lines, and of judged ones.
#[must_use]
pub fn tally(verdicts: &[Verdict]) -> String {
    let count = |ruling| verdicts.iter().filter(|verdict| verdict.ruling == ruling).count();
    let (met, unjudged) = (count(Ruling::Met), count(Ruling::NotJudged));
    let beside = if unjudged == 0 { String::new() } else { format!(", {unjudged} not judged") };
    format!("{met} of {} met{beside}", met + count(Ruling::NotMet))
}

const ONE: &str = Place::OneThread.name();
const TWO: &str = Place::TwoWorkers.name();
const PIPES: &str = Place::Pipes.name();
/// The place of measurements between two processes.
pub(super) const ONE_CORE: &str = "one core";

/// What this program can judge: by its features, and by the counts that it took from another run.
#[derive(Clone, Copy, Debug)]
struct Build {
    counts: bool,
    peers: bool,
}

const BUILD: Build = Build { counts: cfg!(feature = "count"), peers: cfg!(feature = "peers") };

/// Every budget of the parts that were run.
#[must_use]
pub fn judge(results: &Results) -> Vec<Verdict> {
    judge_of(results, Build { counts: BUILD.counts || results.took_memory, ..BUILD })
}

fn judge_of(results: &Results, build: Build) -> Vec<Verdict> {
    let mut court = Court::new(results, build);
    for part in &results.parts {
        budget_defs::of(&mut court, part);
    }
    failures(&mut court);
    court.verdicts
}

/// The operations that this library or a floor never did, or in which it panicked.
fn broken(results: &Results) -> impl Iterator<Item = (&Row, &'static str)> {
    let ours = subjects::all_of_ours();
    results.rows.iter().filter_map(move |row| match row.figure {
        Figure::Said(said @ ("never" | "panicked")) if ours.contains(&row.name) => Some((row, said)),
        Figure::Said(_) | Figure::Times(_) | Figure::Number { .. } => None,
    })
}

/// Operations without a budget must still be done.
fn failures(court: &mut Court<'_>) {
    for (row, said) in broken(court.results) {
        let name = format!("{} {}: {}, {}", row.workload, row.case, row.measure, row.place);
        court.fail(name, format!("{} said: {said}", row.name.library));
    }
}
