use super::*;
use crate::cross_process::Wire;
use crate::harness::{Distribution, Growth, PARTS};
use crate::lsp_client::SERVER_ALONE;
use crate::subject::{Carries, Name};
use crate::subjects::FLOOR;
use crate::subjects::rescind::{COMPETITOR, QUICK, QUICK_TYPED, SERVER, TOKENS, TYPED, WITHHELD};
use crate::wire_subjects::ENVELOPES;

const ALL: Build = Build { counts: true, peers: true };
const OTHER_SERVER: Name =
    Name { library: "async-lsp", version: "", configuration: SERVER_ALONE, carries: Carries::Bytes };
const OTHER: Name = Name { library: "rmcp", version: "", configuration: "", carries: Carries::Bytes };

fn row(
    who: Name,
    workload: &'static str,
    case: &str,
    place: &'static str,
    what: &'static str,
    value: f64,
) -> Row {
    Row::new(workload, case.to_owned(), place, what, who, Figure::Number { value, unit: "" })
}

fn empty(parts: &[&'static str]) -> Results {
    Results { parts: parts.to_vec(), ..Results::default() }
}

/// Every figure that a budget needs. Each of them meets its budget.
fn complete() -> Results {
    const TRIP: &str = "round trip";
    const EACH: &str = "a request, of all the time";
    let ours = COMPETITOR.name;
    let mut rows = Vec::new();
    for (case, place) in [("64 B", ONE), ("64 B", PIPES), ("64 KiB", ONE)] {
        rows.extend([ours, FLOOR.name].map(|who| row(who, "W1", case, place, TRIP, 100.0)));
    }
    rows.push(row(QUICK.name, "W1", "64 B", ONE, TRIP, 100.0));
    rows.push(row(QUICK_TYPED.name, "W1", "64 B", ONE, TRIP, 10.0));
    for place in [ONE, TWO] {
        for (who, value) in [(SERVER.name, 10.0), (OTHER_SERVER, 20.0)] {
            rows.push(row(who, "W1", "64 B", place, TRIP, value));
            rows.push(row(who, "W2", "64 in flight", place, EACH, value));
        }
    }
    rows.push(row(QUICK_TYPED.name, "W2", "64 in flight", ONE, EACH, 10.0));
    for place in [ONE, TWO, PIPES] {
        for what in ["to handler", "to caller", "an echo between"] {
            rows.push(row(ours, "W3", "one at a time", place, what, 100.0));
        }
        rows.push(row(FLOOR.name, "W3", "one at a time", place, "an echo between", 100.0));
    }
    for place in [ONE, TWO] {
        for case in ["64 B", "4 KiB", "64 KiB"] {
            rows.push(row(TYPED.name, "W1", case, place, TRIP, 10.0));
            rows.push(row(OTHER, "W1", case, place, TRIP, 100.0));
        }
        for case in ["64 in flight", "1024 in flight"] {
            rows.push(row(TYPED.name, "W2", case, place, EACH, 10.0));
            rows.push(row(OTHER, "W2", case, place, EACH, 100.0));
        }
        for (who, value) in [(ours, 300.0), (FLOOR.name, 200.0)] {
            rows.push(row(
                who,
                "W6",
                "unknown cancels, 1,000,000",
                place,
                "a cancel, of all the time",
                value,
            ));
        }
    }
    for place in Place::ALL.map(Place::name) {
        for case in ["of a running request", "of a queued request"] {
            rows.push(row(ours, "W4", case, place, "to caller", 100.0));
            rows.push(row(ours, "W4", case, place, "to caller, slots to spare", 100.0));
        }
        for (workload, case, what) in [
            ("W7", "100000 children of one root", "other requests meanwhile"),
            ("W9", "100000 deadlines at once", "late by"),
        ] {
            let times = Distribution::new(vec![1000; 200]).map_or(Figure::Said("none"), Figure::Times);
            rows.push(Row::new(workload, case.to_owned(), place, what, ours, times));
        }
    }
    for place in [ONE, TWO] {
        let (case, what) = ("depth 5, fan-out 4", "to last handler");
        rows.extend(
            [(ours, 100.0), (OTHER, 100.0)].map(|(who, value)| row(who, "W7", case, place, what, value)),
        );
    }
    for who in [ours, WITHHELD.name] {
        rows.push(row(who, "W5", "an echo", ONE, "instructions", 100.0));
    }
    for what in ["heap", "played in all"] {
        rows.push(row(ours, "W6", "after 1,000,000 unknown cancels", ONE, what, 1.0));
    }
    for case in ["10000 in flight", "100000 in flight"] {
        rows.push(row(OTHER, "W8", case, ONE, "heap a request", 1000.0));
        for what in [
            "heap a request",
            "beside the user's task",
            "the runtime's cell of the user's task",
            "the user's future",
        ] {
            rows.push(row(ours, "W8", case, ONE, what, 100.0));
        }
    }
    rows.extend(on_wires());
    rows.extend(large_frames());
    for case in [
        "websocket, 10000 sessions, 60 s",
        "http-streamable, 5000 sessions, 60 s",
        "http-streamable-h2, 10000 sessions, 60 s",
    ] {
        let times = Distribution::new(vec![1000; 200]).map_or(Figure::Said("none"), Figure::Times);
        rows.push(Row::new("W11", case.to_owned(), "two processes, a core each", "an echo", ours, times));
        rows.push(row(ours, "W11", case, "two processes, a core each", "lost", 0.0));
    }
    for what in ["matrix", "test"] {
        rows.push(row(ours, "clock", what, "2 cores, a clean clone", "with its build", 1.0));
    }
    for dialect in ["ACP", "MCP"] {
        rows.push(row(ours, "machine", dialect, "no wire", "a step", 1.0));
        rows.push(row(ours, "machine", dialect, "no wire", "allocations a step", 0.0));
    }
    let growth = [
        ("heap a request in flight", "requests in flight"),
        ("to put in flight", "requests in flight"),
        ("heap in flight", "requests in flight"),
        ("to open, with one echo", "connections"),
        ("heap open", "connections"),
        ("to signal, from the root's cancel", "children"),
        ("heap at most", "children"),
    ]
    .map(|(what, with)| {
        let points = [1e3, 1e4, 1e5, 1e6].map(|count| (count, 5.0)).to_vec();
        Growth { what, with, unit: "ns", name: ours, points }
    });
    Results { rows, growth: growth.to_vec(), ..empty(&PARTS) }
}

fn on_wires() -> Vec<Row> {
    const TRIP: &str = "round trip";
    const IDLE: &str = "an idle session";
    let ours = COMPETITOR.name;
    let mut rows = Vec::new();
    for wire in Wire::ALL {
        let case = wire.name();
        rows.extend([ours, FLOOR.name].map(|who| row(who, "wires", case, ONE_CORE, TRIP, 100.0)));
        rows.push(row(ours, "wires", case, ONE_CORE, "over the floor", 1.0));
        if wire != Wire::Stdio {
            rows.push(row(ours, "wires", case, ONE_CORE, IDLE, 1.0));
        }
        let cancel = format!("{case}, cancel");
        rows.extend(
            ["to handler", "to caller", "an echo between"]
                .map(|what| row(ours, "wires", &cancel, ONE_CORE, what, 100.0)),
        );
    }
    for wire in ["stdio", "websocket", "http-streamable", "http-stateless", "http-acp"] {
        let (flight, cancel) = (format!("{wire}, 64 in flight"), format!("{wire}, cancel"));
        let measured = [
            (wire, TRIP, TYPED.name),
            (&flight, "a request, of all the time", TYPED.name),
            (&cancel, "to handler", TYPED.name),
        ];
        if wire != "stdio" {
            rows.push(row(OTHER, "wires", wire, ONE_CORE, IDLE, 1000.0));
        }
        for (case, what, who) in measured {
            rows.extend(
                [(who, 10.0), (OTHER, 100.0)]
                    .map(|(who, value)| row(who, "wires", case, ONE_CORE, what, value)),
            );
        }
    }
    for wire in ["http-streamable", "http-stateless", "http-streamable-h2", "http-stateless-h2", "http-acp"] {
        rows.push(row(ours, "wires", wire, ONE_CORE, "instructions of the server's side", 100.0));
    }
    rows
}

fn large_frames() -> Vec<Row> {
    let ours = COMPETITOR.name;
    let mut rows = Vec::new();
    let places = crate::harness::wires::WIRES_OF_LARGE.map(|wire| (wire.name(), ENVELOPES.name));
    for (place, floor) in places.into_iter().chain([(ONE, FLOOR.name)]) {
        for size in ["64 KiB", "1 MiB", "8 MiB"] {
            if (place, size) != (ONE, "64 KiB") {
                rows.extend([ours, floor].map(|who| row(who, "W10", size, place, "round trip", 100.0)));
            }
            let sides: &[&str] = match (size, place) {
                ("64 KiB", _) => &[],
                (_, ONE) => &["most memory, both sides"],
                _ => &["most memory, client", "most memory, server"],
            };
            rows.extend(sides.iter().map(|what| row(ours, "W10", size, place, what, 1.0)));
        }
    }
    rows
}

fn names(verdicts: &[Verdict]) -> Vec<&str> {
    verdicts.iter().map(|verdict| verdict.name.as_str()).collect()
}

/// The rulings of the lines that have a limit.
fn rulings(results: &Results) -> Vec<Ruling> {
    let verdicts = judge_of(results, ALL).into_iter();
    verdicts.filter(|verdict| !is_only_shown(verdict)).map(|verdict| verdict.ruling).collect()
}

fn is_only_shown(verdict: &Verdict) -> bool {
    verdict.ruling == Ruling::NotJudged && verdict.limit.is_none()
}

#[test]
fn every_part_has_its_lines_and_their_limits_though_nothing_was_measured() {
    // `.ci/budgets` refuses that a line is removed or a limit raised beside other changes.
    let lines: Vec<(String, Vec<(String, Option<f64>, String)>)> =
        serde_json::from_str(include_str!("lines.json")).expect("the lines of each part");
    let played = PARTS.into_iter().filter(|part| !["all", "memory", "budget"].contains(part));
    assert!(lines.iter().map(|(part, _)| part.as_str()).eq(played.clone()));
    for (part, (_, lines)) in played.zip(lines) {
        let verdicts = judge_of(&empty(&[part]), ALL);
        let line = |verdict: &Verdict| (verdict.name.clone(), verdict.limit, verdict.unit.to_owned());
        assert_eq!(verdicts.iter().map(line).collect::<Vec<_>>(), lines, "{part}");
        let lacks = |verdict: &Verdict| verdict.lacks_its_figure() || is_only_shown(verdict);
        let told = verdicts.iter().all(|verdict| lacks(verdict) && !verdict.note.is_empty());
        assert!(told, "{verdicts:#?}");
    }
}

#[test]
fn a_figure_that_is_missing_or_no_number_takes_a_line_from_met_to_not_met() {
    let complete = complete();
    assert_eq!(rulings(&complete), vec![Ruling::Met; 225]);
    for place in 0..complete.rows.len() {
        let mut without = complete.clone();
        let row = without.rows.remove(place);
        let verdicts = judge_of(&without, ALL);
        assert!(verdicts.iter().any(|verdict| verdict.ruling == Ruling::NotMet), "{row:?}");
        assert_eq!(names(&verdicts), names(&judge_of(&complete, ALL)), "{row:?}");
        for said in ["none", "told", "no limit", "not counted"] {
            let mut says = complete.clone();
            says.rows[place].figure = Figure::Said(said);
            assert_eq!(rulings(&says), rulings(&without), "{said}: {row:?}");
        }
    }
    for place in 0..complete.growth.len() {
        let mut without = complete.clone();
        without.growth[place].points.remove(1);
        assert!(rulings(&without).contains(&Ruling::NotMet), "{:?}", without.growth[place]);
    }
}

#[test]
fn values_that_this_build_cannot_measure_are_not_judged() {
    for (build, expected) in [
        (Build { counts: false, peers: true }, 19),
        (Build { counts: true, peers: false }, 69),
        (Build { counts: false, peers: false }, 80),
    ] {
        let verdicts = judge_of(&empty(&PARTS), build);
        let left: Vec<_> = verdicts.iter().filter(|verdict| verdict.ruling == Ruling::NotJudged).collect();
        assert_eq!(left.len(), expected, "{build:?}: {left:#?}");
        assert!(left.iter().all(|verdict| verdict.value.is_none() && !verdict.note.is_empty()), "{left:#?}");
        assert_eq!(names(&verdicts), names(&judge_of(&empty(&PARTS), ALL)));
    }
}

#[test]
fn too_few_round_trips_for_a_99th_percentile_are_judged_by_their_slowest_and_say_so() {
    let (few, enough) = (vec![5_000_000; 1], vec![1000; 98]);
    for (more, value, note) in [(0, 5.0, "only 99 of them: this is the slowest"), (100, 0.001, "of 199")] {
        let mut results = complete();
        results.parts = vec!["W7"];
        let times = [few.clone(), enough.clone(), vec![1000; more]].concat();
        for row in results.rows.iter_mut().filter(|row| row.workload == "W7") {
            row.figure = Distribution::new(times.clone()).map_or(Figure::Said("none"), Figure::Times);
        }
        let verdicts = judge_of(&results, ALL);
        let others = verdicts.iter().filter(|verdict| verdict.name.starts_with("W7 p99 of other requests"));
        for verdict in others.clone() {
            assert_eq!((verdict.value, verdict.note.as_str()), (Some(value), note));
        }
        assert_eq!(others.count(), 3);
    }
}

#[test]
fn the_cost_of_tokens_has_a_line_without_a_limit() {
    let mut results = complete();
    results.parts = vec!["W5"];
    results.rows.push(row(TOKENS.name, "W5", "an echo", ONE, "instructions", 125.0));
    let verdicts = judge_of(&results, ALL);
    assert_eq!(tally(&verdicts), "1 of 1 met, 1 not judged");
    assert_eq!(
        (verdicts[1].value_shown(1), verdicts[1].limit_shown()),
        ("25.0 %".to_owned(), "-".to_owned())
    );
}

#[test]
fn an_infinite_figure_is_null_with_a_reason_in_json_and_not_met() {
    let mut results = complete();
    for row in results.rows.iter_mut().filter(|row| row.name == WITHHELD.name) {
        row.figure = Figure::Number { value: 0.0, unit: "instructions" };
    }
    results.parts = vec!["W5"];
    let told = judge_of(&results, ALL)[0].to_json();
    assert_eq!((&told["met"], &told["value"]), (&json!(false), &Value::Null), "{told}");
    assert!(told["reason"].as_str().is_some_and(|reason| reason.starts_with("inf is no figure")), "{told}");
}

#[test]
fn a_case_that_ours_never_finished_has_a_line_without_a_budget() {
    let mut results = empty(&[]);
    let case = "100000 deadlines at once".to_owned();
    results.rows.push(Row::new("W9", case, ONE, "late by", COMPETITOR.name, Figure::Said("never")));
    let verdicts = judge_of(&results, ALL);
    assert_eq!(names(&verdicts), ["W9 100000 deadlines at once: late by, memory, one thread"]);
    assert!(verdicts[0].lacks_its_figure());
    assert_eq!(tally(&verdicts), "0 of 1 met");
}

#[test]
fn an_unknown_cancel_that_takes_less_than_the_floor_is_lost_in_noise_and_not_judged() {
    for (nanos, expected) in
        [(199.0, Ruling::NotJudged), (200.0, Ruling::Met), (450.0, Ruling::Met), (451.0, Ruling::NotMet)]
    {
        let mut results = complete();
        results.parts = vec!["W6"];
        let is_it =
            |row: &&mut Row| row.name == COMPETITOR.name && row.measure == "a cancel, of all the time";
        for row in results.rows.iter_mut().filter(is_it) {
            row.figure = Figure::Number { value: nanos, unit: "ns" };
        }
        for verdict in &judge_of(&results, ALL)[..2] {
            assert_eq!((verdict.ruling, verdict.value), (expected, Some(nanos - 200.0)), "{verdict:?}");
            assert_eq!(verdict.note.contains("noise"), expected == Ruling::NotJudged, "{verdict:?}");
        }
    }
}
