//! The budgets, and whether this run met them.
//!
//! Each part has a fixed list of lines, regardless of what was measured: a line without its figure is not met, and
//! its note has the reason.

mod budget_defs;
#[cfg(test)]
mod tests;

use serde_json::{Value, json};

use super::figures::{Figure, Row};
use super::{Place, Results};
use crate::lsp_client::SERVER_ALONE;
use crate::subject::Name;
use crate::subjects;

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

// The lookup of figures and the judgement of lines.

/// Whether the client is a part of this benchmark, which writes frames by hand. tower-lsp-server has no other.
fn is_server_alone(name: Name) -> bool {
    name.library == "tower-lsp-server" || name.configuration == SERVER_ALONE
}

struct Court<'a> {
    results: &'a Results,
    build: Build,
    verdicts: Vec<Verdict>,
}

/// A figure and its components, or why there is none.
type Found = Result<(f64, String), String>;

/// Identifies a figure.
#[derive(Clone, Copy)]
struct At<'a> {
    workload: &'a str,
    case: &'a str,
    place: &'a str,
    measure: &'a str,
}

impl<'a> At<'a> {
    const fn new(workload: &'a str, case: &'a str, place: &'a str, measure: &'a str) -> Self {
        Self { workload, case, place, measure }
    }

    /// The same with another measure.
    const fn but(self, measure: &'a str) -> Self {
        Self { measure, ..self }
    }

    fn is_of(self, row: &Row) -> bool {
        let Self { workload, case, place, measure } = self;
        (row.workload, row.case.as_str(), row.place, row.measure) == (workload, case, place, measure)
    }
}

impl<'a> Court<'a> {
    const fn new(results: &'a Results, build: Build) -> Self {
        Self { results, build, verdicts: Vec::new() }
    }

    /// The row of this competitor, or an error if there is none.
    fn row(&self, who: Name, at: At<'_>) -> Result<&'a Row, String> {
        let row = self.results.rows.iter().find(|row| row.name == who && at.is_of(row));
        row.ok_or_else(|| format!("{} ({}) was not asked: {}", who.library, who.configuration, at.measure))
    }

    /// One competitor's number or median, or why there is none.
    fn figure(&self, who: Name, at: At<'_>) -> Result<f64, String> {
        match &self.row(who, at)?.figure {
            Figure::Times(times) => Ok(times.p50 as f64),
            Figure::Number { value, .. } => Ok(*value),
            Figure::Said(said) => {
                Err(format!("{} ({}) said: {said}: {}", who.library, who.configuration, at.measure))
            }
        }
    }

    fn ours(&self, at: At<'_>) -> Result<f64, String> {
        self.figure(subjects::rescind::COMPETITOR.name, at)
    }

    fn floor(&self, at: At<'_>) -> Result<f64, String> {
        self.figure(subjects::FLOOR.name, at)
    }

    /// The best of the others in a case: its figure and its name. Only competitors with their own client count.
    fn best_of_others(&self, at: At<'_>, of: impl Fn(Name) -> bool) -> Result<(f64, Name), String> {
        self.best(at, |name| !is_server_alone(name) && of(name))
    }

    /// The best of the others' servers under a raw client.
    fn best_server(&self, at: At<'_>) -> Result<(f64, Name), String> {
        self.best(at, is_server_alone)
    }

    fn best(&self, at: At<'_>, of: impl Fn(Name) -> bool) -> Result<(f64, Name), String> {
        let ours = subjects::all_of_ours();
        let rows = self.results.rows.iter().filter(|row| at.is_of(row) && !ours.contains(&row.name));
        let others = rows.filter(|row| of(row.name));
        let valued = others.filter_map(|row| Some((row.figure.value()?, row.name)));
        let best = valued.min_by(|a, b| a.0.total_cmp(&b.0));
        best.ok_or_else(|| format!("none of the others has a figure: {}", at.measure))
    }

    fn tell(
        &mut self,
        name: impl Into<String>,
        ruling: Ruling,
        (value, note): (Option<f64>, String),
        limit: Option<f64>,
        unit: &'static str,
    ) {
        self.verdicts.push(Verdict { name: name.into(), ruling, value, limit, unit, note });
    }

    /// Judges a line. Without a figure it is not met.
    fn hold(&mut self, name: impl Into<String>, found: Found, limit: f64, unit: &'static str) {
        let found = finite(found);
        let met = found.0.is_some_and(|value| value <= limit);
        self.tell(name, if met { Ruling::Met } else { Ruling::NotMet }, found, Some(limit), unit);
    }

    /// [`hold`](Self::hold) for the difference of two separate times: a negative difference says nothing about the
    /// limit.
    fn hold_above_noise(&mut self, name: String, found: Found, limit: f64, unit: &'static str) {
        match found {
            Ok((value, note)) if value < 0.0 => {
                let note = format!("less than the floor: the check is lost in noise; {note}");
                self.tell(name, Ruling::NotJudged, (Some(value), note), Some(limit), unit);
            }
            found => self.hold(name, found, limit, unit),
        }
    }

    /// Adds a figure without a limit, for comparison with one that has a limit.
    fn show(&mut self, name: &str, found: Found, unit: &'static str) {
        self.tell(name, Ruling::NotJudged, finite(found), None, unit);
    }

    /// Adds a line that this build or this run cannot judge.
    fn leave(&mut self, name: impl Into<String>, limit: f64, unit: &'static str, why: &str) {
        self.tell(name, Ruling::NotJudged, (None, why.to_owned()), Some(limit), unit);
    }

    /// Adds an operation that was not done and should have been.
    fn fail(&mut self, name: String, why: String) {
        self.tell(name, Ruling::NotMet, (None, why), None, "");
    }

    /// [`hold`](Self::hold) for figures that need the allocation counter.
    fn hold_memory(&mut self, name: impl Into<String>, found: Found, limit: f64, unit: &'static str) {
        if self.build.counts {
            self.hold(name, found, limit, unit);
        } else {
            self.leave(name, limit, unit, "memory is not counted in this build");
        }
    }
}

/// A value that is not finite, such as a ratio to zero, counts as no figure, because JSON cannot represent it.
fn finite(found: Found) -> (Option<f64>, String) {
    match found {
        Ok((value, note)) if value.is_finite() => (Some(value), note),
        Ok((value, note)) => (None, format!("{value} is no figure: {note}")),
        Err(why) => (None, why),
    }
}
