//! Work that a request hands to another process.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::cancel_bus::{CancelWatch, KEEP, cancelled};
use crate::engine::EngineError;
use crate::keys::{RECORD_LIMIT, RETRY};
use crate::process::Process;
use crate::signals::Watch;

/// A queue of jobs in the engine, which workers take. A job has the key of its request, so its worker watches that key and
/// stops when the request is cancelled. Not with a list of nodes, which has no queue.
///
/// docs/cluster.md has the keys and values, for workers in other languages.
#[derive(Clone, Debug)]
pub struct Jobs(pub(crate) Arc<Process>);

/// A job as it is in the queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Queued {
    key: String,
    #[serde(default)]
    params: Value,
}

impl Jobs {
    /// Adds a job for the request with this key.
    ///
    /// # Errors
    /// The engine did not confirm it.
    ///
    /// # Cancel safety
    /// If the future is dropped before it returns, the job may or may not be in the queue.
    pub async fn submit(&self, key: &str, params: Value) -> Result<SubmittedJob, EngineError> {
        // Watched first, so that a quick worker's end is not missed.
        let end = self.0.signals.watch(&finished(key).into());
        let queued = Queued { key: key.to_owned(), params };
        self.0.engine.push_job(&serde_json::to_string(&queued).unwrap_or_default()).await?;
        Ok(SubmittedJob(end))
    }

    /// Takes the oldest job. `None`: there was none for some seconds. Entries that cannot be read are dropped.
    ///
    /// # Errors
    /// The engine does not answer.
    ///
    /// # Cancel safety
    /// If the future is dropped, a job may be lost that was just taken.
    pub async fn take(&self) -> Result<Option<Job>, EngineError> {
        let Some(job) = self.0.engine.take_job().await? else { return Ok(None) };
        match serde_json::from_str::<Queued>(&job) {
            Ok(queued) => Ok(Some(Job { cluster: Arc::clone(&self.0), queued })),
            Err(error) => {
                tracing::warn!(error = %rescind_core::LogText::text(&error), "a job in the queue cannot be read");
                Ok(None)
            }
        }
    }
}

/// A job in the queue or at a worker, as the request sees it.
#[derive(Debug)]
#[must_use = "dropping it forgets the result"]
pub struct SubmittedJob(Watch);

impl SubmittedJob {
    /// Waits until a worker has finished the job, and returns the result.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn finished(&self) -> Value {
        serde_json::from_str(&self.0.come().await).unwrap_or_default()
    }
}

/// A job that this worker took.
#[derive(Debug)]
pub struct Job {
    cluster: Arc<Process>,
    queued: Queued,
}

impl Job {
    /// The key of its request.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.queued.key
    }

    /// What is to be done.
    #[must_use]
    pub const fn params(&self) -> &Value {
        &self.queued.params
    }

    /// Watches whether its request is cancelled, also if that was before now.
    pub fn watch(&self) -> CancelWatch {
        CancelWatch::new(self.cluster.signals.watch(&cancelled(&self.queued.key).into()))
    }

    /// Ends the job with this result. While the engine is away, it is tried again for 60 s.
    ///
    /// # Errors
    /// The engine did not confirm it.
    ///
    /// # Cancel safety
    /// If the future is dropped before it returns, the request may or may not see the end.
    pub async fn finish(self, result: &Value) -> Result<(), EngineError> {
        let (name, result) = (finished(&self.queued.key), result.to_string());
        let until = Instant::now() + RECORD_LIMIT;
        loop {
            // The first value stays, so it does no harm if an attempt was recorded whose answer is lost.
            match self.cluster.engine.signal(&name, &result, KEEP).await {
                Err(EngineError::Away(_)) if Instant::now() < until => sleep(RETRY).await,
                ended => return ended,
            }
        }
    }
}

/// The name of the signal of a job's end.
fn finished(key: &str) -> String {
    format!("finished.{key}")
}
