//! What came to pass in a run, and in how many of many: a simulation in which nothing happens holds too.

use super::Wire;

/// What may come to pass in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Happening {
    /// Both sides were connected.
    Opened,
    /// A handler was entered.
    Entered,
    /// A handler at work was told of its peer's cancel.
    Signalled,
    /// What was written at once was taken in parts.
    Split,
    /// What was written in parts arrived at once.
    Joined,
    /// Bytes took time.
    Delayed,
    /// Bytes that had arrived were held up.
    Stalled,
    /// A connection was cut behind a byte of its own.
    CutAtByte,
    /// Everything was cut.
    Cut,
    /// One direction ended.
    HalfClosed,
    /// A message overtook another.
    Reordered,
    /// A message came twice.
    Repeated,
    /// A cancel came ahead of its request.
    Overtaken,
    /// Nothing had befallen the connection to its end, and what was written before was held to have arrived.
    HeldArrived,
    /// The same, and a request that was over before was held to be answered.
    HeldAnswered,
    /// The same, and a handler whose request was cancelled before was held to have been told.
    HeldTold,
    /// What a side wrote until it had shut down was held to have arrived.
    HeldFlushed,
}

impl Happening {
    /// All of them.
    pub const ALL: [Self; 17] = [
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
        Self::HeldArrived,
        Self::HeldAnswered,
        Self::HeldTold,
        Self::HeldFlushed,
    ];

    /// In how many of a thousand runs on this wire it must come to pass at least: half of what was counted.
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
            // What takes posts has to be older.
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

/// In how many runs each came to pass; of one run, whether it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally([u64; Happening::ALL.len()]);

impl Tally {
    /// In how many.
    #[must_use]
    pub fn of(&self, happening: Happening) -> u64 {
        self.0.get(happening as usize).copied().unwrap_or_default()
    }

    /// It came to pass in this run.
    pub(super) fn saw(&mut self, happening: Happening) {
        if let Some(seen) = self.0.get_mut(happening as usize) {
            *seen = 1;
        }
    }

    /// What another part of the same run saw.
    pub(super) fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(seen, other)| *seen = (*seen).max(other));
    }

    /// Another run.
    pub(super) fn add(&mut self, run: &Self) {
        self.0.iter_mut().zip(run.0).for_each(|(seen, run)| *seen += run);
    }

    /// What came to pass in too few of so many runs on this wire. Where few are asked for it is luck, and nothing is said.
    #[must_use]
    pub fn lacks(&self, wire: Wire, runs: u64) -> Vec<String> {
        let floor = |happening: Happening| happening.least(wire) * runs / 1_000;
        let lacking = Happening::ALL.into_iter().filter(|it| floor(*it) >= 5 && self.of(*it) < floor(*it));
        lacking.map(|it| format!("{it:?} in {} of {runs} runs, not {}", self.of(it), floor(it))).collect()
    }
}
