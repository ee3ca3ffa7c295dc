//! The lookup of figures and the judgement of lines.

use super::super::figures::{Figure, Row};
use super::{Build, Results, Ruling, Verdict};
use crate::subject::Name;
use crate::subjects;

/// It has a server only. Its client is part of this benchmark and writes frames by hand, so no budget is compared with it.
const WITHOUT_CLIENT: &str = "tower-lsp-server";

pub(super) struct Court<'a> {
    pub(super) results: &'a Results,
    pub(super) build: Build,
    pub(super) verdicts: Vec<Verdict>,
}

/// A figure and its components, or why there is none.
pub(super) type Found = Result<(f64, String), String>;

/// Identifies a figure.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) workload: &'a str,
    pub(super) case: &'a str,
    pub(super) place: &'a str,
    pub(super) measure: &'a str,
}

impl<'a> At<'a> {
    pub(super) const fn new(workload: &'a str, case: &'a str, place: &'a str, measure: &'a str) -> Self {
        Self { workload, case, place, measure }
    }

    /// The same with another measure.
    pub(super) const fn but(self, measure: &'a str) -> Self {
        Self { measure, ..self }
    }

    fn is_of(self, row: &Row) -> bool {
        let Self { workload, case, place, measure } = self;
        (row.workload, row.case.as_str(), row.place, row.measure) == (workload, case, place, measure)
    }
}

impl<'a> Court<'a> {
    pub(super) const fn new(results: &'a Results, build: Build) -> Self {
        Self { results, build, verdicts: Vec::new() }
    }

    /// The row of this competitor, or an error if there is none.
    pub(super) fn row(&self, who: Name, at: At<'_>) -> Result<&'a Row, String> {
        let row = self.results.rows.iter().find(|row| row.name == who && at.is_of(row));
        row.ok_or_else(|| format!("{} ({}) was not asked: {}", who.library, who.configuration, at.measure))
    }

    /// One competitor's number or median, or why there is none.
    pub(super) fn figure(&self, who: Name, at: At<'_>) -> Result<f64, String> {
        match &self.row(who, at)?.figure {
            Figure::Times(times) => Ok(times.p50 as f64),
            Figure::Number { value, .. } => Ok(*value),
            Figure::Said(said) => {
                Err(format!("{} ({}) said: {said}: {}", who.library, who.configuration, at.measure))
            }
        }
    }

    pub(super) fn ours(&self, at: At<'_>) -> Result<f64, String> {
        self.figure(subjects::rescind::COMPETITOR.name, at)
    }

    pub(super) fn floor(&self, at: At<'_>) -> Result<f64, String> {
        self.figure(subjects::FLOOR.name, at)
    }

    /// The best of the others in a case: its figure and its name. Only competitors with their own client count.
    pub(super) fn best_of_others(
        &self,
        at: At<'_>,
        of: impl Fn(Name) -> bool,
    ) -> Result<(f64, Name), String> {
        let ours = subjects::all_of_ours();
        let rows = self.results.rows.iter().filter(|row| at.is_of(row) && !ours.contains(&row.name));
        let others = rows.filter(|row| row.name.library != WITHOUT_CLIENT && of(row.name));
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
    pub(super) fn hold(&mut self, name: impl Into<String>, found: Found, limit: f64, unit: &'static str) {
        let found = finite(found);
        let met = found.0.is_some_and(|value| value <= limit);
        self.tell(name, if met { Ruling::Met } else { Ruling::NotMet }, found, Some(limit), unit);
    }

    /// [`hold`](Self::hold) for the difference of two separate times: a negative difference says nothing about the
    /// limit.
    pub(super) fn hold_above_noise(&mut self, name: String, found: Found, limit: f64, unit: &'static str) {
        match found {
            Ok((value, note)) if value < 0.0 => {
                let note = format!("less than the floor: the check is lost in noise; {note}");
                self.tell(name, Ruling::NotJudged, (Some(value), note), Some(limit), unit);
            }
            found => self.hold(name, found, limit, unit),
        }
    }

    /// Adds a figure without a limit, for comparison with one that has a limit.
    pub(super) fn show(&mut self, name: &str, found: Found, unit: &'static str) {
        self.tell(name, Ruling::NotJudged, finite(found), None, unit);
    }

    /// Adds a line that this build or this run cannot judge.
    pub(super) fn leave(&mut self, name: impl Into<String>, limit: f64, unit: &'static str, why: &str) {
        self.tell(name, Ruling::NotJudged, (None, why.to_owned()), Some(limit), unit);
    }

    /// Adds an operation that was not done and should have been.
    pub(super) fn fail(&mut self, name: String, why: String) {
        self.tell(name, Ruling::NotMet, (None, why), None, "");
    }

    /// [`hold`](Self::hold) for figures that need the allocation counter.
    pub(super) fn hold_memory(
        &mut self,
        name: impl Into<String>,
        found: Found,
        limit: f64,
        unit: &'static str,
    ) {
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
