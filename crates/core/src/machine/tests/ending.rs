use super::*;
use crate::cause::CauseKind;
use crate::dialect::{ACP, LSP, MCP, MCP_2026, Refusal};
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
