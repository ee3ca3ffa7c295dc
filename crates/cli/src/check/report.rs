//! The reports of a check. For people: the facts about the peer first, then what broke, then what could not be decided. For
//! services: the form of `JUnit`, and the problem matcher of GitHub.

use std::fmt::Write as _;
use std::path::{Path, absolute};

use anstyle::{AnsiColor, Style};
use rescind_testkit::dialects::DialectFacts;
use rescind_testkit::{Answer, Cell, CellOutcome, Demand, Evidence, Fact, Report};

use crate::table::{self, Colour, paint, time_text};
use crate::{Failure, output};

/// The peer, for the first line.
pub(super) struct Peer<'a> {
    pub(super) name: &'a str,
    pub(super) dialect: &'a str,
    pub(super) wire: &'a str,
}

/// The report as text. Lines that begin with `error[` or `warning[` are for GitHub's problem matcher, see
/// docs/check-action.md.
pub(super) fn text(report: &Report, peer: &Peer, colour: Colour) -> String {
    let mut text = String::new();
    let head = format!("{} over {} ({})", shown(peer.name), peer.wire, peer.dialect);
    let _ = writeln!(text, "{}", paint(&head, Style::new().bold(), colour));
    baseline(&mut text, report);
    for fact in report.facts.iter().filter(|fact| fact.answer != Answer::NotAsked) {
        let _ = writeln!(text, "  {}", fact_line(fact, colour));
    }
    let faults = report.facts.iter().filter(|fact| is_fault(fact));
    for fact in faults {
        let why = format!("{}: no, {}", fact.statement, shown(&fact.detail));
        problem(&mut text, Severity::Error, fact.name, &why, colour);
        let _ = writeln!(text, "  {}", shown(&fact.source));
        frames(&mut text, &fact.trace);
    }
    for cell in cells(report, CellOutcome::Broke) {
        problem(&mut text, Severity::Error, &cell.scenario, &shown(&cell.why), colour);
        let _ = writeln!(text, "  {}", cell.sources.first().map_or("", String::as_str));
        frames(&mut text, &cell.trace);
    }
    for cell in cells(report, CellOutcome::Unsure).filter(|cell| cell.deviates) {
        problem(&mut text, Severity::Note, &cell.scenario, &shown(&cell.why), colour);
    }
    for (why, names) in unsure(report) {
        problem(&mut text, Severity::Warning, &names.join(", "), &shown(why), colour);
    }
    no_tasks(&mut text, report, peer);
    counts(&mut text, report);
    hint(&mut text, report, peer);
    text
}

#[derive(Clone, Copy)]
enum Severity {
    Error,
    /// The peer deviates from what no document demands.
    Note,
    /// It could not be decided.
    Warning,
}

fn problem(text: &mut String, severity: Severity, name: &str, why: &str, colour: Colour) {
    let (word, style) = match severity {
        Severity::Error => ("error", AnsiColor::Red.on_default().bold()),
        Severity::Note => ("note", AnsiColor::Yellow.on_default()),
        Severity::Warning => ("warning", AnsiColor::Yellow.on_default()),
    };
    let _ = writeln!(text, "{}: {why}", paint(&format!("{word}[{name}]"), style, colour));
}

/// How long the requests take without a cancel.
fn baseline(text: &mut String, report: &Report) {
    let rows = report.baseline.iter().map(|row| {
        let time = row.answered_us.map_or_else(|| "does not end".to_owned(), time_text);
        format!("{} `{}` {time}", row.kind, shown(&row.method))
    });
    let rows: Vec<String> = rows.collect();
    if !rows.is_empty() {
        let _ = writeln!(text, "  without a cancel: {}", rows.join(", "));
    }
}

/// What could not be decided: each reason once, with the facts and scenarios that it is about.
fn unsure(report: &Report) -> Vec<(&str, Vec<&str>)> {
    let facts = report.facts.iter().filter(|fact| fact.answer == Answer::Unsure);
    let facts = facts.map(|fact| (fact.detail.as_str(), fact.name));
    let cells = cells(report, CellOutcome::Unsure).filter(|cell| !cell.deviates);
    let cells = cells.map(|cell| (cell.why.as_str(), cell.scenario.as_str()));
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for (why, name) in facts.chain(cells) {
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, names)) => names.push(name),
            None => reasons.push((why, vec![name])),
        }
    }
    reasons
}

fn counts(text: &mut String, report: &Report) {
    let summary = report.summary;
    let answered = |answer| report.facts.iter().filter(|fact| fact.answer == answer).count();
    let _ = writeln!(
        text,
        "{} facts: {} yes, {} broken rules, {} other than recommended or left open, {} unsure, {} not asked",
        report.facts.len(),
        answered(Answer::Yes),
        summary.faults,
        summary.deviations,
        answered(Answer::Unsure),
        answered(Answer::NotAsked)
    );
    let _ = writeln!(
        text,
        "{} scenarios: {} held, {} broke, {} other than recommended or left open, {} unsure, {} not asked",
        report.cells.len(),
        summary.held,
        summary.broke,
        summary.deviating,
        summary.unsure - summary.deviating,
        summary.not_asked
    );
}

/// That nothing was asked about tasks, where the dialect has some and the peer declares none.
fn no_tasks(text: &mut String, report: &Report, peer: &Peer) {
    let facts = DialectFacts::by_name(peer.dialect);
    let has_tasks = facts.is_some_and(|facts| facts.dialect.rules().tasks.is_some());
    let is_asked = report.facts.iter().any(|fact| fact.name.starts_with("task_"));
    if has_tasks && !is_asked && !report.facts.is_empty() {
        let _ =
            writeln!(text, "The peer declares no tasks for `tools/call`, so nothing was asked about tasks.");
    }
}

/// What a profile would add, and the shortest way to one.
fn hint(text: &mut String, report: &Report, peer: &Peer) {
    if report.baseline.iter().any(|row| row.kind == "slow") {
        return;
    }
    let _ = writeln!(
        text,
        "No slow request is known, so nothing that runs was cancelled. Name one, and one that is answered at once:\n  \
         --slow 'METHOD JSON' --quick 'METHOD JSON', or write a profile with: rescind check --init --dialect {} -- COMMAND",
        peer.dialect
    );
}

const fn is_fault(fact: &Fact) -> bool {
    matches!((fact.answer, fact.demand), (Answer::No, Demand::Must))
}

fn cells(report: &Report, outcome: CellOutcome) -> impl Iterator<Item = &Cell> {
    report.cells.iter().filter(move |cell| cell.outcome == outcome)
}

/// One fact, as the peer's author would say it. Why it is broken or unsure follows below the facts.
fn fact_line(fact: &Fact, colour: Colour) -> String {
    let (green, yellow) = (AnsiColor::Green.on_default(), AnsiColor::Yellow.on_default());
    let (answer, style) = match (fact.answer, fact.demand) {
        (Answer::Yes, _) => ("yes", green),
        (Answer::No, Demand::Must) => ("no", AnsiColor::Red.on_default().bold()),
        (Answer::No, Demand::Should) => ("no, which is recommended", yellow),
        (Answer::No, Demand::Open) => ("no, which is left open", yellow),
        (Answer::Unsure, _) => ("unsure", yellow),
        (Answer::NotAsked, _) => ("not asked", Style::new().dimmed()),
    };
    let mut line = format!("{}: {}", fact.statement, paint(answer, style, colour));
    if !fact.detail.is_empty() && !is_fault(fact) && fact.answer != Answer::Unsure {
        let _ = write!(line, ", {}", shown(&fact.detail));
    }
    let witnesses: Vec<&str> = fact.evidence.iter().filter_map(|evidence| witness(*evidence)).collect();
    if !witnesses.is_empty() && fact.answer != Answer::Unsure {
        let _ = write!(line, "; seen by {}", witnesses.join(" and "));
    }
    line
}

const fn witness(evidence: Evidence) -> Option<&'static str> {
    match evidence {
        Evidence::Wire => None,
        Evidence::Request => Some("a request that counts its work"),
        Evidence::Progress => Some("its progress"),
        Evidence::Serial => Some("the next answer"),
        Evidence::Processor => Some("its processor time"),
        Evidence::Command => Some("the command of the profile"),
    }
}

fn frames(text: &mut String, trace: &[rescind_testkit::runner::TraceLine]) {
    for line in trace {
        let _ = writeln!(text, "    {} {}", table::arrow(line.direction), shown(&line.text));
    }
}

/// The most characters of a frame that are shown. The JSON has all of them.
const MAX_SHOWN_CHARS: usize = 2_000;

/// Text of a peer on one line. Characters that control a terminal are escaped, and text that is too long is cut.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::new();
    for (at, character) in text.chars().enumerate() {
        if at == MAX_SHOWN_CHARS {
            let _ = write!(shown, "... ({} bytes in all)", text.len());
            break;
        }
        // Control characters, and the marks that change the direction of text.
        let steers = character.is_control()
            || matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if steers {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// The outcome of a test case of the `JUnit` file.
enum Case<'a> {
    Passed,
    Failed(&'a str),
    Skipped(&'a str),
}

/// The results as a file in the form of `JUnit`, which most services that run tests can show: a test suite of the facts and
/// one of the scenarios.
pub(super) fn junit(report: &Report) -> String {
    let facts = report.facts.iter().map(|fact| {
        let case = match (fact.answer, fact.demand) {
            (Answer::Yes, _) => Case::Passed,
            (Answer::No, Demand::Must) => Case::Failed(&fact.detail),
            (Answer::No | Answer::Unsure | Answer::NotAsked, _) => Case::Skipped(&fact.detail),
        };
        (fact.name, case)
    });
    let scenarios = report.cells.iter().map(|cell| {
        let case = match cell.outcome {
            CellOutcome::Held => Case::Passed,
            CellOutcome::Broke => Case::Failed(&cell.why),
            CellOutcome::Unsure | CellOutcome::NotAsked => Case::Skipped(&cell.why),
        };
        (cell.scenario.as_str(), case)
    });
    let mut text =
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"rescind check\">\n".to_owned();
    junit_suite(&mut text, "facts", &facts.collect::<Vec<_>>());
    junit_suite(&mut text, "scenarios", &scenarios.collect::<Vec<_>>());
    text.push_str("</testsuites>\n");
    text
}

fn junit_suite(text: &mut String, name: &str, cases: &[(&str, Case)]) {
    let count = |is_it: fn(&Case) -> bool| cases.iter().filter(|(_, case)| is_it(case)).count();
    let (failures, skipped) =
        (count(|case| matches!(case, Case::Failed(_))), count(|case| matches!(case, Case::Skipped(_))));
    let _ = writeln!(
        text,
        "  <testsuite name=\"{name}\" tests=\"{}\" failures=\"{failures}\" skipped=\"{skipped}\">",
        cases.len()
    );
    for (case_name, case) in cases {
        let head = format!("    <testcase classname=\"{name}\" name=\"{}\"", xml_escaped(case_name));
        let _ = match case {
            Case::Passed => writeln!(text, "{head}/>"),
            Case::Failed(why) => {
                writeln!(text, "{head}><failure message=\"{}\"/></testcase>", xml_escaped(why))
            }
            Case::Skipped(why) => {
                writeln!(text, "{head}><skipped message=\"{}\"/></testcase>", xml_escaped(why))
            }
        };
    }
    text.push_str("  </testsuite>\n");
}

/// Text in an attribute. Characters that XML does not allow are left out.
fn xml_escaped(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' | '\r' => escaped.push(' '),
            '\u{0}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => {}
            other => escaped.push(other),
        }
    }
    escaped
}

/// GitHub's problem matcher, which makes an annotation of each problem in the report. Its pattern finds the
/// lines that the report writes for problems.
const PROBLEM_MATCHER: &str = include_str!("problem-matcher.json");

/// Writes the matcher to a file and tells GitHub where it is, before the first line that it matches.
///
/// # Errors
/// One sentence, if the file cannot be written.
pub(super) fn write_problem_matcher(file: &Path) -> Result<(), Failure> {
    let failed = |error| format!("the problem matcher {} could not be written: {error}", file.display());
    std::fs::write(file, PROBLEM_MATCHER).map_err(failed)?;
    let file = absolute(file).map_err(failed)?;
    output::message(&format!("::add-matcher::{}\n", file.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use rescind_testkit::runner::{Direction, TraceLine};
    use rescind_testkit::{Baseline, Cell, scenarios};

    use super::*;

    const PEER: Peer = Peer { name: "node", dialect: "mcp", wire: "stdio" };

    fn fact(name: &'static str, answer: Answer, demand: Demand, detail: &str) -> Fact {
        let mut fact = Fact::new(name, name.replace('_', " "), answer, demand);
        fact.detail = detail.to_owned();
        fact.source = "JSON-RPC 2.0: one answer.".to_owned();
        fact.trace = vec![TraceLine::new(Direction::Sent, format!("{{\"of\":\"{name}\"}}"))];
        fact
    }

    fn cell(outcome: CellOutcome, why: &str) -> Cell {
        let mut cell = Cell::not_asked(scenarios().first().unwrap(), "stdio", why);
        cell.outcome = outcome;
        cell.trace = vec![TraceLine::new(Direction::Received, format!("{{\"why\":\"{why}\"}}"))];
        cell
    }

    fn slow() -> Vec<Baseline> {
        vec![Baseline::new("slow", "tools/call", Some(2_140_000)), Baseline::new("quick", "ping", Some(300))]
    }

    #[test]
    fn the_report_of_a_peer_that_holds_fits_a_screen_without_frames() {
        let yes = |_| fact("answers_once", Answer::Yes, Demand::Must, "20 times of 20");
        let cells = (0..70).map(|at| {
            let outcome = if at < 40 { CellOutcome::Held } else { CellOutcome::NotAsked };
            cell(outcome, "")
        });
        let report = Report::of_a_peer(slow(), (0..18).map(yes).collect(), cells.collect());
        let text = text(&report, &PEER, Colour::Off);
        assert!(text.lines().count() <= 24, "{text}");
        assert!(
            text.starts_with(
                "node over stdio (mcp)\n  without a cancel: slow `tools/call` 2.1 s, quick `ping` 300 us\n"
            ),
            "{text}"
        );
        assert!(text.contains("\n  answers once: yes, 20 times of 20\n"), "{text}");
        assert!(!text.contains("->") && !text.contains("<-") && !text.contains("--init"), "{text}");
        assert!(text.ends_with("70 scenarios: 40 held, 0 broke, 0 other than recommended or left open, 0 unsure, 30 not asked\n"), "{text}");
    }

    #[test]
    fn what_broke_is_shown_with_its_frames_and_what_is_unsure_once_a_reason() {
        let mut stops = fact("stops_work", Answer::Yes, Demand::Should, "in 0.4 ms");
        stops.evidence = vec![Evidence::Wire, Evidence::Progress];
        let facts = vec![
            stops,
            fact("answers_once", Answer::No, Demand::Must, "two answers"),
            fact("stays_silent", Answer::No, Demand::Should, "it answers"),
            fact("tells_ids_apart", Answer::No, Demand::Open, "one request"),
            fact("frees_slot", Answer::Unsure, Demand::Must, "name another request"),
            fact("late_cancel_ignored", Answer::Unsure, Demand::Must, "name another request"),
            fact("clean_output", Answer::NotAsked, Demand::Must, "it ended"),
        ];
        let mut cells =
            vec![cell(CellOutcome::Broke, "step 2: nothing came"), cell(CellOutcome::Held, "held")];
        cells.push(cell(CellOutcome::Unsure, "it ended too early"));
        cells.push(cell(CellOutcome::Unsure, "no fault, as the documents leave it open: -32603 came"));
        if let Some(last) = cells.last_mut() {
            last.deviates = true;
        }
        let text = text(&Report::of_a_peer(slow(), facts, cells), &PEER, Colour::Off);
        for line in [
            "  stops work: yes, in 0.4 ms; seen by its progress",
            "  answers once: no",
            "error[answers_once]: answers once: no, two answers",
            "    -> {\"of\":\"answers_once\"}",
            "  stays silent: no, which is recommended, it answers",
            "  tells ids apart: no, which is left open, one request",
            "  frees slot: unsure",
            "warning[frees_slot, late_cancel_ignored]: name another request",
            "    <- {\"why\":\"step 2: nothing came\"}",
            "7 facts: 1 yes, 1 broken rules, 2 other than recommended or left open, 2 unsure, 1 not asked",
            "4 scenarios: 1 held, 1 broke, 1 other than recommended or left open, 1 unsure, 0 not asked",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\nis not in\n{text}");
        }
        let name = &scenarios().first().unwrap().vector.name;
        for line in [
            format!("error[{name}]: step 2: nothing came"),
            format!("warning[{name}]: it ended too early"),
            format!("note[{name}]: no fault, as the documents leave it open: -32603 came"),
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\nis not in\n{text}");
        }
        for word in ["clean output", "\"of\":\"stays_silent\"", "\"why\":\"held\""] {
            assert!(!text.contains(word), "{word} is in\n{text}");
        }
    }

    #[test]
    fn a_peer_without_a_profile_is_shown_the_shortest_way_to_one() {
        let text = text(&Report::new(Vec::new()), &PEER, Colour::Off);
        assert!(
            text.contains("--slow 'METHOD JSON'") && text.contains("check --init --dialect mcp --"),
            "{text}"
        );
    }

    #[test]
    fn a_peer_that_declares_no_tasks_is_told_that_none_was_asked_for() {
        let told = |name, dialect| {
            let facts = vec![fact(name, Answer::Yes, Demand::Must, "")];
            text(&Report::of_a_peer(slow(), facts, Vec::new()), &Peer { dialect, ..PEER }, Colour::Off)
                .contains("declares no tasks")
        };
        assert!(told("answers_once", "mcp") && told("answers_once", "mcp-2026"));
        assert!(!told("task_handle", "mcp") && !told("answers_once", "lsp"));
    }

    #[test]
    fn text_of_a_peer_is_escaped_for_the_terminal_and_truncated() {
        assert_eq!(shown("a\u{1b}[31mé\n\u{202e}"), "a\\u{1b}[31mé\\n\\u{202e}");
        let long = shown(&"x".repeat(1 << 20));
        assert!(long.len() < 2_100 && long.ends_with("(1048576 bytes in all)"), "{long}");
    }

    #[test]
    fn colours_are_used_only_where_they_may_be() {
        let report = Report::of_a_peer(slow(), vec![fact("a_b", Answer::Yes, Demand::Must, "")], Vec::new());
        assert!(text(&report, &PEER, Colour::On).contains('\u{1b}'));
        assert!(!text(&report, &PEER, Colour::Off).contains('\u{1b}'));
    }

    #[test]
    fn a_failure_is_a_failure_and_what_is_unsure_is_skipped() {
        let scenario = rescind_testkit::scenarios().first().unwrap();
        let mut broke = Cell::not_asked(scenario, "stdio", "a <b> & \"c\"\u{1b}");
        broke.outcome = CellOutcome::Broke;
        let mut unsure = broke.clone();
        unsure.outcome = CellOutcome::Unsure;
        let text = junit(&Report::new(vec![broke, unsure]));
        assert!(text.contains("tests=\"2\" failures=\"1\" skipped=\"1\""), "{text}");
        assert!(text.contains("<failure message=\"a &lt;b&gt; &amp; &quot;c&quot;\"/>"), "{text}");
    }
}
