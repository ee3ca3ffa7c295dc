//! The tests of the public API of the core, except what the driver logs.

mod custom_dialect;
mod driver;
mod driver_tower;
mod framing;
mod transports;

// The example of `custom_dialect` finds the items of `rescind_core` where the crate `rescind` has them.
extern crate self as rescind;
pub(crate) use rescind_core::{self as machine, *};
