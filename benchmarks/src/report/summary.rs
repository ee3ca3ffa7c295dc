//! One line for each competitor, with the most important figures.

use super::shown;
use crate::harness::{Figure, Results, Row};
use crate::subject::Name;

/// A column: its heading, and the place of its figures.
type Column = (&'static str, &'static str, &'static str, &'static str, &'static str);

const ONE: &str = "memory, one thread";
const PIPES: &str = "pipes, one core";
const EACH: &str = "a request, of all the time";
const CORE: &str = "one core";
const COLUMNS: [Column; 31] = [
    ("echo 64 B", "W1", "64 B", ONE, "round trip"),
    ("64 KiB", "W1", "64 KiB", ONE, "round trip"),
    ("two workers", "W1", "64 B", "memory, two workers", "round trip"),
    ("pipes", "W1", "64 B", PIPES, "round trip"),
    ("WebSocket", "wires", "websocket", CORE, "round trip"),
    ("HTTP", "wires", "http-streamable", CORE, "round trip"),
    ("HTTP, stateless", "wires", "http-stateless", CORE, "round trip"),
    ("HTTP, acp", "wires", "http-acp", CORE, "round trip"),
    ("a request, 64 in flight", "W2", "64 in flight", ONE, EACH),
    ("pipes, 64 in flight", "wires", "stdio, 64 in flight", CORE, EACH),
    ("WebSocket, 64 in flight", "wires", "websocket, 64 in flight", CORE, EACH),
    ("HTTP, 64 in flight", "wires", "http-streamable, 64 in flight", CORE, EACH),
    ("HTTP, stateless, 64 in flight", "wires", "http-stateless, 64 in flight", CORE, EACH),
    ("HTTP, acp, 64 in flight", "wires", "http-acp, 64 in flight", CORE, EACH),
    ("cancel to handler", "W3", "one at a time", ONE, "to handler"),
    ("cancel to handler, pipes", "wires", "stdio, cancel", CORE, "to handler"),
    ("cancel to handler, WebSocket", "wires", "websocket, cancel", CORE, "to handler"),
    ("cancel to handler, HTTP", "wires", "http-streamable, cancel", CORE, "to handler"),
    ("cancel to handler, HTTP, stateless", "wires", "http-stateless, cancel", CORE, "to handler"),
    ("cancel to handler, HTTP, acp", "wires", "http-acp, cancel", CORE, "to handler"),
    ("to caller", "W3", "one at a time", ONE, "to caller"),
    ("slots taken, a running one", "W4", "of a running request", ONE, "to caller"),
    ("a queued one", "W4", "of a queued request", ONE, "to caller"),
    ("deadline, late by", "W9", "100000 deadlines at once", ONE, "late by"),
    ("allocations an echo", "W5", "an echo", ONE, "allocations"),
    ("heap in flight", "W8", "10000 in flight", ONE, "heap a request"),
    ("idle session, named pipe", "wires", "named-pipe", CORE, "an idle session"),
    ("idle session, WebSocket", "wires", "websocket", CORE, "an idle session"),
    ("idle session, HTTP", "wires", "http-streamable", CORE, "an idle session"),
    ("idle session, HTTP, stateless", "wires", "http-stateless", CORE, "an idle session"),
    ("idle session, HTTP, acp", "wires", "http-acp", CORE, "an idle session"),
];

/// The headings and the lines. Columns without figures in the run are omitted.
pub(super) fn summary(results: &Results) -> Option<(Vec<&'static str>, Vec<Vec<String>>)> {
    let of = |column: &Column, row: &Row| {
        (row.workload, row.case.as_str(), row.place, row.measure) == (column.1, column.2, column.3, column.4)
    };
    let columns: Vec<_> =
        COLUMNS.iter().filter(|column| results.rows.iter().any(|row| of(column, row))).collect();
    if columns.is_empty() {
        return None;
    }
    let mut names: Vec<Name> = Vec::new();
    for row in &results.rows {
        if columns.iter().any(|column| of(column, row)) && !names.contains(&row.name) {
            names.push(row.name);
        }
    }
    let cell = |name: Name, column: &Column| {
        let row = results.rows.iter().find(|row| row.name == name && of(column, row));
        row.map_or("-".to_owned(), |row| match &row.figure {
            Figure::Times(times) => shown(times.p50 as f64, "ns"),
            Figure::Number { value, unit } => shown(*value, unit),
            Figure::Said(said) => (*said).to_owned(),
        })
    };
    let lines = names.into_iter().map(|name| {
        let who = format!("{} {} ({})", name.library, name.version, name.configuration).replace("  ", " ");
        let figures = columns.iter().map(|column| cell(name, column));
        std::iter::once(who).chain(figures).chain([name.carries.note().to_owned()]).collect()
    });
    let heads =
        std::iter::once("medians").chain(columns.iter().map(|column| column.0)).chain(["note"]).collect();
    Some((heads, lines.collect()))
}
