//! The cases in which another library is better than this one: all figures of the run, without a selection.

use super::shown;
use super::tables::{groups, title};
use crate::harness::{Figure, Results, Row};
use crate::subject::{Carries, Name};
use crate::subjects;

/// Marks a library that passes values without serializing them.
const MARK: char = '†';

/// The text above the lines.
pub(super) const ABOUT: &str = "By medians, in every case and place where both have a figure; the two floors are not named. \
    \"default\", \"quick handlers\", \"typed texts\" and \"typed texts, quick handlers\" are ours. † hands values over, writes no bytes.";

/// More of these is not worse: they count how much was played.
const NO_FIGURE_OF_MERIT: [&str; 1] = ["played in all"];

/// A line for each measure in which another library's figure is lower than one of this library's.
pub(super) fn better(results: &Results) -> Vec<String> {
    groups(&results.rows).into_iter().filter_map(|group| line(&group)).collect()
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

fn line(group: &[&Row]) -> Option<String> {
    let find = |name: Name| group.iter().find(|row| row.name == name).and_then(|row| of_merit(row));
    use subjects::rescind::{COMPETITOR, QUICK, QUICK_TYPED, TYPED};

    let ours = [COMPETITOR, QUICK, TYPED, QUICK_TYPED].map(|one| one.name);
    let ours: Vec<_> = ours.into_iter().filter_map(|name| Some((name.configuration, find(name)?))).collect();
    let all_of_ours = subjects::all_of_ours();
    let mut others: Vec<_> = group
        .iter()
        .filter(|row| !all_of_ours.contains(&row.name))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Distribution;

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
