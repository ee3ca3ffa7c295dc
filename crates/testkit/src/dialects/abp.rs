//! ABP, which has an envelope of its own.

use rescind_core::dialect;
use serde_json::{Value, json};

use super::{DialectFacts, Envelope, HttpBinding, Offers, Opening, Progress, ProgressForm};
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
    discovery: None,
    ping: None,
    cancelled_codes: &[-32_800],
    progress: Progress { method: "progress", form: ProgressForm::AnyToken },
    offers: Offers::Capabilities,
    partial_results: true,
    bindings: &[HttpBinding::Streamable],
    defines_streamable: false,
    document: "ABP",
    statements: &[include_str!("abp.tsv")],
    client_check: None,
};
