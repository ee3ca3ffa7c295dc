//! The attack table: every attack or fault, the required behaviour, and the tests that check it.

use std::collections::BTreeMap;

use serde::Deserialize;

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
    let table: BTreeMap<String, Vec<Row>> = toml::from_str(include_str!("rows.toml")).expect("the table");
    let rows: Vec<_> = table.into_values().flatten().collect();
    assert_eq!(rows.len(), 23, "the rows of the attack table");
    rows
}
