//! The lines of the transports between processes: `wires` and W10.

use super::super::{large, wire_instructions, wires as played};
use super::budget_defs::{EACH, TOO_SHORT, TRIP, WITHOUT_OTHERS, cancel};
use super::evaluator::{At, Court, Found};
use super::{ONE, ONE_CORE};
use crate::cross_process::Wire;
use crate::limits;
use crate::subject::Name;
use crate::subjects::rescind::{COMPETITOR, TYPED};
use crate::wire_subjects::ENVELOPES;

pub(super) fn wires(court: &mut Court<'_>) {
    for wire in Wire::ALL {
        let found = echo(court, wire);
        let name = format!("W1 64 B over the floor, {}", wire.name());
        court.hold_above_noise(name, found.clone(), wire.echo_limit(), "us");
        if let Some(limit) = wire.second_echo_limit() {
            let name = format!("W1 64 B over the floor, second round, {}", wire.name());
            court.hold_above_noise(name, found, limit, "us");
        }
    }
    for wire in Wire::ALL {
        let case = played::cancels(wire);
        let at = At::new("wires", &case, ONE_CORE, "to handler");
        // The floor has no cancel, so its echo is of the case of echoes.
        let echo = At { case: wire.name(), ..at.but(TRIP) };
        cancel(court, wire.name(), at, echo, limits::SIGNAL_ON_ONE_THREAD);
    }
    idle_sessions(court);
    for wire in [Wire::Stdio, Wire::WebSocket, Wire::Streamable, Wire::Stateless, Wire::Acp] {
        against_others(court, wire);
    }
    for wire in wire_instructions::WIRES {
        instructions(court, wire);
    }
}

fn echo(court: &Court<'_>, wire: Wire) -> Found {
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
fn against_others(court: &mut Court<'_>, wire: Wire) {
    let (flight, cancels) = (played::in_flight(wire), played::cancels(wire));
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
            let found = beside(court, At::new("wires", case, ONE_CORE, measure), who, unit);
            court.hold(name, found, limits::BEST_ON_WIRES, "x");
        }
    }
}

fn beside(court: &Court<'_>, at: At<'_>, who: Name, unit: &str) -> Found {
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
    let at = At::new("wires", wire.name(), ONE_CORE, wire_instructions::MEASURE);
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
    for (size, _, _) in large::SIZES.into_iter().skip(1) {
        let at = At::new("W10", size, ONE, large::BOTH);
        memory(court, format!("W10 {size}, most memory, both sides, {ONE}"), at, 2.0 * limits::FRAMES_A_SIDE);
        for wire in large::WIRES {
            for measure in [large::CLIENT, large::SERVER] {
                let at = At::new("W10", size, wire.name(), measure);
                let name = format!("W10 {size}, {measure}, {}", wire.name());
                memory(court, name, at, limits::FRAMES_A_SIDE);
            }
        }
    }
}

/// Place, floor, workload, size and limit of each time. 64 KiB in memory is in W1.
fn large_times() -> Vec<(&'static str, Name, &'static str, &'static str, f64)> {
    let places = large::WIRES.into_iter().map(|wire| (wire.name(), ENVELOPES.name));
    let places = std::iter::once((ONE, crate::subjects::FLOOR.name)).chain(places);
    let all = places.flat_map(|(place, floor)| {
        large::SIZES.map(|(size, _, _)| match size {
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
