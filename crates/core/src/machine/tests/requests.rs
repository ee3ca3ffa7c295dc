use super::*;
use crate::dialect::{ABP, ACP, MCP, Refusal};

#[test]
fn a_request_gets_exactly_one_answer_and_leaves_nothing() {
    // I1, I3
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    assert!(bench.session.cancel_keys.is_empty(), "it has no name but its id");
    assert_eq!(bench.answer(key, HandlerResult::Value), [reply(key, 1, ReplyBody::Handler)]);
    assert_eq!(bench.answer(key, HandlerResult::Value), [], "I1: a second answer");
    assert!(!bench.session.may_notify(key), "I2: a notification after the answer");
    assert_eq!(bench.ended(key), [Output::Released(key)]);
    bench.assert_no_residue();
}

#[test]
fn a_panic_is_answered_as_an_internal_error() {
    // I1
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    let outputs = bench.ended(key);
    assert!(outputs.contains(&reply(key, 1, ReplyBody::Refused(Refusal::Internal))), "{outputs:?}");
    assert_eq!(bench.session.stats().panics, 1);
    bench.assert_no_residue();
}

#[test]
fn an_id_in_use_is_refused_without_an_id_and_the_first_is_untouched() {
    // I4
    let mut bench = Bench::new(ACP);
    let first = bench.running(1);
    assert!(bench.session.recv_request(bench.now, Bench::arrival(1, "test/echo")).is_none());
    let refusal = Output::Refuse { to: None, exchange: ExchangeId::NONE, why: Refusal::DuplicateId };
    assert!(bench.outputs().contains(&refusal));
    assert_eq!(bench.answer(first, HandlerResult::Value), [reply(first, 1, ReplyBody::Handler)]);
}

#[test]
fn an_id_whose_handler_only_drains_is_refused_as_overloaded_under_its_own_id() {
    // I10, I14
    let mut bench = Bench::new(MCP);
    let first = bench.running(1);
    bench.cancel(1);
    assert!(bench.session.recv_request(bench.now, Bench::arrival(1, "test/echo")).is_none());
    let refusal = Output::Refuse {
        to: Some((RequestId::number(1), 0)),
        exchange: ExchangeId::NONE,
        why: Refusal::Overloaded("draining"),
    };
    assert!(bench.outputs().contains(&refusal));
    let _ = bench.ended(first);
    let second = bench.running(1);
    assert_ne!(first, second, "I14: a key came back");
    assert_eq!(
        bench.answer(first, HandlerResult::Value),
        [],
        "I14: the old handler answered the new request"
    );
}

#[test]
fn a_number_and_the_same_number_as_text_are_different_ids() {
    // I4
    let mut bench = Bench::new(ACP);
    let number = bench.running(1);
    let text = InboundRequest { id: RequestId::text("1").unwrap(), ..Bench::arrival(0, "test/wait") };
    let text = bench.session.recv_request(bench.now, text).unwrap();
    let _ = bench.outputs();
    let outputs = bench.cancel(1);
    assert_eq!(outputs, [Output::Signal { key: number, cause: peer() }]);
    assert_eq!(bench.session.request_cause(text), None, "I4: \"1\" was cancelled for 1");
}

#[test]
fn over_the_running_limit_a_request_waits_and_over_the_queue_it_is_refused() {
    // I10, I11
    let mut bench = Bench::with(ACP, |config| {
        config.limits.max_running_handlers = 1;
        config.limits.max_queued_requests = 1;
    });
    let running = bench.running(1);
    let queued = bench.session.recv_request(bench.now, Bench::arrival(2, "test/wait")).unwrap();
    assert_eq!(bench.outputs(), []);
    assert!(bench.session.recv_request(bench.now, Bench::arrival(3, "test/wait")).is_none());
    let outputs = bench.outputs();
    assert!(outputs.iter().any(|output| matches!(
        output,
        Output::Refuse { to: Some(_), why: Refusal::Overloaded("queued"), .. }
    )));
    let _ = bench.answer(running, HandlerResult::Value);
    let outputs = bench.ended(running);
    assert!(outputs.contains(&Output::Start(queued)), "{outputs:?}");
}

#[test]
fn without_a_queue_a_request_without_permit_is_refused() {
    // I10, I11
    let mut bench = Bench::with(ACP, |config| {
        config.limits.max_running_handlers = 1;
        config.limits.max_queued_requests = 0;
    });
    let _running = bench.running(1);
    assert!(bench.session.recv_request(bench.now, Bench::arrival(2, "test/wait")).is_none());
    assert_eq!(bench.outputs().first(), Some(&Output::Event(Event::LimitReached("queued"))));
}

#[test]
fn a_queued_request_is_refused_when_its_time_is_over() {
    let mut bench = Bench::with(ACP, |config| config.limits.max_running_handlers = 1);
    let _running = bench.running(1);
    let queued = bench.session.recv_request(bench.now, Bench::arrival(2, "test/wait")).unwrap();
    let outputs = bench.pass(Duration::from_secs(30));
    let body = ReplyBody::Refused(Refusal::Overloaded("queue_time"));
    assert!(outputs.contains(&reply(queued, 2, body)), "{outputs:?}");
    assert!(outputs.contains(&Output::Released(queued)));
}

#[test]
fn a_queued_request_that_is_cancelled_is_never_entered() {
    // ABP-27, I3
    let mut bench = Bench::with(ACP, |config| config.limits.max_running_handlers = 1);
    let running = bench.running(1);
    let queued = bench.session.recv_request(bench.now, Bench::arrival(2, "test/wait")).unwrap();
    let outputs = bench.cancel(2);
    assert_eq!(outputs, [reply(queued, 2, ReplyBody::Cancelled(peer())), Output::Released(queued)]);
    let _ = bench.answer(running, HandlerResult::Value);
    assert_eq!(bench.ended(running), [Output::Released(running)]);
    bench.assert_no_residue();
}

#[test]
fn blocking_work_has_a_limit_of_its_own_and_holds_no_task_up() {
    let mut bench = Bench::with(ACP, |config| config.limits.max_blocking_handlers = 1);
    let blocking = |id| InboundRequest { work: Work::Blocking, ..Bench::arrival(id, "test/block") };
    assert!(bench.session.recv_request(bench.now, blocking(1)).is_some());
    assert!(bench.session.recv_request(bench.now, blocking(2)).is_some());
    assert_eq!(bench.outputs().len(), 1);
    let _task = bench.running(3);
}

#[test]
fn blocking_work_counts_among_all_that_runs() {
    // I10
    let blocking = |id| InboundRequest { work: Work::Blocking, ..Bench::arrival(id, "test/block") };
    let mut bench = Bench::with(ACP, |config| config.limits.max_running_handlers = 1);
    let task = bench.running(1);
    let [first, second] = [2, 3].map(|id| bench.session.recv_request(bench.now, blocking(id)).unwrap());
    assert_eq!(bench.outputs(), []);
    for (ends, starts) in [(task, first), (first, second)] {
        let _ = bench.answer(ends, HandlerResult::Value);
        assert!(bench.ended(ends).contains(&Output::Start(starts)));
    }
    bench.session.recv_half_close(bench.now);
    assert_eq!(bench.outputs(), [], "one still runs");
    let _ = bench.answer(second, HandlerResult::Value);
    assert!(bench.ended(second).contains(&Output::Close(CloseCause::InputEnded)));
    bench.assert_no_residue();
}

#[test]
fn a_reserved_request_is_not_found_and_cancels_nothing() {
    // RULE-08
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    assert!(bench.session.recv_request(bench.now, Bench::arrival(2, "$/cancel_request")).is_none());
    let outputs = bench.outputs();
    assert!(matches!(outputs[..], [Output::Refuse { to: Some(_), why: Refusal::MethodNotFound, .. }]));
    assert_eq!(bench.session.request_cause(key), None);
}

#[test]
fn a_call_without_session_is_refused_as_not_initialized() {
    // ABP-26
    let mut bench = Bench::new(ABP);
    assert!(bench.session.recv_request(bench.now, Bench::arrival(1, "test/echo")).is_none());
    let outputs = bench.outputs();
    assert!(matches!(outputs[..], [Output::Refuse { to: Some(_), why: Refusal::NotInitialized, .. }]));
}

#[test]
fn ten_thousand_requests_under_one_id_give_one_result() {
    // I1, I4, I8
    let mut bench = Bench::new(ACP);
    let first = bench.running(1);
    for _ in 0..10_000 {
        assert!(bench.session.recv_request(bench.now, Bench::arrival(1, "test/echo")).is_none());
    }
    assert_eq!(replies(&bench.outputs()), 0);
    assert_eq!(replies(&bench.answer(first, HandlerResult::Value)), 1);
    assert_eq!(bench.session.stats().duplicate_ids, 10_000);
}

#[test]
fn handlers_are_counted_from_their_start_to_their_end() {
    let mut bench = Bench::with(ACP, |config| config.limits.max_running_handlers = 3);
    let keys = [1, 2, 3].map(|id| bench.running(id));
    let _queued = bench.session.recv_request(bench.now, Bench::arrival(4, "test/wait")).unwrap();
    let counted = |bench: &Bench| {
        let stats = bench.session.stats();
        let gauges = (stats.running, stats.draining, stats.queued, stats.slots);
        (stats.started, stats.finished, stats.cancelled, gauges)
    };
    assert_eq!(counted(&bench), (3, 0, 0, (3, 0, 1, 4)));
    let _ = bench.answer(keys[0], HandlerResult::Value);
    bench.cancel(2);
    assert_eq!(counted(&bench), (3, 0, 0, (2, 1, 1, 4)), "one has answered, and none has ended");
    let _ = bench.answer(keys[1], HandlerResult::Stopped);
    let _ = bench.ended(keys[1]);
    assert_eq!(counted(&bench), (4, 1, 1, (2, 1, 0, 3)), "the next one runs");
    for key in [keys[0], keys[2]] {
        let _ = bench.ended(key);
    }
    assert_eq!(counted(&bench), (4, 3, 1, (1, 0, 0, 1)));
    assert_eq!(bench.session.stats().calls, 0);
    let _call = bench.written(&CallSpec::new("a"));
    assert_eq!(bench.session.stats().calls, 1);
}
