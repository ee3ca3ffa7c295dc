//! `rescind check`: says what an agent or server of another project does when a request is cancelled, fact by fact, and
//! plays the scenarios that apply to it.

mod advice;
mod init;
mod junit;
mod problem_matcher;
mod report;
mod requests;
mod scratch;
mod source;
mod talk;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rescind::dialect::Dialect;
use rescind_testkit::check::{CheckSettings, PeerSource as _, check};
use rescind_testkit::{Profile, Report, scenarios_of};

pub(crate) use self::report::shown;
use self::source::{Counts, Foreign, Source};
use crate::args::Check;
use crate::endpoint::{Endpoint, Side, Target};
use crate::html::PageFile;
use crate::serving::stop_signal;
use crate::table::{Colour, View};
use crate::{Exit, Failure, matrix, output};

pub(crate) async fn run(args: Check) -> Result<Exit, Failure> {
    let patience = patience(Duration::from_millis(args.step_timeout));
    let peer = foreign(&args, target(&args)?);
    if args.init {
        return tokio::select! {
            written = init::run(&args, peer, patience) => written.map(|()| Exit::Held),
            () = stop_signal() => Err("the peer was stopped before the profile was written".to_owned()),
        };
    }
    let (mut profile, base) = match &args.profile {
        Some(file) => (read_profile(file)?, folder_of(file)),
        None => (Profile::new("without a profile"), PathBuf::from(".")),
    };
    requests::add(&args, &mut profile)?;
    let settings = settings(&args, &profile);
    let mut source = Source::new(peer, profile, base, patience);
    if settings.recognise_fixture {
        // Only the fixture is asked for the counts of all its sessions.
        source.counts = Counts::Agent;
    }
    let page = args.html.as_deref().map(PageFile::create).transpose()?;
    if let Some(file) = &args.problem_matcher {
        problem_matcher::write(file)?;
    }
    let progress = matrix::progress(scenarios_of(args.dialect).count() as u64);
    let step = |what: &str| {
        progress.set_message(what.to_owned());
        progress.inc(1);
    };
    // The peer leads a separate process group, so it does not receive signals to this one.
    let checked = tokio::select! {
        checked = check(args.dialect, &mut source, &settings, step) => checked,
        () = stop_signal() => return Err("the check was interrupted, and the peer was stopped".to_owned()),
    };
    progress.finish_and_clear();
    let report = checked.map_err(|why| source.failure(&why.to_string()))?;
    write(&args, &report, &source, page)?;
    let deviates = args.strict && report.summary.deviations > 0;
    let is_sound = report.summary.broke == 0 && report.summary.faults == 0 && !deviates;
    Ok(if is_sound { Exit::Held } else { Exit::Broke })
}

fn settings(args: &Check, profile: &Profile) -> CheckSettings {
    let uses = |name: &str| !args.no_witness.iter().any(|witness| witness == name);
    let mut settings = CheckSettings::default();
    settings.deadline = Duration::from_millis(args.step_timeout);
    settings.start = Duration::from_millis(args.start_timeout);
    settings.recognise_fixture = profile.requests.is_empty();
    settings.progress = uses("progress");
    settings.serial = uses("serial");
    settings.processor_time = uses("processor");
    settings.command = uses("command");
    settings.request = uses("request");
    settings
}

/// Writes the results to the files and in the form that were asked for.
fn write(args: &Check, results: &Report, source: &Source, page: Option<PageFile>) -> Result<(), Failure> {
    let wires = [source.wire()];
    if let Some(page) = page {
        page.write(results, &wires)?;
    }
    if let Some(file) = &args.junit {
        std::fs::write(file, junit::file(results))
            .map_err(|error| format!("the JUnit file {} could not be written: {error}", file.display()))?;
    }
    if args.json {
        let view = View { rows: true, reasons: true, summary: false };
        return matrix::print(results, &wires, view, true);
    }
    let name = source.peer.program();
    let peer = report::Peer { name: &name, dialect: args.dialect, wire: source.wire() };
    output::result(&report::text(results, &peer, Colour::of(std::io::stdout().is_terminal())))
}

fn foreign(args: &Check, target: Target) -> Foreign {
    match target.endpoint {
        Endpoint::Stdio => Foreign::Program { command: args.command.clone(), framing: target.framing },
        Endpoint::Pipe(_) | Endpoint::WebSocket(_) | Endpoint::Http(_) => Foreign::Running(target),
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

fn read_profile(file: &Path) -> Result<Profile, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("the profile {} could not be read: {error}", file.display()))?;
    Profile::from_toml(&text)
        .map_err(|error| format!("the profile {} is not as it should be: {error}", file.display()))
}

/// The folder of a file. A name alone is in this folder.
fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        Some(_) | None => PathBuf::from("."),
    }
}
