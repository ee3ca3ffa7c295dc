//! Shield, grace, cancel, loss, half-close and shutdown, in orders that hurt.

use super::*;
use crate::cause::CauseKind;
use crate::dialect::{ACP, MCP};

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn aborts(outputs: &[Output]) -> usize {
    outputs.iter().filter(|output| matches!(output, Output::Abort(_))).count()
}

fn closes(outputs: &[Output]) -> usize {
    outputs.iter().filter(|output| matches!(output, Output::Close(_))).count()
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
fn a_shield_left_after_the_deadline_of_a_shutdown_buys_no_second_grace() {
    // I3: the second grace was a timer nobody took out
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
    let blocking = Arrival { work: Work::Blocking, ..Bench::arrival(1, "test/block") };
    let key = bench.session.recv_request(bench.now, blocking).unwrap();
    let _ = bench.cancel(1);
    assert_eq!(aborts(&bench.pass(seconds(2))), 1);
    bench.session.local_shield(bench.now, key);
    bench.session.local_unshield(bench.now, key);
    assert_eq!(aborts(&bench.pass(seconds(60))), 0);
    assert_eq!(bench.session.stats().aborted, 1);
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
