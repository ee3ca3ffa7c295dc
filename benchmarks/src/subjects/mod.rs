//! This library and the two floors, as [`Competitor`]s. The others are in `peers`.

mod floors;
pub mod rescind;

pub use floors::CHANNELS;

use crate::subject::{Competitor, Name};
use crate::wire_subjects;

/// The floor. Every other figure of a run is given as a multiple of it.
pub const FLOOR: Competitor = floors::FRAMES;

/// All competitors, the floor first. Without the feature `peers`: only this library and the floors.
#[must_use]
pub fn all() -> Vec<Competitor> {
    let ours = [floors::FRAMES, floors::CHANNELS, rescind::COMPETITOR, rescind::QUICK];
    #[cfg(feature = "peers")]
    let all = ours.into_iter().chain(crate::peers::all());
    #[cfg(not(feature = "peers"))]
    let all = ours.into_iter();
    all.collect()
}

/// This library with texts that are serialized and parsed on both sides. They also echo in W1 and W2.
pub const TYPED: [Competitor; 2] = [rescind::TYPED, rescind::QUICK_TYPED];

/// Servers alone, under a client that writes frames by hand: this library's, and those of the others. They play in W1 to W3.
#[must_use]
pub fn servers() -> Vec<Competitor> {
    let ours = [rescind::SERVER, rescind::QUICK_SERVER];
    #[cfg(feature = "peers")]
    let all = ours.into_iter().chain(crate::peers::servers());
    #[cfg(not(feature = "peers"))]
    let all = ours.into_iter();
    all.collect()
}

/// This library with other settings, which W5 compares with the default.
#[must_use]
pub fn variants() -> Vec<Competitor> {
    TYPED.into_iter().chain([rescind::WITHHELD, rescind::TOKENS]).collect()
}

/// The names of this library and of the floors. All others are other libraries.
#[must_use]
pub fn all_of_ours() -> Vec<Name> {
    let ours = [floors::FRAMES, floors::CHANNELS, rescind::COMPETITOR, rescind::QUICK];
    let ours = ours.into_iter().chain(variants()).map(|competitor| competitor.name);
    let servers = [rescind::SERVER.name, rescind::QUICK_SERVER.name];
    ours.chain(servers).chain([wire_subjects::ENVELOPES.name]).collect()
}
