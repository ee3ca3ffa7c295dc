//! Errors, grouped by their origin: the transport, the peer, or the caller.

use crate::cause::Cancelled;
use crate::message::ErrorObject;
use crate::transport::TransportError;

/// Why a call returned no value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The call was cancelled.
    #[error("the call was cancelled: {}", .0.cause)]
    Cancelled(Cancelled),
    /// The peer answered with an error.
    #[error("the peer answered with an error: {0}")]
    Failed(ErrorObject),
    /// The connection was lost.
    #[error("the connection was lost before the answer{}", if *.may_have_run { "; the peer may have run the request" } else { "" })]
    Disconnected {
        /// The request had been handed to the transport.
        may_have_run: bool,
    },
    /// Too many calls are in flight on this connection. Wait for some to end.
    #[error("{limit} calls are in flight on this connection; wait for some to end")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The params cannot be written as JSON.
    #[error("the params of `{method}` cannot be written as JSON: {what}")]
    Params {
        /// The method called.
        method: String,
        /// What serde says.
        what: String,
    },
    /// The peer answered, and this side cannot read the answer: it does not have the requested type, or the shape that
    /// the dialect requires.
    #[error("the answer to `{method}` cannot be read: {what}")]
    Answer {
        /// The method called.
        method: String,
        /// What is wrong with it.
        what: String,
    },
    /// The params of a notification do not have the requested type.
    #[error("the params of the notification `{method}` do not have the requested type: {what}")]
    Notification {
        /// The method of the notification.
        method: String,
        /// What serde says.
        what: String,
    },
    /// The request is answered already, so no call or notification can belong to it.
    #[error("the request to which this call belongs has ended")]
    Ended,
    /// The outbox is full: the peer reads slower than this side writes.
    #[error("the outbox is full: the peer reads slower than this side writes")]
    OutboxFull,
}

/// Why a connection ended or could not be opened.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The transport failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The peer violated the protocol, and the connection cannot continue.
    #[error(transparent)]
    Protocol(#[from] ProtocolViolation),
    /// The library was used in a way that cannot work.
    #[error(transparent)]
    Misuse(#[from] ApiMisuse),
}

/// How the peer violated the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolViolation {
    /// It sends requests and does not read the answers.
    #[error("the peer sends and does not read: {waiting} frames wait for it")]
    NotReading {
        /// Frames waiting.
        waiting: usize,
    },
    /// None of its first messages belongs to a dialect that this side offers.
    #[error("no offered dialect recognises the peer's first messages")]
    UnknownDialect,
}

/// How the library was misused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApiMisuse {
    /// A connection was opened outside a tokio runtime.
    #[error("there is no tokio runtime; open the connection inside one")]
    NoRuntime,
    /// No dialect was given.
    #[error("no dialect is offered; give at least one")]
    NoDialect,
    /// Several dialects were given where exactly one is needed.
    #[error("several dialects are offered, so the peer's first message decides; use `connect`")]
    SeveralDialects,
}
