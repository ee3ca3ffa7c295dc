//! The table for people: a block for each dialect, a row for each scenario, a column for each wire.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use rescind_testkit::runner::Direction;
use rescind_testkit::{Cell, CellOutcome, Report};

use crate::summary;

/// Whether the table may be coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    /// Colours are used.
    On,
    /// No colours: it is written to a file or a pipe, or `NO_COLOR` is set.
    Off,
}

impl Colour {
    /// Colours for a terminal, unless `NO_COLOR` is set.
    pub(crate) fn of(is_terminal: bool) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if is_terminal && !plain { Self::On } else { Self::Off }
    }
}

/// The parts of a report that are shown. The failures and the totals always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// A row for each scenario, and the messages of the cells that broke.
    pub(crate) rows: bool,
    /// Why cells were not asked.
    pub(crate) reasons: bool,
    /// A row for each dialect.
    pub(crate) summary: bool,
}

/// A report as text.
pub(crate) fn render(report: &Report, wires: &[&str], view: View, colour: Colour) -> String {
    let mut text = String::new();
    if view.rows {
        for dialect in dialects(report) {
            let cells: Vec<&Cell> = report.cells.iter().filter(|cell| cell.dialect == dialect).collect();
            block(&mut text, dialect, &cells, wires, colour);
        }
    }
    if view.reasons && view.summary {
        reasons(&mut text, report, CellOutcome::NotAsked, view, colour);
    }
    if view.summary {
        text.push_str(&summary::grid(report, wires, colour));
    }
    reasons(&mut text, report, CellOutcome::Broke, view, colour);
    if view.reasons && !view.summary {
        reasons(&mut text, report, CellOutcome::NotAsked, view, colour);
    }
    text.push_str(&summary::totals(report));
    text
}

/// The dialects of a report, in its order.
pub(crate) fn dialects(report: &Report) -> Vec<&str> {
    let mut dialects: Vec<&str> = Vec::new();
    for cell in &report.cells {
        if !dialects.contains(&cell.dialect.as_str()) {
            dialects.push(&cell.dialect);
        }
    }
    dialects
}

fn block(text: &mut String, dialect: &str, cells: &[&Cell], wires: &[&str], colour: Colour) {
    let mut rows: BTreeMap<&str, Vec<Option<&Cell>>> = BTreeMap::new();
    for cell in cells {
        let row = rows.entry(&cell.scenario).or_insert_with(|| vec![None; wires.len()]);
        if let Some(target) = wires.iter().position(|wire| *wire == cell.wire).and_then(|at| row.get_mut(at))
        {
            *target = Some(cell);
        }
    }
    let first = rows.keys().map(|name| name.len()).max().unwrap_or(0).max(dialect.len());
    let heading = paint(&format!("{dialect:<first$}"), Style::new().bold(), colour);
    let _ = write!(text, "{heading}");
    for wire in wires {
        let _ = write!(text, "  {wire:<WIDTH$}");
    }
    text.push('\n');
    for (scenario, row) in &rows {
        let _ = write!(text, "{scenario:<first$}");
        for cell in row {
            let _ = write!(text, "  {}", cell_text(*cell, colour));
        }
        text.push('\n');
    }
    let _ = write!(text, "{:<first$}", "held / broke");
    for wire in wires {
        let count =
            |outcome| cells.iter().filter(|cell| cell.wire == *wire && cell.outcome == outcome).count();
        let counts = format!("{} / {}", count(CellOutcome::Held), count(CellOutcome::Broke));
        let _ = write!(text, "  {counts:<WIDTH$}");
    }
    let _ = write!(text, "\n{:<first$}", "median cancel");
    for wire in wires {
        let median = median(cells.iter().filter(|cell| cell.wire == *wire).filter_map(|cell| cell.cancel_us));
        let shown = median.map_or_else(|| "-".to_owned(), |median| format!("{median} us"));
        let _ = write!(text, "  {shown:<WIDTH$}");
    }
    text.push_str("\n\n");
}

const WIDTH: usize = 15;

fn cell_text(cell: Option<&Cell>, colour: Colour) -> String {
    let Some(cell) = cell else { return format!("{:<WIDTH$}", "") };
    let (shown, style) = match (cell.outcome, cell.cancel_us) {
        (CellOutcome::Held, Some(time)) => (format!("held {time} us"), AnsiColor::Green.on_default()),
        (CellOutcome::Held, None) => ("held".to_owned(), AnsiColor::Green.on_default()),
        (CellOutcome::Broke, _) => ("BROKE".to_owned(), AnsiColor::Red.on_default().bold()),
        (CellOutcome::Unsure, _) => ("unsure".to_owned(), AnsiColor::Yellow.on_default()),
        (CellOutcome::NotAsked, _) => ("not asked".to_owned(), Style::new().dimmed()),
    };
    paint(&format!("{shown:<WIDTH$}"), style, colour)
}

fn reasons(text: &mut String, report: &Report, outcome: CellOutcome, view: View, colour: Colour) {
    let heading = if outcome == CellOutcome::Broke { "Broke" } else { "Not asked" };
    let mut cells = report.cells.iter().filter(|cell| cell.outcome == outcome).peekable();
    if cells.peek().is_none() {
        return;
    }
    let _ = writeln!(text, "{}", paint(heading, Style::new().bold(), colour));
    for cell in cells {
        let _ = writeln!(text, "  {} {} over {}: {}", cell.dialect, cell.scenario, cell.wire, cell.why);
        if outcome == CellOutcome::Broke && view.rows {
            for line in &cell.trace {
                let _ = writeln!(text, "      {} {}", arrow(line.direction), line.text);
            }
        }
    }
    text.push('\n');
}

/// The direction of a line of a trace, as seen from the runner.
pub(crate) const fn arrow(direction: Direction) -> &'static str {
    match direction {
        Direction::Sent => "->",
        Direction::Received => "<-",
    }
}

pub(crate) fn median(times: impl Iterator<Item = u64>) -> Option<u64> {
    let mut times: Vec<u64> = times.collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

pub(crate) fn paint(text: &str, style: Style, colour: Colour) -> String {
    match colour {
        Colour::On => format!("{style}{text}{style:#}"),
        Colour::Off => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_that_broke_shows_its_reason_and_with_the_rows_its_messages_too() {
        let scenario = rescind_testkit::scenarios().first().unwrap();
        let mut broken = Cell::not_asked(scenario, "stdio", "step 2: nothing came");
        broken.outcome = CellOutcome::Broke;
        broken.trace = vec![rescind_testkit::runner::TraceLine::new(Direction::Sent, "{}")];
        let mut other = broken.clone();
        (other.wire, other.outcome) = ("memory".to_owned(), CellOutcome::NotAsked);
        let report = Report::new(vec![broken, other]);
        let view = View { rows: false, reasons: false, summary: true };
        let text = render(&report, &["stdio"], view, Colour::Off);
        let reason =
            format!("{} {} over stdio: step 2: nothing came\n", scenario.dialect, scenario.vector.name);
        assert!(text.contains(&reason) && !text.contains("-> {}") && !text.contains("over memory"), "{text}");
        assert!(text.contains("0/1"), "{text}");
        let text = render(&report, &["stdio"], View { rows: true, ..view }, Colour::Off);
        assert!(text.contains(&format!("{reason}      -> {{}}\n")) && text.contains("BROKE"), "{text}");
        let text = render(&report, &["stdio"], View { reasons: true, ..view }, Colour::Off);
        assert!(text.contains("over memory: step 2"), "{text}");
    }

    #[test]
    fn the_median_of_an_even_number_of_times_is_one_of_them() {
        assert_eq!(median([4, 1, 3, 2].into_iter()), Some(3));
        assert_eq!(median(std::iter::empty()), None);
    }
}
