//! The error of a handler.

use std::error::Error;
use std::fmt;

use crate::cause::Cause;
use crate::driver::outbox::Answer;
use crate::error::CallError;
use crate::machine::HandlerResult;
use crate::message::ErrorObject;

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
