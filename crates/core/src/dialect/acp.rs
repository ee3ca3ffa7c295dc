//! The three forms of cancelling that ACP has had.

use super::Dialect;
use super::jsonrpc::{CancelName, Declaration, FirstMessage, JsonRpc};
use super::rules::{
    BASE, CancelledError, CancelledReply, CapabilityGate, DecidedBy, EarlyCancel, LostStream, RefusalStyle,
    Rules, ShownMembers,
};
use crate::dialect::rules::SessionBodies;
use crate::message::ErrorCode;

/// ACP version 1: `$/cancel_request` with `params.requestId`.
///
/// Cites the rows `ACP` and `ACPRFD` of the testkit's COVERAGE.md.
pub const ACP: Dialect = Dialect::from_static(&ACP_RULES, &ACP_CODEC);

/// ACP version 2 (its schema of November 2026): as [`ACP`], but a cancel for an unknown id is always
/// ignored, and a cancelled prompt is answered with the error and not with a stop reason.
pub const ACP_V2: Dialect = Dialect::from_static(&ACP_V2_RULES, &ACP_V2_CODEC);

/// The proposal of 2025-11-13: `$/cancelRequest` with `params.id`, only towards a side that declared it.
///
/// Cites the rows `ACPDRAFT` of the testkit's COVERAGE.md.
pub const ACP_DRAFT: Dialect = Dialect::from_static(&ACP_DRAFT_RULES, &ACP_DRAFT_CODEC);

/// RULE-13: the draft of remote transports. `initialize` opens a connection and goes without its header; the methods of
/// a session need the session's header; the answer to `session/load` comes on the connection's stream.
pub static ACP_BODIES: SessionBodies = SessionBodies {
    opening: INITIALIZE,
    connection: "connectionId",
    session: "sessionId",
    of_session: &[
        "session/prompt",
        "session/cancel",
        "session/close",
        "session/delete",
        "session/fork",
        LOAD,
        "session/resume",
        "session/set_config_option",
        "session/set_mode",
        "session/set_model",
    ],
    answered_on_connection: &[LOAD],
    of_connection: "$/",
};

const INITIALIZE: &str = "initialize";
const LOAD: &str = "session/load";

/// ACP-02, ACPRFD-12.
const CANCEL_REQUEST: CancelName = CancelName { method: "$/cancel_request", key: "requestId" };
/// ACPDRAFT-17.
const CANCEL_REQUEST_DRAFT: CancelName = CancelName { method: "$/cancelRequest", key: "id" };

/// ACPRFD-24, ACPRFD-25.
const REQUEST_CANCELLED: CancelledError =
    CancelledError { code: ErrorCode::REQUEST_CANCELLED, message: "Request cancelled", says_why: false };
/// ACPDRAFT-37, ACPDRAFT-38.
const CANCELLED: CancelledError = CancelledError { message: "Cancelled", ..REQUEST_CANCELLED };

/// "Prompt Turn", "Cancellation", for the client: it MUST answer all pending permission requests with the outcome
/// `cancelled`.
const PERMISSION: (&str, &str) = ("session/request_permission", r#"{"outcome":{"outcome":"cancelled"}}"#);
/// ACP-09. The same section, for the agent: it MUST answer a cancelled prompt with this stop reason, whatever its work
/// failed with.
const CALLED_OFF: &[(&str, &str)] = &[("session/prompt", r#"{"stopReason":"cancelled"}"#), PERMISSION];

const SUBPROTOCOLS: &[&str] = &["acp", "jsonrpc"];

const SHOWN: ShownMembers =
    ShownMembers::new(&["/path", "/command", "/terminalId", "/sessionId"]).with_client("/clientInfo");

static ACP_RULES: Rules = Rules {
    name: "acp",
    shown: SHOWN,
    // The sources do not state it (ACPRFD-02). Rescind protects the handshake, because a connection whose handshake was
    // cancelled is of no use.
    handshake: Some(INITIALIZE),
    // ACP-06: a value after the cancel is an answer too.
    decided: DecidedBy::Handler,
    peer_cancelled: CancelledReply::Error(REQUEST_CANCELLED),
    // ACP-12: the same error whatever the source of the cancel.
    local_cancelled: REQUEST_CANCELLED,
    called_off: CALLED_OFF,
    // ACPRFD-13, RULE-08.
    reserved_prefix: Some("$/"),
    early: EarlyCancel::WhereUnordered,
    lost_stream: LostStream::Detach,
    refusal: RefusalStyle::NullId,
    subprotocols: SUBPROTOCOLS,
    ..BASE
};
static ACP_CODEC: JsonRpc = JsonRpc {
    also_accepted: &[CANCEL_REQUEST_DRAFT],
    opening: FirstMessage::NumberedVersion(1),
    ..JsonRpc::new(CANCEL_REQUEST)
};

static ACP_V2_RULES: Rules = Rules {
    name: "acp-v2",
    shown: SHOWN,
    // RULE-02: an unknown id MUST be ignored.
    early: EarlyCancel::Never,
    handshake: Some(INITIALIZE),
    peer_cancelled: CancelledReply::Error(REQUEST_CANCELLED),
    local_cancelled: REQUEST_CANCELLED,
    // Version 2 reports the end of a prompt's work in an update, and its answer has no stop reason.
    called_off: &[PERMISSION],
    reserved_prefix: Some("$/"),
    subprotocols: SUBPROTOCOLS,
    ..BASE
};
static ACP_V2_CODEC: JsonRpc = JsonRpc {
    also_accepted: &[CANCEL_REQUEST_DRAFT],
    opening: FirstMessage::NumberedVersion(2),
    ..JsonRpc::new(CANCEL_REQUEST)
};

static ACP_DRAFT_RULES: Rules = Rules {
    name: "acp-draft",
    shown: SHOWN,
    // ACPDRAFT-06, ACPDRAFT-21.
    handshake: Some(INITIALIZE),
    peer_cancelled: CancelledReply::Error(CANCELLED),
    local_cancelled: CANCELLED,
    // The proposal extends version 1.
    called_off: CALLED_OFF,
    // ACPDRAFT-18 .. ACPDRAFT-25.
    gate: CapabilityGate::Declared,
    reserved_prefix: Some("$/"),
    early: EarlyCancel::WhereUnordered,
    subprotocols: SUBPROTOCOLS,
    ..BASE
};
static ACP_DRAFT_CODEC: JsonRpc = JsonRpc {
    also_accepted: &[CANCEL_REQUEST],
    // ACPDRAFT-15, ACPDRAFT-16.
    declaration: Some(Declaration { in_params: "clientCapabilities", in_result: "agentCapabilities" }),
    opening: FirstMessage::NumberedVersion(1),
    ..JsonRpc::new(CANCEL_REQUEST_DRAFT)
};
