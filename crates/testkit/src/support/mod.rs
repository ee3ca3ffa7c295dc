//! What tests of several packages share.

pub mod frames;
pub mod http1;

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Far more than any wait of a test needs.
pub const HANG: Duration = Duration::from_secs(30);

/// Waits at most [`HANG`].
///
/// # Panics
/// After that time, with `what`: the test hangs.
///
/// # Cancel safety
/// Dropping the future drops the one it waits for.
pub async fn in_time<T>(what: &str, wait: impl IntoFuture<Output = T>) -> T {
    within(HANG, what, wait).await
}

/// Waits at most this long.
///
/// # Panics
/// After that time, with `what`: the test hangs.
///
/// # Cancel safety
/// Dropping the future drops the one it waits for.
pub async fn within<T>(longest: Duration, what: &str, wait: impl IntoFuture<Output = T>) -> T {
    let since = tokio::time::Instant::now();
    let waited = tokio::time::timeout(longest, wait.into_future()).await;
    // A wait that is never woken is polled when its time ends, and may be ready then. So the elapsed time is checked
    // too.
    assert!(since.elapsed() < longest, "hangs: {what}");
    waited.unwrap_or_else(|_| panic!("hangs: {what}"))
}

/// Waits until the condition holds, at most this long. Other tasks run meanwhile.
///
/// # Panics
/// After that time, with `what`: the test hangs.
///
/// # Cancel safety
/// Dropping the future ends the wait.
pub async fn until(longest: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    within(longest, what, waiting).await;
}

/// A task that is aborted when this is dropped.
#[derive(Debug)]
pub struct Serving(JoinHandle<()>);

impl Serving {
    /// Starts the task.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }

    /// Aborts the task and waits for its end.
    ///
    /// # Cancel safety
    /// The task is aborted although the future is dropped.
    pub async fn stop(mut self) {
        self.0.abort();
        let _cancelled = (&mut self.0).await;
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The `_meta` that each request of MCP 2026-07-28 carries.
#[must_use]
pub fn mcp_meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

/// The rows of a table in a text. Two spaces or more separate its columns; empty lines and lines that begin with `#` are
/// not rows.
///
/// # Panics
/// If a row has another number of columns.
pub fn table<const COLUMNS: usize>(text: &str) -> impl Iterator<Item = [&str; COLUMNS]> {
    let rows = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.map(|row| {
        let columns: Vec<_> = row.split("  ").map(str::trim).filter(|column| !column.is_empty()).collect();
        columns.try_into().unwrap_or_else(|_| panic!("{COLUMNS} columns are not in {row:?}"))
    })
}
