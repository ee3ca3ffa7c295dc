//! Tasks: the records of requests that go on after their first answer. They outlive their requests and connections.
//!
//! The lock of a table is taken before that of a task, and both are leaves: neither is held while a connection's lock is
//! taken.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use crate::cause::{Cause, CauseKind};
use crate::dialect::tasks::{self as form, TaskDetails, TaskOffer};
use crate::dialect::{TaskForm, TaskStatus};
use crate::driver::outbox::Answer;
use crate::driver::task_store::{Pending, RecordedEnd, TaskRecord, TaskStore, millis, since_1970};
use crate::id::{ExchangeId, Principal};
use crate::machine::limits::limits;
use crate::message::{ErrorCode, ErrorObject};
use crate::sync::{AbortHandle, Mutex, MutexGuard};

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

/// In milliseconds since 1970.
const END_OF_9999: u64 = 253_402_300_799_999;

/// The missing handler of a task that is only a record.
struct NoWork;

impl TaskWork for NoWork {
    fn cancel(self: Arc<Self>, _: Cause) -> bool {
        false
    }

    fn waits_for_client(&self) -> bool {
        false
    }
}

#[derive(Default)]
struct Table {
    limits: TaskLimits,
    store: OnceLock<Arc<dyn TaskStore>>,
    /// Its key makes cursors.
    hasher: RandomState,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    by_id: HashMap<Arc<str>, u64>,
    /// In the order of their creation.
    tasks: BTreeMap<u64, Arc<Task>>,
    next: u64,
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
        let _ = self.0.store.set(store);
    }

    /// Records a task that has begun or ended.
    pub(crate) fn record(&self, task: &Task) {
        let Some(store) = self.0.store.get() else { return };
        // Outside of a runtime the program ends.
        let Ok(runtime) = Handle::try_current() else { return };
        let (written, pending) = (store.record(&task.record()), task.pending.begin());
        drop(runtime.spawn(async move {
            written.await;
            drop(pending);
        }));
    }

    /// The task with this id that another process did, if this principal may see it.
    ///
    /// # Errors
    /// The store does not answer.
    pub(crate) async fn find_recorded(
        &self,
        id: &str,
        principal: Option<&Principal>,
    ) -> Result<Option<Arc<Task>>, ErrorObject> {
        let Some(store) = self.0.store.get() else { return Ok(None) };
        let found = store.find(id).await;
        let found = found.map_err(|why| ErrorObject::new(ErrorCode::INTERNAL_ERROR, why))?;
        let found = found.filter(|record| record.time_left().is_some()).map(Task::recorded);
        Ok(found.filter(|task| task.principal.as_ref() == principal))
    }

    /// How many tasks are kept, ended ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().tasks.len()
    }

    /// Whether no task is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new task, which is kept. `None`: there are too many.
    pub(crate) fn begin(&self, start: TaskStart) -> Option<Arc<Task>> {
        let TaskStart { id, form, principal, connection, client, ttl, work } = start;
        let created = SystemTime::now();
        self.keep(Task {
            id: id.or_else(draw_id)?,
            form,
            principal,
            connection,
            client,
            reader: AtomicU64::new(ExchangeId::NONE.0),
            created,
            ttl,
            poll_interval: self.0.limits.poll_interval,
            tasks: Arc::downgrade(&self.0),
            work,
            state: Mutex::new(TaskState { updated: created, end: None, inputs: Inputs::default() }),
            ended: Notify::new(),
            pending: Pending::default(),
            expiry: OnceLock::new(),
        })
    }

    /// How long a task is kept whose client asks for this time.
    pub(crate) fn ttl(&self, offer: TaskOffer) -> Duration {
        let limits = &self.0.limits;
        let asked = offer.ttl.map_or(limits.default_ttl, Duration::from_millis);
        asked.max(MIN_TTL).min(limits.max_ttl)
    }

    /// The action that ends a task when its time is over.
    pub(crate) fn expiry(&self, id: &Arc<str>) -> impl FnOnce() + Send + use<> {
        let (table, id) = (Arc::downgrade(&self.0), Arc::clone(id));
        move || {
            let Some(table) = table.upgrade() else { return };
            if let Some(task) = Tasks(table).forget(&id) {
                task.cancel(Cause::new(CauseKind::Deadline));
            }
        }
    }

    fn keep(&self, task: Task) -> Option<Arc<Task>> {
        let limits = self.0.limits;
        let mut forgotten: Vec<Arc<Task>> = Vec::new();
        let kept = {
            let mut kept = self.lock();
            let of_client = kept.tasks.values().filter(|other| other.client == task.client).count();
            let is_full = of_client >= limits.max_tasks_of_client;
            if is_full || kept.tasks.len() >= limits.max_tasks {
                let ended = |other: &Task| other.is_over() && (!is_full || other.client == task.client);
                let oldest = kept.tasks.iter().find(|(_, other)| ended(other)).map(|(number, _)| *number);
                forgotten.extend(kept.remove(oldest?));
            }
            kept.next += 1;
            let (number, task) = (kept.next, Arc::new(task));
            kept.by_id.insert(Arc::clone(&task.id), number);
            kept.tasks.insert(number, Arc::clone(&task));
            Some(task)
        };
        for task in forgotten {
            task.forget();
        }
        kept
    }

    /// The task with this id, if this principal may see it.
    pub(crate) fn find(&self, id: &str, principal: Option<&Principal>) -> Option<Arc<Task>> {
        let kept = self.lock();
        let task = kept.by_id.get(id).and_then(|number| kept.tasks.get(number))?;
        (task.principal.as_ref() == principal).then(|| Arc::clone(task))
    }

    /// The tasks of a principal that were created after this one, at most a page, and the last of them if there are more.
    pub(crate) fn page(&self, principal: &Principal, after: u64) -> (Vec<Arc<Task>>, Option<u64>) {
        let kept = self.lock();
        let mut own = kept
            .tasks
            .range(after.saturating_add(1)..)
            .filter(|(_, task)| task.principal.as_ref() == Some(principal));
        let page: Vec<_> =
            own.by_ref().take(PAGE).map(|(number, task)| (*number, Arc::clone(task))).collect();
        let last = own.next().and(page.last()).map(|(number, _)| *number);
        (page.into_iter().map(|(_, task)| task).collect(), last)
    }

    /// The place after a task in the list of a principal, which no client can make.
    pub(crate) fn cursor(&self, after: u64, principal: &Principal) -> String {
        format!("{after}-{:016x}", self.0.hasher.hash_one((after, principal)))
    }

    /// The task of a cursor. `None`: it is not of this server and this principal.
    pub(crate) fn read_cursor(&self, cursor: &str, principal: &Principal) -> Option<u64> {
        let after = cursor.split_once('-')?.0.parse().ok()?;
        (self.cursor(after, principal) == cursor).then_some(after)
    }

    /// Forgets a task.
    pub(crate) fn forget(&self, id: &str) -> Option<Arc<Task>> {
        let mut kept = self.lock();
        let number = kept.by_id.get(id).copied()?;
        kept.remove(number)
    }

    /// Counts the bytes of a result. While there are too many, the oldest ended tasks of the client with most are forgotten.
    fn count_result(&self, id: &str, bytes: usize) {
        let mut forgotten = Vec::new();
        {
            let mut kept = self.lock();
            if !kept.by_id.contains_key(id) {
                return;
            }
            kept.result_bytes += bytes;
            while kept.result_bytes > self.0.limits.max_result_bytes {
                let Some(oldest) = kept.oldest_of_largest(id) else { break };
                forgotten.extend(kept.remove(oldest));
            }
        }
        for task in forgotten {
            task.forget();
        }
    }
}

impl Kept {
    /// The oldest ended task of the client whose results take most, except this one.
    fn oldest_of_largest(&self, except: &str) -> Option<u64> {
        let ended = || self.tasks.iter().filter(|(_, task)| task.is_over() && &*task.id != except);
        let mut bytes: HashMap<usize, usize> = HashMap::new();
        for (_, task) in ended() {
            *bytes.entry(task.client).or_default() += task.lock().result_bytes();
        }
        let (largest, _) = bytes.into_iter().max_by_key(|(_, bytes)| *bytes)?;
        ended().find(|(_, task)| task.client == largest).map(|(number, _)| *number)
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Task>> {
        let task = self.tasks.remove(&number)?;
        self.by_id.remove(&task.id);
        self.result_bytes = self.result_bytes.saturating_sub(task.lock().result_bytes());
        Some(task)
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").field("kept", &self.len()).finish_non_exhaustive()
    }
}

/// A task before it is kept.
pub(crate) struct TaskStart {
    /// `None`: it gets a random id.
    pub(crate) id: Option<Arc<str>>,
    pub(crate) form: TaskForm,
    pub(crate) principal: Option<Principal>,
    /// The number of its connection.
    pub(crate) connection: u64,
    pub(crate) client: usize,
    pub(crate) ttl: Duration,
    pub(crate) work: Weak<dyn TaskWork>,
}

/// The request that became a task, and whose handler does the work.
pub(crate) trait TaskWork: Send + Sync {
    /// Ends the work. `true`: it was not decided before.
    fn cancel(self: Arc<Self>, cause: Cause) -> bool;

    /// Whether a request that the handler sent to the client is not answered.
    fn waits_for_client(&self) -> bool;
}

/// A task.
pub(crate) struct Task {
    pub(crate) id: Arc<str>,
    pub(crate) form: TaskForm,
    principal: Option<Principal>,
    /// The number of the connection on which it was created.
    connection: u64,
    /// The number of the client that created it.
    client: usize,
    /// The exchange of that connection on which its messages are sent, while its client waits there for its end.
    reader: AtomicU64,
    created: SystemTime,
    ttl: Duration,
    poll_interval: Duration,
    /// The table, which counts the bytes of its result.
    tasks: Weak<Table>,
    /// What does the work. It is gone when the handler has ended.
    work: Weak<dyn TaskWork>,
    state: Mutex<TaskState>,
    /// Notified when it has ended.
    ended: Notify,
    /// Its records that are not written.
    pending: Pending,
    /// The task of the runtime that ends it when its time is over.
    pub(crate) expiry: OnceLock<AbortHandle>,
}

struct TaskState {
    updated: SystemTime,
    /// `None`: its handler does the work.
    end: Option<TaskEnd>,
    inputs: Inputs,
}

/// How a task has ended.
pub(crate) enum TaskEnd {
    Cancelled(Cause),
    Answered(Answer),
}

impl From<Answer> for TaskEnd {
    fn from(answer: Answer) -> Self {
        Self::Answered(answer)
    }
}

/// The requests to the client that wait for their answers. Only in the extension, where a server sends no requests.
#[derive(Default)]
struct Inputs {
    asked: u64,
    waiting: BTreeMap<String, Input>,
}

struct Input {
    method: Arc<str>,
    params: Option<Box<RawValue>>,
    answer: oneshot::Sender<Box<RawValue>>,
}

impl TaskState {
    fn result_bytes(&self) -> usize {
        match &self.end {
            Some(TaskEnd::Answered(answer)) => answer.weight(),
            Some(TaskEnd::Cancelled(_)) | None => 0,
        }
    }
}

impl Task {
    /// The task of a record, without what does its work.
    fn recorded(record: TaskRecord) -> Arc<Self> {
        let end = match record.end {
            Some(RecordedEnd::Value(value)) => RawValue::from_string(value)
                .map_or_else(|_| Answer::Error(ErrorObject::internal()), Answer::Value)
                .into(),
            Some(RecordedEnd::Error(error)) => Answer::Error(error).into(),
            Some(RecordedEnd::Cancelled { by, reason }) => {
                let cause = Cause::new(CauseKind::by_name(&by).unwrap_or(CauseKind::Peer));
                TaskEnd::Cancelled(match reason {
                    Some(reason) => cause.with_reason(&reason),
                    None => cause,
                })
            }
            // A store gives the record of a task that works only once its process is lost.
            None => Answer::Error(ErrorObject::internal()).into(),
        };
        let form = if record.asked_by_client { TaskForm::AskedByClient } else { TaskForm::DecidedByServer };
        // A later time cannot be written.
        let time = |since: u64| UNIX_EPOCH + Duration::from_millis(since.min(END_OF_9999));
        Arc::new(Self {
            id: record.id.into(),
            form,
            principal: record.principal.map(|name| Principal(name.into())),
            connection: 0,
            client: 0,
            reader: AtomicU64::new(ExchangeId::NONE.0),
            created: time(record.created),
            ttl: Duration::from_millis(record.ttl_ms),
            poll_interval: Duration::from_millis(record.poll_interval_ms),
            tasks: Weak::new(),
            work: Weak::<NoWork>::new(),
            state: Mutex::new(TaskState {
                updated: time(record.updated),
                end: Some(end),
                inputs: Inputs::default(),
            }),
            ended: Notify::new(),
            pending: Pending::default(),
            expiry: OnceLock::new(),
        })
    }
}

impl Task {
    fn lock(&self) -> MutexGuard<'_, TaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.lock().end.is_some()
    }

    /// It has ended. The machine reports that once (I16).
    pub(crate) fn end(&self, end: TaskEnd) {
        // Before anyone sees that it has ended.
        let _pending = self.pending.begin();
        let (bytes, inputs) = {
            let mut state = self.lock();
            if state.end.is_some() {
                return;
            }
            state.end = Some(end);
            state.updated = SystemTime::now().max(state.updated);
            (state.result_bytes(), std::mem::take(&mut state.inputs.waiting))
        };
        drop(inputs);
        self.ended.notify_waiters();
        if let Some(table) = self.tasks.upgrade() {
            let tasks = Tasks(table);
            tasks.count_result(&self.id, bytes);
            tasks.record(self);
        }
    }

    /// Gives this back once the end that it may have is recorded.
    pub(crate) async fn once_recorded<T>(&self, about: T) -> T {
        if self.is_over() {
            self.pending.none().await;
        }
        about
    }

    /// It as a store records it.
    fn record(&self) -> TaskRecord {
        let state = self.lock();
        let end = state.end.as_ref().map(|end| match end {
            TaskEnd::Answered(Answer::Value(value)) => RecordedEnd::Value(value.get().to_owned()),
            TaskEnd::Answered(Answer::Error(error)) => RecordedEnd::Error(error.clone()),
            TaskEnd::Answered(Answer::Refused(_)) => RecordedEnd::Error(ErrorObject::internal()),
            TaskEnd::Cancelled(cause) => RecordedEnd::Cancelled {
                by: cause.kind().name().to_owned(),
                reason: cause.reason().map(str::to_owned),
            },
        });
        TaskRecord {
            id: self.id.to_string(),
            asked_by_client: self.form == TaskForm::AskedByClient,
            principal: self.principal.as_ref().map(|principal| principal.0.to_string()),
            created: since_1970(self.created),
            updated: since_1970(state.updated),
            ttl_ms: millis(self.ttl),
            poll_interval_ms: millis(self.poll_interval),
            end,
        }
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&self) {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if self.is_over() {
                return;
            }
            ended.await;
        }
    }

    /// Ends the work. `true`: it was not decided before.
    pub(crate) fn cancel(&self, cause: Cause) -> bool {
        self.work.upgrade().is_some_and(|work| work.cancel(cause))
    }

    /// It is in no table any more.
    fn forget(&self) {
        if let Some(expiry) = self.expiry.get() {
            expiry.abort();
        }
    }

    /// The exchange for messages of its handler.
    pub(crate) fn exchange(&self) -> ExchangeId {
        ExchangeId(self.reader.load(Ordering::Relaxed))
    }

    /// A client waits for its end on this exchange, until the result is dropped. Only on its own connection its handler's
    /// messages can be sent there.
    pub(crate) fn read_on(&self, connection: u64, exchange: ExchangeId) -> impl Drop + use<'_> {
        if connection == self.connection && exchange.is_peers() {
            self.reader.store(exchange.0, Ordering::Relaxed);
        }
        ReadOn { task: self, exchange }
    }

    /// How far it is.
    pub(crate) fn status(&self) -> TaskStatus {
        let waits = self.waits_for_client();
        self.status_of(&self.lock(), waits)
    }

    fn status_of(&self, state: &TaskState, waits_for_client: bool) -> TaskStatus {
        match &state.end {
            Some(TaskEnd::Cancelled(_)) => TaskStatus::Cancelled,
            Some(TaskEnd::Answered(Answer::Value(value))) if self.form.is_failure(value) => {
                TaskStatus::Failed
            }
            Some(TaskEnd::Answered(Answer::Value(_))) => TaskStatus::Completed,
            Some(TaskEnd::Answered(Answer::Error(_) | Answer::Refused(_))) => TaskStatus::Failed,
            None if waits_for_client || !state.inputs.waiting.is_empty() => TaskStatus::InputRequired,
            None => TaskStatus::Working,
        }
    }

    /// Whether a request that its handler sent to the client is not answered.
    fn waits_for_client(&self) -> bool {
        self.form.has_messages() && self.work.upgrade().is_some_and(|work| work.waits_for_client())
    }

    /// It at this moment, as one of these functions writes it.
    pub(crate) fn written(
        &self,
        write: impl FnOnce(TaskForm, &TaskDetails<'_>) -> Option<Box<RawValue>>,
    ) -> Option<Box<RawValue>> {
        let created = humantime::format_rfc3339_millis(self.created).to_string();
        let waits = self.waits_for_client();
        let state = self.lock();
        let updated = humantime::format_rfc3339_millis(state.updated).to_string();
        let refused = ErrorObject::internal();
        let (result, error) = match &state.end {
            Some(TaskEnd::Answered(Answer::Value(value))) => (Some(&**value), None),
            Some(TaskEnd::Answered(Answer::Error(error))) => (None, Some(error)),
            Some(TaskEnd::Answered(Answer::Refused(_))) => (None, Some(&refused)),
            Some(TaskEnd::Cancelled(_)) | None => (None, None),
        };
        let status = self.status_of(&state, waits);
        let message = match (&state.end, error) {
            (Some(TaskEnd::Cancelled(cause)), _) => Some(cancelled_message(cause)),
            (_, error) => error.map(|error| error.message.clone()),
        };
        let inputs = if status == TaskStatus::InputRequired { state.inputs.written() } else { None };
        let details = TaskDetails {
            id: &self.id,
            status,
            message: message.as_deref(),
            created: &created,
            updated: &updated,
            ttl: millis(self.ttl),
            poll_interval: millis(self.poll_interval),
            result,
            error,
            inputs: inputs.as_deref(),
        };
        write(self.form, &details)
    }

    /// The answer that its request would have had without a task.
    pub(crate) fn outcome(&self) -> Result<Box<RawValue>, ErrorObject> {
        match &self.lock().end {
            Some(TaskEnd::Answered(Answer::Value(value))) => Ok(self.form.related(value.clone(), &self.id)),
            Some(TaskEnd::Answered(Answer::Error(error))) => Err(error.clone()),
            Some(TaskEnd::Cancelled(cause)) => {
                Err(ErrorObject::new(ErrorCode::REQUEST_CANCELLED, cancelled_message(cause)))
            }
            Some(TaskEnd::Answered(Answer::Refused(_))) | None => Err(ErrorObject::internal()),
        }
    }

    /// Takes answers to what its handler asked the client. Keys that are not asked are ignored ("Task Update Requests").
    ///
    /// # Errors
    /// They are not an object.
    pub(crate) fn take_answers(&self, params: &RawValue) -> Result<(), ErrorObject> {
        let answers = form::member(Some(params), "inputResponses");
        let answers: HashMap<String, Box<RawValue>> = answers
            .and_then(|answers| serde_json::from_str(answers.get()).ok())
            .ok_or_else(|| ErrorObject::invalid_params("`inputResponses` must be an object"))?;
        for (key, answer) in answers {
            let input = self.lock().inputs.waiting.remove(&key);
            if let Some(input) = input {
                let _ = input.answer.send(answer);
            }
        }
        Ok(())
    }

    /// Asks the client for something. `None`: it has ended. The answer comes unless what is returned is dropped before.
    pub(crate) fn ask(&self, method: Arc<str>, params: Option<Box<RawValue>>) -> Option<Asked<'_>> {
        let (answer, answered) = oneshot::channel();
        let mut state = self.lock();
        if state.end.is_some() {
            return None;
        }
        // A key is never used twice ("Task Update Requests").
        state.inputs.asked += 1;
        let key = state.inputs.asked.to_string();
        state.inputs.waiting.insert(key.clone(), Input { method, params, answer });
        state.updated = SystemTime::now().max(state.updated);
        drop(state);
        Some(Asked { task: self, key, answered })
    }
}

impl Inputs {
    /// The requests as one object, by their keys.
    fn written(&self) -> Option<Box<RawValue>> {
        #[derive(Serialize)]
        struct Written<'a> {
            method: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            params: Option<&'a RawValue>,
        }
        let written: BTreeMap<_, _> = self
            .waiting
            .iter()
            .map(|(key, input)| (key, Written { method: &input.method, params: input.params.as_deref() }))
            .collect();
        serde_json::value::to_raw_value(&written).ok()
    }
}

fn cancelled_message(cause: &Cause) -> String {
    let by = match cause.kind() {
        CauseKind::Peer | CauseKind::Caller | CauseKind::Dropped => "The task was cancelled by request",
        CauseKind::Deadline => "The task was cancelled because its time is over",
        CauseKind::Shutdown => "The task was cancelled because its server shut down",
        CauseKind::Operator => "The task was cancelled by an operator",
        CauseKind::Parent | CauseKind::Disconnected | CauseKind::Limit | CauseKind::Local => {
            "The task was cancelled by the server"
        }
    };
    match cause.reason() {
        Some(reason) => format!("{by}: {reason}"),
        None => by.to_owned(),
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

/// A client waits for the end of a task on this exchange.
struct ReadOn<'a> {
    task: &'a Task,
    exchange: ExchangeId,
}

impl Drop for ReadOn<'_> {
    fn drop(&mut self) {
        let (from, to) = (self.exchange.0, ExchangeId::NONE.0);
        let _ = self.task.reader.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// A request to the client that waits for its answer.
pub(crate) struct Asked<'a> {
    task: &'a Task,
    key: String,
    answered: oneshot::Receiver<Box<RawValue>>,
}

impl Asked<'_> {
    /// Waits for the answer. `None`: the task has ended.
    pub(crate) async fn answer(mut self) -> Option<Box<RawValue>> {
        (&mut self.answered).await.ok()
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let gone = {
            let mut state = self.task.lock();
            state.updated = SystemTime::now().max(state.updated);
            state.inputs.waiting.remove(&self.key)
        };
        drop(gone);
    }
}
