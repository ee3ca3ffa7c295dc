//! Requests that become tasks.

use super::*;
use crate::cause::CauseKind;
use crate::dialect::{MCP, MCP_2026};
use crate::id::ExchangeId;

/// A request that has become a task.
fn task(bench: &mut Bench, id: i64) -> InboundKey {
    let key = bench.running(id);
    assert!(bench.session.local_become_task(bench.now, key));
    assert_eq!(bench.outputs(), [reply(key, id, ReplyBody::TaskHandle)]);
    key
}

fn cancel_task(bench: &mut Bench, key: InboundKey) -> (bool, Vec<Output>) {
    let accepted = bench.session.local_cancel(bench.now, key, peer());
    (accepted, bench.outputs())
}

#[test]
fn a_task_is_answered_with_its_handle_and_its_end_is_reported_once() {
    // I16
    let mut bench = Bench::new(MCP);
    let key = task(&mut bench, 1);
    assert!(bench.session.may_notify(key) && bench.session.is_task(key));
    assert_eq!(bench.answer(key, HandlerResult::Value), [Output::TaskEnded { key, cancelled: None }]);
    assert!(!bench.session.may_notify(key), "I2");
    assert_eq!(cancel_task(&mut bench, key), (false, Vec::new()), "I6: a cancel after the end");
    assert_eq!(bench.ended(key), [Output::Released(key)]);
    bench.assert_no_residue();
}

#[test]
fn the_cancel_of_a_task_signals_its_handler_in_the_same_step() {
    // I17
    let mut bench = Bench::new(MCP);
    let key = task(&mut bench, 1);
    let ended = Output::TaskEnded { key, cancelled: Some(peer()) };
    assert_eq!(cancel_task(&mut bench, key), (true, vec![ended, Output::Signal { key, cause: peer() }]));
    assert_eq!(cancel_task(&mut bench, key), (false, Vec::new()), "I7");
    // It stays cancelled, also if the work ends well.
    assert_eq!(bench.answer(key, HandlerResult::Value), [], "I16");
    assert_eq!(bench.session.permits.held(), 1, "I10");
    assert_eq!(bench.ended(key), [Output::Released(key)]);
    bench.assert_no_residue();
}

#[test]
fn the_handler_of_a_cancelled_task_is_aborted_after_its_grace() {
    let mut bench = Bench::new(MCP);
    let key = task(&mut bench, 1);
    let _ = cancel_task(&mut bench, key);
    let outputs = bench.pass(Duration::from_secs(2));
    assert!(outputs.contains(&Output::Abort(key)), "{outputs:?}");
    let _ = bench.ended(key);
    bench.assert_no_residue();
}

#[test]
fn the_id_of_a_task_is_free_and_its_cancel_reaches_nothing() {
    for dialect in [MCP, MCP_2026] {
        let mut bench = Bench::new(dialect);
        let key = task(&mut bench, 1);
        assert_eq!(signals(&bench.cancel(1)), 0, "I4: the cancel of the first request reaches its task");
        assert!(bench.session.is_task(key));
        // The cancel that came late does not wait for the next request with the id.
        let second = bench.running(1);
        assert_ne!(second, key);
        let outputs = bench.cancel(1);
        assert!(outputs.contains(&Output::Signal { key: second, cause: peer() }), "{outputs:?}");
        assert!(bench.session.is_task(key));
        let _ = (bench.answer(second, HandlerResult::Stopped), bench.ended(second));
        let _ = (bench.answer(key, HandlerResult::Value), bench.ended(key));
        bench.assert_no_residue();
    }
}

#[test]
fn only_a_running_request_becomes_a_task() {
    let mut bench = Bench::new(MCP);
    let cancelled = bench.running(1);
    bench.cancel(1);
    let answered = bench.running(2);
    let _ = bench.answer(answered, HandlerResult::Value);
    let twice = task(&mut bench, 3);
    let shielded = bench.running(4);
    bench.session.local_shield(bench.now, shielded);
    bench.session.local_cancel(bench.now, shielded, Cause::new(CauseKind::Operator));
    let _ = bench.outputs();
    for key in [cancelled, answered, twice, shielded] {
        assert!(!bench.session.local_become_task(bench.now, key));
        assert_eq!(bench.outputs(), []);
    }
}

#[test]
fn a_lost_stream_or_connection_leaves_the_task() {
    let exchange = ExchangeId(1);
    let mut bench = Bench::with(MCP_2026, |config| config.exchange_scoped = true);
    let mut arrival = Bench::arrival(1, "tools/call");
    arrival.origin.exchange = exchange;
    let key = bench.session.recv_request(bench.now, arrival).unwrap();
    let _ = bench.outputs();
    assert!(bench.session.local_become_task(bench.now, key));
    let _ = bench.outputs();
    bench.session.recv_exchange_closed(bench.now, exchange);
    assert_eq!(bench.outputs(), []);
    bench.session.recv_half_close(bench.now);
    assert_eq!(
        bench.outputs(),
        [Output::Close(CloseCause::InputEnded)],
        "the connection does not wait for it"
    );
    bench.session.recv_lost(bench.now, DisconnectPolicy::CancelNow);
    assert_eq!(bench.outputs(), []);
    assert_eq!(bench.pass(Duration::from_secs(3600)), []);
    assert!(bench.session.is_task(key) && !bench.session.is_finished());
    let (accepted, outputs) = cancel_task(&mut bench, key);
    assert!(accepted && outputs.contains(&Output::Signal { key, cause: peer() }), "I17: {outputs:?}");
    let _ = bench.ended(key);
    bench.assert_no_residue();
    assert!(bench.session.is_finished());
}

#[test]
fn a_shutdown_cancels_tasks_after_its_drain() {
    for is_lost in [false, true] {
        let mut bench = Bench::new(MCP);
        let key = task(&mut bench, 1);
        if is_lost {
            bench.session.recv_lost(bench.now, DisconnectPolicy::CancelNow);
        }
        bench.session.local_shutdown(bench.now, Duration::from_secs(5));
        assert_eq!(bench.outputs(), []);
        let outputs = bench.pass(Duration::from_secs(5));
        let cause = Cause::new(CauseKind::Shutdown);
        assert!(outputs.contains(&Output::TaskEnded { key, cancelled: Some(cause) }), "{outputs:?}");
        assert_eq!(signals(&outputs), 1);
    }
}

#[test]
fn a_shutdown_between_the_close_and_the_loss_of_a_connection_cancels_its_tasks() {
    let mut bench = Bench::new(MCP);
    let key = task(&mut bench, 1);
    bench.session.recv_half_close(bench.now);
    assert_eq!(bench.outputs(), [Output::Close(CloseCause::InputEnded)]);
    bench.session.local_shutdown(bench.now, Duration::from_secs(5));
    bench.session.recv_lost(bench.now, DisconnectPolicy::CancelNow);
    assert_eq!(bench.outputs(), []);
    let outputs = bench.pass(Duration::from_secs(5));
    let cause = Cause::new(CauseKind::Shutdown);
    assert!(outputs.contains(&Output::TaskEnded { key, cancelled: Some(cause) }), "{outputs:?}");
}

#[test]
fn a_shield_delays_the_signal_of_a_cancelled_task_and_not_its_end() {
    let mut bench = Bench::new(MCP);
    let key = task(&mut bench, 1);
    bench.session.local_shield(bench.now, key);
    let (_, outputs) = cancel_task(&mut bench, key);
    assert_eq!(outputs, [Output::TaskEnded { key, cancelled: Some(peer()) }]);
    bench.session.local_unshield(bench.now, key);
    assert_eq!(bench.outputs(), [Output::Signal { key, cause: peer() }]);
}

#[test]
fn the_children_of_a_task_end_with_it() {
    for cancels in [true, false] {
        let mut bench = Bench::new(MCP);
        let key = task(&mut bench, 1);
        let mut spec = CallSpec::new("sampling/createMessage");
        spec.parent = Some(key);
        let child = bench.written(&spec);
        assert!(bench.session.has_children(key));
        let outputs =
            if cancels { cancel_task(&mut bench, key).1 } else { bench.answer(key, HandlerResult::Value) };
        let told =
            outputs.iter().any(|output| matches!(output, Output::SendCancel { call, .. } if *call == child));
        assert!(told, "I5: {outputs:?}");
    }
}

#[test]
fn a_handler_that_panics_or_is_gone_ends_its_task() {
    for by_answer in [true, false] {
        let mut bench = Bench::new(MCP);
        let key = task(&mut bench, 1);
        let outputs = if by_answer { bench.answer(key, HandlerResult::Panicked) } else { bench.ended(key) };
        assert!(outputs.contains(&Output::TaskEnded { key, cancelled: None }), "I16: {outputs:?}");
        assert_eq!(bench.session.stats().panics, 1);
    }
}

#[test]
fn tasks_are_counted_among_the_running() {
    let mut bench = Bench::new(MCP);
    let key = task(&mut bench, 1);
    let stats = bench.session.stats();
    assert_eq!((stats.running, stats.tasks, stats.draining), (1, 1, 0));
    let _ = cancel_task(&mut bench, key);
    let stats = bench.session.stats();
    assert_eq!((stats.running, stats.tasks, stats.draining), (0, 0, 1));
}
