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
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

/// The most tasks that a bridge knows, and the most of one client. Above it one of the client with most is forgotten: one that has ended,
/// or else the oldest.
const MAX_TASKS: usize = 10_240;
const MAX_TASKS_OF_CLIENT: usize = 1024;
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
    /// By their numbers, in the order of their creation.
    tasks: HashMap<u64, KnownTask>,
    /// Servers of different sessions may give the same id.
    by_id: HashMap<Arc<str>, Vec<u64>>,
    clients: HashMap<ClientKey, TasksOfClient>,
    /// The times of those that have not ended, by their sessions.
    times: HashMap<u64, BTreeSet<(Instant, u64)>>,
    early_ends: VecDeque<(u64, Arc<str>, TaskEnd)>,
    created: u64,
}

/// A client with a principal is the same in every session.
#[derive(Clone, PartialEq, Eq, Hash)]
enum ClientKey {
    Principal(Principal),
    Session(u64),
}

#[derive(Default)]
struct TasksOfClient {
    /// Those that have not ended, and those that have, the first first.
    running: BTreeSet<u64>,
    ended: VecDeque<u64>,
}

impl TasksOfClient {
    fn len(&self) -> usize {
        self.running.len() + self.ended.len()
    }
}

struct KnownTask {
    id: Arc<str>,
    client: TaskClient,
    created: Instant,
    /// `None`: it has ended.
    run: Option<TaskRun>,
}

struct TaskRun {
    /// When it does not count as running any more.
    until: watch::Sender<Instant>,
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
    /// As its server writes it.
    pub(crate) id: serde_json::Value,
    /// When it does not count as running any more.
    until: watch::Receiver<Instant>,
    /// An error if the task was forgotten.
    end: oneshot::Receiver<TaskEnd>,
}

impl NewTask {
    /// Waits for its end. `None`: its time is over, or it is forgotten.
    pub(crate) async fn ended(self) -> Option<TaskEnd> {
        let Self { mut until, end, .. } = self;
        let time = async {
            loop {
                let end = *until.borrow_and_update();
                tokio::select! {
                    () = tokio::time::sleep_until(end) => return,
                    Ok(()) = until.changed() => {}
                }
            }
        };
        tokio::select! {
            biased;
            end = end => end.ok(),
            () = time => None,
        }
    }
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
    fn key(&self) -> ClientKey {
        self.principal.clone().map_or(ClientKey::Session(self.session), ClientKey::Principal)
    }
}

/// A task in a message of its server, with the members of both forms.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SeenTask<'a> {
    #[serde(borrow)]
    task_id: IdText<'a>,
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
    task_id: IdText<'a>,
}

/// The params of a listen request.
#[derive(Deserialize)]
struct Listen<'a> {
    #[serde(borrow, default)]
    notifications: Listened<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listened<'a> {
    #[serde(borrow, default)]
    task_ids: Vec<IdText<'a>>,
}

/// The id of a task. Some servers count their tasks and write numbers; the number and the text of its digits are one id here, because
/// a server may take them for one.
struct IdText<'a> {
    text: Cow<'a, str>,
    number: Option<i64>,
}

impl<'de: 'a, 'a> Deserialize<'de> for IdText<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written<'a> {
            #[serde(borrow)]
            Text(Cow<'a, str>),
            Number(i64),
        }
        Ok(match Written::deserialize(deserializer)? {
            Written::Text(text) => Self { text, number: None },
            Written::Number(number) => Self { text: number.to_string().into(), number: Some(number) },
        })
    }
}

fn id_in(json: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str::<TaskId<'_>>(json.get()).ok().map(|named| named.task_id.text)
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
    /// The task is another principal's, or cannot be read here and might be by the server. Without a principal whoever knows the id may
    /// ask.
    pub(crate) fn check(
        &self,
        dialect: &Dialect,
        client: &TaskClient,
        method: &str,
        params: &RawValue,
    ) -> Result<(), ErrorObject> {
        let unreadable =
            || ErrorObject::new(ErrorCode::INVALID_PARAMS, "the task that is named cannot be read");
        let named = match dialect.rules().tasks {
            Some(_) if ["tasks/get", "tasks/result", "tasks/cancel", "tasks/update"].contains(&method) => {
                vec![id_in(params).ok_or_else(unreadable)?]
            }
            Some(TaskForm::DecidedByServer) if method == "subscriptions/listen" => {
                let listen = serde_json::from_str::<Listen<'_>>(params.get());
                listen
                    .map_err(|_| unreadable())?
                    .notifications
                    .task_ids
                    .into_iter()
                    .map(|id| id.text)
                    .collect()
            }
            Some(_) | None => return Ok(()),
        };
        let table = self.lock();
        let is_others = |id: &Cow<'_, str>| {
            let mut known = table.known(id).peekable();
            known.peek().is_some() && known.all(|(_, task)| task.client.principal != client.principal)
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
            "tasks/result" if form == TaskForm::AskedByClient => {
                self.ended(client, params, TaskEnd::Completed);
            }
            // The answer says nothing, and the client may never ask again.
            "tasks/cancel" if form == TaskForm::DecidedByServer => {
                self.ended(client, params, TaskEnd::Cancelled);
            }
            "tasks/get" | "tasks/cancel" => self.saw(client, &answer),
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

    /// Notes what an error of the server says about a task of this session.
    pub(crate) fn refused(
        &self,
        dialect: &Dialect,
        client: &TaskClient,
        (method, params): (&str, &RawValue),
        error: &ErrorObject,
    ) {
        // A reason in the data is that of a server that cannot answer now.
        let of_server = error.code == ErrorCode::METHOD_NOT_FOUND
            || error.data.as_ref().is_some_and(|data| data.get().contains("\"reason\""));
        if dialect.rules().tasks.is_none() || of_server {
            return;
        }
        let end = match method {
            // The error of the task, or there is no such task.
            "tasks/result" => TaskEnd::Failed(error.code),
            // There is no such task any more. To a cancel: or it has ended.
            "tasks/get" | "tasks/cancel" if error.code == ErrorCode::INVALID_PARAMS => TaskEnd::Completed,
            _ => return,
        };
        let Some(id) = id_in(params) else { return };
        let mut table = self.lock();
        // The server of another session may not know it.
        let of_session = table.known(&id).find(|(_, task)| task.client.session == client.session);
        if let Some(number) = of_session.map(|(number, _)| number) {
            table.end(number, end);
        }
    }

    /// Notes what a notification of the server says about a task.
    pub(crate) fn notified(&self, dialect: &Dialect, client: &TaskClient, method: &str, params: &RawValue) {
        let name = match dialect.rules().tasks {
            Some(TaskForm::AskedByClient) => "notifications/tasks/status",
            Some(TaskForm::DecidedByServer) => "notifications/tasks",
            None => return,
        };
        if method == name {
            self.saw(client, params);
        }
    }

    /// Notes the state of a task, as the server of this client's session reports it.
    fn saw(&self, client: &TaskClient, task: &RawValue) {
        let Ok(seen) = serde_json::from_str::<SeenTask<'_>>(task.get()) else { return };
        let mut table = self.lock();
        match seen.end() {
            Some(end) => table.end_of(client, &seen.task_id.text, end),
            None => table.renew(client, &seen),
        }
    }

    /// The task of a request with these params has ended.
    fn ended(&self, client: &TaskClient, params: &RawValue, end: TaskEnd) {
        if let Some(id) = id_in(params) {
            self.lock().end_of(client, &id, end);
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
            self.saw(client, task);
        }
        {
            let (table, own) = (self.lock(), client.key());
            tasks.retain(|task| {
                id_in(task).is_some_and(|id| table.known(&id).any(|(_, task)| task.client.key() == own))
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
    /// The tasks with this id, with their numbers.
    fn known(&self, id: &str) -> impl Iterator<Item = (u64, &KnownTask)> {
        let numbers = self.by_id.get(id).map(Vec::as_slice).unwrap_or_default();
        numbers.iter().filter_map(|number| Some((*number, self.tasks.get(number)?)))
    }

    /// The task of which the server of this client's session speaks: that of the session, else one of the same client, which may share
    /// its server with other sessions.
    fn meant(&self, client: &TaskClient, id: &str) -> Option<u64> {
        let of_session = self.known(id).find(|(_, task)| task.client.session == client.session);
        let own = client.key();
        let found = of_session.or_else(|| self.known(id).find(|(_, task)| task.client.key() == own));
        found.map(|(number, _)| number)
    }

    /// A task was created. `None`: it is known, or it is not to be known.
    fn add(&mut self, client: &TaskClient, seen: &SeenTask<'_>, mark: UseMark) -> Option<NewTask> {
        let is_known = self.known(&seen.task_id.text).any(|(_, task)| task.client.session == client.session);
        if seen.task_id.text.len() > MAX_ID_BYTES || is_known {
            return None;
        }
        let own = client.key();
        if self.clients.get(&own).is_some_and(|tasks| tasks.len() >= MAX_TASKS_OF_CLIENT) {
            self.forget_one(&own);
        } else if self.tasks.len() >= MAX_TASKS {
            let most =
                self.clients.iter().max_by_key(|(_, tasks)| tasks.len()).map(|(client, _)| client.clone());
            if let Some(most) = most {
                self.forget_one(&most);
            }
        }
        self.created += 1;
        let (id, number): (Arc<str>, u64) = (seen.task_id.text.as_ref().into(), self.created);
        let created = Instant::now();
        let (until, times) = watch::channel(created + seen.time());
        let (sender, end) = oneshot::channel();
        self.times.entry(client.session).or_default().insert((created + seen.time(), number));
        self.set_mark(client.session, &mark);
        self.clients.entry(own).or_default().running.insert(number);
        self.by_id.entry(Arc::clone(&id)).or_default().push(number);
        let run = Some(TaskRun { until, mark, end: sender });
        self.tasks.insert(number, KnownTask { id: Arc::clone(&id), client: client.clone(), created, run });
        let early = self.early_ends.iter().find(|(session, of, _)| (*session, of) == (client.session, &id));
        if let Some(known) = early.map(|(_, _, end)| *end).or_else(|| seen.end()) {
            self.end(number, known);
        }
        let id = seen.task_id.number.map_or_else(|| id.as_ref().into(), Into::into);
        Some(NewTask { id, until: times, end })
    }

    /// A task has not ended. Its server may keep it longer or shorter than it said ("ttlMs").
    fn renew(&mut self, client: &TaskClient, seen: &SeenTask<'_>) {
        if seen.ttl.or(seen.ttl_ms).is_none() {
            return;
        }
        let Some(number) = self.meant(client, &seen.task_id.text) else { return };
        let Some(KnownTask { created, run: Some(run), client, .. }) = self.tasks.get(&number) else { return };
        let (session, mark, until) = (client.session, run.mark.clone(), *created + seen.time());
        let former = run.until.send_replace(until);
        if let Some(times) = self.times.get_mut(&session) {
            times.remove(&(former, number));
            times.insert((until, number));
        }
        self.set_mark(session, &mark);
    }

    /// The task of which the server of this client's session speaks has ended.
    fn end_of(&mut self, client: &TaskClient, id: &str, end: TaskEnd) {
        if let Some(number) = self.meant(client, id) {
            self.end(number, end);
        } else if id.len() <= MAX_ID_BYTES {
            if self.early_ends.len() >= MAX_EARLY_ENDS {
                self.early_ends.pop_front();
            }
            self.early_ends.push_back((client.session, id.into(), end));
        }
    }

    fn end(&mut self, number: u64, end: TaskEnd) {
        let Some(task) = self.tasks.get_mut(&number) else { return };
        let (client, Some(run)) = (task.client.clone(), task.run.take()) else { return };
        self.stop_counting(client.session, number, &run);
        if let Some(tasks) = self.clients.get_mut(&client.key()) {
            tasks.running.remove(&number);
            tasks.ended.push_back(number);
        }
        // Nobody may wait for it.
        let _ = run.end.send(end);
    }

    /// Forgets a task of this client that has ended, or else its oldest.
    fn forget_one(&mut self, of: &ClientKey) {
        let Some(tasks) = self.clients.get_mut(of) else { return };
        let number = tasks.ended.pop_front().or_else(|| tasks.running.pop_first());
        if tasks.len() == 0 {
            self.clients.remove(of);
        }
        let Some((number, task)) = number.and_then(|number| Some((number, self.tasks.remove(&number)?)))
        else {
            return;
        };
        if let Some(numbers) = self.by_id.get_mut(&task.id) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.by_id.remove(&task.id);
            }
        }
        if let Some(run) = task.run {
            self.stop_counting(task.client.session, number, &run);
        }
    }

    /// A task does not count as running any more.
    fn stop_counting(&mut self, session: u64, number: u64, run: &TaskRun) {
        if let Some(times) = self.times.get_mut(&session) {
            times.remove(&(*run.until.borrow(), number));
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
        assert_eq!(table.tasks.len(), table.by_id.values().map(Vec::len).sum::<usize>());
        let of_clients = table.clients.values().map(TasksOfClient::len).sum();
        (table.by_id.len(), of_clients, times, table.early_ends.len())
    }

    fn says(tasks: &KnownTasks, session: u64, task: &str) {
        tasks.saw(&client(session), &raw(task));
    }

    #[test]
    fn a_server_with_a_hundred_thousand_tasks_holds_a_bounded_number_and_displaces_no_others() {
        let (tasks, mark) = (KnownTasks::default(), UseMark::default());
        let other = created(&tasks, 1, "another's", &mark).expect("it is new");
        let kept = created(&tasks, 2, "ended", &mark).expect("it is new");
        says(&tasks, 2, r#"{"taskId":"ended","status":"completed"}"#);
        assert_eq!(kept.end.blocking_recv(), Ok(TaskEnd::Completed));
        for number in 0..100_000 {
            assert!(created(&tasks, 2, &format!("task {number}"), &mark).is_some());
            // Ends of unknown tasks.
            says(&tasks, 2, &format!(r#"{{"taskId":"other {number}","status":"failed"}}"#));
        }
        let all = MAX_TASKS_OF_CLIENT + 1;
        assert_eq!(sizes(&tasks), (all, all, all, MAX_EARLY_ENDS));
        assert!(!tasks.lock().by_id.contains_key("ended"), "those that have ended are forgotten first");
        for number in 0..100_000 {
            says(&tasks, 2, &format!(r#"{{"taskId":"task {number}","status":"cancelled"}}"#));
        }
        assert_eq!(sizes(&tasks), (all, all, 1, MAX_EARLY_ENDS));
        says(&tasks, 1, r#"{"taskId":"another's","status":"completed"}"#);
        assert_eq!(other.end.blocking_recv(), Ok(TaskEnd::Completed), "it was not forgotten");
        assert!(tasks.lock().times.is_empty(), "no session is left");
        // Many clients, each below its share.
        for session in 10..40 {
            for number in 0..1000 {
                assert!(created(&tasks, session, &format!("task {session} {number}"), &mark).is_some());
            }
        }
        assert_eq!(sizes(&tasks).1, MAX_TASKS);
        let long = "x".repeat(MAX_ID_BYTES + 1);
        assert!(created(&tasks, 3, &long, &mark).is_none());
        says(&tasks, 3, &format!(r#"{{"taskId":"{long}","status":"failed"}}"#));
        assert!(tasks.lock().early_ends.iter().all(|(_, id, _)| id.len() <= MAX_ID_BYTES));
    }

    #[test]
    fn servers_of_two_sessions_may_give_the_same_id() {
        let (tasks, marks) = (KnownTasks::default(), [UseMark::default(), UseMark::default()]);
        let names = ["ada", "bob"].map(|name| TaskClient {
            principal: Some(Principal(name.into())),
            session: u64::from(name == "bob"),
        });
        let handle = r#"{"task":{"taskId":"1","status":"working","ttl":60000}}"#;
        let mut ends = names.iter().zip(&marks).map(|(client, mark)| {
            let request = ("tools/call", &*raw(r#"{"task":{}}"#));
            let (_, new) = tasks.answered(&MCP, client, request, raw(handle), || mark.clone());
            new.expect("each is new")
        });
        let (mut first, mut second) = (ends.next().unwrap(), ends.next().unwrap());
        let question = raw(r#"{"taskId":"1"}"#);
        for client in &names {
            tasks.check(&MCP, client, "tasks/get", &question).expect("its own");
            let list = raw(r#"{"tasks":[{"taskId":"1","status":"working"}]}"#);
            let (listed, _) =
                tasks.answered(&MCP, client, ("tasks/list", &question), list.clone(), UseMark::default);
            assert_eq!(listed.get(), list.get());
        }
        tasks.saw(&names[1], &raw(r#"{"taskId":"1","status":"completed"}"#));
        assert_eq!(second.end.try_recv(), Ok(TaskEnd::Completed));
        assert!(first.end.try_recv().is_err(), "that of the other session runs");
        // A third session of the same client, whose server does not know it.
        let elsewhere = TaskClient { session: 9, ..names[0].clone() };
        let unknown = ErrorObject::new(ErrorCode::INVALID_PARAMS, "unknown");
        tasks.refused(&MCP, &elsewhere, ("tasks/get", &question), &unknown);
        assert!(first.end.try_recv().is_err());
        tasks.refused(&MCP, &names[0], ("tasks/get", &question), &unknown);
        assert_eq!(first.end.try_recv(), Ok(TaskEnd::Completed));
    }

    #[test]
    fn an_error_of_the_server_is_not_the_end_of_the_task() {
        let (tasks, mark) = (KnownTasks::default(), UseMark::default());
        let mut task = created(&tasks, 1, "a", &mark).expect("it is new");
        let question = raw(r#"{"taskId":"a"}"#);
        let overloaded = ErrorObject::new(ErrorCode::INTERNAL_ERROR, "Overloaded")
            .with_data(&serde_json::json!({ "reason": "overloaded" }));
        let unknown_method = ErrorObject::new(ErrorCode::METHOD_NOT_FOUND, "Method not found");
        for error in [&overloaded, &unknown_method] {
            tasks.refused(&MCP, &client(1), ("tasks/result", &question), error);
            assert!(task.end.try_recv().is_err(), "{error:?}");
        }
        let own = ErrorObject::new(ErrorCode(-5), "it fails");
        tasks.refused(&MCP, &client(1), ("tasks/result", &question), &own);
        assert_eq!(task.end.try_recv(), Ok(TaskEnd::Failed(ErrorCode(-5))));
    }

    #[test]
    fn a_task_that_is_named_in_a_way_that_cannot_be_read_is_refused() {
        let tasks = KnownTasks::default();
        for (dialect, method, params) in [
            (&MCP, "tasks/cancel", r#"{"taskId":"a","taskId":"b"}"#),
            (&MCP, "tasks/get", r#"{"taskId":1.0}"#),
            (&MCP_2026, "tasks/update", "{}"),
            (&MCP_2026, "subscriptions/listen", r#"{"notifications":{"taskIds":["a",5e0]}}"#),
            (&MCP_2026, "subscriptions/listen", r#"{"notifications":{"taskIds":["a"],"taskIds":["b"]}}"#),
        ] {
            let refused = tasks.check(dialect, &client(1), method, &raw(params)).expect_err(params);
            assert_eq!(refused.code, ErrorCode::INVALID_PARAMS, "{params}");
        }
        for params in [r#"{"notifications":{"toolsListChanged":true}}"#, "{}"] {
            tasks.check(&MCP_2026, &client(1), "subscriptions/listen", &raw(params)).expect(params);
        }
        tasks.check(&MCP, &client(1), "tasks/list", &raw("{}")).expect("it names none");
    }

    /// Some servers count their tasks.
    #[test]
    fn a_number_is_the_id_of_a_task_and_the_same_as_its_digits() {
        let (tasks, mark) = (KnownTasks::default(), UseMark::default());
        let (request, handle) = (raw(r#"{"task":{}}"#), raw(r#"{"task":{"taskId":1,"status":"working"}}"#));
        let ada = TaskClient { principal: Some(Principal("ada".into())), session: 1 };
        let (_, task) = tasks.answered(&MCP, &ada, ("tools/call", &request), handle, || mark.clone());
        assert!(task.is_some());
        let bob = TaskClient { principal: Some(Principal("bob".into())), session: 2 };
        for params in [r#"{"taskId":1}"#, r#"{"taskId":"1"}"#] {
            tasks.check(&MCP, &ada, "tasks/cancel", &raw(params)).expect(params);
            tasks.check(&MCP, &bob, "tasks/cancel", &raw(params)).expect_err(params);
        }
    }

    #[test]
    fn the_mark_of_a_session_is_the_last_time_of_its_tasks_that_run() {
        let (tasks, mark, other) = (KnownTasks::default(), UseMark::default(), UseMark::default());
        let first = created(&tasks, 1, "a", &mark).expect("it is new").until.borrow().into_std();
        let second = created(&tasks, 1, "b", &mark).expect("it is new").until.borrow().into_std();
        let third = created(&tasks, 2, "c", &other).expect("it is new").until.borrow().into_std();
        assert_eq!((mark.until(), other.until()), (Some(second), Some(third)));
        says(&tasks, 1, r#"{"taskId":"b","status":"completed"}"#);
        assert_eq!(mark.until(), Some(first));
        says(&tasks, 1, r#"{"taskId":"b","status":"working"}"#);
        assert_eq!(mark.until(), Some(first), "an end is final");
        says(&tasks, 1, r#"{"taskId":"a","status":"input_required"}"#);
        assert_eq!(mark.until(), Some(first));
        // Its server keeps it longer now.
        says(&tasks, 1, r#"{"taskId":"a","status":"working","ttl":120000}"#);
        assert_eq!(mark.until(), Some(first + Duration::from_secs(60)));
        says(&tasks, 1, r#"{"taskId":"a","status":"failed"}"#);
        assert!(mark.until() < Some(first), "nothing runs");
        assert_eq!(other.until(), Some(third));
    }

    #[test]
    fn an_end_that_is_known_before_its_task_counts() {
        let (tasks, mark) = (KnownTasks::default(), UseMark::default());
        tasks.notified(
            &MCP,
            &client(1),
            "notifications/tasks/status",
            &raw(r#"{"taskId":"a","status":"failed"}"#),
        );
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
