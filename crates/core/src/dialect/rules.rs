//! The rules of a dialect, as data.

use std::fmt;
use std::time::Duration;

use serde_json::value::RawValue;

use crate::cause::Cause;
use crate::dialect::jsonrpc::JsonRpc;
use crate::framing::Framing;
use crate::id::{CallNumber, RequestId};
use crate::message::{AckStatus, AnswerFault, BadMessage, ErrorCode, ErrorObject, Incoming};

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
    /// Requests that go on after their first answer. `None`: the protocol has none.
    pub tasks: Option<TaskForm>,
    /// The members of params that a log of requests shows.
    pub shown: ShownMembers,
    /// The default framing on byte streams.
    pub framing: Framing,
}

/// The members of a protocol's params that a log of requests shows. Each text is a pointer (RFC 6901) into params.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShownMembers {
    /// The subject of a request, such as its tool or its document: the first of these that is a text.
    pub about: &'static [&'static str],
    /// The object with the `name` and the `version` of the client, in its handshake or in each request.
    pub client: Option<&'static str>,
    /// The notification of a request's progress, and how far the request is in it.
    pub progress: Option<(&'static str, ProgressMembers)>,
}

/// How far a request is, in a notification of its progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgressMembers {
    /// What is done, and of how much, if that is known.
    Parts {
        /// What is done.
        done: &'static str,
        /// Of how much.
        total: &'static str,
    },
    /// What is done, in percent.
    Percent(&'static str),
}

impl ShownMembers {
    /// The members of a protocol whose requests are about these.
    #[must_use]
    pub const fn new(about: &'static [&'static str]) -> Self {
        Self { about, client: None, progress: None }
    }

    /// With the place of the client's name.
    #[must_use]
    pub const fn with_client(mut self, client: &'static str) -> Self {
        self.client = Some(client);
        self
    }

    /// With the notification of progress and its form.
    #[must_use]
    pub const fn with_progress(mut self, notification: &'static str, members: ProgressMembers) -> Self {
        self.progress = Some((notification, members));
        self
    }
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

/// The form of tasks in a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskForm {
    /// MCP 2025-11-25, "Tasks": the client asks for a task, and gets its result with `tasks/result`.
    AskedByClient,
    /// The extension of MCP 2026-07-28: the server decides, and `tasks/get` has the result.
    DecidedByServer,
}

/// How far a task is. The last three are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskStatus {
    /// The handler does the work.
    Working,
    /// The handler waits for an answer of the client.
    InputRequired,
    /// It has a result.
    Completed,
    /// It has an error.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl TaskStatus {
    /// The status as the protocols write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The status with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        [Self::Working, Self::InputRequired, Self::Completed, Self::Failed, Self::Cancelled]
            .into_iter()
            .find(|status| status.name() == name)
    }

    /// Whether no other status can follow.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Working | Self::InputRequired => false,
            Self::Completed | Self::Failed | Self::Cancelled => true,
        }
    }
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
    tasks: None,
    shown: ShownMembers::new(&[]),
    framing: Framing::Newline,
};

const REQUEST_CANCELLED: CancelledError =
    CancelledError { code: ErrorCode::REQUEST_CANCELLED, message: "Request cancelled", says_why: false };

/// Reads and writes the envelopes of a dialect. No method keeps state: everything about the connection is in the
/// arguments.
///
/// Every `encode_*` appends one whole message to `out`, without framing and without a raw newline. A method with a
/// `bool` returns `false` if the dialect has no such message; then nothing was appended.
pub trait Codec: Send + Sync + fmt::Debug + 'static {
    /// Reads a frame. A bad frame is an [`Incoming::Bad`], never a panic.
    fn decode<'a>(&self, frame: &'a [u8]) -> Incoming<'a>;

    /// The call that a frame names which [`decode`](Self::decode) did not read for this reason, and what is wrong with it.
    /// No call: it is an answer, and its id was not found. `None`: it may be something else than an answer.
    fn unreadable_answer(&self, frame: &[u8], why: BadMessage) -> Option<(Option<CallNumber>, AnswerFault)> {
        let (_, _) = (frame, why);
        None
    }

    /// Writes a call of this side.
    fn encode_request(&self, rules: &Rules, out: &mut Vec<u8>, call: &CallFrame<'_>);

    /// Writes a notification.
    fn encode_notification(&self, rules: &Rules, out: &mut Vec<u8>, method: &str, params: Option<&RawValue>);

    /// Writes the value that answers a request of the peer.
    fn encode_value(&self, rules: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, value: &RawValue);

    /// Writes a fixed result of [`Rules::graceful`]. A dialect may add members that such a result must have.
    fn encode_graceful(&self, rules: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, result: &'static str) {
        match crate::dialect::json::raw(result) {
            Some(value) => self.encode_value(rules, out, to, value),
            None => self.encode_error(rules, out, to, &ErrorObject::internal()),
        }
    }

    /// Writes the error that answers a request of the peer.
    fn encode_error(&self, rules: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, error: &ErrorObject);

    /// Writes the answer to a cancelled request. `cause` says whether the peer or this side cancelled it.
    fn encode_cancelled(&self, rules: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, cause: &Cause);

    /// Writes a refusal: with the request's id if `to` is given, else in the dialect's form for errors without an id.
    fn encode_refusal(
        &self,
        rules: &Rules,
        out: &mut Vec<u8>,
        to: Option<&ReplyTo<'_>>,
        why: Refusal,
    ) -> bool;

    /// Writes a cancel of a call of this side. `cancel` is the number of the cancel itself, in dialects that
    /// acknowledge cancels. `seed` is that of the connection, as in [`CallFrame::seed`].
    fn encode_cancel(
        &self,
        rules: &Rules,
        out: &mut Vec<u8>,
        call: CallNumber,
        cancel: CallNumber,
        seed: u128,
        reason: Option<&str>,
    );

    /// Writes the acknowledgement of a cancel, if the dialect has one. `key` is the key that the cancel named.
    fn encode_ack(
        &self,
        rules: &Rules,
        out: &mut Vec<u8>,
        ack: &RequestId,
        key: Option<&RequestId>,
        status: AckStatus,
    ) -> bool;

    /// Reads what the handshake says about cancelling, from either part and either side.
    fn read_handshake(&self, part: HandshakePart, body: &RawValue) -> Handshake;

    /// Adds the declaration of this side to its own part of the handshake, if the dialect has a declaration and the
    /// user gave none. `None`: nothing is added.
    fn declare(&self, part: HandshakePart, body: &RawValue, handles_cancels: bool) -> Option<Box<RawValue>>;

    /// Whether a first frame belongs to this dialect, for [`negotiate`](crate::dialect::negotiate).
    fn recognises(&self, rules: &Rules, frame: &[u8]) -> bool;

    /// The call of this side whose progress a notification reports, found by the token that [`CallFrame::progress`] or
    /// [`CallFrame::partial`] added.
    fn progressed_call(&self, method: &str, params: Option<&RawValue>) -> Option<CallNumber> {
        let (_, _) = (method, params);
        None
    }

    /// The progress token in a notification or a call of a handler of this side, if the peer can cancel the handler's
    /// request by it.
    fn reported_token(&self, method: &str, params: Option<&RawValue>) -> Option<RequestId> {
        let (_, _) = (method, params);
        None
    }

    /// The progress token by which a notification of the peer cancels the request that reports with it.
    fn cancelled_token(&self, method: &str, params: Option<&RawValue>) -> Option<RequestId> {
        let (_, _) = (method, params);
        None
    }

    /// This codec, if it is [`JsonRpc`]. The builder then copies some of the rules into it.
    fn as_json_rpc(&self) -> Option<&JsonRpc> {
        None
    }
}

/// A call of this side, to be written.
#[derive(Debug)]
#[non_exhaustive]
pub struct CallFrame<'a> {
    /// Its number.
    pub number: CallNumber,
    /// A number that is drawn once for each connection. A dialect makes keys from it that are unique across connections
    /// (ABP).
    pub seed: u128,
    /// The method.
    pub method: &'a str,
    /// The params.
    pub params: Option<&'a RawValue>,
    /// The caller's timeout, in dialects that send it to the peer.
    pub timeout: Option<Duration>,
    /// Whether the caller requests progress. The codec then adds the call's number as its progress token.
    pub progress: bool,
    /// Whether the caller requests partial results, in dialects that have them (LSP). The codec then adds a token for
    /// them, made from the call's number.
    pub partial: bool,
}

impl<'a> CallFrame<'a> {
    /// A call without timeout, progress or parts.
    #[must_use]
    pub const fn new(number: CallNumber, seed: u128, method: &'a str, params: Option<&'a RawValue>) -> Self {
        Self { number, seed, method, params, timeout: None, progress: false, partial: false }
    }
}

/// The request to which an answer belongs.
#[derive(Clone, Copy, Debug)]
pub struct ReplyTo<'a> {
    /// Its id.
    pub id: &'a RequestId,
    /// The codec's mark from [`IncomingRequest::tag`](crate::IncomingRequest::tag).
    pub tag: u8,
    /// Whether its method is declared as server-cancellable. If this side cancels it, its error is
    /// [`Rules::server_cancelled`], if there is one.
    pub server_cancellable: bool,
}

/// The role of this side on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// This side opened the connection and sends the handshake.
    Client,
    /// The peer opened the connection and sends the handshake.
    Server,
}

/// A part of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakePart {
    /// The params of the request, which the client writes.
    Params,
    /// The result of the answer, which the server writes.
    Result,
}

/// The content of one part of a handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Handshake {
    /// Whether the writer handles cancels. `None`: it does not say.
    pub handles_cancels: Option<bool>,
    /// The protocol version, as text.
    pub revision: Option<String>,
    /// The methods for which the writer declares that [`Rules::uncancellable_param`] makes a request uncancellable.
    /// `None`: the dialect has no such declaration, and the param counts for every method.
    pub exempting: Option<Vec<String>>,
}

impl Handshake {
    /// One part of a handshake, without [`exempting`](Self::exempting).
    #[must_use]
    pub const fn new(handles_cancels: Option<bool>, revision: Option<String>) -> Self {
        Self { handles_cancels, revision, exempting: None }
    }

    /// The same part with [`exempting`](Self::exempting).
    #[must_use]
    pub fn with_exempting(self, exempting: Option<Vec<String>>) -> Self {
        Self { exempting, ..self }
    }
}

/// What the binding `acp` reads from a body: the session that a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionBodies {
    /// The request that opens a connection. Its answer is the response to its own POST.
    pub opening: &'static str,
    /// The member of that answer's result that names the connection.
    pub connection: &'static str,
    /// The member of params, and of results, that names a session.
    pub session: &'static str,
    /// Methods of one session. A header must name it, even if their params do not.
    pub of_session: &'static [&'static str],
    /// Methods of a session whose answer is sent on the stream of the connection.
    pub answered_on_connection: &'static [&'static str],
    /// Methods with this prefix belong to the connection, even if their params name a session.
    pub of_connection: &'static str,
}

/// What a server without sessions reads from a body: which message is a cancel, and which request it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelBodies {
    /// The notification that cancels a request.
    pub method: &'static str,
    /// The member of its params with the id of the request.
    pub request: &'static str,
}

/// The messages that a client of the binding `streamable` repeats when its server has forgotten the session, so that the
/// connection can go on in a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewalBodies {
    /// The request that opens a session.
    pub opening: &'static str,
    /// The member of its result that names the revision, a text. A session whose server named none is not opened again.
    pub revision: &'static str,
    /// The notification after its answer.
    pub opened: &'static str,
    /// Requests that set something for the whole session. The last one of each method is repeated.
    pub settings: &'static [&'static str],
    /// Pairs of requests, the second of which takes back the first, and the member of their params that names what
    /// they are about. Each that was not taken back is repeated.
    pub subscriptions: &'static [(&'static str, &'static str, &'static str)],
}

/// What the binding `stateless` reads from a body: the members that headers repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirroredBodies {
    /// The revision of a message that names none.
    pub revision: &'static str,
    /// The member of `params._meta` with the revision. Each request has it.
    pub revision_member: &'static str,
    /// The member of `params._meta` with the capabilities. Each request has it.
    pub capabilities_member: &'static str,
    /// The member of params that `Mcp-Name` repeats, by method. A name that ends in `/` means all methods with this
    /// prefix.
    pub names: &'static [(&'static str, &'static str)],
    /// The method that calls a tool: `Mcp-Param-*` headers repeat members of its `arguments`.
    pub tool_call: &'static str,
}
