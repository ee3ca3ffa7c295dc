//! `rescind matrix`: every scenario on every wire of this machine, in every dialect.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rescind_testkit::runner::{Outcomes, Settings, differences};
use rescind_testkit::{Cell, CellOutcome, Report, Scenario, scenarios};

use crate::args::{Matrix, WIRES};
use crate::html::PageFile;
use crate::table::{self, Colour};
use crate::{Exit, Failure, wires};

pub(crate) async fn run(args: Matrix) -> Result<Exit, Failure> {
    let wanted: Vec<&Scenario> = scenarios().iter().filter(|scenario| is_wanted(&args, scenario)).collect();
    if wanted.is_empty() {
        return Err(
            "no scenario has that dialect and name; `rescind matrix` without options runs all".to_owned()
        );
    }
    let wires: Vec<&str> =
        WIRES.into_iter().filter(|wire| args.wires.is_empty() || args.wires.contains(wire)).collect();
    let page = args.html.as_deref().map(PageFile::create).transpose()?;
    let progress = progress((wanted.len() * wires.len()) as u64);
    let mut cells = Vec::new();
    for scenario in wanted {
        let mut row = Vec::new();
        for wire in &wires {
            progress.set_message(format!("{} {} over {wire}", scenario.dialect, scenario.vector.name));
            row.push(wires::play_on(wire, scenario, &Settings::default()).await?);
            progress.inc(1);
        }
        same_on_every_wire(scenario, &mut row);
        cells.append(&mut row);
    }
    progress.finish_and_clear();
    let report = Report::new(cells);
    print(&report, &wires, args.json)?;
    if let Some(page) = page {
        page.write(&report, &wires)?;
    }
    Ok(if report.summary.broke == 0 { Exit::Held } else { Exit::Broke })
}

/// Where a scenario held on several wires its outcomes are literally the same (I15); a wire with others broke.
fn same_on_every_wire(scenario: &Scenario, row: &mut [Cell]) {
    let held: Vec<(&str, &Outcomes)> = row
        .iter()
        .filter(|cell| cell.outcome == CellOutcome::Held)
        .map(|cell| (cell.wire.as_str(), &cell.outcomes))
        .collect();
    let told: Vec<(String, String)> =
        differences(scenario, &held).into_iter().map(|(wire, why)| (wire.to_owned(), why)).collect();
    for (wire, why) in told {
        for cell in row.iter_mut().filter(|cell| cell.wire == wire) {
            cell.outcome = CellOutcome::Broke;
            cell.why.clone_from(&why);
        }
    }
}

/// Prints the table to stdout, or to stderr beside the JSON.
pub(crate) fn print(report: &Report, wires: &[&str], json: bool) -> Result<(), Failure> {
    let terminal = if json { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() };
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colour = if terminal && !plain { Colour::On } else { Colour::Off };
    let table = table::render(report, wires, colour);
    if json {
        eprint!("{table}");
        let text = serde_json::to_string_pretty(report).map_err(|error| error.to_string())?;
        println!("{text}");
    } else {
        print!("{table}");
    }
    Ok(())
}

/// A bar on stderr; nothing where stderr is no terminal.
pub(crate) fn progress(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn is_wanted(args: &Matrix, scenario: &Scenario) -> bool {
    let by_dialect = args.dialects.is_empty() || args.dialects.contains(&scenario.dialect);
    let by_name = args.scenario.as_ref().is_none_or(|part| scenario.vector.name.contains(part.as_str()));
    by_dialect && by_name
}
