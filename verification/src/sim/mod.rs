//! Simulation: the real drivers, framings and transports of both sides in one task queue, on a paused clock, over a
//! network that splits, joins, delays, stalls, cuts and half-closes. One seed decides everything.
//!
//! The seed of a run determines the calls of each side, the behaviour of handlers, the times of cancels, drops and
//! shutdowns, and the disturbances of the network. A judge checks the observations of callers, handlers and the
//! transport against the invariants. A run that does not end on the paused clock is a failure too. The same seed
//! gives the same trace.

mod bytes;
mod callers;
mod calls;
mod end_checks;
mod frames;
mod handlers;
mod judge;
mod judged_invariants;
mod net;
mod observations;
mod open;
mod pipe;
mod plan;
mod rng;
mod run;
mod sides;
mod tally;
mod tap;
mod watchdog;
mod wires;
mod work;

use std::fmt;
use std::time::{Duration, Instant};

use rescind_core::dialect::Dialect;

pub use tally::{SimEvent, Tally};

use super::{Broken, tally as invariants};
use rescind_testkit::wire_format::WireFormat;

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
        self.dialect.rules().name != "mcp-2026"
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
        self.play_watched(seed, &watchdog::Watch::new(self))
    }

    fn play_watched(&self, seed: u64, watch: &watchdog::Watch) -> Result<Run, Box<Failure>> {
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
        let watch = watchdog::Watch::new(self);
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
