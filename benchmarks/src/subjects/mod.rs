//! Ours and the two floors, as [`Competitor`]s. The others stand in `peers`.

pub mod channels;
pub mod frames;
pub mod rescind;

use crate::subject::{Competitor, Name};

/// What every other figure of a run is a multiple of.
pub const FLOOR: Competitor = frames::COMPETITOR;

/// Everyone who is measured, the floor first; without the feature `peers` ours alone beside the floors.
#[must_use]
pub fn all() -> Vec<Competitor> {
    let ours = [frames::COMPETITOR, channels::COMPETITOR, rescind::COMPETITOR];
    #[cfg(feature = "peers")]
    let all = ours.into_iter().chain(crate::peers::all());
    #[cfg(not(feature = "peers"))]
    let all = ours.into_iter();
    all.collect()
}

/// Ours, set otherwise: what W5 compares with ours as it is; the first echoes in W1 and W2 too.
#[must_use]
pub fn variants() -> Vec<Competitor> {
    vec![rescind::TYPED, rescind::WITHHELD, rescind::TOKENS]
}

/// The names of ours and of the floors: all others are someone else's.
#[must_use]
pub fn all_of_ours() -> Vec<Name> {
    let ours = [frames::COMPETITOR, channels::COMPETITOR, rescind::COMPETITOR];
    ours.into_iter().chain(variants()).map(|competitor| competitor.name).collect()
}
