//! Whether a POST is given up.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Whether a POST is given up. It stays so.
#[derive(Default)]
pub(super) struct GivenUp {
    is_so: AtomicBool,
    told: Notify,
}

impl GivenUp {
    pub(super) fn is_so(&self) -> bool {
        self.is_so.load(Ordering::Acquire)
    }

    pub(super) fn give_up(&self) {
        self.is_so.store(true, Ordering::Release);
        self.told.notify_waiters();
    }

    pub(super) async fn wait(&self) {
        loop {
            let told = self.told.notified();
            if self.is_so() {
                return;
            }
            told.await;
        }
    }
}
