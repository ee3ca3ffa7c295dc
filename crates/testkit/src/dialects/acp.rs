//! The three forms of ACP.

use rescind_core::dialect;
use serde_json::{Value, json};

use super::Demand::{Must, Open, Should};
use super::{
    ClientCheck, DialectFacts, Envelope, HttpBinding, JSON_RPC_IDS, Offers, Opening, Progress, ProgressForm,
    Statement,
};

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
    ping: None,
    cancelled_codes: &[-32_800],
    progress: Progress { method: "session/update", form: ProgressForm::Tick },
    offers: Offers::Prompts,
    partial_results: true,
    bindings: &[HttpBinding::Acp, HttpBinding::Streamable],
    defines_streamable: false,
    document: "ACP",
    statements: &[STATEMENTS],
    client_check: Some(&ClientCheck { statements: &[INITIALIZE_LEFT_OPEN, OF_CLIENTS], ..CLIENT_CHECK }),
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
        &[(
            &["turn_cancelled"],
            Should,
            "ACP v2: a feature such as the prompt turn may have a cancel of its own.",
        )],
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
        &[(
            &["turn_cancelled"],
            Should,
            "ACP draft: `session/cancel` stays, and ends the whole prompt turn.",
        )],
        STATEMENTS,
    ],
    client_check: Some(&CLIENT_CHECK),
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

pub(super) const ONE_LINE: Statement = (
    &["one_line"],
    Must,
    "ACP: over stdio, messages are delimited by newlines and must not contain embedded newlines.",
);

/// What the documents of ACP say to the questions about an agent.
const STATEMENTS: &[Statement] = &[
    (
        &["cancels_running"],
        Should,
        "ACP says that the receiver may cancel the work, ACPRFD that it must: so it is held as a recommendation.",
    ),
    (
        &["answers_cancelled"],
        Must,
        "ACP: the receiver must answer the cancelled request, with -32800 or a valid response.",
    ),
    (
        &["cancelled_code"],
        Must,
        "ACP: the answer to a cancelled request is the error -32800 or a valid response.",
    ),
    (&["stops_work"], Should, "ACPRFD: the receiver cancels the work and all that belongs to it."),
    (
        &["cancels_id_zero"],
        Should,
        "ACP: an id may be any integer, also 0. Whether the receiver of a cancel stops the work is held as a recommendation.",
    ),
    (&["progress_ends_with_answer"], Open, "the protocol does not bind progress to the answer."),
    (&["clean_output"], Must, "ACP: the agent must not write anything to its stdout that is not a message."),
    ONE_LINE,
    (
        &["turn_cancelled"],
        Must,
        "ACP: after `session/cancel` the agent must end the prompt with the stop reason `cancelled`, whatever its work does.",
    ),
    (
        &["turn_ends_soon"],
        Should,
        "ACP: after `session/cancel` the agent should stop its model and its tools as soon as it can.",
    ),
    (
        &["other_turns_untouched"],
        Must,
        "ACP: `session/cancel` is about the turn of the session that it names. JSON-RPC 2.0: another request gets its own answer.",
    ),
    (&["next_turn_served"], Must, "ACP: when a turn is over, its session takes the next prompt."),
];

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
    statements: &[OF_CLIENTS],
};

/// Only the draft forbids it.
const INITIALIZE_LEFT_OPEN: &[Statement] =
    &[(&["never_cancels_initialize"], Open, "a cancel of `initialize` is not mentioned.")];

/// What the documents of ACP say to the questions about a client.
const OF_CLIENTS: &[Statement] = &[
    (&["spells_cancel"], Must, "a cancel is the notification of the protocol with the id of the request."),
    (&["names_request", "cancel_follows_request"], Must, "a cancel carries the id of the request to cancel."),
    (&["keeps_id_type"], Must, "the id in a cancel is that of the request: a text or a number."),
    (&["never_cancels_initialize"], Must, "`initialize` cannot be cancelled."),
    (&["goes_on"], Should, "a cancelled request is answered, and the answer ends it."),
    (
        &["late_result_ignored", "late_error_ignored"],
        Should,
        "a cancelled request is answered with -32800 or a valid response, partial or whole.",
    ),
    JSON_RPC_IDS,
    (&["other_calls_untouched"], Must, "other requests that run at the same time are not affected."),
    (&["honours_cancels"], Should, "the receiver of a cancel stops the work and answers the request."),
    (&["sends_cancel"], Open, "a request may be cancelled; nobody must."),
    (&["timeout_sends_cancel"], Open, "the protocol has no time limits."),
    (&["no_cancel_when_answered"], Open, "a cancel for a request that has ended is ignored by its receiver."),
];
