//! Passes requests and notifications from one side of a session to the other.

use std::sync::Arc;

use rescind_core::{
    Call, CallContext, CallError, Cause, CauseKind, ErrorCode, ErrorObject, HandlerError, LogText, Outcome,
    Peer, Router,
};
use serde_json::value::RawValue;

use crate::session::{CLIENT, Routers, Session};
use crate::shown_tasks::{self, Question};
use crate::subscriptions::SubscriptionOf;
use crate::tasks::NewTask;

/// Unread notifications of the upstream side at which reading from it stops, until the downstream side has taken half
/// of them.
const READ_AHEAD: usize = 256;

type Answer = Result<Box<RawValue>, HandlerError>;

/// Passes the messages of each side to the other.
pub(crate) const ROUTERS: Routers = Routers { downstream: downstream_router, upstream: upstream_router };

/// Passes messages of the downstream side to the upstream side.
fn downstream_router(session: &Arc<Session>) -> Router {
    let (requests, notifications) = (Arc::clone(session), Arc::clone(session));
    Router::new()
        .in_order()
        .fallback(move |ctx: CallContext, params: Box<RawValue>| {
            let session = Arc::clone(&requests);
            async move { ask_upstream(&session, ctx, params).await }
        })
        .notification_fallback(move |peer, method, params: Box<RawValue>| {
            let session = Arc::clone(&notifications);
            async move { tell_upstream(&session, &peer, method, &params).await }
        })
}

/// Passes messages of the upstream side to the downstream side.
fn upstream_router(session: &Arc<Session>, downstream: &Peer) -> Router {
    let (requests, notifications) = (Arc::clone(session), Arc::clone(session));
    let (asked, told) = (downstream.clone(), downstream.clone());
    Router::new()
        .in_order()
        .pause_reading_at(READ_AHEAD)
        .fallback(move |ctx: CallContext, params: Box<RawValue>| {
            let (session, downstream) = (Arc::clone(&requests), asked.clone());
            async move { ask(&session, &downstream, &ctx, &params).await }
        })
        .notification_fallback(move |_, method, params: Box<RawValue>| {
            let (session, downstream) = (Arc::clone(&notifications), told.clone());
            async move {
                let client = session.client(&downstream);
                session.tasks().notified(session.upstream_dialect(), &client, &method, &params);
                tell_downstream(&session, &downstream, method, &params).await;
            }
        })
}

async fn ask_upstream(session: &Arc<Session>, ctx: CallContext, params: Box<RawValue>) -> Answer {
    let (answer, task) = upstream_answer(session, &ctx, &params).await?;
    let Some(task) = task.filter(|_| session.is_shown()) else { return Ok(answer) };
    let Some(question) = Question::about(task.id.clone(), &params) else { return Ok(answer) };
    // A task may run for long.
    drop(params);
    shown_tasks::show(session, &ctx, (answer, task), question).await
}

/// The answer of the upstream, and the task that it has made of the request.
async fn upstream_answer(
    session: &Arc<Session>,
    ctx: &CallContext,
    params: &RawValue,
) -> Result<(Box<RawValue>, Option<NewTask>), HandlerError> {
    let _open = session.count_open();
    let _token = session.downstream_tokens.register(ctx);
    let (tasks, dialect, client) = (session.tasks(), session.upstream_dialect(), session.client(&ctx.peer()));
    tasks.check(dialect, &client, ctx.method(), params)?;
    let start = async {
        // Taken in the order of arrival, also while the upstream is being opened.
        let _turn = session.turns.lock().await;
        let upstream = session.upstream(|| ctx.peer()).await.map_err(|lost| failed(&lost))?;
        session.subscriptions.start(
            ctx,
            dialect,
            || start(&upstream, ctx, params),
            |started| started.call.id(),
        )
    };
    let (call, subscription) = ctx.run_until_cancelled(start).await??;
    let exchange = if session.may_fail_alone() { call.call.exchange() } else { None };
    let lost = async || {
        let why = session.lost(exchange).await;
        if exchange.is_some() { named(ctx, &why).into() } else { why }
    };
    let request = (ctx.method(), params);
    let refused = |error: &ErrorObject| tasks.refused(dialect, &client, request, error);
    let mut answer = answer(ctx, call, session.upstream_name(), refused, lost).await?;
    if let Some(subscription) = subscription {
        answer = subscription.answered(ctx, answer);
    }
    Ok(tasks.answered(dialect, &client, request, answer, || ctx.peer().use_mark()))
}

async fn ask(session: &Arc<Session>, to: &Peer, ctx: &CallContext, params: &RawValue) -> Answer {
    answer(ctx, start(to, ctx, params)?, CLIENT, |_| {}, || session.client_lost()).await
}

/// A call to the other side.
struct Started {
    call: Call<Box<RawValue>>,
    /// Its request was cancelled before it could be passed on, so the call is not its child.
    late: bool,
}

/// The call to the other side, as a child of the request received.
///
/// A child of a cancelled request would not be sent. A cancel that the caller wrote directly after its request must have
/// the result that it has without a bridge: the other side gets both and answers. So such a call is no child.
fn start(to: &Peer, ctx: &CallContext, params: &RawValue) -> Result<Started, HandlerError> {
    let call = to.call(ctx.method(), params).no_timeout().in_order();
    let late = ctx.cause().is_some_and(|cause| cause.kind() == CauseKind::Peer);
    let call = if late { call } else { call.child_of(ctx) };
    let started = call.start().map_err(|error| match error {
        CallError::TooMany { .. } | CallError::Params { .. } => failed(&error.to_string()),
        error => error.into(),
    });
    Ok(Started { call: started?, late })
}

/// Waits for the answer of the other side, which has this name in errors. `refused`: it answers with an error, and was not asked to
/// cancel. `lost`: why it did not answer.
async fn answer<L: Future<Output = Arc<str>>>(
    ctx: &CallContext,
    started: Started,
    other: &str,
    refused: impl FnOnce(&ErrorObject),
    lost: impl FnOnce() -> L,
) -> Answer {
    let Started { call, late } = started;
    if late {
        // In this turn the other connection's task writes the request, if its transport has room.
        tokio::task::yield_now().await;
        call.canceller().cancel_because(Cause::new(CauseKind::Parent));
    }
    match call.outcome().await {
        Outcome::Completed(value) | Outcome::CompletedAfterCancel(value) => Ok(value),
        Outcome::Failed(error) => {
            if !ctx.is_cancelled() {
                refused(&error);
            }
            Err(error_of(ctx, error))
        }
        // The session has ended on this side.
        Outcome::Cancelled(cancelled)
            if cancelled.cause.kind() == CauseKind::Shutdown && !ctx.is_cancelled() =>
        {
            Err(failed(&lost().await))
        }
        Outcome::Cancelled(cancelled) => ctx.stopped(ctx.cause().unwrap_or(cancelled.cause)),
        Outcome::Unreadable { what } => {
            Err(failed(&named(ctx, &format!("the answer of {other} cannot be passed on: {what}"))))
        }
        Outcome::Disconnected { .. } => Err(failed(&lost().await)),
        _ => Err(failed("the request ended in a way that the bridge does not know")),
    }
}

/// The other side's error. "Cancelled" answers only a cancel that came from the caller: another cancel, for example by
/// a shutdown of the bridge, has an answer of its own in some dialects.
fn error_of(ctx: &CallContext, error: ErrorObject) -> HandlerError {
    match ctx.cause() {
        Some(cause) if cause.kind() != CauseKind::Peer && error.code == ErrorCode::REQUEST_CANCELLED => {
            cause.into()
        }
        _ => error.into(),
    }
}

/// Why a request alone has failed, with its id as its caller wrote it.
fn named(ctx: &CallContext, what: &str) -> String {
    format!("{what} (request {})", ctx.request_id())
}

fn failed(what: &str) -> HandlerError {
    ErrorObject::new(ErrorCode::INTERNAL_ERROR, what).into()
}

async fn tell_upstream(session: &Arc<Session>, from: &Peer, method: Arc<str>, params: &RawValue) {
    // The session passes it on when the connection has closed, which this notification causes.
    if session.ends_with(&method) {
        return;
    }
    let _turn = session.turns.lock().await;
    let Ok(upstream) = session.upstream(|| from.clone()).await else { return };
    told(upstream.notify(method, params).await);
}

async fn tell_downstream(session: &Arc<Session>, to: &Peer, method: Arc<str>, params: &RawValue) {
    match session.subscriptions.subscription_of(to.dialect(), params) {
        SubscriptionOf::Open(request, params) => return told(request.notify(method, &params).await),
        SubscriptionOf::Ended => return,
        SubscriptionOf::None => {}
    }
    match session.downstream_tokens.reported(to.dialect(), &method, params) {
        // Progress of a request that has ended is of no use to anyone.
        Some(request) => told(request.notify(method, params).await),
        None => told(to.notify(method, params).await),
    }
}

/// A notification that cannot be passed on is lost, as it would be without a bridge: its reader has gone.
fn told(told: Result<(), CallError>) {
    if let Err(error) = told {
        tracing::debug!(error = %LogText::text(&error), "a notification was not passed on");
    }
}
