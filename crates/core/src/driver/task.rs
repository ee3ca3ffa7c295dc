//! One task: a request that goes on after its first answer, how it has ended, and what it asks its client.
//!
//! Its lock is taken after that of its table, and is a leaf: no other lock is taken while it is held.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::{Notify, oneshot};

use crate::cause::{Cause, CauseKind};
use crate::clients::Client;
use crate::dialect::tasks::{self as form, Answers, TaskDetails};
use crate::dialect::{TaskForm, TaskStatus};
use crate::driver::outbox::Answer;
use crate::driver::task_store::{Pending, RecordedEnd, TaskPosition, TaskRecord, millis, since_1970};
use crate::error::CallError;
use crate::failpoint::{self, Failpoint};
use crate::id::{ExchangeId, Principal};
use crate::message::{ErrorCode, ErrorObject};
use crate::sync::{AbortHandle, Mutex, MutexGuard};

/// In milliseconds since 1970.
const END_OF_9999: u64 = 253_402_300_799_999;

/// The bytes of an answer about a task beside the result and the id.
const ANSWER_BYTES: usize = 1024;

/// The request that became a task, and whose handler does the work.
pub(crate) trait TaskWork: Send + Sync {
    /// Ends the work. `true`: it was not decided before.
    fn cancel(self: Arc<Self>, cause: Cause) -> bool;

    /// Whether a request that the handler sent to the client is not answered.
    fn waits_for_client(&self) -> bool;
}

/// The table that keeps a task.
pub(crate) trait TaskTable: Send + Sync {
    /// A task has ended, before anyone sees that.
    fn ended(&self, task: &Arc<Task>);
}

/// The missing handler and table of a task that is only a record.
struct NoWork;

impl TaskTable for NoWork {
    fn ended(&self, _: &Arc<Task>) {}
}

impl TaskWork for NoWork {
    fn cancel(self: Arc<Self>, _: Cause) -> bool {
        false
    }

    fn waits_for_client(&self) -> bool {
        false
    }
}

/// A call that the work of a task makes. While one is open, the task waits for its client.
pub(crate) struct TaskCall(Arc<Task>);

impl TaskCall {
    pub(crate) fn new(task: &Arc<Task>) -> Self {
        task.count_call(|calls| calls + 1);
        Self(Arc::clone(task))
    }

    pub(crate) const fn task(&self) -> &Arc<Task> {
        &self.0
    }
}

impl Drop for TaskCall {
    fn drop(&mut self) {
        self.0.count_call(|calls| calls.saturating_sub(1));
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
    pub(crate) client: Arc<Client>,
    pub(crate) ttl: Duration,
    pub(crate) answers: Answers,
    pub(crate) work: Weak<dyn TaskWork>,
}

/// What its table gives to a task.
pub(crate) struct TaskPlace {
    pub(crate) id: Arc<str>,
    pub(crate) poll_interval: Duration,
    pub(crate) table: Weak<dyn TaskTable>,
}

/// A task.
pub(crate) struct Task {
    pub(crate) id: Arc<str>,
    pub(crate) form: TaskForm,
    pub(crate) principal: Option<Principal>,
    /// The number of the connection on which it was created.
    connection: u64,
    /// The client that created it. `None`: it is only a record.
    client: Option<Arc<Client>>,
    /// The exchange of that connection on which its messages are sent, while its client waits there for its end.
    reader: AtomicU64,
    created: SystemTime,
    ttl: Duration,
    /// What its client answers.
    answers: Answers,
    poll_interval: Duration,
    table: Weak<dyn TaskTable>,
    /// What does the work. It is gone when the handler has ended.
    work: Weak<dyn TaskWork>,
    /// Of the record of a task: it waits for an answer of its client.
    waited_elsewhere: bool,
    /// Of the record of a task: why its process does not tell how far it is.
    pub(crate) unanswered: Option<String>,
    state: Mutex<TaskState>,
    /// How its handler, a cancel or its time has ended it.
    end: OnceLock<Ended>,
    /// How it has ended for every other process, if the store had another end before this one.
    recorded_end: OnceLock<Ended>,
    /// Notified when it has ended.
    ended: Notify,
    /// Its records that are not written.
    pub(crate) pending: Pending,
    /// The task of the runtime that ends it when its time is over.
    pub(crate) expiry: OnceLock<AbortHandle>,
}

struct TaskState {
    updated: SystemTime,
    /// Whether it waited for its client when that was last looked at. It has no change of its own.
    waited: bool,
    /// How many calls of its work to the client are open.
    calls: u32,
    /// How often it has changed.
    changes: u64,
    /// Notified at each change.
    listeners: Vec<Weak<Notify>>,
    inputs: Inputs,
}

impl TaskState {
    const fn new(updated: SystemTime) -> Self {
        Self {
            updated,
            waited: false,
            calls: 0,
            changes: 0,
            listeners: Vec::new(),
            inputs: Inputs { asked: 0, waiting: BTreeMap::new(), recorded: None },
        }
    }

    /// Whether it waits for its client, which counts as updated when it is seen for the first time.
    fn see(&mut self, waits: bool) {
        if std::mem::replace(&mut self.waited, waits) != waits {
            self.updated = SystemTime::now().max(self.updated);
        }
    }

    /// It changes at this time. Returns whom to notify once the lock is released.
    fn change(&mut self, at: SystemTime) -> Vec<Weak<Notify>> {
        self.updated = at.max(self.updated);
        self.changes += 1;
        self.listeners.clone()
    }
}

const fn status_at(ended: Option<&Ended>, waits: bool) -> TaskStatus {
    match ended {
        Some(ended) => ended.status,
        None if waits => TaskStatus::InputRequired,
        None => TaskStatus::Working,
    }
}

fn notify_all(listeners: &[Weak<Notify>]) {
    for listener in listeners.iter().filter_map(Weak::upgrade) {
        listener.notify_one();
    }
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

/// The end of a task, with what is asked about it often.
struct Ended {
    end: TaskEnd,
    status: TaskStatus,
    at: SystemTime,
}

impl Ended {
    fn new(end: TaskEnd, form: TaskForm, at: SystemTime) -> Self {
        let status = match &end {
            TaskEnd::Cancelled(_) => TaskStatus::Cancelled,
            TaskEnd::Answered(Answer::Value(value)) if !form.is_failure(value) => TaskStatus::Completed,
            TaskEnd::Answered(_) => TaskStatus::Failed,
        };
        Self { end, status, at }
    }

    /// The end in a record. `None`: the record has none.
    fn recorded(end: RecordedEnd, form: TaskForm, at: SystemTime) -> Option<Self> {
        let end = match end {
            RecordedEnd::Value(value) => RawValue::from_string(value)
                .map_or_else(|_| Answer::Error(ErrorObject::internal()), Answer::Value)
                .into(),
            RecordedEnd::Error(error) => Answer::Error(error).into(),
            RecordedEnd::Cancelled { by, reason } => {
                let cause = Cause::new(CauseKind::by_name(&by).unwrap_or(CauseKind::Peer));
                TaskEnd::Cancelled(match reason {
                    Some(reason) => cause.with_reason(&reason),
                    None => cause,
                })
            }
            RecordedEnd::NotKept => return None,
        };
        Some(Self::new(end, form, at))
    }
}

/// The requests to the client that wait for their answers. Only in the extension, where a server sends no requests.
struct Inputs {
    asked: u64,
    waiting: BTreeMap<String, Input>,
    /// Those of a task of another process, as it writes them.
    recorded: Option<Box<RawValue>>,
}

struct Input {
    method: Arc<str>,
    params: Option<Box<RawValue>>,
    answer: oneshot::Sender<Box<RawValue>>,
}

impl Task {
    /// A task that its table keeps.
    pub(crate) fn new(start: TaskStart, place: TaskPlace) -> Self {
        let created = SystemTime::now();
        Self {
            id: place.id,
            form: start.form,
            principal: start.principal,
            connection: start.connection,
            client: Some(start.client),
            reader: AtomicU64::new(ExchangeId::NONE.0),
            created,
            ttl: start.ttl,
            answers: start.answers,
            poll_interval: place.poll_interval,
            table: place.table,
            work: start.work,
            waited_elsewhere: false,
            unanswered: None,
            state: Mutex::new(TaskState::new(created)),
            end: OnceLock::new(),
            recorded_end: OnceLock::new(),
            ended: Notify::new(),
            pending: Pending::default(),
            expiry: OnceLock::new(),
        }
    }

    /// The task of a record, without what does its work. `None`: its end is not kept.
    pub(crate) fn recorded(record: TaskRecord) -> Option<Arc<Self>> {
        let form = if record.asked_by_client { TaskForm::AskedByClient } else { TaskForm::DecidedByServer };
        let updated = time(record.updated);
        let end = OnceLock::new();
        if let Some(recorded) = record.end {
            let _ = end.set(Ended::recorded(recorded, form, updated)?);
        }
        let mut state = TaskState { waited: record.waits_for_client, ..TaskState::new(updated) };
        state.inputs.recorded = record.inputs.and_then(|inputs| RawValue::from_string(inputs).ok());
        Some(Arc::new(Self {
            id: record.id.into(),
            form,
            principal: record.principal.map(|name| Principal(name.into())),
            connection: 0,
            client: None,
            reader: AtomicU64::new(ExchangeId::NONE.0),
            created: time(record.created) + Duration::from_nanos(record.created_nanos.into()),
            ttl: Duration::from_millis(record.ttl_ms),
            answers: Answers::default(),
            poll_interval: Duration::from_millis(record.poll_interval_ms),
            table: Weak::<NoWork>::new(),
            work: Weak::<NoWork>::new(),
            waited_elsewhere: record.waits_for_client,
            unanswered: record.unanswered,
            state: Mutex::new(state),
            end,
            recorded_end: OnceLock::new(),
            ended: Notify::new(),
            pending: Pending::default(),
            expiry: OnceLock::new(),
        }))
    }

    /// Whether another process does its work: this is only its record, and never changes.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.client.is_none() && !self.is_over()
    }

    fn lock(&self) -> MutexGuard<'_, TaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn final_end(&self) -> Option<&Ended> {
        self.recorded_end.get().or_else(|| self.end.get())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.end.get().is_some()
    }

    /// What identifies the client that created it, as long as it has tasks. It is not its number: each peer that no server
    /// admitted has a table of clients of its own, and their numbers are the same.
    pub(crate) fn client(&self) -> usize {
        self.client.as_ref().map_or(0, |client| Arc::as_ptr(client).addr())
    }

    /// Its place in the lists of its principal.
    pub(crate) fn position(&self) -> TaskPosition {
        let created = self.created.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        TaskPosition {
            created: u64::try_from(created.as_nanos()).unwrap_or(u64::MAX),
            id: self.id.to_string(),
        }
    }

    /// The bytes of its result.
    pub(crate) fn result_bytes(&self) -> usize {
        match self.end.get().map(|ended| &ended.end) {
            Some(TaskEnd::Answered(answer)) => answer.weight(),
            Some(TaskEnd::Cancelled(_)) | None => 0,
        }
    }

    /// The longest result that an answer about this task has room for, where a frame has room for `max_frame` bytes.
    pub(crate) fn max_result(&self, max_frame: usize) -> usize {
        max_frame.saturating_sub(ANSWER_BYTES + self.id.len())
    }

    /// It has ended. The machine reports that once (I16).
    pub(crate) fn end(self: &Arc<Self>, end: TaskEnd) {
        // Before anyone sees that it has ended.
        let _pending = self.pending.begin();
        // Reads the result, which may be long, without the lock.
        let mut ended = Ended::new(end, self.form, SystemTime::now());
        let (inputs, listeners) = {
            let mut state = self.lock();
            ended.at = ended.at.max(state.updated);
            let at = ended.at;
            if let Err(again) = self.end.set(ended) {
                if failpoint::active(Failpoint::TaskEndsTwice) {
                    let _ = self.recorded_end.set(again);
                }
                return;
            }
            (std::mem::take(&mut state.inputs.waiting), state.change(at))
        };
        drop(inputs);
        self.ended.notify_waiters();
        if let Some(table) = self.table.upgrade() {
            table.ended(self);
        }
        notify_all(&listeners);
    }

    /// Another process recorded an end before this one did: that end counts, so that every process says the same.
    pub(crate) fn adopt(&self, record: TaskRecord) {
        let at = time(record.updated);
        let end = record.end.and_then(|end| Ended::recorded(end, self.form, at));
        if let Some(end) = end {
            let _ = self.recorded_end.set(end);
        }
    }

    /// It as a store records it.
    pub(crate) fn record(&self, with_result: bool) -> TaskRecord {
        let ended = self.final_end();
        let waits = ended.is_none() && self.waits_for_client();
        let (updated, inputs) = {
            let mut state = self.lock();
            if ended.is_none() {
                state.see(waits);
            }
            (ended.map_or(state.updated, |ended| ended.at), state.inputs.written())
        };
        let inputs = inputs.filter(|_| ended.is_none()).map(|inputs| inputs.get().to_owned());
        let end = ended.map(|ended| match &ended.end {
            _ if !with_result => RecordedEnd::NotKept,
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
            created_nanos: self.created.duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos()
                % 1_000_000,
            updated: since_1970(updated),
            ttl_ms: millis(self.ttl),
            poll_interval_ms: millis(self.poll_interval),
            waits_for_client: waits,
            inputs,
            end,
            unanswered: None,
        }
    }

    /// It as it tells another process, once the end that it may have is recorded, or after a second.
    pub(crate) async fn record_reported(&self) -> TaskRecord {
        if !self.is_over() {
            let record = self.record(true);
            if !record.has_ended() {
                return record;
            }
        }
        self.pending.wait_until_written().await;
        self.record(true)
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
    pub(crate) fn end_expiry(&self) {
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

    /// The stream of that exchange is back, and it is read there again unless another one has taken its place.
    pub(crate) fn resume_reader(&self, exchange: ExchangeId) {
        let (from, to) = (ExchangeId::NONE.0, exchange.0);
        let _ = self.reader.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The stream of that exchange is lost: the client may never open it again, so messages are not sent there.
    pub(crate) fn lose_reader(&self, exchange: ExchangeId) {
        let (from, to) = (exchange.0, ExchangeId::NONE.0);
        let _ = self.reader.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notifies this one at each change, until it is dropped.
    pub(crate) fn notify_changes(&self, listener: &Arc<Notify>) {
        let listeners = &mut self.lock().listeners;
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(listener));
    }

    /// How often it has changed.
    pub(crate) fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// How far it is.
    pub(crate) fn status(&self) -> TaskStatus {
        let waits = self.waits_for_client();
        let waits = waits || self.lock().inputs.are_asked();
        status_at(self.final_end(), waits)
    }

    /// The first open call of its work, and the end of the last, are changes of its status, if the protocol has such calls.
    fn count_call(&self, count: impl FnOnce(u32) -> u32) {
        if self.form.has_messages() && !self.is_over() {
            let mut state = self.lock();
            state.calls = count(state.calls);
            let waits = state.calls > 0;
            state.see(waits);
        }
    }

    /// Whether a request that its handler sent to the client is not answered.
    fn waits_for_client(&self) -> bool {
        self.waited_elsewhere
            || self.form.has_messages() && self.work.upgrade().is_some_and(|work| work.waits_for_client())
    }

    /// It as this function writes it, once the end that it may have is recorded, or after a second.
    pub(crate) async fn reported(
        &self,
        write: fn(TaskForm, &TaskDetails<'_>) -> Option<Box<RawValue>>,
    ) -> Option<Box<RawValue>> {
        if !self.is_over() {
            let written = self.written(write);
            if !self.is_over() {
                return written;
            }
        }
        self.pending.wait_until_written().await;
        self.written(write)
    }

    /// It at this moment, as this function writes it.
    pub(crate) fn written(
        &self,
        write: fn(TaskForm, &TaskDetails<'_>) -> Option<Box<RawValue>>,
    ) -> Option<Box<RawValue>> {
        let created = humantime::format_rfc3339_millis(self.created).to_string();
        let (waits, ended) = (self.waits_for_client(), self.final_end());
        let (asked, inputs) = {
            let mut state = self.lock();
            if ended.is_none() {
                state.see(waits);
            }
            (state.updated, state.inputs.written())
        };
        // An open question has no meaning once it has ended.
        let updated = ended.map_or(asked, |ended| ended.at);
        let updated = humantime::format_rfc3339_millis(updated).to_string();
        let refused = ErrorObject::internal();
        let (result, error, cause) = match ended.map(|ended| &ended.end) {
            Some(TaskEnd::Answered(Answer::Value(value))) => (Some(&**value), None, None),
            Some(TaskEnd::Answered(Answer::Error(error))) => (None, Some(error), None),
            Some(TaskEnd::Answered(Answer::Refused(_))) => (None, Some(&refused), None),
            Some(TaskEnd::Cancelled(cause)) => (None, None, Some(cause)),
            None => (None, None, None),
        };
        let status = status_at(ended, waits || inputs.is_some());
        let message = cause.map(cancelled_message).or_else(|| error.map(|error| error.message.clone()));
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
            inputs: inputs.as_deref().filter(|_| status == TaskStatus::InputRequired),
        };
        write(self.form, &details)
    }

    /// The answer that its request would have had without a task, once that is recorded, or after a second.
    pub(crate) async fn outcome(&self) -> Result<Box<RawValue>, ErrorObject> {
        self.pending.wait_until_written().await;
        match self.final_end().map(|ended| &ended.end) {
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
    pub(crate) fn ask(
        &self,
        method: Arc<str>,
        params: Option<Box<RawValue>>,
    ) -> Result<PendingInput<'_>, CallError> {
        self.answers.check(&method).map_err(CallError::Failed)?;
        let (answer, answered) = oneshot::channel();
        let mut state = self.lock();
        if self.is_over() {
            return Err(CallError::Ended);
        }
        // A key is never used twice ("Task Update Requests").
        state.inputs.asked += 1;
        let key = state.inputs.asked.to_string();
        state.inputs.waiting.insert(key.clone(), Input { method, params, answer });
        let listeners = state.change(SystemTime::now());
        drop(state);
        notify_all(&listeners);
        Ok(PendingInput { task: self, key, answered })
    }
}

impl Drop for Task {
    /// Its table may be gone before its time is over.
    fn drop(&mut self) {
        self.end_expiry();
    }
}

/// A later time than the year 9999 cannot be written.
fn time(since_1970: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(since_1970.min(END_OF_9999))
}

impl Inputs {
    fn are_asked(&self) -> bool {
        self.recorded.is_some() || !self.waiting.is_empty()
    }

    /// The requests as one object, by their keys. `None`: there are none.
    fn written(&self) -> Option<Box<RawValue>> {
        #[derive(Serialize)]
        struct Written<'a> {
            method: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            params: Option<&'a RawValue>,
        }
        if self.waiting.is_empty() {
            return self.recorded.clone();
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

/// A client waits for the end of a task on this exchange.
struct ReadOn<'a> {
    task: &'a Task,
    exchange: ExchangeId,
}

impl Drop for ReadOn<'_> {
    fn drop(&mut self) {
        self.task.lose_reader(self.exchange);
    }
}

/// A request to the client that waits for its answer.
pub(crate) struct PendingInput<'a> {
    task: &'a Task,
    key: String,
    answered: oneshot::Receiver<Box<RawValue>>,
}

impl PendingInput<'_> {
    /// Waits for the answer. `None`: the task has ended.
    pub(crate) async fn answer(mut self) -> Option<Box<RawValue>> {
        (&mut self.answered).await.ok()
    }
}

impl Drop for PendingInput<'_> {
    fn drop(&mut self) {
        let (gone, listeners) = {
            let mut state = self.task.lock();
            // The end was the last change of a task that has ended.
            let over = self.task.is_over();
            let listeners = if over { Vec::new() } else { state.change(SystemTime::now()) };
            (state.inputs.waiting.remove(&self.key), listeners)
        };
        drop(gone);
        notify_all(&listeners);
    }
}
