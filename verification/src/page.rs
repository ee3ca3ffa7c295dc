//! The page that lists which engine checks which invariants, and the depth of each engine. The engines print it
//! themselves.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::coverage::{Depth, ENGINES, Engine, INVARIANTS};

/// The variable with the path of the page to update: `RESCIND_PRINT=$PWD/docs/verification.md cargo test ..`.
const PRINT: &str = "RESCIND_PRINT";

const REACHED: &str = "| engine | of what | reached |\n|---|---|---|\n";

/// Reports the depth of an engine, and writes it to the page that `RESCIND_PRINT` names, if it is set.
///
/// # Errors
/// If the page cannot be read or written, or if there is no such engine.
pub fn reached(engine: &str, what: &str, far: &str) -> io::Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    println!("reached: {engine}: {what}: {far}");
    if !ENGINES.iter().any(|known| known.name == engine) {
        return Err(io::Error::other(format!("{engine} has no line among the engines")));
    }
    let Some(path) = std::env::var_os(PRINT) else { return Ok(()) };
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let path = Path::new(&path);
    let page = std::fs::read_to_string(path)?;
    let Some((before, rows)) = page.split_once(REACHED) else {
        return Err(io::Error::other(format!("{} has no table of what was reached", path.display())));
    };
    let mut rows: Vec<String> = rows.lines().map(ToOwned::to_owned).collect();
    let start = format!("| {engine} | {what} | ");
    rows.retain(|row| row.starts_with('|') && !row.starts_with(&start));
    rows.push(format!("{start}{far} |"));
    let place = |row: &str| ENGINES.iter().position(|known| row.starts_with(&format!("| {} |", known.name)));
    rows.sort_by_cached_key(|row| (place(row), row.clone()));
    std::fs::write(path, format!("{before}{REACHED}{}\n", rows.join("\n")))
}

/// The correct page, with the rows of the reached depths from `page`. `planted` is inserted between.
#[must_use]
pub fn renewed(page: &str, planted: &str) -> String {
    let mut out = String::from(
        "# Verification\n\n\
         The tests print this page. Set `RESCIND_PRINT=$PWD/docs/verification.md` for the command of an engine, or for\n\
         `cargo test -p rescind-verification --test page`. A test compares every table except the last with the code.\n\n\
         The depths below are those of `.ci/nightly`. For each change `.ci/run` plays what is needed to find the planted bugs: 4,000 cases in each\n\
         dialect, 20,000 seeds in memory and 2,000 on each other wire, 300,000 states of each class (4,000 would be enough), a tenth of each flood, and\n\
         10 s of each fuzz target (ten minutes in a nightly run). The matrix, the threads and the models of the cancel bus are played\n\
         completely.\n\n\
         ## Invariants, and the engines that check each\n\n| | what holds | engines |\n|---|---|---|\n",
    );
    for invariant in INVARIANTS {
        let engines: Vec<_> = ENGINES
            .iter()
            .filter(|engine| engine.checks.contains(&invariant.number))
            .map(|engine| engine.name)
            .collect();
        let _ = writeln!(out, "| {} | {} | {} |", invariant.number, invariant.holds, engines.join(", "));
    }
    out.push_str(
        "\n## Engines\n\n| engine | what it drives | how far | `cargo test ..` |\n|---|---|---|---|\n",
    );
    for Engine { name, drives, run, depth, .. } in ENGINES {
        let depth = match depth {
            Depth::Reported => "below",
            Depth::Table(what) => what,
        };
        let _ = writeln!(out, "| {name} | {drives} | {depth} | `{run}` |");
    }
    out.push_str(planted);
    out.push_str("\n## How far each engine went when it was last printed\n\n");
    out.push_str(REACHED);
    let rows = page.split_once(REACHED).map_or("", |(_, rows)| rows);
    out.push_str(rows);
    out
}
