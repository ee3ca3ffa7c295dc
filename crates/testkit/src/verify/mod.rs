//! Engines that prove things about the machine, and the invariants they share. Behind the feature `verify`.

mod act;
mod calls;
mod class;
pub mod coverage;
mod graces;
mod input;
mod invariants;
mod ledger;
mod number;
mod outputs;
mod owed;
pub mod page;
mod reach;
pub mod search;
pub mod sim;
mod tally;
mod verdict;
pub mod way;
mod world;

pub use calls::CallInput;
pub use class::{Class, Order};
pub use input::{Declared, Input};
pub use invariants::{Broken, holds};
pub use ledger::{Kind, Ledger, Name};
pub use tally::Tally;
pub use way::Way;
pub use world::World;
