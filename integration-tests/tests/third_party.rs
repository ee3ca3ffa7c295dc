//! Our [`Peer`](rescind::Peer) as the client of programs that use other libraries (`interop/*.mjs`): the ACP SDK's
//! agent over stdio, HTTP/2 and WebSocket; vscode-jsonrpc's server over stdio and over a named pipe on which we
//! listen, as editors do; and the MCP libraries' servers of the 2025 revisions and of 2026-07-28, each over stdio and
//! over HTTP.
//!
//! They need Node, so `cargo test` reports them as ignored, and `interop/run` runs them. That 1 and `"1"` are two
//! requests is not tested here, because a `Peer` uses numbers only. `rescind check` tests it with its own frames.
#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "what the tests share is part of them")]

mod mcp;
mod program;
mod run;
mod scenarios;

use rescind_testkit::support::in_time;

macro_rules! third_party {
    (in $module:ident: $program:expr; $($name:ident: $test:path,)*) => {
        mod $module {
            use super::program::Program;

            $(
                #[tokio::test]
                #[ignore = "needs node and `npm ci` in integration-tests/interop; .ci/interop runs it"]
                async fn $name() {
                    super::in_time(stringify!($name), $test($program)).await;
                }
            )*
        }
    };
}

macro_rules! answers_owed {
    (in $module:ident: $program:expr; $($name:ident: $test:path,)*) => {
        third_party! { in $module: $program;
            a_cancelled_call_is_confirmed_and_its_work_stops: crate::third_party::scenarios::cancel_running,
            a_call_cancelled_at_once_leaves_no_work_behind: crate::third_party::scenarios::cancel_at_once,
            a_second_cancel_of_a_request_has_no_effect: crate::third_party::scenarios::cancel_twice,
            a_cancel_after_the_answer_is_ignored: crate::third_party::scenarios::cancel_finished,
            a_cancel_for_an_unknown_id_is_ignored: crate::third_party::scenarios::cancel_unknown,
            a_partial_result_is_told_as_completed_after_the_cancel: crate::third_party::scenarios::partial_result,
            a_deaf_handler_is_waited_for: crate::third_party::scenarios::deaf_handler,
            a_handler_that_fails_after_its_cancel_is_told_as_failed: crate::third_party::scenarios::fails_after_cancel,
            what_it_asks_of_us_is_cancelled_with_its_parent: crate::third_party::scenarios::nested_requests,
            a_dropped_call_stops_its_work: crate::third_party::scenarios::dropped_call,
            a_deadline_stops_its_work: crate::third_party::scenarios::deadline,
            $($name: $test,)*
        }
    };
}

macro_rules! silence_owed {
    (in $module:ident: $program:expr) => {
        third_party! { in $module: $program;
            a_cancelled_call_ends_and_its_work_stops: crate::third_party::scenarios::cancel_running,
            the_other_of_two_calls_goes_on: crate::third_party::mcp::cancel_one_of_two,
            a_cancelled_tool_stops: crate::third_party::mcp::cancel_tool,
            a_cancel_for_what_is_over_or_never_was_is_ignored: crate::third_party::mcp::cancel_finished_and_unknown,
            progress_is_told_to_its_call: crate::third_party::mcp::progress,
            a_deadline_stops_its_work: crate::third_party::scenarios::deadline,
            a_dropped_call_stops_its_work: crate::third_party::scenarios::dropped_call,
            a_deaf_handler_harms_no_other_call: crate::third_party::mcp::deaf_handler,
        }
    };
}

// Only the stdio of a killed program reports its status and its stderr.
answers_owed! { in acp_agent: Program::AcpAgent;
    a_program_killed_in_the_middle_settles_every_call: crate::third_party::scenarios::killed_in_the_middle,
    a_call_ends_when_the_connection_is_closed_in_the_middle: crate::third_party::scenarios::closed_in_the_middle,
}
answers_owed! { in lsp_server: Program::LspServer;
    a_program_killed_in_the_middle_settles_every_call: crate::third_party::scenarios::killed_in_the_middle,
    a_call_ends_when_the_connection_is_closed_in_the_middle: crate::third_party::scenarios::closed_in_the_middle,
}
answers_owed! { in lsp_server_over_pipe: Program::LspServerOverPipe;
    a_call_ends_when_the_connection_is_closed_in_the_middle: crate::third_party::scenarios::closed_in_the_middle,
}
answers_owed! { in acp_agent_over_http: Program::AcpAgentOverHttp; }
answers_owed! { in acp_agent_over_websocket: Program::AcpAgentOverWebSocket; }
silence_owed! { in mcp_server: Program::McpServer }
silence_owed! { in mcp_server_over_http: Program::McpServerOverHttp }
silence_owed! { in mcp_2026_server: Program::Mcp2026Server }
silence_owed! { in mcp_2026_server_over_http: Program::Mcp2026ServerOverHttp }
