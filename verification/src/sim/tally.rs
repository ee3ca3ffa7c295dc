//! What happened in a run, and in how many of many runs: a simulation in which nothing happens passes too.

use super::Wire;

/// An event that can happen in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SimEvent {
    /// Both sides were connected.
    Opened,
    /// A handler was entered.
    Entered,
    /// A running handler got its peer's cancel.
    Signalled,
    /// Bytes that were written together were accepted in parts.
    Split,
    /// Bytes that were written in parts arrived together.
    Joined,
    /// Bytes were delayed.
    Delayed,
    /// Bytes that had arrived were stalled.
    Stalled,
    /// A connection was cut after one of its bytes.
    CutAtByte,
    /// All connections were cut.
    Cut,
    /// One direction ended.
    HalfClosed,
    /// A message overtook another.
    Reordered,
    /// A message arrived twice.
    Repeated,
    /// A cancel arrived before its request.
    Overtaken,
    /// An answer was read in another form with the same meaning.
    Respelled,
    /// The connection was undisturbed to its end, and earlier frames were checked to have arrived.
    HeldArrived,
    /// The same, and an earlier completed request was checked to be answered.
    HeldAnswered,
    /// The same, and a handler with an earlier cancel was checked to have its signal.
    HeldTold,
    /// The frames of a side that had shut down were checked to have arrived.
    HeldFlushed,
}

impl SimEvent {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::Opened,
        Self::Entered,
        Self::Signalled,
        Self::Split,
        Self::Joined,
        Self::Delayed,
        Self::Stalled,
        Self::CutAtByte,
        Self::Cut,
        Self::HalfClosed,
        Self::Reordered,
        Self::Repeated,
        Self::Overtaken,
        Self::Respelled,
        Self::HeldArrived,
        Self::HeldAnswered,
        Self::HeldTold,
        Self::HeldFlushed,
    ];

    /// In how many of a thousand runs on this transport it must happen at least: half of the counted number.
    #[must_use]
    pub const fn least(self, wire: Wire) -> u64 {
        let posts = wire.has_connections();
        match self {
            Self::Opened => 450,
            Self::Entered => 400,
            Self::Signalled => 220,
            Self::Split | Self::Joined => 350,
            Self::Delayed => 280,
            Self::Stalled => 55,
            Self::CutAtByte => 20,
            Self::Cut => 115,
            Self::HalfClosed => 25,
            Self::Reordered if posts => 130,
            Self::Repeated if posts => 13,
            Self::Overtaken if wire.resumes() => 4,
            Self::Reordered | Self::Repeated | Self::Overtaken => 0,
            Self::Respelled => 200,
            // With posts, checked frames must be older.
            Self::HeldArrived => {
                if posts {
                    125
                } else {
                    185
                }
            }
            Self::HeldAnswered => {
                if posts {
                    115
                } else {
                    160
                }
            }
            Self::HeldTold => {
                if posts {
                    95
                } else {
                    130
                }
            }
            Self::HeldFlushed => 29,
        }
    }
}

/// In how many runs each event happened. For one run: whether it happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally([u64; SimEvent::ALL.len()]);

impl Tally {
    /// In how many runs this happened.
    #[must_use]
    pub fn of(&self, happening: SimEvent) -> u64 {
        self.0.get(happening as usize).copied().unwrap_or_default()
    }

    /// Records that it happened in this run.
    pub(super) fn saw(&mut self, happening: SimEvent) {
        if let Some(seen) = self.0.get_mut(happening as usize) {
            *seen = 1;
        }
    }

    /// Adds the observations of another part of the same run.
    pub(super) fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(seen, other)| *seen = (*seen).max(other));
    }

    /// Adds another run.
    pub(super) fn add(&mut self, run: &Self) {
        self.0.iter_mut().zip(run.0).for_each(|(seen, run)| *seen += run);
    }

    /// The events that happened in too few of these runs on this transport. With few runs this is random, and nothing
    /// is reported.
    #[must_use]
    pub fn lacks(&self, wire: Wire, runs: u64) -> Vec<String> {
        let floor = |happening: SimEvent| happening.least(wire) * runs / 1_000;
        let lacking = SimEvent::ALL.into_iter().filter(|it| floor(*it) >= 5 && self.of(*it) < floor(*it));
        lacking.map(|it| format!("{it:?} in {} of {runs} runs, not {}", self.of(it), floor(it))).collect()
    }
}
