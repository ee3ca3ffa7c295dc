//! The tests of the testkit itself.

mod bare_machine;
mod conformance;
mod coverage;
mod exchanges;
mod link;
mod runner;
mod sources;
mod vectors_detect_faults;
mod wires;
