//! The conformance kit of Rescind: scenarios as data, and the runner that plays them against the bare machine, any
//! transport, or a foreign peer.

mod action;
mod bare;
pub mod conformance;
// For the engines of verification and the checks of foreign peers. Not part of the stable API.
#[doc(hidden)]
pub mod dialects;
pub mod exchanges;
pub mod fixture;
mod options;
pub mod pattern;
mod profile;
mod report;
mod resolve;
pub mod runner;
#[doc(hidden)]
pub mod support;
mod vector;
// For the engines of verification and the checks of foreign peers. Not part of the stable API.
#[doc(hidden)]
pub mod wire_format;
#[cfg(feature = "wires")]
pub mod wires;

pub use bare::BareMachine;
pub use dialects::Demand;
pub use options::{
    AnswerAfterCancelOption, CancelFromOption, LimitOptions, LocalCancel, LocalCause, Options,
};
#[doc(hidden)]
pub use profile::follow;
pub use profile::{
    BadProfile, CancelledForm, ExpectWord, HandshakeStep, Profile, ProfileChild, ProfileHandshake,
    ProfileRequest, ProfileSession, RequestKind, Witness,
};
pub use report::{Answer, Baseline, Cell, CellOutcome, Fact, Report, Summary};
pub use resolve::UnresolvedProfile;
pub use runner::{Evidence, Requirements};
pub use support::{allow_open_files, open_descriptors, resident_memory};
pub use vector::{
    AfterCancelStep, BadVector, CallName, CallStep, CancelCallStep, CancelWord, HandshakeMode, Need,
    OutcomeStep, OutcomeWord, Part, Scenario, ShownBy, Step, Through, Unwanted, Vector, Work, read_embedded,
    scenarios, scenarios_of,
};
#[cfg(feature = "wires")]
pub use wires::cluster::Balancer;
