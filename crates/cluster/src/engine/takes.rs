//! The takes of jobs, so that a caller that is dropped loses none.

use std::time::Duration;

use rescind_core::BoxFuture;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::EngineError;

/// How long a server waits for a job.
pub(super) const JOB_WAIT: Duration = Duration::from_secs(5);

/// A take that was begun and has not ended.
pub(super) type Taking = BoxFuture<'static, Result<Option<String>, EngineError>>;

/// One take at a time. It outlives the future of its caller: the next caller gets its job.
#[derive(Default)]
pub(super) struct Takes(Mutex<Option<Taking>>);

impl Takes {
    /// Continues the take under way, or begins one. `None`: no job, or other callers were before this one all the time.
    pub(super) async fn next(&self, begin: impl FnOnce() -> Taking) -> Result<Option<String>, EngineError> {
        let Ok(mut taking) = timeout(JOB_WAIT, self.0.lock()).await else { return Ok(None) };
        let taken = taking.get_or_insert_with(begin).await;
        *taking = None;
        taken
    }
}
