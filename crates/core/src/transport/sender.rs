//! The sending half of a transport: frames, and the ends of their exchanges.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::TransportError;
use crate::id::{ExchangeId, RequestId};
use crate::trace_context::TraceContext;

/// The half that sends frames. It buffers at most 64 KiB, or one larger frame, without a flush: so control frames are
/// not delayed, and a request that waits can still be taken back.
pub trait Sender: Send {
    /// Whether a frame of this lane can be taken now. The control lane may be ready while the data lane is not.
    ///
    /// # Errors
    /// The connection is broken.
    fn poll_ready(self: Pin<&mut Self>, lane: Lane, cx: &mut Context<'_>)
    -> Poll<Result<(), TransportError>>;

    /// Takes the whole frame, or nothing. After it the frame counts as written.
    ///
    /// # Errors
    /// The frame was not taken. If the error names no exchange, the connection is broken.
    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError>;

    /// Passes all frames that were taken to the operating system.
    ///
    /// # Errors
    /// The connection is broken.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>>;

    /// The handler of the request on this exchange, which the peer opened, has started. Its answer may take long, and
    /// no refusal follows for which the transport has a form of its own (an HTTP status). A wrapper passes the call on.
    /// A transport without exchanges ignores it.
    fn begin_exchange(self: Pin<&mut Self>, exchange: ExchangeId) {
        let _ = exchange;
    }

    /// The handler of the request on this exchange, which the peer opened, awaits something: its future has returned
    /// `Pending` once. It is not called for a handler whose future is ready at its first poll, or that runs on a
    /// thread. A transport whose response can begin before the answer begins it soon after. A wrapper passes the call
    /// on. Other transports ignore it.
    fn note_waiting(self: Pin<&mut Self>, exchange: ExchangeId) {
        let _ = exchange;
    }

    /// The next answer on this exchange is a refusal with this reason. It is for transports that express a refusal
    /// outside of the body, such as HTTP with its status. Other transports ignore it.
    fn note_rejection(self: Pin<&mut Self>, exchange: ExchangeId, reason: RejectReason) {
        let _ = (exchange, reason);
    }

    /// Ends an exchange that the peer opened, without a frame. Each exchange is ended exactly once, by this call or by
    /// its last frame, also if the peer has closed it before. A wrapper passes the call on. A transport without
    /// exchanges ignores it.
    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
        let _ = (exchange, how);
    }

    /// Aborts an exchange that this side opened. No event follows for it. A wrapper passes the call on.
    ///
    /// # Errors
    /// The transport cannot abort an exchange, or has no exchanges.
    fn abort_exchange(self: Pin<&mut Self>, exchange: ExchangeId) -> Result<(), Unsupported> {
        let _ = exchange;
        Err(Unsupported)
    }

    /// Flushes and closes.
    ///
    /// # Errors
    /// The connection broke while closing.
    fn poll_close(
        self: Pin<&mut Self>,
        why: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>>;
}

/// A frame to be sent.
#[derive(Debug)]
pub struct Outbound {
    /// The message, without framing and without a raw newline.
    pub body: Bytes,
    /// The exchange on which it is sent. The driver chooses it. A frame on an exchange of this side
    /// ([`ExchangeId::call`]) opens it; the frame is a request or a cancel. A frame on an exchange of the peer that has
    /// ended is sent on the connection's own stream, if there is one. [`ExchangeId::NONE`]: the transport chooses.
    pub exchange: ExchangeId,
    /// Its lane.
    pub lane: Lane,
    /// What kind of frame it is.
    pub head: FrameInfo,
    /// It is the last frame of an exchange that the peer opened.
    pub last: bool,
}

/// The two lanes of outgoing frames. Control frames overtake data frames that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Cancels, acknowledgements, refusals.
    Control,
    /// All other frames.
    Data,
}

/// What a frame is. The driver fills it in, so that no transport parses a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameInfo {
    /// The kind.
    pub kind: FrameKind,
    /// Its id, or the id that it answers or cancels.
    pub id: Option<RequestId>,
    /// Its method.
    pub method: Option<Arc<str>>,
    /// The trace that a request belongs to, for transports with headers for each message.
    pub trace: Option<Arc<TraceContext>>,
}

/// The kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// A request.
    Request,
    /// An answer, a refusal or an acknowledgement.
    Answer,
    /// A notification.
    Notification,
    /// A cancel.
    Cancel,
}

/// How an exchange that the peer opened ends without a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeEnd {
    /// Its message was accepted and needs no answer.
    Accepted,
    /// Its request was cancelled and must not be answered.
    Silent,
    /// It was refused.
    Refused,
}

/// The reason of a refusal, for transports that express it outside of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectReason {
    /// The input is not a message.
    BadMessage,
    /// Its id belongs to a request that is not answered yet.
    DuplicateId,
    /// A limit was reached.
    Overloaded,
    /// Its method is not served.
    MethodNotFound,
    /// The session is not open yet.
    NotInitialized,
    /// Something failed on this side.
    Internal,
}

/// Why a connection closes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// Normally.
    Normal,
    /// This side is shutting down.
    Shutdown,
    /// The peer violated the protocol or a limit. The text says how.
    Violation(String),
}

/// The transport does not support the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this transport cannot abort an exchange")]
pub struct Unsupported;
