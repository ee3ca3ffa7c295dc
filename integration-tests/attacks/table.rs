//! Every row of the attack table, every promise of `docs/promises.md` and every fault of `bridge_faults.toml` has its tests:
//! a missing or ignored test, or one that is not a test any more, fails here.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use libtest_mimic::{Failed, Trial};
use serde::Deserialize;

use crate::named_tests::{Built, Row, Tests, is_function, rows};

/// The folder of these trials. Other programs check their own trials.
const HERE: &str = "integration-tests/attacks/";

/// `others`: all trials of this program except these.
pub(crate) fn trials(others: &[Trial]) -> Vec<Trial> {
    let built = Arc::new(Built::of(others));
    let held = |(at, row): (usize, Row)| {
        let built = Arc::clone(&built);
        Trial::test(format!("table::row_{}_is_held: {}", at + 1, row.attack), move || is_held(&row, &built))
    };
    let mut trials: Vec<_> = rows().into_iter().enumerate().map(held).collect();
    let promised = Arc::clone(&built);
    trials.push(Trial::test("table::every_promise_is_a_test", move || promises_are_backed(&promised)));
    let faults = Arc::clone(&built);
    trials
        .push(Trial::test("table::every_fault_of_the_bridge_is_a_test", move || faults_are_backed(&faults)));
    trials.push(Trial::test("table::a_test_that_is_gone_is_told", move || gone(&built)));
    trials
}

fn is_held(row: &Row, built: &Built) -> Result<(), Failed> {
    are_there(&row.tests, &row.must_hold, built)
}

/// Whether all these tests exist. Otherwise the error has what they show.
fn are_there(tests: &Tests, shown: &str, built: &Built) -> Result<(), Failed> {
    for (file, names) in tests {
        let source = read(file)?;
        for test in names {
            if !is_there(file, &source, test, built) {
                return Err(format!("{file} has no test `{test}` any more, which holds: {shown}").into());
            }
        }
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fault {
    of: String,
    what: String,
    /// What the user of the bridge sees.
    sees: String,
    tests: Tests,
}

/// Each fault of a bridge has tests, and each of them exists.
fn faults_are_backed(built: &Built) -> Result<(), Failed> {
    let table: BTreeMap<String, Vec<Fault>> = toml::from_str(include_str!("bridge_faults.toml"))?;
    let faults: Vec<_> = table.into_values().flatten().collect();
    for Fault { of, what, sees, tests } in &faults {
        if tests.values().all(Vec::is_empty) {
            return Err(format!("no test shows this fault of {of}: {what}").into());
        }
        are_there(tests, &format!("{what}: {sees}"), built)?;
    }
    let least = 30;
    if faults.len() < least { Err(format!("there are {} faults", faults.len()).into()) } else { Ok(()) }
}

fn read(file: &str) -> Result<String, Failed> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}").into())
}

fn gone(built: &Built) -> Result<(), Failed> {
    for (file, test) in [
        ("integration-tests/attacks/many_messages.rs", "no_such_test"),
        ("integration-tests/attacks/many_messages.rs", "one_id"),
        ("integration-tests/attacks/many_messages.rs", "ids::no_such_trial::"),
        ("integration-tests/attacks/table.rs", "ids::no_such_trial::"),
        ("verification/tests/search.rs", "on_a_core"),
        ("crates/testkit/src/conformance.rs", "no_such_rule"),
    ] {
        if is_there(file, &read(file)?, test, built) {
            return Err(format!("{test} of {file}, which is not there, was found").into());
        }
    }
    Ok(())
}

/// The table of `docs/promises.md`: each row has links, and each link names a test and points to its file.
fn promises_are_backed(built: &Built) -> Result<(), Failed> {
    let page = "docs/promises.md";
    let text = read(page)?;
    let below = text.lines().skip_while(|line| *line != "# Promises").skip(1);
    let rows = below.take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with("| "));
    // The rows after the head of each table.
    let rows = rows.filter(|row| !row.ends_with("| test |"));
    let mut kept = 0;
    for row in rows {
        let links: Vec<_> = row.split("[`").skip(1).filter_map(|link| link.split_once("`](")).collect();
        if links.is_empty() {
            return Err(format!("nothing backs this row of {page}: {row}").into());
        }
        for (test, rest) in links {
            let file = rest.split(')').next().unwrap_or_default().trim_start_matches("../");
            if !is_there(file, &read(file)?, test, built) {
                return Err(format!("{file} has no test `{test}`").into());
            }
        }
        kept += 1;
    }
    let least = 10;
    if kept < least { Err(format!("{page} has {kept} promises").into()) } else { Ok(()) }
}

/// Whether the test exists: a function that is marked as a test; one that a macro of its file or the conformance
/// suite makes a test; a trial, by the prefix of its name; or the command that runs a program whose trials are made
/// from data, as its module documentation contains it.
fn is_there(file: &str, source: &str, test: &str, built: &Built) -> bool {
    if test.starts_with("cargo test ") {
        return source.lines().any(|line| line.starts_with("//! ") && line.contains(test));
    }
    if test.contains("::") {
        let is_ours = file.starts_with(HERE);
        return source.contains(&format!("\"{test}")) && (!is_ours || built.has(test));
    }
    if file == "crates/testkit/src/conformance.rs" {
        return source.contains(&format!("\npub async fn {test}("))
            && source.contains(&format!("rule!({test});"));
    }
    // A macro that makes tests has one on each line.
    let makes_tests = source
        .lines()
        .zip(source.lines().skip(1))
        .any(|(mark, function)| mark.trim() == "#[test]" && function.trim() == "fn $name() {");
    let is_given = || source.lines().any(|line| line.trim_start().starts_with(&format!("{test}: ")));
    is_function(source, test) || (makes_tests && is_given())
}
