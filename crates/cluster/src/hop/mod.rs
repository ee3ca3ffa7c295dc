//! Messages from one node to another, over HTTP/2 on the port that also serves clients.

mod kept_body;
pub(crate) mod message;
pub(crate) mod pool;
pub(crate) mod send;
