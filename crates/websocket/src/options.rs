use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The options of a connection, for both sides.
///
/// ```
/// use std::time::Duration;
///
/// use rescind_websocket::{LinkOptions, UpgradeOptions};
///
/// // The same for a client: `rescind_websocket::connect(url).link(..)`.
/// let options = LinkOptions::new().max_frame(1024 * 1024).ping_every(Duration::from_secs(60));
/// let server = UpgradeOptions::new().link(options);
/// # drop(server);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct LinkOptions {
    pub(crate) max_frame: usize,
    pub(crate) ping_every: Option<Duration>,
    pub(crate) binary: BinaryMessages,
}

impl LinkOptions {
    /// The defaults: messages of at most 16 MiB, a ping every 20 s, binary messages are refused.
    pub fn new() -> Self {
        Self {
            max_frame: 16 * 1024 * 1024,
            ping_every: Some(Duration::from_secs(20)),
            binary: BinaryMessages::Refuse,
        }
    }

    /// The largest message in both directions, in bytes, with all its fragments. A larger message is refused with an
    /// error, and the connection closes with code 1009: the WebSocket library cannot skip a message.
    pub fn max_frame(mut self, bytes: usize) -> Self {
        self.max_frame = bytes;
        self
    }

    /// The interval of pings. The peer is considered lost if nothing arrives after two pings in a row.
    pub fn ping_every(mut self, every: Duration) -> Self {
        self.ping_every = Some(every.max(Duration::from_millis(1)));
        self
    }

    /// Disables pings. A lost peer is then noticed only when a write fails.
    pub fn no_pings(mut self) -> Self {
        self.ping_every = None;
        self
    }

    /// Sets how binary messages are handled.
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

/// How a binary message is handled. All frames of this library are text messages.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum BinaryMessages {
    /// It is refused with an error, and the connection closes with code 1003.
    #[default]
    Refuse,
    /// It is dropped and counted, as ACP's draft of its HTTP binding requires.
    Ignore(IgnoredCounter),
}

/// A counter of ignored messages. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct IgnoredCounter(Arc<AtomicU64>);

impl IgnoredCounter {
    /// A counter at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of ignored messages.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
