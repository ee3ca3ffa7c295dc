//! Calls of this side: their data, their start and their end, and children of requests on other connections.

pub(crate) mod entry;
pub(crate) mod lifecycle;
