//! What the machine wants done. Each input computes all of its outputs; polling only pops them.

use crate::cause::Cause;
use crate::dialect::Refusal;
use crate::id::{CallNumber, ExchangeId, InboundKey, OutboundKey, RequestId};

/// One thing to do. The order of outputs is the order of doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Output {
    /// Run the handler of this request.
    Start(InboundKey),
    /// Let the handler know that it is cancelled. Once a request (I5).
    Signal {
        /// The request.
        key: InboundKey,
        /// Why.
        cause: Cause,
    },
    /// End the handler's task now.
    Abort(InboundKey),
    /// Write the one answer to this request, behind what it wrote before (bulk lane).
    Reply(Reply),
    /// Write no answer, and drop every frame of this request that still waits (I2).
    Silence {
        /// The request.
        key: InboundKey,
        /// Its exchange, to be ended without an answer.
        exchange: ExchangeId,
    },
    /// The request is gone: forget what was kept for it (I3).
    Released(InboundKey),
    /// Refuse a frame or a request the machine keeps nothing of (control lane).
    Refuse {
        /// The id, the codec's mark, if the refusal carries an id.
        to: Option<(RequestId, u8)>,
        /// The exchange it came on.
        exchange: ExchangeId,
        /// Why.
        why: Refusal,
    },
    /// Answer a request as cancelled that was never accepted: it came during shutdown, or its cancel came first.
    RefuseCancelled {
        /// Its id.
        id: RequestId,
        /// The codec's mark.
        tag: u8,
        /// The method is server-cancellable.
        server_cancellable: bool,
        /// The exchange it came on.
        exchange: ExchangeId,
        /// The fixed result in place of the cancelled answer, for a request torn down in good order.
        graceful: Option<&'static str>,
        /// Why.
        cause: Cause,
    },
    /// End an exchange that is owed nothing: a cancel or notification was accepted, or silence is the answer.
    ExchangeEnd {
        /// The exchange.
        exchange: ExchangeId,
        /// Silence was owed to a request, rather than nothing to a notification.
        silent: bool,
    },
    /// Acknowledge a cancel (control lane).
    Ack {
        /// The id the cancel came under.
        ack: RequestId,
        /// What it named; `None` if that was no key.
        key: Option<RequestId>,
        /// The exchange it came on.
        exchange: ExchangeId,
        /// What to say.
        status: AckStatus,
    },
    /// Write one cancel for a call that has been written (control lane, I12).
    SendCancel {
        /// The call.
        call: OutboundKey,
        /// Its number.
        number: CallNumber,
        /// The cancel's own number, where cancels are acknowledged.
        cancel: CallNumber,
        /// Why; the codec decides whether a reason is written. A cascade's cancel has none.
        cause: Cause,
    },
    /// Take the frame of this call out of the outbox; it was not written.
    TakeBack(OutboundKey),
    /// The peer acknowledged the cancel of this call.
    Acked {
        /// The call.
        call: OutboundKey,
        /// It says the call is cancelled.
        cancelled: bool,
    },
    /// The call has ended; forget what was kept for it (I3, I13).
    Settle {
        /// The call.
        call: OutboundKey,
        /// How.
        settlement: Settlement,
    },
    /// Cancel a call on another connection that is a child of a request of ours.
    CancelForeign(ForeignChild),
    /// Something for the log and the counters.
    Event(Event),
    /// Flush for at most [`Limits::flush`](crate::Limits::flush), then close.
    Close(CloseCause),
}

/// The one answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The request.
    pub key: InboundKey,
    /// Its id.
    pub id: RequestId,
    /// The codec's mark.
    pub tag: u8,
    /// The method is server-cancellable.
    pub server_cancellable: bool,
    /// The exchange to answer on.
    pub exchange: ExchangeId,
    /// What to write.
    pub body: ReplyBody,
}

/// What to write as the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyBody {
    /// What the handler returned, in the step that reported its end.
    Handler,
    /// The dialect's cancelled answer for this cause.
    Cancelled(Cause),
    /// A fixed result: a subscription torn down in good order.
    Graceful(&'static str),
    /// An error of the machine's own.
    Refused(Refusal),
}

/// A child on another connection, by the number its own side gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ForeignChild(pub u64);

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AckStatus {
    /// The call is cancelled.
    Cancelled,
    /// No such call is known.
    NotFound,
    /// The call had already ended.
    AlreadyCompleted,
    /// The cancel named nothing.
    InvalidKey,
    /// No session is open yet.
    NotInitialized,
    /// The request cannot be cancelled.
    NotCancellable,
    /// Too many acknowledgements wait already; what becomes of the call is not decided yet.
    Overloaded,
}

/// How a call of ours ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// By the answer that is being read in this step; `cancelled` is set if a cancel had been asked.
    Answered {
        /// The first cause, if a cancel had been asked.
        cancelled: Option<Cause>,
    },
    /// As cancelled.
    Cancelled {
        /// The first cause.
        cause: Cause,
        /// The peer said so, or the request never reached the wire.
        confirmed: bool,
    },
    /// By the loss of the connection.
    Disconnected {
        /// The request had been written.
        may_have_run: bool,
    },
}

/// Something for the log and the counters. None of these changes what happens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A cancel named nothing that is open: finished, unknown, or another principal's.
    UnknownCancel,
    /// A cancel named nothing at all.
    MalformedCancel,
    /// A cancel was ignored: not declared, not allowed from that side, or for a request it cannot reach.
    IgnoredCancel,
    /// A notification came before the session was open, and was dropped.
    EarlyNotification,
    /// A cancel waits for its request.
    ParkedCancel,
    /// An answer came for a call that had ended.
    LateAnswer,
    /// An answer came for a call that never was.
    UnknownAnswer,
    /// A request was refused because of this limit.
    LimitReached(&'static str),
    /// A request came under an id in use.
    DuplicateId,
    /// A frame was no message.
    BadFrame,
    /// A request's progress token is neither a string nor an integer, or has more than 256 bytes: the request has none.
    IgnoredToken,
    /// The peer did not answer a cancelled call within the wait limit.
    Unresponsive(OutboundKey),
    /// A handler panicked.
    HandlerPanicked(InboundKey),
    /// A handler failed with an error of its own after its cancel; the peer gets the cancelled answer.
    ErrorAfterCancel(InboundKey),
    /// The grace was over and the handler's task was aborted.
    Aborted(InboundKey),
}

/// Why the machine wants the connection closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseCause {
    /// The shutdown has run through its steps.
    Shutdown,
    /// The input had ended and nothing runs any more.
    InputEnded,
    /// The peer sends and does not read.
    PeerNotReading,
}
