//! What the driver tells its wire.

mod exchanges;
mod lanes;
mod probe;
