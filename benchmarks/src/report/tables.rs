//! The tables on stdout and in the documentation.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::shown;
use crate::harness::{Figure, Fit, Results, Row, Verdict, tally};
use crate::lsp_client::SERVER_ALONE;
use crate::subject::{Carries, Name};
use crate::subjects;

/// A description of the machine, and its load.
#[must_use]
pub fn machine_line() -> String {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let about = read("/proc/cpuinfo");
    let cores = about.lines().filter(|line| line.starts_with("processor")).count();
    let model = about.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let memory = read("/proc/meminfo");
    let memory = memory.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).unwrap_or_default();
    let release = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or("unknown");
    format!(
        "{cores} cores of {}, {:.0} GiB; Linux {}; {}; profile {}; load {load} when the run ended",
        model.map_or("an unknown processor", |(_, model)| model),
        memory / f64::from(1 << 20),
        release.split('-').next().unwrap_or_default().trim(),
        env!("BUILT_WITH"),
        env!("BUILT_AS"),
    )
}

const HEAD: [&str; 9] =
    ["library", "configuration", "p50", "p99", "p99.9", "max", "to floor", "samples", "note"];

/// The cells of a row.
fn cells(row: &Row) -> [String; 9] {
    let name = format!("{} {}", row.name.library, row.name.version).trim().to_owned();
    let ratio = row.ratio.map_or(String::new(), |ratio| format!("{ratio:.2}x"));
    let none = String::new;
    let note = row.name.carries.note().to_owned();
    let configuration = row.name.configuration.to_owned();
    match &row.figure {
        Figure::Times(times) => {
            // With too few samples there are none.
            let [p50, p99, p999, max] = [Some(times.p50), times.p99, times.p999, Some(times.max)]
                .map(|nanos| nanos.map_or("-".to_owned(), |nanos| shown(nanos as f64, "ns")));
            [name, configuration, p50, p99, p999, max, ratio, times.count.to_string(), note]
        }
        Figure::Number { value, unit } => {
            [name, configuration, shown(*value, unit), none(), none(), none(), ratio, none(), note]
        }
        Figure::Said(said) => {
            [name, configuration, (*said).to_owned(), none(), none(), none(), none(), none(), note]
        }
    }
}

/// The rows in groups with the same measure.
pub(super) fn groups(rows: &[Row]) -> Vec<Vec<&Row>> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|group| group[0].is_beside(row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

pub(super) fn title(row: &Row) -> String {
    format!("{} {}: {} ({})", row.workload, row.case, row.measure, row.place)
}

/// Prints everything on stdout.
pub fn print(results: &Results, verdicts: &[Verdict]) {
    let mut out = String::new();
    for group in groups(&results.rows) {
        let _ = writeln!(out, "\n{}", title(group[0]));
        let rows: Vec<_> =
            std::iter::once(HEAD.map(str::to_owned)).chain(group.into_iter().map(cells)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        for row in &rows {
            for (column, cell) in row.iter().enumerate() {
                let width = width(column);
                let _ = if column < 2 || column == HEAD.len() - 1 {
                    write!(out, "  {cell:<width$}")
                } else {
                    write!(out, "  {cell:>width$}")
                };
            }
            out.truncate(out.trim_end().len());
            out.push('\n');
        }
    }
    let _ = writeln!(out, "\nGrowth (the total as a power of the number; 1 is a line)");
    for growth in &results.growth {
        if let Some(line) = slope(growth) {
            let _ = writeln!(out, "  {line}");
        }
    }
    let _ = writeln!(out, "\nBudgets");
    for verdict in verdicts {
        let (ruling, value, limit) = (verdict.ruling.name(), verdict.value_shown(3), verdict.limit_shown());
        let _ =
            writeln!(out, "  {ruling:<10}  {value:>12} of {limit:<10} {}  {}", verdict.name, verdict.note);
    }
    let _ = writeln!(out, "  {}. {}", tally(verdicts), machine_line());
    print!("{out}");
}

pub(super) fn slope(growth: &crate::harness::Growth) -> Option<String> {
    let totals: Vec<_> = growth.points.iter().map(|(count, each)| (*count, count * each)).collect();
    let from_thousand: Vec<_> = totals.iter().copied().filter(|(count, _)| *count >= 1000.0).collect();
    let (last, each) = growth.points.last()?;
    let large = Fit::new(&from_thousand).map_or("-".to_owned(), |fit| format!("{:.3}", fit.exponent));
    Some(format!(
        "{} ({}): {} by {}: exponent {:.3}, from 1000 on {large}; {} each at {last}",
        growth.name.library,
        growth.name.configuration,
        growth.what,
        growth.with,
        Fit::new(&totals)?.exponent,
        shown(*each, growth.unit),
    ))
}

/// The tables of the documentation, as they are shown: budgets, a line for each competitor, the cases in which another
/// library is better, growth. All figures are in the JSON of the run and on its page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tables {
    /// The date and the options of the run, and how its programs were built.
    pub run: String,
    pub machine: String,
    /// The number of budgets that are met.
    pub tally: String,
    pub budgets: Vec<BudgetRow>,
    /// The headings, and a line for each competitor. Empty if the run has none of these figures.
    pub beside: Vec<Vec<String>>,
    pub better: Vec<String>,
    pub growth: Vec<String>,
}

/// A budget, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetRow {
    pub budget: String,
    pub measured: String,
    pub at_most: String,
    pub ruling: String,
    pub made_of: String,
}

impl Tables {
    /// The tables of a run. `run` is a sentence about it.
    #[must_use]
    pub fn new(results: &Results, verdicts: &[Verdict], run: &str) -> Self {
        let budget = |verdict: &Verdict| BudgetRow {
            budget: verdict.name.clone(),
            measured: verdict.value_shown(2),
            at_most: verdict.limit_shown(),
            ruling: verdict.ruling.name().to_owned(),
            made_of: verdict.note.clone(),
        };
        let beside = summary(results).map(|(heads, lines)| {
            std::iter::once(heads.into_iter().map(str::to_owned).collect()).chain(lines).collect()
        });
        Self {
            run: run.to_owned(),
            machine: machine_line(),
            tally: tally(verdicts),
            budgets: verdicts.iter().map(budget).collect(),
            beside: beside.unwrap_or_default(),
            better: better(results),
            growth: results.growth.iter().filter_map(slope).collect(),
        }
    }
}

// The cases in which another library is better than this one: all figures of the run, without a selection.

/// Marks a library that passes values without serializing them.
const MARK: char = '†';

/// The text above the lines.
pub(super) const ABOUT: &str = "By medians, in every case and place where both have a figure; the two floors are not named. \
    \"default\", \"quick handlers\", \"typed texts\" and \"typed texts, quick handlers\" are ours. † hands values over, writes no bytes.";

/// More of these is not worse: they count how much was played.
const NO_FIGURE_OF_MERIT: [&str; 1] = ["played in all"];

/// A line for each measure in which another library's figure is lower than one of this library's.
fn better(results: &Results) -> Vec<String> {
    groups(&results.rows).into_iter().filter_map(|group| loss(&group)).collect()
}

/// A figure for which lower is better, and its unit.
fn of_merit(row: &Row) -> Option<(f64, &'static str)> {
    if NO_FIGURE_OF_MERIT.contains(&row.measure) {
        return None;
    }
    match &row.figure {
        Figure::Times(times) => Some((times.p50 as f64, "ns")),
        Figure::Number { value, unit } => Some((*value, unit)),
        Figure::Said(_) => None,
    }
}

fn loss(group: &[&Row]) -> Option<String> {
    let find = |name: Name| group.iter().find(|row| row.name == name).and_then(|row| of_merit(row));
    use subjects::rescind::{COMPETITOR, QUICK, QUICK_TYPED, TYPED};

    let ours = [COMPETITOR, QUICK, TYPED, QUICK_TYPED].map(|one| one.name);
    let ours: Vec<_> = ours.into_iter().filter_map(|name| Some((name.configuration, find(name)?))).collect();
    let all_of_ours = subjects::all_of_ours();
    let mut others: Vec<_> = group
        .iter()
        .filter(|row| !all_of_ours.contains(&row.name))
        // The budgets compare servers alone with servers alone.
        .filter(|row| row.name.configuration != SERVER_ALONE)
        .filter_map(|row| Some((of_merit(row)?, row.name)))
        .collect();
    others.sort_by(|(a, _), (b, _)| a.0.total_cmp(&b.0));
    // Figures that look equal are not better.
    let is_below = |(theirs, unit): (f64, &str), (ours, our_unit): (f64, &str)| {
        unit == our_unit && theirs < ours && shown(theirs, unit) != shown(ours, unit)
    };
    let mut told: Vec<_> = ours
        .iter()
        .map(|(configuration, (value, unit))| format!("{configuration} {}", shown(*value, unit)))
        .collect();
    for (theirs, name) in others {
        let beaten: Vec<_> = ours.iter().filter(|(_, ours)| is_below(theirs, *ours)).collect();
        if beaten.is_empty() {
            continue;
        }
        let than = if beaten.len() == ours.len() {
            String::new()
        } else {
            let names: Vec<_> = beaten.iter().map(|(configuration, _)| *configuration).collect();
            format!(" (than {} alone)", names.join(" and "))
        };
        told.push(format!("{} {}{than}", who(name), shown(theirs.0, theirs.1)));
    }
    (told.len() > ours.len()).then(|| format!("{}: {}", title(group[0]), told.join("; ")))
}

fn who(name: Name) -> String {
    let Name { library, configuration, carries, .. } = name;
    match carries {
        Carries::Bytes => format!("{library} ({configuration})"),
        Carries::Values => format!("{library} ({configuration}) {MARK}"),
    }
}

// One line for each competitor, with the most important figures.

/// A column: its heading, and the place of its figures.
type Column = (&'static str, &'static str, &'static str, &'static str, &'static str);

const ONE: &str = "memory, one thread";
const PIPES: &str = "pipes, one core";
const EACH: &str = "a request, of all the time";
const CORE: &str = "one core";
const COLUMNS: [Column; 31] = [
    ("echo 64 B", "W1", "64 B", ONE, "round trip"),
    ("64 KiB", "W1", "64 KiB", ONE, "round trip"),
    ("two workers", "W1", "64 B", "memory, two workers", "round trip"),
    ("pipes", "W1", "64 B", PIPES, "round trip"),
    ("WebSocket", "wires", "websocket", CORE, "round trip"),
    ("HTTP", "wires", "http-streamable", CORE, "round trip"),
    ("HTTP, stateless", "wires", "http-stateless", CORE, "round trip"),
    ("HTTP, acp", "wires", "http-acp", CORE, "round trip"),
    ("a request, 64 in flight", "W2", "64 in flight", ONE, EACH),
    ("pipes, 64 in flight", "wires", "stdio, 64 in flight", CORE, EACH),
    ("WebSocket, 64 in flight", "wires", "websocket, 64 in flight", CORE, EACH),
    ("HTTP, 64 in flight", "wires", "http-streamable, 64 in flight", CORE, EACH),
    ("HTTP, stateless, 64 in flight", "wires", "http-stateless, 64 in flight", CORE, EACH),
    ("HTTP, acp, 64 in flight", "wires", "http-acp, 64 in flight", CORE, EACH),
    ("cancel to handler", "W3", "one at a time", ONE, "to handler"),
    ("cancel to handler, pipes", "wires", "stdio, cancel", CORE, "to handler"),
    ("cancel to handler, WebSocket", "wires", "websocket, cancel", CORE, "to handler"),
    ("cancel to handler, HTTP", "wires", "http-streamable, cancel", CORE, "to handler"),
    ("cancel to handler, HTTP, stateless", "wires", "http-stateless, cancel", CORE, "to handler"),
    ("cancel to handler, HTTP, acp", "wires", "http-acp, cancel", CORE, "to handler"),
    ("to caller", "W3", "one at a time", ONE, "to caller"),
    ("slots taken, a running one", "W4", "of a running request", ONE, "to caller"),
    ("a queued one", "W4", "of a queued request", ONE, "to caller"),
    ("deadline, late by", "W9", "100000 deadlines at once", ONE, "late by"),
    ("allocations an echo", "W5", "an echo", ONE, "allocations"),
    ("heap in flight", "W8", "10000 in flight", ONE, "heap a request"),
    ("idle session, named pipe", "wires", "named-pipe", CORE, "an idle session"),
    ("idle session, WebSocket", "wires", "websocket", CORE, "an idle session"),
    ("idle session, HTTP", "wires", "http-streamable", CORE, "an idle session"),
    ("idle session, HTTP, stateless", "wires", "http-stateless", CORE, "an idle session"),
    ("idle session, HTTP, acp", "wires", "http-acp", CORE, "an idle session"),
];

/// The headings and the lines. Columns without figures in the run are omitted.
fn summary(results: &Results) -> Option<(Vec<&'static str>, Vec<Vec<String>>)> {
    let of = |column: &Column, row: &Row| {
        (row.workload, row.case.as_str(), row.place, row.measure) == (column.1, column.2, column.3, column.4)
    };
    let columns: Vec<_> =
        COLUMNS.iter().filter(|column| results.rows.iter().any(|row| of(column, row))).collect();
    if columns.is_empty() {
        return None;
    }
    let mut names: Vec<Name> = Vec::new();
    for row in &results.rows {
        if columns.iter().any(|column| of(column, row)) && !names.contains(&row.name) {
            names.push(row.name);
        }
    }
    let cell = |name: Name, column: &Column| {
        let row = results.rows.iter().find(|row| row.name == name && of(column, row));
        row.map_or("-".to_owned(), |row| match &row.figure {
            Figure::Times(times) => shown(times.p50 as f64, "ns"),
            Figure::Number { value, unit } => shown(*value, unit),
            Figure::Said(said) => (*said).to_owned(),
        })
    };
    let lines = names.into_iter().map(|name| {
        let who = format!("{} {} ({})", name.library, name.version, name.configuration).replace("  ", " ");
        let figures = columns.iter().map(|column| cell(name, column));
        std::iter::once(who).chain(figures).chain([name.carries.note().to_owned()]).collect()
    });
    let heads =
        std::iter::once("medians").chain(columns.iter().map(|column| column.0)).chain(["note"]).collect();
    Some((heads, lines.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Distribution;

    #[test]
    fn quantiles_of_too_few_samples_are_shown_as_a_dash() {
        let name = crate::subjects::FLOOR.name;
        let times =
            crate::harness::Distribution::new(vec![5; 99]).map_or(Figure::Said("none"), Figure::Times);
        let row = Row::new("W7", "any".to_owned(), "memory", "to caller", name, times);
        assert_eq!(cells(&row)[2..6], ["5 ns", "-", "-", "5 ns"]);
    }

    const OURS: Name = subjects::rescind::COMPETITOR.name;
    const TYPED: Name = subjects::rescind::TYPED.name;
    const OTHER: Name =
        Name { library: "other", version: "1", configuration: "best", carries: Carries::Bytes };
    const HANDS: Name =
        Name { library: "hands", version: "1", configuration: "default", carries: Carries::Values };

    fn row(case: &str, measure: &'static str, name: Name, figure: Figure) -> Row {
        Row::new("W9", case.to_owned(), "pipes, one core", measure, name, figure)
    }

    fn times(nanos: u64) -> Figure {
        Distribution::new(vec![nanos]).map_or(Figure::Said("none"), Figure::Times)
    }

    fn bytes(value: f64) -> Figure {
        Figure::Number { value, unit: "B" }
    }

    fn told(rows: Vec<Row>) -> Vec<String> {
        better(&Results { rows, ..Results::default() })
    }

    #[test]
    fn every_lost_case_has_a_line_and_the_best_library_comes_first() {
        let rows = vec![
            row("any", "late by", OURS, times(300)),
            row("any", "late by", OTHER, times(200)),
            row("any", "late by", HANDS, times(100)),
            row("more", "heap", OURS, bytes(20.0)),
            row("more", "heap", OTHER, bytes(10.0)),
        ];
        assert_eq!(
            told(rows),
            [
                "W9 any: late by (pipes, one core): default 300 ns; hands (default) † 100 ns; other (best) 200 ns",
                "W9 more: heap (pipes, one core): default 20 B; other (best) 10 B",
            ]
        );
    }

    #[test]
    fn a_library_ahead_of_only_our_typed_texts_is_named_as_such() {
        let rows = vec![
            row("any", "late by", OURS, times(100)),
            row("any", "late by", OTHER, times(200)),
            row("any", "late by", TYPED, times(300)),
            row("any", "late by", HANDS, times(50)),
        ];
        assert_eq!(
            told(rows),
            [
                "W9 any: late by (pipes, one core): default 100 ns; typed texts 300 ns; hands (default) † 50 ns; \
              other (best) 200 ns (than typed texts alone)"
            ]
        );
    }

    #[test]
    fn floors_and_cases_that_are_not_better_have_no_line() {
        let rows = vec![
            row("a", "late by", OURS, times(300)),
            row("a", "late by", subjects::FLOOR.name, times(1)),
            row("a", "late by", subjects::CHANNELS.name, times(1)),
            row("b", "played in all", OURS, bytes(20.0)),
            row("b", "played in all", OTHER, bytes(10.0)),
            row("c", "heap", OURS, bytes(20.0)),
            row("c", "heap", OTHER, bytes(20.0)),
            row("c", "heap", HANDS, bytes(30.0)),
            row("d", "late by", OURS, Figure::Said("never")),
            row("d", "late by", OTHER, times(1)),
            row("e", "late by", OURS, times(1)),
            row("e", "late by", OTHER, Figure::Said("never")),
            row("f", "heap", OURS, bytes(20.04)),
            row("f", "heap", OTHER, bytes(20.01)),
        ];
        assert_eq!(told(rows), [""; 0]);
    }
}
