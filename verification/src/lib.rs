//! Engines that verify the machine, the invariants that they share, and the assertions of the fuzz targets. Not
//! published.

mod admission_oracle;
mod apply;
pub mod bus;
pub mod coverage;
mod dialect_class;
mod expected;
pub mod fuzz;
mod input;
mod invariants;
mod oracle;
pub mod search;
mod shutdown_oracle;
#[cfg(feature = "sim")]
pub mod sim;
mod state;
pub mod trace;

pub use dialect_class::{Class, Order};
pub use input::{CallInput, Declared, Input};
pub use invariants::{Broken, Tally, holds};
pub use oracle::{Kind, Ledger, Name};
pub use state::MachineState;
pub use trace::Trace;
