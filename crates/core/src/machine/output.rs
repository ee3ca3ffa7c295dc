//! The outputs of the machine. Each input computes all of its outputs; polling only pops them.

use crate::cause::Cause;
use crate::dialect::Refusal;
use crate::id::{CallNumber, ExchangeId, InboundKey, OutboundKey, RequestId};
use crate::message::{AckStatus, Deviation};

/// One output. The driver executes outputs in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Output {
    /// Start the handler of this request.
    Start(InboundKey),
    /// Signal the cancel to the handler. At most once for each request (I5).
    Signal {
        /// The request.
        key: InboundKey,
        /// Why.
        cause: Cause,
    },
    /// Abort the handler's task.
    Abort(InboundKey),
    /// Write the answer to this request, after all that it wrote before (data lane).
    Reply(Reply),
    /// Write no answer, and drop the frames of this request that still wait (I2).
    Silence {
        /// The request.
        key: InboundKey,
        /// Its exchange, which ends without an answer.
        exchange: ExchangeId,
    },
    /// The request has ended: drop everything that was kept for it (I3).
    Released(InboundKey),
    /// Refuse a frame or a request of which the machine keeps nothing (control lane).
    Refuse {
        /// The id, the codec's mark, if the refusal carries an id.
        to: Option<(RequestId, u8)>,
        /// The exchange on which it arrived.
        exchange: ExchangeId,
        /// Why.
        why: Refusal,
    },
    /// Answer a request as cancelled although it was never accepted: it arrived during a shutdown, or after its cancel.
    RefuseCancelled {
        /// Its id.
        id: RequestId,
        /// The codec's mark.
        tag: u8,
        /// The method is server-cancellable.
        server_cancellable: bool,
        /// The exchange on which it arrived.
        exchange: ExchangeId,
        /// The fixed result that replaces the cancelled answer, for requests that end gracefully.
        graceful: Option<&'static str>,
        /// Why.
        cause: Cause,
    },
    /// End an exchange without an answer: it carried a cancel or a notification, or a request that must not be
    /// answered.
    ExchangeEnd {
        /// The exchange.
        exchange: ExchangeId,
        /// It carried a request that must not be answered.
        silent: bool,
    },
    /// Acknowledge a cancel (control lane).
    Ack {
        /// The id of the cancel.
        ack: RequestId,
        /// The key that it named. `None`: it named no valid key.
        key: Option<RequestId>,
        /// The exchange on which it arrived.
        exchange: ExchangeId,
        /// The status.
        status: AckStatus,
    },
    /// Write the cancel of a call that was written (control lane, I12).
    SendCancel {
        /// The call.
        call: OutboundKey,
        /// Its number.
        number: CallNumber,
        /// The cancel's own number, where cancels are acknowledged.
        cancel: CallNumber,
        /// The cause. The codec decides whether its reason is written. A cancel of a cascade has no reason.
        cause: Cause,
    },
    /// Remove the frame of this call from the outbox. It was not written.
    TakeBack(OutboundKey),
    /// The peer acknowledged the cancel of this call.
    Acked {
        /// The call.
        call: OutboundKey,
        /// The peer says that the call is cancelled.
        cancelled: bool,
    },
    /// The call has ended: settle it, and drop what was kept for it (I3, I13).
    Settle {
        /// The call.
        call: OutboundKey,
        /// How it ended.
        settlement: Settlement,
    },
    /// Cancel a call on another connection that is a child of a request on this one.
    CancelForeign(ForeignChild),
    /// Something for the log and the counters.
    Event(Event),
    /// Flush for at most [`Limits::flush_timeout`](crate::Limits::flush_timeout), then close.
    Close(CloseCause),
}

/// The answer to a request.
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

/// The content of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyBody {
    /// The value or error that the handler returned.
    Handler,
    /// The dialect's cancelled answer for this cause.
    Cancelled(Cause),
    /// The fixed result for requests that end gracefully.
    Graceful(&'static str),
    /// A refusal by the machine.
    Refused(Refusal),
}

/// The number of a child on another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ForeignChild(pub u64);

/// How a call of this side ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// By the answer that this step received.
    Answered {
        /// The first cause, if a cancel was requested before.
        cancelled: Option<Cause>,
    },
    /// It was cancelled.
    Cancelled {
        /// The first cause.
        cause: Cause,
        /// The peer confirmed it, or the request was never sent.
        confirmed: bool,
    },
    /// The connection was lost.
    Disconnected {
        /// The request had been written.
        may_have_run: bool,
    },
}

/// An event for the log and the counters. Events do not change behaviour.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A cancel named a request that is finished, unknown, or of another principal.
    UnknownCancel,
    /// A cancel named no valid id.
    MalformedCancel,
    /// A cancel was ignored: cancels were not declared, that side may not cancel, or the request is not cancellable.
    IgnoredCancel,
    /// A notification arrived before the session was open, and was dropped.
    EarlyNotification,
    /// A cancel waits for its request.
    ParkedCancel,
    /// An answer arrived for a call that had ended.
    LateAnswer,
    /// An answer arrived for a call that was never made.
    UnknownAnswer,
    /// A request was refused because of this limit.
    LimitReached(&'static str),
    /// A request arrived with an id in use.
    DuplicateId,
    /// A frame was not a message.
    BadFrame,
    /// The peer did something against its protocol, and the connection goes on.
    Deviation(Deviation),
    /// A request's progress token was ignored: it is neither a string nor an integer, or it has more than 256 bytes.
    IgnoredToken,
    /// The peer did not answer a cancelled call in time.
    Unresponsive(OutboundKey),
    /// A handler panicked.
    HandlerPanicked(InboundKey),
    /// A handler returned an error of its own after its cancel. The peer gets the cancelled answer.
    ErrorAfterCancel(InboundKey),
    /// The grace had elapsed, and the handler's task was aborted.
    Aborted(InboundKey),
}

/// The reason for which the connection must close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseCause {
    /// The shutdown is complete.
    Shutdown,
    /// The input has ended and nothing runs any more.
    InputEnded,
    /// The peer sends requests and does not read the answers.
    PeerNotReading,
}
