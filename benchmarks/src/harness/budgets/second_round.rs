//! The lines that the second round of the design added: crowds, the load held, the newcomer's clock.

use super::super::Place;
use super::super::load_held::{APART, CLONE, ECHO, LOST, TIMED, TOOK, case};
use super::budget_defs::{TOO_SHORT, WITHOUT_OTHERS, p99};
use super::evaluator::{At, Court};
use super::{ONE, TWO};
use crate::cross_process::Wire;
use crate::limits;

/// W7, a tree: to the last handler.
pub(super) fn trees(court: &mut Court<'_>) {
    for place in [ONE, TWO] {
        let at = At::new("W7", "depth 5, fan-out 4", place, "to last handler");
        let name = format!("W7 a tree to the last handler against the best other, {place}");
        if !court.build.peers {
            court.leave(name, limits::TREE_OF_OTHERS, "x", WITHOUT_OTHERS);
        } else if court.results.short {
            court.leave(name, limits::TREE_OF_OTHERS, "x", TOO_SHORT);
        } else {
            let found = court.ours(at).and_then(|ours| {
                let (best, name) = court.best_of_others(at, |_| true)?;
                let note = format!("{:.2} ms, {} {:.2} ms", ours / 1e6, name.library, best / 1e6);
                Ok((ours / best, note))
            });
            court.hold(name, found, limits::TREE_OF_OTHERS, "x");
        }
        let found = if court.results.short { Err(TOO_SHORT.to_owned()) } else { p99(court, at) };
        court.show(&format!("W7 p99 of a tree to the last handler, {place}"), found, "ms");
    }
}

/// W9: by how much later than its deadline a caller returns.
pub(super) fn deadlines(court: &mut Court<'_>) {
    for place in Place::ALL.map(Place::name) {
        let at = At::new("W9", "100000 deadlines at once", place, "late by");
        for quantile in ["median", "p99"] {
            let name = format!("W9 {quantile} of 100000 deadlines at once, late by, {place}");
            if court.results.short {
                court.leave(name, limits::LATE, "ms", TOO_SHORT);
                continue;
            }
            let found = match quantile {
                "median" => court.ours(at).map(|nanos| (nanos / 1e6, String::new())),
                _ => p99(court, at),
            };
            court.hold(name, found, limits::LATE, "ms");
        }
    }
}

const NOT_HERE: &str = "not measured in this run";

/// W11, from the files of a load test.
pub(super) fn load_held(court: &mut Court<'_>) {
    for (wire, sessions, limit) in [
        (Wire::WebSocket, 10_000, limits::HELD_WEBSOCKET),
        (Wire::Streamable, 5000, limits::HELD_HTTP1),
        (Wire::Streamable2, 10_000, limits::HELD_HTTP2),
    ] {
        let case = case(wire, sessions, 60);
        let at = At::new("W11", &case, APART, ECHO);
        let names = [format!("W11 p99 of an echo, {case}"), format!("W11 lost, {case}")];
        let found = [p99(court, at), court.ours(at.but(LOST)).map(|lost| (lost, String::new()))];
        for ((name, found), (limit, unit)) in
            names.into_iter().zip(found).zip([(limit, "ms"), (limits::HELD_LOST, "")])
        {
            let absent = !court.results.rows.iter().any(|row| row.workload == "W11" && row.case == case);
            if court.results.short {
                court.leave(name, limit, unit, TOO_SHORT);
            } else if absent {
                court.hold(name, Err(NOT_HERE.to_owned()), limit, unit);
            } else {
                court.hold(name, found, limit, unit);
            }
        }
    }
}

/// The newcomer's clock, from a file.
pub(super) fn clock(court: &mut Court<'_>) {
    for (what, limit) in TIMED.into_iter().zip([limits::CLOCK_MATRIX, limits::CLOCK_TEST]) {
        let name = format!("clock: {what} {TOOK}, {CLONE}");
        if court.results.short {
            court.leave(name, limit, "s", TOO_SHORT);
            continue;
        }
        let found = court.ours(At::new("clock", what, CLONE, TOOK)).map(|seconds| (seconds, String::new()));
        court.hold(name, found.map_err(|_| NOT_HERE.to_owned()), limit, "s");
    }
}
