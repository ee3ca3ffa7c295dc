//! The allocations of an operation on this thread, counted with the feature `count`.

/// The allocations.
#[derive(Clone, Copy, Debug)]
pub struct Heap {
    /// The number of allocations.
    pub count: f64,
    /// Bytes allocated in all.
    pub bytes: f64,
    /// Bytes that are still allocated. Negative if more were freed.
    pub left: f64,
    /// The most bytes at one time.
    pub most: f64,
}

/// Runs this and counts. Returns `None` without the feature.
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
