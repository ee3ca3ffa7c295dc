//! The conformance kit of Rescind: scenarios as data, and the runner that plays them against the bare machine, any
//! wire, or a foreign peer.

mod action;
mod asks;
mod bare;
pub mod conformance;
pub mod exchanges;
mod files;
pub mod fixture;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod held;
mod meta;
mod options;
pub mod pattern;
mod profile;
mod report;
pub mod runner;
mod sessions;
mod speech;
mod step;
mod tuned;
mod vector;
#[cfg(feature = "verify")]
pub mod verify;
#[cfg(feature = "wires")]
pub mod wires;

pub use asks::Asks;
pub use bare::BareMachine;
pub use files::allow_open_files;
pub use held::{open_descriptors, resident_memory};
pub use options::{
    AnswerAfterCancelOption, CancelFromOption, LimitOptions, LocalCancel, LocalCause, Options,
};
pub use profile::{
    BadProfile, CancelledForm, ExpectWord, HandshakeStep, Profile, ProfileChild, ProfileHandshake,
    ProfileRequest, RequestKind, Witness,
};
pub use report::{Cell, CellOutcome, Report, Summary};
pub use step::{
    AfterCancelStep, CallName, CallStep, CancelCallStep, CancelWord, OutcomeStep, OutcomeWord, Step, Through,
    Unwanted, Work,
};
pub use vector::{
    BadVector, HandshakeMode, Need, Part, Scenario, Vector, read_embedded, scenarios, scenarios_of,
};
