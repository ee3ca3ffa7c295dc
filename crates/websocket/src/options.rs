use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The bounds and habits of one connection, the same for both sides.
#[derive(Clone, Debug)]
#[must_use]
pub struct LinkOptions {
    pub(crate) max_frame: usize,
    pub(crate) ping_every: Option<Duration>,
    pub(crate) binary: BinaryMessages,
}

impl LinkOptions {
    /// The defaults: messages of at most 16 MiB, a ping every 20 s, binary messages refused.
    pub fn new() -> Self {
        Self {
            max_frame: 16 * 1024 * 1024,
            ping_every: Some(Duration::from_secs(20)),
            binary: BinaryMessages::Refuse,
        }
    }

    /// The largest message taken in either direction, in bytes, all its fragments together. A larger one is refused
    /// with an error, and then the connection closes with code 1009: the library under this one cannot skip it.
    pub fn max_frame(mut self, bytes: usize) -> Self {
        self.max_frame = bytes;
        self
    }

    /// How often the peer is pinged. It counts as gone when two pings in a row brought no sign of life.
    pub fn ping_every(mut self, every: Duration) -> Self {
        self.ping_every = Some(every.max(Duration::from_millis(1)));
        self
    }

    /// Sends no pings. A peer that vanishes without a word is then noticed only when a write fails.
    pub fn no_pings(mut self) -> Self {
        self.ping_every = None;
        self
    }

    /// What is done with binary messages.
    pub fn binary(mut self, binary: BinaryMessages) -> Self {
        self.binary = binary;
        self
    }
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// What is done with a binary message; every frame here is a text message.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum BinaryMessages {
    /// It is refused with an error, and the connection closes with code 1003.
    #[default]
    Refuse,
    /// It is dropped and counted, as ACP's draft of its HTTP binding asks.
    Ignore(IgnoredCounter),
}

/// Counts what was ignored. Its clones count together.
#[derive(Clone, Debug, Default)]
pub struct IgnoredCounter(Arc<AtomicU64>);

impl IgnoredCounter {
    /// Nothing was ignored yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many messages were ignored so far.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
