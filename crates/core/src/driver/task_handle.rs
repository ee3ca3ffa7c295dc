//! A task that the peer does, as its client sees it.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::cause::{Cancelled, Cause, CauseKind};
use crate::dialect::tasks as form;
use crate::dialect::{TaskForm, TaskStatus};
use crate::driver::call::builder::{CallBuilder, CallForTask};
use crate::driver::peer::Peer;
use crate::error::CallError;
use crate::message::ErrorObject;

/// The time between two questions about a task whose server suggests none.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time between two questions, whatever the server suggests.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A task that the peer does for this side. Dropping it does not end the task: [`cancel`](Self::cancel) does, also from
/// another connection, by [`with_id`](Self::with_id).
#[must_use = "the task goes on without its handle"]
pub struct TaskHandle<R> {
    peer: Peer,
    state: Followed,
    answer: PhantomData<fn() -> R>,
}

enum Followed {
    /// The peer has answered without a task.
    Answered(Box<RawValue>),
    Task {
        form: TaskForm,
        id: Arc<str>,
        poll_interval: Duration,
        /// The `_meta` of its request, for protocols that require it in each request.
        meta: Option<Box<RawValue>>,
    },
}

/// How far a task is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskReport {
    /// Its status.
    pub status: TaskStatus,
    /// What the server says about it.
    pub message: Option<String>,
}

/// The answer to a question about a task.
enum Told {
    Open(TaskReport),
    Completed(Option<Box<RawValue>>),
    Failed(ErrorObject),
    Cancelled(Option<String>),
}

#[derive(Serialize)]
struct Question<'a> {
    #[serde(rename = "taskId")]
    id: &'a str,
    #[serde(rename = "inputResponses", skip_serializing_if = "Option::is_none")]
    answers: Option<&'a RawValue>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<&'a RawValue>,
}

impl<R> CallBuilder<R> {
    /// Calls, and takes a task as the answer: work that goes on after this connection, and that `tasks/cancel` stops. In
    /// MCP 2025-11-25 the call asks for one that is kept for `ttl`; in 2026-07-28 the server decides, and `ttl` has no
    /// meaning. A server that answers without a task is waited for, and the handle has its answer.
    ///
    /// # Errors
    /// Those of the call; [`CallError::Params`] where the protocol has no tasks, or where the params are not an object.
    ///
    /// # Cancel safety
    /// If the future is dropped, the call is cancelled, unless the server has made it a task: then the task goes on.
    pub async fn task(self, ttl: Option<Duration>) -> Result<TaskHandle<R>, CallError> {
        let peer = Peer::new(self.connection());
        let ttl = ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        let CallForTask { form, meta, call } = self.asking_for_task(ttl)?;
        let answer = call.await?;
        let state = match form.read_handle(&answer) {
            Some(task) => {
                Followed::Task { form, poll_interval: interval(task.poll_interval), id: task.id.into(), meta }
            }
            None => Followed::Answered(answer),
        };
        Ok(TaskHandle { peer, state, answer: PhantomData })
    }
}

fn interval(suggested: Option<u64>) -> Duration {
    suggested.map_or(POLL_INTERVAL, |millis| Duration::from_millis(millis).max(MIN_POLL_INTERVAL))
}

impl<R> TaskHandle<R> {
    /// The task with this id, which was created on this or another connection of the same principal. `meta`: the member
    /// `_meta` of its questions, which MCP 2026-07-28 requires.
    ///
    /// # Errors
    /// [`CallError::Params`] if the protocol has no tasks, or if `meta` cannot be written as JSON.
    pub fn with_id<M: Serialize + ?Sized>(
        peer: &Peer,
        id: &str,
        meta: Option<&M>,
    ) -> Result<Self, CallError> {
        let bad = |what: String| CallError::Params { method: form::GET.to_owned(), what };
        let form = peer.dialect().rules().tasks.ok_or_else(|| bad("the protocol has no tasks".to_owned()))?;
        let meta = meta.map(serde_json::value::to_raw_value).transpose();
        let meta = meta.map_err(|error| bad(error.to_string()))?;
        let state = Followed::Task { form, id: id.into(), poll_interval: POLL_INTERVAL, meta };
        Ok(Self { peer: peer.clone(), state, answer: PhantomData })
    }

    /// The id of the task. `None`: the peer has answered without one.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        match &self.state {
            Followed::Answered(_) => None,
            Followed::Task { id, .. } => Some(id),
        }
    }

    /// How far the task is.
    ///
    /// # Errors
    /// Those of the call; [`CallError::Failed`] if the server does not know the task.
    ///
    /// # Cancel safety
    /// Dropping the future ends the question and not the task.
    pub async fn status(&self) -> Result<TaskReport, CallError> {
        let report = |status| TaskReport { status, message: None };
        Ok(match self.ask().await? {
            Told::Open(report) => report,
            Told::Completed(_) => report(TaskStatus::Completed),
            Told::Failed(error) => TaskReport { status: TaskStatus::Failed, message: Some(error.message) },
            Told::Cancelled(message) => TaskReport { status: TaskStatus::Cancelled, message },
        })
    }

    /// Cancels the task. In MCP 2025-11-25 its status is `cancelled` when this returns; in 2026-07-28 the server has taken the
    /// cancel, and the status may follow.
    ///
    /// # Errors
    /// Those of the call; [`CallError::Failed`] if the server does not know the task, and in 2025-11-25 if it has ended.
    ///
    /// # Cancel safety
    /// If the future is dropped, the task may or may not be cancelled.
    pub async fn cancel(&self) -> Result<(), CallError> {
        let Followed::Task { id, meta, .. } = &self.state else { return Ok(()) };
        let question = Question { id, answers: None, meta: meta.as_deref() };
        self.peer.call::<_, Box<RawValue>>(form::CANCEL, &question).await.map(drop)
    }

    /// Answers what the task asks of its client (MCP 2026-07-28): an object with an answer for each key of `inputRequests`.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Cancel safety
    /// If the future is dropped, the answers may or may not arrive.
    pub async fn update<A: Serialize + ?Sized>(&self, answers: &A) -> Result<(), CallError> {
        let Followed::Task { id, meta, .. } = &self.state else { return Ok(()) };
        let answers = serde_json::value::to_raw_value(answers).map_err(|error| CallError::Params {
            method: form::UPDATE.to_owned(),
            what: error.to_string(),
        })?;
        let question = Question { id, answers: Some(&answers), meta: meta.as_deref() };
        self.peer.call::<_, Box<RawValue>>(form::UPDATE, &question).await.map(drop)
    }

    async fn ask(&self) -> Result<Told, CallError> {
        let Followed::Task { form, id, meta, .. } = &self.state else { return Ok(Told::Completed(None)) };
        let question = Question { id, answers: None, meta: meta.as_deref() };
        let answer: Box<RawValue> = self.peer.call(form::GET, &question).await?;
        let unreadable =
            |what: &str| CallError::Answer { method: form::GET.to_owned(), what: what.to_owned() };
        let seen = form.read_status(&answer).ok_or_else(|| unreadable("it is not a task"))?;
        Ok(match seen.status {
            TaskStatus::Working | TaskStatus::InputRequired => {
                Told::Open(TaskReport { status: seen.status, message: seen.message })
            }
            TaskStatus::Completed => Told::Completed(seen.result.map(ToOwned::to_owned)),
            TaskStatus::Failed => {
                let message = seen.message.unwrap_or_else(|| "the task has failed".to_owned());
                let error = || ErrorObject::new(crate::message::ErrorCode::INTERNAL_ERROR, message);
                Told::Failed(seen.error.unwrap_or_else(error))
            }
            TaskStatus::Cancelled => Told::Cancelled(seen.message),
        })
    }
}

impl<R: DeserializeOwned> TaskHandle<R> {
    /// Waits for the end of the task, and returns its result. It asks at the interval that the server suggests, and in MCP
    /// 2025-11-25 waits in `tasks/result` once the task needs input, because the requests of the task come there ("when the
    /// requestor encounters the `input_required` status, it should preemptively call `tasks/result`").
    ///
    /// # Errors
    /// [`CallError::Cancelled`] if the task was cancelled; [`CallError::Failed`] if it has failed or the server does not know
    /// it; [`CallError::Answer`] if the server has no result of a completed task; the errors of the calls.
    ///
    /// # Cancel safety
    /// Dropping the future ends the questions and not the task.
    pub async fn result(&self) -> Result<R, CallError> {
        let (form, id, poll_interval, meta) = match &self.state {
            Followed::Answered(answer) => return read(answer),
            Followed::Task { form, id, poll_interval, meta } => (*form, id, *poll_interval, meta),
        };
        let has_result_method = form.has_method(form::RESULT);
        loop {
            match self.ask().await? {
                Told::Open(report) if report.status == TaskStatus::InputRequired && has_result_method => {
                    break;
                }
                Told::Open(_) => tokio::time::sleep(poll_interval).await,
                Told::Cancelled(_) => return Err(cancelled()),
                Told::Completed(Some(result)) => return read(&result),
                Told::Failed(_) | Told::Completed(None) if has_result_method => break,
                Told::Failed(error) => return Err(CallError::Failed(error)),
                Told::Completed(None) => {
                    let what = "the task is completed and has no result".to_owned();
                    return Err(CallError::Answer { method: form::GET.to_owned(), what });
                }
            }
        }
        let question = Question { id, answers: None, meta: meta.as_deref() };
        // It is answered when the task ends, which may take longer than any other call.
        let ended = self.peer.call(form::RESULT, &question).no_timeout().await;
        match ended {
            // The task was cancelled while this waited: its answer is an error.
            Err(CallError::Failed(_)) if matches!(self.ask().await?, Told::Cancelled(_)) => Err(cancelled()),
            ended => ended,
        }
    }
}

fn cancelled() -> CallError {
    CallError::Cancelled(Cancelled::new(Cause::new(CauseKind::Peer), true))
}

fn read<R: DeserializeOwned>(answer: &RawValue) -> Result<R, CallError> {
    serde_json::from_str(answer.get())
        .map_err(|error| CallError::Answer { method: form::RESULT.to_owned(), what: error.to_string() })
}

impl<R> fmt::Debug for TaskHandle<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskHandle").field("id", &self.id()).finish_non_exhaustive()
    }
}
