//! `rescind matrix`: every scenario on every wire of this machine, in every dialect.

use std::io::IsTerminal;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rescind_testkit::runner::Settings;
use rescind_testkit::wires::{Program, WIRES, play_on, same_on_every_wire};
use rescind_testkit::{Cell, Report, Scenario, scenarios};
use tokio::runtime::Builder;

use crate::args::Matrix;
use crate::html::PageFile;
use crate::table::{self, Colour, View};
use crate::{Exit, Failure, output};

/// Threads that play scenarios, for each processor. Two processors play all in 62 s with 2, 26 s with 6 and 22 s with 8;
/// with 8 and another program that used both processors, every scenario still held.
const THREADS_A_PROCESSOR: usize = 6;

/// The most threads that play scenarios: each may hold programs and sockets open.
const MOST_THREADS: usize = 64;

pub(crate) fn run(args: &Matrix) -> Result<Exit, Failure> {
    let wanted: Vec<&Scenario> = scenarios().iter().filter(|scenario| is_wanted(args, scenario)).collect();
    if wanted.is_empty() {
        return Err(
            "no scenario has that dialect and name; `rescind matrix` without options runs all".to_owned()
        );
    }
    let wires: Vec<&str> =
        WIRES.into_iter().filter(|wire| args.wires.is_empty() || args.wires.contains(wire)).collect();
    let page = args.html.as_deref().map(PageFile::create).transpose()?;
    let progress = progress((wanted.len() * wires.len()) as u64);
    let cells = play(&wanted, &wires, &progress)?;
    progress.finish_and_clear();
    let report = Report::new(cells);
    let view = View { rows: args.table, reasons: args.reasons, summary: true };
    print(&report, &wires, view, args.json)?;
    if let Some(page) = page {
        page.write(&report, &wires)?;
    }
    Ok(if report.summary.broke == 0 { Exit::Held } else { Exit::Broke })
}

/// Plays the scenarios on threads with a runtime each, so that the two sides of a scenario are never on two threads. A
/// scenario mostly waits, for graces and for the absence of frames, so there are several threads for each processor.
/// The cells are in the order of the scenarios.
fn play(wanted: &[&Scenario], wires: &[&str], progress: &ProgressBar) -> Result<Vec<Cell>, Failure> {
    let program = Program::this().map_err(|error| format!("the path of this program is unknown: {error}"))?;
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = MOST_THREADS.min(THREADS_A_PROCESSOR * processors);
    let next = AtomicUsize::new(0);
    let play_rows = || {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("the runtime could not be started: {error}"))?;
        let mut rows = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(scenario) = wanted.get(index) else { return Ok(rows) };
            rows.push((index, runtime.block_on(play_row(scenario, wires, &program, progress))?));
        }
    };
    let mut rows = thread::scope(|scope| {
        let players: Vec<_> = (0..threads).map(|_| scope.spawn(play_rows)).collect();
        let played =
            players.into_iter().map(|player| player.join().unwrap_or_else(|panic| resume_unwind(panic)));
        played.collect::<Result<Vec<Vec<_>>, Failure>>()
    })?
    .concat();
    rows.sort_by_key(|(index, _)| *index);
    Ok(rows.into_iter().flat_map(|(_, row)| row).collect())
}

/// Plays one scenario on each wire and compares the outcomes.
async fn play_row(
    scenario: &Scenario,
    wires: &[&str],
    program: &Program,
    progress: &ProgressBar,
) -> Result<Vec<Cell>, Failure> {
    let settings = Settings::default();
    let mut row = Vec::new();
    for wire in wires {
        progress.set_message(format!("{} {} over {wire}", scenario.dialect, scenario.vector.name));
        row.push(play_on(wire, scenario, &settings, program).await?);
        progress.inc(1);
    }
    same_on_every_wire(scenario, &mut row);
    Ok(row)
}

/// Prints the report to stdout, or to stderr if stdout has the JSON.
pub(crate) fn print(report: &Report, wires: &[&str], view: View, json: bool) -> Result<(), Failure> {
    let terminal = if json { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() };
    let table = table::render(report, wires, view, Colour::of(terminal));
    if json {
        output::message(&table);
        let text = serde_json::to_string_pretty(report).map_err(|error| error.to_string())?;
        output::result(&format!("{text}\n"))
    } else {
        output::result(&table)
    }
}

/// A progress bar on stderr. Hidden if stderr is not a terminal.
pub(crate) fn progress(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn is_wanted(args: &Matrix, scenario: &Scenario) -> bool {
    let by_dialect =
        args.dialects.is_empty() || args.dialects.iter().any(|facts| facts.name() == scenario.dialect);
    let by_name = args.scenario.as_ref().is_none_or(|part| scenario.vector.name.contains(part.as_str()));
    by_dialect && by_name
}
