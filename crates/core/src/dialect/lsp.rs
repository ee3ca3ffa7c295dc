//! The Language Server Protocol, 3.18.

use super::Dialect;
use super::jsonrpc::{CancelName, FirstMessage, JsonRpc, Progress, TokenField};
use super::rules::{
    BASE, CancelledError, CancelledReply, EarlyCancel, ProgressMembers, Rules, ServerLifecycle, ShownMembers,
};
use crate::framing::Framing;
use crate::message::ErrorCode;

/// LSP 3.18: `$/cancelRequest` with `params.id`. The cancels of a server have error codes of their own.
pub const LSP: Dialect = Dialect::from_static(&RULES, &CODEC);

static RULES: Rules = Rules {
    name: "lsp",
    shown: ShownMembers::new(&["/textDocument/uri", "/command", "/query"])
        .with_client("/clientInfo")
        .with_progress("$/progress", ProgressMembers::Percent("/value/percentage")),
    // LSP does not state it. Rescind protects the handshake, as in ACP.
    handshake: Some("initialize"),
    // "Initialize Request": before it "for a request the response should be an error with code: -32002", "notifications
    // should be dropped, except for the exit notification". "Shutdown Request": "if a server receives requests after a
    // shutdown request those requests should error with InvalidRequest", "result: null". "Exit Notification": "the
    // server should exit with success code 0 if the shutdown request has been received before; otherwise with error
    // code 1".
    lifecycle: Some(ServerLifecycle { shutdown: "shutdown", shutdown_result: "null", exit: "exit" }),
    // "Cancellation Support": -32800, or a value.
    peer_cancelled: CancelledReply::Error(error(ErrorCode::REQUEST_CANCELLED)),
    // RULE-01: -32800 is reserved for the client's cancels.
    local_cancelled: error(ErrorCode::REQUEST_FAILED),
    // "ErrorCodes": only for requests that declare that the server may cancel them.
    server_cancelled: Some(error(ErrorCode::SERVER_CANCELLED)),
    // "ErrorCodes": for content that "got modified outside normal conditions", for a cancel by the server, whose data
    // may contain `retriggerRequest` (`DiagnosticServerCancellationData`), and for a request that "failed but it was
    // syntactically correct".
    errors_after_cancel: &[
        ErrorCode::CONTENT_MODIFIED,
        ErrorCode::SERVER_CANCELLED,
        ErrorCode::REQUEST_FAILED,
    ],
    // "$ Notifications and Requests", RULE-08.
    reserved_prefix: Some("$/"),
    early: EarlyCancel::WhereUnordered,
    // "Request, Notification and Response Ordering": a server may reorder "as long as this reordering doesn't affect the
    // correctness of the responses". A request about a document must see the `didChange` before it.
    in_order: true,
    // "Base Protocol".
    subprotocols: &["lsp", "jsonrpc"],
    framing: Framing::ContentLength,
    ..BASE
};

static CODEC: JsonRpc = JsonRpc {
    cancelled_codes: &[ErrorCode::REQUEST_CANCELLED, ErrorCode::SERVER_CANCELLED],
    // "Work Done Progress".
    progress: Some(Progress {
        token: TokenField::Param("workDoneToken"),
        notification: "$/progress",
        token_key: "token",
        // "Partial Result Progress": the same notification reports it.
        partial: Some("partialResultToken"),
        // "Server Initiated Progress".
        create: Some("window/workDoneProgress/create"),
        // "Canceling a Work Done Progress".
        cancel: Some("window/workDoneProgress/cancel"),
    }),
    opening: FirstMessage::NoVersion,
    // DIALECTS: LSP reports overload as "request failed". "ErrorCodes" has a code for a server that is not initialized.
    overloaded: ErrorCode::REQUEST_FAILED,
    not_initialized: ErrorCode(-32002),
    ..JsonRpc::new(CancelName { method: "$/cancelRequest", key: "id" })
};

const fn error(code: ErrorCode) -> CancelledError {
    CancelledError { code, message: "Request cancelled", says_why: false }
}
