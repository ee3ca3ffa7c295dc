//! Simulation: the real drivers, framings and transports of both sides in one task queue, on a paused clock, over a
//! network that splits, joins, delays, stalls, cuts and half-closes. One seed decides everything.
//!
//! The seed of a run determines the calls of each side, the tasks of the client, the behaviour of handlers, the times of
//! cancels, drops and shutdowns, and the disturbances of the network. A judge checks the observations of callers, handlers and the
//! transport against the invariants. A run that does not end on the paused clock is a failure too. The same seed
//! gives the same trace.

mod call_checks;
mod frames;
mod judge;
mod net;
mod plan;
mod run;
mod tasks;
mod wires;
mod work;

pub use judge::{SimEvent, Tally};

use std::fmt;
use std::time::{Duration, Instant};

use rescind_core::dialect::Dialect;
use rescind_testkit::wire_format::WireFormat;

use super::coverage::ENGINES;
use super::{Broken, invariants};

/// A transport of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wire {
    /// A byte stream in either framing, such as stdio, pipes and sockets.
    Memory,
    /// WebSocket, including its handshake.
    WebSocket,
    /// HTTP's binding `streamable`, over HTTP/1.1 and HTTP/2.
    HttpStreamable,
    /// HTTP's binding `stateless`, over HTTP/1.1 and HTTP/2.
    HttpStateless,
    /// HTTP's binding `acp`.
    HttpAcp,
}

impl Wire {
    /// Whether the server's side serves all clients and does not end with one of them.
    const fn serves_all_by_one(self) -> bool {
        match self {
            Self::Memory | Self::WebSocket | Self::HttpStreamable | Self::HttpAcp => false,
            Self::HttpStateless => true,
        }
    }

    /// Whether a client that lost its connection may return to its requests.
    const fn resumes(self) -> bool {
        match self {
            Self::Memory | Self::WebSocket | Self::HttpStateless => false,
            Self::HttpStreamable | Self::HttpAcp => true,
        }
    }

    /// Whether its ends distinguish a peer that is permanently gone from a slow one.
    const fn pings(self) -> bool {
        match self {
            Self::WebSocket => true,
            Self::Memory | Self::HttpStreamable | Self::HttpStateless | Self::HttpAcp => false,
        }
    }

    /// Whether a session uses many connections.
    const fn has_connections(self) -> bool {
        match self {
            Self::Memory | Self::WebSocket => false,
            Self::HttpStreamable | Self::HttpStateless | Self::HttpAcp => true,
        }
    }
}

/// A simulated case: a protocol on a transport.
#[derive(Clone, Debug)]
pub struct Case {
    wire: Wire,
    dialect: Dialect,
    speech: WireFormat,
}

impl Case {
    /// Creates the case of this protocol on this transport. Returns `None` if there is no such protocol.
    #[must_use]
    pub fn new(wire: Wire, dialect: &str) -> Option<Self> {
        Some(Self { wire, dialect: Dialect::by_name(dialect)?, speech: WireFormat::of(dialect)? })
    }

    /// Whether either side may call the other.
    fn serves_both(&self) -> bool {
        self.speech.facts.opening.is_some()
    }

    /// Whether requests of the client may become tasks.
    fn has_tasks(&self) -> bool {
        self.dialect.rules().tasks.is_some()
    }

    /// The seed for this case, so that the same seed gives different runs in different cases.
    fn mix(&self, seed: u64) -> u64 {
        let name = self.dialect.name().bytes().chain([self.wire as u8]);
        name.fold(seed, |mixed, byte| {
            (mixed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
        })
    }

    /// Plays one seed. A run that does not end stops the process and prints its trace.
    ///
    /// # Errors
    /// If an invariant is violated.
    pub fn play(&self, seed: u64) -> Result<Run, Box<Failure>> {
        self.play_watched(seed, &run::Watch::new(self))
    }

    fn play_watched(&self, seed: u64, watch: &run::Watch) -> Result<Run, Box<Failure>> {
        let built = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = match built {
            Ok(runtime) => runtime,
            Err(error) => {
                let broken = Broken { invariant: "L3", what: format!("no runtime: {error}") };
                return Err(Box::new(Failure { seed, broken, trace: Vec::new() }));
            }
        };
        let judge = runtime.block_on(run::play(self, seed, watch));
        // It ended. Otherwise the watch would have stopped the process.
        invariants::count("L4");
        let broken = judge.broken();
        let (trace, cancels, tally) = judge.into_trace();
        match broken {
            Some(broken) => Err(Box::new(Failure { seed, broken, trace })),
            None => Ok(Run { trace, cancels, tally }),
        }
    }

    /// Plays this many seeds, starting with this one, until one fails.
    ///
    /// # Errors
    /// If an invariant is violated.
    pub fn play_many(&self, first: u64, count: u64) -> Result<Played, Box<Failure>> {
        let begun = Instant::now();
        let mut played = Played { seeds: count, ..Played::default() };
        let watch = run::Watch::new(self);
        let _ = invariants::Tally::taken();
        for seed in first..first.saturating_add(count) {
            let run = self.play_watched(seed, &watch)?;
            played.events += run.trace.len() as u64;
            played.cancels += run.cancels;
            played.tally.add(&run.tally);
        }
        played.judged = invariants::Tally::taken();
        played.took = begun.elapsed();
        Ok(played)
    }
}

/// A run without a violation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Run {
    /// The events, with the milliseconds of the paused clock.
    pub trace: Vec<String>,
    /// The number of cancels.
    pub cancels: u64,
    /// The happenings.
    pub tally: Tally,
}

/// A run that violated an invariant.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// The invariant.
    pub broken: Broken,
    /// The events before and after the violation.
    pub trace: Vec<String>,
}

impl Failure {
    /// The failure with its trace, and the command that plays it again in the test with this name.
    #[must_use]
    pub fn report(&self, test: &str) -> String {
        let trace = self.trace.join("\n");
        let Self { seed, broken, .. } = self;
        format!(
            "{broken}\nseed {seed}; what happened, in milliseconds:\n{trace}\n\
             {broken}\nto play it again: RESCIND_SEED={seed} cargo test -p rescind-verification {test}"
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (seed {})", self.broken, self.seed)
    }
}

impl std::error::Error for Failure {}

/// Many runs without a violation.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Played {
    /// The number of runs.
    pub seeds: u64,
    /// The number of lines in their traces.
    pub events: u64,
    /// The number of cancels.
    pub cancels: u64,
    /// The number of runs in which each happening occurred.
    pub tally: Tally,
    /// How often each invariant was judged in them.
    pub judged: invariants::Tally,
    /// Real time.
    pub took: Duration,
}

impl fmt::Display for Played {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seeds, events, cancels, took, .. } = self;
        write!(f, "{seeds} seeds, {events} events, {cancels} cancels, {:.1} s", took.as_secs_f64())
    }
}

// Which invariants are judged on each transport, and how often at least: an invariant whose subject never exists
// holds too.

/// The minimum number of judgements of this invariant in a thousand runs of any protocol on this transport: a quarter
/// of the count of the protocol with the fewest.
fn least(invariant: &str, wire: Wire) -> u64 {
    let (posts, closes) = (wire.has_connections(), wire.serves_all_by_one());
    match invariant {
        "I1" => 850,
        "I2" => 95,
        "I3" => 460,
        "I4" => 950,
        "I5" => 30,
        "I6" => 230,
        "I7" => 550,
        "I9" => 6,
        "I10" => 210,
        // Posts have no order for all frames, and a closed exchange has no cancel message.
        "I12" if closes => 180,
        "I12" if posts => 640,
        "I12" => 4_000,
        "I13" => 7_300,
        "I14" => 2_600,
        "I16" => 370,
        "I17" => 200,
        "L1" => 280,
        "L3" => 470,
        // Each run ends, once (L4). Other claimed invariants need a separate line.
        _ => 1_000,
    }
}

impl Case {
    /// The invariants that the page claims for this engine, except those whose subject does not exist in its
    /// protocol.
    pub fn claimed(&self) -> impl Iterator<Item = &'static str> {
        let engine = ENGINES.iter().find(|engine| engine.name == "simulation");
        let checks = engine.map_or(&[] as &[_], |engine| engine.checks).iter().copied();
        checks.filter(|invariant| match *invariant {
            // A request has descendants if its handler may call its caller.
            "I5" => self.serves_both(),
            "I9" => self.speech.opening().is_some(),
            "I16" | "I17" => self.has_tasks(),
            _ => true,
        })
    }

    /// Claimed invariants that were judged too rarely, and judged ones that are not claimed. With few runs the number
    /// of judgements is random, so only the second kind is reported.
    #[must_use]
    pub fn misjudged(&self, played: &Played) -> Vec<String> {
        let judged =
            |number: &str| played.judged.judged().find(|(it, _)| *it == number).map_or(0, |(_, often)| often);
        let floor = |number: &str| least(number, self.wire) * played.seeds / 1_000;
        let seldom = self.claimed().filter(|number| floor(number) >= 5 && judged(number) < floor(number));
        let seldom = seldom
            .map(|number| format!("{number} is judged {} times, not {}", judged(number), floor(number)));
        let is_claimed = |number| self.claimed().any(|claimed| claimed == number);
        let more = played.judged.judged().filter(|(number, _)| !is_claimed(*number));
        seldom.chain(more.map(|(number, _)| format!("{number} is judged, and not claimed"))).collect()
    }
}
