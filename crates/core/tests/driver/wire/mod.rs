//! What the driver tells its wire.

mod ends;
mod exchanges;
mod lanes;
pub(crate) mod probe;
mod wakes;
