//! The inputs of the machine. `recv_*` inputs come from the peer, `local_*` inputs from code of this side.

use std::time::Instant;

use crate::cause::{Cause, CauseKind};
use crate::id::{ClientNumber, ExchangeId, InboundKey, Principal, RequestId, Scope};
use crate::message::{CancelExemption, CancelKey};

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
    /// Cancel them at once (byte streams, WebSocket).
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
