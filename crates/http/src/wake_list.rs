//! Wakers that a step under a lock collects.

use std::task::Waker;

use smallvec::SmallVec;

/// Wakers to be called after the lock is released. Usually there is only one, which needs no allocation.
pub(crate) type WakeList = SmallVec<[Waker; 1]>;
