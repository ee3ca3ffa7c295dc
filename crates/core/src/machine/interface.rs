//! The inputs and the outputs of the machine. `recv_*` inputs come from the peer, `local_*` inputs from code of this side.

use std::time::Instant;

use crate::cause::{Cause, CauseKind};
use crate::dialect::Refusal;
use crate::id::{CallNumber, ClientNumber, ExchangeId, InboundKey, OutboundKey, Principal, RequestId, Scope};
use crate::message::{AckStatus, CancelExemption, CancelKey, Deviation};

/// The origin of a message.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The scope in which its ids are unique.
    pub scope: Scope,
    /// The exchange on which it arrived.
    pub exchange: ExchangeId,
    /// The principal that sent it.
    pub principal: Option<Principal>,
    /// The client that sent it, where the connection carries several clients.
    pub client: Option<ClientNumber>,
}

impl Origin {
    /// A message on a byte stream without an auth hook.
    pub const STREAM: Self =
        Self { scope: Scope::Session, exchange: ExchangeId::NONE, principal: None, client: None };
}

/// A request of the peer, without its params.
#[derive(Clone, Debug)]
pub struct InboundRequest<'a> {
    /// Its id.
    pub id: RequestId,
    /// The key by which a cancel names it.
    pub cancel_key: CancelKey,
    /// Its method.
    pub method: &'a str,
    /// Whether its params make it uncancellable by messages.
    pub exempt: CancelExemption,
    /// The mark of the codec.
    pub tag: u8,
    /// The origin of its message.
    pub origin: Origin,
    /// Whether its method is declared as server-cancellable (LSP).
    pub server_cancellable: bool,
    /// Where its handler runs.
    pub work: Work,
    /// Whether it waits for something that can be asked for again, so that it is cancelled soon after its stream is lost,
    /// where other requests run on.
    pub ends_with_stream: bool,
    /// Whether the server, over all its connections, admits it. `Err` names the limit that is reached.
    pub admission: Result<(), &'static str>,
}

impl<'a> InboundRequest<'a> {
    /// A request that arrived on a stream, is cancelled by its id, and whose handler is a task. It is admitted.
    #[must_use]
    pub const fn new(id: RequestId, method: &'a str) -> Self {
        Self {
            id,
            cancel_key: CancelKey::SameAsId,
            method,
            exempt: CancelExemption::No,
            tag: 0,
            origin: Origin::STREAM,
            server_cancellable: false,
            work: Work::Task,
            ends_with_stream: false,
            admission: Ok(()),
        }
    }
}

/// Where a handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// A task.
    Task,
    /// A thread of the blocking pool, which cannot be aborted.
    Blocking,
    /// A task of a short request that reports other work or cancels it. It has permits of its own, an eighth of the handlers that
    /// may run, so that it never waits for that work.
    Control,
}

/// How a handler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandlerResult {
    /// It returned a value.
    Value,
    /// It returned an error of its own.
    Error,
    /// It stopped because of its cancel. The peer gets the dialect's cancelled answer.
    Stopped,
    /// It panicked.
    Panicked,
}

/// A call of this side, without its params.
#[derive(Clone, Debug)]
pub struct CallSpec<'a> {
    /// Its method.
    pub method: &'a str,
    /// The request of the peer to which it belongs, and with which it is cancelled.
    pub parent: Option<InboundKey>,
    /// Its deadline: it is cancelled at this time.
    pub deadline: Option<Instant>,
    /// Whether its params make it uncancellable by messages.
    pub exempt: CancelExemption,
    /// How the caller proceeds after a cancel. `None`: the dialect's default.
    pub after_cancel: Option<AfterCancel>,
}

impl<'a> CallSpec<'a> {
    /// A call without a parent and without a deadline.
    #[must_use]
    pub const fn new(method: &'a str) -> Self {
        Self { method, parent: None, deadline: None, exempt: CancelExemption::No, after_cancel: None }
    }
}

/// How a caller proceeds after its cancel was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AfterCancel {
    /// It waits for the peer's answer, for at most
    /// [`Limits::cancel_response_timeout`](crate::Limits::cancel_response_timeout). The default where the dialect
    /// requires an answer.
    WaitForPeer,
    /// It returns at once. The default where the dialect forbids an answer, and for a dropped call.
    ReturnNow,
}

/// The kind of the peer's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnswerKind {
    /// A value.
    Value,
    /// The dialect's cancelled answer.
    Cancelled,
    /// Any other error.
    Error,
}

/// How requests of the peer are treated when the connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DisconnectPolicy {
    /// Cancel them at once. The driver uses this policy on every transport. The loss of one stream over HTTP is not the
    /// loss of the connection: see [`LostStream`](crate::dialect::LostStream).
    CancelNow,
    /// They run for [`Limits::detach_grace`](crate::Limits::detach_grace), then they are cancelled.
    Detach,
    /// They run to their ends. Their answers are dropped.
    Keep,
}

/// What the cancel of a call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CancelResult {
    /// A cancel is sent to the peer.
    Sent,
    /// The request was not written yet. It is removed from the outbox and never sent.
    TakenBack,
    /// No cancel can be sent: the request is not cancellable, or the peer does not accept cancels. The call is settled
    /// on this side alone.
    NotSupported,
    /// The call had ended, or was cancelled before.
    AlreadySettled,
}

/// Why a request did not become a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoTask {
    /// It is cancelled, settled or a task already, or the connection ends.
    Ended,
    /// Half of the handlers that may run do the work of tasks.
    TooMany,
}

/// Why a call of this side was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallRefused {
    /// [`Limits::max_calls`](crate::Limits::max_calls) is reached.
    TooMany,
    /// Its parent is cancelled, or this side is shutting down. Nothing is sent.
    AlreadyCancelled(Cause),
    /// The connection is lost.
    Disconnected,
}

impl From<CauseKind> for CallRefused {
    fn from(kind: CauseKind) -> Self {
        Self::AlreadyCancelled(Cause::new(kind))
    }
}

// The outputs of the machine. Each input computes all of its outputs; polling only pops them.

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
    /// The work of a task has ended for its clients. At most once for each task (I16).
    TaskEnded {
        /// The request that became the task.
        key: InboundKey,
        /// The cause, if the task was cancelled. `None`: by the handler's value or error, which is kept.
        cancelled: Option<Cause>,
    },
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
    /// The handle of the task that the request became.
    TaskHandle,
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
    /// No answer can arrive any more: the connection was lost, its input has ended, or the exchange of the call failed.
    Disconnected {
        /// The request may have reached the peer: it was passed to the transport, which does not know that it was not
        /// sent.
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
    /// An answer arrived that belongs to no call: it names no call of this side, or one whose request is not written yet.
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
