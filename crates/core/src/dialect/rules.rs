//! What a dialect demands, as data.

use std::time::Duration;

use crate::framing::Framing;
use crate::message::{BadMessage, ErrorCode};

/// The rules of a dialect. Each field is a row of the table in the design.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rules {
    /// The name scripts use.
    pub name: &'static str,
    /// The request that opens a session, if there is one. Never cancelled by a message, a caller or a parent (I9).
    pub handshake: Option<&'static str>,
    /// Requests and cancels before the handshake's answer are refused as "not initialized" (ABP).
    pub session_required: bool,
    /// How a client begins and ends the session of its server, where the server has to hold it to that (LSP).
    pub lifecycle: Option<ServerLifecycle>,
    /// Who settles a request the peer cancelled.
    pub decided: DecidedBy,
    /// What the peer gets for a request it cancelled.
    pub peer_cancelled: CancelledReply,
    /// The error for a request this side cancelled, where the codec has no shape of its own for it.
    pub local_cancelled: CancelledError,
    /// The error in place of `local_cancelled` for methods declared as server-cancellable (LSP).
    pub server_cancelled: Option<CancelledError>,
    /// The errors of a handler that are sent unchanged although its request was cancelled before (LSP).
    pub errors_after_cancel: &'static [ErrorCode],
    /// Whether cancels are acknowledged.
    pub ack: AckStyle,
    /// Whether a side must declare that it handles cancels.
    pub gate: CapabilityGate,
    /// Methods no cancel message reaches, beside the handshake.
    pub uncancellable: &'static [&'static str],
    /// A member of params that makes a request uncancellable (MCP: `task`), where its receiver declared that for the method or the
    /// dialect has no such declaration ([`Handshake::exempting`](super::Handshake::exempting)).
    pub uncancellable_param: Option<&'static str>,
    /// Methods the serving side may end by a cancel naming the caller's own request (MCP 2026: `subscriptions/listen`).
    pub peer_may_end: &'static [&'static str],
    /// Requests answered with this result, as raw JSON, when they are torn down (MCP 2026: `subscriptions/listen`).
    pub graceful: &'static [(&'static str, &'static str)],
    /// Requests answered with this result, as raw JSON, when the peer or this side's own code (`CauseKind::Local`) cancels them and
    /// their handler gives no value in its grace (ACP: `session/prompt`).
    pub called_off: &'static [(&'static str, &'static str)],
    /// Requests whose method starts so are answered `METHOD_NOT_FOUND` and do nothing.
    pub reserved_prefix: Option<&'static str>,
    /// Who may cancel.
    pub cancel_from: CancelFrom,
    /// Whether a value that comes after the cancel is still sent.
    pub answer_after_cancel: AnswerAfterCancel,
    /// Whether a cancel may wait for its request.
    pub early: EarlyCancel,
    /// What the loss of a request's own stream means, on wires that have one.
    pub lost_stream: LostStream,
    /// After the end of input, what runs has at most so long to answer; then it is cancelled. `None`: as long as
    /// [`Limits::half_close_grace`](crate::Limits::half_close_grace) says. MCP: its servers exit at the end of their input.
    pub half_close_at_most: Option<Duration>,
    /// The timeout of a client's calls where neither the call nor its connection sets one. `None`: none. MCP asks for one.
    pub call_timeout: Option<Duration>,
    /// The most time such a call has where progress renews its timeout. `None`: no bound. MCP asks for one.
    pub max_call_timeout: Option<Duration>,
    /// Whether settled keys are remembered to answer "already" (ABP).
    pub settled_memory: SettledMemory,
    /// How an error is written when no id is known.
    pub refusal: RefusalStyle,
    /// The revision (its handshake's version text) in which batches are allowed, on wires other than HTTP.
    pub batch_revision: Option<&'static str>,
    /// The framing on byte streams unless another is chosen.
    pub framing: Framing,
}

/// How a client begins and ends the session of its server. Before the handshake's request the server refuses others as "not
/// initialized" and drops notifications, but for `exit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLifecycle {
    /// The request after which every other is refused as invalid.
    pub shutdown: &'static str,
    /// The result of that request where the server's own code does not serve it, as raw JSON.
    pub shutdown_result: &'static str,
    /// The notification that closes the connection and asks for the end of the server's process.
    pub exit: &'static str,
}

/// An error with a fixed code and text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelledError {
    /// The code.
    pub code: ErrorCode,
    /// The text.
    pub message: &'static str,
    /// Whether `data.reason` says what kind of cause it was.
    pub says_why: bool,
}

/// Who settles a request the peer cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidedBy {
    /// The handler's own end, or the grace.
    Handler,
    /// The cancel, at once.
    Cancel,
}

/// What the peer gets for a request it cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelledReply {
    /// This error.
    Error(CancelledError),
    /// The codec's own shape (ABP: `{success:false, cancelled:true}`).
    OwnShape,
    /// Nothing at all.
    Silence,
}

/// Whether cancels are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckStyle {
    /// They are not.
    None,
    /// Each cancel is a request of its own and gets an answer of its own.
    Acknowledged,
}

/// Whether a side must declare that it handles cancels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapabilityGate {
    /// Cancels are always understood.
    None,
    /// Only after the handshake, and only towards a side that declared it (ACP draft).
    Declared,
}

/// Who may cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelFrom {
    /// Both sides.
    Both,
    /// Only the side that opened the connection; the other side's cancels are ignored, and none is sent to it.
    Client,
}

/// Whether a value that comes after the cancel is still sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerAfterCancel {
    /// As the dialect's other rules say.
    Dialect,
    /// A handler that finishes with a value after its cancel gets it sent (GetMCP); the grace settles nothing.
    ResultIfFinished,
}

/// Whether a cancel may wait for its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyCancel {
    /// Never.
    Never,
    /// Where the wire gives no order.
    WhereUnordered,
    /// On every wire whose ids live as long as the session.
    Always,
}

/// What the loss of a request's own stream means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostStream {
    /// The request goes on for [`Limits::detach_grace`](crate::Limits::detach_grace) and is then cancelled.
    Detach,
    /// The request goes on until it ends or its session does, unless
    /// [`Limits::lost_stream_grace`](crate::Limits::lost_stream_grace) says after how long it is cancelled.
    Keep,
    /// The request is cancelled at once.
    Cancel,
}

/// Whether settled keys are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettledMemory {
    /// Only where early cancels may be parked.
    ForParking,
    /// Always, to answer a late cancel with what became of its request.
    ForAcks,
}

/// How an error is written when no id is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalStyle {
    /// `id: null`.
    NullId,
    /// No `id` member.
    NoIdMember,
    /// Nothing is written; it is counted.
    Nothing,
}

/// Why a frame or a request is refused without its handler being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The frame is not a message.
    Bad(BadMessage),
    /// The id belongs to a request that has no answer yet.
    DuplicateId,
    /// A limit was reached; it is named in the answer.
    Overloaded(&'static str),
    /// Nobody serves the method.
    MethodNotFound,
    /// The session is not open yet.
    NotInitialized,
    /// The client has shut the session down.
    ShutDown,
    /// The key by which it would be cancelled is already in use (ABP: duplicate `callId`).
    DuplicateKey,
    /// Something failed on this side: a panic, an answer over the frame limit.
    Internal,
}

/// The rules a dialect starts from: an answer of -32800 is owed, and nothing else is special.
pub(super) const BASE: Rules = Rules {
    name: "json-rpc",
    handshake: None,
    session_required: false,
    lifecycle: None,
    decided: DecidedBy::Handler,
    peer_cancelled: CancelledReply::Error(REQUEST_CANCELLED),
    local_cancelled: REQUEST_CANCELLED,
    server_cancelled: None,
    errors_after_cancel: &[],
    ack: AckStyle::None,
    gate: CapabilityGate::None,
    uncancellable: &[],
    uncancellable_param: None,
    peer_may_end: &[],
    graceful: &[],
    called_off: &[],
    reserved_prefix: None,
    cancel_from: CancelFrom::Both,
    answer_after_cancel: AnswerAfterCancel::Dialect,
    early: EarlyCancel::Never,
    lost_stream: LostStream::Detach,
    half_close_at_most: None,
    call_timeout: None,
    max_call_timeout: None,
    settled_memory: SettledMemory::ForParking,
    refusal: RefusalStyle::NullId,
    batch_revision: None,
    framing: Framing::Newline,
};

const REQUEST_CANCELLED: CancelledError =
    CancelledError { code: ErrorCode::REQUEST_CANCELLED, message: "Request cancelled", says_why: false };
