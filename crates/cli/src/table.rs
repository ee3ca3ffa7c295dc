//! The table for people: a block for each dialect, a row for each scenario, a column for each wire.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use rescind_testkit::runner::Direction;
use rescind_testkit::{Cell, CellOutcome, Report};

/// Whether the table may be coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    /// Colours are used.
    On,
    /// No colours: it is written to a file or a pipe, or `NO_COLOR` is set.
    Off,
}

/// The whole report as text. It ends with the failures and a summary.
pub(crate) fn render(report: &Report, wires: &[&str], colour: Colour) -> String {
    let mut text = String::new();
    let mut dialects: Vec<&str> = Vec::new();
    for cell in &report.cells {
        if !dialects.contains(&cell.dialect.as_str()) {
            dialects.push(&cell.dialect);
        }
    }
    for dialect in dialects {
        let cells: Vec<&Cell> = report.cells.iter().filter(|cell| cell.dialect == dialect).collect();
        block(&mut text, dialect, &cells, wires, colour);
    }
    reasons(&mut text, report, CellOutcome::Broke, "Broke", colour);
    reasons(&mut text, report, CellOutcome::NotAsked, "Not asked", colour);
    let summary = report.summary;
    let total = report.cells.len();
    let _ = writeln!(
        text,
        "{total} cells: {} held, {} broke, {} not asked",
        summary.held, summary.broke, summary.not_asked
    );
    text
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
        (CellOutcome::NotAsked, _) => ("not asked".to_owned(), Style::new().dimmed()),
    };
    paint(&format!("{shown:<WIDTH$}"), style, colour)
}

fn reasons(text: &mut String, report: &Report, outcome: CellOutcome, heading: &str, colour: Colour) {
    let mut cells = report.cells.iter().filter(|cell| cell.outcome == outcome).peekable();
    if cells.peek().is_none() {
        return;
    }
    let _ = writeln!(text, "{}", paint(heading, Style::new().bold(), colour));
    for cell in cells {
        let _ = writeln!(text, "  {} {} over {}: {}", cell.dialect, cell.scenario, cell.wire, cell.why);
        if outcome == CellOutcome::Broke {
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

fn median(times: impl Iterator<Item = u64>) -> Option<u64> {
    let mut times: Vec<u64> = times.collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

fn paint(text: &str, style: Style, colour: Colour) -> String {
    match colour {
        Colour::On => format!("{style}{text}{style:#}"),
        Colour::Off => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_of_times_is_one_of_them() {
        assert_eq!(median([4, 1, 3, 2].into_iter()), Some(3));
        assert_eq!(median(std::iter::empty()), None);
    }
}
