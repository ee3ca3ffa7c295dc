//! The tables of a matrix for people: a summary that fits a screen, with a column for each wire and below it one for each
//! bridge; and a block for each dialect, with a row for each scenario.

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
        text.push_str(&grid(report, wires, colour));
    }
    reasons(&mut text, report, CellOutcome::Broke, view, colour);
    if view.reasons && !view.summary {
        reasons(&mut text, report, CellOutcome::NotAsked, view, colour);
    }
    text.push_str(&totals(report));
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

const LEGEND: &str = "\
Each cell: scenarios that held / asked, and the median time from a cancel to its answer or effect.
`--table` shows every scenario, `--reasons` why cells were not asked.

";

/// The most columns of a line.
const MAX_WIDTH: usize = 110;
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
        assert!(text.lines().all(|line| line.len() <= MAX_WIDTH), "{text}");
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
