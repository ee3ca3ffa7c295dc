//! The outputs of a run: tables on stdout, JSON, a page with charts, and the tables of the documentation.

mod page;
mod tables;

pub use page::{page, tables_page};
pub use tables::{BudgetRow, Tables, machine_line, print};

use serde_json::{Value, json};

use crate::harness::{Fit, Results, Verdict};

/// The run as JSON.
#[must_use]
pub fn to_json(results: &Results, verdicts: &[Verdict]) -> Value {
    let growth: Vec<_> = results
        .growth
        .iter()
        .map(|growth| {
            let fit = Fit::new(&growth.points);
            json!({
                "what": growth.what, "with": growth.with, "unit": growth.unit,
                "library": growth.name.library, "configuration": growth.name.configuration,
                "points": growth.points, "slope": fit.map(|fit| fit.exponent),
            })
        })
        .collect();
    json!({
        "machine": machine_line(),
        "budgets": verdicts.iter().map(Verdict::to_json).collect::<Vec<_>>(),
        "results": results.rows.iter().map(crate::harness::Row::to_json).collect::<Vec<_>>(),
        "growth": growth,
    })
}

/// A time or a number in few characters.
#[must_use]
pub fn shown(value: f64, unit: &str) -> String {
    match unit {
        "ns" if value < 1e3 => format!("{value:.0} ns"),
        "ns" if value < 1e6 => format!("{:.2} us", value / 1e3),
        "ns" if value < 1e9 => format!("{:.2} ms", value / 1e6),
        "ns" => format!("{:.2} s", value / 1e9),
        "B" if value.abs() < 1e4 => format!("{value:.0} B"),
        "B" if value.abs() < 1e7 => format!("{:.1} kB", value / 1e3),
        "B" => format!("{:.1} MB", value / 1e6),
        "instructions" | "requests" => format!("{value:.0}"),
        "" => format!("{value:.2}"),
        "x" if value < 10.0 => format!("{value:.2}x"),
        "x" => format!("{value:.0}x"),
        _ => format!("{value:.1} {unit}"),
    }
}
