//! The cores, the threads, the open files and the heap of a measurement.

use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::runtime::{Builder, Runtime};

/// Moves this process to another core than the one to which its parent pinned it. If there is none, it stays.
pub(crate) fn leave_the_first_core() {
    let pinned = sched_getaffinity(None).expect("the scheduler says");
    for core in (0..64).filter(|core| !pinned.is_set(*core)) {
        let mut other = CpuSet::new();
        other.set(core);
        // The accepted settings show which cores exist.
        if sched_setaffinity(None, &other).is_ok() {
            return;
        }
    }
}

/// Runs on a thread that is pinned to one core. Child processes that it starts are pinned to the same core.
///
/// # Panics
/// If the work panics.
pub fn pinned<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let pinned = scope.spawn(|| {
            let allowed = sched_getaffinity(None).expect("the scheduler says");
            let core = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).expect("there is a core");
            let mut one = CpuSet::new();
            one.set(core);
            sched_setaffinity(None, &one).expect("a thread may pin itself");
            work()
        });
        pinned.join().expect("the work ends")
    })
}

/// A current-thread runtime.
#[must_use]
pub fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime starts")
}

/// A runtime of two workers.
#[must_use]
pub fn two_workers() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime starts")
}

/// Raises the limit of open files as far as is allowed. Servers inherit it.
pub fn allow_more_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        eprintln!("the limit of open files stays as it is: {error}");
    }
}

// The allocations of an operation on this thread, counted with the feature `count`.

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
pub fn measure_heap(run: impl FnOnce()) -> Option<Heap> {
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
pub fn measure_heap(run: impl FnOnce()) -> Option<Heap> {
    run();
    None
}
