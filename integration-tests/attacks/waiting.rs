//! How a trial runs and waits.

use std::future::Future;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

/// A wait of this length has failed.
const HANG: Duration = Duration::from_secs(30);

/// Runs the attack on a separate runtime.
pub(crate) fn play(attack: impl Future<Output = ()>) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(attack);
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(())
}

pub(crate) async fn in_time<T>(what: &str, wait: impl IntoFuture<Output = T>) -> T {
    let waited = tokio::time::timeout(HANG, wait.into_future()).await;
    waited.unwrap_or_else(|_| panic!("not within {HANG:?}: {what}"))
}

/// Waits for a condition that must be checked repeatedly.
pub(crate) async fn poll_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let since = Instant::now();
    while !is_so().await {
        assert!(since.elapsed() < HANG, "not within {HANG:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
