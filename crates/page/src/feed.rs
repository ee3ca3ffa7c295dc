//! The updates of the page, made once for all viewers.
//!
//! There is no task and no queue: a viewer that is ready looks for a newer view after [`INTERVAL`]. A view is made at
//! most once in an interval, whoever asks. A viewer that does not read holds one view and is not ahead of the others,
//! so viewers cost no more memory than their number allows.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rescind_core::RequestLog;
use tokio::time::Instant;

use crate::view::{Clock, View};

/// The least time between two updates.
pub(crate) const INTERVAL: Duration = Duration::from_millis(300);

pub(crate) struct Feed {
    pub(crate) log: RequestLog,
    pub(crate) clock: Clock,
    title: String,
    is_draining: Box<dyn Fn() -> bool + Send + Sync>,
    made: Mutex<Option<(Instant, Arc<str>)>>,
}

impl Feed {
    pub(crate) fn new(
        log: RequestLog,
        title: String,
        is_draining: Box<dyn Fn() -> bool + Send + Sync>,
    ) -> Self {
        Self { log, clock: Clock::new(), title, is_draining, made: Mutex::new(None) }
    }

    pub(crate) fn is_draining(&self) -> bool {
        (self.is_draining)()
    }

    /// The view, at most an interval old. It is the same `Arc` until something has changed.
    pub(crate) fn view(&self) -> Arc<str> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some((at, view)) = made.as_ref() {
            if now.saturating_duration_since(*at) < INTERVAL {
                return Arc::clone(view);
            }
        }
        let view = View::of(&self.log, self.clock, &self.title, self.is_draining());
        let text = serde_json::to_string(&view).unwrap_or_else(|_| "null".to_owned());
        let view = match made.as_ref() {
            Some((_, known)) if **known == *text => Arc::clone(known),
            Some(_) | None => Arc::from(text),
        };
        *made = Some((now, Arc::clone(&view)));
        view
    }

    /// Waits for a view that is not this one.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn newer(&self, than: Option<&Arc<str>>) -> Arc<str> {
        loop {
            let view = self.view();
            if than.is_none_or(|known| !Arc::ptr_eq(known, &view)) {
                return view;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }
}
