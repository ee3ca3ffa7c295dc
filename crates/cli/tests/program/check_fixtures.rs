//! `rescind check` of our own fixture, in every dialect and on every wire: no fault, and nothing broke.
#![cfg(unix)]

use serde_json::Value;

use crate::common::{Fixture, output, text};

const DIALECTS: [&str; 7] = ["acp", "acp-v2", "acp-draft", "lsp", "mcp", "mcp-2026", "abp"];

/// Checks a peer and returns what the report has against it, or leaves open that was asked of it.
fn against(dialect: &str, peer: &[&str]) -> Vec<String> {
    let done = output(&[&["check", "--dialect", dialect, "--json"], peer].concat());
    assert_eq!(
        done.status.code(),
        Some(0),
        "{dialect} {peer:?}: {}{}",
        text(&done.stderr),
        text(&done.stdout)
    );
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    let least = if dialect == "abp" { 20 } else { 30 };
    assert!(report["summary"]["held"].as_u64().unwrap() > least, "{dialect} {peer:?}: {}", report["summary"]);
    let word = |one: &Value, name: &str| one[name].as_str().unwrap().to_owned();
    let facts = report["facts"].as_array().unwrap().iter().filter(|fact| fact["answer"] == "no");
    let facts = facts.map(|fact| format!("{}: {}", word(fact, "name"), word(fact, "detail")));
    let cells = report["cells"].as_array().unwrap().iter();
    let cells = cells.filter(|cell| cell["outcome"] == "broke" || cell["outcome"] == "unsure");
    let cells = cells.map(|cell| format!("{}: {}", word(cell, "scenario"), word(cell, "why")));
    facts.chain(cells).collect()
}

/// Checks the fixture of each dialect, all at once: a check waits more than it works.
fn all(check: impl Fn(&'static str) -> Vec<String> + Send + Sync + Copy) {
    std::thread::scope(|scope| {
        let checks = DIALECTS.map(|dialect| (dialect, scope.spawn(move || check(dialect))));
        for (dialect, check) in checks {
            assert_eq!(check.join().unwrap(), Vec::<String>::new(), "{dialect}");
        }
    });
}

fn listening(dialect: &str, endpoint: &str) -> Vec<String> {
    let fixture = Fixture::listen(dialect, endpoint, &[]);
    against(dialect, &[&fixture.endpoint])
}

#[test]
fn the_fixture_of_each_dialect_has_no_fault_over_stdio() {
    let rescind = env!("CARGO_BIN_EXE_rescind");
    all(|dialect| against(dialect, &["--", rescind, "fixture", "--dialect", dialect, "--listen", "stdio"]));
}

#[test]
fn the_fixture_of_each_dialect_has_no_fault_over_a_websocket() {
    all(|dialect| listening(dialect, "ws://127.0.0.1:0/agent"));
}

#[test]
fn the_fixture_of_each_dialect_has_no_fault_over_http() {
    all(|dialect| listening(dialect, "http://127.0.0.1:0/agent"));
}

#[test]
fn the_fixture_of_each_dialect_has_no_fault_over_a_pipe() {
    all(|dialect| {
        listening(dialect, &format!("pipe:rescind-check-fixture-{dialect}-{}", std::process::id()))
    });
}
