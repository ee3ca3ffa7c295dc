//! The summary of a matrix, which fits a screen: a column for each wire, and below them one for each bridge.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use rescind_testkit::{Cell, CellOutcome, Report};

use crate::table::{Colour, dialects, median, paint};

const LEGEND: &str = "\
Each cell: scenarios that held / asked, and the median time from a cancel to its answer or effect.
`--table` shows every scenario, `--reasons` why cells were not asked.

";

/// The most columns of a line.
const MAX_WIDTH: usize = 100;
/// The beginning of the names of bridges: `bridge:websocket>stdio`.
const BRIDGE: &str = "bridge:";

/// A field of the grid: what held of what was asked, and how long a cancel took.
struct Field {
    count: String,
    time: String,
    style: Style,
}

/// The grids of the wires and of the bridges.
pub(crate) fn grid(report: &Report, wires: &[&str], colour: Colour) -> String {
    let (bridges, wires): (Vec<&str>, Vec<&str>) =
        wires.iter().copied().partition(|wire| wire.starts_with(BRIDGE));
    let mut text = LEGEND.to_owned();
    if !wires.is_empty() {
        grid_of_wires(&mut text, report, &wires, colour);
    }
    if !bridges.is_empty() {
        grid_of_bridges(&mut text, report, &bridges, colour);
    }
    text
}

/// One line for the names, or two if one would be too long, and two for each dialect. Two spaces are between the columns
/// if there is room for them.
fn grid_of_wires<'a>(text: &mut String, report: &Report, wires: &[&'a str], colour: Colour) {
    let rows = rows(report, wires);
    let first = first_width(&rows);
    let one_line = widths(wires, &rows, |field| field.count.len().max(field.time.len()));
    let fits = first + one_line.iter().map(|width| width + 2).sum::<usize>() <= MAX_WIDTH;
    let name = |wire: &&'a str| if fits { (String::new(), *wire) } else { two_lines(wire) };
    let names: Vec<(String, &str)> = wires.iter().map(name).collect();
    let longest: Vec<&str> = names.iter().map(|(one, two)| longer(one, two)).collect();
    let widths = widths(&longest, &rows, |field| field.count.len().max(field.time.len()));
    let gap = if first + widths.iter().map(|width| width + 2).sum::<usize>() <= MAX_WIDTH { 2 } else { 1 };
    if names.iter().any(|(one, _)| !one.is_empty()) {
        let heading = names.iter().map(|(one, _)| (one.as_str(), Style::new().bold()));
        line(text, ("", first), heading, (&widths, gap), colour);
    }
    let heading = names.iter().map(|(_, two)| (*two, Style::new().bold()));
    line(text, ("", first), heading, (&widths, gap), colour);
    for (dialect, fields) in &rows {
        let counts = fields.iter().map(|field| (field.count.as_str(), field.style));
        line(text, (dialect, first), counts, (&widths, gap), colour);
        let times = fields.iter().map(|field| (field.time.as_str(), Style::new().dimmed()));
        line(text, ("", first), times, (&widths, gap), colour);
    }
    text.push('\n');
}

/// One line for each dialect that a bridge carries, below the wire of the clients and the wire behind the bridge.
fn grid_of_bridges(text: &mut String, report: &Report, bridges: &[&str], colour: Colour) {
    let mut rows = rows(report, bridges);
    rows.retain(|(_, fields)| fields.iter().any(|field| !field.time.is_empty()));
    let first = first_width(&rows).max(BRIDGE.len());
    let names = bridges.iter().map(|bridge| bridge.strip_prefix(BRIDGE).unwrap_or(bridge));
    let (clients, behind): (Vec<&str>, Vec<&str>) =
        names.map(|name| name.split_at(name.find('>').unwrap_or(name.len()))).unzip();
    let joined = |field: &Field| format!("{} {}", field.count, field.time).trim_end().to_owned();
    let longest: Vec<&str> = clients.iter().zip(&behind).map(|(one, two)| longer(one, two)).collect();
    let widths = widths(&longest, &rows, |field| joined(field).len());
    for (name, heading) in [(BRIDGE, &clients), ("", &behind)] {
        let heading = heading.iter().map(|part| (*part, Style::new().bold()));
        line(text, (name, first), heading, (&widths, 2), colour);
    }
    for (dialect, fields) in &rows {
        let joined: Vec<String> = fields.iter().map(joined).collect();
        let shown = joined.iter().zip(fields).map(|(text, field)| (text.as_str(), field.style));
        line(text, (dialect, first), shown, (&widths, 2), colour);
    }
    text.push('\n');
}

/// The name of a wire as a heading: `http-streamable@3` is `http-@3` above `streamable`, and `http-legacy-sse` is `legacy-`
/// above `sse`.
fn two_lines(wire: &str) -> (String, &str) {
    let (name, replicas) = wire.split_at(wire.find('@').unwrap_or(wire.len()));
    let name = name.strip_prefix("http-").filter(|rest| rest.contains('-')).unwrap_or(name);
    match name.find('-') {
        Some(at) => {
            let (one, two) = name.split_at(at + 1);
            (format!("{one}{replicas}"), two)
        }
        None => (replicas.to_owned(), name),
    }
}

fn longer<'a>(one: &'a str, two: &'a str) -> &'a str {
    if two.len() > one.len() { two } else { one }
}

/// The fields of each dialect.
type Rows<'a> = Vec<(&'a str, Vec<Field>)>;

fn rows<'a>(report: &'a Report, wires: &[&str]) -> Rows<'a> {
    let fields = |dialect| wires.iter().map(|wire| field(report, dialect, wire)).collect();
    dialects(report).into_iter().map(|dialect| (dialect, fields(dialect))).collect()
}

fn first_width(rows: &Rows<'_>) -> usize {
    rows.iter().map(|(dialect, _)| dialect.len()).max().unwrap_or(0)
}

/// The width of each column.
fn widths(headings: &[&str], rows: &Rows<'_>, width: impl Fn(&Field) -> usize) -> Vec<usize> {
    let widest = |column: usize| rows.iter().filter_map(|(_, fields)| fields.get(column)).map(&width).max();
    let columns = headings.iter().enumerate();
    columns.map(|(column, heading)| widest(column).unwrap_or(0).max(heading.len())).collect()
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
    (widths, gap): (&[usize], usize),
    colour: Colour,
) {
    let mut padding = first.saturating_sub(name.len());
    text.push_str(&paint(name, Style::new().bold(), colour));
    for ((shown, style), width) in fields.zip(widths) {
        if shown.is_empty() {
            padding += gap + width;
            continue;
        }
        padding += gap;
        let _ = write!(text, "{:padding$}{}", "", paint(shown, style, colour));
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
    use rescind_testkit::wires::{WIRES, not_asked};

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
    fn bridges_come_below_the_wires_with_a_line_for_each_dialect() {
        let report = Report::new(vec![
            cell("acp", "memory", CellOutcome::Held, Some(300)),
            cell("acp", "bridge:websocket>stdio", CellOutcome::Held, Some(743)),
            cell("acp", "bridge:stdio>http-streamable", CellOutcome::Broke, Some(8_000)),
            cell("abp", "memory", CellOutcome::Held, None),
            cell("abp", "bridge:websocket>stdio", CellOutcome::NotAsked, None),
        ]);
        let wires = ["memory", "bridge:websocket>stdio", "bridge:stdio>http-streamable"];
        let text = grid(&report, &wires, Colour::Off);
        let (_, bridges) = text.split_once("\n\nbridge:").unwrap();
        let lines: Vec<&str> = bridges.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "  websocket   stdio",
                "         >stdio      >http-streamable",
                "acp      1/1 743 us  0/1 8.0 ms",
                "",
            ]
        );
        let alone = grid(&report, &["bridge:websocket>stdio"], Colour::Off);
        assert!(alone.strip_prefix(LEGEND).unwrap().starts_with("bridge:"), "{alone}");
    }

    #[test]
    fn the_whole_matrix_fits_a_screen() {
        let mut cells = Vec::new();
        for wire in WIRES {
            for scenario in scenarios() {
                let is_asked = not_asked(wire, scenario).unwrap().is_none();
                let outcome = if is_asked { CellOutcome::Held } else { CellOutcome::NotAsked };
                cells.push(cell(scenario.dialect, wire, outcome, is_asked.then_some(99_900)));
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
