//! `rescind matrix`: every scenario on every wire of this machine, in every dialect.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rescind_testkit::runner::Settings;
use rescind_testkit::wires::{Program, WIRES, play_on, same_on_every_wire};
use rescind_testkit::{Report, Scenario, scenarios};

use crate::args::Matrix;
use crate::html::PageFile;
use crate::table::{self, Colour, View};
use crate::{Exit, Failure, output};

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
    let settings = Settings::default();
    let program = Program::this().map_err(|error| format!("the path of this program is unknown: {error}"))?;
    let mut cells = Vec::new();
    for scenario in wanted {
        let mut row = Vec::new();
        for wire in &wires {
            progress.set_message(format!("{} {} over {wire}", scenario.dialect, scenario.vector.name));
            row.push(play_on(wire, scenario, &settings, &program).await?);
            progress.inc(1);
        }
        same_on_every_wire(scenario, &mut row);
        cells.append(&mut row);
    }
    progress.finish_and_clear();
    let report = Report::new(cells);
    let view = View { rows: args.table, reasons: args.reasons, summary: true };
    print(&report, &wires, view, args.json)?;
    if let Some(page) = page {
        page.write(&report, &wires)?;
    }
    Ok(if report.summary.broke == 0 { Exit::Held } else { Exit::Broke })
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
    let by_dialect = args.dialects.is_empty() || args.dialects.contains(&scenario.dialect);
    let by_name = args.scenario.as_ref().is_none_or(|part| scenario.vector.name.contains(part.as_str()));
    by_dialect && by_name
}
