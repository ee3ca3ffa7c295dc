//! The page: one file that needs no other file and no network.

use std::fmt::Write as _;

use super::chart::{bars, distributions, escaped, growth};
use super::summary::summary;
use super::tables::{groups, machine_line, title};
use crate::harness::{Figure, Growth, Results, Row, Ruling, Verdict, tally};

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

/// The page.
#[must_use]
pub fn page(results: &Results, verdicts: &[Verdict]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Rescind, measured</title>\
         <style>{STYLE}</style></head><body><main>\n<h1>What cancelling costs</h1>\n"
    );
    let _ = writeln!(
        out,
        "<p>Rescind, other libraries and a floor (the same frames without a library) on the same work in one run, in turns. \
         Times of two runs do not compare; ratios to the floor do. {}.</p>",
        escaped(&machine_line())
    );
    budgets(&mut out, verdicts);
    in_short(&mut out, results);
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

fn budgets(out: &mut String, verdicts: &[Verdict]) {
    if verdicts.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "<h2>Budgets: {}</h2>\n<div class=\"wide\"><table><thead><tr><th>budget<th>measured<th>at most<th><th>made of</tr></thead><tbody>",
        tally(verdicts)
    );
    for verdict in verdicts {
        let class = match verdict.ruling {
            Ruling::Met => "met",
            Ruling::NotMet => "missed",
            Ruling::NotJudged => "said",
        };
        let (value, limit, told) = (verdict.value_shown(2), verdict.limit_shown(), verdict.ruling.name());
        let _ = writeln!(
            out,
            "<tr><td>{}<td class=\"number\">{value}<td class=\"number\">{limit}<td class=\"{class}\">{told}<td>{}</tr>",
            escaped(&verdict.name),
            escaped(&verdict.note)
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn in_short(out: &mut String, results: &Results) {
    let Some((heads, lines)) = summary(results) else { return };
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
