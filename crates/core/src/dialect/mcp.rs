//! The Model Context Protocol: the revisions with a session, and the revision without one.

use std::time::Duration;

use super::Dialect;
use super::jsonrpc::{CancelName, FirstMessage, JsonRpc, Progress, ReasonField, TokenField};
use super::rules::{
    BASE, CancelFrom, CancelledError, CancelledReply, DecidedBy, EarlyCancel, LostStream, ProgressMembers,
    RefusalStyle, Rules, ShownMembers, TaskForm,
};
use crate::dialect::rules::{CancelBodies, MirroredBodies, RenewalBodies};
use crate::message::ErrorCode;

/// MCP 2024-11-05 to 2025-11-25: `notifications/cancelled`, and no answer to a cancelled request.
///
/// Cites the rows `GETMCP` of the testkit's COVERAGE.md.
pub const MCP: Dialect = Dialect::from_static(&MCP_RULES, &MCP_CODEC);

/// MCP 2026-07-28: no session and no handshake. Only clients cancel.
pub const MCP_2026: Dialect = Dialect::from_static(&MCP_2026_RULES, &MCP_2026_CODEC);

/// "Lifecycle", "Initialization": the request that opens a session; over HTTP the one that has no session id.
pub const MCP_OPENING: &str = "initialize";

/// "Cancellation": the notification that cancels a request, for servers that have no sessions.
pub const MCP_CANCEL: CancelBodies = CancelBodies { method: CANCELLED.method, request: CANCELLED.key };

/// "Transports", "Session Management": a client that gets 404 for its session must start a new one with `initialize`.
/// "Logging" and "Resources": what a client sets for its session.
pub static MCP_RENEWAL: RenewalBodies = RenewalBodies {
    opening: MCP_OPENING,
    revision: "protocolVersion",
    opened: "notifications/initialized",
    settings: &["logging/setLevel"],
    subscriptions: &[("resources/subscribe", "resources/unsubscribe", "uri")],
};

/// 2026-07-28, "Transports": what headers repeat of a body. "Tasks": `params.taskId`.
pub static MCP_2026_BODIES: MirroredBodies = MirroredBodies {
    revision: "2026-07-28",
    revision_member: META_VERSION,
    capabilities_member: CAPABILITIES,
    names: &[(TOOL_CALL, "name"), ("prompts/get", "name"), ("resources/read", "uri"), ("tasks/", "taskId")],
    tool_call: TOOL_CALL,
};

/// "Receiving Notifications": the member of `_meta` that names the listen request to which a message belongs.
pub(super) const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// The member of `_meta` with the capabilities of a client.
pub(super) const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const TOOL_CALL: &str = "tools/call";

/// GETMCP-06, GETMCP-07.
const CANCELLED: CancelName = CancelName { method: "notifications/cancelled", key: "requestId" };

/// "Lifecycle", "Shutdown": a client closes the input of its server and waits until it exits. 2026-07-28 requires it to
/// exit promptly. A request that is almost done can still be answered in this time; then it is cancelled.
const EXIT: Option<Duration> = Some(Duration::from_millis(250));

/// "Lifecycle", "Timeouts": all requests should have a timeout, and a maximum that progress does not extend.
const CALL_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));
const MAX_CALL_TIMEOUT: Option<Duration> = Some(Duration::from_secs(600));

/// The member of params of a task-augmented request. Such requests are cancelled as tasks (revision 2025-11-25,
/// "Tasks"; 2026-07-28 has no such member).
const TASK: Option<&str> = Some("task");

/// The SDKs' WebSocket transports offer the first.
const SUBPROTOCOLS: &[&str] = &["mcp", "jsonrpc"];

/// Tools and prompts have names, resources have addresses.
const SHOWN: ShownMembers = ShownMembers::new(&["/name", "/uri", "/taskId"])
    .with_progress("notifications/progress", ProgressMembers::Parts { done: "/progress", total: "/total" });

static MCP_RULES: Rules = Rules {
    name: "mcp",
    // "Cancellation", "Behavior Requirements": a client MUST NOT cancel its `initialize`.
    handshake: Some(MCP_OPENING),
    // The same section: the receiver SHOULD NOT answer. So the result of the handler does not matter.
    decided: DecidedBy::Cancel,
    peer_cancelled: CancelledReply::Silence,
    // RULE-01: a request that its caller did not cancel needs an answer.
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
    // RULE-03: an id is never null.
    refusal: RefusalStyle::NoIdMember,
    // RULE-04.
    batch_revision: Some("2025-03-26"),
    subprotocols: SUBPROTOCOLS,
    tasks: Some(TaskForm::AskedByClient),
    shown: SHOWN.with_client("/clientInfo"),
    ..BASE
};
static MCP_CODEC: JsonRpc = JsonRpc {
    // GETMCP-09.
    reason: ReasonField::Param("reason"),
    // "Progress": a token in the request's `_meta`, number or string.
    progress: Some(Progress {
        token: TokenField::Meta("progressToken"),
        notification: "notifications/progress",
        token_key: "progressToken",
        partial: None,
        create: None,
        cancel: None,
    }),
    opening: FirstMessage::TextVersion,
    uncancellable_param: TASK,
    // "Tasks": the member is ignored for request types for which it was not declared. Such a request is an ordinary
    // request.
    exempting: Some("tasks"),
    ..JsonRpc::new(CANCELLED)
};

static MCP_2026_RULES: Rules = Rules {
    name: "mcp-2026",
    handshake: None,
    decided: DecidedBy::Cancel,
    // RULE-10: no further message of any kind.
    peer_cancelled: CancelledReply::Silence,
    local_cancelled: CancelledError {
        code: ErrorCode::REQUEST_CANCELLED,
        message: "Request cancelled",
        says_why: true,
    },
    // The `task` member of 2025-11-25 is gone. It is ignored, as any unknown member.
    // "Cancellation": the server's notification may name a listen request and no other request.
    peer_may_end: &["subscriptions/listen"],
    // "Subscriptions": an otherwise empty result. The codec adds the members that every result and this result must
    // have.
    graceful: &[("subscriptions/listen", "{}")],
    cancel_from: CancelFrom::Client,
    early: EarlyCancel::Always,
    // "Transports": closing the response stream is the cancel.
    lost_stream: LostStream::Cancel,
    half_close_at_most: EXIT,
    call_timeout: CALL_TIMEOUT,
    max_call_timeout: MAX_CALL_TIMEOUT,
    refusal: RefusalStyle::NoIdMember,
    subprotocols: SUBPROTOCOLS,
    tasks: Some(TaskForm::DecidedByServer),
    shown: SHOWN.with_client("/_meta/io.modelcontextprotocol~1clientInfo"),
    ..BASE
};
static MCP_2026_CODEC: JsonRpc = JsonRpc {
    reason: ReasonField::Param("reason"),
    progress: Some(Progress {
        token: TokenField::Meta("progressToken"),
        notification: "notifications/progress",
        token_key: "progressToken",
        partial: None,
        create: None,
        cancel: None,
    }),
    // RULE-11: each result names its type.
    result_mark: Some(("resultType", "complete")),
    // The schema's result of a listen request repeats the request's id.
    graceful_id: Some(SUBSCRIPTION),
    opening: FirstMessage::MetaVersion(META_VERSION),
    ..JsonRpc::new(CANCELLED)
};
