//! Engines that prove things about the machine, and the invariants they share. Behind the feature `verify`.

mod act;
mod class;
pub mod coverage;
mod input;
mod invariants;
mod ledger;
mod owed;
pub mod page;
mod reach;
pub mod search;
pub mod sim;
mod world;

pub use class::Class;
pub use input::Input;
pub use invariants::Broken;
pub use ledger::Ledger;
pub use world::World;
