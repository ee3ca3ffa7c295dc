//! The matrix as tests: one for each scenario, dialect and wire, named `dialect::scenario::wire`.
//!
//! Each holds on its wire, and its outcomes are literally those of the in-memory wire (I15) if that can be asked. What a wire cannot be
//! asked is shown as ignored, with the reason in its name.
//! `cargo test -p rescind-cli --test matrix lsp::cancel` runs those whose name has that.

use std::error::Error;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use rescind_testkit::runner::Settings;
use rescind_testkit::wires::{Program, WIRES, not_asked, play_on, same_on_every_wire};
use rescind_testkit::{Cell, CellOutcome, Scenario, scenarios};

/// What the others are compared with.
const FIRST: &str = WIRES[0];

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for scenario in scenarios() {
        for wire in WIRES {
            trials.push(trial(scenario, wire)?);
        }
    }
    Ok(libtest_mimic::run(&arguments, trials).exit_code())
}

fn trial(scenario: &'static Scenario, wire: &'static str) -> Result<Trial, String> {
    let name = format!("{}::{}::{wire}", scenario.dialect, scenario.vector.name);
    Ok(match not_asked(wire, scenario)? {
        Some(why) => Trial::test(format!("{name} ({why})"), || Ok(())).with_ignored_flag(true),
        None => Trial::test(name, move || holds(scenario, wire)),
    })
}

fn holds(scenario: &Scenario, wire: &str) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut row = Vec::new();
        // A vector about another kind of wire has nothing to be compared with.
        if wire != FIRST && not_asked(FIRST, scenario)?.is_none() {
            row.push(play(scenario, FIRST).await?);
        }
        row.push(play(scenario, wire).await?);
        same_on_every_wire(scenario, &mut row);
        match row.iter().find(|cell| cell.outcome != CellOutcome::Held) {
            Some(cell) => Err(told(scenario, wire, cell).into()),
            None => Ok(()),
        }
    })
}

async fn play(scenario: &Scenario, wire: &str) -> Result<Cell, Failed> {
    let program = Program::new(env!("CARGO_BIN_EXE_rescind"));
    Ok(play_on(wire, scenario, &Settings::default(), &program).await?)
}

/// What went wrong and which invariants it is evidence for, with everything that was sent and received, and how to run it again.
fn told(scenario: &Scenario, wire: &str, cell: &Cell) -> String {
    let frames = cell.trace.iter().map(|line| format!("\n    {:?} {}", line.direction, line.text));
    let covers = scenario.vector.covers.join(", ");
    let name = format!("{}::{}::{wire}", scenario.dialect, scenario.vector.name);
    format!(
        "about {covers}, over {}: {:?}: {}{}\nto run it again: cargo test -p rescind-cli --test matrix -- --exact {name}",
        cell.wire,
        cell.outcome,
        cell.why,
        frames.collect::<String>()
    )
}
