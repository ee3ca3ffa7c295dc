//! `rescind check`: says what an agent or server of another project does when a request is cancelled, fact by fact, and
//! plays the scenarios that apply to it.

mod init;
mod report;
mod source;
mod talk;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rescind_check::{CheckSettings, PeerSource as _, check};
use rescind_testkit::dialects::ProgressForm;
use rescind_testkit::{Profile, ProfileRequest, Report, RequestKind, scenarios_of};
use serde_json::{Value, json};

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
    add_requests(&args, &mut profile)?;
    let settings = settings(&args, &profile);
    let mut source = Source::new(peer, profile, base, patience);
    if settings.recognise_fixture {
        // Only the fixture is asked for the counts of all its sessions.
        source.counts = Counts::Agent;
    }
    let page = args.html.as_deref().map(PageFile::create).transpose()?;
    if let Some(file) = &args.problem_matcher {
        report::write_problem_matcher(file)?;
    }
    let progress = matrix::progress(scenarios_of(args.dialect.name()).count() as u64);
    let step = |what: &str| {
        progress.set_message(what.to_owned());
        progress.inc(1);
    };
    // The peer leads a separate process group, so it does not receive signals to this one.
    let checked = tokio::select! {
        checked = check(args.dialect.name(), &mut source, &settings, step) => checked,
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
        std::fs::write(file, report::junit(results))
            .map_err(|error| format!("the JUnit file {} could not be written: {error}", file.display()))?;
    }
    if args.json {
        let view = View { rows: true, reasons: true, summary: false };
        return matrix::print(results, &wires, view, true);
    }
    let name = source.peer.program();
    let peer = report::Peer { name: &name, dialect: args.dialect.name(), wire: source.wire() };
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
    if args.endpoint.is_none() && args.command.is_empty() {
        return Err("there is no peer to check; give the ENDPOINT of one that runs (pipe:PATH-OR-NAME, ws://.., http://..), \
                    or the COMMAND that starts it after `--`"
            .to_owned());
    }
    let endpoint = args.endpoint.clone().unwrap_or(Endpoint::Stdio);
    if args.endpoint == Some(Endpoint::Stdio) {
        return Err("stdio is an endpoint of `fixture` only; give the peer's command after `--`".to_owned());
    }
    Target::new(endpoint, args.dialect, args.flags(), Side::Client)
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

/// Adds the requests of the command line, `--slow 'METHOD JSON'` and its siblings, to a profile. They
/// replace those of the same kind.
///
/// # Errors
/// One sentence that names the option, if its value is not a method and a JSON object.
fn add_requests(args: &Check, profile: &mut Profile) -> Result<(), Failure> {
    let given = [
        ("--slow", RequestKind::Slow, &args.slow),
        ("--quick", RequestKind::Quick, &args.quick),
        ("--progress", RequestKind::Progress, &args.progress),
    ];
    for (option, kind, text) in given {
        let Some(text) = text else { continue };
        let mut request = read_request(text).map_err(|why| {
            format!("{option} is not as it should be: {why}; write it as {option} 'METHOD {{\"name\": ..}}'")
        })?;
        if kind == RequestKind::Progress {
            request.notification = Some(args.dialect.progress.method.to_owned());
            add_token(args.dialect.progress.form, &mut request.params);
        }
        profile.requests.insert(kind, request);
    }
    Ok(())
}

fn read_request(text: &str) -> Result<ProfileRequest, String> {
    let text = text.trim();
    let (method, params) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    if method.is_empty() || method.starts_with(['{', '[', '"']) {
        return Err("it does not begin with a method".to_owned());
    }
    let params = match params.trim() {
        "" => json!({}),
        params => {
            serde_json::from_str(params).map_err(|error| format!("its params are not JSON ({error})"))?
        }
    };
    if !params.is_object() && !params.is_array() {
        return Err("its params are not a JSON object".to_owned());
    }
    Ok(ProfileRequest::new(method, params))
}

/// A request that names no token gets one, as a peer reports no progress without it.
fn add_token(form: ProgressForm, params: &mut Value) {
    let Some(members) = params.as_object_mut() else { return };
    match form {
        ProgressForm::WorkDone => {
            members.entry("workDoneToken").or_insert_with(|| json!("check"));
        }
        ProgressForm::MetaToken => {
            let meta = members.entry("_meta").or_insert_with(|| json!({}));
            if let Some(meta) = meta.as_object_mut() {
                meta.entry("progressToken").or_insert_with(|| json!("check"));
            }
        }
        ProgressForm::Tick | ProgressForm::AnyToken => {}
    }
}

#[cfg(test)]
mod tests {
    use rescind_testkit::dialects::DialectFacts;

    use super::*;

    #[test]
    fn a_request_is_a_method_and_maybe_params() {
        let request = read_request(" tools/call  {\"name\": \"long one\"} ").unwrap();
        assert_eq!((request.method.as_str(), request.params), ("tools/call", json!({ "name": "long one" })));
        assert_eq!(read_request("ping").unwrap().params, json!({}));
        for (text, word) in [
            ("", "begin with a method"),
            ("{\"a\": 1}", "begin with a method"),
            ("m {a: 1}", "not JSON (key must be a string at line 1 column 2)"),
            ("m {} {}", "not JSON (trailing"),
            ("m 7", "not a JSON object"),
        ] {
            let why = read_request(text).unwrap_err();
            assert!(why.contains(word), "{text}: {why}");
        }
    }

    #[test]
    fn a_progress_request_gets_the_token_of_its_dialect_unless_it_has_one() {
        for (dialect, given, expected) in [
            ("mcp", json!({}), json!({ "_meta": {"progressToken": "check"} })),
            ("mcp", json!({ "_meta": {"progressToken": 7} }), json!({ "_meta": {"progressToken": 7} })),
            ("lsp", json!({}), json!({ "workDoneToken": "check" })),
            ("lsp", json!({ "workDoneToken": "w" }), json!({ "workDoneToken": "w" })),
            ("acp", json!({}), json!({})),
        ] {
            let mut params = given;
            add_token(DialectFacts::by_name(dialect).unwrap().progress.form, &mut params);
            assert_eq!(params, expected, "{dialect}");
        }
    }
}
