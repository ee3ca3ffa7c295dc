//! The driver's calls of its transport.

mod ends;
mod exchanges;
mod lanes;
mod openings;
pub(crate) mod probe;
mod sessions;
mod wakes;
