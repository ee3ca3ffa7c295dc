//! Tasks: the table of the requests that go on after their first answer. They outlive their requests and connections.
//!
//! The lock of the table is taken before that of a task, and is not held while a connection's lock is taken.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::cause::{Cause, CauseKind};
use crate::dialect::TaskForm;
use crate::dialect::tasks::TaskOffer;
use crate::driver::task::{Task, TaskPlace, TaskStart, TaskTable};
use crate::driver::task_store::{
    ListedTask, MAX_RECORDED_RESULT, OwnTasks, TaskPosition, TaskRecord, TaskStore, TellTasks,
};
use crate::id::Principal;
use crate::machine::limits::limits;
use crate::message::{ErrorCode, ErrorObject};
use crate::sync::{Mutex, MutexGuard};
use crate::transport::BoxFuture;

limits! {
    /// Limits of the tasks of a server.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct TaskLimits {
        /// The most tasks that are kept, ended ones included. Default: 10,240. At the limit the oldest ended task is
        /// forgotten; if none has ended, no further request becomes a task.
        pub max_tasks: usize = 10_240,
        /// The most tasks of one client that are kept, in the same way. Default: 1024.
        pub max_tasks_of_client: usize = 1024,
        /// How long a task is kept from its creation if its client does not say. Default: 1 h.
        pub default_ttl: Duration = Duration::from_secs(3600),
        /// The longest time for which a task is kept. Default: 24 h. A task that still runs then is cancelled.
        pub max_ttl: Duration = Duration::from_secs(24 * 3600),
        /// The time between two questions about a task that is suggested to clients. Default: 1 s.
        pub poll_interval: Duration = Duration::from_secs(1),
        /// The most bytes of the results that are kept. Default: 64 MiB. Above it the oldest ended tasks are forgotten.
        pub max_result_bytes: usize = 64 << 20,
    }
}

/// The shortest time for which a task is kept: a client must be able to ask about it.
const MIN_TTL: Duration = Duration::from_secs(1);
/// The most tasks in one answer to `tasks/list`.
const PAGE: usize = 100;
/// The bytes of a record beside the result.
const RECORD_BYTES: usize = 1024;
/// How many bytes of records may wait for the store. Above it no request becomes a task, and the tasks that end are recorded
/// without their results.
const MAX_UNWRITTEN: usize = 16 << 20;

/// The tasks of a server, over all its connections. A clone is the same tasks.
///
/// A task outlives the request, the stream and the connection on which it was created. It ends when its handler ends, by
/// `tasks/cancel` of the principal that created it, when its time is over, and when its server shuts down. Without a
/// principal whoever knows its id may ask about it: the id has 128 random bits.
///
/// ```
/// use rescind_core::{CallContext, Router, Tasks};
/// use serde_json::{Value, json};
///
/// let tasks = Tasks::default();
/// let router = Router::new().tasks(&tasks).task("tools/call", async |ctx: CallContext, _: Value| {
///     // A job that takes minutes. It stops at `tasks/cancel`, from whichever connection that comes.
///     ctx.run_until_cancelled(tokio::time::sleep(std::time::Duration::from_secs(600))).await?;
///     Ok(json!({ "content": [] }))
/// });
/// # let _ = router;
/// ```
#[derive(Clone, Default)]
pub struct Tasks(Arc<Table>);

#[derive(Default)]
struct Table {
    limits: TaskLimits,
    store: OnceLock<Arc<dyn TaskStore>>,
    /// The bytes of the records that wait for the store.
    unwritten: Arc<AtomicUsize>,
    /// Its key makes cursors.
    hasher: RandomState,
    kept: Mutex<KeptTasks>,
}

#[derive(Default)]
struct KeptTasks {
    by_id: HashMap<Arc<str>, u64>,
    /// In the order of their creation.
    tasks: BTreeMap<u64, KeptTask>,
    /// By what identifies the clients.
    clients: HashMap<usize, TasksOfClient>,
    next: u64,
    result_bytes: usize,
}

struct KeptTask {
    task: Arc<Task>,
    /// The bytes of its result that are counted.
    bytes: usize,
}

#[derive(Default)]
struct TasksOfClient {
    numbers: BTreeSet<u64>,
    result_bytes: usize,
}

impl Tasks {
    /// No tasks, with these limits.
    #[must_use]
    pub fn new(limits: TaskLimits) -> Self {
        Self(Arc::new(Table { limits, ..Table::default() }))
    }

    /// Records the tasks in this store from now on, and looks there for those that are not known here. Only the first call counts.
    pub fn set_store(&self, store: Arc<dyn TaskStore>) {
        if self.0.store.set(store).is_ok() {
            let table: Weak<dyn TellTasks> = Arc::<Table>::downgrade(&self.0);
            if let Some(store) = self.0.store.get() {
                store.attach(OwnTasks(table));
            }
        }
    }

    /// Records a task that has begun.
    pub(crate) fn record(&self, task: &Arc<Task>) {
        self.0.record(task);
    }

    /// Asks the process that does a task to cancel it.
    ///
    /// # Errors
    /// The store does not answer.
    pub(crate) async fn cancel_elsewhere(&self, task: &Task, cause: Cause) -> Result<(), ErrorObject> {
        let asked = match self.0.store.get() {
            Some(store) => store.cancel(&task.id, cause).await,
            None => Ok(()),
        };
        asked.map_err(store_away)
    }

    /// The task with this id that another process does or did, if this principal may see it. To be cancelled it need not be known how
    /// far it is.
    ///
    /// # Errors
    /// The store or the process of the task does not answer.
    pub(crate) async fn find_recorded(
        &self,
        id: &str,
        principal: Option<&Principal>,
        to_cancel: bool,
    ) -> Result<Option<Arc<Task>>, ErrorObject> {
        let Some(store) = self.0.store.get() else { return Ok(None) };
        let found = store.find(id).await.map_err(store_away)?;
        let found = found.filter(|record| record.time_left().is_some()).and_then(Task::recorded);
        let found = found.filter(|task| task.principal.as_ref() == principal);
        match found.as_ref().and_then(|task| task.unanswered.clone()) {
            Some(why) if !to_cancel => Err(store_away(why)),
            Some(_) | None => Ok(found),
        }
    }

    /// How many tasks are kept, ended ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().tasks.len()
    }

    /// Whether no task is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A new task, which is kept. `None`: there are too many, too many records wait for the store, or its id is in use.
    pub(crate) fn begin(&self, mut start: TaskStart) -> Option<Arc<Task>> {
        if self.0.unwritten.load(Ordering::Relaxed) > MAX_UNWRITTEN {
            return None;
        }
        let id = start.id.take().or_else(draw_id)?;
        let table: Weak<dyn TaskTable> = Arc::<Table>::downgrade(&self.0);
        let place = TaskPlace { id, poll_interval: self.0.limits.poll_interval, table };
        let task = Arc::new(Task::new(start, place));
        let (is_kept, forgotten) = self.0.lock().keep(&task, &self.0.limits);
        if let Some(forgotten) = forgotten {
            self.0.forget_record(forgotten);
        }
        is_kept.then_some(task)
    }

    /// How long a task is kept whose client asks for this time.
    pub(crate) fn ttl(&self, offer: TaskOffer) -> Duration {
        let limits = &self.0.limits;
        let asked = offer.ttl.map_or(limits.default_ttl, Duration::from_millis);
        asked.max(MIN_TTL).min(limits.max_ttl)
    }

    /// The action that ends a task when its time is over.
    pub(crate) fn expiry(&self, task: &Arc<Task>) -> impl FnOnce() + Send + use<> {
        let (table, task) = (Arc::downgrade(&self.0), Arc::downgrade(task));
        move || {
            let (Some(table), Some(task)) = (table.upgrade(), task.upgrade()) else { return };
            if Self(Arc::clone(&table)).forget(&task) {
                task.cancel(Cause::new(CauseKind::Deadline));
                table.forget_record(task);
            }
        }
    }

    /// The task with this id, if this principal may see it.
    pub(crate) fn find(&self, id: &str, principal: Option<&Principal>) -> Option<Arc<Task>> {
        self.0.lock().task(id).filter(|task| task.principal.as_ref() == principal)
    }

    /// A page of a principal's tasks that were created after that one: of this process, and of others that answer. The second value:
    /// there are more.
    pub(crate) async fn page(
        &self,
        principal: &Principal,
        after: Option<TaskPosition>,
    ) -> (Vec<ListedTask>, bool) {
        let mut listed = self.0.listed(principal, after.as_ref());
        if let Some(store) = self.0.store.get() {
            listed.extend(store.list(principal, after).await);
            listed.sort_by(|one, other| one.at.cmp(&other.at));
        }
        let more = listed.len() > PAGE;
        listed.truncate(PAGE);
        (listed, more)
    }

    /// The place after a task in the list of a principal, which no client can make.
    pub(crate) fn cursor(&self, after: &TaskPosition, principal: &Principal) -> String {
        let TaskPosition { created, id } = after;
        format!("{created}-{id}-{:016x}", self.0.hasher.hash_one((created, id, principal)))
    }

    /// The task of a cursor. `None`: it is not of this server and this principal.
    pub(crate) fn read_cursor(&self, cursor: &str, principal: &Principal) -> Option<TaskPosition> {
        let (created, id) = cursor.rsplit_once('-')?.0.split_once('-')?;
        let after = TaskPosition { created: created.parse().ok()?, id: id.to_owned() };
        (self.cursor(&after, principal) == cursor).then_some(after)
    }

    /// Forgets a task. `true`: it was kept.
    pub(crate) fn forget(&self, task: &Arc<Task>) -> bool {
        let mut kept = self.0.lock();
        let number = kept.number_of(task);
        number.and_then(|number| kept.remove(number)).is_some()
    }
}

impl TellTasks for Table {
    /// In the order of their creation, and one more than a page.
    fn listed(&self, principal: &Principal, after: Option<&TaskPosition>) -> Vec<ListedTask> {
        let own = |task: &Arc<Task>| {
            task.form == TaskForm::AskedByClient && task.principal.as_ref() == Some(principal)
        };
        let mut tasks: Vec<(TaskPosition, Arc<Task>)> = {
            let kept = self.lock();
            let tasks = kept.tasks.values().map(|kept| &kept.task).filter(|task| own(task));
            tasks.map(|task| (task.position(), Arc::clone(task))).collect()
        };
        tasks.retain(|(at, _)| after.is_none_or(|after| at > after));
        tasks.sort_by(|(one, _), (other, _)| one.cmp(other));
        let listed = tasks.into_iter().take(PAGE + 1);
        listed
            .filter_map(|(at, task)| Some(ListedTask { at, status: task.written(TaskForm::status)? }))
            .collect()
    }

    fn tell(self: Arc<Self>, id: &str) -> BoxFuture<'static, Option<TaskRecord>> {
        let task = self.lock().task(id);
        Box::pin(async move { Some(task?.record_reported().await) })
    }

    fn cancel_for_client(self: Arc<Self>, id: &str) -> BoxFuture<'static, Option<TaskRecord>> {
        let task = self.lock().task(id);
        Box::pin(async move {
            let task = task?;
            if !task.cancel(Cause::new(CauseKind::Peer)) {
                // Another step has ended it, and is about to report that.
                task.ended().await;
            }
            Some(task.record_reported().await)
        })
    }
}

/// The error of a question about a task whose store does not answer. It says nothing about the task.
fn store_away(why: String) -> ErrorObject {
    let data = serde_json::json!({ "reason": "store_away" });
    ErrorObject::new(ErrorCode::INTERNAL_ERROR, why).with_data(&data)
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, KeptTasks> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a task that has begun or ended.
    fn record(&self, task: &Arc<Task>) {
        let Some(store) = self.store.get() else { return };
        // Outside of a runtime the program ends.
        let Ok(runtime) = Handle::try_current() else { return };
        let unwritten = Arc::clone(&self.unwritten);
        let (all, result) = (unwritten.load(Ordering::Relaxed), task.result_bytes());
        let with_result = result <= MAX_RECORDED_RESULT && all <= MAX_UNWRITTEN;
        let bytes = RECORD_BYTES + if with_result { result } else { 0 };
        unwritten.fetch_add(bytes, Ordering::Relaxed);
        let (written, pending) = (store.record(task.record(with_result)), task.pending.begin());
        let task = Arc::clone(task);
        drop(runtime.spawn(async move {
            if let Some(other) = written.await {
                task.adopt(other);
            }
            unwritten.fetch_sub(bytes, Ordering::Relaxed);
            drop(pending);
        }));
    }

    /// A task is not kept any more: its records are removed.
    fn forget_record(&self, task: Arc<Task>) {
        task.end_expiry();
        let (Some(store), Ok(runtime)) = (self.store.get(), Handle::try_current()) else { return };
        let store = Arc::clone(store);
        drop(runtime.spawn(async move {
            // A record that is written later would stay.
            task.pending.all_written().await;
            store.forget(task.record(false)).await;
        }));
    }

    /// Counts the bytes of a result. While there are too many, the oldest ended tasks of the client with most are forgotten.
    fn count_result(&self, task: &Arc<Task>) {
        let forgotten = self.lock().count_result(task, self.limits.max_result_bytes);
        for task in forgotten {
            self.forget_record(task);
        }
    }
}

impl TaskTable for Table {
    fn ended(&self, task: &Arc<Task>) {
        self.count_result(task);
        self.record(task);
    }
}

impl TaskRecord {
    /// The task as `tasks/list` shows it. `None`: no list has it, or how far it is is not known.
    #[must_use]
    pub fn listed(self) -> Option<ListedTask> {
        self.listed_for().filter(|_| self.unanswered.is_none())?;
        let at = self.position();
        Some(ListedTask { at, status: Task::recorded(self)?.written(TaskForm::status)? })
    }
}

impl KeptTasks {
    fn task(&self, id: &str) -> Option<Arc<Task>> {
        let kept = self.tasks.get(self.by_id.get(id)?)?;
        Some(Arc::clone(&kept.task))
    }

    /// Keeps a task, or not if there are too many. Returns the ended task that it replaces.
    fn keep(&mut self, task: &Arc<Task>, limits: &TaskLimits) -> (bool, Option<Arc<Task>>) {
        if self.by_id.contains_key(&task.id) {
            return (false, None);
        }
        let of_client = self.clients.get(&task.client()).map_or(0, |client| client.numbers.len());
        let oldest = if of_client >= limits.max_tasks_of_client {
            self.oldest_ended_of(task.client(), None)
        } else if self.tasks.len() >= limits.max_tasks {
            self.tasks.iter().find(|(_, kept)| kept.task.is_over()).map(|(number, _)| *number)
        } else {
            self.insert(task);
            return (true, None);
        };
        let Some(oldest) = oldest else { return (false, None) };
        let forgotten = self.remove(oldest);
        self.insert(task);
        (true, forgotten)
    }

    fn insert(&mut self, task: &Arc<Task>) {
        self.next += 1;
        self.by_id.insert(Arc::clone(&task.id), self.next);
        self.tasks.insert(self.next, KeptTask { task: Arc::clone(task), bytes: 0 });
        self.clients.entry(task.client()).or_default().numbers.insert(self.next);
    }

    fn number_of(&self, task: &Arc<Task>) -> Option<u64> {
        let number = *self.by_id.get(&task.id)?;
        self.tasks.get(&number).is_some_and(|kept| Arc::ptr_eq(&kept.task, task)).then_some(number)
    }

    fn oldest_ended_of(&self, client: usize, except: Option<u64>) -> Option<u64> {
        let mut numbers = self.clients.get(&client)?.numbers.iter().copied();
        numbers.find(|number| {
            Some(*number) != except && self.tasks.get(number).is_some_and(|kept| kept.task.is_over())
        })
    }

    /// Counts the result of a task, and removes others while there are more than `most` bytes.
    fn count_result(&mut self, task: &Arc<Task>, most: usize) -> Vec<Arc<Task>> {
        let (mut forgotten, bytes) = (Vec::new(), task.result_bytes());
        let Some(number) = self.number_of(task) else { return forgotten };
        if let (Some(kept), Some(client)) =
            (self.tasks.get_mut(&number), self.clients.get_mut(&task.client()))
        {
            kept.bytes = bytes;
            client.result_bytes += bytes;
            self.result_bytes += bytes;
        }
        while self.result_bytes > most {
            // Apart from the result that has just come.
            let of_client = |(client, kept): (&usize, &TasksOfClient)| {
                let bytes = kept.result_bytes - if *client == task.client() { bytes } else { 0 };
                (bytes > 0).then_some((bytes, *client))
            };
            let Some((_, largest)) = self.clients.iter().filter_map(of_client).max() else { break };
            let Some(oldest) = self.oldest_ended_of(largest, Some(number)) else { break };
            forgotten.extend(self.remove(oldest));
        }
        forgotten
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Task>> {
        let KeptTask { task, bytes } = self.tasks.remove(&number)?;
        self.by_id.remove(&task.id);
        self.result_bytes -= bytes;
        if let Some(client) = self.clients.get_mut(&task.client()) {
            client.numbers.remove(&number);
            client.result_bytes -= bytes;
            if client.numbers.is_empty() {
                self.clients.remove(&task.client());
            }
        }
        Some(task)
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").field("kept", &self.len()).finish_non_exhaustive()
    }
}

/// Why a request did not become a task.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NotATask {
    /// Its client does not take a task as its answer, or its protocol or its [`Router`](crate::Router) has none. As a handler's error it
    /// is what the protocol requires where the answer must be a task.
    #[error("the client does not take a task as the answer")]
    NotOffered(ErrorObject),
    /// The client asks for a task in a way that cannot be read.
    #[error(transparent)]
    Invalid(ErrorObject),
    /// [`TaskLimits`] is reached.
    #[error("too many tasks are kept")]
    TooMany,
    /// It is cancelled, or answered.
    #[error("the request was cancelled or answered before")]
    Ended(Option<Cause>),
}

impl NotATask {
    /// The error for the client.
    ///
    /// # Errors
    /// The request was cancelled.
    pub(crate) fn into_answer(self) -> Result<ErrorObject, Cause> {
        match self {
            Self::NotOffered(error) | Self::Invalid(error) => Ok(error),
            Self::TooMany => Ok(ErrorObject::new(ErrorCode::INTERNAL_ERROR, "Overloaded: tasks")
                .with_data(&serde_json::json!({ "reason": "overloaded", "limit": "tasks" }))),
            Self::Ended(Some(cause)) => Err(cause),
            Self::Ended(None) => Ok(ErrorObject::internal()),
        }
    }
}

/// The offer of a task in a request, and the task that the request became.
pub(crate) struct TaskSide {
    pub(crate) offer: Result<TaskOffer, ErrorObject>,
    task: OnceLock<Arc<Task>>,
}

impl TaskSide {
    pub(crate) const fn new(offer: Result<TaskOffer, ErrorObject>) -> Self {
        Self { offer, task: OnceLock::new() }
    }

    /// It became this task. Called with the connection's lock held: the next step may end the task.
    pub(crate) fn set_task(&self, task: &Arc<Task>) {
        let _ = self.task.set(Arc::clone(task));
    }

    pub(crate) fn task(&self) -> Option<&Arc<Task>> {
        self.task.get()
    }
}

/// An id with 128 random bits. `None`: the system gives none.
fn draw_id() -> Option<Arc<str>> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).ok()?;
    let mut id = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(id, "{byte:02x}");
    }
    Some(id.into())
}
