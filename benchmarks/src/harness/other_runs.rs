//! Figures that come from the files of other runs: counts of memory, the load held, and the newcomer's clock.
//!
//! The counter of allocations takes time for each allocation, so times are measured by a
//! program without it.

use serde_json::Value;

use super::allocation_figures::NOT_COUNTED;
use super::figures::{Distribution, Figure, Row, set_ratios};
use super::{FLOORS, Results};
use crate::cross_process::Wire;
use crate::subjects;

/// Fills in what this program did not count with the figures of a run of the program that counts, as it wrote them with `--json`.
/// Returns the number of figures that it filled in.
pub fn take_memory(results: &mut Results, run: &Value) -> usize {
    let rows = run["results"].as_array().map(Vec::as_slice).unwrap_or_default();
    let growths = run["growth"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut taken = 0;
    for row in &mut results.rows {
        if row.figure != NOT_COUNTED {
            continue;
        }
        let is_same = |one: &&Value| {
            one["workload"] == row.workload
                && one["case"] == *row.case
                && one["place"] == row.place
                && one["measure"] == row.measure
                && one["library"] == row.name.library
                && one["configuration"] == row.name.configuration
        };
        let found = rows.iter().find(is_same).and_then(counted_number);
        if let Some(figure) = found {
            row.figure = figure;
            taken += 1;
        }
    }
    for growth in results.growth.iter_mut().filter(|growth| growth.points.is_empty()) {
        let is_same = |one: &&Value| {
            one["what"] == growth.what
                && one["with"] == growth.with
                && one["library"] == growth.name.library
                && one["configuration"] == growth.name.configuration
        };
        let points = growths.iter().find(is_same).and_then(|one| one["points"].as_array());
        let point = |pair: &Value| Some((pair[0].as_f64()?, pair[1].as_f64()?));
        growth.points = points.into_iter().flatten().filter_map(point).collect();
    }
    set_ratios(&mut results.rows, &FLOORS);
    results.took_memory |= taken > 0;
    taken
}

/// The figure of a row, if it is a count.
fn counted_number(row: &Value) -> Option<Figure> {
    let unit = ["", "B", "KiB", "instructions"].into_iter().find(|unit| row["unit"] == *unit)?;
    Some(Figure::Number { value: row["value"].as_f64()?, unit })
}

// Figures that other programs measured: the load held (W11, `load_test --json`) and the newcomer's clock. They come from files.

/// The place of W11: server and clients have a core each.
pub(super) const APART: &str = "two processes, a core each";
/// The measures of W11.
pub(super) const ECHO: &str = "an echo";
pub(super) const LOST: &str = "lost";
/// The place of the clock.
pub(super) const CLONE: &str = "2 cores, a clean clone";
pub(super) const TOOK: &str = "with its build";
/// What the clock times, by the names in its file.
pub(super) const TIMED: [&str; 2] = ["matrix", "test"];

/// The case of this many sessions for this many seconds.
pub(super) fn load_case(wire: Wire, sessions: u64, seconds: u64) -> String {
    format!("{}, {sessions} sessions, {seconds} s", wire.name())
}

/// Adds the figures of a load test, as it wrote them with `--json`.
///
/// # Errors
/// What is missing in the file.
pub fn take_load(results: &mut Results, held: &Value) -> Result<(), String> {
    let number = |value: &Value, of: &str| value[of].as_u64().ok_or_else(|| format!("it has no {of}"));
    let named = held["wire"].as_str().unwrap_or_default();
    let wire = Wire::ALL.into_iter().find(|wire| wire.name() == named);
    let wire = wire.ok_or("it names no transport")?;
    let case = load_case(wire, number(held, "sessions")?, number(held, "seconds")?);
    let echo = &held["echo"];
    let echo = Distribution {
        count: usize::try_from(number(echo, "count")?).unwrap_or(usize::MAX),
        p50: number(echo, "p50")?,
        p99: echo["p99"].as_u64(),
        p999: echo["p99.9"].as_u64(),
        max: number(echo, "max")?,
        bins: Vec::new(),
    };
    let lost = Figure::Number { value: number(held, LOST)? as f64, unit: "requests" };
    let ours = subjects::rescind::COMPETITOR.name;
    for (measure, figure) in [(ECHO, Figure::Times(echo)), (LOST, lost)] {
        results.rows.push(Row::new("W11", case.clone(), APART, measure, ours, figure));
    }
    Ok(())
}

/// Adds the newcomer's clock: an object with the seconds of `matrix` and of `test`, from a clean clone.
///
/// # Errors
/// What is missing in the file.
pub fn take_clock(results: &mut Results, clock: &Value) -> Result<(), String> {
    let ours = subjects::rescind::COMPETITOR.name;
    for what in TIMED {
        let value = clock[what].as_f64().ok_or_else(|| format!("it has no {what}"))?;
        let figure = Figure::Number { value, unit: "s" };
        results.rows.push(Row::new("clock", what.to_owned(), CLONE, TOOK, ours, figure));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Growth, Row};
    use crate::subject::{Carries, Name};
    use serde_json::json;

    const NAME: Name = Name { library: "us", version: "", configuration: "default", carries: Carries::Bytes };

    fn row(case: &str, figure: Figure) -> Row {
        Row::new("W8", case.to_owned(), "memory", "heap a request", NAME, figure)
    }

    #[test]
    fn only_what_was_not_counted_is_taken_and_only_from_the_same_row() {
        let said = row("3 in flight", Figure::Said("never"));
        let time = row("4 in flight", Figure::Number { value: 7.0, unit: "ns" });
        let rows = vec![row("1 in flight", NOT_COUNTED), row("2 in flight", NOT_COUNTED), said, time];
        let growth = Growth { what: "heap", with: "requests", unit: "B", name: NAME, points: Vec::new() };
        let mut results = Results { rows, growth: vec![growth], ..Results::default() };
        let counted = |case, value| row(case, Figure::Number { value, unit: "B" }).to_json();
        let mut other = counted("2 in flight", 9.0);
        other["configuration"] = json!("best");
        let run = json!({
            "results": [counted("1 in flight", 704.0), other, counted("3 in flight", 1.0), counted("4 in flight", 1.0)],
            "growth": [{ "what": "heap", "with": "requests", "library": "us", "configuration": "default", "points": [[1.0, 704.0]] }],
        });
        assert_eq!(take_memory(&mut results, &run), 1);
        let values: Vec<_> = results.rows.iter().map(|row| row.figure.value()).collect();
        assert_eq!(values, [Some(704.0), None, None, Some(7.0)]);
        assert_eq!(results.growth[0].points, [(1.0, 704.0)]);
    }

    #[test]
    fn a_load_from_a_file_has_its_echo_and_its_losses() {
        let mut results = Results::default();
        let held = json!({
            "wire": "websocket", "sessions": 10_000, "seconds": 60, "lost": 0,
            "echo": { "count": 540_000, "p50": 300_000, "p99": 1_230_000, "p99.9": null, "max": 9_000_000 },
        });
        assert_eq!(take_load(&mut results, &held), Ok(()));
        let cases: Vec<_> = results.rows.iter().map(|row| row.case.as_str()).collect();
        assert_eq!(cases, ["websocket, 10000 sessions, 60 s"; 2]);
        let values: Vec<_> = results.rows.iter().map(|row| row.figure.value()).collect();
        assert_eq!(values, [Some(300_000.0), Some(0.0)]);
        assert_eq!(
            take_load(&mut results, &json!({ "wire": "string" })),
            Err("it names no transport".to_owned())
        );
    }

    #[test]
    fn a_clock_without_one_of_its_times_is_refused() {
        let mut results = Results::default();
        assert_eq!(take_clock(&mut results, &json!({ "matrix": 170.5 })), Err("it has no test".to_owned()));
        assert_eq!(take_clock(&mut results, &json!({ "matrix": 170.5, "test": 400 })), Ok(()));
    }
}
