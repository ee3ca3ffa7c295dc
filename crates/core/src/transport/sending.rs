//! What a wire takes: frames, and what becomes of their exchanges.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::TransportError;
use crate::id::{ExchangeId, RequestId};

/// The half that frames go out by. It holds at most 64 KiB, or one larger frame, unflushed, so that control frames
/// and the taking back of a request stay quick.
pub trait Sender: Send {
    /// Whether a frame of this lane can be taken now. Control may be ready while bulk is not.
    ///
    /// # Errors
    /// The connection is broken.
    fn poll_ready(self: Pin<&mut Self>, lane: Lane, cx: &mut Context<'_>)
    -> Poll<Result<(), TransportError>>;

    /// Takes the whole frame, or nothing. From here on the frame counts as written.
    ///
    /// # Errors
    /// The frame was not taken; if the error names no exchange the connection is broken.
    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError>;

    /// Hands everything taken to the operating system.
    ///
    /// # Errors
    /// The connection is broken.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>>;

    /// The request on this exchange, which the peer opened, has a handler that runs: its answer may take long, and a
    /// refusal that a wire would spell in a way of its own no longer comes. A wrapper hands it on; a wire without
    /// exchanges has nothing to do.
    fn begin_exchange(self: Pin<&mut Self>, exchange: ExchangeId) {
        let _ = exchange;
    }

    /// The answer sent next on this exchange is a refusal, for this reason: for wires that say so outside of the body,
    /// as HTTP does with a status. Other wires do nothing.
    fn note_rejection(self: Pin<&mut Self>, exchange: ExchangeId, fault: RejectReason) {
        let _ = (exchange, fault);
    }

    /// Ends an exchange the peer opened, without a frame. Each of them is ended once: by this or by a frame that is
    /// its last, also when the peer has closed it before. A wrapper hands it on; a wire without exchanges has nothing
    /// to do.
    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
        let _ = (exchange, how);
    }

    /// Gives up an exchange we opened. Nothing more is told of it. A wrapper hands it on.
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
    /// What it goes out on; chosen by the driver. An exchange of ours ([`ExchangeId::call`]) is opened by this frame,
    /// a request or a cancel. On one of the peer's that has ended there is no way any more: the frame goes by the
    /// connection's own stream, if it has one. [`ExchangeId::NONE`]: the wire's choice.
    pub exchange: ExchangeId,
    /// Its lane.
    pub lane: Lane,
    /// What it is.
    pub head: FrameInfo,
    /// It is the last of an exchange the peer opened.
    pub last: bool,
}

/// The two lanes out: control overtakes bulk that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Cancels, acknowledgements, refusals.
    Control,
    /// All else.
    Data,
}

/// What a frame is, filled in by the dialect's codec so that no wire parses a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameInfo {
    /// The kind.
    pub kind: FrameKind,
    /// Its id, or the id it answers or cancels.
    pub id: Option<RequestId>,
    /// Its method.
    pub method: Option<Arc<str>>,
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

/// How an exchange the peer opened ends without a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeEnd {
    /// What it carried was taken and is owed nothing.
    Accepted,
    /// Its request was cancelled and is owed silence.
    Silent,
    /// It was refused.
    Refused,
}

/// What a refusal is about, for wires that say so outside of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectReason {
    /// What came is no message.
    BadMessage,
    /// Its id belongs to a request that has no answer yet.
    DuplicateId,
    /// A limit was reached.
    Overloaded,
    /// Nobody serves its method.
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
    /// In good order.
    Normal,
    /// This side shuts down.
    Shutdown,
    /// The peer broke the protocol or a limit; the text says how.
    Violation(String),
}

/// The wire cannot do this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this wire cannot give up an exchange")]
pub struct Unsupported;
