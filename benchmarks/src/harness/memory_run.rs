//! Takes counts of memory from another run. The counter of allocations takes time for each allocation, so times are measured by a
//! program without it.

use serde_json::Value;

use super::figures::{Figure, set_ratios};
use super::single_thread::NOT_COUNTED;
use super::{FLOORS, Results};

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
        let found = rows.iter().find(is_same).and_then(number);
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
fn number(row: &Value) -> Option<Figure> {
    let unit = ["", "B", "KiB", "instructions"].into_iter().find(|unit| row["unit"] == *unit)?;
    Some(Figure::Number { value: row["value"].as_f64()?, unit })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::harness::{Growth, Row};
    use crate::subject::{Carries, Name};

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
}
