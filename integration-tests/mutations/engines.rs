//! The program that contains a test: this one, or an engine with a separate program, which is built here with the
//! bugs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

/// Engines of this package, each with a program.
const PROGRAMS: [&str; 3] = ["faults", "known_bugs", "attacks"];
/// The engine of threads is a separate workspace, with a program for each of these.
const THREADS: [&str; 2] = ["calls", "requests"];
/// The number of thread orders that are tried. Each bug is found in the first few.
const ORDERS: &str = "200";
/// The duration of one soak, in minutes.
const MINUTES: &str = "0.1";

/// The command that runs this test. Its name is as in the table and begins with its engine if that is another
/// program.
pub(crate) fn run(test: &str) -> Command {
    if let Some(wire) = test.strip_prefix("soak::") {
        let mut soak = Command::new(env!("CARGO_BIN_EXE_soak"));
        soak.args(["--wire", wire, "--minutes", MINUTES]);
        return soak;
    }
    let (program, test) = match test.split_once("::") {
        Some((engine, test)) if PROGRAMS.contains(&engine) => (of_package(engine), test),
        Some(("threads", test)) => {
            let (file, test) = test.split_once("::").expect("a file and a test");
            (of_threads(file), test)
        }
        _ => (std::env::current_exe().unwrap(), test),
    };
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture"]).env("RESCIND_SCHEDULES", ORDERS);
    command
}

/// Whether the test ran at all: an unknown test name must not count as a failure.
pub(crate) fn has_run(test: &str, said: &str) -> bool {
    let reported = if test.starts_with("soak::") { " attacks, seed " } else { "running 1 test" };
    said.contains(reported)
}

fn of_package(name: &str) -> PathBuf {
    static BUILT: OnceLock<BTreeMap<String, PathBuf>> = OnceLock::new();
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    BUILT.get_or_init(|| build(manifest, "failpoints", &PROGRAMS))[name].clone()
}

fn of_threads(name: &str) -> PathBuf {
    static BUILT: OnceLock<BTreeMap<String, PathBuf>> = OnceLock::new();
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/threads/Cargo.toml");
    BUILT.get_or_init(|| build(manifest, "rescind-core/failpoints", &THREADS))[name].clone()
}

/// The programs of these tests, by name.
fn build(manifest: &str, feature: &str, tests: &[&str]) -> BTreeMap<String, PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["test", "--no-run", "--locked", "--message-format", "json-render-diagnostics"])
        .args(["--manifest-path", manifest, "--features", feature])
        .args(tests.iter().flat_map(|test| ["--test", test]))
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(built.status.success(), "the engines of {manifest} are not built: {}", built.status);
    let reported = String::from_utf8(built.stdout).unwrap();
    let artifacts = reported.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    artifacts
        .filter_map(|artifact| {
            let name = artifact.pointer("/target/name")?.as_str()?;
            let program = artifact.get("executable")?.as_str()?;
            tests.contains(&name).then(|| (name.to_owned(), program.into()))
        })
        .collect()
}
