//! What the driver tells its wire.

mod ends;
mod exchanges;
mod lanes;
mod openings;
pub(crate) mod probe;
mod sessions;
mod wakes;
