//! Which engine checks which invariant, and the page that lists this.

/// An invariant, with its number in SEMANTICS.
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
pub const INVARIANTS: [Invariant; 19] = [
    invariant("I1", "each accepted request is answered once, or silenced where that is owed"),
    invariant("I2", "nothing is written for a request after its answer or its silence"),
    invariant("I3", "what is gone leaves no slot, timer, permit, link or waiter"),
    invariant("I4", "a cancel changes its own request and that one's descendants alone"),
    invariant("I5", "each descendant is signalled once; a child of a cancelled parent is born cancelled"),
    invariant("I6", "a result decided before the cancel is sent unchanged"),
    invariant("I7", "cancelling twice is cancelling once, with the same acknowledgement"),
    invariant("I8", "a cancel of an unknown id costs nothing beyond the bounded table of early cancels"),
    invariant("I9", "nothing but a shutdown or the connection's end cancels the handshake"),
    invariant("I10", "permits out are tasks alive, draining ones included"),
    invariant("I11", "every map and queue is bounded"),
    invariant("I12", "on a wire a request goes before its cancel"),
    invariant("I13", "each caller's future settles once"),
    invariant("I14", "what is done for one generation of a slot touches no other"),
    invariant("I15", "the same events have the same outcomes on every wire"),
    invariant("L1", "a request is signalled in the step that accepts its cancel, or at its shield's end"),
    invariant("L2", "the reader waits for no handler, permit or writer"),
    invariant("L3", "after a disconnect everything is gone within its graces"),
    invariant("L4", "no step spins"),
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
    /// Its test calls [`reached`](super::page::reached).
    Reported,
    /// It processes a table, whose size this text states.
    Table(&'static str),
}

/// The invariants that are checked after every step of a session.
const SESSION: &[&str] = &[
    "I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I12", "I13", "I14", "L1", "L3", "L4",
];

/// Every engine. A new engine is a new entry here.
pub const ENGINES: [Engine; 8] = [
    Engine {
        name: "search",
        drives: "the real machine: the first million of its states that can be reached, nearest first",
        run: "--release -p rescind-verification --test search",
        depth: Depth::Reported,
        checks: SESSION,
    },
    Engine {
        name: "reference",
        drives: "the real machine beside a naive model: random events, shrunk",
        run: "--release -p rescind-verification --test reference",
        depth: Depth::Reported,
        checks: &["I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I10", "I12", "I13", "I14", "L1", "L3"],
    },
    Engine {
        name: "fuzz",
        drives: "ids, framings, envelopes, HTTP's reading and sequences of events; its corpus",
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
        drives: "the real drivers on every wire, outcomes compared literally",
        run: "-p rescind-cli --test matrix",
        depth: Depth::Table("every vector of every dialect on every wire"),
        checks: &[
            "I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I12", "I13", "I14", "I15",
            "L1", "L3",
        ],
    },
    Engine {
        name: "simulation",
        drives: "both sides' real drivers, framings and wires on a paused clock, over a network that fails as a seed says",
        run: "--release -p rescind-verification --test sim",
        depth: Depth::Reported,
        checks: &[
            "I1", "I2", "I3", "I4", "I5", "I6", "I7", "I9", "I10", "I12", "I13", "I14", "L1", "L3", "L4",
        ],
    },
    Engine {
        name: "threads",
        drives: "the drivers, the wire in memory, HTTP and the threads of pipes, in orders of their threads that chance picks",
        run: "--manifest-path integration-tests/threads/Cargo.toml",
        depth: Depth::Table("117 pairs of what may happen at once, each in 1,101 orders"),
        checks: &["I1", "I3", "I4", "I10", "I12", "I13", "L3"],
    },
    Engine {
        name: "soak",
        drives: "good and bad peers over real sockets; what the process holds is looked at each second",
        run: "-p rescind-integration-tests --bin soak` tests its judge, `.ci/soak` runs it: `soak --wire websocket --minutes 1",
        depth: Depth::Table("a minute a wire in CI, ten minutes by night; such charts are in `docs/soak/`"),
        checks: &["I3", "I4", "I10", "I11", "I13"],
    },
];
