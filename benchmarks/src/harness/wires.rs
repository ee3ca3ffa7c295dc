//! The transports between two processes on one core: this library beside the floor and the libraries that users would choose there.

use std::process::{Command, Stdio};

use super::budgets::ONE_CORE;
use super::figures::{Figure, Row};
use super::interleave::{
    Bound, Case, PLENTY, Place, Player, Work, attempt, enter, enter_on, play, rows, take_turns,
};
use super::{Results, Run, WARM};
use crate::cross_process::{self, Far, Wire, memory_of};
use crate::resources::allow_more_files;
use crate::subject::{Echo, Name, Subject};
use crate::subjects;
use crate::wire_subjects::{self, ENVELOPES, FLOOR, OURS, QUICK, WireSubject, on};

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

// W10: large frames on every transport of this library, and the most memory that each side needs for one.

const ASKED: &str = "RESCIND_BENCHMARK_LARGE";
/// The sizes in bytes, with the echoes of a turn. The first is W1's, on the other transports.
pub(super) const SIZES: [(&str, usize, usize); 3] =
    [("64 KiB", 64 << 10, 10), ("1 MiB", 1 << 20, 2), ("8 MiB", 8 << 20, 1)];
/// A short run leaves out sizes from here on: without optimisation they take seconds.
const LONG: usize = 8 << 20;
/// The most rounds, because a large echo takes milliseconds.
const ROUNDS: usize = 10;
/// The transports between processes.
pub(super) const WIRES_OF_LARGE: [Wire; 9] = [
    Wire::Stdio,
    Wire::ContentLength,
    Wire::NamedPipe,
    Wire::WebSocket,
    Wire::Streamable,
    Wire::Streamable2,
    Wire::Stateless,
    Wire::Stateless2,
    Wire::Acp,
];
/// Echoes behind each figure of memory.
const ECHOES: usize = 3;
/// The measures of memory of a transport between processes.
pub(super) const CLIENT: &str = "most memory, client";
pub(super) const SERVER: &str = "most memory, server";
/// The same in memory, where one process has both sides.
pub(super) const BOTH: &str = "most memory, both sides";

/// Measures the part W10.
pub(super) fn measure_large(run: &Run, results: &mut Results) {
    let run = &Run { rounds: run.rounds.min(ROUNDS), ..run.clone() };
    let sizes = SIZES.into_iter().filter(|(_, bytes, _)| !run.short || *bytes < LONG);
    for (size, bytes, count) in sizes.clone() {
        let work = Work::Echo(Echo { bytes, in_flight: 1, count: run.of(count, 1) });
        let case = Case { workload: "W10", name: size.to_owned(), slots: PLENTY, work };
        let ours = [subjects::FLOOR, subjects::rescind::COMPETITOR, subjects::rescind::QUICK];
        results.rows.extend(play(run, &case, Place::OneThread, &ours));
        for wire in WIRES_OF_LARGE {
            results.rows.extend(times_of_large(run, &case, wire));
        }
    }
    let sizes = sizes.skip(1);
    run.begin("W10: memory", (WIRES_OF_LARGE.len() + 1) * sizes.clone().count() * field().len());
    for (size, bytes, _) in sizes {
        let row =
            |place, measure, name, figure| Row::new("W10", size.to_owned(), place, measure, name, figure);
        for one in [subjects::FLOOR, subjects::rescind::COMPETITOR, subjects::rescind::QUICK] {
            let [both, _] = memory_of_large("memory", one.name, bytes);
            results.rows.push(row(Place::OneThread.name(), BOTH, one.name, both));
            run.step();
        }
        for wire in WIRES_OF_LARGE {
            for one in field() {
                let [client, server] = memory_of_large(wire.name(), one.name, bytes);
                results.rows.push(row(wire.name(), CLIENT, one.name, client));
                results.rows.push(row(wire.name(), SERVER, one.name, server));
                run.step();
            }
        }
    }
}

const fn field() -> [WireSubject; 3] {
    [ENVELOPES, OURS, QUICK]
}

fn times_of_large(run: &Run, case: &Case, wire: Wire) -> Vec<Row> {
    run.begin(&format!("W10 {}, {}", case.name, wire.name()), run.rounds + WARM);
    let (run, case) = (run.clone(), case.clone());
    Place::Pipes.run(async move {
        let mut players = Vec::new();
        for one in field() {
            players.push(Player::new(enter_on(&one, wire).await, case.work));
        }
        take_turns(&run, case.work, &mut players).await;
        players.into_iter().flat_map(|player| rows(&case, wire.name(), player)).collect()
    })
}

/// The most memory of the client and of the server while they echo texts of this size, above what they had before, as a multiple of
/// the size. The client is a process of its own too: this one keeps memory that it has used before.
fn memory_of_large(place: &str, name: Name, bytes: usize) -> [Figure; 2] {
    let number = |value: &str| match value.parse() {
        Ok(value) => Figure::Number { value, unit: "frames" },
        Err(_) => Figure::Said("not counted"),
    };
    let said = || -> Option<String> {
        let asked = format!("{place}\n{}\n{}\n{bytes}", name.library, name.configuration);
        let program = std::env::current_exe().ok()?;
        let mut command = Command::new(program);
        let ran = command.env(ASKED, asked).stdin(Stdio::null()).stderr(Stdio::inherit()).output().ok()?;
        ran.status.success().then(|| String::from_utf8_lossy(&ran.stdout).into_owned())
    };
    let said = said().unwrap_or_default();
    let mut said = said.split_whitespace().map(number);
    [(); 2].map(|()| said.next().unwrap_or(Figure::Said("not counted")))
}

/// Plays the client of [`memory`] and does not return, if this process was started for it.
///
/// # Panics
/// If there is no such subject.
pub fn play_large_if_asked() {
    let Ok(asked) = std::env::var(ASKED) else { return };
    let asked: Vec<_> = asked.split('\n').collect();
    let [place, library, configuration, bytes] = asked[..] else { panic!("it is named by four lines") };
    let bytes: usize = bytes.parse().expect("a number");
    let is_it = |name: Name| name.library == library && name.configuration == configuration;
    if place == "memory" {
        let one = subjects::all().into_iter().find(|one| is_it(one.name)).expect("one of ours");
        Place::OneThread.run(async move {
            let mut entrant = enter(&one, Place::OneThread, PLENTY).await;
            let subject = entrant.subject.as_mut().expect("it opens");
            subject.echo(Echo { bytes: 64, in_flight: 1, count: 10 }, &mut Vec::new()).await;
            // Its text stays, and is not part of what an echo needs.
            crate::generic_driver::prepare_text(bytes);
            let most = Most::begin(std::process::id());
            let echo = Echo { bytes, in_flight: 1, count: ECHOES };
            subject.echo(echo, &mut Vec::new()).await;
            println!("{} none", most.frames(bytes));
        });
    } else {
        let wire = WIRES_OF_LARGE.into_iter().find(|wire| wire.name() == place).expect("a transport");
        let one = field().into_iter().find(|one| is_it(one.name)).expect("one of ours");
        Place::Pipes.run(async move {
            let mut far = one.start(wire).await;
            let mut subject = one.open(wire, &mut far).await;
            subject.echo(Echo { bytes: 64, in_flight: 1, count: 10 }, &mut Vec::new()).await;
            wire_subjects::prepare(wire, bytes);
            let (client, server) = (Most::begin(std::process::id()), Most::begin(far.process()));
            subject.echo(Echo { bytes, in_flight: 1, count: ECHOES }, &mut Vec::new()).await;
            println!("{} {}", client.frames(bytes), server.frames(bytes));
        });
    }
    std::process::exit(0);
}

/// The most resident memory of a process from here on, above what it has now.
struct Most {
    process: u32,
    /// `None`: the system does not say, or does not forget the most so far.
    before: Option<u64>,
}

impl Most {
    fn begin(process: u32) -> Self {
        let forgot = std::fs::write(format!("/proc/{process}/clear_refs"), "5").is_ok();
        Self { process, before: memory_of(process, "VmRSS:").filter(|_| forgot) }
    }

    /// As a multiple of this size.
    fn frames(&self, bytes: usize) -> String {
        let grown = |before| Some(memory_of(self.process, "VmHWM:")?.saturating_sub(before));
        let grown = self.before.and_then(grown);
        grown.map_or("none".to_owned(), |grown| format!("{:.3}", grown as f64 / bytes as f64))
    }
}
