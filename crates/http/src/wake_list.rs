//! Wakers that a step under a lock collects.

use std::task::Waker;

use smallvec::SmallVec;

/// Wakers to be called after the lock is released. Usually there is only one, which needs no allocation.
#[derive(Debug, Default)]
pub(crate) struct WakeList(SmallVec<[Waker; 1]>);

impl WakeList {
    /// `extend` of the list would do the same, but reserves first, and most steps add nothing.
    pub(crate) fn add(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.0.push(waker);
        }
    }

    pub(crate) fn wake(self) {
        if !self.0.is_empty() {
            self.0.into_iter().for_each(Waker::wake);
        }
    }
}
