//! ABP, which has an envelope of its own.

use rescind_core::dialect;
use serde_json::{Value, json};

use super::Demand::{Must, Open, Should};
use super::{
    DialectFacts, EACH_BYTE, Envelope, HALF_A_CHARACTER, HttpBinding, Offers, Opening, Progress,
    ProgressForm, Statement,
};
use crate::action;

/// ABP 0.1.
pub const ABP: DialectFacts = DialectFacts {
    dialect: &dialect::ABP,
    envelope: Envelope::Abp,
    opening: Some(Opening {
        params: |client| json!({ "protocolVersion": "0.1", "agent": client }),
        result: |_| json!({ "protocolVersion": "0.1", "sessionId": "session-1" }),
        fixture_result: |server, _| {
            let capabilities: Vec<Value> =
                action::ALL.map(|name| json!({ "name": format!("test/{name}") })).into();
            json!({
                "sessionId": "fixture",
                "protocolVersion": "0.1",
                "app": server,
                "capabilities": capabilities,
            })
        },
        opened: None,
    }),
    ping: None,
    cancelled_codes: &[-32_800],
    progress: Progress { method: "progress", form: ProgressForm::AnyToken },
    offers: Offers::Capabilities,
    partial_results: true,
    bindings: &[HttpBinding::Streamable],
    defines_streamable: false,
    document: "ABP",
    statements: &[STATEMENTS],
    client_check: None,
};

const ITS_OWN_CALL: &str = "ABP: a cancel is about the call with its callId, and each call gets its result.";

/// What the document says to the questions about an application.
const STATEMENTS: &[Statement] = &[
    (&["cancels_running"], Should, "ABP: the app stops the operation if it can and reports whether it did."),
    (&["cancelled_code"], Must, "ABP: a cancelled call is answered with success false and cancelled true."),
    (&["stops_work"], Should, "ABP: the app stops the operation if it can."),
    (&["clean_output"], Must, EACH_BYTE),
    super::acp::ONE_LINE,
    (
        &[
            "answers_cancelled",
            "answers_once",
            "session_survives",
            "frees_slot",
            "siblings_untouched",
            "late_cancel_ignored",
            "unknown_cancel_ignored",
        ],
        Must,
        ITS_OWN_CALL,
    ),
    (&["whole_characters"], Open, HALF_A_CHARACTER),
];
