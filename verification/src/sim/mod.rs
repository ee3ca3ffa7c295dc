//! Simulation: both sides' real drivers, framings and wires in one task queue, on a paused clock, over a network that splits,
//! joins, delays, holds up, cuts and half-closes; all of it decided by one seed.
//!
//! A run draws from its seed what each side calls, what the handlers do, when who cancels, drops or shuts down, and what
//! befalls the network. Its judge holds what callers, handlers and the wire see against the invariants. A run that does not
//! end on the paused clock is a failure like any other, and the same seed gives the same trace.

mod arrived;
mod both;
mod bytes;
mod callers;
mod calls;
mod frames;
mod handlers;
mod judge;
mod judged;
mod net;
mod open;
mod pipe;
mod plan;
mod rng;
mod run;
mod seen;
mod tally;
mod tap;
mod watch;
mod wires;
mod work;

use std::fmt;
use std::time::{Duration, Instant};

use rescind_core::dialect::Dialect;

pub use tally::{Happening, Tally};

use super::{Broken, tally as invariants};
use rescind_testkit::wire_format::Speech;

/// A wire of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wire {
    /// A stream of bytes in either framing, as stdio, pipes and sockets are.
    Memory,
    /// WebSocket, handshake included.
    WebSocket,
    /// HTTP's binding `streamable`, over HTTP/1.1 and HTTP/2.
    HttpStreamable,
    /// HTTP's binding `stateless`, over HTTP/1.1 and HTTP/2.
    HttpStateless,
    /// HTTP's binding `acp`.
    HttpAcp,
}

impl Wire {
    /// The server's side is one for all clients, and does not end with any.
    const fn serves_all_by_one(self) -> bool {
        match self {
            Self::Memory | Self::WebSocket | Self::HttpStreamable | Self::HttpAcp => false,
            Self::HttpStateless => true,
        }
    }

    /// A client that lost its connection may come back to its requests.
    const fn resumes(self) -> bool {
        match self {
            Self::Memory | Self::WebSocket | Self::HttpStateless => false,
            Self::HttpStreamable | Self::HttpAcp => true,
        }
    }

    /// Its ends tell a peer that is gone for good from one that is slow.
    const fn pings(self) -> bool {
        match self {
            Self::WebSocket => true,
            Self::Memory | Self::HttpStreamable | Self::HttpStateless | Self::HttpAcp => false,
        }
    }

    /// One talk takes many connections.
    const fn has_connections(self) -> bool {
        match self {
            Self::Memory | Self::WebSocket => false,
            Self::HttpStreamable | Self::HttpStateless | Self::HttpAcp => true,
        }
    }
}

/// What is simulated: a protocol on a wire.
#[derive(Clone, Debug)]
pub struct Case {
    wire: Wire,
    dialect: Dialect,
    speech: Speech,
}

impl Case {
    /// This protocol on this wire; `None`: there is no such protocol.
    #[must_use]
    pub fn new(wire: Wire, dialect: &str) -> Option<Self> {
        Some(Self { wire, dialect: Dialect::by_name(dialect)?, speech: Speech::of(dialect)? })
    }

    /// Either side may ask the other.
    fn serves_both(&self) -> bool {
        self.dialect.rules().name != "mcp-2026"
    }

    /// The seed as this case draws from it: what is the fifth seed of one is not that of all.
    fn mix(&self, seed: u64) -> u64 {
        let name = self.dialect.name().bytes().chain([self.wire as u8]);
        name.fold(seed, |mixed, byte| {
            (mixed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
        })
    }

    /// Plays one seed. One that does not end ends the process, with its trace.
    ///
    /// # Errors
    /// An invariant does not hold.
    pub fn play(&self, seed: u64) -> Result<Run, Box<Failure>> {
        self.play_watched(seed, &watch::Watch::new(self))
    }

    fn play_watched(&self, seed: u64, watch: &watch::Watch) -> Result<Run, Box<Failure>> {
        let built = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = match built {
            Ok(runtime) => runtime,
            Err(error) => {
                let broken = Broken { invariant: "L3", what: format!("no runtime: {error}") };
                return Err(Box::new(Failure { seed, broken, trace: Vec::new() }));
            }
        };
        let judge = runtime.block_on(run::play(self, seed, watch));
        // It ended, or the watch would have ended the process.
        invariants::count("L4");
        let broken = judge.broken();
        let (trace, cancels, tally) = judge.into_trace();
        match broken {
            Some(broken) => Err(Box::new(Failure { seed, broken, trace })),
            None => Ok(Run { trace, cancels, tally }),
        }
    }

    /// Plays so many seeds, from this one on, until one fails.
    ///
    /// # Errors
    /// An invariant does not hold.
    pub fn play_many(&self, first: u64, count: u64) -> Result<Played, Box<Failure>> {
        let begun = Instant::now();
        let mut played = Played { seeds: count, ..Played::default() };
        let watch = watch::Watch::new(self);
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

/// A run in which everything held.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Run {
    /// What happened, with the milliseconds of the paused clock.
    pub trace: Vec<String>,
    /// How many cancels were asked.
    pub cancels: u64,
    /// What came to pass.
    pub tally: Tally,
}

/// A run in which an invariant did not hold.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// What it was drawn from.
    pub seed: u64,
    /// The invariant.
    pub broken: Broken,
    /// What happened until then and after.
    pub trace: Vec<String>,
}

impl Failure {
    /// The failure with its trace, and how to play it again in the test of this name.
    #[must_use]
    pub fn told(&self, test: &str) -> String {
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

/// Many runs in which everything held.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Played {
    /// How many.
    pub seeds: u64,
    /// Lines of their traces.
    pub events: u64,
    /// Cancels that were asked.
    pub cancels: u64,
    /// In how many of them what came to pass.
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
