//! The revisions of MCP with a session, and the revision without one.

use rescind_core::dialect;
use serde_json::{Value, json};

use super::{
    ClientCheck, DialectFacts, Envelope, HttpBinding, Offers, Opening, Progress, ProgressForm, checker,
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
    discovery: None,
    ping: Some("ping"),
    cancelled_codes: &[-32_800],
    progress: Progress { method: "notifications/progress", form: ProgressForm::MetaToken },
    offers: Offers::Tools,
    partial_results: true,
    bindings: &[HttpBinding::Streamable, HttpBinding::LegacySse],
    defines_streamable: true,
    document: "MCP 2025-11-25",
    statements: &[STATEMENTS, include_str!("mcp_tasks.tsv")],
    client_check: Some(&CLIENT_CHECK),
};

/// MCP 2026-07-28.
pub const MCP_2026: DialectFacts = DialectFacts {
    dialect: &dialect::MCP_2026,
    envelope: Envelope::JsonRpcWithMeta,
    opening: None,
    discovery: Some("server/discover"),
    ping: None,
    bindings: &[HttpBinding::Stateless],
    defines_streamable: false,
    document: "MCP 2026-07-28",
    statements: &[
        "should\tstays_silent\t{document}: the page on cancellation says that the server should not send a response, that \
         on stdio that it must not: so it is held as a recommendation.",
        STATEMENTS,
        include_str!("mcp_2026_tasks.tsv"),
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

/// What is cited of the revisions reads the same in all.
const STATEMENTS: &str = include_str!("mcp.tsv");

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
};

fn tools() -> Value {
    let tool = |name: &str, does: &str| json!({"name": name, "description": does, "inputSchema": {"type": "object"}});
    json!([tool("slow", "Is not answered before it is cancelled."), tool("quick", "Is answered at once.")])
}

fn content(word: &str) -> Value {
    json!([{ "type": "text", "text": word }])
}

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
