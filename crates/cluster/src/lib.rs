//! Rescind on more than one machine: requests reach the process that holds their session, and cancels reach the work that they
//! are about, whichever process received them.

mod address;
mod cancel_bus;
mod cluster;
mod engine;
mod hop;
mod jobs;
mod membership;
mod names;
mod secret;
mod shared;
mod signals;

pub use address::{ClusterAddress, InvalidClusterAddress};
pub use cancel_bus::{CancelBus, CancelError, CancelWatch};
pub use cluster::{Cluster, JoinError};
pub use engine::EngineError;
pub use engine::fixed::NodeList;
pub use jobs::{Job, Jobs, SubmittedJob};
pub use membership::{Member, Membership};
pub use names::{InvalidNodeName, NodeName};
pub use secret::{Secret, SecretError};
