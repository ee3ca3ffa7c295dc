//! The tests of the testkit itself.

mod bare_machine;
mod conformance;
mod coverage;
mod exchanges;
mod runner;
mod wires;
