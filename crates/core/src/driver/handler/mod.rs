//! The task of a handler.

pub(crate) mod error;
pub(crate) mod quick;
pub(crate) mod task_guard;

use std::any::Any;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};

use crate::driver::context::CallContext;
use crate::driver::handler::error::HandlerError;
use crate::driver::handler::task_guard::{Guard, Turn};
use crate::driver::json_text::{JsonText, read_params};
use crate::driver::outbox::Answer;
use crate::driver::state::{Handler, HandlerKind, Request};
use crate::machine::HandlerResult;
use crate::message::ErrorObject;
use crate::sync::AbortHandle;

/// A handler that runs as a task.
pub(crate) struct AsyncHandler<F, P> {
    function: Arc<F>,
    params: PhantomData<fn(P)>,
}

impl<F, P> AsyncHandler<F, P> {
    pub(crate) fn new(function: F) -> Self {
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
    fn kind(&self) -> HandlerKind {
        HandlerKind::Task
    }

    fn start(&self, request: Arc<Request>, params: Option<JsonText>) -> AbortHandle {
        let runtime = request.connection.runtime.clone();
        runtime.spawn(self.task(request, params)).abort_handle()
    }
}

impl<F, P> AsyncHandler<F, P> {
    /// Its task for a request.
    fn task<Fut>(&self, request: Arc<Request>, params: Option<JsonText>) -> Running<F, P, Fut>
    where
        F: Fn(CallContext, P) -> Fut,
    {
        let stage = Stage::Begin { function: Arc::clone(&self.function), params };
        Running { stage, guard: Guard::new(request), params: PhantomData }
    }
}

pin_project! {
    /// The task of a handler. It is written by hand, so that a request in flight holds only the user's future and the
    /// guard that reports its end: an `async` block keeps room for values that it has dropped.
    ///
    /// The fields are dropped in their order: the permit is free only after the user's future is dropped.
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
        Begin { function: Arc<F>, params: Option<JsonText> },
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
    R: Serialize + 'static,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let guard = &*this.guard;
        loop {
            let (end, answer) = match this.stage.as_mut().project() {
                StageProjection::Begin { function, params } => match ready!(guard.poll_turn(cx)) {
                    Turn::Start => match read_params::<P>(params.take(), |sent| guard.replaced(sent)) {
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
                    Turn::Cancelled => taken_back(),
                },
                StageProjection::User { mut future } => {
                    let work = AssertUnwindSafe(|| future.as_mut().poll(cx).map(answer_of));
                    let polled = guard.enter(|| catch_unwind(work));
                    let first = guard.begin();
                    match polled {
                        Ok(Poll::Pending) => {
                            if first {
                                guard.note_waiting();
                            }
                            return Poll::Pending;
                        }
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
            // The user's future is dropped here, before its end is reported.
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
pub(crate) struct BlockingHandler<F, P> {
    function: Arc<F>,
    params: PhantomData<fn(P)>,
}

impl<F, P> BlockingHandler<F, P> {
    pub(crate) fn new(function: F) -> Self {
        Self { function: Arc::new(function), params: PhantomData }
    }
}

impl<F, P, R> Handler for BlockingHandler<F, P>
where
    F: Fn(CallContext, P) -> Result<R, HandlerError> + Send + Sync + 'static,
    P: DeserializeOwned + Send + 'static,
    R: Serialize + Send + 'static,
{
    fn kind(&self) -> HandlerKind {
        HandlerKind::Blocking
    }

    /// The guard moves to the thread. If the task that waits for the thread is aborted, the request ends only when the
    /// thread has ended (I10).
    fn start(&self, request: Arc<Request>, params: Option<JsonText>) -> AbortHandle {
        let function = Arc::clone(&self.function);
        let runtime = request.connection.runtime.clone();
        let inner = runtime.clone();
        let guard = Guard::new(request);
        runtime
            .spawn(async move {
                if poll_fn(|cx| guard.poll_turn(cx)).await == Turn::Cancelled {
                    let (end, answer) = taken_back();
                    let mut answer = Some(answer);
                    guard.begin();
                    return poll_fn(|cx| guard.poll_offer(end, &mut answer, cx)).await;
                }
                // It may take long until a thread is free. Nothing waits for that.
                guard.begin();
                let thread = inner.spawn_blocking(move || {
                    let end = match read_params::<P>(params, |sent| guard.replaced(sent)) {
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
                // An error means that the runtime shuts down. The guard was dropped with the closure.
                if let Ok((guard, (end, answer))) = thread.await {
                    let mut answer = Some(guard.fit(answer));
                    poll_fn(|cx| guard.poll_offer(end, &mut answer, cx)).await;
                }
            })
            .abort_handle()
    }
}

/// The end of a handler that was cancelled before it started. The machine has the answer.
fn taken_back() -> (HandlerResult, Answer) {
    (HandlerResult::Stopped, Answer::Error(ErrorObject::internal()))
}

fn answer_of<R: Serialize + 'static>(result: Result<R, HandlerError>) -> (HandlerResult, Answer) {
    match result {
        Ok(value) => match json_of(value) {
            Ok(value) => (HandlerResult::Value, Answer::Value(value)),
            Err(error) => {
                tracing::warn!(error = %crate::log_text::LogText::text(&error), "a handler's value cannot be written as JSON");
                (HandlerResult::Error, Answer::Error(ErrorObject::internal()))
            }
        },
        Err(error) => error.into_answer(),
    }
}

/// A value as JSON. One that is JSON already is moved and not copied.
fn json_of<R: Serialize + 'static>(value: R) -> Result<Box<RawValue>, serde_json::Error> {
    let mut value = Some(value);
    let raw = (&mut value as &mut dyn Any).downcast_mut::<Option<Box<RawValue>>>();
    match raw.and_then(Option::take) {
        Some(raw) => Ok(raw),
        // It is written as the value in it.
        None => to_raw_value(&value),
    }
}

fn end_of(ended: Result<(HandlerResult, Answer), Box<dyn Any + Send>>) -> (HandlerResult, Answer) {
    ended.unwrap_or_else(|panic| {
        // The payload is a value of the user, and dropping it may panic too.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
        (HandlerResult::Panicked, Answer::Error(ErrorObject::internal()))
    })
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
    fn an_answer_that_is_json_is_not_copied() {
        let raw = RawValue::from_string("[1]".to_owned()).unwrap();
        let text = raw.get().as_ptr();
        assert_eq!(json_of(raw).unwrap().get().as_ptr(), text);
        for (written, expected) in [
            (json_of("x"), r#""x""#),
            (json_of(None::<Box<RawValue>>), "null"),
            (json_of(()), "null"),
            (json_of(Some(1)), "1"),
        ] {
            assert_eq!(written.unwrap().get(), expected);
        }
    }

    #[test]
    fn a_handlers_task_is_the_users_future_plus_two_words() {
        let handler = |context: CallContext, _params: Box<RawValue>| async move {
            context.cancelled().await;
            Ok::<_, HandlerError>(())
        };
        assert!(beside(&handler) <= 16, "W8: {} bytes beside the user's future", beside(&handler));
    }
}
