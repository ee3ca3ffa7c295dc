//! The faults that the crates' own tests cover on their wire, so that they are not repeated here.
//!
//! The table in `main.rs` is a summary. `covered.toml` names each test. A test here checks that it exists.

use std::path::Path;
use std::sync::Arc;

use libtest_mimic::Trial;

use crate::rows::{Tests, rows};
use crate::test_names::{Built, is_function};

/// The folder of these trials.
const HERE: &str = "integration-tests/matrix/faults/";

/// `others`: all trials of this program except these. The trials that the attack table names in this program are
/// looked up here too.
pub(crate) fn trials(others: &[Trial]) -> Vec<Trial> {
    let built = Arc::new(Built::of(others));
    let there = |(file, tests): (String, Vec<String>), what: &str| {
        let built = Arc::clone(&built);
        Trial::test(format!("covered_elsewhere::the_tests_named_{what}_are_there::{file}"), move || {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            let text =
                std::fs::read_to_string(root.join(&file)).map_err(|error| format!("{file}: {error}"))?;
            for test in &tests {
                let is_there = if test.contains("::") { built.has(test) } else { is_function(&text, test) };
                if !is_there {
                    return Err(format!(
                        "{file} has no test `{test}` any more: prove it here, or name its new place"
                    )
                    .into());
                }
            }
            Ok(())
        })
    };
    let covered: Tests = toml::from_str(include_str!("covered.toml")).expect("the table");
    assert_eq!(covered.len(), 15, "files with covered faults");
    let mut trials: Vec<_> = covered.into_iter().map(|tests| there(tests, "here")).collect();
    for (at, row) in rows().into_iter().enumerate() {
        let of_it = row.tests.into_iter().filter(|(file, _)| file.starts_with(HERE));
        trials.extend(of_it.map(|tests| there(tests, &format!("by_attack_{}", at + 1))));
    }
    trials.push(Trial::test("covered_elsewhere::what_is_no_test_or_is_ignored_is_none", || {
        let text = "#[test]\nfn one() {}\n\nasync fn two() {}\n\n/// Words.\n#[tokio::test]\nasync fn three() {}\n\
                    #[test]\n#[ignore = \"slow\"]\nfn four() {}\n// test\nfn five() { six() }\n#[test]\nfn six() {}\n";
        assert_eq!(
            ["one", "two", "three", "four", "five", "six", "seven"].map(|name| is_function(text, name)),
            [true, false, true, false, false, true, false]
        );
        let trials = [
            Trial::test("a::b::one", || Ok(())),
            Trial::test("a::b::two (not here)", || Ok(())).with_ignored_flag(true),
        ];
        let built = Built::of(&trials);
        let there = ["a::b::", "a::b::one", "a::b::two", "a::c::"].map(|name| built.has(name));
        assert!(!cfg!(target_os = "linux") || there == [true, true, false, false], "{there:?}");
        Ok(())
    }));
    trials
}
