//! The tests of pipes: those of children and of this process.

mod child;
mod conformance;
mod environment;
mod this_process;
