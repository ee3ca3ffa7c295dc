//! `rescind check`: what can be asked of somebody else's agent, asked.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use rescind::stdio::{ChildHandle, Command};
use rescind::{BoxFuture, Framing, Link};
use rescind_testkit::runner::{LinkSubject, Settings, play};
use rescind_testkit::{Cell, CellOutcome, Part, Profile, Report, Scenario, scenarios_of};

use crate::args::Check;
use crate::fixture::framing_named;
use crate::{Exit, Failure, matrix, table};

pub(crate) async fn run(args: Check) -> Result<Exit, Failure> {
    let profile = match &args.profile {
        Some(file) => Some(read_profile(file)?),
        None => None,
    };
    let dialect = rescind::dialect::Dialect::by_name(args.dialect).ok_or("there is no such dialect")?;
    let framing = match &args.framing {
        Some(name) => framing_named(name),
        None => dialect.rules().framing,
    };
    let peer = Foreign { command: args.command.clone(), framing };
    // Whether it can be started at all is a matter of usage, not of a scenario.
    peer.try_start().await?;
    let mut settings = Settings::default();
    settings.deadline = Duration::from_millis(args.step_timeout);
    settings.profile = profile;
    let asked: Vec<&Scenario> =
        scenarios_of(args.dialect).filter(|scenario| scenario.vector.role == Part::Serve).collect();
    let progress = matrix::progress(asked.len() as u64);
    let mut cells = Vec::new();
    for scenario in asked {
        progress.set_message(scenario.vector.name.clone());
        let mut subject = peer.subject();
        let played = play(scenario, &mut subject, &settings).await;
        cells.push(Cell::new(scenario, "stdio", played));
        progress.inc(1);
    }
    progress.finish_and_clear();
    let report = Report::new(cells);
    if args.json {
        matrix::print(&report, &["stdio"], true)?;
    } else {
        print!("{}", lines(&report));
    }
    Ok(if report.summary.broke == 0 { Exit::Held } else { Exit::Broke })
}

/// A peer that is started anew for each scenario.
struct Foreign {
    command: Vec<String>,
    framing: Framing,
}

impl Foreign {
    fn start(&self) -> Result<(Link, ChildHandle), String> {
        let (program, arguments) =
            self.command.split_first().ok_or("give the command of the peer after `--`")?;
        Command::new(program)
            .args(arguments)
            .framing(self.framing)
            .child_kill_grace(Duration::from_millis(500))
            .start()
            .map_err(|error| error.to_string())
    }

    async fn try_start(&self) -> Result<(), Failure> {
        let (link, child) = self.start()?;
        drop(link);
        let _ended = child.wait().await;
        Ok(())
    }

    fn subject(&self) -> LinkSubject {
        let peer = Self { command: self.command.clone(), framing: self.framing };
        let connect = move || -> BoxFuture<'static, Result<Link, String>> {
            let started = peer.start().map(|(link, _child)| link);
            Box::pin(async move { started })
        };
        LinkSubject::new(Box::new(connect)).with_half_close()
    }
}

fn read_profile(file: &Path) -> Result<Profile, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("the profile {} could not be read: {error}", file.display()))?;
    Profile::from_toml(&text)
        .map_err(|error| format!("the profile {} is not as it should be: {error}", file.display()))
}

/// The report for people: each scenario with its source, whether it held, and what went over the wire if not.
fn lines(report: &Report) -> String {
    let mut text = String::new();
    for cell in &report.cells {
        let word = match cell.outcome {
            CellOutcome::Held => "held     ",
            CellOutcome::Broke => "broke    ",
            CellOutcome::NotAsked => "not asked",
        };
        let source = cell.sources.first().map_or("", String::as_str);
        let _ = writeln!(text, "{word}  {}: {source}", cell.scenario);
        if !cell.why.is_empty() {
            let _ = writeln!(text, "           {}", cell.why);
        }
        if cell.outcome != CellOutcome::NotAsked {
            for line in &cell.trace {
                let _ = writeln!(text, "             {} {}", table::arrow(line.direction), line.text);
            }
        }
    }
    let summary = report.summary;
    let _ = writeln!(text, "{} held, {} broke, {} not asked", summary.held, summary.broke, summary.not_asked);
    text
}
