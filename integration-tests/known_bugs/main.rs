//! Known bugs of other projects, each provoked with our driver and transports: one file for the libraries of
//! MCP, one for those of LSP and one for ACP and others; one test for each bug, named after it. The comment above a test describes the other project's behaviour.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "what the tests share is part of them"
)]

mod lsp;
mod mcp;
mod raw_peer;
mod rpc;

use std::collections::BTreeSet;

use rescind_testkit::support::table;

/// The number of bugs in the design. It detects a bug that is removed from this list together with its test.
const KNOWN: usize = 21;

#[test]
fn every_known_bug_has_its_test_and_every_test_its_bug() {
    let rows: Vec<[&str; 2]> = table(include_str!("bugs.txt")).collect();
    assert_eq!(rows.len(), KNOWN);
    let this = include_str!("main.rs");
    let files: BTreeSet<_> = rows.iter().map(|[file, _]| *file).collect();
    for file in files {
        assert!(this.contains(&format!("\nmod {file};\n")), "{file} is not compiled");
        let source = format!("{}/known_bugs/{file}.rs", env!("CARGO_MANIFEST_DIR"));
        let source = std::fs::read_to_string(source).unwrap();
        let bugs: Vec<_> = rows.iter().filter(|[of, _]| *of == file).map(|[_, bug]| *bug).collect();
        let tests: Vec<_> = source
            .split("#[tokio::test")
            .skip(1)
            .filter_map(|test| test.split_once("async fn ")?.1.split('(').next())
            .collect();
        assert_eq!(tests, bugs, "{file}");
        let is_about = |test: &&str| test.contains("\n    is_about!(\"");
        let numbered = source.split("#[tokio::test").filter(is_about).count();
        assert_eq!(numbered, bugs.len(), "{file} has a test that does not say which invariant it is about");
        assert!(!source.contains("#[ignore"), "{file} has a test that is not run");
    }
}
