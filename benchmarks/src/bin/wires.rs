//! Prints what each transport adds to its floor, the time of a cancel on it, the memory of an idle connection, and
//! whether each limit is met. Exits with 1 if one is not.
//!
//! `wires [--wire NAME]... [--only echo|cancel|load|memory]... [--rounds N] [--json FILE] [--short]`; `--short` only
//! checks that everything runs. Times are measured with `--no-default-features`, because counting takes time at each
//! allocation.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use rescind_benchmarks::cross_process::{
    Far, OurClient, RESETS, Serves, Times, WARM, Wire, in_a_task, measure_echoes, median, micros,
    serve_if_asked,
};
use rescind_benchmarks::limits;
use rescind_benchmarks::resources::one_thread;
use serde_json::{Value, json};

/// Cancels of one kind before the other kind has its turn.
const CANCELS: usize = 5;
/// Frames queued before a cancel.
const AHEAD: usize = 1000;
/// Connections that are opened before memory is measured, so that the process has allocated what it needs once.
const FIRST: usize = 16;

fn main() -> ExitCode {
    serve_if_asked();
    let options = Options::parse();
    let (rounds, connections) = if options.short { (2, 20) } else { (options.rounds.into(), 1000) };
    let wires = if options.wires.is_empty() { &Wire::ALL } else { &options.wires[..] };
    let mut table = Table::new();
    for wire in wires.iter().copied() {
        let has = |part| options.parts.is_empty() || options.parts.contains(&part);
        if has(Part::Echo) || has(Part::Cancel) {
            let cancels = if has(Part::Cancel) { CANCELS } else { 0 };
            let times = in_a_task(measure_echoes(wire, rounds, cancels));
            judge_times(&times, &mut table, wire);
        }
        if has(Part::Load) {
            let load = in_a_task(under_load(wire, rounds));
            load.judge(&mut table, wire);
        }
        // A child's pipes carry one connection.
        if has(Part::Memory) && wire != Wire::Stdio {
            let grown = one_thread().block_on(idle(wire, connections));
            judge_memory(&mut table, wire, grown, connections);
        }
    }
    if let Some(file) = &options.json
        && let Err(error) = table.write(file)
    {
        eprintln!("{} could not be written: {error}", file.display());
        return ExitCode::from(2);
    }
    if options.short {
        println!("A short run shows that all of it runs; its figures mean nothing.");
    }
    if options.short || table.all_met() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The parts of the measurement of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Echo,
    Cancel,
    Load,
    Memory,
}

/// Measures what each transport adds to its floor.
#[derive(Debug, Parser)]
#[command(name = "wires", version)]
struct Options {
    /// A transport to measure. Default: all.
    #[arg(long = "wire", value_name = "NAME", value_parser = wire)]
    wires: Vec<Wire>,
    /// A part of the measurement. Default: all.
    #[arg(long = "only", value_name = "PART")]
    parts: Vec<Part>,
    /// Counted rounds.
    #[arg(long, default_value_t = 40, value_name = "N", value_parser = clap::value_parser!(u16).range(2..))]
    rounds: u16,
    /// Writes the table as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only checks that everything runs. The figures have no meaning.
    #[arg(long)]
    short: bool,
}

fn wire(name: &str) -> Result<Wire, String> {
    let wire = Wire::ALL.into_iter().find(|wire| wire.name() == name);
    wire.ok_or_else(|| format!("the transports are {}", Wire::ALL.map(Wire::name).join(", ")))
}

fn judge_times(times: &Times, table: &mut Table, wire: Wire) {
    let Times { ours, floor, over, cancel } = times;
    let name = wire.name();
    let note = format!("{ours:.2} us, floor {floor:.2} us, {:.2}x", ours / floor);
    table.judge(&format!("echo 64 B over floor, {name}"), *over, wire.echo_limit(), "us", &note);
    if let Some(limit) = wire.second_echo_limit() {
        table.judge(&format!("echo 64 B over floor, second round, {name}"), *over, limit, "us", &note);
    }
    if let Some(cancel) = cancel {
        let limit = limits::SIGNAL_ON_ONE_THREAD;
        let one_way = floor / 2.0;
        let note = format!("{cancel:.2} us, one way of the floor {one_way:.2} us");
        let over = cancel - one_way;
        table.judge(&format!("cancel to signal over one way, {name}"), over, limit, "us", &note);
    }
}

/// A single cancel, and one after [`AHEAD`] frames, in microseconds.
struct Load {
    alone: f64,
    behind: f64,
}

/// Each side runs on a separate core: on one core the server could not run before the client has written everything.
async fn under_load(wire: Wire, rounds: usize) -> Load {
    let mut far = Far::start_on_other_core(wire, Serves::Ours).await;
    let mut ours = OurClient::open(wire, &mut far).await;
    let [mut alone, mut behind]: [Vec<f64>; 2] = Default::default();
    let rounds = if wire == Wire::Stateless2 { rounds.min(RESETS / 2 - WARM) } else { rounds };
    for round in 0..rounds + WARM {
        let mut took = [0.0; 2];
        for place in [round % 2, (round + 1) % 2] {
            took[place] = micros(ours.cancel(&mut far, place * AHEAD).await);
        }
        if round >= WARM {
            alone.push(took[0]);
            behind.push(took[1]);
        }
    }
    Load { alone: median(&mut alone), behind: median(&mut behind) }
}

impl Load {
    fn judge(&self, table: &mut Table, wire: Wire) {
        let Self { alone, behind } = self;
        let note = format!("{behind:.2} us, alone {alone:.2} us; a core a side");
        let budget = format!("cancel behind {AHEAD} frames, {}", wire.name());
        table.judge(&budget, behind / alone, 2.0, "x", &note);
    }
}

/// How much the server's process grew with this many idle connections, in bytes.
async fn idle(wire: Wire, connections: usize) -> u64 {
    let mut far = Far::start(wire, Serves::Ours).await;
    let params = wire.params(64);
    let mut clients = Vec::with_capacity(FIRST + connections);
    let mut before = 0;
    for number in 0..FIRST + connections {
        if number == FIRST {
            before = far.resident();
        }
        let mut client = OurClient::open(wire, &mut far).await;
        client.echo(&params).await;
        clients.push(client);
    }
    let grown = far.resident().saturating_sub(before);
    // All of them were alive, and still are.
    for client in &mut clients {
        client.echo(&params).await;
    }
    grown
}

fn judge_memory(table: &mut Table, wire: Wire, grown: u64, connections: usize) {
    let (name, grown) = (wire.name(), grown as f64 / 1024.0);
    let limit = wire.idle_limit().unwrap_or(f64::NAN);
    let note = format!("in the server's process, each with an echo behind it; {connections} measured");
    table.judge(&format!("an idle session, {name}"), grown / connections as f64, limit, "KiB", &note);
    table.judge(&format!("{connections} idle connections, {name}"), grown / 1024.0, 64.0, "MiB", "");
}

// The table of measured values and limits.

/// Rows, printed when they are added.
#[derive(Default)]
struct Table {
    rows: Vec<Value>,
    missed: bool,
}

impl Table {
    /// Creates a table and prints its head.
    fn new() -> Self {
        print("budget", "value", "limit", "verdict", "");
        print("---", "---", "---", "---", "---");
        Self::default()
    }

    /// A limit that is NaN means that there is none yet.
    fn judge(&mut self, budget: &str, value: f64, limit: f64, unit: &str, note: &str) {
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
    const fn all_met(&self) -> bool {
        !self.missed
    }

    /// Writes the rows as JSON.
    ///
    /// # Errors
    /// If the file cannot be written.
    fn write(&self, file: &Path) -> std::io::Result<()> {
        std::fs::write(file, format!("{:#}\n", Value::Array(self.rows.clone())))
    }
}

fn print(budget: &str, value: &str, limit: &str, verdict: &str, note: &str) {
    println!("| {budget:<46} | {value:>11} | {limit:>9} | {verdict:<7} | {note}");
}
