//! The tables on stdout and in the documentation.

use std::fmt::Write as _;

use super::losses::{ABOUT, better};
use super::shown;
use super::summary::summary;
use crate::harness::{Figure, Fit, Results, Row, Ruling, Verdict, tally};

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
        "{cores} cores of {}, {:.0} GiB; Linux {}; {}; load {load} when the run ended",
        model.map_or("an unknown processor", |(_, model)| model),
        memory / f64::from(1 << 20),
        release.split('-').next().unwrap_or_default().trim(),
        env!("BUILT_WITH"),
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

/// The tables of the documentation: budgets, a line for each competitor, growth. All figures are in the JSON and on
/// the page.
#[must_use]
pub fn markdown(results: &Results, verdicts: &[Verdict]) -> String {
    let mut out = format!("Machine: {}.\n\n### Budgets\n\n{}.\n\n", machine_line(), tally(verdicts));
    out.push_str("| budget | measured | at most | | made of |\n|---|---|---|---|---|\n");
    for verdict in verdicts {
        let Verdict { name, ruling, note, .. } = verdict;
        let (value, limit) = (verdict.value_shown(2), verdict.limit_shown());
        let ruling = match ruling {
            Ruling::Met | Ruling::NotJudged => ruling.name(),
            Ruling::NotMet => "**not met**",
        };
        let _ = writeln!(out, "| {name} | {value} | {limit} | {ruling} | {note} |");
    }
    if let Some((heads, lines)) = summary(results) {
        let _ = writeln!(out, "\n### Beside the others\n\n| {} |", heads.join(" | "));
        let _ = writeln!(out, "|{}", "---|".repeat(heads.len()));
        for line in lines {
            let _ = writeln!(out, "| {} |", line.join(" | "));
        }
    }
    let better = better(results);
    if !better.is_empty() {
        let _ = writeln!(out, "\n### Where another is better\n\n{ABOUT}\n");
        for line in better {
            let _ = writeln!(out, "- {line}");
        }
    }
    out.push_str("\n### Growth\n\n");
    for line in results.growth.iter().filter_map(slope) {
        let _ = writeln!(out, "- {line}");
    }
    out
}

/// The marks around the tables of the documentation.
const BEGIN: &str = "<!-- tables -->\n";
const END: &str = "<!-- /tables -->";

/// The text with these tables in place of the previous ones. `None` if it has no marks for them.
#[must_use]
pub fn pasted(text: &str, tables: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{tables}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_too_few_samples_are_shown_as_a_dash() {
        let name = crate::subjects::FLOOR.name;
        let times =
            crate::harness::Distribution::new(vec![5; 99]).map_or(Figure::Said("none"), Figure::Times);
        let row = Row::new("W7", "any".to_owned(), "memory", "to caller", name, times);
        assert_eq!(cells(&row)[2..6], ["5 ns", "-", "-", "5 ns"]);
    }

    #[test]
    fn tables_take_the_place_of_the_last_ones_and_nothing_else_changes() {
        let text = "above\n<!-- tables -->\nold\n<!-- /tables -->\nbelow\n";
        let told = pasted(text, "new\n").expect("there is a place");
        assert_eq!(told, text.replace("old", "new"));
        assert_eq!(pasted("no place", "new\n"), None);
    }
}
