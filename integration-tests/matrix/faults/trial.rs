//! A test on a separate runtime or in a separate process, of which nothing may be left, and the failure of a wait
//! that hangs.

use std::future::Future;
use std::time::Duration;

use libtest_mimic::Trial;
use rescind_testkit::support;

#[path = "failure_report.rs"]
mod reported;

use self::reported::{RerunCommand, numbered};

/// A wait of this length counts as a hang.
pub(crate) const HANG: Duration = Duration::from_secs(40);

/// A test on a separate runtime, of which no task may be left.
pub(crate) fn trial<F>(name: String, test: impl FnOnce() -> F + Send + 'static) -> Trial
where
    F: Future<Output = ()>,
{
    let again = RerunCommand::new(name.as_str(), None);
    Trial::test(name, move || {
        let _again = again;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let metrics = runtime.metrics();
        runtime.block_on(async {
            test().await;
            until("I3: no task is left behind", || metrics.num_alive_tasks() == 0).await;
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        Ok(())
    })
}

/// The same in a separate process, for tests that count memory or descriptors, or need many.
pub(crate) fn alone<F>(name: String, test: impl FnOnce() -> F + Send + 'static) -> Trial
where
    F: Future<Output = ()>,
{
    const ALONE: &str = "RESCIND_FAULT_ALONE";
    if std::env::var_os(ALONE).is_some_and(|alone| *alone == *name) {
        return trial(name, test);
    }
    Trial::test(name.clone(), move || {
        let program = std::env::current_exe()?;
        let mut alone = std::process::Command::new(program);
        let done = alone.args(["--exact", &name]).env(ALONE, &name).output()?;
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        for line in err.lines().filter(|line| line.starts_with("counted: ")) {
            eprintln!("{name}: {line}");
        }
        if done.status.success() && out.contains("1 passed") {
            return Ok(());
        }
        Err(format!("{out}\n{err}").into())
    })
}

/// Fails a test that hangs.
pub(crate) async fn in_time<T>(what: &str, wait: impl IntoFuture<Output = T>) -> T {
    support::within(HANG, &numbered(what), wait).await
}

pub(crate) async fn until(what: &str, is_so: impl FnMut() -> bool) {
    support::until(HANG, &numbered(what), is_so).await;
}
