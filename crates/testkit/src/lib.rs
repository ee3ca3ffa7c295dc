//! The conformance kit of Rescind: scenarios as data, and the runner that plays them against the bare machine, any
//! transport, or a foreign peer.

mod action;
mod bare;
pub mod conformance;
mod dialect_overrides;
pub mod exchanges;
mod files;
pub mod fixture;
mod meta;
mod options;
pub mod pattern;
mod process_stats;
mod profile;
mod report;
pub mod runner;
mod sessions;
mod step;
#[doc(hidden)]
pub mod support;
mod vector;
// For the engines of verification. Not part of the stable API.
#[cfg(feature = "wires")]
mod balancer;
#[doc(hidden)]
pub mod wire_format;
#[cfg(feature = "wires")]
pub mod wires;

#[cfg(feature = "wires")]
pub use balancer::Balancer;
pub use bare::BareMachine;
pub use files::allow_open_files;
pub use options::{
    AnswerAfterCancelOption, CancelFromOption, LimitOptions, LocalCancel, LocalCause, Options,
};
pub use process_stats::{open_descriptors, resident_memory};
#[doc(hidden)]
pub use profile::follow;
pub use profile::{
    BadProfile, CancelledForm, ExpectWord, HandshakeStep, Profile, ProfileChild, ProfileHandshake,
    ProfileRequest, ProfileSession, RequestKind, UnresolvedProfile, Witness,
};
pub use report::{Answer, Baseline, Cell, CellOutcome, Fact, Report, Summary};
pub use runner::{Evidence, Requirements};
pub use step::{
    AfterCancelStep, CallName, CallStep, CancelCallStep, CancelWord, OutcomeStep, OutcomeWord, Step, Through,
    Unwanted, Work,
};
pub use vector::{
    BadVector, Demand, HandshakeMode, Need, Part, Scenario, ShownBy, Vector, read_embedded, scenarios,
    scenarios_of,
};
