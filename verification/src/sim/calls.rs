//! The behaviour of the callers of a run.

use std::pin::pin;
use std::time::Duration;

use rescind_core::{AfterCancel, Call, CallBuilder, CallContext, Outcome, Peer};
use serde_json::Value;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::callers::Left;
use super::judge::Judge;
use super::plan::{Caller, Job};
use super::sides::Side;
use super::work::METHOD;

/// The origin of a call.
#[derive(Clone, Copy)]
pub(super) enum From<'a> {
    Peer(&'a Peer),
    Handler { ctx: &'a CallContext, parent: u64 },
}

impl From<'_> {
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
fn begin(side: Side, judge: &Judge, from: From<'_>, job: &Job) -> Option<(Call<Value>, CancellationToken)> {
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
pub(super) async fn call(side: Side, judge: &Judge, from: From<'_>, job: &Job) -> Option<Outcome<Value>> {
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
pub(super) fn abandon(side: Side, judge: &Judge, ctx: &CallContext, parent: u64, job: &Job) {
    let from = From::Handler { ctx, parent };
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
