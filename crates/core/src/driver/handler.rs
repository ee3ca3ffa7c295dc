//! How a handler ends when it has no value, and the task it runs as.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use pin_project_lite::pin_project;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};

use super::context::CallContext;
use super::outbox::Answer;
use super::task_guard::Guard;
use crate::cause::Cause;
use crate::error::CallError;
use crate::machine::{HandlerResult, Work};
use crate::message::ErrorObject;
use crate::sync::{AbortHandle, Handle};

/// The request was cancelled and its handler stops. Made by [`CallContext::check`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request was cancelled: {0}")]
pub struct Stopped(pub Cause);

/// Why a handler has no value.
///
/// Any error turns into one with `?`. An [`ErrorObject`] is answered as it is; [`Stopped`], and a [`CallError`] that
/// says a child was cancelled, give the dialect's cancelled answer; what a child's peer answered is passed on; every
/// other error is answered `INTERNAL_ERROR` without its text, which goes to the trace.
pub struct HandlerError(Repr);

enum Repr {
    Stopped(Cause),
    Answered(ErrorObject),
    Other(Box<dyn Error + Send + Sync>),
}

impl HandlerError {
    /// The handler stopped because of its cancel.
    #[must_use]
    pub const fn stopped(cause: Cause) -> Self {
        Self(Repr::Stopped(cause))
    }

    /// An error of any type, in a box.
    #[must_use]
    pub fn from_boxed(error: Box<dyn Error + Send + Sync>) -> Self {
        let error = match error.downcast::<ErrorObject>() {
            Ok(error) => return Self(Repr::Answered(*error)),
            Err(error) => error,
        };
        let error = match error.downcast::<Stopped>() {
            Ok(stopped) => return Self(Repr::Stopped(stopped.0)),
            Err(error) => error,
        };
        match error.downcast::<CallError>() {
            Ok(error) => match *error {
                CallError::Cancelled(cancelled) => Self(Repr::Stopped(cancelled.cause)),
                CallError::Failed(error) => Self(Repr::Answered(error)),
                error => Self(Repr::Other(Box::new(error))),
            },
            Err(error) => Self(Repr::Other(error)),
        }
    }

    fn into_answer(self) -> (HandlerResult, Answer) {
        match self.0 {
            Repr::Stopped(_) => (HandlerResult::Stopped, Answer::Error(ErrorObject::internal())),
            Repr::Answered(error) => (HandlerResult::Error, Answer::Error(error)),
            Repr::Other(error) => {
                tracing::debug!(error = %crate::shown::Shown::text(&error), "a handler failed");
                (HandlerResult::Error, Answer::Error(ErrorObject::internal()))
            }
        }
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self::from_boxed(Box::new(error))
    }
}

/// For `Err(cause)?`: the handler stopped because of its cancel.
impl From<Cause> for HandlerError {
    fn from(cause: Cause) -> Self {
        Self::stopped(cause)
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Stopped(cause) => f.debug_tuple("Stopped").field(cause).finish(),
            Repr::Answered(error) => f.debug_tuple("Answered").field(error).finish(),
            Repr::Other(error) => f.debug_tuple("Other").field(error).finish(),
        }
    }
}

/// What a request's handler is started with.
pub(super) struct Job {
    pub(super) guard: Guard,
    pub(super) params: Option<Bytes>,
}

/// A method's handler with its types erased.
pub(super) trait Handler: Send + Sync {
    fn work(&self) -> Work;
    fn start(&self, job: Job, runtime: &Handle) -> AbortHandle;
}

/// A handler that runs as a task.
pub(super) struct AsyncHandler<F, P> {
    function: Arc<F>,
    params: PhantomData<fn(P)>,
}

impl<F, P> AsyncHandler<F, P> {
    pub(super) fn new(function: F) -> Self {
        Self { function: Arc::new(function), params: PhantomData }
    }
}

impl<F, P, R, Fut> Handler for AsyncHandler<F, P>
where
    F: Fn(CallContext, P) -> Fut + Send + Sync + 'static,
    P: DeserializeOwned + Send + 'static,
    Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    R: Serialize + Send + 'static,
{
    fn work(&self) -> Work {
        Work::Task
    }

    fn start(&self, job: Job, runtime: &Handle) -> AbortHandle {
        let Job { guard, params } = job;
        let stage = Stage::Begin { function: Arc::clone(&self.function), params };
        runtime.spawn(Running { stage, guard, params: PhantomData::<fn(P)> }).abort_handle()
    }
}

pin_project! {
    /// The task of a handler. It is written by hand so that a request in flight holds the user's future, what tells its
    /// end, and no more: an `async` block keeps room for what it has let go of.
    ///
    /// The fields are dropped in their order: a permit is not free while the user's future lives.
    struct Running<F, P, Fut> {
        #[pin]
        stage: Stage<F, Fut>,
        guard: Guard,
        params: PhantomData<fn(P)>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<F, Fut> {
        Begin { function: Arc<F>, params: Option<Bytes> },
        User { #[pin] future: Fut },
        Offer { end: HandlerResult, answer: Option<Answer> },
        Done,
    }
}

impl<F, P, R, Fut> Future for Running<F, P, Fut>
where
    F: Fn(CallContext, P) -> Fut,
    P: DeserializeOwned,
    Fut: Future<Output = Result<R, HandlerError>>,
    R: Serialize,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let guard = &*this.guard;
        loop {
            let (end, answer) = match this.stage.as_mut().project() {
                StageProjection::Begin { function, params } => match read_params::<P>(params.take()) {
                    Ok(params) => {
                        guard.open_span();
                        let context = guard.context();
                        let enter = AssertUnwindSafe(|| function(context, params));
                        match guard.enter(|| catch_unwind(enter)) {
                            Ok(future) => {
                                this.stage.set(Stage::User { future });
                                continue;
                            }
                            Err(panic) => ended(guard, Err(panic)),
                        }
                    }
                    Err(error) => (HandlerResult::Error, Answer::Error(error)),
                },
                StageProjection::User { mut future } => {
                    let work = AssertUnwindSafe(|| future.as_mut().poll(cx).map(answer_of));
                    let polled = guard.enter(|| catch_unwind(work));
                    guard.begin();
                    match polled {
                        Ok(Poll::Pending) => return Poll::Pending,
                        Ok(Poll::Ready(end)) => ended(guard, Ok(end)),
                        Err(panic) => ended(guard, Err(panic)),
                    }
                }
                StageProjection::Offer { end, answer } => {
                    ready!(guard.poll_offer(*end, answer, cx));
                    this.stage.set(Stage::Done);
                    return Poll::Ready(());
                }
                StageProjection::Done => return Poll::Ready(()),
            };
            guard.begin();
            let answer = Some(guard.fit(answer));
            // The user's future is dropped here, before its end is told.
            this.stage.set(Stage::Offer { end, answer });
        }
    }
}

fn ended(
    guard: &Guard,
    ended: Result<(HandlerResult, Answer), Box<dyn Any + Send>>,
) -> (HandlerResult, Answer) {
    let ended = end_of(ended);
    guard.close_span(ended.0);
    ended
}

/// A handler that runs on a thread of the blocking pool.
pub(super) struct BlockingHandler<F, P> {
    function: Arc<F>,
    params: PhantomData<fn(P)>,
}

impl<F, P> BlockingHandler<F, P> {
    pub(super) fn new(function: F) -> Self {
        Self { function: Arc::new(function), params: PhantomData }
    }
}

impl<F, P, R> Handler for BlockingHandler<F, P>
where
    F: Fn(CallContext, P) -> Result<R, HandlerError> + Send + Sync + 'static,
    P: DeserializeOwned + Send + 'static,
    R: Serialize + Send + 'static,
{
    fn work(&self) -> Work {
        Work::Blocking
    }

    /// The guard goes with the thread: if the task that waits for it is aborted, the request is gone only when the
    /// thread has ended (I10).
    fn start(&self, job: Job, runtime: &Handle) -> AbortHandle {
        let function = Arc::clone(&self.function);
        let Job { guard, params } = job;
        let inner = runtime.clone();
        runtime
            .spawn(async move {
                // A thread may be long in coming; nobody waits for it.
                guard.begin();
                let thread = inner.spawn_blocking(move || {
                    let end = match read_params::<P>(params) {
                        Ok(params) => {
                            guard.open_span();
                            let context = guard.context();
                            let work = AssertUnwindSafe(|| answer_of(function(context, params)));
                            let end = guard.enter(|| catch_unwind(work));
                            ended(&guard, end)
                        }
                        Err(error) => (HandlerResult::Error, Answer::Error(error)),
                    };
                    (guard, end)
                });
                // An error means that the runtime shuts down; the guard has gone with the closure.
                if let Ok((guard, (end, answer))) = thread.await {
                    let mut answer = Some(guard.fit(answer));
                    poll_fn(|cx| guard.poll_offer(end, &mut answer, cx)).await;
                }
            })
            .abort_handle()
    }
}

fn answer_of<R: Serialize>(result: Result<R, HandlerError>) -> (HandlerResult, Answer) {
    match result {
        Ok(value) => match to_raw_value(&value) {
            Ok(value) => (HandlerResult::Value, Answer::Value(value)),
            Err(error) => {
                tracing::warn!(error = %crate::shown::Shown::text(&error), "a handler's value cannot be written as JSON");
                (HandlerResult::Error, Answer::Error(ErrorObject::internal()))
            }
        },
        Err(error) => error.into_answer(),
    }
}

fn end_of(ended: Result<(HandlerResult, Answer), Box<dyn Any + Send>>) -> (HandlerResult, Answer) {
    ended.unwrap_or_else(|panic| {
        // The payload is the user's own value, and dropping it may panic as well.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
        (HandlerResult::Panicked, Answer::Error(ErrorObject::internal()))
    })
}

/// Reads the params of a request or a notification. None at all may stand for an empty object or for `null`.
pub(super) fn read_params<P: DeserializeOwned>(params: Option<Bytes>) -> Result<P, ErrorObject> {
    let Some(params) = params else {
        return serde_json::from_str("null")
            .or_else(|_| serde_json::from_str("{}"))
            .map_err(ErrorObject::invalid_params);
    };
    serde_json::from_slice(&params).or_else(|error| match &*params {
        b"{}" | b"[]" => serde_json::from_str("null").map_err(|_| ErrorObject::invalid_params(error)),
        _ => Err(ErrorObject::invalid_params(error)),
    })
}

/// What stands in a frame, without copying it.
pub(super) fn part_of(frame: &Bytes, part: &RawValue) -> Bytes {
    let (whole, part) = (frame.as_ptr() as usize, part.get().as_bytes());
    match (part.as_ptr() as usize).checked_sub(whole) {
        Some(start) if start + part.len() <= frame.len() => frame.slice(start..start + part.len()),
        // A codec may lend what it made itself.
        Some(_) | None => Bytes::copy_from_slice(part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside<F, P, Fut>(_: &F) -> usize
    where
        F: Fn(CallContext, P) -> Fut,
    {
        size_of::<Running<F, P, Fut>>() - size_of::<Fut>()
    }

    #[test]
    fn no_params_and_empty_ones_are_the_same_to_a_handler_that_takes_none() {
        for none in [None, Some("null"), Some("{}"), Some("[]")] {
            assert_eq!(read_params::<()>(none.map(Bytes::from)), Ok(()), "{none:?}");
        }
        for some in ["[1]", r#"{"a":1}"#, "[", "1"] {
            assert!(read_params::<()>(Some(Bytes::from(some))).is_err(), "{some}");
        }
        let empty = read_params::<std::collections::BTreeMap<String, u32>>(None);
        assert_eq!(empty, Ok(std::collections::BTreeMap::new()));
    }

    #[test]
    fn what_stands_in_a_frame_is_lent_and_what_stands_elsewhere_is_copied() {
        for text in ["[1,2]", r#"  {"a":1}"#] {
            let frame = Bytes::from(text);
            let part: &RawValue = serde_json::from_slice(&frame).unwrap();
            let lent = part_of(&frame, part);
            assert_eq!((lent.as_ptr(), &*lent), (part.get().as_ptr(), text.trim().as_bytes()), "a copy");
            let elsewhere = RawValue::from_string("[3]".to_owned()).unwrap();
            assert_eq!(&*part_of(&frame, &elsewhere), b"[3]");
        }
    }

    #[test]
    fn the_task_of_a_handler_is_the_users_future_and_two_words() {
        let handler = |context: CallContext, _params: Box<RawValue>| async move {
            context.cancelled().await;
            Ok::<_, HandlerError>(())
        };
        assert!(beside(&handler) <= 16, "W8: {} bytes beside the user's future", beside(&handler));
    }
}
