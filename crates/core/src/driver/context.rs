//! The context of a request, as its handler uses it, and the error with which a handler ends.

use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use serde::Serialize;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::cause::{Cause, CauseKind};
use crate::driver::json_text::Frame;
use crate::driver::outbox::Answer;
use crate::driver::request_log::{Direction, RequestKey};
use crate::driver::requests::{KeyedRequest, RequestData};
use crate::driver::state::{ConnectionInner, Request};
use crate::driver::tasks::NotATask;
use crate::error::CallError;
use crate::id::RequestId;
use crate::machine::HandlerResult;
use crate::message::ErrorObject;
use crate::registry::{Registry, SessionId};
use crate::sync::AbortHandle;
use crate::trace_context::TraceContext;
use crate::transport::BoxFuture;

/// The request that a handler serves. A clone is the same request. Once the request is answered, calls and
/// notifications fail with [`CallError::Ended`].
///
/// ```
/// use rescind_core::{CallContext, HandlerError, Router};
///
/// async fn count(ctx: CallContext, (to,): (u64,)) -> Result<u64, HandlerError> {
///     for step in 1..=to {
///         ctx.check()?; // ends the handler once its request is cancelled
///         ctx.try_notify("step", &[step])?;
///         tokio::task::yield_now().await;
///     }
///     Ok(to)
/// }
///
/// let router = Router::new().method("count", count);
/// # let _ = router;
/// ```
#[derive(Clone, Debug)]
pub struct CallContext(Arc<Request>);

impl CallContext {
    pub(crate) const fn new(request: Arc<Request>) -> Self {
        Self(request)
    }

    pub(crate) fn connection(&self) -> &Arc<ConnectionInner> {
        &self.0.connection
    }

    pub(crate) const fn shared(&self) -> &Arc<Request> {
        &self.0
    }

    pub(crate) fn data(&self) -> &RequestData {
        &self.0.data
    }

    /// Whether the request is cancelled: one atomic load, cheap enough for any loop (ABP-17).
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.data.is_cancelled()
    }

    /// Waits until the request is cancelled, by the peer, by code of this side, by a limit, by a shutdown, or because
    /// the connection was lost.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the request stays cancelled.
    pub fn cancelled(&self) -> impl Future<Output = Cause> + Send {
        self.0.data.signalled()
    }

    /// Runs a future until it is done or the request is cancelled. With `?` a cancel ends the handler with the
    /// dialect's cancelled answer.
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

    /// The cause of the cancel. `None` while the request is not cancelled.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        self.0.data.cause().cloned()
    }

    /// Returns an error once the request is cancelled: for `?` in a loop without await points.
    ///
    /// # Errors
    /// [`Stopped`] once the request is cancelled. The peer gets the dialect's cancelled answer.
    pub fn check(&self) -> Result<(), Stopped> {
        self.0.data.cause().map_or(Ok(()), |cause| Err(Stopped(cause.clone())))
    }

    /// Returns the dialect's cancelled error, with which the peer is answered.
    ///
    /// # Errors
    /// Always. `R` is the type of the handler's value.
    pub fn stopped<R>(&self, cause: Cause) -> Result<R, HandlerError> {
        Err(HandlerError::stopped(cause))
    }

    /// Sends a notification that belongs to this request: it is written before the answer and never after it. Does not
    /// wait for room in the outbox. The notifications of a task are written until it has ended, with the name of the task;
    /// those of a task of MCP 2026-07-28 are dropped, because its protocol has none.
    ///
    /// # Errors
    /// [`CallError::Ended`] once the request is answered or needs no answer any more; [`CallError::OutboxFull`] if the
    /// peer reads slower than this side writes; [`CallError::Params`] if the params cannot be written as JSON or exceed
    /// the frame limit.
    pub fn try_notify<P: Serialize + ?Sized>(
        &self,
        method: impl Into<Arc<str>>,
        params: &P,
    ) -> Result<(), CallError> {
        let frame = Frame::new(self.0.connection.max_frame, method.into(), params)?;
        let Some(frame) = self.own_frame(frame) else { return Ok(()) };
        self.0.connection.try_notify(frame, Some(&self.0.data))
    }

    /// Sends a notification as [`try_notify`](Self::try_notify) does, and waits for room in the outbox.
    ///
    /// # Errors
    /// The errors of [`try_notify`](Self::try_notify), except [`CallError::OutboxFull`].
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, the notification is not sent.
    pub async fn notify<P: Serialize + ?Sized>(
        &self,
        method: impl Into<Arc<str>>,
        params: &P,
    ) -> Result<(), CallError> {
        let frame = Frame::new(self.0.connection.max_frame, method.into(), params)?;
        let Some(frame) = self.own_frame(frame) else { return Ok(()) };
        self.0.connection.notify(frame, Some(&self.0.data)).await
    }

    /// The progress token of the request, as the peer wrote it. `None`: the peer requested no progress.
    #[must_use]
    pub fn progress_token(&self) -> Option<&RawValue> {
        self.0.data.progress_token()
    }

    /// Runs a critical section: until it ends, a cancel is not signalled and the handler is not aborted. The delay is
    /// at most [`Limits::max_shield_time`](crate::Limits::max_shield_time), and ends with the deadline of a shutdown.
    /// Sections nest.
    ///
    /// # Cancel safety
    /// Dropping the future ends the section.
    pub async fn shield<F: Future>(&self, section: F) -> F::Output {
        let _shield = Shield::new(&self.0);
        section.await
    }

    /// Cancels the request from this side. The peer gets the answer that the dialect has for cancels of this side.
    /// Returns `true` if the request was open and not cancelled before.
    #[expect(clippy::must_use_candidate, reason = "most callers have no use for the answer")]
    pub fn cancel_local(&self, cause: Cause) -> bool {
        self.0.connection.step(|state, now, _| state.session.local_cancel(now, self.0.data.key, cause))
    }

    /// A token that is cancelled with the request, for code that takes a `CancellationToken` (ABP-17).
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

    /// Cancels the request from this side when the token is cancelled. The task that waits for the token ends with the
    /// request.
    pub fn cancel_on(&self, token: CancellationToken) {
        self.cancel_with(async move {
            token.cancelled().await;
            Cause::new(CauseKind::Local)
        });
    }

    /// Cancels the request from this side with the cause that this future returns. The future is dropped when the
    /// request ends.
    pub fn cancel_with(&self, cause: impl Future<Output = Cause> + Send + 'static) {
        let context = self.clone();
        let watch = self.0.connection.runtime.spawn(async move {
            context.cancel_local(cause.await);
        });
        self.end_with(watch.abort_handle());
    }

    /// Aborts this task when the request ends.
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

    /// The session of the request. Together with [`request_id`](Self::request_id) it identifies the request in the
    /// [`registry`](Self::registry) (GETMCP-16).
    #[must_use]
    pub fn session(&self) -> &SessionId {
        self.0.session()
    }

    /// The trace that the request belongs to. `None`: it came without one, or the connection has no
    /// [`trace_propagator`](crate::PeerBuilder::trace_propagator).
    ///
    /// If the headers of the request and its `_meta` name one trace, the header's span is the caller, because each hop may
    /// write it. If they name different traces, that of `_meta` is used.
    #[must_use]
    pub fn trace_context(&self) -> Option<&TraceContext> {
        self.0.data.trace().map(|trace| &**trace)
    }

    /// The request's id, as the peer wrote it.
    #[must_use]
    pub fn request_id(&self) -> &RequestId {
        &self.0.data.id
    }

    /// The request's key in snapshots and in a [`RequestLog`](crate::RequestLog).
    #[must_use]
    pub fn request_key(&self) -> RequestKey {
        self.0.connection.request_key(Direction::Received, self.0.data.key.0)
    }

    /// The key by which any process of the cluster can cancel this request: opaque, not guessable, and never that of
    /// another request. `None`: the connection has no [`cluster_keys`](crate::PeerBuilder::cluster_keys), or the request
    /// has ended.
    #[must_use]
    pub fn cluster_key(&self) -> Option<Arc<str>> {
        self.0.connection.cluster_keys.as_ref()?.key_of(Arc::new(self.clone()))
    }

    /// The request's method.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.0.data.method
    }

    /// The registry that lists the request once it is cancelled.
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

impl KeyedRequest for CallContext {
    fn request_key(&self) -> RequestKey {
        Self::request_key(self)
    }

    fn cause(&self) -> Option<Cause> {
        Self::cause(self)
    }

    fn cancelled(&self) -> BoxFuture<'_, Cause> {
        Box::pin(Self::cancelled(self))
    }

    fn cancel_with(&self, cause: BoxFuture<'static, Cause>) {
        let context = self.clone();
        Self::cancel_with(self, async move {
            let cause = cause.await;
            // The client of a task may be at another node.
            let by_client = cause.kind() == CauseKind::Caller && context.task_id().is_some();
            if by_client { Cause::new(CauseKind::Peer) } else { cause }
        });
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

// The error of a handler.

/// The request was cancelled and its handler stops. Returned by [`CallContext::check`](crate::CallContext::check) and
/// [`CallContext::run_until_cancelled`](crate::CallContext::run_until_cancelled).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request was cancelled: {0}")]
pub struct Stopped(pub Cause);

/// Why a handler returns no value.
///
/// `?` converts any error into one. The peer gets:
/// - an [`ErrorObject`] as it is;
/// - the dialect's cancelled answer for [`Stopped`], for a [`Cause`], and for a [`CallError`] of a child that was
///   cancelled;
/// - the error that the peer of a child answered, for [`CallError::Failed`];
/// - `INTERNAL_ERROR` for every other error. Its text is logged and not sent.
///
/// ```
/// use rescind_core::{CallContext, ErrorCode, ErrorObject, HandlerError};
///
/// async fn area(_: CallContext, (width, height): (u32, u32)) -> Result<u32, HandlerError> {
///     let overflow = || ErrorObject::new(ErrorCode::INVALID_PARAMS, "the area is too large");
///     Ok(width.checked_mul(height).ok_or_else(overflow)?)
/// }
/// # let _ = area;
/// ```
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

    /// Converts a boxed error of any type.
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
        let error = match error.downcast::<NotATask>() {
            Ok(why) => {
                return Self(match why.into_answer() {
                    Ok(error) => Repr::Answered(error),
                    Err(cause) => Repr::Stopped(cause),
                });
            }
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

    pub(crate) fn into_answer(self) -> (HandlerResult, Answer) {
        match self.0 {
            Repr::Stopped(_) => (HandlerResult::Stopped, Answer::Error(ErrorObject::internal())),
            Repr::Answered(error) => (HandlerResult::Error, Answer::Error(error)),
            Repr::Other(error) => {
                tracing::debug!(error = %crate::log_text::LogText::text(&error), "a handler failed");
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

/// For `Err(cause)?`: the handler stopped because its request was cancelled.
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
