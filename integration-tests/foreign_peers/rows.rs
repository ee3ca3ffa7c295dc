//! The tables of right and wrong peers, and what `rescind check` finds in each.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use rescind_check::CheckSettings;
use serde_json::Value;

use crate::checked::{self, Checked};

// Holds each row of the tables with `rescind check`.

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

// The tables: each way in which a foreign peer is wrong, with what tells it, and each way in which it is right and
// awkward.

/// A wrong peer.
pub(crate) struct Row {
    /// The option of `foreign-peer`.
    pub(crate) fault: &'static str,
    /// More options. The profile then names no request with progress, which would tell it sooner.
    pub(crate) with: &'static [&'static str],
    /// What it does, for the page.
    pub(crate) does: &'static str,
    /// The dialects in which it can be wrong like that.
    pub(crate) dialects: &'static [&'static str],
    /// The question of the driver that it fails.
    pub(crate) question: &'static str,
    /// The facts that must be `no`, each with an evidence.
    pub(crate) told: &'static [(&'static str, &'static str)],
    /// The facts that may be `no` as well, because they follow from it.
    pub(crate) also: &'static [&'static str],
    /// The exit code of `rescind check`. 2: it cannot be checked at all.
    pub(crate) exit: i32,
}

const ALL: &[&str] = &["mcp", "lsp", "acp"];
const ANSWERING: &[&str] = &["lsp", "acp"];
const MCP: &[&str] = &["mcp"];
const LSP: &[&str] = &["lsp"];
const ACP: &[&str] = &["acp"];

#[rustfmt::skip]
pub(crate) const WRONG: [Row; 57] = [
    Row { fault: "ignores-cancel", with: &[], does: "a cancelled request runs to its normal end", dialects: MCP, question: "cancelled", told: &[("cancels_running", "wire"), ("stays_silent", "wire"), ("stops_work", "progress")], also: &[], exit: 0 },
    Row { fault: "ignores-cancel", with: &[], does: "a cancelled request runs to its normal end", dialects: LSP, question: "cancelled", told: &[("cancels_running", "wire"), ("stops_work", "progress")], also: &[], exit: 0 },
    Row { fault: "ignores-cancel", with: &[], does: "a cancelled request and a cancelled turn run to their normal end", dialects: ACP, question: "cancelled", told: &[("cancels_running", "wire"), ("stops_work", "progress"), ("turn_cancelled", "wire"), ("turn_ends_soon", "wire")], also: &[], exit: 1 },
    Row { fault: "ignores-cancel", with: &["--slows-down"], does: "a cancelled request runs to its normal end, three times as long as the baseline", dialects: MCP, question: "cancelled", told: &[("cancels_running", "wire"), ("stays_silent", "wire")], also: &[], exit: 0 },
    Row { fault: "answers-twice", with: &[], does: "a request is answered twice", dialects: MCP, question: "normal", told: &[("answers_once", "wire")], also: &[], exit: 1 },
    Row { fault: "answers-twice", with: &[], does: "a cancelled request is answered twice", dialects: ANSWERING, question: "cancelled", told: &[("answers_once", "wire")], also: &[], exit: 1 },
    Row { fault: "answers-twice-late", with: &[], does: "the result follows the cancelled answer", dialects: ANSWERING, question: "cancelled", told: &[("answers_once", "wire"), ("stops_work", "progress")], also: &[], exit: 1 },
    Row { fault: "answers-after-silence", with: &[], does: "a cancelled request is answered when its time is over", dialects: MCP, question: "cancelled", told: &[("stays_silent", "wire")], also: &[], exit: 0 },
    Row { fault: "answers-cancelled", with: &[], does: "a cancelled request is answered at once", dialects: MCP, question: "cancelled", told: &[("stays_silent", "wire")], also: &[], exit: 0 },
    Row { fault: "wrong-cancelled-code", with: &[], does: "a cancelled request fails with -32603", dialects: LSP, question: "cancelled", told: &[("cancelled_code", "wire")], also: &[], exit: 0 },
    Row { fault: "wrong-cancelled-code", with: &[], does: "a cancelled request and a cancelled turn fail with -32603", dialects: ACP, question: "cancelled", told: &[("cancelled_code", "wire"), ("turn_cancelled", "wire")], also: &[], exit: 1 },
    Row { fault: "crossing-ids", with: &[], does: "after a cancel the answers of two requests are swapped", dialects: ALL, question: "siblings", told: &[("siblings_untouched", "wire")], also: &[], exit: 1 },
    Row { fault: "dead-after-cancel", with: &[], does: "nothing is answered after a cancel", dialects: ALL, question: "survival", told: &[("session_survives", "wire")], also: &["siblings_untouched", "frees_slot", "turn_cancelled", "turn_ends_soon", "next_turn_served"], exit: 1 },
    Row { fault: "slot-not-freed", with: &[], does: "a cancelled request keeps one of eight slots", dialects: ALL, question: "slots", told: &[("frees_slot", "wire")], also: &[], exit: 1 },
    Row { fault: "progress-after-answer", with: &[], does: "a progress notification follows the answer", dialects: MCP, question: "progress", told: &[("progress_ends_with_answer", "wire")], also: &[], exit: 1 },
    Row { fault: "progress-after-answer", with: &[], does: "a progress notification follows the answer", dialects: ANSWERING, question: "progress", told: &[("progress_ends_with_answer", "wire")], also: &["stops_work"], exit: 0 },
    Row { fault: "late-cancel-kills-next", with: &[], does: "a cancel for an answered request cancels the next one", dialects: ALL, question: "late cancel", told: &[("late_cancel_ignored", "wire")], also: &["session_survives"], exit: 1 },
    Row { fault: "unknown-cancel-kills", with: &[], does: "a cancel for an unknown id ends the program", dialects: ALL, question: "unknown cancel", told: &[("unknown_cancel_ignored", "wire")], also: &["session_survives", "tells_ids_apart"], exit: 1 },
    Row { fault: "never-answers-cancelled", with: &[], does: "a cancelled request is never answered", dialects: LSP, question: "cancelled", told: &[("answers_cancelled", "wire")], also: &[], exit: 1 },
    Row { fault: "never-answers-cancelled", with: &[], does: "a cancelled request and a cancelled turn are never answered", dialects: ACP, question: "cancelled", told: &[("answers_cancelled", "wire"), ("turn_cancelled", "wire"), ("turn_ends_soon", "wire")], also: &[], exit: 1 },
    Row { fault: "cancels-sibling", with: &[], does: "of two requests the wrong one is cancelled", dialects: ALL, question: "siblings", told: &[("siblings_untouched", "wire")], also: &[], exit: 1 },
    Row { fault: "work-goes-on", with: &[], does: "a cancelled request works to its end, and reports it", dialects: ALL, question: "cancelled", told: &[("stops_work", "progress")], also: &[], exit: 0 },
    Row { fault: "work-goes-on", with: &["--busy"], does: "a cancelled request works to its end, with the processor", dialects: ALL, question: "cancelled", told: &[("stops_work", "processor")], also: &[], exit: 0 },
    Row { fault: "work-goes-on", with: &["--serial"], does: "a cancelled request works to its end, and the next one waits", dialects: ALL, question: "cancelled", told: &[("stops_work", "serial")], also: &["serves_concurrently"], exit: 0 },
    Row { fault: "exits-after-cancel", with: &[], does: "the program exits after a cancel", dialects: ALL, question: "survival", told: &[("session_survives", "wire")], also: &["next_turn_served"], exit: 1 },
    Row { fault: "malformed-cancel-kills", with: &[], does: "a cancel without an id ends the program", dialects: ALL, question: "malformed cancel", told: &[("malformed_cancel_ignored", "wire")], also: &["session_survives"], exit: 0 },
    Row { fault: "stdout-noise", with: &[], does: "stdout has text beside messages", dialects: ALL, question: "output", told: &[("clean_output", "wire")], also: &[], exit: 1 },
    Row { fault: "wrong-unknown-method", with: &[], does: "an unknown method gets a result", dialects: ALL, question: "unknown method", told: &[("unknown_method_refused", "wire")], also: &["reserved_method_refused"], exit: 1 },
    Row { fault: "reserved-not-answered", with: &[], does: "an unknown request in `$/` is not answered", dialects: LSP, question: "unknown method", told: &[("reserved_method_refused", "wire")], also: &[], exit: 1 },
    Row { fault: "reserved-code", with: &[], does: "an unknown request in `$/` is refused with -32600", dialects: LSP, question: "unknown method", told: &[("reserved_method_refused", "wire")], also: &[], exit: 1 },
    Row { fault: "answers-notification", with: &[], does: "an unknown notification is answered", dialects: ALL, question: "unknown notification", told: &[("unknown_notification_ignored", "wire")], also: &[], exit: 1 },
    Row { fault: "text-id-cancels-number", with: &[], does: "a cancel for \"1\" cancels the request 1", dialects: ALL, question: "ids", told: &[("tells_ids_apart", "wire")], also: &[], exit: 0 },
    Row { fault: "zero-id-not-cancelled", with: &[], does: "a cancel for the id 0 is ignored", dialects: ALL, question: "id zero", told: &[("cancels_id_zero", "wire")], also: &[], exit: 0 },
    Row { fault: "zero-id-not-served", with: &[], does: "a request with the id 0 is taken for a notification", dialects: ALL, question: "id zero served", told: &[("cancels_id_zero", "wire")], also: &[], exit: 0 },
    Row { fault: "text-ids", with: &[], does: "the ids of answers are texts", dialects: ALL, question: "form", told: &[("repeats_ids", "wire")], also: &[], exit: 1 },
    Row { fault: "fraction-ids", with: &[], does: "the ids of answers are numbers as 1.0", dialects: ALL, question: "form", told: &[("repeats_ids", "wire")], also: &[], exit: 1 },
    Row { fault: "no-version", with: &[], does: "answers have no `jsonrpc`", dialects: ALL, question: "form", told: &[("names_version", "wire")], also: &[], exit: 1 },
    Row { fault: "answers-in-array", with: &[], does: "each answer comes in an array", dialects: ALL, question: "form", told: &[("answer_form", "wire")], also: &[], exit: 1 },
    Row { fault: "error-is-text", with: &[], does: "an error is a text", dialects: MCP, question: "form", told: &[("answer_form", "wire")], also: &[], exit: 1 },
    Row { fault: "error-is-text", with: &[], does: "an error is a text, and has no code", dialects: LSP, question: "form", told: &[("answer_form", "wire"), ("cancelled_code", "wire"), ("reserved_method_refused", "wire")], also: &[], exit: 1 },
    Row { fault: "error-is-text", with: &[], does: "an error is a text, and has no code", dialects: ACP, question: "form", told: &[("answer_form", "wire"), ("cancelled_code", "wire")], also: &[], exit: 1 },
    Row { fault: "error-null", with: &[], does: "a result has `error: null` beside it", dialects: ALL, question: "form", told: &[("answer_form", "wire")], also: &[], exit: 1 },
    Row { fault: "byte-order-mark", with: &[], does: "a byte order mark is before each message", dialects: ALL, question: "form", told: &[("clean_output", "wire")], also: &[], exit: 1 },
    Row { fault: "lone-surrogate", with: &[], does: "a text has half of a surrogate pair", dialects: ALL, question: "form", told: &[("whole_characters", "wire")], also: &[], exit: 0 },
    Row { fault: "cancels-oldest", with: &[], does: "whichever request is named, the oldest one is cancelled", dialects: ALL, question: "newest", told: &[("siblings_untouched", "wire")], also: &[], exit: 1 },
    Row { fault: "turn-ends-normally", with: &[], does: "`session/cancel` ends a turn with `end_turn`", dialects: ACP, question: "turn", told: &[("turn_cancelled", "wire")], also: &[], exit: 1 },
    Row { fault: "turn-fails", with: &[], does: "`session/cancel` ends a turn with an error", dialects: ACP, question: "turn", told: &[("turn_cancelled", "wire")], also: &[], exit: 1 },
    Row { fault: "turn-ignores-cancel", with: &[], does: "`session/cancel` is ignored", dialects: ACP, question: "turn", told: &[("turn_cancelled", "wire"), ("turn_ends_soon", "wire")], also: &[], exit: 1 },
    Row { fault: "turn-ends-late", with: &[], does: "`session/cancel` shows only at the normal end of the turn", dialects: ACP, question: "turn is soon over", told: &[("turn_ends_soon", "wire")], also: &[], exit: 0 },
    Row { fault: "turns-of-all-sessions", with: &[], does: "`session/cancel` ends the turns of all sessions", dialects: ACP, question: "other turns", told: &[("other_turns_untouched", "wire")], also: &[], exit: 1 },
    Row { fault: "session-dead-after-turn", with: &[], does: "a session takes no prompt after `session/cancel`", dialects: ACP, question: "next turn", told: &[("next_turn_served", "wire")], also: &[], exit: 1 },
    Row { fault: "task-work-goes-on", with: &["--tasks"], does: "a cancelled task works on, and reports it", dialects: MCP, question: "task", told: &[("task_stops_work", "progress")], also: &[], exit: 0 },
    Row { fault: "task-completes-later", with: &["--tasks"], does: "a cancelled task is completed later", dialects: MCP, question: "task", told: &[("task_stays_ended", "wire")], also: &["task_stops_work"], exit: 1 },
    Row { fault: "task-ends-with-request", with: &["--tasks"], does: "the cancel of its request cancels a task", dialects: MCP, question: "task", told: &[("task_goes_on", "wire")], also: &[], exit: 0 },
    Row { fault: "task-not-cancelled", with: &["--tasks"], does: "`tasks/cancel` is answered and ignored", dialects: MCP, question: "task", told: &[("task_cancelled", "wire")], also: &["task_stops_work"], exit: 1 },
    Row { fault: "task-cancelled-twice", with: &["--tasks"], does: "`tasks/cancel` of a cancelled task is no error", dialects: MCP, question: "task", told: &[("task_ended_cancel_refused", "wire")], also: &[], exit: 1 },
    Row { fault: "task-unknown-found", with: &["--tasks"], does: "a task that does not exist is found", dialects: MCP, question: "task", told: &[("task_unknown_refused", "wire")], also: &[], exit: 1 },
];

/// A right peer: its options, and the questions of the driver that it may answer otherwise.
pub(crate) struct RightRow {
    pub(crate) flags: &'static [&'static str],
    pub(crate) dialects: &'static [&'static str],
    pub(crate) but: &'static [&'static str],
}

const NOTHING: &[&str] = &[];

#[rustfmt::skip]
pub(crate) const RIGHT: [RightRow; 28] = [
    RightRow { flags: &[], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--serial"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--busy"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--busy", "--serial"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--busy", "--forks"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--slices"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--slices", "--serial"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--slow-start"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--lazy"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--partial-results"], dialects: ANSWERING, but: NOTHING },
    RightRow { flags: &["--chatty"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--asks"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--chatty", "--asks", "--serial"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--quick-fails"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--needs-setup"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--stderr-noise"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--forks"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--answers-bad-json"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--one-at-a-time"], dialects: ALL, but: &["siblings", "newest", "other turns", "slots", "cancelled", "id zero", "survival"] },
    RightRow { flags: &["--other-framing", "--pieces"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--lingers"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--slows-down"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--second-is-quick"], dialects: ALL, but: &["newest"] },
    RightRow { flags: &["--rate-limited"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--tasks"], dialects: MCP, but: NOTHING },
    RightRow { flags: &["--supersedes"], dialects: ALL, but: &["siblings", "newest", "other turns", "late cancel"] },
    // No document demands that a cancel is honoured.
    RightRow { flags: &["--ignores-cancel"], dialects: LSP, but: &["cancelled", "siblings", "newest", "id zero", "survival"] },
    RightRow { flags: &["--ignores-cancel", "--serial"], dialects: LSP, but: &["cancelled", "siblings", "newest", "id zero", "survival"] },
];

// The table of wrong peers in `docs/check.md`, which is printed from the data.

const BEGIN: &str = "<!-- wrong peers -->\n";
const END: &str = "<!-- end of wrong peers -->";
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/check.md");

/// With `RESCIND_PRINT` in the environment the page is updated instead.
pub(crate) fn page_trial() -> Trial {
    Trial::test("page::the_table_of_wrong_peers_is_up_to_date", || {
        let page = std::fs::read_to_string(PAGE)?;
        let parts = page.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
        let (head, tail) = parts.ok_or("docs/check.md has no place for the table")?;
        let renewed = format!("{head}{BEGIN}{}{END}{tail}", table());
        if std::env::var_os("RESCIND_PRINT").is_some() {
            std::fs::write(PAGE, renewed)?;
        } else if page != renewed {
            let how =
                "renew it: RESCIND_PRINT=docs/check.md cargo test -p rescind-cli --test foreign_peers page";
            return Err(Failed::from(how));
        }
        Ok(())
    })
}

fn table() -> String {
    let mut out =
        "\n| the peer | dialects | facts that are `no` | evidence | exit code |\n|---|---|---|---|---|\n"
            .to_owned();
    for Row { does, dialects, told, exit, .. } in &WRONG {
        let facts = told.iter().map(|(fact, _)| format!("`{fact}`")).collect::<Vec<_>>();
        let mut evidence = told.iter().map(|(_, evidence)| *evidence).collect::<Vec<_>>();
        evidence.dedup();
        let (mut facts, evidence) = (facts.join(", "), evidence.join(", "));
        if told.is_empty() {
            "none: no session can be held".clone_into(&mut facts);
        }
        let _ = writeln!(out, "| {does} | {} | {facts} | {evidence} | {exit} |", dialects.join(", "));
    }
    let checks = RIGHT.iter().map(|row| row.dialects.len()).sum::<usize>();
    let _ = writeln!(
        out,
        "\n{checks} right peers, which are awkward in other ways, have no such fact, no scenario that `broke`, and exit code 0."
    );
    out
}
