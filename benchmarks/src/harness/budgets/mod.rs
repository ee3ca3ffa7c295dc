//! The budgets, and whether this run met them.
//!
//! Each part has its fixed list of lines, whatever was measured: a line whose figure is missing is not met and says why.

mod budget_defs;
mod evaluator;
#[cfg(test)]
mod tests;

use serde_json::{Value, json};

use super::figures::{Figure, Row};
use super::{Place, Results};
use crate::subjects;
use evaluator::Court;

/// One line of the table of budgets.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// What is asked.
    pub name: String,
    /// Whether it is so.
    pub ruling: Ruling,
    /// What was measured; `None` where there is no figure, and then the note says why.
    pub value: Option<f64>,
    /// The most it may be; `None` where nothing is asked.
    pub limit: Option<f64>,
    /// Of both.
    pub unit: &'static str,
    /// What the value is made of, or why there is none or none is judged.
    pub note: String,
}

/// Whether a budget is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// The value is at most the limit.
    Met,
    /// It is above, or there is none.
    NotMet,
    /// This build or this run cannot say, or nothing is asked.
    NotJudged,
}

impl Ruling {
    /// As the tables have it.
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
    /// The line as JSON. "met" is null where it is not judged, "value" where there is none: "reason" says why then.
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

    /// The value with so many digits behind the point, as the tables have it.
    #[must_use]
    pub fn value_shown(&self, digits: usize) -> String {
        let shown = self.value.map(|value| format!("{value:.digits$} {}", self.unit));
        shown.map_or("-".to_owned(), |shown| shown.trim_end().to_owned())
    }

    /// The limit, as the tables have it.
    #[must_use]
    pub fn limit_shown(&self) -> String {
        let shown = self.limit.map(|limit| format!("{limit} {}", self.unit));
        shown.map_or("-".to_owned(), |shown| shown.trim_end().to_owned())
    }

    /// Whether something that was to be measured was not.
    #[must_use]
    pub fn lacks_its_figure(&self) -> bool {
        self.ruling == Ruling::NotMet && self.value.is_none()
    }
}

/// How many are met, of how many that are judged.
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
/// Where the wires between two processes are measured.
pub(super) const ONE_CORE: &str = "one core";

/// What this program was built with: what it cannot measure it does not judge.
#[derive(Clone, Copy, Debug)]
struct Build {
    counts: bool,
    peers: bool,
}

const BUILD: Build = Build { counts: cfg!(feature = "count"), peers: cfg!(feature = "peers") };

/// Every budget of the parts that were run.
#[must_use]
pub fn judge(results: &Results) -> Vec<Verdict> {
    judge_of(results, BUILD)
}

fn judge_of(results: &Results, build: Build) -> Vec<Verdict> {
    let mut court = Court::new(results, build);
    for part in &results.parts {
        budget_defs::of(&mut court, part);
    }
    failures(&mut court);
    court.verdicts
}

/// What one of ours or a floor never did, or panicked at.
fn broken(results: &Results) -> impl Iterator<Item = (&Row, &'static str)> {
    let ours = subjects::all_of_ours();
    results.rows.iter().filter_map(move |row| match row.figure {
        Figure::Said(said @ ("never" | "panicked")) if ours.contains(&row.name) => Some((row, said)),
        Figure::Said(_) | Figure::Times(_) | Figure::Number { .. } => None,
    })
}

/// What no budget asks for must still be done.
fn failures(court: &mut Court<'_>) {
    for (row, said) in broken(court.results) {
        let name = format!("{} {}: {}, {}", row.workload, row.case, row.measure, row.place);
        court.fail(name, format!("{} said: {said}", row.name.library));
    }
}
