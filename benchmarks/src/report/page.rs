//! The pages: each is one file that needs no other file, no script and no network.

use std::fmt::Write as _;

use super::shown;
use super::tables::{ABOUT, Tables, groups, title};
use crate::harness::{Distribution, Figure, Growth, Results, Row, Ruling, Verdict};
use crate::subject::Name;

const STYLE: &str = include_str!("page.css");

/// The cases that are shown first. The others are folded.
const FIRST: [(&str, &str, &str, &str); 7] = [
    ("W1", "64 B", "memory, one thread", "round trip"),
    ("W1", "64 B", "pipes, one core", "round trip"),
    ("W2", "64 in flight", "memory, one thread", "a request, of all the time"),
    ("W3", "one at a time", "memory, one thread", "to handler"),
    ("W3", "one at a time", "memory, one thread", "to caller"),
    ("W4", "of a running request", "memory, one thread", "to caller"),
    ("W4", "of a queued request", "memory, one thread", "to caller"),
];

/// The page with all figures of a run, and charts.
#[must_use]
pub fn page(results: &Results, verdicts: &[Verdict]) -> String {
    let tables = Tables::new(results, verdicts, "");
    let mut out = head("Rescind, measured", "What cancelling costs");
    let _ = writeln!(
        out,
        "<p>Rescind, other libraries and a floor (the same frames without a library) on the same work in one run, in turns. \
         Times of two runs do not compare; ratios to the floor do. {}.</p>",
        escaped(&tables.machine)
    );
    budgets(&mut out, &tables);
    in_short(&mut out, &tables);
    let groups = groups(&results.rows);
    let is_first = |row: &Row| FIRST.contains(&(row.workload, row.case.as_str(), row.place, row.measure));
    out.push_str(
        "<h2>Latency</h2>\n<p class=\"key\">Each hill is a distribution on a logarithmic scale, its height the root of how many \
         there are. The line is the median, the full dot p99, the ring p99.9, the small ring the longest. Right: the median, \
         and how many times the floor's.</p>\n",
    );
    for group in groups.iter().filter(|group| is_first(group[0])) {
        chart(&mut out, group, distributions(group));
    }
    out.push_str("<h2>Ratio to the floor</h2>\n");
    for group in groups.iter().filter(|group| is_first(group[0])) {
        let drawn = bars(group, "x", |row| row.ratio);
        chart(&mut out, group, drawn);
    }
    out.push_str("<h2>Memory</h2>\n<p>Heap of both sides together, caller, handler and the runtime's tasks among it.</p>\n");
    for group in groups.iter().filter(|group| group[0].measure == "heap a request") {
        if ["10000 in flight", "100000 in flight"].contains(&group[0].case.as_str()) {
            chart(&mut out, group, bars(group, "B", |row| row.figure.value()));
        }
    }
    grown(&mut out, &results.growth);
    out.push_str("<h2>All cases</h2>\n");
    for group in &groups {
        let times = group.iter().any(|row| matches!(row.figure, Figure::Times(_)));
        let unit = group.iter().find_map(|row| match row.figure {
            Figure::Number { unit, .. } => Some(unit),
            Figure::Times(_) | Figure::Said(_) => None,
        });
        let drawn = if times {
            distributions(group)
        } else {
            bars(group, unit.unwrap_or_default(), |row| row.figure.value())
        };
        let _ = write!(out, "<details><summary>{}</summary>", escaped(&title(group[0])));
        out.push_str(&drawn.unwrap_or_else(|| said(group)));
        out.push_str("</details>\n");
    }
    out.push_str("</main></body></html>\n");
    out
}

/// The page with the tables of the documentation, without charts.
#[must_use]
pub fn tables_page(tables: &Tables) -> String {
    let mut out = head("Rescind: the last run", "The last run");
    out.push_str(
        "<p>Printed by the benchmarks' <code>report</code> from the JSON beside this page. docs/performance.md explains it.</p>\n",
    );
    for line in [&tables.run, &format!("Machine: {}.", tables.machine)] {
        if !line.is_empty() {
            let _ = writeln!(out, "<p>{}</p>", escaped(line));
        }
    }
    budgets(&mut out, tables);
    in_short(&mut out, tables);
    if !tables.better.is_empty() {
        let _ = writeln!(out, "<h2>Where another is better</h2>\n<p>{}</p>", escaped(ABOUT));
        lines(&mut out, &tables.better);
    }
    if !tables.growth.is_empty() {
        out.push_str("<h2>Growth</h2>\n");
        lines(&mut out, &tables.growth);
    }
    out.push_str("</main></body></html>\n");
    out
}

fn head(title: &str, heading: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\
         <style>{STYLE}</style></head><body><main>\n<h1>{heading}</h1>\n"
    )
}

fn lines(out: &mut String, lines: &[String]) {
    out.push_str("<ul>\n");
    for line in lines {
        let _ = writeln!(out, "<li>{}</li>", escaped(line));
    }
    out.push_str("</ul>\n");
}

fn chart(out: &mut String, group: &[&Row], drawn: Option<String>) {
    if let Some(drawn) = drawn {
        let _ =
            writeln!(out, "<figure><figcaption>{}</figcaption>{drawn}</figure>", escaped(&title(group[0])));
    }
}

/// For a group without any number.
fn said(group: &[&Row]) -> String {
    let mut out = String::from("<ul>");
    for row in group {
        if let Figure::Said(said) = row.figure {
            let _ = write!(out, "<li>{}: {said}</li>", escaped(row.name.library));
        }
    }
    out + "</ul>"
}

fn budgets(out: &mut String, tables: &Tables) {
    if tables.budgets.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "<h2>Budgets: {}</h2>\n<div class=\"wide\"><table><thead><tr><th>budget<th>measured<th>at most<th><th>made of</tr></thead><tbody>",
        escaped(&tables.tally)
    );
    for row in &tables.budgets {
        let class = [(Ruling::Met, "met"), (Ruling::NotMet, "missed")]
            .into_iter()
            .find_map(|(ruling, class)| (ruling.name() == row.ruling).then_some(class))
            .unwrap_or("said");
        let cells =
            [&row.budget, &row.measured, &row.at_most, &row.ruling, &row.made_of].map(|cell| escaped(cell));
        let [budget, measured, at_most, ruling, made_of] = cells;
        let _ = writeln!(
            out,
            "<tr><td>{budget}<td class=\"number\">{measured}<td class=\"number\">{at_most}<td class=\"{class}\">{ruling}<td>{made_of}</tr>",
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn in_short(out: &mut String, tables: &Tables) {
    let Some((heads, lines)) = tables.beside.split_first() else { return };
    out.push_str("<h2>Beside the others</h2>\n<div class=\"wide\"><table><thead><tr>");
    for head in heads {
        let _ = write!(out, "<th>{}", escaped(head));
    }
    out.push_str("</tr></thead><tbody>\n");
    for line in lines {
        out.push_str("<tr>");
        for (place, cell) in line.iter().enumerate() {
            let class = if place == 0 { "" } else { " class=\"number\"" };
            let _ = write!(out, "<td{class}>{}", escaped(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

fn grown(out: &mut String, all: &[Growth]) {
    let mut kinds: Vec<(&str, &str)> = Vec::new();
    for growth in all {
        if !kinds.contains(&(growth.what, growth.with)) {
            kinds.push((growth.what, growth.with));
        }
    }
    if kinds.is_empty() {
        return;
    }
    out.push_str("<h2>Growth</h2>\n<p>A flat line: the figure of each one does not depend on how many there are.</p>\n");
    for (what, with) in kinds {
        let series: Vec<_> = all.iter().filter(|growth| (growth.what, growth.with) == (what, with)).collect();
        let Some(drawn) = growth(&series) else { continue };
        let _ = writeln!(
            out,
            "<figure><figcaption>{} by {}</figcaption>{drawn}<ul class=\"fits\">",
            escaped(what),
            escaped(with)
        );
        for line in series.into_iter().filter_map(super::tables::slope) {
            let _ = writeln!(out, "<li>{}</li>", escaped(&line));
        }
        out.push_str("</ul></figure>\n");
    }
}

// Charts as inline SVG, on logarithmic scales.

const WIDTH: f64 = 960.0;
/// The place where names end and figures begin.
const LEFT: f64 = 300.0;
/// The place where the plot ends and its numbers begin.
const RIGHT: f64 = 770.0;
const LINE: f64 = 30.0;

/// A logarithmic scale from one length to another.
#[derive(Clone, Copy, Debug)]
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// Whole powers of ten around these values.
    fn around(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Self> {
        let logs = values.filter(|value| *value > 0.0).map(f64::log10);
        let (low, high) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), log| {
            (low.min(log.floor()), high.max(log.ceil()))
        });
        low.is_finite().then(|| Self { low, high: high.max(low + 1.0), from, to })
    }

    fn at(self, value: f64) -> f64 {
        let share = (value.max(f64::MIN_POSITIVE).log10() - self.low) / (self.high - self.low);
        share.clamp(0.0, 1.0).mul_add(self.to - self.from, self.from)
    }

    fn ticks(self) -> impl Iterator<Item = f64> {
        (self.low as i32..=self.high as i32).map(|power| 10_f64.powi(power))
    }
}

/// Text escaped for a page.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The name of a competitor, in one line.
fn label(name: Name) -> String {
    format!("{} · {}", name.library, name.configuration)
}

/// The class with a library's colour.
fn colour(name: Name) -> String {
    let known = [
        "rescind",
        "floor",
        "channels",
        "async-lsp",
        "tower-lsp-server",
        "tarpc",
        "jsonrpsee",
        "rmcp",
        "agent-client-protocol",
    ];
    let place = known.iter().position(|library| *library == name.library).unwrap_or(known.len());
    format!("c{place}")
}

/// Configurations other than a library's default are drawn dashed.
fn dashed(name: Name) -> &'static str {
    let plain = name.configuration == "default" || ["floor", "channels"].contains(&name.library);
    if plain { "" } else { " dashed" }
}

/// The tick length for this value, so that two to five ticks are below it.
fn step(most: f64) -> f64 {
    let power = 10_f64.powf(most.log10().floor());
    [0.2, 0.5, 1.0, 2.0].into_iter().map(|part| part * power).find(|step| most / step <= 6.0).unwrap_or(most)
}

/// The text of a value at a tick.
fn tick_text(value: f64, unit: &str) -> String {
    shown(value, unit).replace(".00", "").replace(".0 ", " ")
}

fn begin(out: &mut String, height: f64, about: &str) {
    let _ =
        write!(out, r#"<svg viewBox="0 0 {WIDTH} {height:.0}" role="img" aria-label="{}">"#, escaped(about));
}

fn text(out: &mut String, x: f64, y: f64, class: &str, what: &str) {
    let _ = write!(out, r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{}</text>"#, escaped(what));
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), class: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = write!(out, r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" class="{class}"/>"#);
}

/// Vertical lines at the powers of ten, with their values.
fn grid(out: &mut String, scale: Scale, bottom: f64, say: impl Fn(f64) -> String) {
    for tick in scale.ticks() {
        line(out, (scale.at(tick), 4.0), (scale.at(tick), bottom), "grid");
        text(out, scale.at(tick), bottom + 14.0, "tick", &say(tick));
    }
}

/// The distributions of the times of all competitors in one case.
fn distributions(group: &[&Row]) -> Option<String> {
    let times = |row: &Row| match &row.figure {
        Figure::Times(times) => Some(times.clone()),
        Figure::Number { .. } | Figure::Said(_) => None,
    };
    let all: Vec<_> = group.iter().map(|row| (*row, times(row))).collect();
    let spread = all.iter().filter_map(|(_, times)| times.as_ref());
    let spread = spread.flat_map(|times| [times.bins.first().map_or(1.0, |bin| bin.0), times.max as f64]);
    let scale = Scale::around(spread, LEFT, RIGHT)?;
    let bottom = LINE.mul_add(all.len() as f64, 8.0);
    let mut out = String::new();
    begin(&mut out, bottom + 22.0, &super::tables::title(group[0]));
    grid(&mut out, scale, bottom, |tick| tick_text(tick, "ns"));
    for (place, (row, times)) in all.into_iter().enumerate() {
        let base = LINE.mul_add(place as f64 + 1.0, 0.0);
        text(&mut out, LEFT - 10.0, base - 4.0, "name", &label(row.name));
        match (times, &row.figure) {
            (Some(times), _) => {
                hill(&mut out, &times, scale, base, &colour(row.name));
                let ratio = row.ratio.map_or(String::new(), |ratio| format!(" · {ratio:.2}x"));
                let told = format!("{}{ratio}", shown(times.p50 as f64, "ns"));
                text(&mut out, RIGHT + 12.0, base - 4.0, "value", &told);
            }
            (None, Figure::Said(said)) => text(&mut out, LEFT + 8.0, base - 4.0, "said", said),
            (None, _) => {}
        }
    }
    out.push_str("</svg>");
    Some(out)
}

/// The bins as a hill, the median as a line, p99, p99.9 and the longest as marks.
fn hill(out: &mut String, times: &Distribution, scale: Scale, base: f64, colour: &str) {
    let most = times.bins.iter().map(|(_, count)| *count).max().unwrap_or(1) as f64;
    let step = 10_f64.powf(1.0 / 16.0);
    let mut path = String::new();
    for (begin, count) in &times.bins {
        // The square root of the count: otherwise one slow time in a thousand would not be visible.
        let height = (*count as f64 / most).sqrt() * (LINE - 6.0);
        let (x, width) = (scale.at(*begin), scale.at(begin * step) - scale.at(*begin));
        let _ = write!(path, "M{x:.1} {base:.1}v-{height:.1}h{width:.1}v{height:.1}z");
    }
    let _ = write!(out, r#"<path d="{path}" class="hill {colour}"/>"#);
    let middle = LINE.mul_add(-0.4, base);
    let at = |nanos: u64| scale.at(nanos as f64);
    line(out, (at(times.p50), base), (at(times.p50), base - LINE + 5.0), "median");
    let marks = [(times.p99, "mark full", 3.0), (times.p999, "mark", 3.0), (Some(times.max), "mark", 1.5)];
    for (nanos, class, radius) in marks {
        let Some(nanos) = nanos else { continue };
        let _ = write!(
            out,
            r#"<circle cx="{:.1}" cy="{middle:.1}" r="{radius}" class="{class} {colour}"/>"#,
            at(nanos)
        );
    }
}

/// Bars of one number each.
fn bars(group: &[&Row], unit: &str, value: impl Fn(&Row) -> Option<f64>) -> Option<String> {
    let most = group.iter().filter_map(|row| value(row)).fold(0.0, f64::max);
    if most <= 0.0 {
        return None;
    }
    let at = |value: f64| (value / most).max(0.0).mul_add(RIGHT - LEFT, LEFT);
    let line_height = 24.0;
    let bottom = (group.len() as f64).mul_add(line_height, 8.0);
    let mut out = String::new();
    begin(&mut out, bottom + 22.0, &super::tables::title(group[0]));
    let step = step(most);
    for tick in (0..=6).map(|number| f64::from(number) * step).filter(|tick| *tick <= most) {
        line(&mut out, (at(tick), 4.0), (at(tick), bottom), "grid");
        text(&mut out, at(tick), bottom + 14.0, "tick", &tick_text(tick, unit));
    }
    for (place, row) in group.iter().enumerate() {
        let top = (place as f64).mul_add(line_height, 8.0);
        text(&mut out, LEFT - 10.0, top + 14.0, "name", &label(row.name));
        if let Some(value) = value(row) {
            let width = (at(value) - LEFT).max(1.0);
            let class = format!("bar {}{}", colour(row.name), dashed(row.name));
            let _ = write!(
                out,
                r#"<rect x="{LEFT}" y="{top:.1}" width="{width:.1}" height="{:.1}" class="{class}"/>"#,
                line_height - 6.0
            );
            text(&mut out, RIGHT + 12.0, top + 14.0, "value", &shown(value, unit));
        } else if let Figure::Said(said) = &row.figure {
            text(&mut out, LEFT + 8.0, top + 14.0, "said", said);
        }
    }
    out.push_str("</svg>");
    Some(out)
}

/// One figure by the number with which it grows, both logarithmic, with a line for each competitor.
pub(super) fn growth(series: &[&Growth]) -> Option<String> {
    const BOTTOM: f64 = 330.0;
    let points = || series.iter().flat_map(|growth| growth.points.iter().copied());
    let across = Scale::around(points().map(|(count, _)| count), 90.0, 560.0)?;
    let up = Scale::around(points().map(|(_, value)| value), BOTTOM, 14.0)?;
    let first = series.first()?;
    let mut out = String::new();
    begin(&mut out, BOTTOM + 44.0, &format!("{} by {}", first.what, first.with));
    for tick in across.ticks() {
        line(&mut out, (across.at(tick), 14.0), (across.at(tick), BOTTOM), "grid");
        text(&mut out, across.at(tick), BOTTOM + 16.0, "tick", &count(tick));
    }
    text(&mut out, f64::midpoint(across.from, across.to), BOTTOM + 36.0, "tick", first.with);
    for tick in up.ticks() {
        line(&mut out, (across.from, up.at(tick)), (across.to, up.at(tick)), "grid");
        text(&mut out, across.from - 8.0, up.at(tick) + 4.0, "name", &tick_text(tick, first.unit));
    }
    // The line that ends highest is named first.
    let mut order: Vec<_> = series.iter().filter(|growth| !growth.points.is_empty()).collect();
    let last = |growth: &Growth| growth.points.last().map_or(0.0, |point| point.1);
    order.sort_by(|a, b| last(b).total_cmp(&last(a)));
    for (place, growth) in order.into_iter().enumerate() {
        let mut path = String::new();
        for (place, (count, value)) in growth.points.iter().enumerate() {
            let _ = write!(
                path,
                "{}{:.1} {:.1}",
                if place == 0 { 'M' } else { 'L' },
                across.at(*count),
                up.at(*value)
            );
        }
        let (colour, dashed) = (colour(growth.name), dashed(growth.name));
        let _ = write!(out, r#"<path d="{path}" class="trend {colour}{dashed}"/>"#);
        for (count, value) in &growth.points {
            let (x, y) = (across.at(*count), up.at(*value));
            let _ = write!(out, r#"<circle cx="{x:.1}" cy="{y:.1}" r="2.5" class="mark full {colour}"/>"#);
        }
        let y = 17.0_f64.mul_add(place as f64, 24.0);
        line(&mut out, (580.0, y - 4.0), (604.0, y - 4.0), &format!("trend {colour}{dashed}"));
        let each = shown(last(growth), growth.unit);
        text(&mut out, 612.0, y, "legend", &format!("{} {each}", label(growth.name)));
    }
    out.push_str("</svg>");
    Some(out)
}

fn count(value: f64) -> String {
    if value >= 1e6 {
        format!("{:.0}M", value / 1e6)
    } else if value >= 1e3 {
        format!("{:.0}k", value / 1e3)
    } else {
        format!("{value:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_last_run_shows_its_json() {
        let tables = include_str!("../../../docs/performance/last-run.json");
        let page = include_str!("../../../docs/performance/last-run.html");
        let tables: Tables = serde_json::from_str(tables).expect("the tables of the last run");
        assert!(page == tables_page(&tables), "renew it: report --render docs/performance/last-run.json");
    }

    #[test]
    fn ticks_are_few_and_whole() {
        for (most, expected) in [(1.0, 0.2), (3.5, 1.0), (13.2, 5.0), (7907.0, 2000.0)] {
            assert!((step(most) - expected).abs() < 1e-9, "{most}: {}", step(most));
        }
        assert_eq!(tick_text(100_000.0, "ns"), "100 us");
    }

    #[test]
    fn a_scale_is_logarithmic_and_holds_its_values() {
        let scale = Scale::around([20.0, 900.0].into_iter(), 0.0, 100.0).expect("a scale");
        assert_eq!(scale.ticks().collect::<Vec<_>>(), [10.0, 100.0, 1000.0]);
        assert!((scale.at(100.0) - 50.0).abs() < 1e-9);
        assert!(Scale::around(std::iter::empty(), 0.0, 1.0).is_none());
    }
}
