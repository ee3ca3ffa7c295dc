//! The budgets, and whether this run met them.

use serde_json::{Value, json};

use super::figures::{Figure, Row};
use super::fit::Fit;
use super::{Place, Results};
use crate::subject::{Carries, Name};
use crate::subjects;

/// One line of the table of budgets.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What is asked.
    pub name: String,
    /// Whether it is so.
    pub met: bool,
    /// What was measured.
    pub value: f64,
    /// The most it may be.
    pub limit: f64,
    /// Of both.
    pub unit: &'static str,
    /// What the value is made of.
    pub note: String,
}

impl Verdict {
    /// The line as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let Self { name, met, value, limit, unit, note } = self;
        json!({"name": name, "met": met, "value": value, "limit": limit, "unit": unit, "note": note})
    }
}

const ONE: &str = Place::OneThread.name();
const TWO: &str = Place::TwoWorkers.name();
const PIPES: &str = Place::Pipes.name();
/// Where the wires between two processes are measured.
pub(super) const ONE_CORE: &str = "one core";

/// It has a server only; its client is one of ours that writes frames by hand, which no budget is against.
const WITHOUT_CLIENT: &str = "tower-lsp-server";

/// Every budget for which this run has the figures.
#[must_use]
pub fn judge(results: &Results) -> Vec<Verdict> {
    let mut court = Court { results, verdicts: Vec::new() };
    court.round_trips();
    court.against_others();
    court.cancels();
    court.bystanders();
    court.growth();
    court.memory_and_machine();
    court.failures();
    court.verdicts
}

/// What one of ours or a floor never did, or panicked at.
pub fn broken(results: &Results) -> impl Iterator<Item = (&Row, &'static str)> {
    let ours = subjects::all_of_ours();
    results.rows.iter().filter_map(move |row| match row.figure {
        Figure::Said(said @ ("never" | "panicked")) if ours.contains(&row.name) => Some((row, said)),
        Figure::Said(_) | Figure::Times(_) | Figure::Number { .. } => None,
    })
}

struct Court<'a> {
    results: &'a Results,
    verdicts: Vec<Verdict>,
}

impl Court<'_> {
    fn rows(&self, workload: &str, case: &str, place: &str, measure: &str) -> impl Iterator<Item = &Row> {
        self.results.rows.iter().filter(move |row| {
            row.workload == workload && row.case == case && row.place == place && row.measure == measure
        })
    }

    /// One competitor's number or median.
    fn value(&self, who: Name, workload: &str, case: &str, place: &str, measure: &str) -> Option<f64> {
        self.rows(workload, case, place, measure).find(|row| row.name == who)?.figure.value()
    }

    fn ours(&self, workload: &str, case: &str, place: &str, measure: &str) -> Option<f64> {
        self.value(subjects::rescind::COMPETITOR.name, workload, case, place, measure)
    }

    fn floor(&self, workload: &str, case: &str, place: &str, measure: &str) -> Option<f64> {
        self.value(subjects::FLOOR.name, workload, case, place, measure)
    }

    fn at_most(&mut self, name: impl Into<String>, value: f64, limit: f64, unit: &'static str, note: String) {
        self.verdicts.push(Verdict { name: name.into(), met: value <= limit, value, limit, unit, note });
    }

    fn round_trips(&mut self) {
        const TRIP: &str = "round trip";
        for (place, limit) in [(ONE, 1.5), (PIPES, 4.0)] {
            let both = self.ours("W1", "64 B", place, TRIP).zip(self.floor("W1", "64 B", place, TRIP));
            if let Some((ours, floor)) = both {
                let note = format!("{:.2} us, floor {:.2} us", ours / 1e3, floor / 1e3);
                self.at_most(
                    format!("W1 64 B over the floor, {place}"),
                    (ours - floor) / 1e3,
                    limit,
                    "us",
                    note,
                );
            }
        }
        let over_floor = |row: &&Row| row.workload == "wires" && row.measure == "over the floor";
        let wires = self.results.rows.iter().filter(over_floor);
        let wires: Vec<_> = wires.filter_map(|row| Some((row.case.clone(), row.figure.value()?))).collect();
        for (wire, over) in wires {
            let both =
                self.ours("wires", &wire, ONE_CORE, TRIP).zip(self.floor("wires", &wire, ONE_CORE, TRIP));
            let Some((ours, floor)) = both else { continue };
            let note = format!("{:.2} us, floor {:.2} us, {:.2}x", ours / 1e3, floor / 1e3, ours / floor);
            let limit = if wire.starts_with("http") { 10.0 } else { 4.0 };
            self.at_most(format!("W1 64 B over the floor, {wire}"), over / 1e3, limit, "us", note);
        }
        let both = self.ours("W1", "64 KiB", ONE, TRIP).zip(self.floor("W1", "64 KiB", ONE, TRIP));
        if let Some((ours, floor)) = both {
            let note = format!("{:.1} us, floor {:.1} us", ours / 1e3, floor / 1e3);
            self.at_most("W1 64 KiB against the floor", ours / floor, 1.2, "x", note);
        }
    }

    /// The best of the others in a case: its figure and its name. Of those that have a client of their own.
    fn best_of_others(
        &self,
        rows: impl Fn(&Self) -> Vec<Row>,
        of: impl Fn(Name) -> bool,
    ) -> Option<(f64, Name)> {
        let other = |row: &Row| {
            !subjects::all_of_ours().contains(&row.name)
                && row.name.library != WITHOUT_CLIENT
                && of(row.name)
                && row.figure.value().is_some()
        };
        let others = rows(self).into_iter().filter(other);
        let valued = others.filter_map(|row| Some((row.figure.value()?, row.name)));
        valued.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    fn against_others(&mut self) {
        let cases = [
            ("W1", "64 B", "round trip"),
            ("W1", "4 KiB", "round trip"),
            ("W1", "64 KiB", "round trip"),
            ("W2", "64 in flight", "a request, of all the time"),
            ("W2", "1024 in flight", "a request, of all the time"),
        ];
        for place in [ONE, TWO] {
            for (workload, case, measure) in cases {
                // The others write and parse a text for each request, so ours does here.
                let typed = self.value(subjects::rescind::TYPED.name, workload, case, place, measure);
                let Some(ours) = typed else { continue };
                let rows = |court: &Self| court.rows(workload, case, place, measure).cloned().collect();
                if let Some((best, name)) = self.best_of_others(rows, |name| name.carries == Carries::Bytes) {
                    let mut note = format!("{:.2} us, {} {:.2} us", ours / 1e3, name.library, best / 1e3);
                    // Nobody who must write is asked to keep up with who need not, but it is said.
                    let unwritten = self.best_of_others(rows, |name| name.carries == Carries::Values);
                    if let Some((best, name)) = unwritten {
                        let Name { library, configuration, carries, .. } = name;
                        let beside = format!("; {library} ({configuration}) {:.2} us", best / 1e3);
                        note += &format!("{beside}, which {}", carries.note());
                    }
                    let asked = format!("{workload} {case} against the best other, {place}");
                    self.at_most(asked, ours / best, 1.0, "x", note);
                }
                let slow = |name: Name| ["rmcp", "agent-client-protocol"].contains(&name.library);
                if let Some((best, name)) = self.best_of_others(rows, slow) {
                    let note = format!("{:.2} us, {} {:.2} us", ours / 1e3, name.library, best / 1e3);
                    let asked =
                        format!("{workload} {case}, rmcp and agent-client-protocol 5 times ours, {place}");
                    self.at_most(asked, ours / best, 0.2, "x", note);
                }
            }
        }
        for case in ["10000 in flight", "100000 in flight"] {
            let Some(ours) = self.ours("W8", case, ONE, "heap a request") else { continue };
            let rows = |court: &Self| court.rows("W8", case, ONE, "heap a request").cloned().collect();
            if let Some((best, name)) = self.best_of_others(rows, |_| true) {
                let note = format!("{ours:.0} B, {} {best:.0} B", name.library);
                self.at_most(format!("W8 {case} against the best other"), ours / best, 1.0, "x", note);
            }
        }
    }

    fn cancels(&mut self) {
        const CASE: &str = "one at a time";
        const BETWEEN: &str = "an echo between";
        for (place, allowed) in [(ONE, 1.0), (TWO, 5.0)] {
            let signal = self.ours("W3", CASE, place, "to handler");
            if let Some((ours, trip)) = signal.zip(self.floor("W3", CASE, place, BETWEEN)) {
                let note =
                    format!("{:.2} us, one way {:.2} us: half the floor's echo", ours / 1e3, trip / 2e3);
                let name = format!("W3 cancel to signal over one way, {place}");
                self.at_most(name, (ours - trip / 2.0) / 1e3, allowed, "us", note);
            }
            let caller = self.ours("W3", CASE, place, "to caller");
            if let Some((ours, echo)) = caller.zip(self.ours("W3", CASE, place, BETWEEN)) {
                let note = format!("{:.2} us, our echo {:.2} us", ours / 1e3, echo / 1e3);
                let name = format!("W3 cancel to the caller's return against our echo, {place}");
                self.at_most(name, ours / echo, 1.2, "x", note);
            }
        }
        for case in ["of a running request", "of a queued request"] {
            for place in Place::ALL.map(Place::name) {
                let ours = subjects::rescind::COMPETITOR.name;
                let Some(row) = self.rows("W4", case, place, "to caller").find(|row| row.name == ours) else {
                    continue;
                };
                let name = format!("W4 {case} against one with slots to spare, {place}");
                let spare = self.ours("W4", case, place, "to caller, slots to spare");
                if let Some((value, spare)) = row.figure.value().zip(spare) {
                    let note =
                        format!("always answered; {:.2} us, to spare {:.2} us", value / 1e3, spare / 1e3);
                    self.at_most(name, value / spare, 2.0, "x", note);
                }
            }
        }
    }

    fn bystanders(&mut self) {
        let counted = |court: &Self, who| court.value(who, "W5", "an echo", ONE, "instructions");
        let ours = counted(self, subjects::rescind::COMPETITOR.name);
        if let Some((ours, off)) = ours.zip(counted(self, subjects::rescind::WITHHELD.name)) {
            let mut note = format!(
                "{ours:.0} instructions, {off:.0} where neither side declares that it handles cancels"
            );
            if let Some(tokens) = counted(self, subjects::rescind::TOKENS.name) {
                note += &format!(", {tokens:.0} with a token on either side");
            }
            self.at_most("W5 more instructions a request", (ours / off - 1.0) * 100.0, 3.0, "%", note);
        }
        let case = "unknown cancels, 1,000,000";
        for place in [ONE, TWO] {
            let each = "a cancel, of all the time";
            let both = self.ours("W6", case, place, each).zip(self.floor("W6", case, place, each));
            if let Some((ours, floor)) = both {
                let note =
                    format!("{ours:.0} ns; {floor:.0} ns to write, carry, read and drop one without us");
                self.at_most(format!("W6 an unknown cancel, {place}"), ours - floor, 250.0, "ns", note);
            }
        }
        let case = "after 1,000,000 unknown cancels";
        if let Some((kib, played)) =
            self.ours("W6", case, ONE, "heap").zip(self.ours("W6", case, ONE, "played in all"))
        {
            let name = format!("W6 growth over {played:.0} unknown cancels");
            self.at_most(name, kib, 1024.0, "KiB", String::new());
        }
    }

    fn growth(&mut self) {
        for growth in &self.results.growth {
            if growth.name != subjects::rescind::COMPETITOR.name
                || growth.with == "requests in flight" && growth.what == "echo beside them"
            {
                continue;
            }
            // Below a thousand what is made once counts most.
            let total = growth.points.iter().filter(|(count, _)| *count >= 1000.0);
            let total: Vec<_> = total.map(|(count, each)| (*count, count * each)).collect();
            if let Some(fit) = Fit::new(&total) {
                let last = total.last().map_or(0.0, |(count, _)| *count);
                let note = format!("exponent of the total, from 1000 to {last}");
                let name = format!("linear: {} by {}", growth.what, growth.with);
                self.verdicts.push(Verdict {
                    name,
                    met: fit.exponent <= 1.1,
                    value: fit.exponent,
                    limit: 1.1,
                    unit: "",
                    note,
                });
            }
        }
        let others: Vec<_> = self
            .results
            .rows
            .iter()
            .filter(|row| row.workload == "W7" && row.measure == "other requests meanwhile")
            .filter(|row| row.name == subjects::rescind::COMPETITOR.name)
            .filter_map(|row| match &row.figure {
                Figure::Times(times) => Some((row.place, row.case.clone(), times.p99, times.count)),
                Figure::Number { .. } | Figure::Said(_) => None,
            })
            .collect();
        for (place, case, p99, count) in others {
            let name = format!("W7 p99 of other requests, {case}, {place}");
            self.at_most(name, p99 as f64 / 1e6, 1.0, "ms", format!("of {count} round trips"));
        }
    }

    fn memory_and_machine(&mut self) {
        for case in ["10000 in flight", "100000 in flight"] {
            if let Some(beside) = self.ours("W8", case, ONE, "beside the user's task") {
                let part = |measure| self.ours("W8", case, ONE, measure).unwrap_or_default();
                let note = format!(
                    "beside the runtime's cell of {:.0} B, the user's future of {:.0} B in it",
                    part("the runtime's cell of the user's task"),
                    part("the user's future"),
                );
                self.at_most(format!("W8 {case}, a request"), beside, 256.0, "B", note);
            }
        }
        for dialect in ["ACP", "MCP"] {
            if let Some(step) = self.ours("machine", dialect, "no wire", "a step") {
                self.at_most(format!("a machine step, {dialect}"), step / 1e3, 0.5, "us", String::new());
            }
            if let Some(count) = self.ours("machine", dialect, "no wire", "allocations a step") {
                self.at_most(format!("allocations a machine step, {dialect}"), count, 2.0, "", String::new());
            }
        }
    }

    /// A figure that is missing meets no budget.
    fn failures(&mut self) {
        for (row, said) in broken(self.results) {
            let name = format!("{} {}: {}, {}", row.workload, row.case, row.measure, row.place);
            self.at_most(name, f64::INFINITY, 0.0, "", format!("{} said: {said}", row.name.library));
        }
    }
}
