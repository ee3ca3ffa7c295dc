//! The revisions of MCP with a session, and the revision without one.

use rescind_core::dialect;
use serde_json::{Value, json};

use super::Demand::{Must, Should};
use super::{
    ClientCheck, DialectFacts, Envelope, HttpBinding, Offers, Opening, Progress, ProgressForm, Statement,
    checker,
};

/// MCP 2024-11-05 to 2025-11-25.
pub const MCP: DialectFacts = DialectFacts {
    dialect: &dialect::MCP,
    envelope: Envelope::JsonRpc,
    opening: Some(Opening {
        params: |client| json!({ "protocolVersion": NEWEST, "capabilities": {}, "clientInfo": client }),
        result: |server| json!({ "protocolVersion": NEWEST, "capabilities": {}, "serverInfo": server }),
        fixture_result,
        opened: Some("notifications/initialized"),
    }),
    ping: Some("ping"),
    cancelled_codes: &[-32_800],
    progress: Progress { method: "notifications/progress", form: ProgressForm::MetaToken },
    offers: Offers::Tools,
    partial_results: true,
    bindings: &[HttpBinding::Streamable, HttpBinding::LegacySse],
    defines_streamable: true,
    document: "MCP 2025-11-25",
    statements: &[STATEMENTS],
    client_check: Some(&CLIENT_CHECK),
};

/// MCP 2026-07-28.
pub const MCP_2026: DialectFacts = DialectFacts {
    dialect: &dialect::MCP_2026,
    envelope: Envelope::JsonRpcWithMeta,
    opening: None,
    ping: None,
    bindings: &[HttpBinding::Stateless],
    defines_streamable: false,
    document: "MCP 2026-07-28",
    statements: &[
        &[(
            &["stays_silent"],
            Should,
            "{document}: the page on cancellation says that the server should not send a response, that on stdio that it \
             must not: so it is held as a recommendation.",
        )],
        STATEMENTS,
    ],
    client_check: Some(&ClientCheck {
        result: |method, _, _| match method {
            "tools/list" => Some(json!({
                "resultType": "complete", "tools": tools(), "ttlMs": 0, "cacheScope": "private",
            })),
            "server/discover" => Some(json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                "serverInfo": checker(), "ttlMs": 0, "cacheScope": "private",
            })),
            _ => None,
        },
        normal: |word| json!({ "resultType": "complete", "content": content(word) }),
        ..CLIENT_CHECK
    }),
    ..MCP
};

/// The revisions that have a handshake, the newest first.
const REVISIONS: [&str; 4] = [NEWEST, "2025-06-18", "2025-03-26", "2024-11-05"];
const NEWEST: &str = "2025-11-25";

/// The answer to `initialize`: in the client's revision, or in the newest if that is not known. A client of 2024-11-05 may
/// use the HTTP transport of the later revisions, as the official SDKs do (RULE-17).
fn fixture_result(server: &Value, params: &Value) -> Value {
    let asked = params.get("protocolVersion").and_then(Value::as_str).unwrap_or_default();
    let version = REVISIONS.iter().find(|known| **known == asked).unwrap_or(&NEWEST);
    json!({ "protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server })
}

/// What the documents of MCP say to the questions about a server. What is cited of its revisions reads the same in all.
const STATEMENTS: &[Statement] = &[
    (
        &["cancels_running"],
        Should,
        "{document}: the receiver of a cancel should stop processing the request.",
    ),
    (
        &["stays_silent"],
        Should,
        "{document}: the receiver of a cancel should not send a response for the request.",
    ),
    (
        &["stops_work"],
        Should,
        "{document}: the receiver of a cancel should stop processing and free its resources.",
    ),
    (
        &["malformed_cancel_ignored"],
        Should,
        "{document}: invalid cancels, malformed ones among them, should be ignored.",
    ),
    (
        &["cancels_id_zero"],
        Should,
        "{document}: an id may be any integer, also 0. The receiver of a cancel should stop processing the request.",
    ),
    (
        &["progress_ends_with_answer"],
        Must,
        "{document}: progress notifications must stop after the request has completed.",
    ),
    (
        &["clean_output"],
        Must,
        "{document}: a server must not write anything to its stdout that is not a message.",
    ),
    (
        &["one_line"],
        Must,
        "MCP 2025-11-25: over stdio, messages are delimited by newlines and must not contain embedded newlines.",
    ),
];

/// The server's part.
const CLIENT_CHECK: ClientCheck = ClientCheck {
    method: "tools/call",
    params: |word| json!({ "name": word, "arguments": {} }),
    word: |params| params.get("name"),
    result: |method, params, _| match method {
        "initialize" => Some(json!({
            "protocolVersion": params.get("protocolVersion").cloned().unwrap_or_else(|| json!(NEWEST)),
            "capabilities": {"tools": {}},
            "serverInfo": checker(),
        })),
        "ping" => Some(json!({})),
        "tools/list" => Some(json!({ "tools": tools() })),
        _ => None,
    },
    normal: |word| json!({ "content": content(word) }),
    progress: |params| {
        let token = params.pointer("/_meta/progressToken")?;
        Some(("notifications/progress", json!({ "progressToken": token, "progress": 1 })))
    },
    own_request: |_| ("roots/list", json!({})),
    never_reuses_ids: true,
    statements: &[OF_CLIENTS],
};

fn tools() -> Value {
    let tool = |name: &str, does: &str| json!({"name": name, "description": does, "inputSchema": {"type": "object"}});
    json!([tool("slow", "Is not answered before it is cancelled."), tool("quick", "Is answered at once.")])
}

fn content(word: &str) -> Value {
    json!([{ "type": "text", "text": word }])
}

/// What the documents of MCP say to the questions about a client.
const OF_CLIENTS: &[Statement] = &[
    (&["sends_cancel"], Should, "a party that wants to cancel a request sends `notifications/cancelled`."),
    (
        &["spells_cancel"],
        Must,
        "a cancel is the notification `notifications/cancelled` with the `requestId`.",
    ),
    (
        &["names_request", "cancel_follows_request"],
        Must,
        "a cancel must name only a request that was sent before, in the same direction.",
    ),
    (&["keeps_id_type"], Must, "`requestId` is the id of the request: a text or a number, as it was sent."),
    (&["never_cancels_initialize"], Must, "clients must not cancel `initialize`."),
    (
        &["goes_on"],
        Should,
        "the receiver of a cancel should not answer, so the sender has nothing to wait for.",
    ),
    (
        &["late_result_ignored", "late_error_ignored"],
        Should,
        "the sender of a cancel should ignore an answer that comes after it.",
    ),
    (
        &["no_cancel_when_answered"],
        Must,
        "a cancel must name only a request that is believed to be in progress.",
    ),
    (&["ids_not_reused"], Must, "an id must not have been used before by the same side in the same session."),
    (&["other_calls_untouched"], Must, "a cancel ends the request that it names, and no other."),
    (&["honours_cancels"], Should, "the receiver of a cancel should stop the work of the request."),
    (
        &["timeout_sends_cancel"],
        Should,
        "when the time limit of a request is over, the sender should cancel it and stop waiting.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(asked: &str) -> Value {
        let mut answer = fixture_result(&Value::Null, &json!({ "protocolVersion": asked }));
        answer.get_mut("protocolVersion").map(Value::take).unwrap_or_default()
    }

    #[test]
    fn a_known_revision_is_answered_with_itself_and_another_with_the_newest() {
        for revision in REVISIONS {
            assert_eq!(answered(revision), revision);
        }
        assert_eq!(answered("2099-01-01"), "2025-11-25");
    }
}
