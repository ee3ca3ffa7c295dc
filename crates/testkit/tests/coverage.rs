//! Compares COVERAGE.md with the evidence: every row has its vector or test, and every citation names an existing
//! row. And the `source` of every vector has a form that the vectors' README lists: each begins with the origin of its
//! sentence.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "what the tests share is part of them")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rescind_testkit::{Scenario, scenarios};

const WAITING: &str = include_str!("../vectors/waiting.toml");
const TABLE: &str = include_str!("../COVERAGE.md");
/// The prefix of a line in a Rust test that cites rows and invariants, separated by commas.
const MARK: &str = concat!("// cov", "ers:");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ok,
    Test,
    None,
}

/// Reads the four-column rows only, because the notes repeat ids.
fn rows() -> BTreeMap<String, Status> {
    let row = |line: &str| {
        let cells: Vec<_> = line.trim().trim_matches('|').split(" | ").map(str::trim).collect();
        let [id, _, _, status] = cells.as_slice() else { return None };
        let status = match *status {
            "ok" => Status::Ok,
            "test" => Status::Test,
            "none" => Status::None,
            _ => return None,
        };
        Some(((*id).to_owned(), status))
    };
    TABLE.lines().filter_map(row).collect()
}

fn cited_by_vectors() -> BTreeSet<String> {
    scenarios().iter().flat_map(|scenario| scenario.vector.covers.iter().cloned()).collect()
}

fn cited_by_tests() -> BTreeSet<String> {
    let mut files = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for folder in ["crates", "integration-tests", "examples"] {
        rust_files(&root.join(folder), &mut files);
    }
    let texts = files.iter().filter_map(|file| fs::read_to_string(file).ok());
    let marks = texts.flat_map(|text| {
        let marked = |line: &str| line.trim().strip_prefix(MARK).map(str::to_owned);
        text.lines().filter_map(marked).collect::<Vec<_>>()
    });
    marks.flat_map(|ids| ids.split([',', ' ']).map(|id| id.trim().to_owned()).collect::<Vec<_>>()).collect()
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && path.file_name().is_none_or(|name| name != "target" && name != "node_modules") {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
}

fn waiting(section: &str) -> BTreeMap<String, String> {
    let table: toml::Table = toml::from_str(WAITING).unwrap();
    let rows = table[section].as_table().unwrap().iter();
    rows.map(|(row, why)| (row.clone(), why.as_str().unwrap().to_owned())).collect()
}

#[test]
fn the_table_is_read_whole() {
    let rows = rows();
    let prefixes = ["ACPDRAFT", "ACP", "GETMCP", "ACPRFD", "ABP", "RULE"];
    let count = |prefix: &str| rows.keys().filter(|id| id.starts_with(&format!("{prefix}-"))).count();
    assert_eq!(prefixes.map(count), [64, 19, 20, 36, 33, 18]);
    assert_eq!(rows.len(), 190, "a row has a prefix of its own");
    for prefix in prefixes {
        assert!(
            TABLE.contains(&format!("\n| `{prefix}` | ")),
            "the head of the page does not explain {prefix}"
        );
    }
}

#[test]
fn every_ok_row_has_a_vector_or_waits_for_a_transport() {
    let (vectors, tests) = (cited_by_vectors(), cited_by_tests());
    let (http, rust) = (waiting("http"), waiting("rust"));
    let mut missing = Vec::new();
    for (row, _) in rows().iter().filter(|(_, status)| **status == Status::Ok) {
        match (vectors.contains(row), http.get(row), rust.contains_key(row)) {
            (true, None, _) => {}
            (false, Some(why), _) => println!("{row} waits: {why}"),
            (false, None, true) if tests.contains(row) => {}
            (true, Some(_), _) => missing.push(format!("{row} has a vector: take it out of waiting.toml")),
            (false, None, _) => missing.push(format!("{row} has no evidence")),
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_row_about_the_library_has_a_rust_test() {
    let (tests, driver) = (cited_by_tests(), waiting("driver"));
    let mut missing = Vec::new();
    for (row, _) in rows().iter().filter(|(_, status)| **status == Status::Test) {
        match (tests.contains(row), driver.get(row)) {
            (true, None) => {}
            (true, Some(_)) => println!("{row} has a test: take it out of waiting.toml"),
            (false, Some(what)) => println!("{row} waits for the driver's tests: {what}"),
            (false, None) => missing.push(row.clone()),
        }
    }
    assert!(missing.is_empty(), "no test has the comment `{MARK} ROW` for {missing:?}");
}

#[test]
fn evidence_names_only_rows_that_exist_and_can_be_observed() {
    let rows = rows();
    let is_invariant = |id: &str| {
        let number = id.strip_prefix(['I', 'L']).and_then(|number| number.parse::<u32>().ok());
        number.is_some_and(|number| (1..=17).contains(&number))
    };
    let known = |id: &String| is_invariant(id) || matches!(rows.get(id), Some(Status::Ok | Status::Test));
    for scenario in scenarios() {
        let (dialect, vector) = (scenario.dialect, &scenario.vector);
        let strange: Vec<_> = vector.covers.iter().filter(|id| !known(id)).collect();
        assert!(strange.is_empty(), "{dialect}/{} names {strange:?}", vector.name);
        assert!(!vector.covers.is_empty(), "{dialect}/{} is evidence for nothing", vector.name);
        assert!(!vector.source.is_empty() && !vector.title.is_empty(), "{dialect}/{}", vector.name);
    }
    let strange: Vec<_> = cited_by_tests().into_iter().filter(|id| !id.is_empty() && !known(id)).collect();
    assert!(strange.is_empty(), "a Rust test names {strange:?}");
}

#[test]
fn every_invariant_is_cited_by_a_vector_or_a_test() {
    let cited: BTreeSet<_> = cited_by_vectors().into_iter().chain(cited_by_tests()).collect();
    let missing: Vec<_> =
        (1..=14).chain(16..=17).map(|number| format!("I{number}")).filter(|id| !cited.contains(id)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_core_scenarios_have_the_same_name_in_every_dialect() {
    let everywhere = [
        "cancel_running",
        "cancel_twice",
        "cancel_finished",
        "cancel_unknown",
        "cancel_queued",
        "reuse_while_draining",
        "partial_result",
        "deaf_handler_grace",
        "fail_after_cancel",
        "panic",
        "siblings_untouched",
        "malformed_cancel_null",
        "malformed_frame_then_valid",
        "unknown_notification",
        "progress_never_after",
        "half_close_answers",
        "disconnect_stops_work",
        "local_cancel_limit",
        "local_cancel_shutdown",
        "local_cancel_deadline",
        "blocking_poll",
        "unknown_method",
        "drop_before_written_sends_nothing",
        "cancel_call_confirmed",
        "completed_after_cancel",
        "late_answer_ignored",
        "unresponsive",
        "return_now",
        "disconnect_with_cancel_asked",
    ];
    for dialect in &rescind_core::dialect::ALL {
        for name in everywhere {
            let has = |scenario: &&rescind_testkit::Scenario| scenario.vector.name == name;
            assert!(
                rescind_testkit::scenarios_of(dialect.name()).any(|it| has(&it)),
                "{} lacks {name}",
                dialect.name()
            );
        }
    }
}

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
