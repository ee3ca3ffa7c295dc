//! `docs/verification.md`, `reached.tsv` and the table of the planted bugs must agree with the code. If `RESCIND_PRINT` is
//! set, the first and the last are written instead.

#[path = "../../integration-tests/mutations/table.rs"]
mod table;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use rescind_core::dialect::Role;
use rescind_testkit::wires::{WIRES, not_asked};
use rescind_testkit::{Scenario, scenarios};
use rescind_verification::Class;
use rescind_verification::bus::Bug;
use rescind_verification::coverage::{self, Depth, ENGINES, INVARIANTS};
use rescind_verification::search::{BEGINNING, search};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/verification.md");
const PLANTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../integration-tests/mutations/planted.tsv");

fn planted() -> String {
    let head = "# Planted bugs and the tests that catch them: bug, what it is, caught by, as. docs/verification.md says how they are\n\
                # played. Printed: RESCIND_PRINT=1 cargo test -p rescind-verification --test page\n";
    let mut out = head.to_owned();
    for table::Row { failpoint, test, says } in table::mutations() {
        let _ = writeln!(out, "{}\t{}\t{test}\t{says}", failpoint.name(), failpoint.what());
    }
    for bug in Bug::ALL {
        let (name, what, breaks) = (bug.name(), bug.what(), bug.breaks());
        let test = name.replace('-', "_");
        let _ = writeln!(out, "{name}\t{what}\tcancel_bus::{test}\t{breaks} is broken");
    }
    out
}

#[test]
fn the_page_is_up_to_date() {
    let page = std::fs::read_to_string(PAGE).unwrap_or_default();
    for (path, renewed) in [(PAGE, coverage::renewed(&page)), (PLANTED, planted())] {
        if std::env::var_os("RESCIND_PRINT").is_some() {
            std::fs::write(path, renewed).expect("the page can be written");
            continue;
        }
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            page == renewed,
            "renew {path}: RESCIND_PRINT=1 cargo test -p rescind-verification --test page"
        );
    }
}

#[test]
fn every_invariant_has_an_engine_and_every_engine_reports_its_depth() {
    let known: BTreeSet<_> = INVARIANTS.iter().map(|invariant| invariant.number).collect();
    let checked: BTreeSet<_> = ENGINES.iter().flat_map(|engine| engine.checks).copied().collect();
    assert_eq!(known, checked);
    let rows = std::fs::read_to_string(coverage::REACHED).expect("the table is there");
    for engine in ENGINES.iter().filter(|engine| engine.depth == Depth::Reported) {
        assert!(rows.contains(&format!("\n{}\t", engine.name)), "{} reported nothing", engine.name);
    }
    let reported = |engine: &str, least: u64| {
        let first = |row: &str| row.rsplit('\t').next()?.split(' ').next()?.parse::<u64>().ok();
        let of_it = rows.lines().filter(|row| row.starts_with(&format!("{engine}\t")));
        of_it.filter(|row| first(row).is_some_and(|reached| reached >= least)).count()
    };
    for class in Class::ALL.into_iter().filter(|class| class.role() == Role::Server) {
        for order in class.orders() {
            let row = format!("search\t{class:?}, {}", order.name());
            assert_eq!(reported(&row, 1_000_000), 1, "{row}");
        }
    }
    for dialect in &rescind_core::dialect::ALL {
        let row = format!("reference\t{}", dialect.name().replace('-', "_"));
        assert_eq!(reported(&row, 10_000), 1, "{row}");
    }
    let seeds = |wire: &str| -> u64 {
        let of_it = rows.lines().filter_map(|row| row.strip_prefix("simulation\t")?.strip_prefix(wire));
        of_it.filter_map(|row| row.rsplit('\t').next()?.split(' ').next()?.parse::<u64>().ok()).sum()
    };
    for wire in ["memory_", "websocket_", "http_streamable_", "http_stateless_", "http_acp_"] {
        assert!(seeds(wire) >= 100_000, "{wire}: {} seeds", seeds(wire));
    }
}

/// The invariants that are claimed for engines that observe programs from outside are those that their tests name: as
/// a word in their code, as an invariant that the simulation's judge checks, or in the `covers` of a vector that is
/// played on some transport. The comparison of outcomes between transports is named in the file that compares them.
#[test]
fn the_engines_without_a_session_name_the_invariants_they_check() {
    let words = |paths: &[&str]| -> BTreeSet<String> {
        code(paths).split(|c: char| !c.is_ascii_alphanumeric()).map(ToOwned::to_owned).collect()
    };
    let judged = code(&["src/sim"]);
    let mut played = words(&["../crates/testkit/src/runner/outcomes.rs"]);
    let is_played =
        |scenario: &&Scenario| WIRES.into_iter().any(|wire| not_asked(wire, scenario) == Ok(None));
    played.extend(scenarios().iter().filter(is_played).flat_map(|scenario| scenario.vector.covers.clone()));
    for (name, named) in [
        (
            "threads",
            words(&["../integration-tests/threads/tests", "../integration-tests/threads/tests/http_site"]),
        ),
        ("soak", words(&["../integration-tests/soak"])),
        ("attacks", words(&["../integration-tests/attacks"])),
        ("simulation", judged.split('"').map(ToOwned::to_owned).collect()),
        ("matrix", played),
    ] {
        let named: Vec<_> =
            INVARIANTS.iter().map(|invariant| invariant.number).filter(|n| named.contains(*n)).collect();
        let engine = ENGINES.iter().find(|engine| engine.name == name).expect("it is an engine");
        assert_eq!(named, engine.checks, "{name}");
    }
    // CI counts the pairs when they run, and requires the same number.
    let threads = ENGINES.iter().find(|engine| engine.name == "threads").map(|engine| engine.depth);
    let Some(Depth::Table(depth)) = threads else { panic!("threads are an engine") };
    let pairs = depth.split(' ').next().unwrap_or_default();
    let step = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../.ci/threads"));
    assert!(
        step.is_ok_and(|step| step.contains(&format!("-ge {pairs} ]"))),
        "CI wants another number than {pairs}"
    );
}

/// The code of a file, or of all files of a folder. Comments are removed, because a comment checks nothing.
fn code(paths: &[&str]) -> String {
    let mut code = String::new();
    for path in paths {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path);
        let files: Vec<_> = match std::fs::read_dir(&path) {
            Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
            Err(_) => vec![path],
        };
        for file in files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "rs")) {
            let source =
                std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            let lines = source.lines().filter(|line| !line.trim_start().starts_with("//"));
            code.extend(lines.flat_map(|line| [line, "\n"]));
        }
    }
    code
}

/// CI runs every engine.
#[test]
fn every_engine_is_a_step_of_ci() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let run = read(".ci/run");
    let steps: Vec<_> = ["first", "beside", "meanwhile", "last"]
        .iter()
        .flat_map(|part| {
            let steps =
                run.lines().find_map(|line| line.strip_prefix(&format!("{part}=\""))?.strip_suffix('"'));
            steps.expect("its steps").split(' ')
        })
        .collect();
    for (engine, step, word) in [
        ("search", "verify", "run_test verification:search"),
        ("reference", "verify", "run_test verification:reference"),
        ("simulation", "verify", "run_test verification:sim"),
        ("cancel bus", "verify", "run_test verification:cancel_bus"),
        ("fuzz", "fuzz", "cargo fuzz"),
        ("attacks", "attacks", "run_test integration-tests:attacks"),
        ("matrix", "matrix", "matrix"),
        ("threads", "threads", "integration-tests/threads/Cargo.toml"),
        ("soak", "soak", "/soak\" --wire"),
        ("corpus, known bugs, regressions", "test", "--workspace"),
        ("planted bugs", "mutations", "--test mutations"),
    ] {
        assert!(
            steps.contains(&step) && read(&format!(".ci/{step}")).contains(word),
            "CI leaves {engine} out"
        );
    }
    assert!(ENGINES.len() == 9, "an engine more has a line more above");
}

/// `.ci/verify` goes at least as deep as the search for planted bugs, and `.ci/nightly` as deep as the design
/// requires.
#[test]
fn ci_searches_deep_enough_for_the_planted_bugs_and_nightly_runs_completely() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let number = |text: &str, name: &str| -> u64 {
        let (_, value) = text.split_once(name).unwrap_or_else(|| panic!("{name} is not there"));
        let digits: String = value.chars().filter(|c| *c != '_').take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or_else(|_| panic!("{name} has no number"))
    };
    let (search, reference, sim) = (
        read("verification/tests/search.rs"),
        read("verification/tests/reference.rs"),
        read("verification/tests/sim.rs"),
    );
    let verify = read(".ci/verify");
    let row = |of: &str| verify.lines().find(|row| row.trim_start().starts_with(of)).unwrap_or_default();
    let (change, night) = (row("\"\") "), row("full) "));
    // The depths at which planted bugs are looked for.
    for (least, asked) in [
        (number(&search, "STATES_WITH_BUG: usize = "), "states="),
        (number(&reference, "CASES_WITH_BUG: u32 = "), "cases="),
        (number(&sim, "SEEDS_WITH_BUG: u64 = "), "seeds="),
    ] {
        assert!(number(change, asked) >= least, "{asked} is less than the {least} of planted bugs");
    }
    for (least, asked) in [(1_000_000, "states="), (10_000, "cases="), (100_000, "seeds=")] {
        assert!(number(night, asked) >= least, "{asked} is less than {least}");
    }
    let nightly = read(".ci/nightly");
    for engine in [
        ".ci/verify full",
        ".ci/attacks full",
        ".ci/matrix",
        ".ci/foreign-peers",
        ".ci/scoreboard",
        ".ci/soak 600",
        "FUZZ_SECONDS=600 FUZZ_SEED=",
    ] {
        assert!(nightly.contains(&format!("repeatable {engine}")), "the night leaves {engine} out");
    }
    let workflow = read(".github/workflows/nightly.yml");
    assert!(
        workflow.contains("engine: [verify, attacks, matrix, soak, fuzz, deny, foreign-peers, scoreboard]")
            && workflow.contains(".ci/flakes 50 "),
        "of them all"
    );
}

/// The rows of the search were printed by the current search: a new search of its beginning gives the same result.
#[test]
fn the_reported_rows_of_the_search_match_this_search() {
    let table = std::fs::read_to_string(coverage::REACHED).expect("the table is there");
    for class in Class::ALL {
        for order in class.orders() {
            let begins = search(class, *order, BEGINNING).unwrap_or_else(|found| panic!("{found}"));
            let start = format!("search\t{class:?}, {}\t", order.name());
            let row = table.lines().find(|row| row.starts_with(&start)).unwrap_or_default();
            let end = format!("; {}", begins.beginning());
            assert!(
                row.ends_with(&end),
                "run the search in release with RESCIND_PRINT: {start} ends with {end}, not as in {row}"
            );
        }
    }
}
