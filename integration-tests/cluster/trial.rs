//! How a trial runs and waits, and the trials that read sources.

use std::collections::BTreeSet;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use rescind_testkit::support::HANG;

use super::nodes::Backend;

// How a trial runs and waits.

/// A test of one kind of cluster, with the function's name as its own.
pub(crate) fn trial<F: Future<Output = ()> + 'static>(
    backend: Backend,
    name: &str,
    test: fn(Backend) -> F,
) -> Trial {
    Trial::test(format!("cluster::{}::{name}", backend.name()), move || play(test(backend)))
        .with_ignored_flag(!backend.is_there())
}

/// Runs a test on a runtime of its own.
fn play(test: impl Future<Output = ()>) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(test);
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(())
}

/// The trials of these functions.
macro_rules! trials_of {
    ($backend:expr; $($module:ident: $($name:ident),+;)+) => {
        vec![$($(trial::trial($backend, stringify!($name), $module::$name)),+),+]
    };
}
pub(crate) use trials_of;

/// Waits for a condition that must be checked repeatedly, and returns how long it took.
pub(crate) async fn poll_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) -> Duration {
    let since = Instant::now();
    while !is_so().await {
        assert!(since.elapsed() < HANG, "not within {HANG:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    since.elapsed()
}

/// Prints a measured figure.
pub(crate) fn report(backend: Backend, what: &str, took: Duration) {
    tell(&format!("measured: {}: {what}: {:.1} ms", backend.name(), took.as_secs_f64() * 1e3));
}

/// Prints a line. Not by a macro, whose text the tests of other packages would hide.
pub(crate) fn tell(line: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{line}");
}

// Facts about the sources: the table of faults names tests that exist, and no code compares clocks of two machines.

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Each test that docs/cluster-faults.md names is one of these, and each test of a fault is named there.
pub(crate) fn the_table_of_faults_names_tests_that_exist(names: &[String]) -> Result<(), Failed> {
    let text = fs::read_to_string(root().join("docs/cluster-faults.md"))?;
    let known: BTreeSet<&str> = names.iter().filter_map(|name| name.split("::").last()).collect();
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
