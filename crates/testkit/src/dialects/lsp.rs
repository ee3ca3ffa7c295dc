//! The Language Server Protocol.

use rescind_core::dialect;
use serde_json::{Value, json};

use super::Demand::{Must, Open, Should};
use super::{
    ClientCheck, DialectFacts, EACH_BYTE, Envelope, HttpBinding, JSON_RPC_IDS, Offers, Opening, Progress,
    ProgressForm, Statement,
};

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
    ping: None,
    // Also "content modified" and "server cancelled".
    cancelled_codes: &[-32_800, -32_801, -32_802],
    progress: Progress { method: "$/progress", form: ProgressForm::WorkDone },
    offers: Offers::Documents,
    partial_results: true,
    bindings: &[HttpBinding::Streamable],
    defines_streamable: false,
    document: "LSP 3.18",
    statements: &[STATEMENTS],
    client_check: Some(&CLIENT_CHECK),
};

/// What the specification says to the questions about a server.
const STATEMENTS: &[Statement] = &[
    (&["cancels_running"], Open, "LSP 3.18: a notification whose method begins with $/ may be ignored."),
    (
        &["answers_cancelled"],
        Must,
        "LSP 3.18: a cancelled request still needs to send a response back; it can not be left open.",
    ),
    (
        &["cancelled_code"],
        Should,
        "LSP 3.18: if a cancelled request is answered with an error, its code is advised to be -32800.",
    ),
    (
        &["stops_work"],
        Open,
        "LSP 3.18: a notification whose method begins with $/ may be ignored, so the work may go on.",
    ),
    (
        &["cancels_id_zero"],
        Open,
        "LSP 3.18: an id may be any integer, also 0. The cancel of a request may be ignored.",
    ),
    (
        &["reserved_method_refused"],
        Must,
        "LSP 3.18: an unknown request whose method begins with $/ must get the error -32601. Such a notification may be ignored.",
    ),
    (
        &["progress_ends_with_answer"],
        Should,
        "LSP 3.18: a request's workDoneToken is only valid until its response has been sent.",
    ),
    (&["clean_output"], Must, EACH_BYTE),
];

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
    statements: &[OF_CLIENTS],
};

/// What the specification says to the questions about a client.
const OF_CLIENTS: &[Statement] = &[
    (
        &["spells_cancel"],
        Must,
        "a cancel is the notification `$/cancelRequest` with the `id` of the request.",
    ),
    (
        &["names_request", "cancel_follows_request"],
        Must,
        "`id` in a cancel is the id of the request to cancel.",
    ),
    (&["keeps_id_type"], Must, "an id is a number or a text, and an answer or a cancel repeats it."),
    (
        &["never_cancels_initialize"],
        Must,
        "until `initialize` is answered the client must not send other requests or notifications.",
    ),
    (&["goes_on"], Should, "a cancelled request is answered, and the answer ends it."),
    (
        &["late_result_ignored", "late_error_ignored"],
        Should,
        "a cancelled request is still answered: with an error or with a partial result.",
    ),
    JSON_RPC_IDS,
    (&["other_calls_untouched"], Must, "a cancel ends the request that it names, and no other."),
    (&["honours_cancels"], Should, "a cancelled request must still be answered; both sides may cancel."),
    (&["sends_cancel"], Open, "a request may be cancelled by `$/cancelRequest`; nobody must."),
    (&["timeout_sends_cancel"], Open, "the protocol has no time limits."),
    (&["no_cancel_when_answered"], Open, "a cancel for a request that has ended is not forbidden."),
];
