//! The signals that a node of a list keeps.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// The most signals that a node keeps. Above it the oldest is forgotten.
const MAX_SIGNALS: usize = 100_000;

/// Signals that are kept for the same time each.
#[derive(Default)]
pub(super) struct Records {
    recorded: HashMap<Arc<str>, Recorded>,
    /// In the order in which they were recorded.
    order: VecDeque<Arc<str>>,
}

struct Recorded {
    value: String,
    until: Instant,
}

impl Records {
    /// Records a signal for this time. The first value of a signal stays.
    pub(super) fn record(&mut self, name: &str, value: &str, keep: Duration) {
        let now = Instant::now();
        while let Some(oldest) = self.order.front().cloned() {
            let is_over = self.recorded.get(&oldest).is_none_or(|recorded| recorded.until <= now);
            if !is_over && self.order.len() < MAX_SIGNALS {
                break;
            }
            self.order.pop_front();
            self.recorded.remove(&oldest);
        }
        let name: Arc<str> = name.into();
        if !self.recorded.contains_key(&name) {
            let recorded = Recorded { value: value.to_owned(), until: now + keep };
            self.recorded.insert(Arc::clone(&name), recorded);
            self.order.push_back(name);
        }
    }

    pub(super) fn value(&self, name: &str) -> Option<String> {
        let recorded = self.recorded.get(name)?;
        (recorded.until > Instant::now()).then(|| recorded.value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_signal_is_kept_for_its_time_and_may_come_again() {
        let time = Duration::from_secs(2);
        let mut records = Records::default();
        records.record("a", "first", time);
        records.record("a", "second", time);
        assert_eq!(records.value("a").as_deref(), Some("first"));
        assert_eq!(records.value("b"), None);
        tokio::time::advance(time).await;
        assert_eq!(records.value("a"), None);
        records.record("a", "third", time);
        tokio::time::advance(Duration::from_secs(1)).await;
        records.record("b", "later", time);
        assert_eq!(records.value("a").as_deref(), Some("third"));
        tokio::time::advance(Duration::from_secs(1)).await;
        records.record("c", "last", time);
        assert_eq!((records.value("a"), records.value("b").as_deref()), (None, Some("later")));
        assert_eq!((records.recorded.len(), records.order.len()), (2, 2));
    }
}
