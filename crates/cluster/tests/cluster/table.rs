//! The table of `threats.md` names a test for each attack.

use std::fs;
use std::path::Path;

/// The rows of the table, without its head.
fn rows(page: &str) -> Vec<&str> {
    page.lines().filter(|line| line.starts_with('|')).skip(2).collect()
}

/// Each test is written as `FILE::NAME`, with a file of this package.
#[test]
fn each_threat_has_tests_that_exist() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rows = rows(include_str!("threats.md"));
    assert_eq!(rows.len(), 13, "the rows of the table");
    for row in rows {
        let tests = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap();
        let named: Vec<_> = tests.split('`').filter_map(|test| test.split_once("::")).collect();
        assert!(!named.is_empty(), "{row}: it names no test");
        for (file, test) in named {
            let source =
                fs::read_to_string(package.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            let is_a_test = source.split("test]\n").skip(1).any(|rest| {
                let head = rest.lines().find(|line| line.contains("fn ")).unwrap_or_default();
                head.contains(&format!("fn {test}("))
            });
            assert!(is_a_test, "{file} has no test {test}");
        }
    }
}
