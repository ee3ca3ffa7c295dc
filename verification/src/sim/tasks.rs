//! Tasks of a run: clients that start them, question them and cancel them, and what must hold of their statuses and of their
//! handlers. Tasks go on after their connection, so at the end another connection asks about them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rescind_core::dialect::{Role, TaskForm, TaskStatus};
use rescind_core::{
    CallError, CauseKind, ClusterKeys, ErrorObject, KeyedRequest, Peer, TaskHandle, memory_pair,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Case;
use super::call_checks::is_refused_for_now;
use super::judge::{Judge, JudgeState, Known, LATE, TaskSeen};
use super::plan::{PlannedTask, Side, Waiting, Work};
use super::work::{START, router};

/// The message of the answer to a question about a task that is not known.
const UNKNOWN: &str = "Invalid params: there is no such task";
/// The message of the answer to a cancel of a task that has ended, around its status (2025-11-25).
const REFUSED: (&str, &str) = ("Invalid params: the task is ", " already");

const fn ttl(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Makes the ids of tasks: they are counted, and the same in each run. Over HTTP/2 a random id would move all bytes after it.
#[derive(Debug, Default)]
pub(super) struct CountedKeys(AtomicU64);

impl ClusterKeys for CountedKeys {
    fn key_of(&self, _: Arc<dyn KeyedRequest>) -> Option<Arc<str>> {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        Some(format!("{number:032x}").into())
    }
}

/// A question about a task.
struct Question {
    at: u64,
    /// The knowledge of clients at that time.
    known: Option<Known>,
}

/// A call that is counted until it is dropped.
struct Open(Judge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.state().questions -= 1;
    }
}

// The part of the client.

/// Starts a task, and does with it what is planned.
///
/// # Cancel safety
/// Dropping the future ends the questions and not the task.
pub(super) async fn follow(planned: &PlannedTask, judge: &Judge, client: &Peer, time: u64) {
    let nonce = planned.job.nonce;
    let params = {
        let mut state = judge.state();
        state.starts_task(planned);
        state.speech.params(serde_json::to_value(&planned.job).unwrap_or_default())
    };
    let started = {
        let _open = judge.opens();
        let starting = client.call::<_, Value>(START, &params).task(Some(ttl(time)));
        match planned.dropped_after {
            None => starting.await,
            Some(after) => tokio::select! {
                biased;
                started = starting => started,
                () = sleep(Duration::from_millis(after)) => {
                    judge.state().gives_up_task(nonce, "its client drops its call");
                    return;
                }
            },
        }
    };
    let handle = match started {
        Ok(handle) => handle,
        Err(error) => return judge.state().not_started(nonce, &error),
    };
    if handle.id().is_none() {
        let value = handle.result().await;
        judge.note(|| format!("{nonce} is answered without a task: {value:?}"));
        return;
    }
    judge.state().hands(nonce, handle.id().unwrap_or_default());
    let polls = async {
        for after in &planned.polls {
            sleep(Duration::from_millis(*after)).await;
            status(judge, nonce, &handle).await;
        }
    };
    let cancels = async {
        for after in &planned.cancels {
            sleep(Duration::from_millis(*after)).await;
            cancel(judge, nonce, &handle).await;
        }
    };
    let late = async {
        if let Some(after) = planned.late_cancel {
            sleep(Duration::from_millis(after)).await;
            cancel_first_request(judge, nonce, client);
        }
    };
    tokio::join!(polls, cancels, late, wait(planned.waiting, judge, nonce, client, &handle));
    status(judge, nonce, &handle).await;
}

/// Asks how far a task is. `None`: there is no answer, or the task is not known.
async fn status(judge: &Judge, nonce: u64, handle: &TaskHandle<Value>) -> Option<TaskStatus> {
    let (question, _open) = (judge.asks(nonce), judge.opens());
    match handle.status().await {
        Ok(report) => {
            judge.state().learns(nonce, &question, report.status);
            Some(report.status)
        }
        Err(error) => {
            judge.state().question_failed(nonce, &question, &error);
            None
        }
    }
}

async fn cancel(judge: &Judge, nonce: u64, handle: &TaskHandle<Value>) {
    let (question, _open) = (judge.asks(nonce), judge.opens());
    judge.state().cancels_task(nonce);
    match handle.cancel().await {
        Ok(()) => judge.state().cancel_taken(nonce, &question),
        Err(error) => judge.state().question_failed(nonce, &question, &error),
    }
}

/// Waits for the end of a task.
async fn wait(waiting: Waiting, judge: &Judge, nonce: u64, client: &Peer, handle: &TaskHandle<Value>) {
    let question = judge.asks(nonce);
    let answer = match waiting {
        Waiting::No => return,
        Waiting::Polls => handle.result().await,
        Waiting::InResult => {
            let _open = judge.opens();
            let params = json!({ "taskId": handle.id() });
            client.call::<_, Value>("tasks/result", &params).no_timeout().await
        }
    };
    let mut state = judge.state();
    match answer {
        Ok(value) => {
            let own = value.get("nonce").and_then(Value::as_u64) == Some(nonce);
            state.holds(own, "I4", || format!("the result of the task {nonce} is {value}"));
            state.learns(nonce, &question, TaskStatus::Completed);
        }
        Err(CallError::Failed(error)) if error.message == "sim failed" => {
            state.learns(nonce, &question, TaskStatus::Failed);
        }
        // A task that was cancelled, and a question that was cancelled, look alike.
        Err(error) => state.note(|| format!("{nonce} is not waited for: {error}")),
    }
}

/// Sends the message that cancels requests, for a request that was answered with its task. A client should not do that.
fn cancel_first_request(judge: &Judge, nonce: u64, client: &Peer) {
    let id = {
        let mut state = judge.state();
        // That message is no part of a transport on which a closed stream is the cancel.
        if state.closing_cancels {
            return;
        }
        let id = state.written.client.by_nonce.get(&nonce).cloned();
        state.late_cancels.extend(id.clone());
        id
    };
    let id = id.and_then(|id| serde_json::from_str::<Value>(&id).ok());
    if let Some(id) = id {
        let sent = client.try_notify("notifications/cancelled", &json!({ "requestId": id }));
        judge.note(|| format!("the request of the task {nonce} is cancelled, too late: {}", sent.is_ok()));
    }
}

/// Asks about the tasks over another connection, and cancels them there. Their own connection has ended, and they go on.
pub(super) async fn ask_elsewhere(case: &Case, judge: &Judge) {
    let handed: Vec<(u64, String)> = {
        let state = judge.state();
        let handed = state.tasks.iter().filter_map(|(nonce, task)| Some((*nonce, task.id.clone()?)));
        handed.collect()
    };
    if handed.is_empty() {
        return;
    }
    judge.note(|| "another client asks about the tasks".to_owned());
    let (near, far) = memory_pair();
    let server = Peer::builder(case.dialect.clone())
        .serve(Arc::new(router(Side::Server, judge)))
        .role(Role::Server)
        .attach(far);
    let client = Peer::builder(case.dialect.clone()).role(Role::Client).attach(near);
    let (Ok(server), Ok(client)) = (server, client) else {
        return judge.breaks("L3", || "there is no other connection".to_owned());
    };
    if let Some((method, params)) = case.speech.opening() {
        let opened = client.call::<_, Value>(method, &params).await;
        judge.holds(opened.is_ok(), "L3", || format!("another connection does not open: {opened:?}"));
    }
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "another", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": { "extensions": { "io.modelcontextprotocol/tasks": {} } },
    });
    for (nonce, id) in handed {
        match TaskHandle::<Value>::with_id(&client, &id, Some(&meta)) {
            Ok(handle) => {
                let status_before = status(judge, nonce, &handle).await;
                judge.state().check_shut(nonce, status_before);
                cancel(judge, nonce, &handle).await;
                status(judge, nonce, &handle).await;
            }
            Err(error) => judge.breaks("I13", || format!("no handle of the task {nonce}: {error}")),
        }
    }
    client.shutdown(Duration::ZERO).await;
    server.shutdown(Duration::ZERO).await;
}

// What must hold.

impl Judge {
    fn asks(&self, nonce: u64) -> Question {
        let state = self.state();
        let known = state.tasks.get(&nonce).and_then(|task| task.known);
        Question { at: state.now(), known }
    }

    fn opens(&self) -> Open {
        self.state().questions += 1;
        Open(self.clone())
    }
}

impl JudgeState {
    /// Whether the request of this call became a task.
    pub(super) fn is_task(&self, nonce: Option<u64>) -> bool {
        nonce.and_then(|nonce| self.tasks.get(&nonce)).is_some_and(|task| task.became_at.is_some())
    }

    /// The task that a question asks about.
    pub(super) fn task_of_question(&self, question: &Value) -> Option<u64> {
        let id = question.pointer("/params/taskId")?.as_str()?;
        self.tasks.iter().find(|(_, task)| task.id.as_deref() == Some(id)).map(|(nonce, _)| *nonce)
    }

    fn starts_task(&mut self, planned: &PlannedTask) {
        let PlannedTask { job, polls, cancels, dropped_after, .. } = planned;
        self.note(|| {
            format!(
                "client starts the task {}: {:?} ({} ms), asks after {polls:?}, cancels after {cancels:?}, drops after {dropped_after:?}",
                job.nonce, job.work, job.ms
            )
        });
        let begun = self.now();
        let task = TaskSeen {
            begun,
            id: None,
            handed_at: None,
            became_at: None,
            is_given_up: false,
            known: None,
            is_cancelled: false,
            effective: 0,
            reported_at: None,
        };
        self.tasks.insert(job.nonce, task);
    }

    pub(super) fn becomes_task(&mut self, nonce: u64, id: &str) {
        self.note(|| format!("{nonce} becomes the task {id}"));
        self.live_tasks += 1;
        let now = self.now();
        if let Some(task) = self.tasks.get_mut(&nonce) {
            task.became_at.get_or_insert(now);
        }
    }

    fn gives_up_task(&mut self, nonce: u64, why: &str) {
        self.note(|| format!("the task {nonce}: {why}"));
        if let Some(task) = self.tasks.get_mut(&nonce) {
            task.is_given_up = true;
        }
    }

    fn not_started(&mut self, nonce: u64, error: &CallError) {
        self.gives_up_task(nonce, &format!("it does not start: {error}"));
        if let CallError::Failed(error) = error {
            let may = self.may_fail(nonce, Side::Client, error);
            self.holds(may, "I4", || format!("{nonce} failed, and its handler did not: {error}"));
        }
    }

    fn hands(&mut self, nonce: u64, id: &str) {
        self.note(|| format!("the client has the task {nonce}: {id}"));
        let now = self.now();
        let is_task = self.is_task(Some(nonce)) || self.repeats;
        self.holds(is_task, "I1", || format!("{nonce} is answered with a task, and its handler has none"));
        if let Some(task) = self.tasks.get_mut(&nonce) {
            (task.id, task.handed_at) = (Some(id.to_owned()), Some(now));
        }
    }

    fn cancels_task(&mut self, nonce: u64) {
        self.cancels += 1;
        self.note(|| format!("the task {nonce} is cancelled"));
        if let Some(task) = self.tasks.get_mut(&nonce) {
            task.is_cancelled = true;
        }
    }

    /// I16: a question that was asked after the end of the task was known gets the same end, and no two questions get different
    /// ends.
    fn learns(&mut self, nonce: u64, question: &Question, status: TaskStatus) {
        self.note(|| format!("the task {nonce} is {}", status.name()));
        let now = self.now();
        let Some(task) = self.tasks.get(&nonce) else { return };
        let (known, handed_at) = (task.known, task.handed_at);
        let latest = known.filter(|_| status.is_final());
        let fits = [question.known, latest].into_iter().flatten().all(|known| known.allows(status));
        let is_there = question.known.is_some_and(|known| known != Known::Open);
        self.holds_and_counts(is_there, fits, "I16", || {
            format!("the task {nonce} is {}, and was {known:?}", status.name())
        });
        let expired = handed_at.is_some_and(|at| question.at > at + self.task_ttl + LATE);
        self.holds_and_counts(false, !expired, "I3", || {
            format!("the task {nonce} is known at {now}, after its time")
        });
        let next = if status.is_final() { Known::Ended(status) } else { Known::Open };
        if let Some(task) = self.tasks.get_mut(&nonce).filter(|_| status.is_final() || known.is_none()) {
            task.known = Some(next);
        }
        if status == TaskStatus::Cancelled {
            self.check_signalled(nonce);
        }
    }

    /// I17: a client knows that the task is cancelled, so its handler has the signal or has ended. In a critical section the
    /// signal comes at its end.
    fn check_signalled(&mut self, nonce: u64) {
        let now = self.now();
        // Of a request that ran twice, the other task may be the client's.
        let Some(work) = self.works.get(&nonce).filter(|_| !self.repeats) else { return };
        let is_shielded = work.work == Work::Shield && work.end.is_none();
        let has_signal = work.end.is_some() || work.context.is_cancelled();
        self.holds_and_counts(!is_shielded, has_signal || is_shielded, "I17", || {
            format!("the task {nonce} is cancelled, and its handler is not signalled")
        });
        if let Some(task) = self.tasks.get_mut(&nonce) {
            task.reported_at.get_or_insert(now);
        }
    }

    fn cancel_taken(&mut self, nonce: u64, question: &Question) {
        if self.task_form == Some(TaskForm::AskedByClient) {
            let Some(task) = self.tasks.get_mut(&nonce) else { return };
            task.effective += 1;
            let once = task.effective == 1;
            self.holds(once, "I7", || format!("two cancels of the task {nonce} took effect"));
            return self.learns(nonce, question, TaskStatus::Cancelled);
        }
        // The answer does not say whether the work was done first.
        self.note(|| format!("the cancel of the task {nonce} is taken"));
        self.check_signalled(nonce);
        if let Some(task) = self.tasks.get_mut(&nonce) {
            task.known = task.known.filter(|known| *known != Known::Open).or(Some(Known::Over));
        }
    }

    fn question_failed(&mut self, nonce: u64, question: &Question, error: &CallError) {
        self.note(|| format!("a question about the task {nonce} failed: {error}"));
        match error {
            CallError::Failed(error) if error.message == UNKNOWN => {
                let begun = self.tasks.get(&nonce).map_or(0, |task| task.begun);
                let expired = self.now() >= begun + self.task_ttl || self.repeats;
                self.holds(expired, "I16", || {
                    format!("the task {nonce} is not known, before its time is over")
                });
            }
            CallError::Failed(error) => {
                if let Some(status) = status_of_refusal(error) {
                    return self.learns(nonce, question, status);
                }
                let refused = serde_json::to_value(error)
                    .is_ok_and(|error| is_refused_for_now(&json!({ "error": error })));
                let because = refused || self.is_going() || !self.is_open || self.repeats;
                self.holds(because, "I4", || format!("a question about the task {nonce} failed: {error}"));
            }
            CallError::Disconnected { .. } => {
                let because = self.is_going() || !self.is_open || self.repeats;
                self.holds(because, "I13", || {
                    format!("a question about the task {nonce} is disconnected, and nothing was lost")
                });
            }
            // By a timeout or a shutdown.
            _ => {}
        }
    }

    /// A server that has shut down has no task that works.
    fn check_shut(&mut self, nonce: u64, status: Option<TaskStatus>) {
        let works = status.is_some_and(|status| !status.is_final());
        let may = !self.shut.server || self.repeats;
        self.holds_and_counts(!may && status.is_some(), may || !works, "L3", || {
            format!("the task {nonce} works, and its server has shut down")
        });
    }

    /// The handler of a task has ended. I4: only a cancel of its task, the end of its time, its own side and a shutdown signal it.
    /// L3: it ends within its grace.
    pub(super) fn check_task_left(&mut self, nonce: u64, cause: Option<CauseKind>) {
        let now = self.now();
        let (Some(work), Some(task)) = (self.works.get(&nonce), self.tasks.get(&nonce)) else { return };
        if task.became_at.is_none() || self.repeats {
            return;
        }
        let expired = task.became_at.is_some_and(|at| now >= at + self.task_ttl);
        let because = match cause {
            None => true,
            Some(CauseKind::Peer) => task.is_cancelled,
            Some(CauseKind::Deadline) => expired,
            Some(CauseKind::Shutdown) => self.shut.server,
            Some(CauseKind::Local) => work.work == Work::Local,
            Some(_) => false,
        };
        let shield =
            if work.work == Work::Shield { self.limits.server.max_shield_time } else { Duration::ZERO };
        let grace = self.limits.server.cancel_grace + shield;
        let most = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX).saturating_add(LATE);
        let reported_at = task.reported_at;
        self.holds_and_counts(cause.is_some(), because, "I4", || {
            format!("the handler of the task {nonce} was signalled by {cause:?}")
        });
        let in_time = reported_at.is_none_or(|at| now <= at.saturating_add(most));
        self.holds_and_counts(reported_at.is_some(), in_time, "L3", || {
            format!("the task {nonce} is cancelled since {reported_at:?} and its handler ends now, {most} ms it may take")
        });
    }

    /// Whether a client knows that this task has ended.
    pub(super) fn is_known_to_be_over(&self, nonce: u64) -> bool {
        let known = self.tasks.get(&nonce).and_then(|task| task.known);
        known.is_some_and(|known| known != Known::Open)
    }
}

/// The status in the answer to a cancel of a task that has ended.
fn status_of_refusal(error: &ErrorObject) -> Option<TaskStatus> {
    let name = error.message.strip_prefix(REFUSED.0)?.strip_suffix(REFUSED.1)?;
    TaskStatus::by_name(name)
}
