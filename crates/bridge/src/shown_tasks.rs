//! A task of the server among the requests that a log records, with what stops it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rescind_core::{CallContext, Cause, CauseKind, ErrorObject, HandlerError, LogText, Outcome, UseMark};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::session::Session;
use crate::tasks::{NewTask, TaskClient, TaskEnd};

const CANCEL: &str = "tasks/cancel";

/// How long the answer to a `tasks/cancel` of an operator is waited for.
const CANCEL_TIME: Duration = Duration::from_secs(30);
/// The most bytes of the params of a request whose task is shown. They count for its connection as long as it is a task; so
/// shown tasks count for at most half of the default of [`Limits::max_memory_bytes`](rescind_core::Limits::max_memory_bytes).
const MAX_PARAMS_BYTES: usize = 32 * 1024;

/// The params of a question about a task.
#[derive(Serialize)]
pub(crate) struct Question {
    #[serde(rename = "taskId")]
    id: serde_json::Value,
    /// What the client declares with each request (MCP 2026-07-28).
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<BTreeMap<String, Box<RawValue>>>,
}

impl Question {
    /// About the task that a request with these params became. `None`: the task is not shown.
    pub(crate) fn about(id: serde_json::Value, params: &RawValue) -> Option<Self> {
        #[derive(Deserialize)]
        struct Params<'a> {
            #[serde(borrow, rename = "_meta")]
            meta: Option<&'a RawValue>,
        }
        if params.get().len() > MAX_PARAMS_BYTES {
            return None;
        }
        let meta = serde_json::from_str::<Params<'_>>(params.get()).ok().and_then(|params| params.meta);
        let mut meta: Option<BTreeMap<String, Box<RawValue>>> =
            meta.and_then(|meta| serde_json::from_str(meta.get()).ok());
        if let Some(meta) = &mut meta {
            // It is the token of that request.
            meta.remove("progressToken");
        }
        Some(Self { id, meta })
    }
}

/// Answers the request with the handle of its task. The log shows the request until the task has ended. If an operator stops
/// it there, the server gets `tasks/cancel`.
///
/// # Errors
/// The task was cancelled, or has failed.
pub(crate) async fn show(
    session: &Arc<Session>,
    ctx: &CallContext,
    (handle, task): (Box<RawValue>, NewTask),
    question: Question,
) -> Result<Box<RawValue>, HandlerError> {
    if let Err(handle) = ctx.pass_task(handle) {
        return Ok(handle);
    }
    let cancelled = |kind| {
        ctx.passed_task_cancelled(Cause::new(kind));
        ctx.stopped(Cause::new(kind))
    };
    tokio::select! {
        biased;
        cause = ctx.cancelled() => {
            if cause.kind() == CauseKind::Operator {
                // It goes on if this handler is aborted.
                let _ended = tokio::spawn(stop(Arc::clone(session), session.client(&ctx.peer()), question)).await;
            }
            ctx.stopped(cause)
        }
        end = task.ended() => match end {
            Some(TaskEnd::Completed) => Ok(RawValue::NULL.to_owned()),
            Some(TaskEnd::Failed(code)) => Err(ErrorObject::new(code, "the task has failed").into()),
            Some(TaskEnd::Cancelled) => cancelled(CauseKind::Peer),
            None => cancelled(CauseKind::Deadline),
        },
        () = session.over() => cancelled(CauseKind::Disconnected),
    }
}

/// Sends `tasks/cancel` to the server.
async fn stop(session: Arc<Session>, client: TaskClient, question: Question) {
    let Some(upstream) = session.open_upstream() else { return };
    let Ok(question) = serde_json::value::to_raw_value(&question) else { return };
    let call = upstream.call::<_, Box<RawValue>>(CANCEL, &question).timeout(CANCEL_TIME);
    let outcome = match call.start() {
        Ok(call) => call.outcome().await,
        Err(error) => return tracing::warn!(%error, "an operator's `tasks/cancel` was not sent"),
    };
    match outcome {
        Outcome::Completed(answer) | Outcome::CompletedAfterCancel(answer) => {
            let request = (CANCEL, &*question);
            session.tasks().answered(session.upstream_dialect(), &client, request, answer, UseMark::default);
        }
        Outcome::Failed(error) => {
            session.tasks().refused(session.upstream_dialect(), &client, (CANCEL, &question), &error);
            let error = LogText::text(&error.message).to_string();
            tracing::warn!(%error, "the server refused an operator's `tasks/cancel`");
        }
        _ => tracing::warn!("an operator's `tasks/cancel` has no answer"),
    }
}
