//! The profiles of this crate are valid, and servers of tasks are judged as they are.

#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

mod tasks;

use std::fs;
use std::path::Path;

use rescind_testkit::{Profile, RequestKind, scenarios};

fn profiles() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|end| end == "toml"))
        .map(|path| {
            (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(&path).unwrap())
        })
        .collect()
}

#[test]
fn every_profile_is_valid_and_can_play_a_scenario() {
    let profiles = profiles();
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/check.md")).unwrap();
    assert!(!profiles.is_empty());
    for (name, text) in profiles {
        let profile = Profile::from_toml(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(profile.requests.contains_key(&RequestKind::Slow), "{name} has nothing to cancel");
        for deviation in profile.deviations.keys() {
            let is_vector = scenarios().iter().any(|scenario| scenario.vector.name == *deviation);
            // The page has a row for each fact.
            let is_fact =
                page.lines().any(|line| line.starts_with('|') && line.contains(&format!("`{deviation}`")));
            assert!(is_vector || is_fact, "{name}: no vector and no fact is named `{deviation}`");
        }
    }
}
