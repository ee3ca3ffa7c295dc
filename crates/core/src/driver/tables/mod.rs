//! Tables of the driver, in addition to those of the machine.

pub(crate) mod interner;
pub(crate) mod slots;
