//! Planted bugs: each is caught by a named test, and without a bug every test here passes.
//!
//! Some engines and the tests of wires are part of this program; the others are separate programs (`PROGRAMS`).
//! `each_bug_is_caught_where_the_table_says` runs the program again for each bug of the table, with only that test.
//! `planted.tsv` shows the table with what each bug is.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "what the tests share is part of them")]

#[path = "../../verification/tests/corpus.rs"]
mod corpus;
mod driver;
#[path = "../../verification/tests/reference.rs"]
mod reference;
#[path = "../../verification/tests/search.rs"]
mod search;
#[path = "../../verification/tests/sim.rs"]
mod sim;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rescind_core::failpoint::Failpoint;
use serde_json::Value;

use crate::table::{Row, mutations};

/// A wait of this length counts as a hang: a short one where a bug is planted, because a test with it may hang until then. Without one
/// the tests run beside all those processes.
fn hang() -> Duration {
    let is_planted = std::env::var_os("RESCIND_FAILPOINT").is_some();
    if is_planted { Duration::from_secs(5) } else { rescind_testkit::support::HANG }
}
/// The longest time for one bug.
const LONGEST: Duration = Duration::from_secs(120);

#[test]
fn every_bug_has_its_row() {
    let rows: BTreeSet<_> = mutations().iter().map(|row| row.failpoint.name()).collect();
    let all: BTreeSet<_> = Failpoint::ALL.iter().map(|failpoint| failpoint.name()).collect();
    assert_eq!(rows, all);
}

#[test]
fn each_bug_is_caught_where_the_table_says() {
    let (rows, next) = (mutations(), AtomicUsize::new(0));
    let uncaught: Vec<String> = std::thread::scope(|scope| {
        let work = || {
            let mut uncaught = Vec::new();
            while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                uncaught.extend(caught(row).err());
            }
            uncaught
        };
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(uncaught.is_empty(), "{} of {}:\n{}", uncaught.len(), rows.len(), uncaught.join("\n"));
}

/// Runs the test of a row with its bug. It must fail, with the reason of the row.
fn caught(row: &Row) -> Result<(), String> {
    // The time to build an engine does not count for its test.
    let mut command = run(row.test);
    let (name, begun) = (row.failpoint.name(), Instant::now());
    let mut child = command
        .env("RESCIND_FAILPOINT", name)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let streams = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let mut hung = false;
    let said = std::thread::scope(|scope| {
        let read = |mut stream: Box<dyn std::io::Read + Send>| {
            let mut said = Vec::new();
            let _ = stream.read_to_end(&mut said);
            String::from_utf8_lossy(&said).into_owned()
        };
        let out = scope.spawn(move || read(Box::new(streams.0)));
        let err = scope.spawn(move || read(Box::new(streams.1)));
        // The output ends with the process. Until then the process is only polled.
        while child.try_wait().unwrap().is_none() && begun.elapsed() < LONGEST {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        hung = child.try_wait().unwrap().is_none();
        let _ = child.kill();
        format!("{}\n{}", out.join().unwrap(), err.join().unwrap())
    });
    let status = child.wait().unwrap();
    let took = begun.elapsed().as_secs_f32();
    let reported = said.lines().find(|line| line.contains(row.says)).map(str::trim);
    match reported {
        Some(reported) if !hung && !status.success() && has_run(row.test, &said) => {
            println!("{name}: caught by {} in {took:.1} s: {reported}", row.test);
            Ok(())
        }
        _ => Err(format!("{name} is not caught by {} as `{}` ({status}):\n{said}", row.test, row.says)),
    }
}

// The program that contains a test: this one, or an engine with a separate program, which is built here with the
// bugs.

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
fn has_run(test: &str, said: &str) -> bool {
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
