//! The end of a connection: loss, the end of input, shutdown.
//!
//! Shield, grace, cancel, loss, half-close and shutdown, in orders that cause trouble.

use super::*;
use crate::cause::CauseKind;
use crate::dialect::{ACP, AnswerAfterCancel, LSP, MCP, MCP_2026, Refusal};
use crate::message::BadMessage;

fn close(outputs: &[Output]) -> Option<CloseCause> {
    outputs.iter().find_map(|output| match output {
        Output::Close(cause) => Some(*cause),
        _ => None,
    })
}

#[test]
fn loss_settles_every_call_and_cancels_every_handler_without_an_answer() {
    // I13, L3
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    let written = bench.written(&CallSpec::new("a"));
    let (staged, _) = bench.session.local_call(bench.now, &CallSpec::new("a")).unwrap();
    let cancelled = bench.written(&CallSpec::new("a"));
    let _ = bench.session.local_cancel_call(bench.now, cancelled, CauseKind::Caller.into(), None);
    let _ = bench.outputs();
    bench.session.recv_lost(bench.now, DisconnectPolicy::CancelNow);
    let outputs = bench.outputs();
    for (call, settlement) in [
        (written, Settlement::Disconnected { may_have_run: true }),
        (staged, Settlement::Disconnected { may_have_run: false }),
        (cancelled, Settlement::Cancelled { cause: CauseKind::Caller.into(), confirmed: false }),
    ] {
        assert!(outputs.contains(&Output::Settle { call, settlement }), "I13: {outputs:?}");
    }
    assert_eq!((replies(&outputs), signals(&outputs)), (0, 1));
    assert_eq!(replies(&bench.answer(key, HandlerResult::Value)), 0);
    let _ = bench.ended(key);
    assert!(bench.session.is_finished());
    bench.assert_no_residue();
}

#[test]
fn a_resumable_loss_cancels_after_its_grace() {
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    bench.session.recv_lost(bench.now, DisconnectPolicy::Detach);
    assert_eq!(bench.outputs(), []);
    let outputs = bench.pass(Duration::from_secs(30));
    assert_eq!(outputs, [Output::Signal { key, cause: CauseKind::Disconnected.into() }]);
}

#[test]
fn after_the_end_of_input_running_requests_are_answered_and_then_the_connection_closes() {
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    bench.session.recv_half_close(bench.now);
    assert_eq!(bench.outputs(), []);
    assert_eq!(bench.answer(key, HandlerResult::Value), [reply(key, 1, ReplyBody::Handler)]);
    assert_eq!(close(&bench.ended(key)), Some(CloseCause::InputEnded));
}

#[test]
fn after_the_half_close_grace_running_requests_are_cancelled_and_aborted() {
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    bench.session.recv_half_close(bench.now);
    let outputs = bench.pass(Duration::from_secs(30));
    assert_eq!(outputs, [Output::Signal { key, cause: CauseKind::Disconnected.into() }]);
    let outputs = bench.pass(Duration::from_secs(2));
    assert!(outputs.contains(&Output::Abort(key)));
    assert_eq!(close(&outputs), Some(CloseCause::InputEnded));
}

#[test]
fn an_mcp_session_ends_soon_after_the_end_of_its_input() {
    // MCP 2026-07-28: a server on stdio exits promptly at the end of its input
    for dialect in [MCP, MCP_2026] {
        let mut bench = Bench::new(dialect);
        let (quick, slow) = (bench.running(1), bench.running(2));
        bench.session.recv_half_close(bench.now);
        assert_eq!(bench.outputs(), [], "a request that is about to end may answer");
        assert_eq!(bench.answer(quick, HandlerResult::Value), [reply(quick, 1, ReplyBody::Handler)]);
        let _ = bench.ended(quick);
        let cause = Cause::new(CauseKind::Disconnected);
        let outputs = bench.pass(Duration::from_millis(250));
        assert!(outputs.contains(&Output::Signal { key: slow, cause: cause.clone() }), "{outputs:?}");
        assert!(outputs.contains(&reply(slow, 2, ReplyBody::Cancelled(cause))), "{outputs:?}");
        let outputs = bench.pass(Duration::from_secs(2));
        assert!(outputs.contains(&Output::Abort(slow)), "{outputs:?}");
        assert_eq!(close(&outputs), Some(CloseCause::InputEnded));
    }
}

#[test]
fn a_shutdown_takes_its_six_steps_in_order() {
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    let ours = bench.written(&CallSpec::new("a"));
    bench.session.local_shutdown(bench.now, Duration::from_secs(10));
    // 1: requests and top-level calls are refused, children are not.
    assert!(bench.session.recv_request(bench.now, Bench::arrival(2, "test/echo")).is_none());
    let cause = Cause::new(CauseKind::Shutdown);
    let id = RequestId::number(2);
    assert_eq!(bench.outputs(), [refused_cancelled(id, cause.clone())]);
    assert!(bench.session.local_call(bench.now, &CallSpec::new("a")).is_err());
    let child = CallSpec { parent: Some(key), ..CallSpec::new("child") };
    let _child = bench.written(&child);
    // 2: it drains to the deadline.
    assert_eq!(bench.pass(Duration::from_millis(9999)), []);
    // 3: handlers are cancelled, cascading.
    let outputs = bench.pass(Duration::from_millis(1));
    assert!(outputs.contains(&Output::Signal { key, cause: cause.clone() }), "{outputs:?}");
    assert!(outputs.iter().any(|output| matches!(output, Output::SendCancel { .. })));
    // 4: after the grace they are aborted; 5: our calls are settled; 6: the connection closes.
    let outputs = bench.pass(Duration::from_secs(2));
    assert!(outputs.contains(&Output::Abort(key)));
    assert!(outputs.contains(&reply(key, 1, ReplyBody::Cancelled(cause.clone()))));
    let settlement = Settlement::Cancelled { cause, confirmed: false };
    assert!(outputs.contains(&Output::Settle { call: ours, settlement }), "{outputs:?}");
    assert_eq!(close(&outputs), Some(CloseCause::Shutdown));
    let _ = bench.ended(key);
    bench.session.recv_lost(bench.now, DisconnectPolicy::CancelNow);
    assert!(bench.session.is_finished());
}

#[test]
fn a_shutdown_gives_no_second_grace_to_a_handler_that_was_cancelled() {
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    bench.cancel(1);
    bench.session.local_shutdown(bench.now, Duration::from_secs(1));
    for wait in [1000, 999] {
        let outputs = bench.pass(Duration::from_millis(wait));
        assert!(!outputs.contains(&Output::Abort(key)), "{outputs:?}");
    }
    let outputs = bench.pass(Duration::from_millis(1));
    assert!(outputs.contains(&Output::Abort(key)), "its grace began anew: {outputs:?}");
}

#[test]
fn a_session_is_idle_before_its_requests_and_after_them() {
    let mut bench = Bench::new(ACP);
    assert!(!bench.session.has_requests_or_calls());
    let key = bench.running(1);
    assert!(bench.session.has_requests_or_calls());
    let _ = bench.answer(key, HandlerResult::Value);
    let _ = bench.ended(key);
    assert!(!bench.session.has_requests_or_calls());
    let _call = bench.written(&CallSpec::new("a"));
    assert!(bench.session.has_requests_or_calls());
    let _ = bench.session.recv_answer(bench.now, Some(CallNumber(1)), AnswerKind::Value);
    assert!(!bench.session.has_requests_or_calls());
}

#[test]
fn a_shutdown_without_requests_or_calls_closes_at_once() {
    let mut bench = Bench::new(MCP);
    bench.session.local_shutdown(bench.now, Duration::from_secs(10));
    assert_eq!(close(&bench.outputs()), Some(CloseCause::Shutdown));
}

#[test]
fn no_shield_outlasts_the_deadline_of_a_shutdown() {
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    bench.session.local_shield(bench.now, key);
    bench.cancel(1);
    bench.session.local_shutdown(bench.now, Duration::from_secs(1));
    assert_eq!(signals(&bench.pass(Duration::from_millis(999))), 0);
    assert_eq!(signals(&bench.pass(Duration::from_millis(1))), 1);
}

#[test]
fn bad_frames_are_answered_a_hundred_times_and_then_counted() {
    let mut bench = Bench::new(ACP);
    for _ in 0..1000 {
        bench.session.recv_bad(bench.now, BadMessage::NotJson, ExchangeId::NONE);
    }
    let refused = Refusal::Bad(BadMessage::NotJson);
    let answered = bench
        .outputs()
        .iter()
        .filter(|output| matches!(output, Output::Refuse { to: None, why, .. } if *why == refused))
        .count();
    assert_eq!((answered, bench.session.stats().bad_frames), (100, 1000));
    let _still_serves = bench.running(1);
}

#[test]
fn a_request_refused_during_shutdown_gets_the_answer_of_a_local_cancel() {
    // LSP: -32802 for a server-cancellable method; MCP 2026: a listen request ends with its graceful result.
    let cause = Cause::new(CauseKind::Shutdown);
    for (dialect, method, server_cancellable, graceful) in
        [(LSP, "textDocument/hover", true, None), (MCP_2026, "subscriptions/listen", false, Some("{}"))]
    {
        let mut bench = Bench::open(dialect);
        let _busy = bench.running(1);
        bench.session.local_shutdown(bench.now, Duration::from_secs(10));
        let arrival = InboundRequest { server_cancellable, ..Bench::arrival(2, method) };
        assert!(bench.session.recv_request(bench.now, arrival).is_none());
        let (id, exchange, cause) = (RequestId::number(2), ExchangeId::NONE, cause.clone());
        let refused = Output::RefuseCancelled { id, tag: 0, server_cancellable, exchange, graceful, cause };
        assert_eq!(bench.outputs(), [refused], "{method}");
    }
}

#[test]
fn a_bad_frame_on_an_exchange_of_ours_is_answered_within_the_bound() {
    let mut bench = Bench::client(ACP);
    let ours = ExchangeId::of_call(CallNumber(1));
    let refusals = (0..150).filter(|_| {
        bench.session.recv_bad(bench.now, BadMessage::NotJson, ours);
        bench.outputs().iter().any(|output| matches!(output, Output::Refuse { .. }))
    });
    assert_eq!(refusals.count(), 100, "a message on our own exchange ends that exchange");
}

#[test]
fn a_session_is_finished_once_it_is_lost_and_nothing_of_it_is_left() {
    let mut bench = Bench::new(ACP);
    assert!(!bench.session.is_finished(), "it is open");
    let key = bench.running(1);
    bench.session.recv_lost(bench.now, DisconnectPolicy::Keep);
    assert!(!bench.session.is_finished(), "a handler runs");
    let _ = bench.ended(key);
    assert!(bench.session.is_finished());
}

#[test]
fn an_idle_connection_is_counted_and_shut_down() {
    let mut bench = Bench::new(ACP);
    bench.session.local_idle(bench.now);
    assert_eq!(
        bench.outputs(),
        [Output::Event(Event::LimitReached("idle")), Output::Close(CloseCause::Shutdown)]
    );
}

#[test]
fn a_handler_that_outlived_its_connection_is_cancelled_at_the_earlier_of_two_deadlines() {
    let second = Duration::from_secs(1);
    for (detach, drain, kind) in [(1, 2, CauseKind::Disconnected), (2, 1, CauseKind::Shutdown)] {
        let mut bench = Bench::with(ACP, |config| config.limits.detach_grace = second * detach);
        let key = bench.running(1);
        bench.session.recv_lost(bench.now, DisconnectPolicy::Detach);
        bench.session.local_shutdown(bench.now, second * drain);
        bench.session.local_shutdown(bench.now, second * 3);
        assert_eq!(bench.pass(Duration::ZERO), [], "a later deadline has no effect");
        assert_eq!(bench.pass(second), [Output::Signal { key, cause: kind.into() }]);
    }
}

#[test]
fn a_second_shutdown_shortens_the_first_and_never_lengthens_it() {
    let second = Duration::from_secs(1);
    for is_lost in [false, true] {
        for (first, then) in [(10, 1), (1, 10), (1, 1)] {
            let mut bench = Bench::new(ACP);
            let key = bench.running(1);
            if is_lost {
                bench.session.recv_lost(bench.now, DisconnectPolicy::Keep);
            }
            bench.session.local_shutdown(bench.now, second * first);
            bench.session.local_shutdown(bench.now, second * then);
            assert_eq!(bench.pass(second / 2), [], "{first} s, then {then} s, lost: {is_lost}");
            let signal = Output::Signal { key, cause: CauseKind::Shutdown.into() };
            assert_eq!(bench.pass(second / 2), [signal], "{first} s, then {then} s, lost: {is_lost}");
            // The handlers are cancelled: a third shutdown does not shorten their grace.
            bench.session.local_shutdown(bench.now, Duration::ZERO);
            assert_eq!(bench.pass(Duration::ZERO), [], "{first} s, then {then} s, lost: {is_lost}");
        }
    }
}

// Shield, grace, cancel, loss, half-close and shutdown, in orders that cause trouble.

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn aborts(outputs: &[Output]) -> usize {
    outputs.iter().filter(|output| matches!(output, Output::Abort(_))).count()
}

fn closes(outputs: &[Output]) -> usize {
    outputs.iter().filter(|output| matches!(output, Output::Close(_))).count()
}

/// GetMCP: the machine waits for the value of a cancelled handler.
fn patient() -> Dialect {
    MCP.to_builder().answer_after_cancel(AnswerAfterCancel::ResultIfFinished).build()
}

#[test]
fn a_shutdown_aborts_a_deaf_handler_once() {
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    bench.session.local_shutdown(bench.now, seconds(10));
    let mut outputs = bench.pass(seconds(10));
    outputs.extend(bench.pass(seconds(2)));
    assert_eq!(aborts(&outputs), 1, "{outputs:?}");
    assert_eq!(bench.session.stats().aborted, 1);
    let _ = bench.ended(key);
    bench.assert_no_residue();
}

#[test]
fn leaving_a_shield_after_the_deadline_of_a_shutdown_gives_no_second_grace() {
    // I3: the timer of the second grace was never removed
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    bench.session.local_shield(bench.now, key);
    bench.session.local_shutdown(bench.now, seconds(10));
    assert_eq!(signals(&bench.pass(seconds(10))), 1);
    bench.now += seconds(1);
    bench.session.local_unshield(bench.now, key);
    let outputs = bench.pass(seconds(1));
    assert_eq!((aborts(&outputs), closes(&outputs)), (1, 1), "{outputs:?}");
    let _ = bench.ended(key);
    bench.assert_no_residue();
}

#[test]
fn an_aborted_thread_that_goes_on_shielding_is_not_aborted_again() {
    let mut bench = Bench::new(MCP);
    let blocking = InboundRequest { work: Work::Blocking, ..Bench::arrival(1, "test/block") };
    let key = bench.session.recv_request(bench.now, blocking).unwrap();
    bench.cancel(1);
    assert_eq!(aborts(&bench.pass(seconds(2))), 1);
    bench.session.local_shield(bench.now, key);
    bench.session.local_unshield(bench.now, key);
    assert_eq!(aborts(&bench.pass(seconds(60))), 0);
    assert_eq!(bench.session.stats().aborted, 1);
}

#[test]
fn a_shielded_handler_is_answered_for_before_the_end_of_input_closes_the_connection() {
    // I1
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    bench.session.local_shield(bench.now, key);
    bench.session.recv_half_close(bench.now);
    // The time of the shield elapses just before the grace does. The handler enters a shield again.
    bench.session.local_unshield(bench.now + seconds(29), key);
    bench.session.local_shield(bench.now + seconds(29), key);
    assert_eq!(signals(&bench.pass(seconds(30))), 0);
    let outputs = bench.pass(seconds(2));
    let cause = Cause::new(CauseKind::Disconnected);
    let answer =
        outputs.iter().position(|output| *output == reply(key, 1, ReplyBody::Cancelled(cause.clone())));
    let close = outputs.iter().position(|output| matches!(output, Output::Close(_)));
    assert!(answer.is_some() && answer < close, "I1: closed without an answer: {outputs:?}");
    assert_eq!((signals(&outputs), aborts(&outputs)), (1, 1));
    let _ = bench.ended(key);
    bench.assert_no_residue();
}

#[test]
fn a_deaf_tool_that_was_cancelled_is_still_aborted_when_its_client_is_gone() {
    // L3, GETMCP-15: with ResultIfFinished a disconnect ends the wait
    let mut bench = Bench::new(patient());
    let key = bench.running(1);
    bench.cancel(1);
    bench.session.recv_lost(bench.now, DisconnectPolicy::CancelNow);
    let _ = bench.outputs();
    let outputs = bench.pass(seconds(2));
    assert_eq!(aborts(&outputs), 1, "L3: {outputs:?}");
    let _ = bench.ended(key);
    assert!(bench.session.is_finished());
    bench.assert_no_residue();
}

#[test]
fn a_deaf_tool_that_was_cancelled_is_still_aborted_after_the_end_of_input() {
    let mut bench = Bench::new(patient());
    let key = bench.running(1);
    bench.cancel(1);
    bench.session.recv_half_close(bench.now);
    let _ = bench.pass(seconds(30));
    let outputs = bench.pass(seconds(2));
    assert_eq!((aborts(&outputs), closes(&outputs)), (1, 1), "{outputs:?}");
    let _ = bench.ended(key);
    bench.assert_no_residue();
}

#[test]
fn a_connection_lost_while_shutting_down_keeps_no_handler_past_the_deadline() {
    // docs/semantics.md, Shutdown: the total time is at most the sum of the limits
    for lost in [DisconnectPolicy::Keep, DisconnectPolicy::Detach] {
        let mut bench = Bench::new(ACP);
        let key = bench.running(1);
        bench.session.local_shutdown(bench.now, seconds(10));
        bench.session.recv_lost(bench.now, lost);
        assert_eq!(signals(&bench.pass(Duration::from_millis(9999))), 0, "{lost:?}");
        assert_eq!(signals(&bench.pass(Duration::from_millis(1))), 1, "{lost:?}");
        assert_eq!(aborts(&bench.pass(seconds(2))), 1, "{lost:?}");
        let _ = bench.ended(key);
        assert!(bench.session.is_finished());
        bench.assert_no_residue();
    }
}

#[test]
fn a_shutdown_reaches_the_handlers_that_outlived_their_connection() {
    for lost in [DisconnectPolicy::Keep, DisconnectPolicy::Detach] {
        let mut bench = Bench::new(ACP);
        let key = bench.running(1);
        bench.session.recv_lost(bench.now, lost);
        bench.session.local_shutdown(bench.now, seconds(10));
        bench.session.local_shield(bench.now, key);
        let outputs = bench.pass(seconds(10));
        assert_eq!(signals(&outputs), 1, "{lost:?}: {outputs:?}");
        assert_eq!(bench.session.request_cause(key), Some(CauseKind::Shutdown.into()));
        bench.session.local_shield(bench.now, key);
        assert_eq!(aborts(&bench.pass(seconds(2))), 1, "a shield held past shutdown's deadline");
        let _ = bench.ended(key);
        bench.assert_no_residue();
    }
}

#[test]
fn a_shutdown_does_not_lengthen_the_grace_of_a_detached_connection() {
    let mut bench = Bench::with(ACP, |config| config.limits.detach_grace = seconds(1));
    let _key = bench.running(1);
    bench.session.recv_lost(bench.now, DisconnectPolicy::Detach);
    bench.session.local_shutdown(bench.now, seconds(10));
    assert_eq!(signals(&bench.pass(seconds(1))), 1);
}

#[test]
fn a_lost_connection_without_handlers_closes_at_once() {
    // I3
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    bench.session.recv_lost(bench.now, DisconnectPolicy::Detach);
    let _ = bench.answer(key, HandlerResult::Value);
    let _ = bench.ended(key);
    assert!(bench.session.is_finished());
    bench.assert_no_residue();
}

#[test]
fn a_shutdown_closes_as_soon_as_the_last_call_has_timed_out() {
    let mut bench = Bench::client(ACP);
    let call = bench.written(&CallSpec::new("a"));
    bench.session.local_shutdown(bench.now, seconds(10));
    let _ = bench.session.local_cancel_call(bench.now, call, CauseKind::Caller.into(), None);
    bench.session.local_cancel_written(bench.now, call);
    let _ = bench.outputs();
    assert_eq!(closes(&bench.pass(seconds(5))), 1, "it waited for a call that had ended");
}

#[test]
fn no_ack_is_written_when_the_connection_was_lost_under_a_shield() {
    let mut bench = abp();
    let key = bench.running_call(1, "c1");
    bench.session.local_shield(bench.now, key);
    let _ = bench.cancel_call_id("c1", 2);
    bench.session.recv_lost(bench.now, DisconnectPolicy::CancelNow);
    bench.session.local_unshield(bench.now, key);
    let outputs = bench.outputs();
    assert_eq!((ack(&outputs), signals(&outputs)), (None, 1), "{outputs:?}");
}

#[test]
fn a_call_still_queued_at_the_end_of_input_never_reaches_the_wire() {
    // "may have run" must be false
    let mut bench = Bench::client(ACP);
    let (call, _) = bench.session.local_call(bench.now, &CallSpec::new("a")).unwrap();
    bench.session.recv_half_close(bench.now);
    let outputs = bench.outputs();
    let settlement = Settlement::Disconnected { may_have_run: false };
    assert_eq!(outputs[..2], [Output::TakeBack(call), Output::Settle { call, settlement }]);
}

#[test]
fn a_gateway_can_still_call_its_other_peer_after_the_end_of_input() {
    // `printf ... | agent`: the other connection is open
    let mut bench = Bench::new(ACP);
    let parent = bench.running(1);
    bench.session.recv_half_close(bench.now);
    assert_eq!(bench.session.local_adopt(bench.now, parent, ForeignChild(1)), Ok(()));
    assert_eq!(bench.session.local_call(bench.now, &CallSpec::new("a")), Err(CallRefused::Disconnected));
    let outputs = bench.pass(seconds(30));
    assert!(outputs.contains(&Output::CancelForeign(ForeignChild(1))), "{outputs:?}");
}

#[test]
fn a_subscription_that_was_not_sent_cannot_be_ended_by_the_server() {
    // I12
    let mut bench = Bench::client(MCP_2026);
    let listen = CallSpec::new("subscriptions/listen");
    let (call, _) = bench.session.local_call(bench.now, &listen).unwrap();
    assert_eq!(bench.cancel(1), [Output::Event(Event::IgnoredCancel)]);
    bench.session.local_written(bench.now, call);
    let cause = Cause::new(CauseKind::Caller);
    let wait = Some(AfterCancel::WaitForPeer);
    let _ = bench.session.local_cancel_call(bench.now, call, cause.clone(), wait);
    let _ = bench.outputs();
    let settlement = Settlement::Cancelled { cause, confirmed: true };
    assert_eq!(bench.cancel(1), [Output::Settle { call, settlement }], "the first cause is kept");
    assert!(!bench.session.wants_cancel(call), "a cancel for what has ended");
    bench.assert_no_residue();
}

#[test]
fn an_ineffective_cancel_is_acknowledged_as_such() {
    // ABP-13, ABP-14: agent to app only, and each cancel is acknowledged
    let mut bench = Bench::client(ABP);
    bench.session.handshake(HandshakePart::Result, &Handshake::default());
    let _call = bench.written(&CallSpec::new("a"));
    assert_eq!(ack(&bench.cancel_call_id("c1", 9)), Some(AckStatus::NotFound));
}

#[test]
fn a_timeout_returns_even_if_the_app_says_it_did_not_cancel_and_never_answers() {
    // ABP-30
    let mut bench = Bench::client(ABP);
    let deadline = Some(bench.now + seconds(1));
    let call = bench.written(&CallSpec { deadline, ..CallSpec::new("a") });
    let outputs = bench.pass(seconds(1));
    let Some(Output::SendCancel { cancel, .. }) = outputs.first() else { panic!("{outputs:?}") };
    bench.session.local_cancel_written(bench.now, call);
    bench.session.recv_ack(bench.now, Some(*cancel), false);
    let _ = bench.outputs();
    let outputs = bench.pass(seconds(5));
    assert!(outputs.iter().any(|output| matches!(output, Output::Settle { .. })), "{outputs:?}");
}

#[test]
fn a_deadline_ends_a_call_cancelled_before_it_that_the_app_says_it_did_not_cancel() {
    // ABP-30
    let mut bench = Bench::client(ABP);
    let deadline = Some(bench.now + seconds(60));
    let call = bench.written(&CallSpec { deadline, ..CallSpec::new("a") });
    let _ = bench.session.local_cancel_call(bench.now, call, Cause::new(CauseKind::Caller), None);
    let outputs = bench.outputs();
    let Some(Output::SendCancel { cancel, .. }) = outputs.first() else { panic!("{outputs:?}") };
    bench.session.local_cancel_written(bench.now, call);
    bench.session.recv_ack(bench.now, Some(*cancel), false);
    assert_eq!(bench.outputs(), [Output::Acked { call, cancelled: false }]);
    assert_eq!(bench.pass(seconds(59)), [], "the answer is on its way");
    let settlement = Settlement::Cancelled { cause: Cause::new(CauseKind::Caller), confirmed: false };
    let outputs = bench.pass(seconds(1));
    assert!(outputs.contains(&Output::Settle { call, settlement }), "{outputs:?}");
    bench.assert_no_residue();
}

#[test]
fn aborting_an_exchange_cancels_both_of_its_requests() {
    // I3, I4
    let mut bench = Bench::with(ABP, |config| config.ordered = false);
    bench.session.handshake(HandshakePart::Result, &Handshake::default());
    let exchange = ExchangeId(7);
    let keys: Vec<_> = [1, 2, 3]
        .map(|id| {
            let origin = Origin { exchange, ..Origin::STREAM };
            bench
                .session
                .recv_request(bench.now, InboundRequest { origin, ..Bench::arrival(id, "a") })
                .unwrap()
        })
        .into();
    let _ = bench.answer(keys[2], HandlerResult::Value);
    let _ = bench.ended(keys[2]);
    bench.session.recv_exchange_closed(bench.now, exchange);
    assert_eq!(signals(&bench.outputs()), 2);
}

#[test]
fn a_child_of_a_request_that_was_never_entered_leaves_with_it() {
    // I3, I5
    let mut bench = Bench::with(ACP, |config| config.limits.max_running_handlers = 0);
    let parent = bench.session.recv_request(bench.now, Bench::arrival(1, "test/wait")).unwrap();
    bench.session.local_adopt(bench.now, parent, ForeignChild(1)).unwrap();
    let outputs = bench.cancel(1);
    assert!(outputs.contains(&Output::CancelForeign(ForeignChild(1))), "I5: {outputs:?}");
    assert!(outputs.contains(&Output::Released(parent)), "I3");
    bench.assert_no_residue();
}

#[test]
fn a_handler_that_goes_on_after_its_answer_is_not_aborted_because_the_connection_is_lost() {
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    let _ = bench.answer(key, HandlerResult::Value);
    bench.session.recv_lost(bench.now, DisconnectPolicy::CancelNow);
    assert_eq!(bench.outputs(), []);
    assert_eq!(bench.pass(seconds(3600)), [], "nobody has cancelled it");
    assert_eq!(bench.ended(key), [Output::Released(key)]);
    bench.assert_no_residue();
}
