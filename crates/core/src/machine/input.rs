//! What the machine is told. `recv_*` inputs come from the peer, `local_*` from our user.

use std::time::Instant;

use crate::cause::{Cause, CauseKind};
use crate::id::{ClientNumber, ExchangeId, InboundKey, Principal, RequestId, Scope};
use crate::message::{CancelExemption, CancelKey};

/// Where a message came from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The space its ids are unique in.
    pub scope: Scope,
    /// The exchange it came on.
    pub exchange: ExchangeId,
    /// Who sent it.
    pub principal: Option<Principal>,
    /// Whose it is, where the connection is many clients'.
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
    /// What a cancel will name it by.
    pub cancel_key: CancelKey,
    /// Its method.
    pub method: &'a str,
    /// Whether its params put it out of a cancel's reach.
    pub exempt: CancelExemption,
    /// The codec's own mark.
    pub tag: u8,
    /// Where it came from.
    pub origin: Origin,
    /// The method is declared as one this side may cancel (LSP's server-cancellable).
    pub server_cancellable: bool,
    /// What its handler runs on.
    pub work: Work,
    /// What the server says, over all its connections. `Err` names the limit that is reached.
    pub admission: Result<(), &'static str>,
}

/// What a handler runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// A task.
    Task,
    /// A thread of the blocking pool, which cannot be aborted.
    Blocking,
}

/// How a handler ended, as far as the machine cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandlerResult {
    /// With a value.
    Value,
    /// With an error of its own.
    Error,
    /// It stopped because of its cancel and wants the dialect's cancelled answer.
    Stopped,
    /// It panicked, or let go of its responder without an answer.
    Panicked,
}

/// A call of ours, without its params.
#[derive(Clone, Debug)]
pub struct CallSpec<'a> {
    /// Its method.
    pub method: &'a str,
    /// The request of the peer it belongs to; it is cancelled with it.
    pub parent: Option<InboundKey>,
    /// When it is cancelled by itself.
    pub deadline: Option<Instant>,
    /// Whether its params put it out of a cancel's reach.
    pub exempt: CancelExemption,
    /// What its caller does after a cancel. `None`: the dialect's own way.
    pub after_cancel: Option<AfterCancel>,
}

impl<'a> CallSpec<'a> {
    /// A call without parent or deadline.
    #[must_use]
    pub const fn new(method: &'a str) -> Self {
        Self { method, parent: None, deadline: None, exempt: CancelExemption::No, after_cancel: None }
    }
}

/// What a caller does after its cancel was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AfterCancel {
    /// It waits for the peer's answer, [`Limits::peer_wait`](crate::Limits::peer_wait) at most. The default where an
    /// answer is owed.
    WaitForPeer,
    /// It returns at once. The default where the dialect answers with silence, and for a dropped call.
    ReturnNow,
}

/// What the peer's answer says, as far as the machine cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnswerKind {
    /// A value.
    Value,
    /// The dialect's words for "cancelled".
    Cancelled,
    /// Any other error.
    Error,
}

/// What became of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DisconnectPolicy {
    /// Cancel what the peer asked for now (byte streams, WebSocket).
    CancelNow,
    /// Let it run for [`Limits::detach_grace`](crate::Limits::detach_grace), then cancel it.
    Detach,
    /// Let it run to its end; its answers go nowhere.
    Keep,
}

/// What a local cancel was answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum CancelResult {
    /// A cancel goes to the peer.
    Sent,
    /// The request had not been written; it is taken back and never reaches the wire.
    TakenBack,
    /// The peer cannot be told; the call is settled here.
    NotSupported,
    /// The call had ended, or was being cancelled already.
    AlreadySettled,
}

/// Why a call of ours was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallRefused {
    /// [`Limits::calls`](crate::Limits::calls) calls are in flight.
    TooMany,
    /// It would start cancelled: its parent is, or this side shuts down. Nothing is sent.
    AlreadyCancelled(Cause),
    /// The connection is gone.
    Disconnected,
}

impl From<CauseKind> for CallRefused {
    fn from(kind: CauseKind) -> Self {
        Self::AlreadyCancelled(Cause::new(kind))
    }
}
