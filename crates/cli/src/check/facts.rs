//! `rescind check --facts`: lists facts about how a peer handles cancels, then plays the scenarios that apply to it.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rescind_testkit::check::{CheckSettings, PeerSource as _, check};
use rescind_testkit::{Profile, Report, scenarios_of};

use super::source::{Counts, Foreign, Source};
use super::{facts_report, junit, patience, read_profile, requests};
use crate::args::Check;
use crate::endpoint::{Endpoint, Target};
use crate::html::PageFile;
use crate::signals::stop_signal;
use crate::table::{Colour, View};
use crate::{Exit, Failure, matrix, output};

pub(super) async fn run(args: Check, target: Target) -> Result<Exit, Failure> {
    let (mut profile, base) = match &args.profile {
        Some(file) => (read_profile(file)?, folder_of(file)),
        None => (Profile::new("without a profile"), PathBuf::from(".")),
    };
    requests::add(&args, &mut profile)?;
    let names_requests = !profile.requests.is_empty();
    let mut source = Source::new(
        foreign(&args, target),
        profile,
        base,
        patience(Duration::from_millis(args.step_timeout)),
    );
    if !names_requests {
        // Only the fixture is asked for the counts of all its sessions.
        source.counts = Counts::Agent;
    }
    let page = args.html.as_deref().map(PageFile::create).transpose()?;
    let mut settings = CheckSettings::default();
    settings.deadline = Duration::from_millis(args.step_timeout);
    settings.recognise_fixture = !names_requests;
    let uses = |name: &str| !args.no_witness.iter().any(|witness| witness == name);
    (settings.progress, settings.serial, settings.processor_time) =
        (uses("progress"), uses("serial"), uses("processor"));

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

/// Writes the results to the files and in the form that were asked for.
fn write(args: &Check, report: &Report, source: &Source, page: Option<PageFile>) -> Result<(), Failure> {
    let wires = [source.wire()];
    if let Some(page) = page {
        page.write(report, &wires)?;
    }
    if let Some(file) = &args.junit {
        std::fs::write(file, junit::file(report))
            .map_err(|error| format!("the JUnit file {} could not be written: {error}", file.display()))?;
    }
    if args.json {
        let view = View { rows: true, reasons: true, summary: false };
        return matrix::print(report, &wires, view, true);
    }
    let name = source.peer.program();
    let peer = facts_report::Peer { name: &name, dialect: args.dialect, wire: source.wire() };
    output::result(&facts_report::text(report, &peer, Colour::of(std::io::stdout().is_terminal())))
}

pub(super) fn foreign(args: &Check, target: Target) -> Foreign {
    match target.endpoint {
        Endpoint::Stdio => Foreign::Program { command: args.command.clone(), framing: target.framing },
        Endpoint::Pipe(_) | Endpoint::WebSocket(_) | Endpoint::Http(_) => Foreign::Running(target),
    }
}

/// The folder of a file. A name alone is in this folder.
fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        Some(_) | None => PathBuf::from("."),
    }
}
