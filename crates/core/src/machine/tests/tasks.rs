//! Requests that become tasks.

use super::*;
use crate::cause::CauseKind;
use crate::dialect::{MCP, MCP_2026};
use crate::id::ExchangeId;

/// A request that has become a task.
fn task(bench: &mut Bench, id: i64) -> InboundKey {
    let key = bench.running(id);
    assert_eq!(bench.session.local_become_task(bench.now, key), Ok(()));
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
        assert_eq!(bench.session.local_become_task(bench.now, key), Err(NoTask::Ended));
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
    assert_eq!(bench.session.local_become_task(bench.now, key), Ok(()));
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
fn a_shutdown_cancels_tasks_at_once_and_no_others() {
    let cause = Cause::new(CauseKind::Shutdown);
    for end in ["none", "closed", "lost"] {
        let mut bench = Bench::new(MCP);
        let key = task(&mut bench, 1);
        if end == "none" {
            let _other = bench.running(2);
        }
        if end == "closed" {
            bench.session.recv_half_close(bench.now);
        }
        if end == "lost" {
            bench.session.recv_lost(bench.now, DisconnectPolicy::CancelNow);
        }
        let _ = bench.outputs();
        bench.session.local_shutdown(bench.now, Duration::from_secs(5));
        let outputs = bench.outputs();
        assert!(
            outputs.contains(&Output::TaskEnded { key, cancelled: Some(cause.clone()) }),
            "{end}: {outputs:?}"
        );
        assert_eq!(signals(&outputs), 1, "{end}");
    }
    // During a shutdown no request becomes a task.
    let mut bench = Bench::new(MCP);
    let key = bench.running(1);
    bench.session.local_shutdown(bench.now, Duration::from_secs(5));
    assert_eq!(bench.session.local_become_task(bench.now, key), Err(NoTask::Ended));
}

#[test]
fn tasks_take_at_most_half_of_the_permits() {
    let mut bench = Bench::with(MCP, |config| config.limits.max_running_handlers = 4);
    let (first, _second) = (task(&mut bench, 1), task(&mut bench, 2));
    let third = bench.running(3);
    assert_eq!(bench.session.local_become_task(bench.now, third), Err(NoTask::TooMany), "I11");
    assert_eq!(bench.outputs(), [Output::Event(Event::LimitReached("tasks"))]);
    let _ = (cancel_task(&mut bench, first), bench.ended(first));
    assert_eq!(bench.session.local_become_task(bench.now, third), Ok(()));
}

#[test]
fn the_tasks_of_one_client_take_at_most_half_of_its_permits() {
    let mut bench = Bench::with(MCP_2026, |config| config.client_limits = Some(ClientLimits::new(2, 2, 2)));
    let mut running = |id: i64, client: usize| {
        let mut arrival = Bench::arrival(id, "tools/call");
        arrival.origin.client = Some(ClientNumber(client));
        let key = bench.session.recv_request(bench.now, arrival).unwrap();
        bench.session.local_become_task(bench.now, key)
    };
    assert_eq!([running(1, 1), running(2, 1), running(3, 2)], [Ok(()), Err(NoTask::TooMany), Ok(())], "I11");
}

#[test]
fn a_wait_for_a_result_ends_soon_after_its_stream_is_lost() {
    let (exchange, other) = (ExchangeId(1), ExchangeId(2));
    let mut bench = Bench::with(MCP, |config| config.ordered = false);
    let mut begin = |exchange: ExchangeId, ends: bool| {
        let id = i64::try_from(exchange.0).unwrap();
        let mut arrival = Bench::arrival(id, "tasks/result");
        (arrival.origin.exchange, arrival.ends_with_stream) = (exchange, ends);
        bench.session.recv_request(bench.now, arrival).unwrap()
    };
    let (waits, runs_on) = (begin(exchange, true), begin(other, false));
    let _ = bench.outputs();
    bench.session.recv_exchange_closed(bench.now, exchange);
    bench.session.recv_exchange_closed(bench.now, other);
    assert_eq!(bench.outputs(), []);
    let outputs = bench.pass(Duration::from_secs(5));
    let cause = Cause::new(CauseKind::Disconnected);
    assert!(outputs.contains(&Output::Signal { key: waits, cause }), "{outputs:?}");
    assert_eq!(signals(&outputs), 1, "{runs_on:?} runs on");
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
