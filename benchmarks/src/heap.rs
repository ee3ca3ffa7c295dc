//! What is allocated while something runs on this thread, where the feature `count` has it counted.

/// What was allocated.
#[derive(Clone, Copy, Debug)]
pub struct Heap {
    /// Allocations.
    pub count: f64,
    /// Bytes allocated in all.
    pub bytes: f64,
    /// Bytes that are still allocated; below nothing where more was freed.
    pub left: f64,
    /// The most bytes at one time.
    pub most: f64,
}

/// Runs this and counts. `None` without the feature.
#[cfg(feature = "count")]
pub fn measure(run: impl FnOnce()) -> Option<Heap> {
    let counted = allocation_counter::measure(run);
    Some(Heap {
        count: counted.count_total as f64,
        bytes: counted.bytes_total as f64,
        left: counted.bytes_current as f64,
        most: counted.bytes_max as f64,
    })
}

/// Runs this and does not count.
#[cfg(not(feature = "count"))]
pub fn measure(run: impl FnOnce()) -> Option<Heap> {
    run();
    None
}
