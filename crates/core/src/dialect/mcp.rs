//! The Model Context Protocol: the revisions with a session, and the one without.

use std::time::Duration;

use super::Dialect;
use super::http_bodies::MirroredBodies;
use super::jsonrpc::{Batches, CancelName, FirstMessage, JsonRpc, Progress, ReasonField, TokenField};
use super::rules::{
    BASE, CancelFrom, CancelledError, CancelledReply, DecidedBy, EarlyCancel, LostStream, RefusalStyle, Rules,
};
use crate::message::ErrorCode;

/// MCP 2024-11-05 to 2025-11-25 (source 002): `notifications/cancelled`, and no answer to what was cancelled.
pub const MCP: Dialect = Dialect::from_static(&MCP_RULES, &MCP_CODEC);

/// MCP 2026-07-28: no session and no handshake; only clients cancel.
pub const MCP_2026: Dialect = Dialect::from_static(&MCP_2026_RULES, &MCP_2026_CODEC);

/// "Lifecycle", "Initialization": the request that opens a session; over HTTP the one that has no session id.
pub const MCP_OPENING: &str = "initialize";

/// 2026-07-28, "Transports": what headers repeat of a body. "Tasks": `params.taskId`.
pub static MCP_2026_BODIES: MirroredBodies = MirroredBodies {
    revision: "2026-07-28",
    revision_member: META_VERSION,
    capabilities_member: "io.modelcontextprotocol/clientCapabilities",
    names: &[(TOOL_CALL, "name"), ("prompts/get", "name"), ("resources/read", "uri"), ("tasks/", "taskId")],
    tool_call: TOOL_CALL,
};

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const TOOL_CALL: &str = "tools/call";

/// 002-06, 002-07.
const CANCELLED: CancelName = CancelName { method: "notifications/cancelled", key: "requestId" };

/// "Lifecycle", "Shutdown": a client closes the input of its server and waits for it to exit; 2026-07-28 wants it to exit promptly.
/// What is about to answer still does, and what looks at its cancel ends at once.
const EXIT: Option<Duration> = Some(Duration::from_millis(250));

/// "Lifecycle", "Timeouts": all requests should have a timeout, and a maximum that no progress moves.
const CALL_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));
const MAX_CALL_TIMEOUT: Option<Duration> = Some(Duration::from_secs(600));

/// The member of params of a task-augmented request; such requests are cancelled as tasks (revision 2025-11-25,
/// "Tasks"; 2026-07-28 has no such member).
const TASK: Option<&str> = Some("task");

static MCP_RULES: Rules = Rules {
    name: "mcp",
    // "Cancellation", "Behavior Requirements": a client MUST NOT cancel its `initialize`.
    handshake: Some(MCP_OPENING),
    // The same section: the receiver SHOULD NOT answer; so nothing a handler says can matter.
    decided: DecidedBy::Cancel,
    peer_cancelled: CancelledReply::Silence,
    // what its caller did not cancel needs an answer.
    local_cancelled: CancelledError {
        code: ErrorCode::REQUEST_CANCELLED,
        message: "Request cancelled",
        says_why: true,
    },
    uncancellable_param: TASK,
    // A common client writes cancels before their requests.
    early: EarlyCancel::Always,
    // "Transports": a disconnect SHOULD NOT be interpreted as a cancel.
    lost_stream: LostStream::Keep,
    half_close_at_most: EXIT,
    call_timeout: CALL_TIMEOUT,
    max_call_timeout: MAX_CALL_TIMEOUT,
    // an id is never null.
    refusal: RefusalStyle::NoIdMember,
    //
    batch_revision: Some("2025-03-26"),
    ..BASE
};
static MCP_CODEC: JsonRpc = JsonRpc {
    // 002-09.
    reason: ReasonField::Param("reason"),
    // "Progress": a token in the request's `_meta`, number or string.
    progress: Some(Progress {
        token: TokenField::Meta("progressToken"),
        notification: "notifications/progress",
        told_under: "progressToken",
        partial: None,
        create: None,
        cancel: None,
    }),
    opening: FirstMessage::TextVersion,
    uncancellable_param: TASK,
    // "Tasks": what was not declared for a request's type is ignored, so that request is one like any other.
    exempting: Some("tasks"),
    batches: Batches::Read,
    ..JsonRpc::new(CANCELLED)
};

static MCP_2026_RULES: Rules = Rules {
    name: "mcp-2026",
    handshake: None,
    decided: DecidedBy::Cancel,
    // no further message of any kind.
    peer_cancelled: CancelledReply::Silence,
    local_cancelled: CancelledError {
        code: ErrorCode::REQUEST_CANCELLED,
        message: "Request cancelled",
        says_why: true,
    },
    // The `task` member of 2025-11-25 is gone: one that comes is ignored, as any unknown member is.
    // "Cancellation": the server's own notification may name a listen request and no other.
    peer_may_end: &["subscriptions/listen"],
    // "Subscriptions": an otherwise empty result; the codec adds what each result and this one must carry.
    graceful: &[("subscriptions/listen", "{}")],
    cancel_from: CancelFrom::Client,
    early: EarlyCancel::Always,
    // "Transports": closing the response stream is the cancel.
    lost_stream: LostStream::Cancel,
    half_close_at_most: EXIT,
    call_timeout: CALL_TIMEOUT,
    max_call_timeout: MAX_CALL_TIMEOUT,
    refusal: RefusalStyle::NoIdMember,
    ..BASE
};
static MCP_2026_CODEC: JsonRpc = JsonRpc {
    reason: ReasonField::Param("reason"),
    progress: Some(Progress {
        token: TokenField::Meta("progressToken"),
        notification: "notifications/progress",
        told_under: "progressToken",
        partial: None,
        create: None,
        cancel: None,
    }),
    // each result says what it is.
    result_mark: Some(("resultType", "complete")),
    // The schema's result of a listen request repeats the request's id.
    graceful_id: Some("io.modelcontextprotocol/subscriptionId"),
    opening: FirstMessage::MetaVersion(META_VERSION),
    ..JsonRpc::new(CANCELLED)
};
