//! Facts about the sources: the table of faults names tests that exist, and no code compares clocks of two machines.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::Failed;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Each test that docs/cluster-faults.md names is one of these, and each test of a fault is named there.
pub(crate) fn the_table_of_faults_names_tests_that_exist(names: &[String]) -> Result<(), Failed> {
    let text = fs::read_to_string(root().join("docs/cluster-faults.md"))?;
    let known: BTreeSet<&str> = names.iter().filter_map(|name| name.split("::").nth(1)).collect();
    let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| Fault"));
    let mut in_table = BTreeSet::new();
    for row in rows {
        let last = row.trim_end_matches(['|', ' ']).rsplit('|').next().unwrap_or_default().trim();
        let tests: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        if tests.is_empty() {
            return Err(format!("no test in the row: {row}").into());
        }
        in_table.extend(tests);
    }
    let unknown: Vec<_> = in_table.difference(&known).collect();
    if !unknown.is_empty() || in_table.is_empty() {
        return Err(format!("the table names tests that do not exist: {unknown:?}").into());
    }
    Ok(())
}

/// A clock that is wrong on one node does no harm, because nothing asks for the time of day.
pub(crate) fn no_code_of_the_cluster_asks_for_the_time_of_day() -> Result<(), Failed> {
    let mut folders = vec![root().join("crates/cluster/src")];
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path)?;
            read += 1;
            for word in ["SystemTime", "UNIX_EPOCH", "'TIME'", "EXAT", "PXAT", "EXPIREAT"] {
                if text.contains(word) {
                    return Err(format!("{} has {word}", path.display()).into());
                }
            }
        }
    }
    if read < 15 { Err(format!("only {read} files were read").into()) } else { Ok(()) }
}
