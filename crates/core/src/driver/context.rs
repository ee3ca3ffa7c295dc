//! What a handler knows of its request, and what it can do while that is open.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use serde::Serialize;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::cause::{Cause, CauseKind};
use crate::driver::handler::error::{HandlerError, Stopped};
use crate::driver::params::Frame;
use crate::driver::requests::data::RequestData;
use crate::driver::state::{ConnectionInner, Request};
use crate::error::CallError;
use crate::id::RequestId;
use crate::registry::{Registry, SessionId};
use crate::sync::AbortHandle;

/// The request a handler serves. Clones are the same request; once it is answered their methods say
/// [`CallError::Ended`].
#[derive(Clone)]
pub struct CallContext(Arc<Request>);

impl CallContext {
    pub(crate) const fn new(request: Arc<Request>) -> Self {
        Self(request)
    }

    pub(crate) fn connection(&self) -> &Arc<ConnectionInner> {
        &self.0.connection
    }

    pub(crate) fn request(&self) -> &RequestData {
        &self.0.data
    }

    /// Whether the request is cancelled: one atomic load, cheap enough for any loop (004-17).
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.data.is_cancelled()
    }

    /// Waits for the request's cancel, whoever asks for it: the peer, this side's user, a limit, a shutdown, the loss
    /// of the connection.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; the signal stays.
    pub fn cancelled(&self) -> impl Future<Output = Cause> + Send {
        self.0.data.signalled()
    }

    /// Runs a future until it is done or the request is cancelled. With `?` a cancel ends the handler with the dialect's
    /// cancelled answer.
    ///
    /// The future is polled first: a value that is ready when the cancel arrives is returned and not lost.
    ///
    /// # Errors
    /// [`Stopped`] if the request is cancelled before the future is done. The future is dropped then.
    ///
    /// # Cancel safety
    /// Dropping this future drops the one it runs.
    ///
    /// ```
    /// # use rescind_core::{CallContext, HandlerError};
    /// async fn hover(ctx: CallContext, line: u64) -> Result<String, HandlerError> {
    ///     Ok(ctx.run_until_cancelled(look_up(line)).await?)
    /// }
    /// # async fn look_up(line: u64) -> String { line.to_string() }
    /// ```
    pub async fn run_until_cancelled<F: Future>(&self, future: F) -> Result<F::Output, Stopped> {
        let (mut future, mut cancelled) = (pin!(future), pin!(self.cancelled()));
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => cancelled.as_mut().poll(cx).map(|cause| Err(Stopped(cause))),
        })
        .await
    }

    /// The cause, once the request is cancelled.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        self.0.data.cause().cloned()
    }

    /// For `?` in a loop that has no other way to see its cancel.
    ///
    /// # Errors
    /// [`Stopped`] once the request is cancelled; it gives the dialect's cancelled answer.
    pub fn check(&self) -> Result<(), Stopped> {
        self.0.data.cause().map_or(Ok(()), |cause| Err(Stopped(cause.clone())))
    }

    /// Returns the dialect's cancelled error, which is what the peer is answered.
    ///
    /// # Errors
    /// Always; the type of the value is the handler's own.
    pub fn stopped<R>(&self, cause: Cause) -> Result<R, HandlerError> {
        Err(HandlerError::stopped(cause))
    }

    /// Notifies the peer as part of this request: before its answer and never after. It does not wait for room in the outbox.
    ///
    /// # Errors
    /// [`CallError::Ended`] once the request is answered, silenced or lost; [`CallError::OutboxFull`] if the peer reads
    /// slower than this side writes; [`CallError::Params`] if the params cannot be written or are over the frame limit.
    pub fn try_notify<P: Serialize + ?Sized>(
        &self,
        method: impl Into<Arc<str>>,
        params: &P,
    ) -> Result<(), CallError> {
        let frame = Frame::new(self.0.connection.max_frame, method.into(), params)?;
        self.0.connection.try_notify(frame, Some(&self.0.data))
    }

    /// As [`try_notify`](Self::try_notify), but waits for room in the outbox.
    ///
    /// # Errors
    /// As for [`try_notify`](Self::try_notify), without [`CallError::OutboxFull`].
    ///
    /// # Cancel safety
    /// Dropped before it is done, the notification is not sent.
    pub async fn notify<P: Serialize + ?Sized>(
        &self,
        method: impl Into<Arc<str>>,
        params: &P,
    ) -> Result<(), CallError> {
        let frame = Frame::new(self.0.connection.max_frame, method.into(), params)?;
        self.0.connection.notify(frame, Some(&self.0.data)).await
    }

    /// The progress token the request carries, as it stands: a peer that gave none wants no progress.
    #[must_use]
    pub fn progress_token(&self) -> Option<&RawValue> {
        self.0.data.progress_token()
    }

    /// Runs a critical section: signal, grace and abort wait for its end,
    /// [`Limits::shield`](crate::Limits::shield) at most and never past a shutdown's deadline. Sections nest.
    ///
    /// # Cancel safety
    /// Dropping the future ends the section.
    pub async fn shield<F: Future>(&self, section: F) -> F::Output {
        let _shield = Shield::new(&self.0);
        section.await
    }

    /// Cancels the request from this side. It is answered as this side's cancels are in the dialect. `true`: it was
    /// open and not cancelled before.
    #[expect(clippy::must_use_candidate, reason = "most callers have no use for the answer")]
    pub fn cancel_local(&self, cause: Cause) -> bool {
        self.0.connection.step(|state, now, _| state.session.local_cancel(now, self.0.data.key, cause))
    }

    /// A token that is cancelled with the request, for code that knows only tokens (004-17).
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        let token = {
            let _state = self.0.connection.lock();
            self.0.data.token()
        };
        if self.is_cancelled() {
            token.cancel();
        }
        token
    }

    /// Cancels the request from this side when the token is cancelled. Nothing is left of it once the request is gone.
    pub fn cancel_on(&self, token: CancellationToken) {
        let context = self.clone();
        let watch = self.0.connection.runtime.spawn(async move {
            token.cancelled().await;
            context.cancel_local(Cause::new(CauseKind::Local));
        });
        self.end_with(watch.abort_handle());
    }

    /// Ends a task of the user's with the request.
    fn end_with(&self, watch: AbortHandle) {
        let late = {
            let mut state = self.0.connection.lock();
            match state.inbound.get_mut(self.0.data.key.0) {
                Some(slot) => {
                    slot.extras().watches.push(watch);
                    None
                }
                None => Some(watch),
            }
        };
        if let Some(watch) = late {
            watch.abort();
        }
    }

    /// The session the request came in. Together with [`request_id`](Self::request_id) it names the request for the
    /// [`registry`](Self::registry) (002-16).
    #[must_use]
    pub fn session(&self) -> &SessionId {
        self.0.session()
    }

    /// The request's id on the wire.
    #[must_use]
    pub fn request_id(&self) -> &RequestId {
        &self.0.data.id
    }

    /// The request's method.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.0.data.method
    }

    /// The registry in which the request is found once it is cancelled.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.0.connection.registry
    }
}

impl From<CallContext> for CancellationToken {
    fn from(context: CallContext) -> Self {
        context.token()
    }
}

impl From<&CallContext> for CancellationToken {
    fn from(context: &CallContext) -> Self {
        context.token()
    }
}

impl fmt::Debug for CallContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallContext").field(&self.0).finish()
    }
}

/// Ends a critical section when it is dropped.
struct Shield<'a>(&'a Request);

impl<'a> Shield<'a> {
    fn new(request: &'a Request) -> Self {
        request.connection.step(|state, now, _| state.session.local_shield(now, request.data.key));
        Self(request)
    }
}

impl Drop for Shield<'_> {
    fn drop(&mut self) {
        let Self(request) = self;
        request.connection.step(|state, now, _| state.session.local_unshield(now, request.data.key));
    }
}
