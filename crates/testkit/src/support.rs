//! What tests of several packages share.

use std::time::Duration;

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
    let since = tokio::time::Instant::now();
    let waited = tokio::time::timeout(HANG, wait.into_future()).await;
    // A wait that is never woken is polled when its time ends, and may be ready then. So the elapsed time is checked
    // too.
    assert!(since.elapsed() < HANG, "hangs: {what}");
    waited.unwrap_or_else(|_| panic!("hangs: {what}"))
}
