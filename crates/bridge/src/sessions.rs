//! The sessions of a bridge that have not ended.

use tokio::sync::watch;

/// Counts the sessions. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Sessions(watch::Sender<usize>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(watch::Sender<usize>);

impl Sessions {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    pub(crate) fn count(&self) -> usize {
        *self.0.borrow()
    }

    pub(crate) fn add(&self) -> Counted {
        self.0.send_modify(|count| *count += 1);
        Counted(self.0.clone())
    }

    pub(crate) async fn ended(&self) {
        // The sender exists as long as `self`.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
