//! Figures that other programs measured: the load held (W11, `load_test --json`) and the newcomer's clock. They come from files.

use serde_json::Value;

use super::Results;
use super::figures::{Distribution, Figure, Row};
use crate::cross_process::Wire;
use crate::subjects;

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
pub(super) fn case(wire: Wire, sessions: u64, seconds: u64) -> String {
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
    let case = case(wire, number(held, "sessions")?, number(held, "seconds")?);
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
    use serde_json::json;

    use super::*;

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
