//! Requests and calls as an operator sees them: those in flight, and those that have ended.
//!
//! A connection records nothing until it is added to a [`RequestLog`](shared::RequestLog). Until then each output of the
//! machine costs one check of a flag.

pub(crate) mod info;
pub(crate) mod recorder;
pub(crate) mod shared;
