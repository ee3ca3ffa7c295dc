//! A handler that is mostly ready at its first poll, which the connection's task makes.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::driver::context::CallContext;
use crate::driver::handler::AsyncHandler;
use crate::driver::handler::error::HandlerError;
use crate::driver::json_text::JsonText;
use crate::driver::state::{Handler, HandlerKind, Request, now};
use crate::failpoint::{self, Failpoint};
use crate::sync::AbortHandle;

/// A debug build warns about a first poll that takes longer.
const MAX_FIRST_POLL: Duration = Duration::from_millis(1);

/// A handler that runs as a task only if it is not ready at its first poll.
pub(crate) struct QuickHandler<F, P>(AsyncHandler<F, P>);

impl<F, P> QuickHandler<F, P> {
    pub(crate) fn new(function: F) -> Self {
        Self(AsyncHandler::new(function))
    }
}

impl<F, P, R, Fut> Handler for QuickHandler<F, P>
where
    F: Fn(CallContext, P) -> Fut + Send + Sync + 'static,
    P: DeserializeOwned + Send + 'static,
    Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    R: Serialize + Send + 'static,
{
    fn kind(&self) -> HandlerKind {
        HandlerKind::Quick
    }

    fn start(&self, request: Arc<Request>, params: Option<JsonText>) -> AbortHandle {
        self.0.start(request, params)
    }

    /// The task that the handler becomes polls it at once, with a waker of its own. So the first poll needs no waker
    /// that wakes anything.
    fn poll_first(&self, request: Arc<Request>, params: Option<JsonText>) {
        let began = cfg!(debug_assertions).then(now);
        let mut task = Box::pin(self.0.task(request, params));
        let mut cx = Context::from_waker(Waker::noop());
        let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut cx)));
        if let Some(began) = began {
            warn_if_slow(began, task.guard.request());
        }
        match polled {
            Ok(Poll::Pending) => {
                let request = Arc::clone(task.guard.request());
                let abort = request.connection.runtime.spawn(task).abort_handle();
                if !failpoint::active(Failpoint::QuickNotAborted) {
                    request.data.set_abort(abort);
                }
            }
            // As a task that ends or panics: its guard reports the end if that was not done. A value of the user may
            // panic when it is dropped.
            Ok(Poll::Ready(())) => drop_caught(task),
            Err(panic) => {
                drop_caught::<Box<dyn Any + Send>>(panic);
                drop_caught(task);
            }
        }
    }
}

fn drop_caught<T>(value: T) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
}

fn warn_if_slow(began: Instant, request: &Request) {
    let took = now().saturating_duration_since(began);
    if took > MAX_FIRST_POLL {
        tracing::warn!(
            rpc.method = %crate::log_text::LogText::name(&request.data.method),
            ?took,
            "the first poll of a quick handler took more than a millisecond; cancels of its connection wait for it"
        );
    }
}
