//! The handlers of a run.

use std::time::Duration;

use rescind_core::{
    CallContext, Cause, CauseKind, ErrorCode, ErrorObject, HandlerError, Outcome, Peer, Router,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::calls;
use super::judge::Judge;
use super::observations::WorkEnd;
use super::plan::{Job, Work};
use super::sides::Side;

/// The only method of a run. Its work is in its params.
pub(super) const METHOD: &str = "sim/work";
/// Its notification.
pub(super) const TICK: &str = "sim/tick";

/// The methods of a side.
pub(super) fn router(side: Side, judge: &Judge) -> Router {
    let (for_work, opening) = (judge.clone(), judge.state().speech.opening_result());
    Router::new()
        .method("initialize", move |_: CallContext, _: Value| {
            let answer = opening.clone();
            async move { Ok::<_, HandlerError>(answer) }
        })
        .method(METHOD, move |ctx: CallContext, job: Job| {
            let judge = for_work.clone();
            async move {
                let mut life = Life { judge: judge.clone(), side, nonce: job.nonce, end: WorkEnd::Dropped };
                judge.enters(side, &job, &ctx);
                let done = act(side, &judge, &ctx, &job).await;
                life.end = match &done {
                    Done::Value => WorkEnd::Value,
                    Done::Stopped(_) => WorkEnd::Stopped,
                    Done::Failed => WorkEnd::Failed,
                    Done::Panics => WorkEnd::Panicked,
                };
                drop(life);
                done.into_result(job.nonce)
            }
        })
        .notification_fallback(|_: Peer, _, _: Value| async {})
}

/// A handler's future, from its first poll to its end.
struct Life {
    judge: Judge,
    side: Side,
    nonce: u64,
    end: WorkEnd,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.judge.leaves(self.side, self.nonce, self.end);
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
                calls::call(side, judge, calls::From::Handler { ctx, parent: job.nonce }, child).await;
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
            let from = calls::From::Handler { ctx, parent: job.nonce };
            match calls::call(side, judge, from, child).await {
                Some(Outcome::Cancelled(cancelled)) => Done::Stopped(cancelled.cause),
                Some(_) | None => Done::Value,
            }
        }
        Work::Abandons => {
            let Some(child) = &job.child else { return Done::Value };
            calls::abandon(side, judge, ctx, job.nonce, child);
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
