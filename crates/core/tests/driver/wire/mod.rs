//! The driver's calls of its transport.

mod ends;
mod exchanges;
mod lanes;
pub(crate) mod probe;
mod sessions;
mod undecided_dialect;
mod wakeups;
