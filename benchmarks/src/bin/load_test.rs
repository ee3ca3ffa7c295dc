//! Holds many sessions on one server in another process, each with a request a second and every tenth cancelled, and prints the
//! times of echoes, processor time, memory, and what was lost. Exits with 1 if anything was lost.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use rescind_benchmarks::cross_process::{Wire, serve_if_asked};
use rescind_benchmarks::harness::Distribution;
use rescind_benchmarks::load_test::{Held, Load, chart, play};
use rescind_benchmarks::report::{machine_line, shown};
use rescind_benchmarks::resources::{allow_more_files, one_thread, pinned};

/// Holds many sessions on one server.
#[derive(Debug, Parser)]
#[command(name = "load_test", version)]
struct Options {
    /// The transport: all of `wires` except stdio.
    #[arg(long, default_value = "websocket", value_name = "NAME", value_parser = wire)]
    wire: Wire,
    /// Sessions.
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=50_000))]
    sessions: u64,
    /// Seconds.
    #[arg(long, default_value_t = 60, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Writes the figures as JSON, for `report --load`.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws each second.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn wire(name: &str) -> Result<Wire, String> {
    let all = Wire::ALL.into_iter().filter(|wire| *wire != Wire::Stdio);
    let found = all.clone().find(|wire| wire.name() == name);
    found.ok_or_else(|| format!("the transports are {}", all.map(Wire::name).collect::<Vec<_>>().join(", ")))
}

fn main() -> ExitCode {
    serve_if_asked();
    let Options { wire, sessions, seconds, json, svg } = Options::parse();
    allow_more_files();
    let load = Load { wire, sessions, seconds };
    let held = pinned(|| one_thread().block_on(play(load)));
    print(&held);
    let json = json.map(|file| (file, format!("{:#}\n", held.to_json())));
    let svg = svg.map(|file| (file, chart(&held)));
    for (file, text) in json.into_iter().chain(svg) {
        if let Err(error) = std::fs::write(&file, text) {
            eprintln!("{} could not be written: {error}", file.display());
            return ExitCode::from(2);
        }
    }
    if held.lost_nothing() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(held: &Held) {
    let Load { wire, sessions, seconds } = held.load;
    println!("{sessions} sessions over {} for {seconds} s. {}", wire.name(), machine_line());
    times("an echo", held.echo.as_ref());
    times("calls begun late by", held.begun_late.as_ref());
    let (begun, answered, failed) = held.echoes;
    println!("echoes: {begun} begun, {answered} answered, {failed} failed");
    let (cancelled, returned, signalled) = held.cancels;
    println!(
        "cancels: {cancelled} made, {returned} calls returned, {signalled} handlers signalled, {} still running",
        held.running
    );
    let mean = |value: fn(&rescind_benchmarks::load_test::Second) -> f64| {
        held.seconds.iter().map(value).sum::<f64>() / held.seconds.len().max(1) as f64
    };
    println!(
        "server: {:.0} % of a core; all clients: {:.0} %",
        mean(|one| one.server),
        mean(|one| one.clients)
    );
    let most = held.seconds.iter().map(|second| second.resident).max().unwrap_or_default();
    let (empty, full) = held.resident;
    println!(
        "the server's memory: {} empty, {} with idle sessions ({} each), {} at most",
        shown(empty as f64, "B"),
        shown(full as f64, "B"),
        shown((full.saturating_sub(empty)) as f64 / sessions as f64, "B"),
        shown(most as f64, "B"),
    );
    println!("{}", if held.lost_nothing() { "nothing was lost" } else { "LOST: see above" });
}

fn times(what: &str, times: Option<&Distribution>) {
    let Some(times) = times else { return println!("{what}: none") };
    let at = |value: Option<u64>| value.map_or("-".to_owned(), |value| shown(value as f64, "ns"));
    println!(
        "{what}: median {}, p99 {}, p99.9 {}, most {}",
        at(Some(times.p50)),
        at(times.p99),
        at(times.p999),
        at(Some(times.max)),
    );
}
