//! How a request becomes a task, and the methods with which clients ask about tasks.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use crate::cause::{Cause, CauseKind};
use crate::dialect::tasks as form;
use crate::dialect::{TaskForm, TaskStatus};
use crate::driver::context::{CallContext, HandlerError};
use crate::driver::json_text::Frame;
use crate::driver::outbox::Answer;
use crate::driver::router::Router;
use crate::driver::state::{Payload, Request};
use crate::driver::task::{Task, TaskStart, TaskWork};
use crate::driver::tasks::{NotATask, TaskSide, Tasks};
use crate::error::CallError;
use crate::id::Principal;
use crate::machine::NoTask;
use crate::message::{ErrorCode, ErrorObject};

/// The times between two looks at the record of a task that another process does: the first, and the longest of who waits for its
/// result or listens to its changes.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// How long the answer to a cancel waits for the end of a task that another process does.
const END_ELSEWHERE: Duration = Duration::from_secs(5);

impl TaskWork for Request {
    fn cancel(self: Arc<Self>, cause: Cause) -> bool {
        let key = self.data.key;
        self.connection.step(|state, now, _| state.session.local_cancel(now, key, cause))
    }

    fn waits_for_client(&self) -> bool {
        self.connection.lock().session.has_children(self.data.key)
    }
}

impl CallContext {
    /// Whether the client takes a task as the answer to this request, and the router has [`tasks`](Router::tasks). In MCP
    /// 2025-11-25 the client asks for one with the request, also if it does so in a way that cannot be read; in 2026-07-28 it
    /// declares that it can.
    #[must_use]
    pub fn may_become_task(&self) -> bool {
        self.data().task_side().is_some()
    }

    /// Whether this side declared tasks in its handshake, or the protocol has no such declaration. Without it the methods about
    /// tasks are unknown: a client of an older revision does not know them.
    #[must_use]
    pub fn has_declared_tasks(&self) -> bool {
        self.connection().lock().session.has_declared_tasks()
    }

    /// The id of the task that this request became.
    #[must_use]
    pub fn task_id(&self) -> Option<&str> {
        Some(&self.data().task_side()?.task()?.id)
    }

    /// Makes this request a task: the client gets the task's handle as the answer, and the handler goes on. Its value or
    /// error becomes the task's. From now on the request is cancelled by `tasks/cancel`, and neither by a cancel of its id
    /// nor by the loss of its stream or its connection. A second call returns the same id.
    ///
    /// # Errors
    /// [`NotATask`]. As a handler's error (`?`) it is what the protocol requires where the answer must be a task.
    pub fn become_task(&self) -> Result<&str, NotATask> {
        let (connection, data) = (self.connection(), self.data());
        let form = connection.dialect.rules().tasks;
        let not_offered = || {
            let required = form.map_or_else(ErrorObject::internal, TaskForm::task_required);
            NotATask::NotOffered(required)
        };
        let (Some(form), Some(tasks), Some(side)) = (form, &connection.tasks, data.task_side()) else {
            return Err(not_offered());
        };
        if let Some(task) = side.task() {
            return Ok(&task.id);
        }
        let offer = side.offer.clone().map_err(NotATask::Invalid)?;
        let work: Weak<dyn TaskWork> = Arc::<Request>::downgrade(self.shared());
        let start = TaskStart {
            id: self.cluster_key(),
            form,
            principal: principal_of(self),
            connection: connection.number,
            client: data.shared_client(&connection.client),
            ttl: tasks.ttl(offer),
            answers: offer.answers,
            work,
        };
        let ttl = start.ttl;
        // Kept before its handle is written, so that the client finds it at once.
        let task = tasks.begin(start).ok_or(NotATask::TooMany)?;
        let mut handle = task.written(TaskForm::handle).map(Answer::Value);
        let became = connection.step_with(
            Payload::Offer(&mut handle),
            |state, now, _, _| {
                let became = state.session.local_become_task(now, data.key);
                if became.is_ok() {
                    side.set_task(&task);
                }
                became
            },
            |_, _, became| became,
        );
        if let Err(why) = became {
            tasks.forget(&task);
            return Err(match why {
                NoTask::Ended => NotATask::Ended(self.cause()),
                NoTask::TooMany => NotATask::TooMany,
            });
        }
        let end_task = tasks.expiry(&task);
        let expiry = connection.runtime.spawn(async move {
            tokio::time::sleep(ttl).await;
            end_task();
        });
        let _ = task.expiry.set(expiry.abort_handle());
        tasks.record(&task);
        side.task().map(|task| &*task.id).ok_or(NotATask::Ended(None))
    }

    /// Passes on a task that another server made of this request. The client gets this handle as the answer, unchanged, and
    /// the handler goes on: until it knows that the task has ended, or is cancelled. Then it ends the other server's task. From
    /// now on the request is cancelled as a task is: [`become_task`](Self::become_task).
    ///
    /// # Errors
    /// The handle, which the handler returns as its value: the request was cancelled before, or too many requests are tasks.
    pub fn pass_task(&self, handle: Box<RawValue>) -> Result<(), Box<RawValue>> {
        let (connection, data) = (self.connection(), self.data());
        if connection.dialect.rules().tasks.is_none() || handle.get().len() > connection.max_frame / 2 {
            return Err(handle);
        }
        let mut answer = Some(Answer::Value(handle));
        let became = connection.step_with(
            Payload::Offer(&mut answer),
            |state, now, _, _| state.session.local_become_task(now, data.key),
            |_, _, became| became,
        );
        match (became, answer) {
            (Err(_), Some(Answer::Value(handle))) => Err(handle),
            (Ok(()) | Err(_), _) => Ok(()),
        }
    }

    /// The task that this request passes on was cancelled for this cause. The handler should end now.
    pub fn passed_task_cancelled(&self, cause: Cause) {
        let key = self.data().key;
        self.connection().step(|state, now, _| {
            if state.session.is_task(key) {
                state.session.local_cancel(now, key, cause);
            }
        });
    }

    /// Asks the client for something that the work of this request needs, and waits for the answer. Where servers send
    /// requests, it is one, as of [`call`](Self::call). In MCP 2026-07-28, where they do not, the request must be a task:
    /// `tasks/get` shows what is asked, and `tasks/update` brings the answer.
    ///
    /// # Errors
    /// The errors of a call; [`CallError::Failed`] with -32021 if the client of a task does not declare that it answers such a request;
    /// [`CallError::Ended`] where no client can be asked, or once the request has ended.
    ///
    /// # Cancel safety
    /// If the future is dropped, the request is cancelled, or not asked any more. An answer that comes later has no effect.
    pub async fn ask_client<P: Serialize + ?Sized, R: DeserializeOwned>(
        &self,
        method: &str,
        params: &P,
    ) -> Result<R, CallError> {
        let form = self.connection().dialect.rules().tasks;
        let task = self.data().task_side().and_then(TaskSide::task);
        let Some(task) = task.filter(|_| form == Some(TaskForm::DecidedByServer)) else {
            return self.call(method, params).await;
        };
        let frame = Frame::new(self.connection().max_frame, method.into(), params)?;
        let asked = task.ask(frame.method, frame.params)?;
        let answer = asked.answer().await.ok_or(CallError::Ended)?;
        serde_json::from_str(answer.get())
            .map_err(|error| CallError::Answer { method: method.to_owned(), what: error.to_string() })
    }

    /// A notification of this request. Of a task it has the task's name. `None`: a task of this protocol sends none.
    pub(crate) fn own_frame(&self, mut frame: Frame) -> Option<Frame> {
        let Some(task) = self.data().task_side().and_then(TaskSide::task) else { return Some(frame) };
        if !task.form.has_messages() {
            return None;
        }
        frame.params = frame.params.map(|params| task.form.related(params, &task.id));
        Some(frame)
    }
}

// ---- The methods with which clients ask about tasks

impl Router {
    /// Adds the methods with which clients ask about these tasks and cancel them, in the form of the connection's dialect.
    /// Requests of methods that the protocol supports may become tasks then: [`task`](Self::task),
    /// [`CallContext::become_task`]. Pass the same tasks to the routers of all connections. What a server declares about
    /// tasks is part of its handshake, which the application writes.
    ///
    /// In MCP 2026-07-28 it also serves `subscriptions/listen` for the changes of tasks, unless the router has a handler of
    /// its own for that method.
    #[must_use]
    pub fn tasks(self, tasks: &Tasks) -> Self {
        self.with_tasks(tasks)
            .quick(form::GET, async |ctx: CallContext, params: Box<RawValue>| {
                let (_, task) = find_task(&ctx, &params).await?;
                Ok(task.reported(TaskForm::status).await.ok_or_else(ErrorObject::internal)?)
            })
            .quick(form::RESULT, async |ctx: CallContext, params: Box<RawValue>| {
                let (form, mut task) = find_task(&ctx, &params).await?;
                if task.is_elsewhere() {
                    task = ctx.run_until_cancelled(end_elsewhere(&ctx, form, &task, LONGEST_WAIT)).await??;
                }
                // The requests of the task to its client are sent on this stream meanwhile ("Input Required Status").
                let _reads = task.read_on(ctx.connection().number, ctx.data().exchange());
                ctx.data().set_read_task(&task);
                ctx.run_until_cancelled(task.ended()).await?;
                Ok(task.outcome().await?)
            })
            .quick(form::CANCEL, async |ctx: CallContext, params: Box<RawValue>| {
                let (form, task) = find_task_to(&ctx, &params, true).await?;
                if task.is_elsewhere() {
                    return cancel_elsewhere(&ctx, form, &task).await;
                }
                cancel(form, &task).await
            })
            .quick(form::LIST, async |ctx: CallContext, params: Box<RawValue>| list(&ctx, &params).await)
            .quick(form::UPDATE, async |ctx: CallContext, params: Box<RawValue>| {
                let (_, task) = find_task(&ctx, &params).await?;
                if task.is_elsewhere() {
                    let why = "the work of this task is done at another node, which must be asked";
                    return Err(ErrorObject::new(ErrorCode::INTERNAL_ERROR, why).into());
                }
                task.take_answers(&params)?;
                Ok(RawValue::from_string("{}".to_owned())?)
            })
            .unless_served(form::LISTEN, async |ctx: CallContext, params: Box<RawValue>| {
                listen(&ctx, &params).await
            })
    }

    /// Serves a method whose requests become tasks before their handlers run, if their clients take a task as the answer.
    /// Other requests are answered as those of [`method`](Self::method).
    #[must_use]
    pub fn task<F, P, R, Fut>(self, name: impl AsRef<str>, handler: F) -> Self
    where
        F: Fn(CallContext, P) -> Fut + Send + Sync + 'static,
        P: DeserializeOwned + Send + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
        R: Serialize + Send + 'static,
    {
        self.method(name, move |ctx: CallContext, params: P| {
            let became = match ctx.become_task() {
                Ok(_) | Err(NotATask::NotOffered(_)) => Ok(()),
                Err(error) => Err(HandlerError::from(error)),
            };
            let work = became.map(|()| handler(ctx, params));
            async move { work?.await }
        })
    }
}

/// The task that is named, if the peer may see it.
async fn find_task(ctx: &CallContext, params: &RawValue) -> Result<(TaskForm, Arc<Task>), HandlerError> {
    find_task_to(ctx, params, false).await
}

/// The same, to cancel it or for something else.
async fn find_task_to(
    ctx: &CallContext,
    params: &RawValue,
    to_cancel: bool,
) -> Result<(TaskForm, Arc<Task>), HandlerError> {
    let form = task_form(ctx)?;
    form.check_declared(Some(params))?;
    let task = look_up(ctx, form, &form::task_id(Some(params))?, to_cancel).await?;
    Ok((form, task.ok_or_else(|| ErrorObject::invalid_params("there is no such task"))?))
}

/// The task with this id, if the peer may see it.
async fn look_up(
    ctx: &CallContext,
    form: TaskForm,
    id: &str,
    to_cancel: bool,
) -> Result<Option<Arc<Task>>, ErrorObject> {
    let known = known_here(ctx, form, id);
    let (None, Some(tasks)) = (&known, &ctx.connection().tasks) else { return Ok(known) };
    let found = tasks.find_recorded(id, principal_of(ctx).as_ref(), to_cancel).await?;
    Ok(found.filter(|task| task.form == form))
}

/// The same of the tasks of this process. It may have a form of its own: one table may serve connections in several dialects.
fn known_here(ctx: &CallContext, form: TaskForm, id: &str) -> Option<Arc<Task>> {
    let tasks = ctx.connection().tasks.as_ref()?;
    tasks.find(id, principal_of(ctx).as_ref()).filter(|task| task.form == form)
}

fn principal_of(ctx: &CallContext) -> Option<Principal> {
    ctx.connection().lock().session.request_principal(ctx.data().key).cloned()
}

/// The form of tasks in the connection's dialect, if it has the method.
fn task_form(ctx: &CallContext) -> Result<TaskForm, ErrorObject> {
    let form = ctx.connection().dialect.rules().tasks.filter(|form| form.has_method(ctx.method()));
    let form = form.filter(|_| ctx.has_declared_tasks());
    form.ok_or_else(|| ErrorObject::new(ErrorCode::METHOD_NOT_FOUND, "Method not found"))
}

/// Ends the work of a task. It is signalled, and the task is `cancelled`, before the answer (I17).
async fn cancel(form: TaskForm, task: &Task) -> Result<Box<RawValue>, HandlerError> {
    let is_first = task.cancel(Cause::new(CauseKind::Peer));
    match form {
        TaskForm::DecidedByServer => Ok(RawValue::from_string("{}".to_owned())?),
        TaskForm::AskedByClient if is_first => {
            Ok(task.reported(TaskForm::status).await.ok_or_else(ErrorObject::internal)?)
        }
        TaskForm::AskedByClient => {
            // Another step has ended it, and is about to report that.
            task.ended().await;
            let status = task.status().name();
            Err(ErrorObject::invalid_params(format_args!("the task is {status} already")).into())
        }
    }
}

/// Waits for the end of a task whose work another process does, by its record. The time between two looks doubles up to the longest.
async fn end_elsewhere(
    ctx: &CallContext,
    form: TaskForm,
    task: &Task,
    longest: Duration,
) -> Result<Arc<Task>, HandlerError> {
    let mut wait = LOOK_AGAIN;
    loop {
        // A store that is away for a moment says nothing about the task.
        if let Ok(found) = look_up(ctx, form, &task.id, false).await {
            let found = found.ok_or_else(|| ErrorObject::invalid_params("there is no such task"))?;
            if found.is_over() {
                return Ok(found);
            }
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(longest);
    }
}

/// Has the process that does the work of a task end it. The answer of 2025-11-25 has the task's end, which is recorded there once
/// the work is signalled (I17).
async fn cancel_elsewhere(
    ctx: &CallContext,
    form: TaskForm,
    task: &Task,
) -> Result<Box<RawValue>, HandlerError> {
    if let Some(tasks) = &ctx.connection().tasks {
        tasks.cancel_elsewhere(task, Cause::new(CauseKind::Peer)).await?;
    }
    if form == TaskForm::DecidedByServer {
        return Ok(RawValue::from_string("{}".to_owned())?);
    }
    let longest = if task.unanswered.is_some() { Duration::ZERO } else { END_ELSEWHERE };
    let ended = ctx.run_until_cancelled(timeout(longest, end_elsewhere(ctx, form, task, LOOK_AGAIN))).await?;
    let Ok(ended) = ended else {
        let why = "the node that does the task was asked to cancel it, and has not recorded its end";
        return Err(ErrorObject::new(ErrorCode::INTERNAL_ERROR, why).into());
    };
    let ended = ended?;
    match ended.status() {
        TaskStatus::Cancelled => Ok(ended.written(TaskForm::status).ok_or_else(ErrorObject::internal)?),
        other => {
            Err(ErrorObject::invalid_params(format_args!("the task is {} already", other.name())).into())
        }
    }
}

/// A task of another process to whose changes a client listens.
struct Elsewhere {
    id: String,
    /// `None`: it is forgotten, or its end is reported.
    task: Option<Arc<Task>>,
    /// Its last state that was reported.
    reported: Option<Box<RawValue>>,
}

impl Elsewhere {
    /// Reports its state if that has changed.
    async fn report(&mut self, ctx: &CallContext) -> Result<(), HandlerError> {
        let Some(task) = &self.task else { return Ok(()) };
        let status = task.written(TaskForm::status).ok_or_else(ErrorObject::internal)?;
        let is_over = task.is_over();
        if self.reported.as_ref().is_none_or(|reported| reported.get() != status.get()) {
            ctx.notify(form::CHANGED, &form::of_subscription(ctx.request_id(), &status)).await?;
            self.reported = Some(status);
        }
        if is_over {
            self.task = None;
        }
        Ok(())
    }
}

/// Looks for tasks at the same time.
async fn look_up_all(
    ctx: &CallContext,
    form: TaskForm,
    ids: impl Iterator<Item = &str>,
) -> Vec<Result<Option<Arc<Task>>, ErrorObject>> {
    let mut found = Vec::new();
    let mut looking: Vec<_> = ids
        .enumerate()
        .map(|(at, id)| Box::pin(async move { (at, look_up(ctx, form, id, false).await) }))
        .collect();
    poll_fn(|context| {
        looking.retain_mut(|look| match look.as_mut().poll(context) {
            Poll::Ready(one) => {
                found.push(one);
                false
            }
            Poll::Pending => true,
        });
        if looking.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, found)| found).collect()
}

/// Reports each change of the tasks that are named on the stream of this request, until all have ended ("Task Status
/// Notifications" of the extension). Those of other processes are asked about again and again.
async fn listen(ctx: &CallContext, params: &RawValue) -> Result<Box<RawValue>, HandlerError> {
    let form = task_form(ctx)?;
    let Some(ids) = form::listened(params)? else {
        return Err(
            ErrorObject::new(ErrorCode::METHOD_NOT_FOUND, "Only the changes of tasks are served").into()
        );
    };
    form.check_declared(Some(params))?;
    let (wake, subscription) = (Arc::new(Notify::new()), ctx.request_id());
    // Each with the number of changes that are reported, until its end is. A task that its table forgets is not kept here.
    let (mut listened, mut others) = (Vec::new(), Vec::new());
    for id in ids {
        if let Some(task) = known_here(ctx, form, &id) {
            task.notify_changes(&wake);
            listened.push((Arc::clone(&task.id), Arc::downgrade(&task), Some(0)));
        } else {
            others.push(id);
        }
    }
    let found = ctx.run_until_cancelled(look_up_all(ctx, form, others.iter().map(String::as_str))).await?;
    let found = others.into_iter().zip(found).filter_map(|(id, found)| Some((id, found.ok()??)));
    let mut elsewhere: Vec<Elsewhere> =
        found.map(|(id, task)| Elsewhere { id, task: Some(task), reported: None }).collect();
    let agreed: Vec<&str> =
        listened.iter().map(|(id, ..)| &**id).chain(elsewhere.iter().map(|other| &*other.id)).collect();
    ctx.notify(form::ACKNOWLEDGED, &form::acknowledged(subscription, &agreed)).await?;
    let (mut wait, mut due) = (LOOK_AGAIN, Instant::now() + LOOK_AGAIN);
    loop {
        for (_, task, reported) in &mut listened {
            let Some(task) = task.upgrade() else {
                *reported = None;
                continue;
            };
            // The state that a client finds when it begins to listen is the first change.
            let changes = task.changes() + 1;
            if *reported == Some(changes) {
                continue;
            }
            let status = task.reported(TaskForm::status).await.ok_or_else(ErrorObject::internal)?;
            drop(task);
            let is_final = form.read_status(&status).is_some_and(|seen| seen.status.is_final());
            *reported = (!is_final).then_some(changes);
            ctx.notify(form::CHANGED, &form::of_subscription(subscription, &status)).await?;
        }
        listened.retain(|(_, _, reported)| reported.is_some());
        for other in &mut elsewhere {
            other.report(ctx).await?;
        }
        elsewhere.retain(|other| other.task.is_some());
        if elsewhere.is_empty() {
            if listened.is_empty() {
                break;
            }
            ctx.run_until_cancelled(wake.notified()).await?;
        } else if ctx.run_until_cancelled(timeout_at(due, wake.notified())).await?.is_err() {
            look_again(ctx, form, &mut elsewhere).await?;
            wait = (wait * 2).min(LONGEST_WAIT);
            due = Instant::now() + wait;
        }
    }
    let ended = form::of_subscription(subscription, &RawValue::from_string("{}".to_owned())?);
    Ok(ended.ok_or_else(ErrorObject::internal)?)
}

/// Looks how tasks of other processes are now.
async fn look_again(
    ctx: &CallContext,
    form: TaskForm,
    elsewhere: &mut [Elsewhere],
) -> Result<(), HandlerError> {
    let ids = elsewhere.iter().map(|other| &*other.id);
    let found = ctx.run_until_cancelled(look_up_all(ctx, form, ids)).await?;
    for (other, found) in elsewhere.iter_mut().zip(found) {
        // A store that is away for a moment says nothing about the task.
        if let Ok(found) = found {
            other.task = found;
        }
    }
    Ok(())
}

/// A page of the principal's tasks. Without a principal there is no list: whoever knows an id may use it.
async fn list(ctx: &CallContext, params: &RawValue) -> Result<Box<RawValue>, HandlerError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Page {
        tasks: Vec<Box<RawValue>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        next_cursor: Option<String>,
    }
    task_form(ctx)?;
    let (Some(tasks), Some(principal)) = (&ctx.connection().tasks, principal_of(ctx)) else {
        return Err(ErrorObject::new(ErrorCode::METHOD_NOT_FOUND, "Method not found").into());
    };
    let after = form::member(Some(params), "cursor").map(|cursor| {
        serde_json::from_str::<&str>(cursor.get())
            .ok()
            .and_then(|cursor| tasks.read_cursor(cursor, &principal))
            .ok_or_else(|| ErrorObject::invalid_params("`cursor` is not of this server"))
    });
    let (listed, more) = tasks.page(&principal, after.transpose()?).await;
    let next_cursor = listed.last().filter(|_| more).map(|last| tasks.cursor(&last.at, &principal));
    let tasks = listed.into_iter().map(|task| task.status).collect();
    Ok(serde_json::value::to_raw_value(&Page { tasks, next_cursor })?)
}
