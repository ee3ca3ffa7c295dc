//! The attack table: every attack or fault, the required behaviour, and the tests that check it.

/// A file, from the root of the repository, and tests in it: the names of functions, or the prefixes of the names of
/// trials. A scenario is only a file.
pub(crate) type Tests = (&'static str, &'static [&'static str]);

pub(crate) struct Row {
    pub(crate) attack: &'static str,
    pub(crate) must_hold: &'static str,
    pub(crate) tests: &'static [Tests],
}

pub(crate) const ROWS: [Row; 23] = [
    Row {
        attack: "1,000,000 pairs of request and cancel on each wire, over HTTP 40,960 (all with RESCIND_ATTACKS_FULL=1; CI plays a tenth of each flood, by night all), handlers ignore the cancel",
        must_hold: "live handlers never over the limit; memory +16 MiB at most; a second connection's p99 under 5 times what it is beside two \
                    busy threads, or beside the same flood served without us, whichever is more",
        // If closing an exchange is the cancel, a million of them would use up the ports of the machine: the nightly
        // run plays ten thousand, and a debug build a thousand.
        tests: &[
            ("integration-tests/attacks/floods.rs", &["floods::pairs_of_request_and_cancel::"]),
            (
                "integration-tests/matrix/faults/burst.rs",
                &["burst::many_cancels_end_no_connection::http2-stateless"],
            ),
        ],
    },
    Row {
        attack: "1,000,000 cancels for unknown ids, 40,960 over HTTP, some of them strings of 1 KB",
        must_hold: "below 1 MiB, no table entry",
        tests: &[
            ("integration-tests/attacks/floods.rs", &["floods::cancels_for_unknown_ids::"]),
            ("crates/core/src/machine/tests/cancels.rs", &["a_million_unknown_cancels_leave_nothing"]),
        ],
    },
    Row {
        attack: "40,960 early cancels over HTTP, then one request",
        must_hold: "it runs; the table has at most 256",
        tests: &[
            ("integration-tests/attacks/floods.rs", &["floods::early_cancels_then_one_request::"]),
            ("crates/core/src/machine/tests/cancels.rs", &["early_cancels_are_bounded_and_expire"]),
        ],
    },
    Row {
        attack: "64 sessions with the same ids, 1,000,000 cancels across, 40,960 over HTTP",
        must_hold: "none hits another's request",
        tests: &[
            ("integration-tests/attacks/floods.rs", &["floods::cross_cancels_between_64_sessions::"]),
            (
                "integration-tests/matrix/faults/cross_session.rs",
                &["cross_session::cancels_hit_their_own_session_alone::"],
            ),
        ],
    },
    Row {
        attack: "10,000 requests under one id",
        must_hold: "one result, the rest refused, none crossed",
        tests: &[
            ("integration-tests/attacks/ids.rs", &["ids::ten_thousand_requests_under_one_id::"]),
            (
                "crates/core/src/machine/tests/requests.rs",
                &["ten_thousand_requests_under_one_id_give_one_result"],
            ),
            (
                "crates/http/tests/streamable/refusals.rs",
                &["an_id_in_use_gets_409_and_the_first_request_goes_on"],
            ),
        ],
    },
    Row {
        attack: "cancel, and the id used again while the old handler still runs",
        must_hold: "refused; the old handler's answer never reaches the new call",
        tests: &[
            (
                "crates/core/src/machine/tests/requests.rs",
                &["an_id_whose_handler_only_drains_is_refused_as_overloaded_under_its_own_id"],
            ),
            ("integration-tests/known_bugs/rmcp.rs", &["rmcp_cancel_then_reuse_of_the_id"]),
            ("crates/testkit/vectors/acp/reuse_while_draining.json", &[]),
            ("crates/testkit/vectors/mcp/reuse_while_draining.json", &[]),
            ("crates/testkit/vectors/abp/reuse_while_draining.json", &[]),
        ],
    },
    Row {
        attack: "the peer stops reading, 4,000 results are made, over HTTP 1,000, as many as a client has in flight; a cancel arrives",
        must_hold: "the handler is stopped within 50 ms; the outbox holds no more than it may, and what has no room there waits with its \
                    permit; then disconnect with a reason",
        tests: &[
            (
                "integration-tests/attacks/blocked_sides.rs",
                &["blocked_sides::a_handler_is_stopped_behind_4000_unread_results::"],
            ),
            (
                "integration-tests/matrix/faults/slow_reader.rs",
                &[
                    "slow_reader::a_cancel_is_heard_behind_four_thousand_results::",
                    "slow_reader::who_sends_and_never_reads_is_told_so::",
                ],
            ),
            (
                "crates/core/tests/driver/serving.rs",
                &["a_peer_that_does_not_read_blocks_no_handler_and_is_closed_when_the_reserve_is_used_up"],
            ),
        ],
    },
    Row {
        attack: "a handler loops for ever, async and blocking",
        must_hold: "answered by grace + 50 ms, permit held, counted as draining; a shutdown ends and says how many",
        tests: &[
            (
                "integration-tests/attacks/blocked_sides.rs",
                &[
                    "blocked_sides::an_async_handler_that_loops_is_answered_by_its_grace",
                    "blocked_sides::a_handler_that_never_yields_drains_and_is_reported::",
                ],
            ),
            (
                "crates/core/tests/driver/serving.rs",
                &[
                    "a_blocking_handler_holds_its_permit_until_its_thread_ends",
                    "a_shutdown_reports_the_blocking_work_that_does_not_stop",
                ],
            ),
        ],
    },
    Row {
        attack: "a cascade 100,000 wide, ping-pong 1,000 deep, in a stack of 256 KiB",
        must_hold: "under 1 s, the exact count, other requests answered meanwhile",
        tests: &[
            (
                "integration-tests/attacks/cascade.rs",
                &[
                    "cascade::a_hundred_thousand_children_in_a_small_stack",
                    "cascade::a_thousand_hops_in_a_small_stack",
                ],
            ),
            ("crates/core/src/machine/tests/tree.rs", &["a_hundred_thousand_children_are_walked_in_slices"]),
            ("crates/core/tests/driver/router.rs", &["a_cancel_goes_down_a_thousand_hops_between_two_peers"]),
        ],
    },
    Row {
        attack: "1,024 deaf blocking handlers, disconnect, reconnect, again, 100 times",
        must_hold: "the cap of the server holds",
        tests: &[(
            "integration-tests/attacks/blocked_sides.rs",
            &["blocked_sides::deaf_blocking_handlers_keep_to_the_servers_cap::"],
        )],
    },
    Row {
        attack: "1,024 handlers all awaiting callbacks that would queue",
        must_hold: "no deadlock: refused after the queue time",
        tests: &[(
            "integration-tests/attacks/blocked_sides.rs",
            &["blocked_sides::handlers_that_all_wait_for_queued_callbacks_are_refused"],
        )],
    },
    Row {
        attack: "10,000 notifications like didChange between requests",
        must_hold: "handled in order, bounded",
        tests: &[
            ("integration-tests/attacks/order.rs", &["order::ten_thousand_changes_between_requests::"]),
            (
                "crates/core/tests/driver/router.rs",
                &["notifications_beyond_their_room_are_dropped_and_counted_and_requests_go_on"],
            ),
        ],
    },
    Row {
        attack: "a panic in a handler, in Drop, in a user's hook; user code that calls back in",
        must_hold: "an internal error for one request, siblings live, no deadlock",
        tests: &[
            ("integration-tests/attacks/user_code.rs", &["user_code::a_panic_costs_its_own_request::"]),
            (
                "crates/core/tests/driver/serving.rs",
                &["a_panicking_hook_affects_no_other_request_and_handler_errors_are_answered_unchanged"],
            ),
            (
                "crates/core/tests/driver_log.rs",
                &["a_subscriber_that_calls_back_into_the_connection_does_not_deadlock"],
            ),
            (
                "crates/core/tests/driver/drop_without_lock.rs",
                &[
                    "a_refused_call_drops_its_matcher_without_the_lock",
                    "a_waker_that_is_replaced_is_dropped_without_the_lock",
                ],
            ),
        ],
    },
    Row {
        attack: "futures dropped at every await point; a child killed at every byte of a script",
        must_hold: "no frame lost or torn, no residue",
        tests: &[
            (
                "integration-tests/attacks/drops.rs",
                &[
                    "drops::a_future_is_dropped_at_every_await::",
                    "drops::a_child_is_killed_at_every_byte_of_its_script",
                ],
            ),
            ("crates/testkit/src/conformance/polls.rs", &["dropped_polls_lose_nothing"]),
        ],
    },
    Row {
        attack: "malformed UTF-8, JSON, BOM, NUL, lone surrogates, depth 128 and 100,000, batches, ids that are none or look alike",
        must_hold: "an error for that frame, the session goes on, no two ids confused",
        tests: &[
            (
                "integration-tests/matrix/faults/bad_input.rs",
                &["bad_input::each_gets_its_error_and_the_session_goes_on::"],
            ),
            (
                "integration-tests/tests/bad_input.rs",
                &[
                    "a_frame_that_is_not_json_is_refused_and_the_session_continues",
                    "json_that_is_not_a_message_is_refused_and_the_session_continues",
                    "ids_that_look_alike_are_not_confused",
                    "bad_frames_do_not_affect_the_good_frames_between_them",
                ],
            ),
            ("crates/websocket/tests/messages.rs", &["invalid_utf8_closes_with_1007"]),
        ],
    },
    Row {
        attack: "oversize, an endless line, one byte a second on 200 connections, a lying Content-Length, fragments",
        must_hold: "memory at most twice the limit; over HTTP and in the handshake of WebSocket timed out; over stdio and a named pipe a slow \
                    peer is its user's own, and heard",
        tests: &[
            (
                "integration-tests/attacks/slow_senders.rs",
                &[
                    "slow_senders::a_head_a_byte_a_second_is_timed_out::http",
                    "slow_senders::a_body_a_byte_a_second_is_timed_out::http",
                    "slow_senders::a_handshake_a_byte_a_second_is_timed_out::websocket",
                ],
            ),
            (
                "integration-tests/matrix/faults/bad_input.rs",
                &[
                    "bad_input::an_oversize_frame_is_refused_alone::",
                    "bad_input::two_hundred_that_write_byte_by_byte_are_answered::",
                    "bad_input::two_hundred_lines_without_end_are_not_held::",
                ],
            ),
            (
                "integration-tests/tests/bad_input.rs",
                &[
                    "an_endless_line_or_body_is_not_kept_in_memory",
                    "a_false_content_length_ends_the_connection_if_no_frame_can_be_found",
                ],
            ),
            ("crates/core/src/framing/content_length.rs", &["a_false_content_length_allocates_nothing"]),
            (
                "crates/http/tests/streamable/refusals.rs",
                &[
                    "a_body_that_does_not_come_gets_408",
                    "a_body_over_the_limit_gets_413_by_its_length_and_while_it_is_read",
                ],
            ),
            (
                "crates/websocket/tests/messages.rs",
                &[
                    "a_message_over_the_limit_is_refused_and_closes_with_1009",
                    "fragments_over_the_limit_together_are_refused_too",
                ],
            ),
            ("crates/websocket/tests/refusals.rs", &["a_handshake_over_its_timeout_is_dropped"]),
            ("crates/websocket/src/link/tests.rs", &["a_few_bytes_between_pings_are_not_a_sign_of_life"]),
        ],
    },
    Row {
        attack: "a reason with a newline, ESC, U+202E, 1 MB",
        must_hold: "one log line under 1 KB",
        tests: &[
            ("integration-tests/attacks/reasons.rs", &["reasons::each_is_one_log_line_under_a_kilobyte"]),
            ("crates/core/src/cause.rs", &["a_reason_of_escapes_is_shown_in_less_than_a_kilobyte"]),
        ],
    },
    Row {
        attack: "a half-open peer, RST, SIGSTOP, kill -9",
        must_hold: "gone within twice the timeout; no descriptor leaked. A child that is stopped looks like one that is busy: a call ends \
                    within twice its deadline and the wait for an answer to its cancel, and the shutdown kills it",
        tests: &[
            (
                "integration-tests/attacks/lost_peers.rs",
                &[
                    "lost_peers::a_reset_ends_what_was_asked::",
                    "lost_peers::a_child_is_gone_within_twice_its_time::",
                ],
            ),
            (
                "integration-tests/matrix/faults/half_open.rs",
                &[
                    "half_open::a_cancelled_call_ends_unconfirmed::",
                    "half_open::a_client_that_answers_no_ping_is_lost_",
                ],
            ),
            ("crates/websocket/src/link/tests.rs", &["a_peer_that_misses_two_pings_is_disconnected"]),
            (
                "integration-tests/matrix/faults/many_connections.rs",
                &["many_connections::a_thousand_connections_and_half_of_their_requests_cancelled::"],
            ),
            ("crates/stdio/tests/child.rs", &["the_error_for_a_child_that_dies_has_its_signal"]),
        ],
    },
    Row {
        attack: "stateless HTTP: one client's calls hang, three times as many as may run, in a link that is all clients",
        must_hold: "half of the handlers run and half of the queue waits for it, the rest gets 429 with `client_queued`; another client's call \
                    is answered at once, distinguished by address and by principal",
        tests: &[
            ("crates/http/tests/stateless/shares.rs", &["hanging_calls_of_one_client_delay_no_other_client"]),
            (
                "crates/core/src/machine/tests/shares.rs",
                &[
                    "a_client_that_hangs_leaves_permits_and_queue_to_others",
                    "queued_requests_start_in_order_of_arrival_except_those_over_their_share",
                ],
            ),
            (
                "crates/core/tests/driver/shares.rs",
                &["hanging_handlers_of_one_client_use_at_most_half_of_the_permits"],
            ),
        ],
    },
    Row {
        attack: "`initialize` ten times as often as there may be sessions, over streamable HTTP and over ACP's five times",
        must_hold: "the flood ends its own sessions that were never used, oldest first, and holds half of them; used ones stay; another client opens \
                    one at once",
        tests: &[
            (
                "crates/http/tests/streamable/shares.rs",
                &[
                    "a_flood_of_initialize_displaces_only_its_own_unused_sessions",
                    "a_client_that_uses_its_sessions_holds_half_of_them_at_most",
                ],
            ),
            (
                "crates/http/tests/acp/shares.rs",
                &["a_flood_of_initialize_displaces_only_its_own_unused_connections"],
            ),
        ],
    },
    Row {
        attack: "idle WebSockets that answer pings, five times as many as there may be connections; the same in memory, and silent ones",
        must_hold: "the oldest that was never used is closed with 1001 and counted; used ones stay, of one client half of all; another client is let in",
        tests: &[
            (
                "crates/websocket/tests/shares.rs",
                &[
                    "idle_connections_that_answer_pings_are_displaced",
                    "connections_in_use_of_one_address_are_half_of_them_at_most",
                ],
            ),
            (
                "crates/core/tests/driver/shares.rs",
                &[
                    "unused_connections_are_displaced_and_those_in_use_are_not",
                    "a_client_that_uses_its_connections_holds_half_of_them_at_most",
                    "connections_without_a_message_are_displaced_too",
                ],
            ),
        ],
    },
    Row {
        attack: "one address opens sockets that say nothing, HTTP five times as many as may be, WebSocket four times",
        must_hold: "half of the places are left to others; over HTTP its own oldest silent one makes room, over WebSocket it is refused with 503 and cut off",
        tests: &[
            (
                "crates/http/tests/streamable/shares.rs",
                &["silent_connections_of_one_address_leave_half_to_others"],
            ),
            (
                "crates/websocket/tests/shares.rs",
                &["slow_handshakes_of_one_address_use_at_most_half_of_the_handshakes"],
            ),
        ],
    },
    Row {
        attack: "deaf blocking handlers of one client, three times as many as may drain",
        must_hold: "its own next request is refused with `client_draining`; nobody else's is",
        tests: &[
            (
                "crates/core/tests/driver/shares.rs",
                &["blocking_handlers_of_one_client_that_only_drain_refuse_nobody_else"],
            ),
            (
                "crates/core/src/driver/admission/mod.rs",
                &["a_client_that_drains_more_than_its_share_is_refused_and_others_are_not"],
            ),
        ],
    },
];
