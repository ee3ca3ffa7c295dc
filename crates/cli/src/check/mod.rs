//! `rescind check`: plays the scenarios against an agent or server of another project.

mod advice;
mod facts;
mod facts_report;
mod init;
mod junit;
mod peer;
mod requests;
mod scratch;
mod source;
mod talk;

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rescind::dialect::Dialect;
use rescind_testkit::runner::{Direction, Played, Settings, Verdict, play};
use rescind_testkit::{
    Cell, CellOutcome, HandshakeMode, Part, Profile, Report, Scenario, Summary, scenarios_of,
};

pub(crate) use self::facts_report::shown;
use self::peer::{Counts, Foreign, LastChild};
use crate::args::Check;
use crate::endpoint::{Endpoint, Side, Target};
use crate::html::PageFile;
use crate::signals::stop_signal;
use crate::table::View;
use crate::{Exit, Failure, matrix, output, table};

pub(crate) async fn run(args: Check) -> Result<Exit, Failure> {
    if args.init {
        let peer = facts::foreign(&args, target(&args)?);
        let patience = patience(Duration::from_millis(args.step_timeout));
        return tokio::select! {
            written = init::run(&args, peer, patience) => written.map(|()| Exit::Held),
            () = stop_signal() => Err("the peer was stopped before the profile was written".to_owned()),
        };
    }
    if args.facts {
        let target = target(&args)?;
        return Box::pin(facts::run(args, target)).await;
    }
    // A foreign peer may use other values and messages. Only `matrix` compares every byte, with our own fixture.
    let profile = match &args.profile {
        Some(file) => read_profile(file)?,
        None => {
            Profile::fixture().map_err(|error| format!("the fixture's own profile is broken: {error}"))?
        }
    };
    let peer = foreign(&args)?;
    let patience = patience(Duration::from_millis(args.step_timeout));
    peer.try_open(patience).await?;
    let page = args.html.as_deref().map(PageFile::create).transpose()?;
    let mut settings = Settings::default();
    settings.deadline = Duration::from_millis(args.step_timeout);
    settings.profile = Some(profile);
    let asked: Vec<&Scenario> =
        scenarios_of(args.dialect).filter(|scenario| scenario.vector.role == Part::Serve).collect();
    // The peer leads a separate process group, so it does not receive signals to this one.
    let (report, silent) = tokio::select! {
        played = play_all(&asked, &peer, &settings) => played?,
        () = stop_signal() => return Err("the check was interrupted, and the peer was stopped".to_owned()),
    };
    let wires = [peer.wire()];
    if let Some(page) = page {
        page.write(&report, &wires)?;
    }
    if args.json {
        let view = View { rows: true, reasons: true, summary: false };
        matrix::print(&report, &wires, view, true)?;
    } else {
        output::result(&lines(&report))?;
    }
    match silent.silent_exit(&peer, report.summary) {
        Some(words) => Err(words),
        None if report.summary.broke == 0 => Ok(Exit::Held),
        None => Ok(Exit::Broke),
    }
}

/// How long a peer may take to start or connect: the time of a step, but at least the default one.
fn patience(step: Duration) -> Duration {
    step.max(Duration::from_secs(5))
}

/// Where the peer is.
fn target(args: &Check) -> Result<Target, Failure> {
    let dialect = Dialect::by_name(args.dialect).ok_or("there is no such dialect")?;
    if args.endpoint.is_none() && args.command.is_empty() {
        return Err("there is no peer to check; give the ENDPOINT of one that runs (pipe:PATH-OR-NAME, ws://.., http://..), \
                    or the COMMAND that starts it after `--`"
            .to_owned());
    }
    let endpoint = args.endpoint.clone().unwrap_or(Endpoint::Stdio);
    if args.endpoint == Some(Endpoint::Stdio) {
        return Err("stdio is an endpoint of `fixture` only; give the peer's command after `--`".to_owned());
    }
    Target::new(endpoint, &dialect, args.flags(), Side::Client)
}

fn foreign(args: &Check) -> Result<Foreign, Failure> {
    let target = target(args)?;
    Ok(match target.endpoint {
        Endpoint::Stdio => Foreign::Program { command: args.command.clone(), framing: target.framing },
        Endpoint::Pipe(_) | Endpoint::WebSocket(_) | Endpoint::Http(_) => {
            let counts = if args.profile.is_some() { Counts::Unknown } else { Counts::Agent };
            Foreign::Running(target, counts)
        }
    })
}

/// # Errors
/// If no connection to the peer could be opened.
async fn play_all(
    asked: &[&Scenario],
    peer: &Foreign,
    settings: &Settings,
) -> Result<(Report, Openings), Failure> {
    let progress = matrix::progress(asked.len() as u64);
    let mut openings = Openings::default();
    let mut cells = Vec::new();
    for scenario in asked {
        progress.set_message(scenario.vector.name.clone());
        cells.push(if let Some(why) = openings.cannot_open(settings.deadline) {
            Cell::not_asked(scenario, peer.wire(), why)
        } else {
            let begun = Instant::now();
            let (mut subject, child) = peer.subject(patience(settings.deadline));
            let played = play(scenario, &mut subject, settings).await;
            openings.note(scenario, &played, &child, begun.elapsed());
            // Some transports connect only when something is sent.
            if let Some(why) = subject.unreached().filter(|_| !openings.opened) {
                progress.finish_and_clear();
                return Err(peer.out_of_reach(why));
            }
            // Dropping the subject ends a program. A running peer must see the connection close, or it would keep the
            // session.
            if peer.program().is_none() {
                subject.leave().await;
            }
            Cell::new(scenario, peer.wire(), played)
        });
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok((Report::new(cells), openings))
}

/// Whether sessions with the peer can be opened.
#[derive(Default)]
struct Openings {
    /// Whether it has opened a session.
    opened: bool,
    /// The number of failed openings, and the time they took.
    failed: usize,
    spent: Duration,
    /// Why the last one failed.
    why: String,
    /// How the process of the last failed opening ended.
    exit: Option<String>,
    spoke: bool,
}

/// The number of failed openings from which on the peer counts as unusable. Fewer may be chance.
const MAX_FAILED_OPENINGS: usize = 3;

impl Openings {
    fn note(&mut self, scenario: &Scenario, played: &Played, child: &LastChild, took: Duration) {
        self.spoke |= played.trace.iter().any(|line| line.direction == Direction::Received);
        match &played.verdict {
            Verdict::NotAsked { .. } | Verdict::Unsure { .. } => {}
            Verdict::Broke { why, step, .. }
                if *step == 0 || scenario.vector.handshake == HandshakeMode::None =>
            {
                self.failed += 1;
                self.spent += took;
                self.why.clone_from(why);
                self.exit = child.exit_report();
            }
            // A pass of a scenario without a session says nothing about sessions.
            Verdict::Held if scenario.vector.handshake == HandshakeMode::None => {}
            Verdict::Broke { .. } | Verdict::Held => self.opened = true,
        }
    }

    /// Why the other scenarios are not played: each would take a deadline and show nothing new.
    fn cannot_open(&self, deadline: Duration) -> Option<String> {
        let cannot_open = !self.opened && self.failed >= MAX_FAILED_OPENINGS && self.spent >= deadline;
        cannot_open.then(|| {
            format!("no session could be opened in {} scenarios; in the last: {}", self.failed, self.why)
        })
    }

    /// The failure of a peer that always ended before it sent a message.
    fn silent_exit(&self, peer: &Foreign, summary: Summary) -> Option<Failure> {
        let (program, exit) = (peer.program()?, self.exit.as_ref()?);
        let only_ended = !self.opened && !self.spoke && summary.held == 0;
        only_ended.then(|| {
            format!("`{program}` starts and ends before it has sent a message, see whether it runs by hand: {exit}")
        })
    }
}

fn read_profile(file: &Path) -> Result<Profile, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("the profile {} could not be read: {error}", file.display()))?;
    Profile::from_toml(&text)
        .map_err(|error| format!("the profile {} is not as it should be: {error}", file.display()))
}

/// The report as text: each scenario with its source and its outcome, and the frames of those that failed.
fn lines(report: &Report) -> String {
    let mut text = String::new();
    for cell in &report.cells {
        let word = match cell.outcome {
            CellOutcome::Held => "held     ",
            CellOutcome::Broke => "broke    ",
            CellOutcome::Unsure => "unsure   ",
            CellOutcome::NotAsked => "not asked",
        };
        let source = cell.sources.first().map_or("", String::as_str);
        let _ = writeln!(text, "{word}  {}: {source}", cell.scenario);
        if !cell.why.is_empty() {
            let _ = writeln!(text, "           {}", shown(&cell.why));
        }
        if cell.outcome != CellOutcome::NotAsked {
            for line in &cell.trace {
                let _ = writeln!(text, "             {} {}", table::arrow(line.direction), shown(&line.text));
            }
        }
    }
    let summary = report.summary;
    let _ = writeln!(text, "{} held, {} broke, {} not asked", summary.held, summary.broke, summary.not_asked);
    text
}
