//! The three forms of ACP.

use rescind_core::dialect;
use serde_json::{Value, json};

use super::{ClientCheck, DialectFacts, Envelope, HttpBinding, Offers, Opening, Progress, ProgressForm};

/// ACP version 1.
pub const ACP: DialectFacts = DialectFacts {
    dialect: &dialect::ACP,
    envelope: Envelope::JsonRpc,
    opening: Some(Opening {
        params: |_| json!({ "protocolVersion": 1, "clientCapabilities": {} }),
        result: |_| json!({ "protocolVersion": 1, "agentCapabilities": {} }),
        fixture_result,
        opened: None,
    }),
    discovery: None,
    ping: None,
    cancelled_codes: &[-32_800],
    progress: Progress { method: "session/update", form: ProgressForm::Tick },
    offers: Offers::Prompts,
    partial_results: true,
    bindings: &[HttpBinding::Acp, HttpBinding::Streamable],
    defines_streamable: false,
    document: "ACP",
    statements: &[STATEMENTS],
    client_check: Some(&CLIENT_CHECK),
};

/// ACP version 2.
pub const ACP_V2: DialectFacts = DialectFacts {
    dialect: &dialect::ACP_V2,
    opening: Some(Opening {
        params: |client| json!({ "protocolVersion": 2, "capabilities": {}, "info": client }),
        result: |server| json!({ "protocolVersion": 2, "capabilities": {}, "info": server }),
        fixture_result: |server, _| {
            json!({
                "protocolVersion": 2,
                "capabilities": {"session": {}},
                "info": server,
                "authMethods": [],
            })
        },
        opened: None,
    }),
    partial_results: false,
    document: "ACP v2",
    statements: &[
        "should\tturn_cancelled\tACP v2: a feature such as the prompt turn may have a cancel of its own.",
        STATEMENTS,
    ],
    ..ACP
};

/// The proposal of 2025-11-13.
pub const ACP_DRAFT: DialectFacts = DialectFacts {
    dialect: &dialect::ACP_DRAFT,
    opening: Some(Opening {
        params: |_| json!({ "protocolVersion": 1, "clientCapabilities": {"cancellation": {"request": true}} }),
        result: |_| json!({ "protocolVersion": 1, "agentCapabilities": {"cancellation": {"request": true}} }),
        fixture_result,
        opened: None,
    }),
    document: "ACP draft",
    statements: &[
        "should\tturn_cancelled\tACP draft: `session/cancel` stays, and ends the whole prompt turn.\n\
         must\tnever_cancels_initialize\t{document}: `initialize` cannot be cancelled.",
        STATEMENTS,
    ],
    ..ACP
};

fn fixture_result(server: &Value, _: &Value) -> Value {
    json!({
        "protocolVersion": 1,
        "agentCapabilities": {"loadSession": false, "promptCapabilities": {}},
        "agentInfo": server,
        "authMethods": [],
    })
}

const STATEMENTS: &str = include_str!("acp.tsv");

/// The agent's part.
const CLIENT_CHECK: ClientCheck = ClientCheck {
    method: "session/prompt",
    params: |word| json!({ "prompt": [{"type": "text", "text": word}] }),
    word: |params| {
        let blocks = params.get("prompt").and_then(Value::as_array);
        let mut texts = blocks.into_iter().flatten().filter_map(|block| block.get("text"));
        texts.find(|text| *text == "slow" || *text == "quick")
    },
    result: |method, _, sessions| match method {
        "authenticate" => Some(json!({})),
        "session/new" => {
            *sessions += 1;
            Some(json!({ "sessionId": format!("session-{sessions}") }))
        }
        _ => None,
    },
    normal: |_| json!({ "stopReason": "end_turn" }),
    progress: |params| {
        let update = json!({
            "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "slow"},
        });
        Some(("session/update", json!({ "sessionId": params.get("sessionId")?, "update": update })))
    },
    own_request: |session| ("fs/read_text_file", json!({ "sessionId": session, "path": "/slow.txt" })),
    never_reuses_ids: false,
};
