//! The rules of a dialect, as data.

use std::time::Duration;

use crate::framing::Framing;
use crate::message::{BadMessage, ErrorCode};

/// The rules of a dialect.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rules {
    /// The name, as the command line writes it.
    pub name: &'static str,
    /// The request that opens a session, if there is one. A message, a caller or a parent cannot cancel it (I9).
    pub handshake: Option<&'static str>,
    /// Whether requests and cancels before the handshake's answer are refused as "not initialized" (ABP).
    pub session_required: bool,
    /// How a client opens and closes the session, in dialects where the server enforces it (LSP).
    pub lifecycle: Option<ServerLifecycle>,
    /// What settles a request that the peer cancelled.
    pub decided: DecidedBy,
    /// The answer to a request that the peer cancelled.
    pub peer_cancelled: CancelledReply,
    /// The error for a request that this side cancelled, unless the codec has a form of its own for it.
    pub local_cancelled: CancelledError,
    /// The error that replaces `local_cancelled` for methods declared as server-cancellable (LSP).
    pub server_cancelled: Option<CancelledError>,
    /// The errors of a handler that are sent unchanged after a cancel of its request (LSP).
    pub errors_after_cancel: &'static [ErrorCode],
    /// Whether cancels are acknowledged.
    pub ack: AckStyle,
    /// Whether a side must declare that it handles cancels.
    pub gate: CapabilityGate,
    /// Methods that no cancel message can cancel, in addition to the handshake.
    pub uncancellable: &'static [&'static str],
    /// A member of params that makes a request uncancellable (MCP: `task`). If the dialect has a declaration for that
    /// ([`Handshake::exempting`](super::Handshake::exempting)), it applies only to methods for which the receiver
    /// declared it.
    pub uncancellable_param: Option<&'static str>,
    /// Methods whose requests the serving side may end with a cancel that names the caller's request (MCP 2026:
    /// `subscriptions/listen`).
    pub peer_may_end: &'static [&'static str],
    /// Methods whose requests are answered with this result, as raw JSON, when this side ends them (MCP 2026:
    /// `subscriptions/listen`).
    pub graceful: &'static [(&'static str, &'static str)],
    /// Methods whose requests are answered with this result, as raw JSON, when the peer or code of this side
    /// (`CauseKind::Local`) cancels them and their handler returns no value within the grace (ACP: `session/prompt`).
    pub called_off: &'static [(&'static str, &'static str)],
    /// Requests whose method has this prefix are answered with `METHOD_NOT_FOUND`.
    pub reserved_prefix: Option<&'static str>,
    /// Who may cancel.
    pub cancel_from: CancelFrom,
    /// Whether a value that the handler returns after the cancel is still sent.
    pub answer_after_cancel: AnswerAfterCancel,
    /// Whether a cancel may wait for its request.
    pub early: EarlyCancel,
    /// What the loss of a request's stream means, on transports where a request has a stream.
    pub lost_stream: LostStream,
    /// The longest time for which requests run on after the end of input, before they are cancelled. `None`:
    /// [`Limits::half_close_grace`](crate::Limits::half_close_grace) alone decides. MCP: servers exit at the end of
    /// their input.
    pub half_close_at_most: Option<Duration>,
    /// The timeout of a client's calls, unless the call or its connection sets one. `None`: no timeout. MCP recommends
    /// one.
    pub call_timeout: Option<Duration>,
    /// The longest time of such a call whose timeout restarts with progress. `None`: no maximum. MCP recommends one.
    pub max_call_timeout: Option<Duration>,
    /// Whether the handler of a request starts only after the router has handled the notifications before it (LSP). A
    /// router can require it too: [`Router::in_order`](crate::Router::in_order).
    pub in_order: bool,
    /// Whether settled keys are remembered, to answer a late cancel with "already" (ABP).
    pub settled_memory: SettledMemory,
    /// How an error is written when no id is known.
    pub refusal: RefusalStyle,
    /// The subprotocols of WebSocket that mean this dialect. A server selects the first that the client offers, because
    /// a browser ends a connection without one that it offered.
    pub subprotocols: &'static [&'static str],
    /// The revision (the version in the handshake) that allows batches. Over HTTP the transport takes them apart.
    pub batch_revision: Option<&'static str>,
    /// The default framing on byte streams.
    pub framing: Framing,
}

/// How a client opens and closes the session. Before the handshake's request the server refuses other requests as "not
/// initialized" and drops notifications, except `exit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLifecycle {
    /// The request after which every other request is refused as invalid.
    pub shutdown: &'static str,
    /// The result of that request if the router does not serve it, as raw JSON.
    pub shutdown_result: &'static str,
    /// The notification that closes the connection and requests the end of the server's process.
    pub exit: &'static str,
}

/// The text of the cancelled answer to a request that an operator stopped, in each dialect.
pub(super) const STOPPED_BY_OPERATOR: &str = "Request cancelled by an operator";

/// An error with a fixed code and text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelledError {
    /// The code.
    pub code: ErrorCode,
    /// The text.
    pub message: &'static str,
    /// Whether `data.reason` names the kind of the cause.
    pub says_why: bool,
}

/// What settles a request that the peer cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidedBy {
    /// The end of the handler, or the end of the grace.
    Handler,
    /// The cancel, at once.
    Cancel,
}

/// The answer to a request that the peer cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelledReply {
    /// This error.
    Error(CancelledError),
    /// A form of the codec (ABP: `{success:false, cancelled:true}`).
    OwnShape,
    /// No answer.
    Silence,
}

/// Whether cancels are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckStyle {
    /// No.
    None,
    /// Yes: each cancel is a request and gets an answer of its own.
    Acknowledged,
}

/// Whether a side must declare that it handles cancels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapabilityGate {
    /// Cancels are always understood.
    None,
    /// Cancels are used only after the handshake, and only towards a side that declared them (ACP draft).
    Declared,
}

/// Who may cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelFrom {
    /// Both sides.
    Both,
    /// Only the client. Cancels of the server are ignored, and this side sends none if it is the server.
    Client,
}

/// Whether a value that comes after the cancel is still sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerAfterCancel {
    /// The other rules of the dialect decide.
    Dialect,
    /// A value that the handler returns after its cancel is sent (GetMCP). The grace settles nothing.
    ResultIfFinished,
}

/// Whether a cancel may wait for its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyCancel {
    /// Never.
    Never,
    /// On transports that may reorder frames.
    WhereUnordered,
    /// On every transport where ids are unique within the session.
    Always,
}

/// What the loss of a request's stream means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostStream {
    /// The request runs on for [`Limits::detach_grace`](crate::Limits::detach_grace) and is then cancelled.
    Detach,
    /// The request runs on until it ends or its session ends. With
    /// [`Limits::lost_stream_grace`](crate::Limits::lost_stream_grace) it is cancelled after that time.
    Keep,
    /// The request is cancelled at once.
    Cancel,
}

/// Whether settled keys are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettledMemory {
    /// Only where early cancels may wait for their request.
    ForParking,
    /// Always, to answer a late cancel with the result of its request.
    ForAcks,
}

/// How an error is written when no id is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalStyle {
    /// `id: null`.
    NullId,
    /// No `id` member.
    NoIdMember,
    /// Nothing is written. The error is counted.
    Nothing,
}

/// Why a frame or a request is refused before its handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The frame is not a message.
    Bad(BadMessage),
    /// The id belongs to a request that is not answered yet.
    DuplicateId,
    /// A limit was reached. The answer names it.
    Overloaded(&'static str),
    /// The method is not served.
    MethodNotFound,
    /// The session is not open yet.
    NotInitialized,
    /// The client has shut the session down.
    ShutDown,
    /// The key by which a cancel would name it is in use (ABP: duplicate `callId`).
    DuplicateKey,
    /// This side failed: a panic, or an answer above the frame limit.
    Internal,
}

/// The rules from which a dialect starts: a cancelled request is answered with -32800.
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
    in_order: false,
    settled_memory: SettledMemory::ForParking,
    refusal: RefusalStyle::NullId,
    subprotocols: &["jsonrpc"],
    batch_revision: None,
    framing: Framing::Newline,
};

const REQUEST_CANCELLED: CancelledError =
    CancelledError { code: ErrorCode::REQUEST_CANCELLED, message: "Request cancelled", says_why: false };
