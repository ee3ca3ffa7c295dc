//! How a trial runs and waits.

use std::future::Future;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rescind_testkit::support::HANG;
pub(crate) use rescind_testkit::support::in_time;

/// Runs the attack on a separate runtime.
pub(crate) fn play(attack: impl Future<Output = ()>) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(attack);
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(())
}

/// Waits for a condition that must be checked repeatedly.
pub(crate) async fn poll_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let since = Instant::now();
    while !is_so().await {
        assert!(since.elapsed() < HANG, "not within {HANG:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
