//! Calls of ours: what is kept of each, how they begin and end, and children of requests on other connections.

pub(crate) mod cross_connection;
pub(crate) mod entry;
pub(crate) mod lifecycle;
