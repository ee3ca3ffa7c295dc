//! The tests of several nodes in one process.

mod cluster;
mod sessionless;
