//! Rescind on several machines.

mod engine;
mod names;
mod secret;

pub use engine::EngineError;
pub use names::{InvalidNodeName, NodeName};
pub use secret::{Secret, SecretError};
