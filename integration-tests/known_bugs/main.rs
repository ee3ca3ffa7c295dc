//! Known bugs of others, each brought about here with our driver and wires: one file a project, one test a bug, named after
//! it. The line above a test says what theirs does.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "what the tests share is part of them"
)]

mod acp_typescript;
mod async_lsp;
mod bare;
mod effect;
mod h2;
mod python_sdk;
mod rmcp;
mod rust_sdk;
mod stream_json_rpc;
mod tarpc;
mod tower_lsp_server;
mod tower_mcp;
mod vscode_jsonrpc;
