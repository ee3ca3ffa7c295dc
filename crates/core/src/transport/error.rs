//! Errors of transports.

use std::sync::Arc;

use crate::id::ExchangeId;

/// An error of a transport.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{kind}: {source}")]
pub struct TransportError {
    /// The kind of the error.
    pub kind: TransportErrorKind,
    /// The exchange that failed. `None`: the whole connection failed.
    pub exchange: Option<ExchangeId>,
    /// The cause. All tasks that wait for the connection share it.
    pub source: Arc<dyn std::error::Error + Send + Sync>,
}

impl TransportError {
    /// An error of the whole connection.
    pub fn new(
        kind: TransportErrorKind,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { kind, exchange: None, source: Arc::from(source.into()) }
    }
}

impl From<std::io::Error> for TransportError {
    fn from(error: std::io::Error) -> Self {
        Self::new(TransportErrorKind::Io, error)
    }
}

impl From<super::InvalidAllowEntry> for TransportError {
    fn from(error: super::InvalidAllowEntry) -> Self {
        Self::new(TransportErrorKind::Open, error)
    }
}

/// The kinds of [`TransportError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum TransportErrorKind {
    /// The connection could not be opened.
    #[error("could not open the connection")]
    Open,
    /// Reading or writing failed.
    #[error("the connection broke")]
    Io,
    /// The peer sent bytes after which the transport cannot continue.
    #[error("the peer broke the framing")]
    Framing,
    /// The frame exceeds the limit of the transport.
    #[error("the frame is too large")]
    TooLarge,
    /// The transport is closed.
    #[error("the connection is closed")]
    Closed,
}
