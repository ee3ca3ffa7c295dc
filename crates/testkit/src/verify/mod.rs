//! Engines that prove things about the machine, and the invariants they share. Behind the feature `verify`.

pub mod invariants;
pub mod search;
pub mod sim;
pub mod world;

pub use invariants::{Broken, Ledger};
pub use world::{Class, Input, World};
