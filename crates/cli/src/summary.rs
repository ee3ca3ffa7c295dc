//! The summary of a matrix, which fits a screen: two lines for each dialect, a column for each wire.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use rescind_testkit::{Cell, CellOutcome, Report};

use crate::table::{Colour, dialects, median, paint};

const LEGEND: &str = "\
Each cell: scenarios that held / scenarios asked, and the median time of a cancel.
The time runs from the cancel to the answer of its request, or to its first effect if none is due.
`--table` shows every scenario, `--reasons` why cells were not asked.

";

/// A field of the grid: what held of what was asked, and how long a cancel took.
struct Field {
    count: String,
    time: String,
    style: Style,
}

/// The grid alone.
pub(crate) fn grid(report: &Report, wires: &[&str], colour: Colour) -> String {
    let rows: Vec<(&str, Vec<Field>)> = dialects(report)
        .into_iter()
        .map(|dialect| (dialect, wires.iter().map(|wire| field(report, dialect, wire)).collect()))
        .collect();
    let first = rows.iter().map(|(dialect, _)| dialect.len()).max().unwrap_or(0);
    let widths: Vec<usize> = wires
        .iter()
        .enumerate()
        .map(|(column, wire)| {
            let fields = rows.iter().filter_map(|(_, fields)| fields.get(column));
            let widest = fields.map(|field| field.count.len().max(field.time.len())).max();
            widest.unwrap_or(0).max(wire.len())
        })
        .collect();

    let mut text = LEGEND.to_owned();
    let heading = wires.iter().map(|wire| (*wire, Style::new().bold()));
    line(&mut text, ("", first), heading, &widths, colour);
    for (dialect, fields) in &rows {
        let counts = fields.iter().map(|field| (field.count.as_str(), field.style));
        line(&mut text, (dialect, first), counts, &widths, colour);
        let times = fields.iter().map(|field| (field.time.as_str(), Style::new().dimmed()));
        line(&mut text, ("", first), times, &widths, colour);
    }
    text.push('\n');
    text
}

/// The last line.
pub(crate) fn totals(report: &Report) -> String {
    let summary = report.summary;
    let total = report.cells.len();
    format!(
        "{total} cells: {} held, {} broke, {} not asked\n",
        summary.held, summary.broke, summary.not_asked
    )
}

fn field(report: &Report, dialect: &str, wire: &str) -> Field {
    let cells: Vec<&Cell> =
        report.cells.iter().filter(|cell| cell.dialect == dialect && cell.wire == wire).collect();
    let count = |outcome| cells.iter().filter(|cell| cell.outcome == outcome).count();
    let (held, broke) = (count(CellOutcome::Held), count(CellOutcome::Broke));
    if held + broke == 0 {
        return Field { count: "-".to_owned(), time: String::new(), style: Style::new().dimmed() };
    }
    let style = if broke == 0 { AnsiColor::Green.on_default() } else { AnsiColor::Red.on_default().bold() };
    let time = median(cells.iter().filter_map(|cell| cell.cancel_us));
    Field { count: format!("{held}/{}", held + broke), time: time.map_or_else(String::new, time_text), style }
}

fn line<'a>(
    text: &mut String,
    (name, first): (&str, usize),
    fields: impl Iterator<Item = (&'a str, Style)>,
    widths: &[usize],
    colour: Colour,
) {
    let mut padding = first.saturating_sub(name.len());
    text.push_str(&paint(name, Style::new().bold(), colour));
    for ((shown, style), width) in fields.zip(widths) {
        if shown.is_empty() {
            padding += 2 + width;
            continue;
        }
        let _ = write!(text, "{:padding$}  {}", "", paint(shown, style, colour));
        padding = width.saturating_sub(shown.len());
    }
    text.push('\n');
}

/// Three digits, as far as there are.
pub(crate) fn time_text(us: u64) -> String {
    match us {
        0..=999 => format!("{us} us"),
        // In tenths of a millisecond, rounded.
        1_000..=99_949 => {
            let tenths = (us + 50) / 100;
            format!("{}.{} ms", tenths / 10, tenths % 10)
        }
        99_950..=999_499 => format!("{} ms", (us + 500) / 1000),
        _ => format!("{}.{} s", (us + 50_000) / 1_000_000, (us + 50_000) % 1_000_000 / 100_000),
    }
}

#[cfg(test)]
mod tests {
    use rescind_testkit::scenarios;
    use rescind_testkit::wires::WIRES;

    use super::*;

    fn cell(dialect: &str, wire: &str, outcome: CellOutcome, cancel_us: Option<u64>) -> Cell {
        let mut cell = Cell::not_asked(scenarios().first().unwrap(), wire, "because");
        (cell.dialect, cell.outcome, cell.cancel_us) = (dialect.to_owned(), outcome, cancel_us);
        cell
    }

    #[test]
    fn a_cell_shows_how_many_scenarios_held_of_those_asked() {
        let report = Report::new(vec![
            cell("acp", "stdio", CellOutcome::Held, Some(300)),
            cell("acp", "stdio", CellOutcome::Held, Some(1_250)),
            cell("acp", "stdio", CellOutcome::Broke, None),
            cell("acp", "memory", CellOutcome::NotAsked, None),
            cell("mcp-2026", "memory", CellOutcome::Held, None),
        ]);
        let text = grid(&report, &["memory", "stdio"], Colour::Off);
        let lines: Vec<&str> = text.strip_prefix(LEGEND).unwrap().lines().collect();
        assert_eq!(
            lines,
            [
                "          memory  stdio",
                "acp       -       2/3",
                "                  1.3 ms",
                "mcp-2026  1/1     -",
                "",
                "",
            ]
        );
    }

    #[test]
    fn the_whole_matrix_fits_a_screen() {
        let mut cells = Vec::new();
        for dialect in rescind::dialect::ALL.each_ref().map(rescind::dialect::Dialect::name) {
            for wire in WIRES {
                cells.extend((0..120).map(|_| cell(dialect, wire, CellOutcome::Held, Some(99_900))));
            }
        }
        let report = Report::new(cells);
        let text = grid(&report, &WIRES, Colour::Off) + &totals(&report);
        assert!(text.lines().count() <= 30, "{text}");
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    }

    #[test]
    fn a_time_has_at_most_three_digits_below_a_second() {
        let shown = [0, 999, 1_000, 1_049, 1_050, 99_949, 99_950, 250_400, 999_500, 2_140_000].map(time_text);
        assert_eq!(
            shown,
            ["0 us", "999 us", "1.0 ms", "1.0 ms", "1.1 ms", "99.9 ms", "100 ms", "250 ms", "1.0 s", "2.1 s"]
        );
    }
}
