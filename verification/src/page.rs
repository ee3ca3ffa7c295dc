//! The tables of `docs/verification.md`: which engine checks which invariants. And `reached.md`: how far each engine went,
//! which the engines print themselves.

use std::fmt::Write as _;
use std::io;
use std::sync::{Mutex, PoisonError};

use super::coverage::{Depth, ENGINES, Engine, INVARIANTS};

/// The variable with which tests write what they print: `RESCIND_PRINT=1 cargo test ..`.
const PRINT: &str = "RESCIND_PRINT";

/// The page of the depths.
pub const REACHED_PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/reached.md");

const REACHED: &str = "| engine | of what | reached |\n|---|---|---|\n";

/// Reports the depth of an engine, and writes it to [`REACHED_PAGE`] if `RESCIND_PRINT` is set.
///
/// # Errors
/// If the page cannot be read or written, or if there is no such engine.
pub fn reached(engine: &str, what: &str, far: &str) -> io::Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    println!("reached: {engine}: {what}: {far}");
    if !ENGINES.iter().any(|known| known.name == engine) {
        return Err(io::Error::other(format!("{engine} has no line among the engines")));
    }
    if std::env::var_os(PRINT).is_none() {
        return Ok(());
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let page = std::fs::read_to_string(REACHED_PAGE)?;
    let Some((before, rows)) = page.split_once(REACHED) else {
        return Err(io::Error::other(format!("{REACHED_PAGE} has no table of what was reached")));
    };
    let mut rows: Vec<String> = rows.lines().map(ToOwned::to_owned).collect();
    let start = format!("| {engine} | {what} | ");
    rows.retain(|row| row.starts_with('|') && !row.starts_with(&start));
    rows.push(format!("{start}{far} |"));
    let place = |row: &str| ENGINES.iter().position(|known| row.starts_with(&format!("| {} |", known.name)));
    rows.sort_by_cached_key(|row| (place(row), row.clone()));
    std::fs::write(REACHED_PAGE, format!("{before}{REACHED}{}\n", rows.join("\n")))
}

/// `docs/verification.md` with its tables of invariants and of engines as they are in the code.
#[must_use]
pub fn renewed(page: &str) -> String {
    let mut invariants = String::new();
    for invariant in INVARIANTS {
        let engines: Vec<_> = ENGINES
            .iter()
            .filter(|engine| engine.checks.contains(&invariant.number))
            .map(|engine| engine.name)
            .collect();
        let _ =
            writeln!(invariants, "| {} | {} | {} |", invariant.number, invariant.holds, engines.join(", "));
    }
    let mut engines = String::new();
    for Engine { name, drives, run, depth, .. } in ENGINES {
        let depth = match depth {
            Depth::Reported => "[as reported](../verification/reached.md)",
            Depth::Table(what) => what,
        };
        let _ = writeln!(engines, "| {name} | {drives} | {depth} | `{run}` |");
    }
    let page = with_rows(page, "| | what holds | engines |\n|---|---|---|\n", &invariants);
    with_rows(&page, "| engine | what it drives | how far | `cargo test ..` |\n|---|---|---|---|\n", &engines)
}

/// The page with these rows below this head of a table. A page without the head gets the table at its end.
fn with_rows(page: &str, head: &str, rows: &str) -> String {
    let (before, after) = page.split_once(head).unwrap_or((page, ""));
    let old: usize = after.split_inclusive('\n').take_while(|line| line.starts_with('|')).map(str::len).sum();
    format!("{before}{head}{rows}{}", after.get(old..).unwrap_or_default())
}
