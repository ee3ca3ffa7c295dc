//! The results as a file in the form of `JUnit`, which most services that run tests can show.

use std::fmt::Write as _;

use rescind_testkit::{Answer, CellOutcome, Demand, Report};

/// What a test case of the file came to.
enum Case<'a> {
    Passed,
    Failed(&'a str),
    Skipped(&'a str),
}

/// The file: a test suite of the facts and one of the scenarios.
pub(super) fn file(report: &Report) -> String {
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
    suite(&mut text, "facts", &facts.collect::<Vec<_>>());
    suite(&mut text, "scenarios", &scenarios.collect::<Vec<_>>());
    text.push_str("</testsuites>\n");
    text
}

fn suite(text: &mut String, name: &str, cases: &[(&str, Case)]) {
    let count = |is_it: fn(&Case) -> bool| cases.iter().filter(|(_, case)| is_it(case)).count();
    let (failures, skipped) =
        (count(|case| matches!(case, Case::Failed(_))), count(|case| matches!(case, Case::Skipped(_))));
    let _ = writeln!(
        text,
        "  <testsuite name=\"{name}\" tests=\"{}\" failures=\"{failures}\" skipped=\"{skipped}\">",
        cases.len()
    );
    for (case_name, case) in cases {
        let head = format!("    <testcase classname=\"{name}\" name=\"{}\"", escaped(case_name));
        let _ = match case {
            Case::Passed => writeln!(text, "{head}/>"),
            Case::Failed(why) => {
                writeln!(text, "{head}><failure message=\"{}\"/></testcase>", escaped(why))
            }
            Case::Skipped(why) => {
                writeln!(text, "{head}><skipped message=\"{}\"/></testcase>", escaped(why))
            }
        };
    }
    text.push_str("  </testsuite>\n");
}

/// Text in an attribute. Characters that XML does not allow are left out.
fn escaped(text: &str) -> String {
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

#[cfg(test)]
mod tests {
    use rescind_testkit::Cell;

    use super::*;

    #[test]
    fn a_failure_is_a_failure_and_what_is_unsure_is_skipped() {
        let scenario = rescind_testkit::scenarios().first().unwrap();
        let mut broke = Cell::not_asked(scenario, "stdio", "a <b> & \"c\"\u{1b}");
        broke.outcome = CellOutcome::Broke;
        let mut unsure = broke.clone();
        unsure.outcome = CellOutcome::Unsure;
        let text = file(&Report::new(vec![broke, unsure]));
        assert!(text.contains("tests=\"2\" failures=\"1\" skipped=\"1\""), "{text}");
        assert!(text.contains("<failure message=\"a &lt;b&gt; &amp; &quot;c&quot;\"/>"), "{text}");
    }
}
