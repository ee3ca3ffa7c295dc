//! How a trial runs and waits.

use std::future::Future;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use rescind_testkit::support::HANG;

use crate::backend::Backend;

/// A test of one kind of cluster, with the function's name as its own.
pub(crate) fn trial<F: Future<Output = ()> + 'static>(
    backend: Backend,
    name: &str,
    test: fn(Backend) -> F,
) -> Trial {
    Trial::test(format!("{}::{name}", backend.name()), move || play(test(backend)))
        .with_ignored_flag(!backend.is_there())
}

/// Runs a test on a runtime of its own.
fn play(test: impl Future<Output = ()>) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(test);
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(())
}

/// The trials of these functions.
#[macro_export]
macro_rules! trials {
    ($backend:expr; $($module:ident: $($name:ident),+;)+) => {
        vec![$($($crate::trial::trial($backend, stringify!($name), $crate::$module::$name)),+),+]
    };
}

/// Waits for a condition that must be checked repeatedly, and returns how long it took.
pub(crate) async fn poll_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) -> Duration {
    let since = Instant::now();
    while !is_so().await {
        assert!(since.elapsed() < HANG, "not within {HANG:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    since.elapsed()
}

/// Prints a measured figure.
pub(crate) fn report(backend: Backend, what: &str, took: Duration) {
    tell(&format!("measured: {}: {what}: {:.1} ms", backend.name(), took.as_secs_f64() * 1e3));
}

/// Prints a line. Not by a macro, whose text the tests of other packages would hide.
pub(crate) fn tell(line: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{line}");
}
