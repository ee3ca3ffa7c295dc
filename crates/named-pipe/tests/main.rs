//! The tests of named pipes.

mod common;
mod conformance;
mod ends;
mod other_users;
mod ownership;
