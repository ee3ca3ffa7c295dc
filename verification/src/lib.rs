//! Engines that verify the machine, the invariants that they share, and the assertions of the fuzz targets. Not
//! published.

mod admission_oracle;
mod apply;
pub mod bus;
mod calls;
pub mod coverage;
mod dialect_class;
mod expected;
pub mod fuzz;
mod input;
mod invariants;
mod isolation;
mod oracle;
mod outputs;
pub mod page;
pub mod search;
mod shutdown_oracle;
pub mod sim;
mod state;
mod state_hash;
mod tally;
pub mod trace;

pub use calls::CallInput;
pub use dialect_class::{Class, Order};
pub use input::{Declared, Input};
pub use invariants::{Broken, holds};
pub use oracle::{Kind, Ledger, Name};
pub use state::MachineState;
pub use tally::Tally;
pub use trace::Trace;
