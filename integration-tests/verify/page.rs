//! `docs/verification.md` says what the code says. With `RESCIND_PRINT` set to its path the page is renewed instead.

#[path = "../plants/table.rs"]
mod table;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use rescind_core::dialect::Role;
use rescind_testkit::verify::coverage::{Depth, ENGINES, INVARIANTS};
use rescind_testkit::verify::{Class, Order, page};

fn planted() -> String {
    let head = "\n## Planted bugs, and who catches each\n\n| bug | what it is | caught by | as |\n|---|---|---|---|\n";
    let mut out = head.to_owned();
    for table::Row { plant, test, says } in table::PLANTS {
        let _ = writeln!(out, "| {} | {} | `{test}` | {says} |", plant.name(), plant.what());
    }
    out
}

#[test]
fn the_page_is_up_to_date() {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/verification.md"));
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    let renewed = page::renewed(&page, &planted());
    if std::env::var_os("RESCIND_PRINT").is_some() {
        std::fs::write(&path, renewed).expect("the page can be written");
        return;
    }
    assert!(page == renewed, "renew it: RESCIND_PRINT=1 cargo test -p rescind-integration-tests --test page");
}

#[test]
fn every_invariant_has_an_engine_and_every_engine_says_how_far_it_went() {
    let known: BTreeSet<_> = INVARIANTS.iter().map(|invariant| invariant.number).collect();
    let checked: BTreeSet<_> = ENGINES.iter().flat_map(|engine| engine.checks).copied().collect();
    assert_eq!(known, checked);
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/verification.md"));
    let page = page.expect("the page is there");
    let (_, rows) = page.split_once("| engine | of what | reached |").expect("its last table");
    for engine in ENGINES.iter().filter(|engine| engine.depth == Depth::Told) {
        assert!(rows.contains(&format!("\n| {} | ", engine.name)), "{} told nothing", engine.name);
    }
    let told = |engine: &str, least: u64| {
        let first = |row: &str| row.rsplit("| ").next()?.split(' ').next()?.parse::<u64>().ok();
        let of_it = rows.lines().filter(|row| row.starts_with(&format!("| {engine} |")));
        of_it.filter(|row| first(row).is_some_and(|reached| reached >= least)).count()
    };
    for class in Class::ALL.into_iter().filter(|class| class.role() == Role::Server) {
        for order in Order::ALL {
            let row = format!("search | {class:?}, {}", order.name());
            assert_eq!(told(&row, 1_000_000), 1, "{row}");
        }
    }
    for dialect in &rescind_core::dialect::ALL {
        let row = format!("reference | {}", dialect.name().replace('-', "_"));
        assert_eq!(told(&row, 10_000), 1, "{row}");
    }
}

/// An invariant is checked by the search if its number stands in what the search checks.
#[test]
fn the_search_checks_the_invariants_it_claims() {
    let checks = [
        include_str!("../../crates/testkit/src/verify/act.rs"),
        include_str!("../../crates/testkit/src/verify/invariants.rs"),
        include_str!("../../crates/testkit/src/verify/ledger.rs"),
        include_str!("../../crates/testkit/src/verify/outputs.rs"),
        include_str!("../../crates/testkit/src/verify/owed.rs"),
        include_str!("../../crates/testkit/src/verify/reach.rs"),
        include_str!("../../crates/testkit/src/verify/verdict.rs"),
        include_str!("../../crates/testkit/src/verify/world.rs"),
    ];
    let search = ENGINES.iter().find(|engine| engine.name == "search").expect("it is there");
    for invariant in INVARIANTS {
        let quoted = format!("\"{}\"", invariant.number);
        let checked = checks.iter().any(|file| file.contains(&quoted));
        assert_eq!(checked, search.checks.contains(&invariant.number), "{}", invariant.number);
    }
}
