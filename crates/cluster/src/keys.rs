//! The keys of running requests, cancels by key, and the jobs that a request hands to workers.
//!
//! A request that has a key is cancelled by a signal of its key, and the signal is recorded when the request is cancelled in
//! another way. So a process that watches the key, such as a worker, is signalled whatever cancelled the request.

use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rescind_core::{Cause, CauseKind, ClusterKeys, KeyedRequest, LogText, RequestKey};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::engine::EngineError;
use crate::names::SignedName;
use crate::process::{Process, lock};
use crate::secret::Purpose;
use crate::signals::Watch;

/// How long a cancel, or the end of a job, is tried to be recorded while the engine is away.
const RECORD_LIMIT: Duration = Duration::from_secs(60);
/// The time between two attempts.
const RETRY: Duration = Duration::from_millis(500);

/// Makes the keys of requests. It does not keep the cluster alive.
pub(crate) struct Keys(Weak<Process>);

impl Keys {
    pub(crate) fn new(cluster: &Arc<Process>) -> Self {
        Self(Arc::downgrade(cluster))
    }
}

impl ClusterKeys for Keys {
    fn key_of(&self, request: Arc<dyn KeyedRequest>) -> Option<Arc<str>> {
        let inner = self.0.upgrade()?;
        let number = request.request_key();
        let (key, watch) = {
            let mut keys = lock(&inner.keys);
            if let Some(key) = keys.get(&number) {
                return Some(Arc::clone(key));
            }
            let key = inner.new_name(Purpose::Key)?;
            let watch = CancelWatch::new(inner.signals.watch(&cancelled(&key).into()));
            keys.insert(number, Arc::clone(&key));
            (key, watch)
        };
        let listed = Listed {
            cluster: Weak::clone(&self.0),
            number,
            key: Arc::clone(&key),
            request: Arc::clone(&request),
            watch,
            is_recorded: false,
        };
        request.cancel_with(Box::pin(listed.cancelled()));
        Some(key)
    }
}

/// The key of a running request, in the list of its cluster until this value is dropped.
struct Listed {
    cluster: Weak<Process>,
    number: RequestKey,
    key: Arc<str>,
    request: Arc<dyn KeyedRequest>,
    watch: CancelWatch,
    is_recorded: bool,
}

impl Listed {
    /// Waits until the signal of the key comes.
    async fn cancelled(mut self) -> Cause {
        tokio::select! {
            biased;
            cause = self.watch.cancelled() => return cause,
            _ = self.request.cancelled() => {}
        }
        self.record();
        // The request keeps its key until it ends.
        pending().await
    }

    /// Records that the request is cancelled, unless its key's signal did it.
    fn record(&mut self) {
        if self.is_recorded || self.watch.cause().is_some() {
            return;
        }
        let (Some(cause), Some(cluster)) = (self.request.cause(), self.cluster.upgrade()) else { return };
        // Outside of a runtime the program ends.
        let Ok(runtime) = Handle::try_current() else { return };
        self.is_recorded = true;
        drop(runtime.spawn(record(CancelBus(cluster), Arc::clone(&self.key), cause)));
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        // A handler that ends at once may end before the task of this value has noticed the cancel.
        self.record();
        if let Some(cluster) = self.cluster.upgrade() {
            lock(&cluster.keys).remove(&self.number);
        }
    }
}

/// Records a cancel, also if the engine is away for a while.
async fn record(bus: CancelBus, key: Arc<str>, cause: Cause) {
    let until = Instant::now() + RECORD_LIMIT;
    while let Err(error) = bus.cancel(&key, &cause).await {
        if Instant::now() >= until {
            tracing::warn!(error = %LogText::text(&error), "the cancel of a request with a key was not recorded");
            return;
        }
        sleep(RETRY).await;
    }
}

// Cancels requests by their keys, from any process.

/// How long a recorded cancel is kept, for a worker that begins late.
const KEEP: Duration = Duration::from_secs(3600);

/// Cancels requests by their [keys](rescind_core::CallContext::cluster_key), wherever they run.
///
/// A cancel is recorded in the engine for an hour, and then its doorbell rings. So it reaches a watcher that comes later,
/// and one whose connection to the engine is lost for a while. A cancel that comes early, late or twice changes nothing
/// for any other request: a key is never used again.
#[derive(Clone, Debug)]
pub struct CancelBus(pub(crate) Arc<Process>);

/// Why a cancel was not recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CancelError {
    /// No node of this cluster made the key, or the secret of this process is not the cluster's.
    #[error("this is no key of a request of this cluster: the key or the secret is wrong")]
    UnknownKey,
    /// The engine has not recorded it. It may be tried again.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The value of a recorded cancel. Programs in other languages read and write it: docs/cluster.md.
#[derive(Debug, Serialize, Deserialize)]
struct Recorded {
    #[serde(default)]
    cause: String,
    #[serde(default)]
    reason: Option<String>,
}

impl CancelBus {
    /// Cancels the request with this key. When it returns `Ok`, the cancel is recorded, and every process that watches the
    /// key was rung. Its caller is answered with an error that names the cause, as for any cancel that is not its own.
    ///
    /// # Errors
    /// [`CancelError::UnknownKey`], or [`CancelError::Engine`] if the engine did not confirm it.
    ///
    /// # Cancel safety
    /// If the future is dropped before it returns, the cancel may or may not be recorded.
    pub async fn cancel(&self, key: &str, cause: &Cause) -> Result<(), CancelError> {
        let key = self.known(key)?;
        let recorded =
            Recorded { cause: cause.kind().name().to_owned(), reason: cause.reason().map(str::to_owned) };
        let value = serde_json::to_string(&recorded).unwrap_or_default();
        self.0.engine.signal(&cancelled(key.text()), &value, KEEP).await?;
        Ok(())
    }

    /// Watches a key until the result is dropped.
    ///
    /// # Errors
    /// [`CancelError::UnknownKey`].
    pub fn watch(&self, key: &str) -> Result<CancelWatch, CancelError> {
        let key = self.known(key)?;
        Ok(CancelWatch::new(self.0.signals.watch(&cancelled(key.text()).into())))
    }

    /// Whether a watched key is cancelled: one look-up in this process. A key that nobody watches in this process is not.
    #[must_use]
    pub fn is_cancelled(&self, key: &str) -> bool {
        self.0.signals.has_come(&cancelled(key))
    }

    fn known(&self, key: &str) -> Result<SignedName, CancelError> {
        SignedName::parse(Purpose::Key, &self.0.secret, key).ok_or(CancelError::UnknownKey)
    }
}

/// A watched key. Dropping it ends the watch, which a bare token could not.
#[derive(Debug)]
#[must_use = "dropping it ends the watch"]
pub struct CancelWatch(Watch);

impl CancelWatch {
    pub(crate) const fn new(watch: Watch) -> Self {
        Self(watch)
    }

    /// A token that is cancelled with the request.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.0.token().clone()
    }

    /// Waits until the request is cancelled.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn cancelled(&self) -> Cause {
        cause_of(&self.0.come().await)
    }

    /// The cause, if the request is cancelled.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        self.0.value().map(|value| cause_of(&value))
    }
}

/// The name of the signal of a cancel.
fn cancelled(key: &str) -> String {
    format!("cancelled.{key}")
}

/// The cause in a recorded cancel. One that cannot be read is an operator's: whoever can write to the engine is one.
fn cause_of(value: &str) -> Cause {
    let recorded: Option<Recorded> = serde_json::from_str(value).ok();
    let known = [
        // The client of a task, at another node.
        CauseKind::Caller,
        CauseKind::Deadline,
        CauseKind::Parent,
        CauseKind::Disconnected,
        CauseKind::Shutdown,
        CauseKind::Limit,
        CauseKind::Local,
    ];
    let kind = recorded
        .as_ref()
        .and_then(|recorded| known.into_iter().find(|kind| kind.name() == recorded.cause))
        .unwrap_or(CauseKind::Operator);
    match recorded.and_then(|recorded| recorded.reason) {
        Some(reason) => Cause::new(kind).with_reason(&reason),
        None => Cause::new(kind),
    }
}

// Work that a request hands to another process.

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

    /// Puts the job back at the end of the queue, for another worker: this one ends before the job does. The other begins it
    /// anew.
    ///
    /// # Errors
    /// The engine did not confirm it: the job may be lost.
    ///
    /// # Cancel safety
    /// If the future is dropped before it returns, the job may or may not be in the queue.
    pub async fn give_back(self) -> Result<(), EngineError> {
        self.cluster.engine.push_job(&serde_json::to_string(&self.queued).unwrap_or_default()).await
    }

    /// Ends the job with this result. While the engine is away, it is tried again for 60 s.
    ///
    /// # Errors
    /// The engine did not confirm it.
    ///
    /// # Cancel safety
    /// If the future is dropped before it returns, the request may or may not see the end.
    pub async fn finish(self, result: &Value) -> Result<(), EngineError> {
        let (name, value, until) =
            (finished(&self.queued.key), result.to_string(), Instant::now() + RECORD_LIMIT);
        loop {
            // The first value stays, so it does no harm if an attempt was recorded whose answer is lost.
            match self.cluster.engine.signal(&name, &value, KEEP).await {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_cannot_be_read_is_an_operator() {
        for (value, kind, reason) in [
            (r#"{"cause":"deadline"}"#, CauseKind::Deadline, None),
            (r#"{"cause":"operator","reason":"too dear"}"#, CauseKind::Operator, Some("too dear")),
            // The caller's own cancel comes over its own connection.
            (r#"{"cause":"peer","reason":"x"}"#, CauseKind::Operator, Some("x")),
            ("1", CauseKind::Operator, None),
            ("", CauseKind::Operator, None),
        ] {
            let cause = cause_of(value);
            assert_eq!((cause.kind(), cause.reason()), (kind, reason), "{value}");
        }
    }
}
