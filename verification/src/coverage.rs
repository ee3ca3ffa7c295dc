//! Which engine checks which invariant, and the pages that list this.

use std::fmt::Write as _;
use std::io;
use std::sync::{Mutex, PoisonError};

/// An invariant. Those of the machine have the same number in its documentation, those of the bus in [`bus`](super::bus).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invariant {
    /// Its number.
    pub number: &'static str,
    /// The condition.
    pub holds: &'static str,
}

const fn invariant(number: &'static str, holds: &'static str) -> Invariant {
    Invariant { number, holds }
}

/// All invariants.
pub const INVARIANTS: [Invariant; 33] = [
    invariant("I1", "each accepted request gets exactly one answer, or none where the dialect forbids one"),
    invariant(
        "I2",
        "nothing is sent for a request after its answer, or after its cancel where silence is required",
    ),
    invariant("I3", "nothing is left of an ended request: no slot, timer, permit, link or waiter"),
    invariant("I4", "a cancel changes only its own request and that request's descendants"),
    invariant("I5", "each descendant is signalled once; a child of a cancelled parent starts as cancelled"),
    invariant("I6", "a result decided before the cancel is sent unchanged"),
    invariant("I7", "cancelling twice has the effect of cancelling once, with the same acknowledgement"),
    invariant("I8", "a cancel for an unknown id takes no memory beyond the bounded table of early cancels"),
    invariant("I9", "only a shutdown or the end of the connection cancels the handshake"),
    invariant("I10", "the permits in use are the tasks that run, draining ones included"),
    invariant("I11", "every map and queue is bounded"),
    invariant("I12", "on a wire a request precedes its cancel"),
    invariant("I13", "each call settles once"),
    invariant("I14", "nothing that is done for one generation of a slot affects another"),
    invariant("I15", "the same events have the same outcomes on every wire"),
    invariant("I16", "a task is reported as ended once, and nothing is reported of it after that"),
    invariant("I17", "a task whose cancel is reported was signalled in that step, or is at its shield's end"),
    invariant("L1", "a request is signalled in the step that accepts its cancel, or at its shield's end"),
    invariant("L2", "the reader waits for no handler, permit or writer"),
    invariant("L3", "after a lost connection everything has ended within the graces"),
    invariant("L4", "no step runs without end"),
    invariant("B1", "a cancel that was acknowledged before its request ended is signalled"),
    invariant("B2", "a cancel signals no request of another key"),
    invariant("B3", "the bus signals a request at most once, and not after its end"),
    invariant("B4", "the bus signals nothing that nobody cancelled"),
    invariant("B5", "every tombstone expires"),
    invariant("B6", "no subscription and no doorbell is left of an ended request"),
    invariant("B7", "`is_cancelled` becomes true for a watched key whose cancel was acknowledged"),
    invariant("B8", "a cancel that the engine did not take returns an error"),
    invariant("B9", "a request is forwarded at most once"),
    invariant(
        "B10",
        "a request is served by the owner of its session or refused, and nobody waits for a dead node",
    ),
    invariant(
        "B11",
        "a client's cancel that was accepted, on any node, and a client that left, signal the request",
    ),
    invariant("B12", "every run of the bus comes to rest"),
];

/// A program that searches for violations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine {
    /// Its name in tests and on the page.
    pub name: &'static str,
    /// What it drives, and how.
    pub drives: &'static str,
    /// The arguments of `cargo test` that run it.
    pub run: &'static str,
    /// How its depth is known.
    pub depth: Depth,
    /// The numbers of the invariants that it checks. The tests of the search, the reference and the fuzzer's corpus
    /// compare this list with what they have judged. The page's test compares the lists of the other engines with
    /// what their tests name.
    pub checks: &'static [&'static str],
}

/// How the depth of an engine is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Its test calls [`reached`].
    Reported,
    /// It processes a table, whose size this text states.
    Table(&'static str),
}

/// The invariants that are checked after every step of a session.
const SESSION: &[&str] = &[
    "I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I12", "I13", "I14", "I16", "I17",
    "L1", "L3", "L4",
];

/// Every engine. A new engine is a new entry here.
pub const ENGINES: [Engine; 9] = [
    Engine {
        name: "search",
        drives: "the real machine: the first million states that can be reached, nearest first",
        run: "--release -p rescind-verification --test search",
        depth: Depth::Reported,
        checks: SESSION,
    },
    Engine {
        name: "reference",
        drives: "the real machine and a simple model: random events, and failures are shrunk",
        run: "--release -p rescind-verification --test reference",
        depth: Depth::Reported,
        checks: &[
            "I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I10", "I12", "I13", "I14", "I16", "I17", "L1",
            "L3",
        ],
    },
    Engine {
        name: "fuzz",
        drives: "ids, framings, envelopes, the reading of HTTP, and sequences of events",
        run: "-p rescind-verification --test corpus",
        depth: Depth::Reported,
        checks: SESSION,
    },
    Engine {
        name: "attacks",
        drives: "attacks and faults on real drivers and wires",
        run: "--release -p rescind-integration-tests --test attacks",
        depth: Depth::Table("every row of `integration-tests/attacks/rows.toml`"),
        checks: &["I1", "I3", "I4", "I5", "I8", "I10", "I11", "I13", "L2", "L3"],
    },
    Engine {
        name: "matrix",
        drives: "the real drivers on every wire; the outcomes must be equal",
        run: "--release -p rescind-cli --test matrix",
        depth: Depth::Table("every vector of every dialect on every wire"),
        checks: &[
            "I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I12", "I13", "I14", "I15",
            "I16", "I17", "L1", "L3",
        ],
    },
    Engine {
        name: "simulation",
        drives: "the real drivers, framings and wires of both sides, on a paused clock, over a network with failures that a seed chooses",
        run: "--release -p rescind-verification --test sim",
        depth: Depth::Reported,
        checks: &[
            "I1", "I2", "I3", "I4", "I5", "I6", "I7", "I9", "I10", "I12", "I13", "I14", "I16", "I17", "L1",
            "L3", "L4",
        ],
    },
    Engine {
        name: "threads",
        drives: "the drivers, the wire in memory, HTTP and the threads of pipes, in random orders of the threads",
        run: "--manifest-path integration-tests/threads/Cargo.toml",
        depth: Depth::Table("121 pairs of events that may happen at once, each in 1,101 orders"),
        checks: &["I1", "I3", "I4", "I10", "I12", "I13", "L3"],
    },
    Engine {
        name: "soak",
        drives: "good and bad peers over real sockets; each second the resources of the process are measured",
        run: "-p rescind-integration-tests --bin soak` tests its judge, `.ci/soak` runs it: `soak --wire websocket --minutes 1",
        depth: Depth::Table(
            "a minute for each wire in CI, ten minutes in a nightly run; `docs/soak/` has such charts",
        ),
        checks: &["I3", "I4", "I10", "I11", "I13"],
    },
    Engine {
        name: "cancel bus",
        drives: "a model of the cancel bus and of forwarding between nodes: every interleaving",
        run: "-p rescind-verification --test cancel_bus",
        depth: Depth::Reported,
        checks: &["B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B9", "B10", "B11", "B12"],
    },
];

// The tables of `docs/verification.md`: which engine checks which invariants. And `reached.tsv`: how far each engine went,
// which the engines print themselves.

/// The variable with which tests write what they print: `RESCIND_PRINT=1 cargo test ..`.
const PRINT: &str = "RESCIND_PRINT";

/// The table of the depths: engine, of what and reached, with tabs between. Lines with `#` are comments.
pub const REACHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/reached.tsv");

/// Reports the depth of an engine, and writes it to [`REACHED`] if `RESCIND_PRINT` is set.
///
/// # Errors
/// If the table cannot be read or written, or if there is no such engine.
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
    let table = std::fs::read_to_string(REACHED)?;
    let start = format!("{engine}\t{what}\t");
    let (comments, rows): (Vec<_>, Vec<_>) = table.lines().partition(|line| line.starts_with('#'));
    let mut rows: Vec<String> =
        rows.into_iter().filter(|row| !row.starts_with(&start)).map(ToOwned::to_owned).collect();
    rows.push(format!("{start}{far}"));
    let place = |row: &str| ENGINES.iter().position(|known| row.starts_with(&format!("{}\t", known.name)));
    rows.sort_by_cached_key(|row| (place(row), row.clone()));
    std::fs::write(REACHED, format!("{}\n{}\n", comments.join("\n"), rows.join("\n")))
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
            Depth::Reported => "[as reported](../verification/reached.tsv)",
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
