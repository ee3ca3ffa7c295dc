//! Known bugs of other projects, each provoked with our driver and transports: one file for each project, one test
//! for each bug, named after it. The comment above a test describes the other project's behaviour.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "what the tests share is part of them"
)]

mod acp_typescript;
mod async_lsp;
mod effect;
mod h2;
mod python_sdk;
mod raw_peer;
mod rmcp;
mod rust_sdk;
mod stream_json_rpc;
mod tarpc;
mod tower_lsp_server;
mod tower_mcp;
mod vscode_jsonrpc;

/// A project's file, its text, and its known bugs: one test each, by its name.
type Known = (&'static str, &'static str, &'static [&'static str]);

/// Every file and every bug, so that a missing one is detected.
const BUGS: [Known; 12] = [
    (
        "acp_typescript.rs",
        include_str!("acp_typescript.rs"),
        &[
            "acp_typescript_handler_error_after_a_cancel",
            "acp_typescript_over_http_a_cancel_that_overtakes_its_request_is_lost",
        ],
    ),
    (
        "async_lsp.rs",
        include_str!("async_lsp.rs"),
        &[
            "async_lsp_deadlock_at_its_concurrency_limit",
            "async_lsp_a_duplicate_id_makes_the_first_uncancellable",
        ],
    ),
    ("effect.rs", include_str!("effect.rs"), &["effect_7131_unknown_cancel_poisons_a_later_id"]),
    ("h2.rs", include_str!("h2.rs"), &["h2_246_terminal_state_set_before_flush"]),
    ("python_sdk.rs", include_str!("python_sdk.rs"), &["python_sdk_3060_every_request_has_id_1"]),
    (
        "rmcp.rs",
        include_str!("rmcp.rs"),
        &[
            "rmcp_cancel_then_reuse_of_the_id",
            "rmcp_two_requests_with_one_id_cancel_each_other",
            "rmcp_progress_after_cancel",
            "rmcp_a_timeout_returns_when_the_peer_stops_reading",
            "rmcp_cancel_over_stateless_http",
            "rmcp_disconnect_with_an_event_store",
        ],
    ),
    (
        "rust_sdk.rs",
        include_str!("rust_sdk.rs"),
        &["rust_sdk_1251_a_cancel_for_a_server_request_hits_the_clients_own"],
    ),
    (
        "stream_json_rpc.rs",
        include_str!("stream_json_rpc.rs"),
        &["streamjsonrpc_56_cancel_before_registration", "streamjsonrpc_489_cancel_during_flush"],
    ),
    ("tarpc.rs", include_str!("tarpc.rs"), &["tarpc_415_pending_calls_hang_when_the_driver_dies"]),
    (
        "tower_lsp_server.rs",
        include_str!("tower_lsp_server.rs"),
        &["tower_lsp_server_no_cancel_once_4_handlers_run"],
    ),
    ("tower_mcp.rs", include_str!("tower_mcp.rs"), &["tower_mcp_1251_permit_taken_in_the_reader"]),
    (
        "vscode_jsonrpc.rs",
        include_str!("vscode_jsonrpc.rs"),
        &["vscode_jsonrpc_1621_calls_hang_on_close", "vscode_jsonrpc_1_and_its_text_share_a_key"],
    ),
];

/// The number of bugs in the design. It detects a bug that is removed from this list together with its test.
const KNOWN: usize = 21;

#[test]
fn every_known_bug_has_its_test_and_every_test_its_bug() {
    let all: usize = BUGS.iter().map(|(_, _, bugs)| bugs.len()).sum();
    assert_eq!(all, KNOWN);
    let this = include_str!("main.rs");
    for (file, source, bugs) in BUGS {
        let module = file.trim_end_matches(".rs");
        assert!(this.contains(&format!("\nmod {module};\n")), "{file} is not compiled");
        let tests: Vec<_> = source
            .split("#[tokio::test")
            .skip(1)
            .filter_map(|test| test.split_once("async fn ")?.1.split('(').next())
            .collect();
        assert_eq!(tests, bugs, "{file}");
        let is_about = |test: &&str| test.contains("\n    is_about!(\"");
        let numbered = source.split("#[tokio::test").filter(is_about).count();
        assert_eq!(numbered, bugs.len(), "{file} has a test that does not say which invariant it is about");
        assert!(!source.contains("#[ignore"), "{file} has a test that is not run");
    }
}
