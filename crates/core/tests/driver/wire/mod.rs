//! What the driver tells its wire.

mod exchanges;
mod lanes;
pub(crate) mod probe;
