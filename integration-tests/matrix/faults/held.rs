//! What this process holds.

/// Whether this system reports it.
pub(crate) const IS_REPORTED: bool = cfg!(target_os = "linux");

/// The resident memory, in bytes. 0 if the system does not report it.
pub(crate) fn resident() -> usize {
    reported(rescind_testkit::resident_memory)
}

/// The open descriptors. 0 if the system does not report them.
pub(crate) fn descriptors() -> usize {
    reported(rescind_testkit::open_descriptors)
}

fn reported(of: fn(Option<u32>) -> Option<u64>) -> usize {
    if !IS_REPORTED {
        return 0;
    }
    usize::try_from(of(None).expect("the system tells")).expect("no process holds more than it can address")
}
