//! The Model Context Protocol: the revisions with a session, and the one without.

use super::Dialect;
use super::jsonrpc::{Batches, CancelName, JsonRpc, Opening, Progress, ReasonPlace, TokenPlace};
use super::rules::{
    BASE, CancelFrom, CancelledError, CancelledReply, DecidedBy, EarlyCancel, LostStream, RefusalStyle, Rules,
};
use crate::message::ErrorCode;

/// MCP 2024-11-05 to 2025-11-25 (source 002): `notifications/cancelled`, and no answer to what was cancelled.
pub const MCP: Dialect = Dialect::from_static(&MCP_RULES, &MCP_CODEC);

/// MCP 2026-07-28: no session and no handshake; only clients cancel.
pub const MCP_2026: Dialect = Dialect::from_static(&MCP_2026_RULES, &MCP_2026_CODEC);

/// 002-06, 002-07.
const CANCELLED: CancelName = CancelName { method: "notifications/cancelled", key: "requestId" };

/// The member of params of a task-augmented request; such requests are cancelled as tasks (revision 2025-11-25,
/// "Tasks").
const TASK: Option<&str> = Some("task");

static MCP_RULES: Rules = Rules {
    name: "mcp",
    // "Cancellation", "Behavior Requirements": a client MUST NOT cancel its `initialize`.
    handshake: Some("initialize"),
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
    lost_stream: LostStream::Detach,
    // an id is never null.
    refusal: RefusalStyle::NoIdMember,
    //
    batch_revision: Some("2025-03-26"),
    ..BASE
};
static MCP_CODEC: JsonRpc = JsonRpc {
    // 002-09.
    reason: ReasonPlace::Param("reason"),
    // "Progress": a token in the request's `_meta`, number or string.
    progress: Some(Progress {
        token: TokenPlace::Meta("progressToken"),
        notification: "notifications/progress",
        told_under: "progressToken",
    }),
    opening: Opening::TextVersion,
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
    uncancellable_param: TASK,
    // "Cancellation": the server's own notification may name a listen request and no other.
    peer_may_end: &["subscriptions/listen"],
    // "Subscriptions": an otherwise empty result; the codec adds what each result and this one must carry.
    graceful: &[("subscriptions/listen", "{}")],
    cancel_from: CancelFrom::Client,
    early: EarlyCancel::Always,
    // "Transports": closing the response stream is the cancel.
    lost_stream: LostStream::Cancel,
    refusal: RefusalStyle::NoIdMember,
    ..BASE
};
static MCP_2026_CODEC: JsonRpc = JsonRpc {
    reason: ReasonPlace::Param("reason"),
    progress: Some(Progress {
        token: TokenPlace::Meta("progressToken"),
        notification: "notifications/progress",
        told_under: "progressToken",
    }),
    // each result says what it is.
    result_mark: Some(("resultType", "complete")),
    // The schema's result of a listen request repeats the request's id.
    graceful_id: Some("io.modelcontextprotocol/subscriptionId"),
    opening: Opening::MetaVersion("io.modelcontextprotocol/protocolVersion"),
    uncancellable_param: TASK,
    ..JsonRpc::new(CANCELLED)
};
