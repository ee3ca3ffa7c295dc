//! The lines of each part: always all of them, regardless of what was measured.

use super::{At, Court, Found, ONE, ONE_CORE, PIPES, TWO};
use crate::cross_process::Wire;
use crate::harness::figures::{Figure, Fit};
use crate::harness::other_runs::{APART, CLONE, ECHO, LOST, TIMED, TOOK, load_case};
use crate::harness::{Place, instructions, wires};
use crate::limits;
use crate::subject::{Carries, Name};
use crate::subjects;
use crate::subjects::rescind::{COMPETITOR, QUICK, QUICK_TYPED, SERVER, TOKENS, TYPED, WITHHELD};
use crate::wire_subjects::ENVELOPES;

pub(super) const TRIP: &str = "round trip";
pub(super) const EACH: &str = "a request, of all the time";
const TOO_SHORT: &str = "a short run cannot say";
const WITHOUT_OTHERS: &str = "the other libraries are not in this build";

/// Judges every line of this part.
pub(super) fn of(court: &mut Court<'_>, part: &str) {
    match part {
        "W1" => {
            round_trips(court);
            against_others(court, "W1", &["64 B", "4 KiB", "64 KiB"], TRIP);
            third_round(court, "W1", "64 B", TRIP, [limits::ECHO_OF_OTHERS; 2]);
            quick_echo(court);
        }
        "W2" => {
            against_others(court, "W2", &["64 in flight", "1024 in flight"], EACH);
            quick_requests(court);
            let limits = [limits::FLIGHT_OF_OTHERS, limits::FLIGHT_OF_OTHERS_ON_TWO];
            third_round(court, "W2", "64 in flight", EACH, limits);
        }
        "W3" => cancels(court),
        "W4" => saturated(court),
        "W5" => bystanders(court),
        "W6" => unknown_cancels(court),
        "W7" => {
            wide_trees(court);
            trees(court);
        }
        "W8" => in_flight(court),
        "W9" => deadlines(court),
        "W10" => large_frames(court),
        "W11" => load_held(court),
        "clock" => clock(court),
        "scale" => scale(court),
        "wires" => wires(court),
        "machine" => machine(court),
        _ => {}
    }
}

/// The difference of two times, in microseconds.
fn over(ours: f64, floor: f64) -> (f64, String) {
    ((ours - floor) / 1e3, format!("{:.2} us, floor {:.2} us", ours / 1e3, floor / 1e3))
}

fn round_trips(court: &mut Court<'_>) {
    let both = |court: &Court<'_>, case, place| {
        let at = At::new("W1", case, place, TRIP);
        Ok::<_, String>((court.ours(at)?, court.floor(at)?))
    };
    for (place, limit) in [(ONE, limits::ECHO_IN_MEMORY), (PIPES, limits::ECHO_BETWEEN_PROCESSES)] {
        let found = both(court, "64 B", place).map(|(ours, floor)| over(ours, floor));
        court.hold(format!("W1 64 B over the floor, {place}"), found, limit, "us");
    }
    let found = both(court, "64 B", ONE).map(|(ours, floor)| over(ours, floor));
    court.hold(format!("W1 64 B over the floor, hoped for, {ONE}"), found, limits::ECHO_DREAM, "us");
    let at = At::new("W1", "64 B", ONE, TRIP);
    let found = court.figure(QUICK.name, at).and_then(|ours| Ok(over(ours, court.floor(at)?)));
    court.hold(format!("W1 64 B over the floor, quick handlers, {ONE}"), found, limits::ECHO_IN_MEMORY, "us");
    let found = both(court, "64 KiB", ONE)
        .map(|(ours, floor)| (ours / floor, format!("{:.1} us, floor {:.1} us", ours / 1e3, floor / 1e3)));
    court.hold("W1 64 KiB against the floor", found, limits::ECHO_64_KIB, "x");
}

/// The other libraries serialize and parse a text for each request, so this library does so here too.
fn against_others(court: &mut Court<'_>, workload: &str, cases: &[&str], measure: &str) {
    for place in [ONE, TWO] {
        for case in cases {
            let best = format!("{workload} {case} against the best other, {place}");
            let dream = format!("{workload} {case} against the best other, hoped for, {place}");
            let slow = format!("{workload} {case}, rmcp and agent-client-protocol 5 times ours, {place}");
            if !court.build.peers {
                court.leave(best, limits::BEST_OF_OTHERS, "x", WITHOUT_OTHERS);
                court.leave(dream, limits::BEST_OF_OTHERS_DREAM, "x", WITHOUT_OTHERS);
                court.leave(slow, limits::SLOW_OTHERS, "x", WITHOUT_OTHERS);
                continue;
            }
            let at = At::new(workload, case, place, measure);
            let found = beside(court, at, |name| name.carries == Carries::Bytes).map(|(value, note)| {
                // A competitor that serializes is not compared with one that does not, but the note mentions it.
                let unwritten = court.best_of_others(at, |name| name.carries == Carries::Values);
                let said = unwritten.map(|(best, name)| {
                    let Name { library, configuration, carries, .. } = name;
                    format!("; {library} ({configuration}) {:.2} us, which {}", best / 1e3, carries.note())
                });
                (value, note + &said.unwrap_or_default())
            });
            court.hold(best, found.clone(), limits::BEST_OF_OTHERS, "x");
            court.hold(dream, found, limits::BEST_OF_OTHERS_DREAM, "x");
            let found = beside(court, at, |name| ["rmcp", "agent-client-protocol"].contains(&name.library));
            court.hold(slow, found, limits::SLOW_OTHERS, "x");
        }
    }
}

/// The third round's lines: both sides beside the best other library with a client of its own, and the server alone beside the
/// best other server. `limits`: of both sides, on one thread and with two workers.
fn third_round(court: &mut Court<'_>, workload: &str, case: &str, measure: &str, limits: [f64; 2]) {
    for (place, limit) in [ONE, TWO].into_iter().zip(limits) {
        let both = format!("{workload} {case} against the best other, third round, {place}");
        let server = format!("{workload} {case}, the server alone against the best other, {place}");
        if !court.build.peers {
            court.leave(both, limit, "x", WITHOUT_OTHERS);
            court.leave(server, limits::SERVER_OF_OTHERS, "x", WITHOUT_OTHERS);
            continue;
        }
        let at = At::new(workload, case, place, measure);
        court.hold(both, beside(court, at, |name| name.carries == Carries::Bytes), limit, "x");
        let found = multiple(court.figure(SERVER.name, at), court.best_server(at));
        court.hold(server, found, limits::SERVER_OF_OTHERS, "x");
    }
}

fn quick_echo(court: &mut Court<'_>) {
    let at = At::new("W1", "64 B", ONE, TRIP);
    let beside = format!("W1 64 B against the best other, quick handlers, third round, {ONE}");
    if court.build.peers {
        let best = court.best_of_others(at, |name| name.carries == Carries::Bytes);
        let found = multiple(court.figure(QUICK_TYPED.name, at), best);
        court.hold(beside, found, limits::QUICK_ECHO_OF_OTHERS, "x");
    } else {
        court.leave(beside, limits::QUICK_ECHO_OF_OTHERS, "x", WITHOUT_OTHERS);
    }
    let floor = court.floor(at).map(|floor| (floor, subjects::FLOOR.name));
    let found = multiple(court.figure(QUICK_TYPED.name, at), floor);
    court.hold(
        format!("W1 64 B in floors, quick handlers, third round, {ONE}"),
        found,
        limits::QUICK_ECHO_IN_FLOORS,
        "x",
    );
}

/// 400,000 requests a second, or twice as many as the best of the others: the longer of the two times is the limit.
fn quick_requests(court: &mut Court<'_>) {
    const NAME: &str = "W2 64 in flight, quick handlers, memory, one thread";
    if !court.build.peers {
        court.leave(NAME, limits::QUICK_REQUEST, "us", WITHOUT_OTHERS);
        return;
    }
    let at = At::new("W2", "64 in flight", ONE, EACH);
    let best = court.best_of_others(at, |name| name.carries == Carries::Bytes);
    let found = court.figure(QUICK_TYPED.name, at).and_then(|ours| Ok((ours, best.clone()?)));
    let half = best.map_or(0.0, |(best, _)| best * limits::QUICK_OF_OTHERS / 1e3);
    let found = found.map(|(ours, (best, name))| {
        (ours / 1e3, format!("{:.0} k/s, {} {:.0} k/s", 1e6 / ours, name.library, 1e6 / best))
    });
    court.hold(NAME, found, half.max(limits::QUICK_REQUEST), "us");
}

/// The figure of this library as a multiple of the best of these.
fn beside(court: &Court<'_>, at: At<'_>, of: impl Fn(Name) -> bool) -> Found {
    multiple(court.figure(TYPED.name, at), court.best_of_others(at, of))
}

fn multiple(ours: Result<f64, String>, best: Result<(f64, Name), String>) -> Found {
    let (ours, (best, name)) = (ours?, best?);
    Ok((ours / best, format!("{:.2} us, {} {:.2} us", ours / 1e3, name.library, best / 1e3)))
}

fn cancels(court: &mut Court<'_>) {
    const BETWEEN: &str = "an echo between";
    for (place, limit) in [
        (ONE, limits::SIGNAL_ON_ONE_THREAD),
        (TWO, limits::SIGNAL_ON_TWO_THREADS),
        (PIPES, limits::SIGNAL_ON_ONE_THREAD),
    ] {
        let at = At::new("W3", "one at a time", place, "to handler");
        cancel(court, place, at, at.but(BETWEEN), limit);
    }
}

/// The lines of a cancel: to the handler's signal, and to the caller's return. `echo`: the echo of the floor, whose half is one
/// direction of the transport.
pub(super) fn cancel(court: &mut Court<'_>, place: &str, at: At<'_>, echo: At<'_>, limit: f64) {
    let found = court.ours(at).and_then(|ours| {
        let one_way = court.floor(echo)? / 2.0;
        let note = format!("{:.2} us, one way {:.2} us: half the floor's echo", ours / 1e3, one_way / 1e3);
        Ok(((ours - one_way) / 1e3, note))
    });
    court.hold_above_noise(format!("W3 cancel to signal over one way, {place}"), found, limit, "us");
    let found = court.ours(at.but("to caller")).and_then(|ours| {
        let echo = court.ours(at.but("an echo between"))?;
        Ok((ours / echo, format!("{:.2} us, our echo {:.2} us", ours / 1e3, echo / 1e3)))
    });
    let name = format!("W3 cancel to the caller's return against our echo, {place}");
    court.hold(name, found, limits::CALLER_RETURN, "x");
}

fn saturated(court: &mut Court<'_>) {
    let taken = |court: &Court<'_>, at: At<'_>| {
        let (value, spare) = (court.ours(at)?, court.ours(at.but("to caller, slots to spare"))?);
        let note = format!("always answered; {:.2} us, to spare {:.2} us", value / 1e3, spare / 1e3);
        Ok((value / spare, note))
    };
    for case in ["of a running request", "of a queued request"] {
        for place in Place::ALL.map(Place::name) {
            let found = taken(court, At::new("W4", case, place, "to caller"));
            let name = format!("W4 {case} against one with slots to spare, {place}");
            court.hold(name, found, limits::SATURATED, "x");
        }
    }
}

fn bystanders(court: &mut Court<'_>) {
    const NAME: &str = "W5 more instructions a request";
    const WITH_TOKENS: &str = "W5 more instructions a request, a token on either side";
    let more = |court: &Court<'_>, who: Name| {
        let at = At::new("W5", "an echo", ONE, "instructions");
        let (with, off) = (court.figure(who, at)?, court.figure(WITHHELD.name, at)?);
        let note =
            format!("{with:.0} instructions, {off:.0} where neither side declares that it handles cancels");
        Ok(((with / off - 1.0) * 100.0, note))
    };
    if court.results.short {
        court.leave(NAME, limits::BYSTANDER, "%", TOO_SHORT);
        court.show(WITH_TOKENS, Err(TOO_SHORT.to_owned()), "%");
        return;
    }
    let found = more(court, COMPETITOR.name);
    court.hold(NAME, found, limits::BYSTANDER, "%");
    let found = more(court, TOKENS.name);
    court.show(WITH_TOKENS, found, "%");
}

fn unknown_cancels(court: &mut Court<'_>) {
    let each = |court: &Court<'_>, place| {
        let at = At::new("W6", "unknown cancels, 1,000,000", place, "a cancel, of all the time");
        let (ours, floor) = (court.ours(at)?, court.floor(at)?);
        let note = format!("{ours:.0} ns; {floor:.0} ns to write, carry, read and drop one without us");
        Ok((ours - floor, note))
    };
    for place in [ONE, TWO] {
        let found = each(court, place);
        let name = format!("W6 an unknown cancel over the floor, {place}");
        court.hold_above_noise(name, found, limits::UNKNOWN_CANCEL, "ns");
    }
    let left = |court: &Court<'_>| {
        let at = At::new("W6", "after 1,000,000 unknown cancels", ONE, "heap");
        let (kib, played) = (court.ours(at)?, court.ours(at.but("played in all"))?);
        Ok((kib, format!("of {played:.0} that were played")))
    };
    let found = left(court);
    court.hold_memory("W6 growth over unknown cancels", found, limits::UNKNOWN_CANCELS_GROWTH, "KiB");
}

/// Our 99th percentile in milliseconds, or the slowest if there are too few.
pub(super) fn p99(court: &Court<'_>, at: At<'_>) -> Found {
    match &court.row(COMPETITOR.name, at)?.figure {
        Figure::Times(times) => {
            let few = || (times.max, format!("only {} of them: this is the slowest", times.count));
            let (nanos, note) = times.p99.map_or_else(few, |p99| (p99, format!("of {}", times.count)));
            Ok((nanos as f64 / 1e6, note))
        }
        Figure::Number { .. } => Err("one number has no 99th percentile".to_owned()),
        Figure::Said(said) => Err(format!("ours said: {said}")),
    }
}

fn wide_trees(court: &mut Court<'_>) {
    let children = if court.results.short { 1000 } else { 100_000 };
    let case = format!("{children} children of one root");
    for place in Place::ALL.map(Place::name) {
        let name = format!("W7 p99 of other requests, {case}, {place}");
        if court.results.short {
            // With so few, all may be signalled before another request starts.
            court.leave(name, limits::OTHERS_MEANWHILE, "ms", TOO_SHORT);
        } else {
            let found = p99(court, At::new("W7", &case, place, "other requests meanwhile"));
            court.hold(name, found, limits::OTHERS_MEANWHILE, "ms");
            let found = court.ours(At::new("W7", &case, place, "other requests meanwhile"));
            let found = found.map(|nanos| (nanos / 1e6, "beside the 99th percentile".to_owned()));
            court.show(&format!("W7 median of other requests, {case}, {place}"), found, "ms");
        }
    }
}

fn in_flight(court: &mut Court<'_>) {
    let counts: &[usize] = if court.results.short { &[1000] } else { &[10_000, 100_000] };
    for count in counts {
        let case = format!("{count} in flight");
        let at = At::new("W8", &case, ONE, "heap a request");
        let name = format!("W8 {case} against the best other");
        if court.build.peers {
            let found = against_the_best(court, at);
            court.hold_memory(name, found, limits::BEST_OF_OTHERS, "x");
        } else {
            court.leave(name, limits::BEST_OF_OTHERS, "x", WITHOUT_OTHERS);
        }
        let found = beside_the_task(court, at);
        court.hold_memory(format!("W8 {case}, a request"), found, limits::IN_FLIGHT, "B");
        let found = court.ours(at).map(|bytes| (bytes, "with the user's future and its task".to_owned()));
        court.hold_memory(format!("W8 {case}, a request, both sides"), found, limits::IN_FLIGHT_IN_ALL, "B");
    }
    linear(court, "heap a request in flight", "requests in flight", 100_000.0);
}

fn against_the_best(court: &Court<'_>, at: At<'_>) -> Found {
    let (ours, (best, name)) = (court.ours(at)?, court.best_of_others(at, |_| true)?);
    Ok((ours / best, format!("{ours:.0} B, {} {best:.0} B", name.library)))
}

fn beside_the_task(court: &Court<'_>, at: At<'_>) -> Found {
    let beside = court.ours(at.but("beside the user's task"))?;
    let task = court.ours(at.but("the runtime's cell of the user's task"))?;
    let future = court.ours(at.but("the user's future"))?;
    let note = format!("beside the runtime's cell of {task:.0} B, the user's future of {future:.0} B in it");
    Ok((beside, note))
}

fn scale(court: &mut Court<'_>) {
    for (times, bytes, with, last) in [
        ("to put in flight", "heap in flight", "requests in flight", 1e6),
        ("to open, with one echo", "heap open", "connections", 1e4),
        ("to signal, from the root's cancel", "heap at most", "children", 1e6),
    ] {
        linear(court, times, with, last);
        linear(court, bytes, with, last);
    }
}

/// A total that may grow in proportion to its number, up to the last one.
fn linear(court: &mut Court<'_>, what: &str, with: &str, last: f64) {
    let name = format!("linear: {what} by {with}");
    let found = exponent(court, what, with, last);
    if court.results.short {
        court.leave(name, limits::LINEAR, "", TOO_SHORT);
    } else if what.starts_with("heap") {
        court.hold_memory(name, found, limits::LINEAR, "");
    } else {
        court.hold(name, found, limits::LINEAR, "");
    }
}

/// Below a thousand, one-time costs dominate.
fn exponent(court: &Court<'_>, what: &str, with: &str, last: f64) -> Found {
    let ours = COMPETITOR.name;
    let mut all = court.results.growth.iter();
    let growth = all.find(|growth| growth.name == ours && (growth.what, growth.with) == (what, with));
    let points = growth.map(|growth| growth.points.as_slice()).unwrap_or_default();
    let counts = std::iter::successors(Some(1000.0), |count| Some(count * 10.0));
    let mut total = Vec::new();
    for count in counts.take_while(|count| *count <= last) {
        let point = points.iter().find(|point| (point.0 - count).abs() < 0.5);
        let (_, each) = point.ok_or_else(|| format!("there is no figure of {count} {with}"))?;
        total.push((count, count * each));
    }
    let fit = Fit::new(&total).ok_or("a figure is not above nothing")?;
    Ok((fit.exponent, format!("exponent of the total, from 1000 to {last}")))
}

fn machine(court: &mut Court<'_>) {
    for dialect in ["ACP", "MCP"] {
        let at = At::new("machine", dialect, "no wire", "a step");
        let found = court.ours(at).map(|nanos| (nanos / 1e3, String::new()));
        court.hold(format!("a machine step, {dialect}"), found, limits::STEP, "us");
        let found = court.ours(at.but("allocations a step")).map(|count| (count, String::new()));
        let name = format!("allocations a machine step, {dialect}");
        court.hold_memory(name, found, limits::STEP_ALLOCATIONS, "");
    }
}

// The lines that the second round of the design added: crowds, the load held, the newcomer's clock.

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
fn load_held(court: &mut Court<'_>) {
    for (wire, sessions, limit) in [
        (Wire::WebSocket, 10_000, limits::HELD_WEBSOCKET),
        (Wire::Streamable, 5000, limits::HELD_HTTP1),
        (Wire::Streamable2, 10_000, limits::HELD_HTTP2),
    ] {
        let load_case = load_case(wire, sessions, 60);
        let at = At::new("W11", &load_case, APART, ECHO);
        let names = [format!("W11 p99 of an echo, {load_case}"), format!("W11 lost, {load_case}")];
        let found = [p99(court, at), court.ours(at.but(LOST)).map(|lost| (lost, String::new()))];
        for ((name, found), (limit, unit)) in
            names.into_iter().zip(found).zip([(limit, "ms"), (limits::HELD_LOST, "")])
        {
            let absent = !court.results.rows.iter().any(|row| row.workload == "W11" && row.case == load_case);
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

// The lines of the transports between processes: `wires` and W10.

pub(super) fn wires(court: &mut Court<'_>) {
    for wire in Wire::ALL {
        let found = echo_on_wire(court, wire);
        let name = format!("W1 64 B over the floor, {}", wire.name());
        court.hold_above_noise(name, found.clone(), wire.echo_limit(), "us");
        if let Some(limit) = wire.second_echo_limit() {
            let name = format!("W1 64 B over the floor, second round, {}", wire.name());
            court.hold_above_noise(name, found, limit, "us");
        }
    }
    for wire in Wire::ALL {
        let case = wires::cancels(wire);
        let at = At::new("wires", &case, ONE_CORE, "to handler");
        // The floor has no cancel, so its echo is of the case of echoes.
        let echo = At { case: wire.name(), ..at.but(TRIP) };
        cancel(court, wire.name(), at, echo, limits::SIGNAL_ON_ONE_THREAD);
    }
    idle_sessions(court);
    for wire in [Wire::Stdio, Wire::WebSocket, Wire::Streamable, Wire::Stateless, Wire::Acp] {
        wires_against_others(court, wire);
    }
    for wire in instructions::COUNTED_WIRES {
        instructions(court, wire);
    }
}

fn echo_on_wire(court: &Court<'_>, wire: Wire) -> Found {
    let at = At::new("wires", wire.name(), ONE_CORE, TRIP);
    let (ours, floor) = (court.ours(at)?, court.floor(at)?);
    let over = court.ours(at.but("over the floor"))?;
    let note = format!("{:.2} us, floor {:.2} us, {:.2}x", ours / 1e3, floor / 1e3, ours / floor);
    Ok((over / 1e3, note))
}

fn idle_sessions(court: &mut Court<'_>) {
    for wire in Wire::ALL {
        let Some(limit) = wire.idle_limit() else { continue };
        let name = format!("an idle session, {}", wire.name());
        if court.results.short {
            // A few sessions fit in memory that the process has already.
            court.leave(name, limit, "KiB", TOO_SHORT);
            continue;
        }
        let at = At::new("wires", wire.name(), ONE_CORE, "an idle session");
        let found = court.ours(at).map(|bytes| (bytes / 1024.0, "resident memory of the server".to_owned()));
        court.hold(name, found, limit, "KiB");
    }
}

/// Texts are typed on both sides, as in the others. Sessions are those of the default.
fn wires_against_others(court: &mut Court<'_>, wire: Wire) {
    let (flight, cancels) = (wires::in_flight(wire), wires::cancels(wire));
    let figures = [
        ("echo", wire.name(), TRIP, TYPED.name, "us"),
        ("64 in flight", &flight, EACH, TYPED.name, "us"),
        ("cancel to handler", &cancels, "to handler", TYPED.name, "us"),
        ("an idle session", wire.name(), "an idle session", COMPETITOR.name, "kB"),
    ];
    for (what, case, measure, who, unit) in figures {
        // A child's pipes have one session.
        if wire.is_of_a_child() && measure == "an idle session" {
            continue;
        }
        let name = format!("{what} against the best other, {}", wire.name());
        if !court.build.peers {
            court.leave(name, limits::BEST_ON_WIRES, "x", WITHOUT_OTHERS);
        } else if court.results.short && unit == "kB" {
            court.leave(name, limits::BEST_ON_WIRES, "x", TOO_SHORT);
        } else {
            let found = beside_in(court, At::new("wires", case, ONE_CORE, measure), who, unit);
            court.hold(name, found, limits::BEST_ON_WIRES, "x");
        }
    }
}

fn beside_in(court: &Court<'_>, at: At<'_>, who: Name, unit: &str) -> Found {
    let (ours, (best, name)) = (court.figure(who, at)?, court.best_of_others(at, |_| true)?);
    let Name { library, configuration, .. } = name;
    let note = format!("{:.2} {unit}, {library} ({configuration}) {:.2} {unit}", ours / 1e3, best / 1e3);
    Ok((ours / best, note))
}

fn instructions(court: &mut Court<'_>, wire: Wire) {
    let limit = match wire {
        Wire::Streamable => limits::SERVER_OF_STREAMABLE,
        Wire::Stateless => limits::SERVER_OF_STATELESS,
        _ => limits::SERVER_OVER_HTTP2,
    };
    let name = format!("instructions of the server's side of an echo, {}", wire.name());
    if court.results.short {
        court.leave(name, limit, "instructions", TOO_SHORT);
        return;
    }
    let at = At::new("wires", wire.name(), ONE_CORE, instructions::OF_SERVER);
    let found = court.ours(at).map(|count| {
        let floor = court.floor(at).map_or_else(|_| "not counted".to_owned(), |floor| format!("{floor:.0}"));
        (count.round(), format!("the raw echo: {floor}"))
    });
    court.hold(name, found, limit, "instructions");
}

pub(super) fn large_frames(court: &mut Court<'_>) {
    for (place, floor, workload, size, limit) in large_times() {
        let name = format!("{workload} {size} against the floor, {place}");
        if court.results.short {
            court.leave(name, limit, "x", TOO_SHORT);
            continue;
        }
        let at = At::new("W10", size, place, TRIP);
        let found = court.ours(at).and_then(|ours| {
            let floor = court.figure(floor, at)?;
            Ok((ours / floor, format!("{:.3} ms, floor {:.3} ms", ours / 1e6, floor / 1e6)))
        });
        court.hold(name, found, limit, "x");
    }
    for (size, _, _) in wires::SIZES.into_iter().skip(1) {
        let at = At::new("W10", size, ONE, wires::BOTH);
        memory(court, format!("W10 {size}, most memory, both sides, {ONE}"), at, 2.0 * limits::FRAMES_A_SIDE);
        for wire in wires::WIRES_OF_LARGE {
            for measure in [wires::CLIENT, wires::SERVER] {
                let at = At::new("W10", size, wire.name(), measure);
                let name = format!("W10 {size}, {measure}, {}", wire.name());
                memory(court, name, at, limits::FRAMES_A_SIDE);
            }
        }
    }
}

/// Place, floor, workload, size and limit of each time. 64 KiB in memory is in W1.
fn large_times() -> Vec<(&'static str, Name, &'static str, &'static str, f64)> {
    let places = wires::WIRES_OF_LARGE.into_iter().map(|wire| (wire.name(), ENVELOPES.name));
    let places = std::iter::once((ONE, crate::subjects::FLOOR.name)).chain(places);
    let all = places.flat_map(|(place, floor)| {
        wires::SIZES.map(|(size, _, _)| match size {
            "64 KiB" => (place, floor, "W1", size, limits::ECHO_64_KIB),
            _ => (place, floor, "W10", size, limits::LARGE),
        })
    });
    all.filter(|(place, _, workload, ..)| (*place, *workload) != (ONE, "W1")).collect()
}

fn memory(court: &mut Court<'_>, name: String, at: At<'_>, limit: f64) {
    if court.results.short {
        court.leave(name, limit, "frames", TOO_SHORT);
        return;
    }
    let found = court.ours(at).map(|frames| {
        let floor = if at.place == ONE { court.floor(at) } else { court.figure(ENVELOPES.name, at) };
        (frames, floor.map_or_else(|why| why, |floor| format!("the floor: {floor:.2}")))
    });
    court.hold(name, found, limit, "frames");
}
