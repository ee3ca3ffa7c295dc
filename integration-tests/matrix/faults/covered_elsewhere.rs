//! The faults that the crates' own tests cover on their wire, so that they are not repeated here.
//!
//! The table in `main.rs` is a summary. `COVERED` names each test. A test here checks that it exists.

use std::path::Path;
use std::sync::Arc;

use libtest_mimic::Trial;

use crate::rows::{ROWS, Tests};
use crate::test_names::{Built, is_function};

/// A file, from the root of the repository, and its tests: functions, or trials by their names.
const COVERED: [Tests; 17] = [
    (
        "crates/websocket/src/link/tests.rs",
        &[
            "a_peer_that_misses_two_pings_is_disconnected",
            "a_few_bytes_between_pings_are_not_a_sign_of_life",
            "messages_are_read_while_a_write_is_blocked",
            "pongs_owed_to_a_peer_that_does_not_read_are_bounded",
        ],
    ),
    (
        "crates/websocket/tests/messages.rs",
        &[
            "a_message_over_the_limit_is_refused_and_closes_with_1009",
            "fragments_over_the_limit_together_are_refused_too",
            "invalid_utf8_closes_with_1007",
            "broken_framing_closes_with_1002",
            "frames_may_come_one_byte_at_a_time",
            "an_end_inside_a_message_yields_no_frame",
        ],
    ),
    (
        "crates/websocket/tests/refusals.rs",
        &[
            "a_slow_handshake_does_not_delay_others",
            "a_handshake_over_its_timeout_is_dropped",
            "a_head_without_end_is_refused",
        ],
    ),
    ("crates/websocket/tests/sessions.rs", &["an_oversize_message_loses_no_pending_answer"]),
    ("crates/websocket/tests/thousand.rs", &["a_thousand_idle_connections_stay_within_their_memory_budget"]),
    (
        "crates/named-pipe/tests/ownership.rs",
        &[
            "a_server_that_restarts_takes_over_the_socket_it_left_behind",
            "a_second_listener_fails_with_path_in_use_and_the_first_continues",
            "of_many_concurrent_binds_of_one_path_exactly_one_succeeds",
            "a_thousand_connections_are_open_at_once",
        ],
    ),
    (
        "crates/named-pipe/tests/ends.rs",
        &["a_peer_that_is_gone_ends_the_connection_although_nothing_is_written"],
    ),
    (
        "crates/http/tests/streamable/lost_streams.rs",
        &["a_setting_cancels_requests_whose_stream_is_lost", "in_acp_a_lost_stream_cancels_after_its_grace"],
    ),
    (
        "crates/http/tests/streamable/streams.rs",
        &[
            "a_cut_stream_is_resumed_after_its_last_event",
            "our_client_resumes_an_ended_stream",
            "a_newer_reader_displaces_the_one_before",
            "two_streams_of_one_session_carry_their_own_requests",
            "a_cancel_in_another_session_does_nothing",
            "a_cancel_that_comes_before_its_request_cancels_it",
            "pipelined_requests_are_answered_in_order",
            "a_slow_stream_holds_its_sender_back_and_loses_nothing",
            "unread_messages_are_bounded_and_then_requests_fail",
            "an_idle_session_is_ended_and_unknown_afterwards",
        ],
    ),
    (
        "integration-tests/matrix/faults/burst.rs",
        &["burst::ten_thousand_handlers_are_signalled_over_one_connection::http2-streamable"],
    ),
    (
        "crates/http/tests/streamable/refusals.rs",
        &[
            "an_unknown_client_gets_401_and_a_session_belongs_to_its_opener",
            "a_body_that_does_not_come_gets_408",
            "an_id_in_use_gets_409_and_the_first_request_goes_on",
            "a_body_over_the_limit_gets_413_by_its_length_and_while_it_is_read",
        ],
    ),
    (
        "crates/http/tests/acp/status.rs",
        &["every_refusal_has_its_status", "a_connection_belongs_to_the_principal_that_opened_it"],
    ),
    (
        "crates/http/tests/acp/streams.rs",
        &[
            "a_cancel_counts_with_or_without_its_sessions_header",
            "a_cancel_on_another_connection_has_no_effect",
            "an_unused_connection_ends_after_its_idle_time",
        ],
    ),
    (
        "crates/http/tests/stateless/client_disconnect.rs",
        &["closing_an_event_stream_cancels_only_its_request", "closing_before_the_head_cancels_too"],
    ),
    ("crates/http/tests/stateless/status.rs", &["every_refusal_has_its_status_and_its_code"]),
    (
        "crates/stdio/tests/child.rs",
        &[
            "the_error_for_a_child_that_dies_has_its_signal",
            "a_child_that_ignores_sigterm_is_killed_after_two_graces",
            "dropping_the_connection_kills_the_group_at_once",
        ],
    ),
    (
        "integration-tests/tests/bad_input.rs",
        &[
            "an_endless_line_or_body_is_not_kept_in_memory",
            "a_false_content_length_ends_the_connection_if_no_frame_can_be_found",
        ],
    ),
];

/// The folder of these trials.
const HERE: &str = "integration-tests/matrix/faults/";

/// `others`: all trials of this program except these. The trials that the attack table names in this program are
/// looked up here too.
pub(crate) fn trials(others: &[Trial]) -> Vec<Trial> {
    let built = Arc::new(Built::of(others));
    let there = |(file, tests): Tests, what: &str| {
        let built = Arc::clone(&built);
        Trial::test(format!("covered_elsewhere::the_tests_named_{what}_are_there::{file}"), move || {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            let text =
                std::fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))?;
            for test in tests {
                let is_there = if test.contains("::") { built.has(test) } else { is_function(&text, test) };
                if !is_there {
                    return Err(format!(
                        "{file} has no test `{test}` any more: prove it here, or name its new place"
                    )
                    .into());
                }
            }
            Ok(())
        })
    };
    let mut trials: Vec<_> = COVERED.into_iter().map(|tests| there(tests, "here")).collect();
    for (at, row) in ROWS.into_iter().enumerate() {
        let of_it = row.tests.iter().filter(|(file, _)| file.starts_with(HERE));
        trials.extend(of_it.map(|tests| there(*tests, &format!("by_attack_{}", at + 1))));
    }
    trials.push(Trial::test("covered_elsewhere::what_is_no_test_or_is_ignored_is_none", || {
        let text = "#[test]\nfn one() {}\n\nasync fn two() {}\n\n/// Words.\n#[tokio::test]\nasync fn three() {}\n\
                    #[test]\n#[ignore = \"slow\"]\nfn four() {}\n// test\nfn five() { six() }\n#[test]\nfn six() {}\n";
        assert_eq!(
            ["one", "two", "three", "four", "five", "six", "seven"].map(|name| is_function(text, name)),
            [true, false, true, false, false, true, false]
        );
        let trials = [
            Trial::test("a::b::one", || Ok(())),
            Trial::test("a::b::two (not here)", || Ok(())).with_ignored_flag(true),
        ];
        let built = Built::of(&trials);
        let there = ["a::b::", "a::b::one", "a::b::two", "a::c::"].map(|name| built.has(name));
        assert!(!cfg!(target_os = "linux") || there == [true, true, false, false], "{there:?}");
        Ok(())
    }));
    trials
}
