//! The handlers and the callers of a run.

use std::pin::{Pin, pin};
use std::time::Duration;

use rescind_core::{
    AfterCancel, Call, CallBuilder, CallContext, Cause, CauseKind, ErrorCode, ErrorObject, HandlerError,
    NotATask, Outcome, Peer, Router,
};
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::call_checks::Left;
use super::judge::{Judge, WorkEnd};
use super::plan::{Caller, Job, Side, Work};

/// The method of all calls of a run. Its work is in its params.
const METHOD: &str = "sim/work";
/// The method whose requests become tasks, with the same params.
pub(super) const START: &str = "tools/call";
/// Its notification.
pub(super) const TICK: &str = "sim/tick";

/// The methods of a side.
pub(super) fn router(side: Side, judge: &Judge) -> Router {
    let (kept, opening) = {
        let state = judge.state();
        (state.kept.clone().filter(|_| side == Side::Server), state.speech.opening_result())
    };
    let opening = if kept.is_some() { with_tasks(opening) } else { opening };
    let router = Router::new()
        .method("initialize", move |_: CallContext, _: Value| {
            let answer = opening.clone();
            async move { Ok::<_, HandlerError>(answer) }
        })
        .method(METHOD, serve(side, judge))
        .notification_fallback(|_: Peer, _, _: Value| async {});
    match kept {
        Some(kept) => router.method(START, serve(side, judge)).tasks(&kept),
        None => router,
    }
}

/// A server's answer to the handshake that declares tasks.
fn with_tasks(mut opening: Value) -> Value {
    if let Some(capabilities) = opening.get_mut("capabilities").and_then(Value::as_object_mut) {
        let requests = json!({ "tools": { "call": {} } });
        capabilities.insert("tasks".to_owned(), json!({ "cancel": {}, "requests": requests }));
    }
    opening
}

type Served = Pin<Box<dyn Future<Output = Result<Value, HandlerError>> + Send>>;

fn serve(side: Side, judge: &Judge) -> impl Fn(CallContext, Job) -> Served + Send + Sync + 'static + use<> {
    let judge = judge.clone();
    move |ctx, job| {
        let judge = judge.clone();
        Box::pin(async move {
            let end = WorkEnd::Dropped;
            let mut life = Life { judge: judge.clone(), side, nonce: job.nonce, end, is_task: false };
            judge.enters(side, &job, &ctx);
            let goes_on = match job.becomes_task {
                Some(after) => become_task(&judge, &ctx, &job, after).await,
                None => true,
            };
            life.is_task = ctx.task_id().is_some();
            let done = if goes_on {
                act(side, &judge, &ctx, &job).await
            } else {
                Done::Stopped(ctx.cancelled().await)
            };
            life.end = match &done {
                Done::Value => WorkEnd::Value,
                Done::Stopped(_) => WorkEnd::Stopped,
                Done::Failed => WorkEnd::Failed,
                Done::Panics => WorkEnd::Panicked,
            };
            drop(life);
            done.into_result(job.nonce)
        })
    }
}

/// A handler's future, from its first poll to its end.
struct Life {
    judge: Judge,
    side: Side,
    nonce: u64,
    end: WorkEnd,
    is_task: bool,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.judge.leaves(self.side, self.nonce, self.end, self.is_task);
    }
}

enum Done {
    Value,
    Stopped(Cause),
    Failed,
    Panics,
}

impl Done {
    fn into_result(self, nonce: u64) -> Result<Value, HandlerError> {
        match self {
            Self::Value => Ok(json!({ "nonce": nonce })),
            Self::Stopped(cause) => Err(HandlerError::stopped(cause)),
            Self::Failed => Err(ErrorObject::new(ErrorCode(-31_000), "sim failed").into()),
            // Like a panic, but without a message on the terminal.
            Self::Panics => std::panic::resume_unwind(Box::new("sim panics")),
        }
    }
}

/// I2: a notification after the answer is refused.
fn notify(side: Side, judge: &Judge, ctx: &CallContext, nonce: u64) {
    let taken = ctx.try_notify(TICK, &json!({ "nonce": nonce })).is_ok();
    judge.state().check_notified(side, nonce, taken);
}

/// Makes the request a task. `false`: its handler was cancelled before.
async fn become_task(judge: &Judge, ctx: &CallContext, job: &Job, after: u64) -> bool {
    if after > 0 {
        tokio::select! {
            biased;
            _ = ctx.cancelled() => return false,
            () = sleep(Duration::from_millis(after)) => {}
        }
    }
    let nonce = job.nonce;
    match ctx.become_task() {
        Ok(id) => judge.state().becomes_task(nonce, id),
        Err(NotATask::Ended(Some(_))) => return false,
        // Its connection ends, or there are too many: it goes on as a request.
        Err(why @ (NotATask::Ended(None) | NotATask::TooMany)) => {
            judge.note(|| format!("{nonce} does not become a task: {why}"));
        }
        Err(why) => {
            judge.breaks("I1", || format!("{nonce} asks for a task, and does not become one: {why}"));
        }
    }
    true
}

async fn act(side: Side, judge: &Judge, ctx: &CallContext, job: &Job) -> Done {
    let time = Duration::from_millis(job.ms);
    match job.work {
        Work::Quick => Done::Value,
        Work::Sleep => tokio::select! {
            biased;
            cause = ctx.cancelled() => Done::Stopped(cause),
            () = sleep(time) => Done::Value,
        },
        Work::Wait => {
            let cause = ctx.cancelled().await;
            if let Some(child) = &job.child {
                // I5: it is cancelled before it starts, and nothing of it is written.
                call(side, judge, CallFrom::Handler { ctx, parent: job.nonce }, child).await;
            }
            Done::Stopped(cause)
        }
        Work::Partial => {
            ctx.cancelled().await;
            Done::Value
        }
        Work::Ignore => {
            sleep(time).await;
            Done::Value
        }
        Work::Deaf => std::future::pending().await,
        Work::Fail => {
            sleep(time).await;
            Done::Failed
        }
        Work::Panic => {
            sleep(time).await;
            Done::Panics
        }
        Work::Nested => {
            let Some(child) = &job.child else { return Done::Value };
            let from = CallFrom::Handler { ctx, parent: job.nonce };
            match call(side, judge, from, child).await {
                Some(Outcome::Cancelled(cancelled)) => Done::Stopped(cancelled.cause),
                Some(_) | None => Done::Value,
            }
        }
        Work::Abandons => {
            let Some(child) = &job.child else { return Done::Value };
            abandon(side, judge, ctx, job.nonce, child);
            sleep(time).await;
            Done::Value
        }
        Work::Progress => {
            for _ in 0..4 {
                notify(side, judge, ctx, job.nonce);
                sleep(time / 4).await;
            }
            Done::Value
        }
        Work::Straggler => {
            let (judge, ctx, nonce) = (judge.clone(), ctx.clone(), job.nonce);
            tokio::spawn(async move {
                for _ in 0..4 {
                    notify(side, &judge, &ctx, nonce);
                    sleep(time / 2).await;
                }
            });
            sleep(time).await;
            Done::Value
        }
        Work::Shield => {
            ctx.shield(async {
                let before = ctx.is_cancelled();
                sleep(time).await;
                judge.shielded(side, job, !before && ctx.is_cancelled());
            })
            .await;
            tokio::task::yield_now().await;
            match ctx.cause() {
                Some(cause) => Done::Stopped(cause),
                None => Done::Value,
            }
        }
        Work::Local => {
            sleep(time).await;
            ctx.cancel_local(Cause::new(CauseKind::Local));
            Done::Stopped(ctx.cancelled().await)
        }
    }
}

// The behaviour of the callers of a run.

/// The origin of a call.
#[derive(Clone, Copy)]
pub(super) enum CallFrom<'a> {
    Peer(&'a Peer),
    Handler { ctx: &'a CallContext, parent: u64 },
}

impl CallFrom<'_> {
    fn builder(self, judge: &Judge, job: &Job) -> CallBuilder<Value> {
        let params = params(judge, job);
        match self {
            Self::Peer(peer) => peer.call(METHOD, &params),
            Self::Handler { ctx, .. } => ctx.call(METHOD, &params),
        }
    }

    const fn parent(self) -> Option<u64> {
        match self {
            Self::Peer(_) => None,
            Self::Handler { parent, .. } => Some(parent),
        }
    }

    fn is_cancelled(self) -> bool {
        match self {
            Self::Peer(_) => false,
            Self::Handler { ctx, .. } => ctx.is_cancelled(),
        }
    }
}

fn params(judge: &Judge, job: &Job) -> Value {
    let params = serde_json::to_value(job).unwrap_or_default();
    judge.state().speech.params(params)
}

/// Starts a call. `None`: it was refused, which the judge has recorded.
fn begin(
    side: Side,
    judge: &Judge,
    from: CallFrom<'_>,
    job: &Job,
) -> Option<(Call<Value>, CancellationToken)> {
    let token = CancellationToken::new();
    let mut builder = from.builder(judge, job);
    match job.caller {
        Caller::Deadline(ms) => builder = builder.timeout(Duration::from_millis(ms)),
        Caller::Leaves(_) => builder = builder.after_cancel(AfterCancel::ReturnNow),
        Caller::Token(_) => builder = builder.cancel_on(token.clone()),
        Caller::Never => {
            token.cancel();
            builder = builder.cancel_on(token.clone());
        }
        Caller::Waits
        | Caller::Cancels(_)
        | Caller::CancelsTwice(_)
        | Caller::Drops(_)
        | Caller::Detaches => {}
    }
    judge.begins(side, job, from.parent(), from.is_cancelled());
    match builder.start() {
        Ok(call) => Some((call, token)),
        Err(error) => {
            judge.refused(job.nonce, &error);
            None
        }
    }
}

/// Makes a call and does what its caller does. `None`: no caller waited for its end.
///
/// # Cancel safety
/// Dropping the future drops the call.
pub(super) async fn call(side: Side, judge: &Judge, from: CallFrom<'_>, job: &Job) -> Option<Outcome<Value>> {
    let nonce = job.nonce;
    let (call, token) = begin(side, judge, from, job)?;
    let canceller = call.canceller();
    let mut watch = Watch { judge: judge.clone(), nonce, over: false };
    let after = match job.caller {
        Caller::Cancels(ms)
        | Caller::CancelsTwice(ms)
        | Caller::Leaves(ms)
        | Caller::Drops(ms)
        | Caller::Token(ms) => Some(Duration::from_millis(ms)),
        Caller::Waits | Caller::Deadline(_) | Caller::Never => None,
        Caller::Detaches => {
            judge.leaves_call(nonce, Left::Detached);
            call.detach();
            watch.over = true;
            return None;
        }
    };
    let mut outcome = pin!(call.outcome());
    let early = match after {
        // Before the driver's first turn: the request is taken back.
        Some(Duration::ZERO) => None,
        Some(after) => tokio::select! {
            biased;
            outcome = outcome.as_mut() => Some(outcome),
            () = sleep(after) => None,
        },
        None => Some(outcome.as_mut().await),
    };
    let outcome = match (early, job.caller) {
        (Some(outcome), _) => outcome,
        (None, Caller::Drops(_)) => return None,
        (None, Caller::Token(_)) => {
            judge.note(|| format!("{nonce} is cancelled by its token"));
            token.cancel();
            outcome.await
        }
        (None, Caller::CancelsTwice(ms)) => {
            judge.cancels(nonce, canceller.cancel("first"));
            let soon = sleep(Duration::from_millis(ms));
            let early = tokio::select! {
                biased;
                outcome = outcome.as_mut() => Some(outcome),
                () = soon => None,
            };
            judge.cancels(nonce, canceller.cancel("second"));
            match early {
                Some(outcome) => outcome,
                None => outcome.await,
            }
        }
        (None, _) => {
            judge.cancels(nonce, canceller.cancel("enough"));
            outcome.await
        }
    };
    watch.over = true;
    judge.returns(nonce, &outcome);
    // I7, and ABP-31: after the call has ended, a canceller does nothing.
    let late = canceller.cancel("late");
    let mut state = judge.state();
    let second = state.calls.get(&nonce).is_some_and(|call| call.result.is_some());
    state.holds_and_counts(second, late == rescind_core::CancelResult::AlreadySettled, "I7", || {
        format!("{nonce} had returned, and a cancel was {late:?}")
    });
    drop(state);
    Some(outcome)
}

/// A handler makes a call and ends before the call does: the call is then cancelled.
fn abandon(side: Side, judge: &Judge, ctx: &CallContext, parent: u64, job: &Job) {
    let from = CallFrom::Handler { ctx, parent };
    let Some((call, _token)) = begin(side, judge, from, job) else { return };
    let (judge, nonce) = (judge.clone(), job.nonce);
    tokio::spawn(async move {
        let outcome = call.outcome().await;
        judge.returns(nonce, &outcome);
    });
}

/// Reports to the judge that a call was dropped, by its caller or with it.
struct Watch {
    judge: Judge,
    nonce: u64,
    over: bool,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.over {
            self.judge.leaves_call(self.nonce, Left::Dropped);
        }
    }
}
