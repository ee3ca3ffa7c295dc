//! The transports between two processes on one core: this library beside the floor and the libraries that users would choose there.

use super::budgets::ONE_CORE;
use super::competitors::{Bound, Place, attempt, enter_on};
use super::figures::{Figure, Row};
use super::interleave::{Case, Player, Work, rows, take_turns};
use super::{Results, Run, WARM};
use crate::cross_process::{self, Far, Wire};
use crate::resources::allow_more_files;
use crate::subject::{Echo, Subject};
use crate::subjects;
use crate::wire_subjects::{FLOOR, WireSubject, on};

/// Requests in flight at once.
const IN_FLIGHT: usize = 64;
/// Sessions that are opened before memory is measured, so that the process has allocated what it needs once.
const FIRST: usize = 16;

/// Measures the part `wires`.
pub(super) fn measure(run: &Run, results: &mut Results) {
    allow_more_files();
    for wire in Wire::ALL {
        times(run, wire, results);
        // A child's pipes carry one session.
        if !wire.is_of_a_child() {
            idle(run, wire, results);
        }
    }
}

/// The name of the case with [`IN_FLIGHT`] requests in flight.
pub(super) fn in_flight(wire: Wire) -> String {
    format!("{}, {IN_FLIGHT} in flight", wire.name())
}

/// The name of the case in which requests are cancelled one at a time.
pub(super) fn cancels(wire: Wire) -> String {
    format!("{}, cancel", wire.name())
}

fn cases(run: &Run, wire: Wire) -> [Case; 3] {
    let echo = |in_flight, count| {
        Work::Echo(Echo { bytes: 64, in_flight, count: run.of(count, in_flight.min(100)) })
    };
    let turns = 2 * (run.rounds + WARM);
    // Each resets a stream there.
    let most = if wire == Wire::Stateless2 { (cross_process::RESETS / turns).max(1) } else { usize::MAX };
    let cancel = Work::Cancel(run.of(10, 2).min(most));
    [(wire.name().to_owned(), echo(1, 25)), (in_flight(wire), echo(IN_FLIGHT, 256)), (cancels(wire), cancel)]
        .map(|(name, work)| Case { workload: "wires", name, slots: 0, work })
}

fn times(run: &Run, wire: Wire, results: &mut Results) {
    for case in cases(run, wire) {
        run.begin(&format!("wires: {}", case.name), run.rounds + WARM);
        let run = run.clone();
        let one_at_a_time = matches!(case.work, Work::Echo(Echo { in_flight: 1, .. }));
        // The floor has one request in flight, and none to cancel.
        let field = on(wire).into_iter().filter(move |one| one_at_a_time || one.name != FLOOR.name);
        let rows = Place::Pipes.run(async move {
            let mut players = Vec::new();
            for one in field {
                players.push(Player::new(enter_on(&one, wire).await, case.work));
            }
            take_turns(&run, case.work, &mut players).await;
            let over = over_the_floor(&case, &players);
            players
                .into_iter()
                .flat_map(|player| rows(&case, ONE_CORE, player))
                .chain(over)
                .collect::<Vec<_>>()
        });
        results.rows.extend(rows);
    }
}

/// How much longer an echo of this library takes than one of the floor.
fn over_the_floor(case: &Case, players: &[Player]) -> Vec<Row> {
    let Work::Echo(Echo { in_flight: 1, count, .. }) = case.work else { return Vec::new() };
    let find = |name| players.iter().find(|player| player.name() == name);
    let Some(floor) = find(FLOOR.name) else { return Vec::new() };
    let ours = [subjects::rescind::COMPETITOR.name, subjects::rescind::QUICK.name];
    let row = |name| {
        let value = find(name)?.over(floor, count)?;
        let figure = Figure::Number { value, unit: "ns" };
        Some(Row::new("wires", case.name.clone(), ONE_CORE, "over the floor", name, figure))
    };
    ours.into_iter().filter_map(row).collect()
}

/// What an idle session adds to the server's resident memory.
fn idle(run: &Run, wire: Wire, results: &mut Results) {
    let sessions = run.of(300, 20);
    // Typed texts are the same while nothing is echoed.
    let typed = subjects::TYPED.map(|one| one.name);
    let field: Vec<_> =
        on(wire).into_iter().filter(|one| one.name != FLOOR.name && !typed.contains(&one.name)).collect();
    run.begin(&format!("wires: idle sessions, {}", wire.name()), field.len());
    for one in field {
        let name = one.name;
        let grown = Place::Pipes.run(async move { attempt(Bound::Whole, grown(&one, wire, sessions)).await });
        let figure = match grown {
            Ok(grown) => Figure::Number { value: grown as f64 / sessions as f64, unit: "B" },
            Err(said) => Figure::Said(said),
        };
        results.rows.push(Row::new(
            "wires",
            wire.name().to_owned(),
            ONE_CORE,
            "an idle session",
            name,
            figure,
        ));
        run.step();
    }
}

/// By how many bytes the server's process grows with this many sessions, each with an echo behind it.
async fn grown(one: &WireSubject, wire: Wire, sessions: usize) -> u64 {
    async fn echo(subject: &mut Box<dyn Subject>) {
        subject.echo(Echo { bytes: 64, in_flight: 1, count: 1 }, &mut Vec::new()).await;
    }
    let mut far: Far = one.start(wire).await;
    let (mut open, mut before) = (Vec::with_capacity(FIRST + sessions), 0);
    for number in 0..FIRST + sessions {
        if number == FIRST {
            before = far.resident();
        }
        let mut subject = one.open(wire, &mut far).await;
        echo(&mut subject).await;
        open.push(subject);
    }
    let grown = far.resident().saturating_sub(before);
    // All of them were alive, and still are.
    for subject in &mut open {
        echo(subject).await;
    }
    grown
}
