//! The report of a check for people: the facts about the peer first, then what broke, then what could not be decided.

use std::fmt::Write as _;

use rescind_testkit::{Answer, Cell, CellOutcome, Demand, Evidence, Fact, Report};

use crate::table;

/// The report as text.
pub(super) fn text(report: &Report, has_requests: bool) -> String {
    let mut text = String::new();
    for fact in &report.facts {
        let _ = writeln!(text, "{}", fact_line(fact));
    }
    text.push('\n');
    for fact in report.facts.iter().filter(|fact| is_fault(fact)) {
        let _ =
            writeln!(text, "broke: {}\n  {}\n  {}", fact.statement, shown(&fact.source), shown(&fact.detail));
        frames(&mut text, &fact.trace);
    }
    for cell in cells(report, CellOutcome::Broke) {
        let source = cell.sources.first().map_or("", String::as_str);
        let _ = writeln!(text, "broke: {}\n  {}\n  {}", cell.scenario, shown(source), shown(&cell.why));
        frames(&mut text, &cell.trace);
    }
    for cell in cells(report, CellOutcome::Unsure) {
        let _ = writeln!(text, "unsure: {}: {}", cell.scenario, shown(&cell.why));
    }
    let summary = report.summary;
    let _ = writeln!(
        text,
        "{} held, {} broke, {} unsure, {} not asked; facts: {} faults, {} deviations from what is recommended or left open",
        summary.held, summary.broke, summary.unsure, summary.not_asked, summary.faults, summary.deviations
    );
    if !has_requests {
        text.push_str(
            "More is asked of a peer whose slow and quick requests are known: --slow 'METHOD JSON' --quick 'METHOD JSON' [--progress ..], or \
             a profile.\n",
        );
    }
    text
}

const fn is_fault(fact: &Fact) -> bool {
    matches!((fact.answer, fact.demand), (Answer::No, Demand::Must))
}

fn cells(report: &Report, outcome: CellOutcome) -> impl Iterator<Item = &Cell> {
    report.cells.iter().filter(move |cell| cell.outcome == outcome)
}

/// One fact, as the peer's author would say it.
fn fact_line(fact: &Fact) -> String {
    let answer = match (fact.answer, fact.demand) {
        (Answer::Yes, _) => "yes",
        (Answer::No, Demand::Must) => "NO",
        (Answer::No, Demand::Should) => "no (recommended)",
        (Answer::No, Demand::Open) => "no (left open)",
        (Answer::Unsure, _) => "unsure",
        (Answer::NotAsked, _) => "not asked",
    };
    let mut line = format!("{}: {answer}", fact.statement);
    if !fact.detail.is_empty() {
        let _ = write!(line, ", {}", shown(&fact.detail));
    }
    let witnesses: Vec<&str> = fact.evidence.iter().filter_map(|evidence| witness(*evidence)).collect();
    if !witnesses.is_empty() {
        let _ = write!(line, " (seen by {})", witnesses.join(", "));
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
        Evidence::Command => Some("the profile's command"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_peer_is_escaped_for_the_terminal_and_truncated() {
        assert_eq!(shown("a\u{1b}[31mé\n\u{202e}"), "a\\u{1b}[31mé\\n\\u{202e}");
        let long = shown(&"x".repeat(1 << 20));
        assert!(long.len() < 2_100 && long.ends_with("(1048576 bytes in all)"), "{long}");
    }
}
