//! Which test catches which planted bug.

use rescind_core::failpoint::Failpoint;

/// A bug, and the test that fails because of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) failpoint: Failpoint,
    /// A test of the program `mutations`, or one with the prefix of an engine with a separate program: `attacks::`,
    /// `faults::`, `known_bugs::`, `threads::` (and its file), `soak::` (a wire).
    pub(crate) test: &'static str,
    /// The text of the failure: an invariant's number if there is one.
    pub(crate) says: &'static str,
}

const fn row(failpoint: Failpoint, test: &'static str, says: &'static str) -> Row {
    Row { failpoint, test, says }
}

/// The reference's committed regressions. With a bug, only the one that is kept for it runs.
const KEPT: &str = "reference::each_kept_case_that_once_failed_passes";

/// Every bug once, and many of them also with a second engine: those whose first test was written for this table are
/// caught by an existing engine too.
pub(crate) const MUTATIONS: [Row; Failpoint::ALL.len() + 31] = [
    row(Failpoint::DoubleSignal, "search::answer_owed_in_order", "I5 is broken"),
    row(Failpoint::EarlyRefund, "search::answer_owed_in_order", "I10 is broken"),
    row(Failpoint::NoGeneration, "search::answer_owed_in_order", "I14 is broken"),
    row(Failpoint::OverwriteDuplicate, "search::answer_owed_in_order", "I4 is broken"),
    row(Failpoint::RecursiveCascade, "driver::a_wide_cascade_fits_a_small_stack", "overflowed its stack"),
    row(Failpoint::CancelOvertakes, "search::answer_owed_in_order", "I12 is broken"),
    row(Failpoint::AnswerAfterSilence, "search::silence_in_order", "I1 is broken"),
    row(Failpoint::ShieldIgnored, "search::answer_owed_in_order", "I6 is broken"),
    row(Failpoint::ParkUnbounded, "search::answer_owed_without_order", "I11 is broken"),
    row(Failpoint::EarlyCancelStays, "search::answer_owed_without_order", "I8 is broken"),
    row(Failpoint::TimerLeft, "search::answer_owed_in_order", "I3 is broken"),
    row(Failpoint::HandshakeCancelled, "search::answer_owed_in_order", "I9 is broken"),
    row(Failpoint::NotBornCancelled, "search::answer_owed_in_order", "I5 is broken"),
    row(Failpoint::ValueDropped, "reference::acp::the_machine_does_what_the_reference_does", "I6 is broken"),
    row(Failpoint::CancelNotDisarmed, "search::answer_owed_in_order", "L3 is broken"),
    row(Failpoint::RapidReset, "search::answer_owed_in_order", "I3 is broken"),
    row(Failpoint::LostKeepsSlots, "search::answer_owed_in_order", "I10 is broken"),
    row(Failpoint::SignalLost, "search::answer_owed_in_order", "L1 is broken"),
    row(Failpoint::AnswerUnheard, "search::answer_owed_in_order", "I13 is broken"),
    row(Failpoint::LaterCause, "reference::acp::the_machine_does_what_the_reference_does", "I13 is broken"),
    row(Failpoint::AckTwice, "search::acknowledged_in_order", "I7 is broken"),
    row(Failpoint::LateRegistration, "driver::a_cancel_right_behind_its_request_is_heard", "hangs: L1"),
    row(Failpoint::LostWakeup, "cells::memory_acp_call_completes", "I13: Broke"),
    row(
        Failpoint::ForgottenCallers,
        "driver::a_caller_gets_the_error_that_the_connection_is_lost",
        "hangs: I13",
    ),
    row(
        Failpoint::SilenceLeavesFrames,
        "driver::a_silenced_request_drops_its_queued_frames",
        "I2: 200 of 200",
    ),
    row(Failpoint::BadFrameSwallowsNext, "corpus::every_file_of_the_corpus_holds", "fuzz/corpus/newline/"),
    row(Failpoint::TornWrite, "driver::a_frame_larger_than_the_pipe_arrives_whole", "hangs: I13"),
    row(Failpoint::ExchangeCloseUntold, "cells::http_stateless_mcp_2026_cancel_running", "L1: Broke"),
    row(Failpoint::PostsCountAsOrdered, "cells::http_streamable_acp_early_cancel_waits", "I11: Broke"),
    row(Failpoint::PongDeadlineIgnored, "websocket::a_peer_that_answers_no_ping_is_lost", "hangs: L3"),
    row(Failpoint::ReadingWaitsForWriting, "websocket::a_cancel_is_heard_while_answers_wait", "hangs: L2"),
    row(
        Failpoint::AnswerUnheard,
        "reference::lsp::the_machine_does_what_the_reference_does",
        "I13 is broken",
    ),
    row(
        Failpoint::EarlyCancelStays,
        "reference::mcp::the_machine_does_what_the_reference_does",
        "I8 is broken",
    ),
    row(Failpoint::ValueDropped, KEPT, "I6 is broken"),
    row(Failpoint::DoubleSignal, KEPT, "I5 is broken"),
    row(Failpoint::EarlyCancelStays, KEPT, "I8 is broken"),
    row(Failpoint::AckTwice, KEPT, "I7 is broken"),
    row(Failpoint::CancelOvertakes, KEPT, "I12 is broken"),
    row(Failpoint::LaterCause, KEPT, "I13 is broken"),
    row(Failpoint::AnswerUnheard, KEPT, "I13 is broken"),
    row(Failpoint::CancelOvertakes, "sim::sim_memory_acp", "I12 is broken"),
    row(Failpoint::SilenceLeavesFrames, "sim::sim_memory_mcp", "I2 is broken"),
    row(Failpoint::TornWrite, "sim::sim_memory_acp", "I13 is broken"),
    row(Failpoint::ForgottenCallers, "sim::sim_memory_mcp", "I13 is broken"),
    row(Failpoint::AckTwice, "sim::sim_memory_abp", "I7 is broken"),
    row(Failpoint::ReadingWaitsForWriting, "sim::sim_websocket_acp", "I13 is broken"),
    row(Failpoint::LostWakeup, "sim::sim_websocket_lsp", "L1 is broken"),
    row(Failpoint::PongDeadlineIgnored, "sim::sim_websocket_acp", "I13 is broken"),
    row(Failpoint::PostsCountAsOrdered, "sim::sim_http_streamable_acp", "L1 is broken"),
    row(Failpoint::ExchangeCloseUntold, "sim::sim_http_stateless_mcp_2026", "L1 is broken"),
    row(Failpoint::ValueDropped, "sim::sim_http_acp_acp", "I6 is broken"),
    row(Failpoint::NotBornCancelled, "sim::sim_http_acp_acp_v2", "I5 is broken"),
    row(Failpoint::SignalLost, "sim::sim_http_streamable_lsp", "L1 is broken"),
    row(
        Failpoint::RecursiveCascade,
        "attacks::cascade::a_hundred_thousand_children_in_a_small_stack",
        "overflowed its stack",
    ),
    row(
        Failpoint::ReadingWaitsForWriting,
        "attacks::blocked_sides::a_handler_is_stopped_behind_4000_unread_results::websocket",
        "hangs: L2",
    ),
    row(Failpoint::ParkUnbounded, "attacks::floods::early_cancels_then_one_request::http-streamable", "I8"),
    row(
        Failpoint::PongDeadlineIgnored,
        "faults::half_open::a_client_that_answers_no_ping_is_lost_asked_by_server::websocket",
        "hangs: L3",
    ),
    row(
        Failpoint::OverwriteDuplicate,
        "known_bugs::async_lsp::async_lsp_a_duplicate_id_makes_the_first_uncancellable",
        "I4 is broken",
    ),
    row(Failpoint::LateRegistration, "threads::requests::cancel_and_cancel", "I1 or L3 is broken"),
    row(Failpoint::LostWakeup, "threads::requests::cancel_and_cancel", "I1 or L3 is broken"),
    row(Failpoint::ForgottenCallers, "threads::calls::disconnect_and_disconnect", "I13 is broken"),
    row(Failpoint::LostKeepsSlots, "soak::websocket", "I3:"),
];
