//! The Language Server Protocol.

use rescind_core::dialect;
use serde_json::{Value, json};

use super::{ClientCheck, DialectFacts, Envelope, HttpBinding, Offers, Opening, Progress, ProgressForm};

/// LSP 3.18.
pub const LSP: DialectFacts = DialectFacts {
    dialect: &dialect::LSP,
    envelope: Envelope::JsonRpc,
    opening: Some(Opening {
        params: |_| json!({ "processId": null, "rootUri": null, "capabilities": {} }),
        result: |_| json!({ "capabilities": {} }),
        fixture_result: |server, _| json!({ "capabilities": {}, "serverInfo": server }),
        opened: Some("initialized"),
    }),
    discovery: None,
    ping: None,
    // Also "content modified" and "server cancelled".
    cancelled_codes: &[-32_800, -32_801, -32_802],
    progress: Progress { method: "$/progress", form: ProgressForm::WorkDone },
    offers: Offers::Documents,
    partial_results: true,
    bindings: &[HttpBinding::Streamable],
    defines_streamable: false,
    document: "LSP 3.18",
    statements: &[include_str!("lsp.tsv")],
    client_check: Some(&CLIENT_CHECK),
};

/// The server's part.
const CLIENT_CHECK: ClientCheck = ClientCheck {
    method: "workspace/symbol",
    params: |word| json!({ "query": word }),
    // Params may also be given by position.
    word: |params| params.get(0).unwrap_or(params).get("query"),
    result: |method, _, _| match method {
        "initialize" => Some(json!({
            "capabilities": {"workspaceSymbolProvider": true},
            "serverInfo": {"name": "rescind-check"},
        })),
        "shutdown" => Some(Value::Null),
        _ => None,
    },
    normal: |word| {
        let at = json!({ "line": 0, "character": 0 });
        let location = json!({ "uri": format!("file:///{word}"), "range": {"start": at, "end": at} });
        json!([{ "name": word, "kind": 12, "location": location }])
    },
    progress: |params| {
        let token = params.get("workDoneToken")?;
        Some(("$/progress", json!({ "token": token, "value": {"kind": "begin", "title": "slow"} })))
    },
    own_request: |_| ("workspace/configuration", json!({ "items": [{"section": "slow"}] })),
    never_reuses_ids: false,
};
