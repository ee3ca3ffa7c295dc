//! Requests this side serves: their data, what the driver keeps of them, and the progress tokens they report under.

pub(crate) mod data;
pub(crate) mod reported;
pub(crate) mod slot;
