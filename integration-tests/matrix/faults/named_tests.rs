//! The tests that the tables name, and whether they exist.

use std::collections::{BTreeMap, BTreeSet};

use libtest_mimic::Trial;
use serde::Deserialize;

// The attack table: every attack or fault, the required behaviour, and the tests that check it.

/// A file, from the root of the repository, and tests in it: the names of functions, or the prefixes of the names of
/// trials. A scenario is only a file.
pub(crate) type Tests = BTreeMap<String, Vec<String>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) attack: String,
    pub(crate) must_hold: String,
    pub(crate) tests: Tests,
}

/// Reads the table.
pub(crate) fn rows() -> Vec<Row> {
    let table: BTreeMap<String, Vec<Row>> =
        toml::from_str(include_str!("../../attacks/rows.toml")).expect("the table");
    let rows: Vec<_> = table.into_values().flatten().collect();
    assert_eq!(rows.len(), 26, "the rows of the attack table");
    rows
}

// Checks that a named test exists: built, marked, and not ignored.

/// The names of the trials that run.
pub(crate) struct Built(BTreeSet<String>);

impl Built {
    pub(crate) fn of(trials: &[Trial]) -> Self {
        let run = trials.iter().filter(|trial| !trial.has_ignored_flag());
        Self(run.map(|trial| trial.name().to_owned()).collect())
    }

    /// Whether the name of a trial begins with this. Outside Linux some trials are not made, which the run prints.
    pub(crate) fn has(&self, name: &str) -> bool {
        !cfg!(target_os = "linux") || self.0.iter().any(|built| built.starts_with(name))
    }
}

/// Whether a function with this name is marked as a test by the attributes directly above it, and is not ignored.
pub(crate) fn is_function(source: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    source.match_indices(&function).any(|(at, _)| is_marked(source.get(..at).unwrap_or_default()))
}

fn is_marked(before: &str) -> bool {
    let above = before.rsplit('\n').skip(1).map(str::trim);
    let marks: Vec<_> = above.take_while(|line| line.starts_with("#[") || line.starts_with("//")).collect();
    let is_test = |line: &&str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    marks.iter().any(is_test) && !marks.iter().any(|line| line.starts_with("#[ignore"))
}
