//! Requests that this side serves: their data, the driver's slots for them, and the progress tokens with which they
//! report.

pub(crate) mod data;
pub(crate) mod progress_tokens;
pub(crate) mod slot;
