//! Tables of the driver, beside the machine's own.

pub(crate) mod interner;
pub(crate) mod slots;
