//! The table of measured values and limits.

use std::path::Path;

use serde_json::{Value, json};

/// Rows, printed when they are added.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Value>,
    missed: bool,
}

impl Table {
    /// Creates a table and prints its head.
    #[must_use]
    pub fn new() -> Self {
        print("budget", "value", "limit", "verdict", "");
        print("---", "---", "---", "---", "---");
        Self::default()
    }

    /// A limit that is NaN means that there is none yet.
    pub fn judge(&mut self, budget: &str, value: f64, limit: f64, unit: &str, note: &str) {
        let verdict = if limit.is_nan() {
            "-"
        } else if value <= limit {
            "met"
        } else {
            "not met"
        };
        self.missed |= verdict == "not met";
        let shown = if limit.is_nan() { "-".to_owned() } else { format!("{limit:.4} {unit}") };
        let shown = shown.replace(".0000", "");
        print(budget, &format!("{value:.2} {unit}"), &shown, verdict, note);
        let limit = Some(limit).filter(|limit| !limit.is_nan());
        self.rows.push(json!({
            "budget": budget, "value": value, "limit": limit, "unit": unit, "verdict": verdict, "note": note,
        }));
    }

    /// Whether no limit was missed.
    #[must_use]
    pub const fn all_met(&self) -> bool {
        !self.missed
    }

    /// Writes the rows as JSON.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, file: &Path) -> std::io::Result<()> {
        std::fs::write(file, format!("{:#}\n", Value::Array(self.rows.clone())))
    }
}

fn print(budget: &str, value: &str, limit: &str, verdict: &str, note: &str) {
    println!("| {budget:<46} | {value:>11} | {limit:>9} | {verdict:<7} | {note}");
}
