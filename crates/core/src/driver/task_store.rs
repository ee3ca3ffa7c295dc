//! The records of tasks beyond their process.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::cause::Cause;
use crate::id::Principal;
use crate::message::{ErrorCode, ErrorObject};
use crate::sync::{Mutex, MutexGuard};
use crate::transport::BoxFuture;

/// Records tasks for other processes, which can tell how a task has ended whose process is gone. The crate `rescind-cluster`
/// implements it.
pub trait TaskStore: Send + Sync {
    /// Records a task that has begun, or one that has ended. Of the records of one task that has ended the first counts. They are
    /// kept until the task's [time](TaskRecord::time_left) is over, or for less. The call must not block. The future ends when the
    /// record is written, or cannot be: then nobody knows the task when its process is gone. A client
    /// receives the end of its task when the future has ended, or after a second. At most 16 MiB of records are begun and not ended.
    ///
    /// Returns the record that counts, if another process recorded an end of the task before: its node was taken for lost.
    ///
    /// # Cancel safety
    /// Dropping the future may leave the task without the record.
    fn record(&self, record: TaskRecord) -> BoxFuture<'static, Option<TaskRecord>>;

    /// Removes the records of this task of this process. They would be removed when its time is over, too.
    ///
    /// # Cancel safety
    /// Dropping the future may leave them.
    fn forget(&self, task: TaskRecord) -> BoxFuture<'static, ()>;

    /// The tasks of this process, for the questions of others. [`Tasks::set_store`](crate::Tasks::set_store) calls it. By default
    /// nobody asks.
    fn attach(&self, own: OwnTasks) {
        let _ = own;
    }

    /// The record of a task that this process does not know, as its own process gives it, else as it was recorded. Of a task that had not
    /// ended when its process was lost it is [`lost`](TaskRecord::lost), and where its process does not answer,
    /// [`unanswered`](TaskRecord::unanswered). `None`: there was no such task.
    ///
    /// # Errors
    /// The store does not answer, with a sentence for the client.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn find(&self, id: &str) -> BoxFuture<'static, Result<Option<TaskRecord>, String>>;

    /// The tasks of a principal that [`find`](Self::find) reports and that were created after that one, at most a page and one more of
    /// each process, and as many of those that do not answer. By default there are none.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn list(
        &self,
        principal: &Principal,
        after: Option<TaskPosition>,
    ) -> BoxFuture<'static, Vec<ListedTask>> {
        let _ = (principal, after);
        Box::pin(async { Vec::new() })
    }

    /// Asks the process of a task that this process does not know to cancel it. Whether it did is in the task's record.
    ///
    /// # Errors
    /// The store does not answer, with a sentence for the client; by default always.
    ///
    /// # Cancel safety
    /// If the future is dropped, the task may be cancelled all the same.
    fn cancel(&self, id: &str, cause: Cause) -> BoxFuture<'static, Result<(), String>> {
        let _ = (id, cause);
        Box::pin(async { Err("a task of another process cannot be cancelled here".to_owned()) })
    }
}

/// The tasks of this process, as its [`TaskStore`] tells other processes of them.
#[derive(Clone)]
pub struct OwnTasks(pub(crate) Weak<dyn TellTasks>);

/// The table of the tasks.
pub(crate) trait TellTasks: Send + Sync {
    fn tell(self: Arc<Self>, id: &str) -> BoxFuture<'static, Option<TaskRecord>>;
    fn cancel_for_client(self: Arc<Self>, id: &str) -> BoxFuture<'static, Option<TaskRecord>>;
    fn listed(&self, principal: &Principal, after: Option<&TaskPosition>) -> Vec<ListedTask>;
}

/// The place of a task in the lists of its principal, which are in the order of creation. Its JSON may change with the version of the
/// library.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskPosition {
    /// In nanoseconds since 1970.
    pub(crate) created: u64,
    pub(crate) id: String,
}

/// A task in a list. Its JSON may change with the version of the library.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListedTask {
    pub(crate) at: TaskPosition,
    /// It as `tasks/list` shows it.
    pub(crate) status: Box<RawValue>,
}

impl OwnTasks {
    /// What is known of a task, with its result. `None`: this process does not know it.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn record(&self, id: &str) -> Option<TaskRecord> {
        self.0.upgrade()?.tell(id).await
    }

    /// Cancels a task for its client, and returns what is known of it then: its work is signalled, or it had ended before. `None`: this
    /// process does not know it.
    ///
    /// # Cancel safety
    /// If the future is dropped, the task may be cancelled all the same.
    pub async fn cancel(&self, id: &str) -> Option<TaskRecord> {
        self.0.upgrade()?.cancel_for_client(id).await
    }

    /// The tasks of a principal that were created after that one, at most a page and one more.
    #[must_use]
    pub fn list(&self, principal: &Principal, after: Option<&TaskPosition>) -> Vec<ListedTask> {
        self.0.upgrade().map(|tasks| tasks.listed(principal, after)).unwrap_or_default()
    }
}

impl fmt::Debug for OwnTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnTasks").finish_non_exhaustive()
    }
}

/// The longest result that is recorded, in bytes. A NATS server takes messages of 1 MiB. A task with a longer one is unknown to other
/// processes once its own is gone.
pub(crate) const MAX_RECORDED_RESULT: usize = 512 * 1024;

/// A task as a [`TaskStore`] records it. Its JSON may change with the version of the library.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskRecord {
    pub(crate) id: String,
    pub(crate) asked_by_client: bool,
    pub(crate) principal: Option<String>,
    /// In milliseconds since 1970.
    pub(crate) created: u64,
    /// The rest of its creation, in nanoseconds.
    #[serde(default)]
    pub(crate) created_nanos: u32,
    pub(crate) updated: u64,
    pub(crate) ttl_ms: u64,
    pub(crate) poll_interval_ms: u64,
    /// It waits for an answer of its client.
    #[serde(default)]
    pub(crate) waits_for_client: bool,
    /// What it asks of its client, as `tasks/get` has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inputs: Option<String>,
    pub(crate) end: Option<RecordedEnd>,
    /// Why its process does not tell how far it is.
    #[serde(skip)]
    pub(crate) unanswered: Option<String>,
}

/// How a recorded task has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum RecordedEnd {
    /// The result, as JSON.
    Value(String),
    Error(ErrorObject),
    Cancelled {
        by: String,
        reason: Option<String>,
    },
    /// It has ended, and how is not kept: its process does not know the task any more, or its result is too long.
    NotKept,
}

impl TaskRecord {
    /// The id of the task.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether the task has ended.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// The principal whose `tasks/list` has the task. `None`: no list has it.
    #[must_use]
    pub fn listed_for(&self) -> Option<Principal> {
        let name = self.principal.as_deref().filter(|_| self.asked_by_client)?;
        Some(Principal(name.into()))
    }

    /// The place of the task in that list.
    #[must_use]
    pub fn position(&self) -> TaskPosition {
        let created = Duration::from_millis(self.created) + Duration::from_nanos(self.created_nanos.into());
        TaskPosition { created: u64::try_from(created.as_nanos()).unwrap_or(u64::MAX), id: self.id.clone() }
    }

    /// Whether its result is not in it, because it is too long to be recorded.
    #[must_use]
    pub const fn lacks_result(&self) -> bool {
        matches!(self.end, Some(RecordedEnd::NotKept))
    }

    /// The same of a task whose process does not answer, for this reason, a sentence for the client: it can be cancelled, and how far
    /// it is is not known.
    #[must_use]
    pub fn unanswered(mut self, why: String) -> Self {
        self.unanswered = Some(why);
        self
    }

    /// The time for which the task is still kept. `None`: it is over.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        let end = UNIX_EPOCH + Duration::from_millis(self.created.saturating_add(self.ttl_ms));
        end.duration_since(SystemTime::now()).ok()
    }

    /// The same without its result, which is too long for the store: other processes do not know the task then.
    #[must_use]
    pub fn without_result(mut self) -> Self {
        self.end = self.end.map(|_| RecordedEnd::NotKept);
        self
    }

    /// The record of this task after the loss of its process: it has failed.
    #[must_use]
    pub fn lost(mut self) -> Self {
        let lost = ErrorObject::new(ErrorCode::INTERNAL_ERROR, "the node that did the task was lost");
        self.end.get_or_insert(RecordedEnd::Error(lost));
        self.updated = since_1970(SystemTime::now()).max(self.updated);
        self
    }
}

/// In milliseconds.
pub(crate) fn since_1970(time: SystemTime) -> u64 {
    millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// How long after a task's end its client waits at most for the record before it receives the end.
const RECORD_WAIT: Duration = Duration::from_secs(1);

/// Records of a task that are not written.
#[derive(Clone, Default)]
pub(crate) struct Pending(Arc<PendingInner>);

#[derive(Default)]
struct PendingInner {
    count: AtomicU64,
    written: Notify,
    /// When the last one was begun.
    begun: Mutex<Option<Instant>>,
}

impl Pending {
    /// One more, until the result is dropped.
    pub(crate) fn begin(&self) -> impl Drop + Send + use<> {
        self.0.count.fetch_add(1, Ordering::SeqCst);
        *self.begun() = Some(Instant::now());
        Writing(self.clone())
    }

    fn begun(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all are written, or the last was begun a second ago.
    pub(crate) async fn wait_until_written(&self) {
        let Some(begun) = *self.begun() else { return };
        let _late = tokio::time::timeout_at(begun + RECORD_WAIT, self.all_written()).await;
    }

    /// Waits until all are written.
    pub(crate) async fn all_written(&self) {
        loop {
            let mut written = std::pin::pin!(self.0.written.notified());
            written.as_mut().enable();
            if self.0.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            written.await;
        }
    }
}

/// A record that is being written.
struct Writing(Pending);

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.0.count.fetch_sub(1, Ordering::SeqCst);
        self.0.0.written.notify_waiters();
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
