//! Checks that the `source` of every vector has a form that the vectors' README lists: each begins with the origin of
//! its sentence.

use std::path::Path;

use rescind_testkit::{Scenario, scenarios};

/// The prefixes of the five documents in COVERAGE.md.
const DOCUMENTS: [&str; 5] = ["ACPDRAFT", "ACP", "GETMCP", "ACPRFD", "ABP"];

/// Protocols beyond the five documents. For MCP: each revision that a dialect supports, and the revision that removed
/// batches.
const PROTOCOLS: [&str; 8] = [
    "ACP's schema",
    "JSON-RPC 2.0",
    "LSP 3.18",
    "MCP 2024-11-05",
    "MCP 2025-03-26",
    "MCP 2025-06-18",
    "MCP 2025-11-25",
    "MCP 2026-07-28",
];

/// The headings of `docs/semantics.md` and `docs/dialects.md` that contain our own decisions.
const DECISIONS: [(&str, &[&str]); 2] = [
    (
        "docs/semantics.md",
        &[
            "Keys",
            "Inbound",
            "Outbound",
            "What a caller sees",
            "Cascade",
            "Order",
            "Limits",
            "Shutdown",
            "Locks and drops",
            "Invariants",
        ],
    ),
    ("docs/dialects.md", &["table", "ACP", "ACP_DRAFT", "MCP", "MCP_2026", "ABP", "The fixture agent"]),
];

#[derive(Debug, PartialEq, Eq)]
enum Origin<'a> {
    /// The prefixes of documents.
    Documents(Vec<&'a str>),
    Protocol,
    Ours,
}

/// The origin of a sentence. `None` if its head has no known form or no sentence follows.
fn origin(source: &str) -> Option<Origin<'_>> {
    let (head, sentence) = source.split_once(": ")?;
    if sentence.trim().is_empty() {
        return None;
    }
    if PROTOCOLS.contains(&head) {
        return Some(Origin::Protocol);
    }
    if let Some(decision) = head.strip_prefix("ours (").and_then(|rest| rest.strip_suffix(')')) {
        let (page, heading) = decision.split_once(", ")?;
        let known = DECISIONS.iter().any(|(name, headings)| *name == page && headings.contains(&heading));
        return known.then_some(Origin::Ours);
    }
    let prefixes: Vec<_> = head.split(", ").collect();
    let all = prefixes.iter().all(|prefix| DOCUMENTS.contains(prefix));
    all.then_some(Origin::Documents(prefixes))
}

/// What is wrong with the `source` of a vector that covers these rows.
fn fault(source: &str, covers: &[String]) -> Option<String> {
    let Some(origin) = origin(source) else { return Some(format!("no known origin: {source}")) };
    let Origin::Documents(prefixes) = origin else { return None };
    let has_row = |prefix: &str| {
        covers.iter().any(|row| row.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('-')))
    };
    let without: Vec<_> = prefixes.into_iter().filter(|prefix| !has_row(prefix)).collect();
    (!without.is_empty()).then(|| format!("covers no row of {}: {source}", without.join(", ")))
}

#[test]
fn a_source_names_its_origin_and_a_document_only_with_a_row_of_it() {
    let name = |scenario: &Scenario| format!("{}/{}", scenario.dialect, scenario.vector.name);
    let wrong = |scenario: &Scenario| {
        let vector = &scenario.vector;
        fault(&vector.source, &vector.covers).map(|fault| format!("{}: {fault}", name(scenario)))
    };
    let wrong: Vec<_> = scenarios().iter().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{} vectors:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn each_heading_that_a_source_may_name_is_on_its_page() {
    for (page, headings) in DECISIONS {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        let on_page: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        for heading in headings {
            assert!(on_page.iter().any(|found| found.eq_ignore_ascii_case(heading)), "{page}: {heading}");
        }
    }
}

#[test]
fn the_source_rule_finds_a_violation() {
    let covers = ["ACP-06".to_owned(), "I1".to_owned()];
    for good in [
        "ACP: it is so.",
        "JSON-RPC 2.0: it is so.",
        "MCP 2025-11-25: it is so.",
        "ACP's schema: it is so.",
        "ours (docs/semantics.md, Keys): it is so.",
        "ours (docs/dialects.md, The fixture agent): it is so.",
    ] {
        assert_eq!(fault(good, &covers), None, "{good}");
    }
    for bad in [
        "it is so.",
        "ACP:",
        "ACP:  ",
        "ACPRFD: no row of it is covered.",
        "ACP, ACPRFD: a row of one of the two is covered.",
        "ACP, as version 2 has it: a form that is not known.",
        "005: there is no such document.",
        "RULE: a rule names its protocol.",
        "I1: an invariant is no document.",
        "MCP 2025-11-26: there is no such revision.",
        "ours: without its page.",
        "ours (docs/semantics.md): without its heading.",
        "ours (docs/semantics.md, Batches): under a heading that is not there.",
        "ours (docs/dialects.md, Keys): under a heading of another page.",
    ] {
        assert!(fault(bad, &covers).is_some(), "{bad}");
    }
}
