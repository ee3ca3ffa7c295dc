//! Holds each row of the tables with `rescind check`.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use rescind_check::CheckSettings;
use serde_json::Value;

use crate::checked::{self, Checked};
use crate::table::{RIGHT, RightRow, Row, WRONG};

/// The checks of all rows.
#[derive(Clone, Default)]
pub(crate) struct Checks {
    /// What was found, to be printed beside a failure.
    found: Arc<Mutex<Vec<String>>>,
    /// Held alone by a check whose evidence is processor time.
    processor: Arc<RwLock<()>>,
}

impl Checks {
    pub(crate) fn trials(&self) -> Vec<Trial> {
        let mut trials = Vec::new();
        for row in &RIGHT {
            for dialect in row.dialects {
                for profile in [true, false] {
                    let with = if profile { "profile" } else { "no_profile" };
                    let name = format!("check::right::{with}::{dialect}{}", row.flags.concat());
                    let checks = self.clone();
                    trials.push(Trial::test(name, move || checks.right(row, dialect, profile)));
                }
            }
        }
        // Only Linux reports the processor time of a process group.
        for row in WRONG.iter().filter(|row| cfg!(target_os = "linux") || !is_by_processor(row)) {
            for dialect in row.dialects {
                let name = format!("check::wrong::{dialect}--{}{}", row.fault, row.with.concat());
                let checks = self.clone();
                trials.push(Trial::test(name, move || checks.wrong(row, dialect)));
            }
        }
        for dialect in ["mcp", "lsp", "acp"] {
            let checks = self.clone();
            trials.push(Trial::test(format!("check::long::{dialect}"), move || checks.long(dialect)));
        }
        for dialect in ["mcp", "lsp", "acp"] {
            let name = format!("check::long_progress::{dialect}");
            trials.push(Trial::test(name, move || long_progress(dialect)));
        }
        for dialect in ["lsp", "acp"] {
            trials.push(Trial::test(format!("check::endless::{dialect}"), move || endless(dialect)));
        }
        trials.push(Trial::test("check::deviation::lsp", deviation));
        trials.push(Trial::test("check::turns::acp", turns));
        let checks = self.clone();
        trials.push(Trial::test("check::short::lsp", move || checks.short_and_busy()));
        trials
    }

    /// A peer whose slow request takes longer than the baseline looks, and that ignores cancels.
    fn long(&self, dialect: &'static str) -> Result<(), Failed> {
        let _beside = self.processor.read();
        let checked = run_shortly(dialect, "--ignores-cancel")?;
        self.note(format!("long {dialect}: {}", checked.in_words()));
        let is_told = |name: &str| checked.facts("no").iter().any(|fact| fact["name"] == name);
        // Only ACP says how a turn must end that was cancelled.
        let ends_turns = dialect != "acp";
        if !is_told("cancels_running")
            || is_told("turn_cancelled") == ends_turns
            || (checked.exit() == 0) != ends_turns
        {
            return Err(format!("it ignores cancels, and no more: {}", checked.in_words()).into());
        }
        Ok(())
    }

    /// A server whose slow request is short, uses the processor and ignores its cancel. It is idle soon after the cancel, because
    /// the request has ended.
    fn short_and_busy(&self) -> Result<(), Failed> {
        let _alone = self.processor.write();
        let flags = ["--ignores-cancel", "--busy", "--work=150"];
        let checked = checked::run("lsp", &flags, Some("lsp-quiet.toml"))?;
        self.note(format!("short lsp: {}", checked.in_words()));
        let answer = |name: &str, answer: &str| checked.facts(answer).iter().any(|fact| fact["name"] == name);
        if answer("cancels_running", "no") && !answer("stops_work", "yes") {
            return Ok(());
        }
        Err(format!("its request comes to its normal end: {}", checked.in_words()).into())
    }

    /// Prints what was found of each peer.
    pub(crate) fn print(&self) {
        let mut lines = self.found.lock().unwrap_or_else(PoisonError::into_inner).clone();
        lines.sort_unstable();
        for line in lines {
            println!("{line}");
        }
    }

    fn note(&self, line: String) {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn right(&self, row: &RightRow, dialect: &'static str, with_profile: bool) -> Result<(), Failed> {
        let _beside = self.processor.read();
        let setup = if row.flags.contains(&"--needs-setup") { "-setup" } else { "" };
        let profile = format!("{dialect}{setup}.toml");
        let checked = checked::run(dialect, row.flags, with_profile.then_some(profile.as_str()))?;
        self.note(format!("right {dialect}{}: {}", row.flags.concat(), checked.in_words()));
        let faults = checked.facts("no").into_iter().filter(|fact| fact["demand"] == "must").count();
        if faults > 0 || !checked.cells("broke").is_empty() || checked.exit() != 0 {
            return Err(format!("a right peer is accused: {}", checked.in_words()).into());
        }
        Ok(())
    }

    fn wrong(&self, row: &Row, dialect: &'static str) -> Result<(), Failed> {
        let flag = format!("--{}", row.fault);
        let flags = [&[flag.as_str()], row.with].concat();
        let by_processor = is_by_processor(row);
        let _beside = (!by_processor).then(|| self.processor.read());
        let _alone = by_processor.then(|| self.processor.write());
        let quiet = if row.with.is_empty() { "" } else { "-quiet" };
        let checked = match checked::run(dialect, &flags, Some(&format!("{dialect}{quiet}.toml"))) {
            Ok(checked) => checked,
            Err(why) => {
                self.note(format!("wrong {dialect}{}: unusable: {why}", flags.concat()));
                return if row.exit == 2 { Ok(()) } else { Err(why.into()) };
            }
        };
        let found = checked.in_words();
        self.note(format!("wrong {dialect}{}: {found}", flags.concat()));
        let noes = checked.facts("no");
        for (name, evidence) in row.told {
            let fact = noes.iter().find(|fact| fact["name"] == *name);
            let fact = fact.ok_or_else(|| format!("`{name}` is not told: {found}"))?;
            if !fact["evidence"].as_array().unwrap().contains(&Value::from(*evidence)) {
                return Err(format!("`{name}` is not known by {evidence}: {fact}").into());
            }
        }
        let follows = |fact: &&&Value| {
            row.told.iter().any(|(name, _)| fact["name"] == *name)
                || row.also.iter().any(|name| fact["name"] == *name)
        };
        if let Some(stray) = noes.iter().find(|fact| !follows(fact)) {
            return Err(format!("it is accused of what it does right: {stray}").into());
        }
        if checked.exit() != row.exit {
            return Err(format!("the exit code is {}: {found}", checked.exit()).into());
        }
        Ok(())
    }
}

/// Nothing can be said of a peer whose slow request neither ends nor is ended by its cancel: it may still run.
fn endless(dialect: &'static str) -> Result<(), Failed> {
    match run_shortly(dialect, "--never-answers-cancelled") {
        Err(why) if why.contains("its cancel did not end it") => Ok(()),
        Err(why) => Err(why.into()),
        Ok(checked) => Err(format!("it was judged: {}", checked.in_words()).into()),
    }
}

/// A peer that does otherwise where the documents leave it open has no fault. The report does not mix this with a scenario that
/// could not be brought about.
fn deviation() -> Result<(), Failed> {
    let checked = checked::run("lsp", &["--text-id-cancels-number"], Some("lsp.toml"))?;
    let unsure = checked.cells("unsure");
    let deviates =
        |name: &str| unsure.iter().any(|cell| cell["scenario"] == name && cell["deviates"] == true);
    let count = unsure.iter().filter(|cell| cell["deviates"] == true).count();
    let is_told = deviates("id_number_and_text")
        && checked.report["summary"]["deviating"] == count
        && checked.exit() == 0;
    if is_told { Ok(()) } else { Err(format!("{}: {unsure:?}", checked.in_words()).into()) }
}

/// The scenarios about turns are played with an agent's own slow turn.
fn turns() -> Result<(), Failed> {
    for (flags, outcome) in [(&[][..], "held"), (&["--turn-ignores-cancel"], "broke")] {
        let checked = checked::run("acp", flags, Some("acp.toml"))?;
        let cells = checked.cells(outcome);
        let all = ["prompt_session_cancel", "prompt_after_session_cancel"];
        if !all.iter().all(|name| cells.iter().any(|cell| cell["scenario"] == *name)) {
            return Err(format!("{flags:?}: {}", checked.in_words()).into());
        }
    }
    Ok(())
}

/// Checks a peer whose slow request takes twice as long as the baseline looks.
fn run_shortly(dialect: &'static str, flag: &str) -> Result<Checked, String> {
    checked::run_with(dialect, &[flag], Some(&format!("{dialect}-quiet.toml")), &short())
}

/// The baseline looks half as long as the slow request takes.
fn short() -> CheckSettings {
    let mut settings = CheckSettings::default();
    settings.longest = Duration::from_millis(500);
    settings
}

/// The progress of a request is judged that took longer than the baseline looks.
fn long_progress(dialect: &'static str) -> Result<(), Failed> {
    let checked = checked::run_with(dialect, &[], Some(&format!("{dialect}.toml")), &short())?;
    let is_judged = checked.facts("yes").iter().any(|fact| fact["name"] == "progress_ends_with_answer");
    if is_judged { Ok(()) } else { Err(checked.in_words().into()) }
}

fn is_by_processor(row: &Row) -> bool {
    row.told.iter().any(|(_, evidence)| *evidence == "processor")
}

impl Checked {
    /// What matters of the report, on one line.
    fn in_words(&self) -> String {
        let mut words = format!("exit code {}, {:.1} s", self.exit(), self.took.as_secs_f64());
        for fact in self.facts("no") {
            let _ = write!(words, "; {} no ({}): {}", fact["name"], fact["demand"], fact["detail"]);
        }
        for fact in self.facts("unsure") {
            let _ = write!(words, "; {} unsure: {}", fact["name"], fact["detail"]);
        }
        for cell in self.cells("broke") {
            let _ = write!(words, "; {} broke: {}", cell["scenario"], cell["why"]);
        }
        words
    }
}
