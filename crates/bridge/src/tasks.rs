//! The tasks of a bridge's servers: whose each is, and whether it runs.
//!
//! Servers often take all clients of a bridge for one (MCP 2025-11-25, "Task Isolation and Access Control": "receivers **MUST**
//! ensure the returned task list includes only tasks associated with the requestor's authorization context").
//!
//! A session counts as used while a task of it runs: until an answer or a notification says that the task has ended, or its time
//! is over. The bridge does not ask for that.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rescind_core::dialect::{Dialect, TaskForm, TaskStatus};
use rescind_core::{ErrorCode, ErrorObject, Principal, UseMark};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The most tasks that a bridge knows; above it an ended one is forgotten, or else the oldest.
const MAX_TASKS: usize = 10_240;
/// The longest id of a task that is known, in bytes.
const MAX_ID_BYTES: usize = 512;
/// How long a task counts as running at most, also if its server keeps it longer.
const MAX_TIME: Duration = Duration::from_secs(24 * 60 * 60);
/// The most ends of unknown tasks that are kept: a notification may be handled before the answer that creates its task.
const MAX_EARLY_ENDS: usize = 64;

/// The tasks of a bridge, as far as they are known.
#[derive(Default)]
pub(crate) struct KnownTasks(Mutex<TaskTable>);

#[derive(Default)]
struct TaskTable {
    by_id: HashMap<Arc<str>, KnownTask>,
    /// Those that have not ended, in the order of their creation.
    running: BTreeMap<u64, Arc<str>>,
    /// Those that have ended, the first first.
    ended: VecDeque<Arc<str>>,
    /// The times of those that have not ended, by their sessions.
    times: HashMap<u64, BTreeSet<(Instant, u64)>>,
    early_ends: VecDeque<(Arc<str>, TaskEnd)>,
    created: u64,
}

struct KnownTask {
    client: TaskClient,
    /// `None`: it has ended.
    run: Option<TaskRun>,
}

struct TaskRun {
    /// Its number in the order of creation.
    number: u64,
    /// When it does not count as running any more.
    until: Instant,
    /// The mark of its session.
    mark: UseMark,
    end: oneshot::Sender<TaskEnd>,
}

/// How a task has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TaskEnd {
    Completed,
    Failed(ErrorCode),
    Cancelled,
}

/// A task that an answer has created.
pub(crate) struct NewTask {
    pub(crate) id: Arc<str>,
    /// When it does not count as running any more.
    pub(crate) until: Instant,
    /// An error if the task was forgotten.
    pub(crate) end: oneshot::Receiver<TaskEnd>,
}

/// The client of a request, as far as the bridge knows it.
#[derive(Clone)]
pub(crate) struct TaskClient {
    /// Clients with a principal are the same in every session.
    pub(crate) principal: Option<Principal>,
    /// The number of the session.
    pub(crate) session: u64,
}

impl TaskClient {
    fn is_same(&self, other: &Self) -> bool {
        self.principal == other.principal && (self.principal.is_some() || self.session == other.session)
    }
}

/// A task in a message of its server, with the members of both forms.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SeenTask<'a> {
    #[serde(borrow)]
    task_id: Cow<'a, str>,
    #[serde(borrow)]
    result_type: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    #[serde(borrow)]
    ttl: Option<&'a RawValue>,
    #[serde(borrow)]
    ttl_ms: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// The answer to a request that asked for a task.
#[derive(Deserialize)]
struct Handle<'a> {
    #[serde(borrow)]
    task: SeenTask<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TaskId<'a> {
    #[serde(borrow)]
    task_id: Cow<'a, str>,
}

/// The params of a listen request.
#[derive(Deserialize)]
struct Listen<'a> {
    #[serde(borrow)]
    notifications: Listened<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listened<'a> {
    #[serde(borrow, default)]
    task_ids: Vec<Cow<'a, str>>,
}

fn id_in(json: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str::<TaskId<'_>>(json.get()).ok().map(|named| named.task_id)
}

impl SeenTask<'_> {
    /// Its time from its creation.
    fn time(&self) -> Duration {
        let milliseconds = self.ttl.or(self.ttl_ms).and_then(|ttl| ttl.get().parse::<f64>().ok());
        let time = milliseconds.and_then(|ttl| Duration::try_from_secs_f64(ttl / 1000.0).ok());
        time.map_or(MAX_TIME, |time| time.min(MAX_TIME))
    }

    /// `None`: it has not ended.
    fn end(&self) -> Option<TaskEnd> {
        #[derive(Deserialize)]
        struct Failure {
            code: i64,
        }
        let name = serde_json::from_str::<Cow<'_, str>>(self.status?.get()).ok()?;
        match TaskStatus::by_name(&name)? {
            TaskStatus::Working | TaskStatus::InputRequired => None,
            TaskStatus::Completed => Some(TaskEnd::Completed),
            TaskStatus::Failed => {
                let code = self.error.and_then(|error| serde_json::from_str::<Failure>(error.get()).ok());
                Some(TaskEnd::Failed(
                    code.map_or(ErrorCode::INTERNAL_ERROR, |failure| ErrorCode(failure.code)),
                ))
            }
            TaskStatus::Cancelled => Some(TaskEnd::Cancelled),
        }
    }
}

impl KnownTasks {
    /// Checks a request about a task.
    ///
    /// # Errors
    /// The task is another principal's. Without a principal whoever knows the id may ask.
    pub(crate) fn check(
        &self,
        dialect: &Dialect,
        client: &TaskClient,
        method: &str,
        params: &RawValue,
    ) -> Result<(), ErrorObject> {
        let named: Vec<Cow<'_, str>> = match dialect.rules().tasks {
            Some(_) if method.starts_with("tasks/") => id_in(params).into_iter().collect(),
            Some(TaskForm::DecidedByServer) if method == "subscriptions/listen" => {
                serde_json::from_str(params.get())
                    .map(|Listen { notifications }| notifications.task_ids)
                    .unwrap_or_default()
            }
            Some(_) | None => return Ok(()),
        };
        let known = self.lock();
        let is_others = |id: &Cow<'_, str>| {
            known.by_id.get(&**id).is_some_and(|task| task.client.principal != client.principal)
        };
        if named.iter().any(is_others) {
            return Err(ErrorObject::new(ErrorCode::INVALID_PARAMS, "there is no such task"));
        }
        Ok(())
    }

    /// Notes what an answer of the server says about tasks. Takes the tasks of others out of a list. `mark`: that of the
    /// session. Returns the task that the server has made of the request.
    pub(crate) fn answered(
        &self,
        dialect: &Dialect,
        client: &TaskClient,
        (method, params): (&str, &RawValue),
        answer: Box<RawValue>,
        mark: impl FnOnce() -> UseMark,
    ) -> (Box<RawValue>, Option<NewTask>) {
        let Some(form) = dialect.rules().tasks else { return (answer, None) };
        match method {
            "tasks/list" if form == TaskForm::AskedByClient => return (self.own(client, answer), None),
            // It waits for the end. How the task has ended is not known: a result may say that it is an error.
            "tasks/result" if form == TaskForm::AskedByClient => self.ended(params, TaskEnd::Completed),
            "tasks/get" | "tasks/cancel" => self.saw(&answer),
            _ => {
                let task = match form {
                    TaskForm::AskedByClient if params.get().contains("\"task\"") => {
                        serde_json::from_str(answer.get()).ok().map(|Handle { task }| task)
                    }
                    TaskForm::DecidedByServer if answer.get().contains("\"task\"") => {
                        let seen = serde_json::from_str::<SeenTask<'_>>(answer.get()).ok();
                        // Other answers name tasks too, which others may have created.
                        seen.filter(|seen| seen.result_type.is_some_and(|named| named.get() == "\"task\""))
                    }
                    TaskForm::AskedByClient | TaskForm::DecidedByServer => None,
                };
                let new = task.and_then(|task| self.lock().add(client, &task, mark()));
                return (answer, new);
            }
        }
        (answer, None)
    }

    /// Notes what an error of the server says about a task.
    pub(crate) fn refused(
        &self,
        dialect: &Dialect,
        (method, params): (&str, &RawValue),
        error: &ErrorObject,
    ) {
        if dialect.rules().tasks.is_none() {
            return;
        }
        match method {
            // The error of the task, or there is no such task.
            "tasks/result" => self.ended(params, TaskEnd::Failed(error.code)),
            // There is no such task any more. To a cancel: or it has ended.
            "tasks/get" | "tasks/cancel" if error.code == ErrorCode::INVALID_PARAMS => {
                self.ended(params, TaskEnd::Completed);
            }
            _ => {}
        }
    }

    /// Notes what a notification of the server says about a task.
    pub(crate) fn notified(&self, dialect: &Dialect, method: &str, params: &RawValue) {
        let name = match dialect.rules().tasks {
            Some(TaskForm::AskedByClient) => "notifications/tasks/status",
            Some(TaskForm::DecidedByServer) => "notifications/tasks",
            None => return,
        };
        if method == name {
            self.saw(params);
        }
    }

    /// Notes the state of a task.
    pub(crate) fn saw(&self, task: &RawValue) {
        if let Ok(seen) = serde_json::from_str::<SeenTask<'_>>(task.get()) {
            if let Some(end) = seen.end() {
                self.lock().end(&seen.task_id, end);
            }
        }
    }

    /// The task of a request with these params has ended.
    fn ended(&self, params: &RawValue, end: TaskEnd) {
        if let Some(id) = id_in(params) {
            self.lock().end(&id, end);
        }
    }

    /// A list with this client's tasks only.
    fn own(&self, client: &TaskClient, answer: Box<RawValue>) -> Box<RawValue> {
        let Ok(mut page) = serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(answer.get()) else {
            return answer;
        };
        let listed = page.get("tasks").map(|tasks| serde_json::from_str::<Vec<Box<RawValue>>>(tasks.get()));
        let Some(Ok(mut tasks)) = listed else { return answer };
        for task in &tasks {
            self.saw(task);
        }
        {
            let table = self.lock();
            tasks.retain(|task| {
                let known = id_in(task).and_then(|id| table.by_id.get(&*id));
                known.is_some_and(|known| known.client.is_same(client))
            });
        }
        let written = serde_json::value::to_raw_value(&tasks).and_then(|tasks| {
            page.insert("tasks".to_owned(), tasks);
            serde_json::value::to_raw_value(&page)
        });
        written.unwrap_or(answer)
    }

    fn lock(&self) -> MutexGuard<'_, TaskTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TaskTable {
    /// A task was created. `None`: it is known, or it is not to be known.
    fn add(&mut self, client: &TaskClient, seen: &SeenTask<'_>, mark: UseMark) -> Option<NewTask> {
        if seen.task_id.len() > MAX_ID_BYTES || self.by_id.contains_key(&*seen.task_id) {
            return None;
        }
        if self.by_id.len() >= MAX_TASKS {
            self.forget_one();
        }
        self.created += 1;
        let (id, number): (Arc<str>, u64) = (seen.task_id.as_ref().into(), self.created);
        let until = Instant::now() + seen.time();
        let (sender, end) = oneshot::channel();
        let run = TaskRun { number, until, mark, end: sender };
        self.running.insert(number, Arc::clone(&id));
        self.times.entry(client.session).or_default().insert((until, number));
        self.set_mark(client.session, &run.mark);
        self.by_id.insert(Arc::clone(&id), KnownTask { client: client.clone(), run: Some(run) });
        let early = self.early_ends.iter().find(|(of, _)| *of == id).map(|(_, end)| *end);
        if let Some(known) = early.or_else(|| seen.end()) {
            self.end(&id, known);
        }
        Some(NewTask { id, until, end })
    }

    fn end(&mut self, id: &str, end: TaskEnd) {
        let Some(task) = self.by_id.get_mut(id) else {
            if id.len() <= MAX_ID_BYTES {
                if self.early_ends.len() >= MAX_EARLY_ENDS {
                    self.early_ends.pop_front();
                }
                self.early_ends.push_back((id.into(), end));
            }
            return;
        };
        let (session, Some(run)) = (task.client.session, task.run.take()) else { return };
        self.stop_counting(session, &run);
        self.ended.extend(self.running.remove(&run.number));
        // Nobody may wait for it.
        let _ = run.end.send(end);
    }

    /// Forgets one that has ended, or else the oldest.
    fn forget_one(&mut self) {
        let id = self.ended.pop_front().or_else(|| self.running.pop_first().map(|(_, id)| id));
        let Some(KnownTask { client, run }) = id.and_then(|id| self.by_id.remove(&id)) else { return };
        if let Some(run) = run {
            self.stop_counting(client.session, &run);
        }
    }

    /// A task does not count as running any more.
    fn stop_counting(&mut self, session: u64, run: &TaskRun) {
        if let Some(times) = self.times.get_mut(&session) {
            times.remove(&(run.until, run.number));
            if times.is_empty() {
                self.times.remove(&session);
            }
        }
        self.set_mark(session, &run.mark);
    }

    /// Sets the mark of a session to the last time of its tasks.
    fn set_mark(&self, session: u64, mark: &UseMark) {
        let last = self.times.get(&session).and_then(BTreeSet::last).map(|(until, _)| *until);
        mark.set(last.unwrap_or_else(Instant::now).into_std());
    }
}

#[cfg(test)]
mod tests {
    use rescind_core::dialect::{MCP, MCP_2026};

    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).expect("it is JSON")
    }

    fn client(session: u64) -> TaskClient {
        TaskClient { principal: None, session }
    }

    /// The server answers a request with the handle of this task.
    fn created(tasks: &KnownTasks, session: u64, id: &str, mark: &UseMark) -> Option<NewTask> {
        let answer = raw(&format!(r#"{{"task":{{"taskId":"{id}","status":"working","ttl":60000}}}}"#));
        let request = ("tools/call", &*raw(r#"{"task":{}}"#));
        tasks.answered(&MCP, &client(session), request, answer, || mark.clone()).1
    }

    /// How many entries each collection has.
    fn sizes(tasks: &KnownTasks) -> (usize, usize, usize, usize) {
        let table = tasks.lock();
        let times = table.times.values().map(BTreeSet::len).sum();
        (table.by_id.len(), table.running.len() + table.ended.len(), times, table.early_ends.len())
    }

    #[test]
    fn a_server_with_a_hundred_thousand_tasks_holds_a_bounded_number() {
        let (tasks, mark) = (KnownTasks::default(), UseMark::default());
        let kept = created(&tasks, 1, "ended", &mark).expect("it is new");
        tasks.saw(&raw(r#"{"taskId":"ended","status":"completed"}"#));
        assert_eq!(kept.end.blocking_recv(), Ok(TaskEnd::Completed));
        for number in 0..100_000 {
            assert!(created(&tasks, 2, &format!("task {number}"), &mark).is_some());
            // Ends of unknown tasks.
            tasks.saw(&raw(&format!(r#"{{"taskId":"other {number}","status":"failed"}}"#)));
        }
        assert_eq!(sizes(&tasks), (MAX_TASKS, MAX_TASKS, MAX_TASKS, MAX_EARLY_ENDS));
        assert!(!tasks.lock().by_id.contains_key("ended"), "those that have ended are forgotten first");
        for number in 0..100_000 {
            tasks.saw(&raw(&format!(r#"{{"taskId":"task {number}","status":"cancelled"}}"#)));
        }
        assert_eq!(sizes(&tasks), (MAX_TASKS, MAX_TASKS, 0, MAX_EARLY_ENDS));
        assert!(tasks.lock().times.is_empty(), "no session is left");
        let long = "x".repeat(MAX_ID_BYTES + 1);
        assert!(created(&tasks, 3, &long, &mark).is_none());
        tasks.saw(&raw(&format!(r#"{{"taskId":"{long}","status":"failed"}}"#)));
        assert!(tasks.lock().early_ends.iter().all(|(id, _)| id.len() <= MAX_ID_BYTES));
    }

    #[test]
    fn the_mark_of_a_session_is_the_last_time_of_its_tasks_that_run() {
        let (tasks, mark, other) = (KnownTasks::default(), UseMark::default(), UseMark::default());
        let first = created(&tasks, 1, "a", &mark).expect("it is new").until.into_std();
        let second = created(&tasks, 1, "b", &mark).expect("it is new").until.into_std();
        let third = created(&tasks, 2, "c", &other).expect("it is new").until.into_std();
        assert_eq!((mark.until(), other.until()), (Some(second), Some(third)));
        tasks.saw(&raw(r#"{"taskId":"b","status":"completed"}"#));
        assert_eq!(mark.until(), Some(first));
        tasks.saw(&raw(r#"{"taskId":"b","status":"working"}"#));
        assert_eq!(mark.until(), Some(first), "an end is final");
        tasks.saw(&raw(r#"{"taskId":"a","status":"input_required"}"#));
        assert_eq!(mark.until(), Some(first));
        tasks.saw(&raw(r#"{"taskId":"a","status":"failed"}"#));
        assert!(mark.until() < Some(first), "nothing runs");
        assert_eq!(other.until(), Some(third));
    }

    #[test]
    fn an_end_that_is_known_before_its_task_counts() {
        let (tasks, mark) = (KnownTasks::default(), UseMark::default());
        tasks.notified(&MCP, "notifications/tasks/status", &raw(r#"{"taskId":"a","status":"failed"}"#));
        let task = created(&tasks, 1, "a", &mark).expect("it is new");
        assert_eq!(task.end.blocking_recv(), Ok(TaskEnd::Failed(ErrorCode::INTERNAL_ERROR)));
        assert_eq!(sizes(&tasks).2, 0);
    }

    #[test]
    fn only_the_answer_that_creates_a_task_is_read_as_one() {
        let (tasks, mark) = (KnownTasks::default(), UseMark::default());
        let seen = r#""taskId":"a","status":"working""#;
        let (plain, asks) = (r#"{"name":"x"}"#, r#"{"name":"x","task":{}}"#);
        for (dialect, params, answer, is_one) in [
            (&MCP, plain, format!(r#"{{"task":{{{seen}}}}}"#), false),
            (&MCP, asks, format!("{{{seen}}}"), false),
            (&MCP, asks, r#"{"task":[]}"#.to_owned(), false),
            (&MCP_2026, asks, format!(r#"{{"task":{{{seen}}}}}"#), false),
            (&MCP_2026, plain, format!(r#"{{"resultType":"complete","kind":"task",{seen}}}"#), false),
            (&MCP_2026, plain, format!(r#"{{"resultType":"task",{seen}}}"#), true),
        ] {
            let request = ("tools/call", &*raw(params));
            let (passed, task) = tasks.answered(dialect, &client(1), request, raw(&answer), || mark.clone());
            assert_eq!((passed.get(), task.is_some()), (&*answer, is_one), "{answer}");
        }
    }

    #[test]
    fn a_time_that_is_no_time_is_a_day() {
        let hour = Duration::from_secs(3600);
        for (ttl, time) in [
            (r#""ttl":3600000"#, hour),
            (r#""ttlMs":3.6e6"#, hour),
            (r#""ttl":0"#, Duration::ZERO),
            (r#""ttl":null"#, MAX_TIME),
            (r#""ttl":-1"#, MAX_TIME),
            (r#""ttl":1e300"#, MAX_TIME),
            (r#""ttl":"1""#, MAX_TIME),
            (r#""other":1"#, MAX_TIME),
        ] {
            let task = raw(&format!(r#"{{"taskId":"a",{ttl}}}"#));
            let seen: SeenTask<'_> = serde_json::from_str(task.get()).expect("it can be read");
            assert_eq!(seen.time(), time, "{ttl}");
        }
    }
}
