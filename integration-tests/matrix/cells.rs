//! The matrix as tests: one for each scenario, dialect and wire, named `dialect::scenario::wire`. On some wires each
//! scenario is also played with a fixture whose handlers are all quick (`Router::quick`), named
//! `dialect::scenario::wire::quick`.
//!
//! Each scenario must pass on its wire, with the same outcomes as on the in-memory wire (I15), if it can be played
//! there. A scenario that a wire does not support is not a test: one line on stderr for each reason shows how many
//! there are. A debug build plays each scenario on a third of the wires, never on three replicas, and says so.
//! `rescind matrix` plays all of them, and `cargo test --release -p rescind-cli --test matrix` those with quick handlers too.
//! `cargo test -p rescind-cli --test matrix lsp::cancel` plays the tests with `lsp::cancel` in their name.

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::thread::available_parallelism;

use libtest_mimic::{Arguments, Failed, Trial};
use rescind_testkit::runner::Settings;
use rescind_testkit::wires::{Program, WIRES, not_asked, play_on, same_on_every_wire};
use rescind_testkit::{Cell, CellOutcome, Scenario, scenarios};

/// The wire with which the others are compared.
const FIRST: &str = WIRES[0];

/// The wires on which each scenario is also played with quick handlers: the answer of such a handler may be ready
/// before the requests behind it are written or read, in memory, on a stream, and on each exchange of HTTP.
const QUICK_WIRES: [&str; 4] = ["memory", "websocket", "http-streamable", "http-stateless"];

/// Why a debug build does not play each cell.
const IN_RELEASE: &str = "a debug build leaves them to this test in a release build; `rescind matrix` plays all but those with quick handlers";

/// How the fixture registers its handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handlers {
    Tasks,
    Quick,
}

/// The result of a scenario on [`FIRST`]: played once, compared with each other wire.
type Once = Arc<OnceLock<Result<Cell, String>>>;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let program = Program::new(env!("CARGO_BIN_EXE_rescind"));
    let plays = if cfg!(debug_assertions) { plays_in_debug } else { |_: &str, _: usize| true };
    let (trials, not_made) = trials(scenarios(), program, plays)?;
    for (why, cells) in not_made {
        eprintln!("matrix: {cells} cells are not asked: {why}");
    }
    Ok(libtest_mimic::run(&arguments(), trials).exit_code())
}

pub(crate) fn arguments() -> Arguments {
    let mut arguments = Arguments::from_args();
    // A scenario mostly waits, for graces and for the absence of frames.
    arguments.test_threads =
        arguments.test_threads.or_else(|| Some(64.min(12 * available_parallelism().ok()?.get())));
    arguments
}

/// Each scenario has a third of the wires, and each wire a third of the scenarios. Those of three replicas start three
/// processes each.
fn plays_in_debug(wire: &str, scenario: usize) -> bool {
    let position = WIRES.iter().position(|it| *it == wire).unwrap_or_default();
    !wire.ends_with("@3") && (position + scenario).is_multiple_of(3)
}

/// The tests of these scenarios, and how many cells are left out for which reason. `plays` is asked about each wire and
/// the number of the scenario. `program` is that of the wires.
pub(crate) fn trials(
    scenarios: &'static [Scenario],
    program: Program,
    plays: fn(&str, usize) -> bool,
) -> Result<(Vec<Trial>, BTreeMap<&'static str, usize>), String> {
    let program = Arc::new(program);
    let mut trials = Vec::new();
    let mut not_made: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, scenario) in scenarios.iter().enumerate() {
        let first = Once::default();
        let tasks = WIRES.map(|wire| (wire, Handlers::Tasks));
        let quick = QUICK_WIRES.map(|wire| (wire, Handlers::Quick));
        for (wire, handlers) in tasks.into_iter().chain(quick) {
            let why = not_asked(wire, scenario)?;
            match why.or_else(|| (!plays(wire, number)).then_some(IN_RELEASE)) {
                Some(why) => *not_made.entry(why).or_default() += 1,
                None => trials.push(trial(scenario, wire, handlers, &first, &program)),
            }
        }
    }
    Ok((trials, not_made))
}

fn trial(
    scenario: &'static Scenario,
    wire: &'static str,
    handlers: Handlers,
    first: &Once,
    program: &Arc<Program>,
) -> Trial {
    let name = name(scenario, wire, handlers);
    let (first, program) = (Arc::clone(first), Arc::clone(program));
    Trial::test(name, move || holds(scenario, wire, handlers, &first, &program))
}

fn name(scenario: &Scenario, wire: &str, handlers: Handlers) -> String {
    let quick = match handlers {
        Handlers::Tasks => "",
        Handlers::Quick => "::quick",
    };
    format!("{}::{}::{wire}{quick}", scenario.dialect, scenario.vector.name)
}

fn holds(
    scenario: &Scenario,
    wire: &str,
    handlers: Handlers,
    first: &OnceLock<Result<Cell, String>>,
    program: &Program,
) -> Result<(), Failed> {
    let mut row = Vec::new();
    // A vector for another kind of wire has no comparison.
    if not_asked(FIRST, scenario)?.is_none() {
        row.push(first.get_or_init(|| play(scenario, FIRST, program)).clone()?);
    }
    match handlers {
        Handlers::Tasks if wire == FIRST => {}
        Handlers::Tasks => row.push(play(scenario, wire, program)?),
        Handlers::Quick => {
            let mut quick = scenario.clone();
            quick.vector.options.quick_handlers = Some(true);
            let mut cell = play(&quick, wire, program)?;
            cell.wire.push_str(", quick handlers");
            row.push(cell);
        }
    }
    same_on_every_wire(scenario, &mut row);
    match row.iter().find(|cell| cell.outcome != CellOutcome::Held) {
        Some(cell) => Err(reported(scenario, &name(scenario, wire, handlers), cell).into()),
        None => Ok(()),
    }
}

fn play(scenario: &Scenario, wire: &str, program: &Program) -> Result<Cell, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(play_on(wire, scenario, &Settings::default(), program))
}

/// The failure, the invariants that the scenario covers, everything that was sent and received, and the command that
/// runs it again.
fn reported(scenario: &Scenario, name: &str, cell: &Cell) -> String {
    let frames = cell.trace.iter().map(|line| format!("\n    {:?} {}", line.direction, line.text));
    let covers = scenario.vector.covers.join(", ");
    format!(
        "about {covers}, over {}: {:?}: {}{}\nto run it again: cargo test{} -p rescind-cli --test {} -- --exact {name}",
        cell.wire,
        cell.outcome,
        cell.why,
        frames.collect::<String>(),
        if cfg!(debug_assertions) { "" } else { " --release" },
        env!("CARGO_CRATE_NAME"),
    )
}
