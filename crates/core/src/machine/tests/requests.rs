//! Requests: ids, limits, queues, and how they end.
//!
//! Calls: their slots, their ends, and what is sent for them.
//!
//! Cancels that arrive before their request, and cancels that only seem to.

use super::*;
use crate::cause::CauseKind;
use crate::dialect::{ABP, ACP, ACP_DRAFT, Handshake, MCP, MCP_2026, Refusal};

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

// Calls: their slots, their ends, and what is sent for them.

fn settled(outputs: &[Output]) -> Vec<&Settlement> {
    outputs
        .iter()
        .filter_map(|output| match output {
            Output::Settle { settlement, .. } => Some(settlement),
            _ => None,
        })
        .collect()
}

fn caller() -> Cause {
    Cause::new(CauseKind::Caller)
}

impl Bench {
    fn cancel_ours(&mut self, call: OutboundKey) -> (CancelResult, Vec<Output>) {
        let result = self.session.local_cancel_call(self.now, call, caller(), None);
        (result, self.outputs())
    }

    fn answered(&mut self, number: u64, kind: AnswerKind) -> Vec<Output> {
        let _ = self.session.recv_answer(self.now, Some(CallNumber(number)), kind);
        self.outputs()
    }
}

#[test]
fn a_staged_call_is_taken_back_and_nothing_is_sent() {
    // I12
    let mut bench = Bench::client(ACP);
    let (call, _) = bench.session.local_call(bench.now, &CallSpec::new("a")).unwrap();
    let (result, outputs) = bench.cancel_ours(call);
    assert_eq!(result, CancelResult::TakenBack);
    let settlement = Settlement::Cancelled { cause: caller(), confirmed: true };
    assert_eq!(outputs, [Output::TakeBack(call), Output::Settle { call, settlement }]);
    bench.assert_no_residue();
}

#[test]
fn a_task_is_not_cancelled_by_a_message_where_the_peer_declared_tasks_for_its_method() {
    // MCP 2025-11-25, "Tasks": receivers ignore the member for request types for which they did not declare it
    let mut bench = Bench::client(MCP);
    let declared = Handshake::default().with_exempting(Some(vec!["tools/call".to_owned()]));
    bench.session.handshake(HandshakePart::Params, &Handshake::default());
    bench.session.handshake(HandshakePart::Result, &declared);
    for (method, is_reported) in [("tools/call", false), ("tools/list", true)] {
        let task = CallSpec { exempt: CancelExemption::FromCancelMessages, ..CallSpec::new(method) };
        let call = bench.written(&task);
        let (_, outputs) = bench.cancel_ours(call);
        let reported = outputs.iter().any(|output| matches!(output, Output::SendCancel { .. }));
        assert_eq!(reported, is_reported, "{method}: {outputs:?}");
    }
}

#[test]
fn a_written_call_is_cancelled_by_one_message_and_settled_by_the_answer() {
    // I7, I12, I13
    let mut bench = Bench::client(ACP);
    let call = bench.written(&CallSpec::new("a"));
    let (result, outputs) = bench.cancel_ours(call);
    assert_eq!(result, CancelResult::Sent);
    assert!(matches!(outputs[..], [Output::SendCancel { .. }]), "{outputs:?}");
    let (result, outputs) = bench.cancel_ours(call);
    assert_eq!((result, outputs.len()), (CancelResult::AlreadySettled, 0), "I7");
    bench.session.local_cancel_written(bench.now, call);
    let outputs = bench.answered(1, AnswerKind::Cancelled);
    assert_eq!(settled(&outputs), [&Settlement::Cancelled { cause: caller(), confirmed: true }]);
    assert!(settled(&bench.answered(1, AnswerKind::Value)).is_empty(), "I13: settled twice");
    assert_eq!(bench.session.stats().late_answers, 1);
    bench.assert_no_residue();
}

#[test]
fn a_value_after_the_cancel_is_reported_as_completed_after_cancel() {
    let mut bench = Bench::client(ACP);
    let call = bench.written(&CallSpec::new("a"));
    let _ = bench.cancel_ours(call);
    let outputs = bench.answered(1, AnswerKind::Value);
    assert_eq!(settled(&outputs), [&Settlement::Answered { cancelled: Some(caller()) }]);
    assert!(!bench.session.wants_cancel(call), "an answer disarms the cancel that still waits");
    bench.assert_no_residue();
}

#[test]
fn a_cancelled_call_waits_five_seconds_for_a_silent_peer() {
    let mut bench = Bench::client(ACP);
    let call = bench.written(&CallSpec::new("a"));
    let _ = bench.cancel_ours(call);
    bench.session.local_cancel_written(bench.now, call);
    assert_eq!(bench.pass(Duration::from_millis(4999)), []);
    let outputs = bench.pass(Duration::from_millis(1));
    assert!(outputs.contains(&Output::Event(Event::Unresponsive(call))));
    assert_eq!(settled(&outputs), [&Settlement::Cancelled { cause: caller(), confirmed: false }]);
    bench.assert_no_residue();
}

#[test]
fn in_dialects_with_silence_the_caller_returns_at_once_and_its_slot_is_kept_until_the_cancel_is_written() {
    // I11: the limit on calls also limits the cancels that wait to be written
    let mut bench = Bench::client(MCP);
    let call = bench.written(&CallSpec::new("a"));
    let (_, outputs) = bench.cancel_ours(call);
    assert_eq!(settled(&outputs), [&Settlement::Cancelled { cause: caller(), confirmed: false }]);
    assert!(bench.session.wants_cancel(call));
    assert_eq!(bench.session.stats().calls, 1);
    bench.session.local_cancel_written(bench.now, call);
    bench.assert_no_residue();
}

#[test]
fn an_answer_disarms_the_cancel_of_a_call_that_its_caller_has_left() {
    let mut bench = Bench::client(MCP);
    let call = bench.written(&CallSpec::new("a"));
    let _ = bench.cancel_ours(call);
    assert_eq!(bench.answered(1, AnswerKind::Value), [Output::Event(Event::LateAnswer)]);
    assert!(!bench.session.wants_cancel(call), "a cancel of what has ended would be sent");
    bench.assert_no_residue();
}

#[test]
fn dropping_a_cancelled_call_ends_its_wait_for_the_peer() {
    // I13
    let mut bench = Bench::client(ACP);
    let call = bench.written(&CallSpec::new("a"));
    let _ = bench.cancel_ours(call);
    let after = Some(AfterCancel::ReturnNow);
    let _ = bench.session.local_cancel_call(bench.now, call, CauseKind::Dropped.into(), after);
    let outputs = bench.outputs();
    assert_eq!(settled(&outputs), [&Settlement::Cancelled { cause: caller(), confirmed: false }]);
}

#[test]
fn a_cancelled_handshake_call_sends_no_cancel_message() {
    // I9
    let mut bench = Bench::client(ACP);
    let call = bench.written(&CallSpec::new("initialize"));
    let (result, outputs) = bench.cancel_ours(call);
    assert_eq!(result, CancelResult::NotSupported);
    assert!(matches!(outputs[..], [Output::Settle { .. }]), "I9: a cancel was sent: {outputs:?}");
}

#[test]
fn no_cancel_is_sent_to_a_peer_that_did_not_declare_support() {
    // ACPDRAFT-23, ACPDRAFT-25
    let mut bench = Bench::client(ACP_DRAFT);
    bench.session.handshake(HandshakePart::Params, &Handshake::new(Some(true), None));
    bench.session.handshake(HandshakePart::Result, &Handshake::new(None, None));
    let call = bench.written(&CallSpec::new("a"));
    let (result, outputs) = bench.cancel_ours(call);
    assert_eq!(result, CancelResult::NotSupported);
    assert!(matches!(outputs[..], [Output::Settle { .. }]));
    bench.session.handshake(HandshakePart::Result, &Handshake::new(Some(true), None));
    let call = bench.written(&CallSpec::new("a"));
    assert_eq!(bench.cancel_ours(call).0, CancelResult::Sent);
}

#[test]
fn a_server_sends_no_cancel_where_only_clients_cancel() {
    let mut bench = Bench::new(MCP_2026);
    let call = bench.written(&CallSpec::new("a"));
    let (result, outputs) = bench.cancel_ours(call);
    assert_eq!(result, CancelResult::NotSupported);
    assert!(matches!(outputs[..], [Output::Settle { .. }]), "{outputs:?}");
}

#[test]
fn a_deadline_cancels_the_call() {
    // ABP-30
    let mut bench = Bench::client(ACP);
    let deadline = Some(bench.now + Duration::from_secs(1));
    let _call = bench.written(&CallSpec { deadline, ..CallSpec::new("a") });
    let outputs = bench.pass(Duration::from_secs(1));
    let Some(Output::SendCancel { cause, .. }) = outputs.first() else { panic!("{outputs:?}") };
    assert_eq!(cause.kind(), CauseKind::Deadline);
}

#[test]
fn acknowledgements_are_reported_and_a_negative_one_ends_the_wait_limit() {
    // ABP-07
    let mut bench = Bench::client(ABP);
    let call = bench.written(&CallSpec::new("a"));
    let (_, outputs) = bench.cancel_ours(call);
    let Some(Output::SendCancel { cancel, .. }) = outputs.first() else { panic!("{outputs:?}") };
    bench.session.local_cancel_written(bench.now, call);
    bench.session.recv_ack(bench.now, Some(*cancel), false);
    assert_eq!(bench.outputs(), [Output::Acked { call, cancelled: false }]);
    assert_eq!(bench.pass(Duration::from_secs(60)), []);
    let outputs = bench.answered(1, AnswerKind::Value);
    assert_eq!(settled(&outputs), [&Settlement::Answered { cancelled: Some(caller()) }]);
    bench.session.recv_ack(bench.now, Some(*cancel), true);
    assert_eq!(bench.outputs(), [Output::Event(Event::LateAnswer)]);
    bench.assert_no_residue();
}

#[test]
fn an_answer_to_the_cancel_acknowledges_it_by_what_it_is() {
    for (kind, cancelled) in [(AnswerKind::Value, true), (AnswerKind::Error, false)] {
        let mut bench = Bench::client(ABP);
        let call = bench.written(&CallSpec::new("a"));
        let (_, outputs) = bench.cancel_ours(call);
        let Some(Output::SendCancel { cancel, .. }) = outputs.first() else { panic!("{outputs:?}") };
        bench.session.local_cancel_written(bench.now, call);
        assert_eq!(bench.answered(cancel.0, kind), [Output::Acked { call, cancelled }]);
    }
}

#[test]
fn a_call_that_fails_on_its_way_is_settled_by_whether_it_was_sent() {
    for sent in [true, false] {
        let mut bench = Bench::client(ACP);
        let call = bench.written(&CallSpec::new("a"));
        bench.session.recv_call_failed(bench.now, call, sent);
        let settlement = Settlement::Disconnected { may_have_run: sent };
        assert_eq!(bench.outputs(), [Output::Settle { call, settlement }]);
        bench.assert_no_residue();
    }
}

#[test]
fn a_cancel_that_is_a_request_has_a_number_of_its_own() {
    let mut bench = Bench::client(ABP);
    let call = bench.written(&CallSpec::new("a"));
    let (_, outputs) = bench.cancel_ours(call);
    let Some(Output::SendCancel { number, cancel, .. }) = outputs.first() else { panic!("{outputs:?}") };
    let (_, next) = bench.session.local_call(bench.now, &CallSpec::new("a")).unwrap();
    assert_eq!((number.0, cancel.0, next.0), (1, 2, 3));
}

#[test]
fn batches_are_allowed_in_the_revision_that_has_them() {
    let mut bench = Bench::new(MCP);
    assert!(!bench.session.allows_batches(), "before the handshake is over");
    for (revision, allowed) in [("2025-03-26", true), ("2025-06-18", false)] {
        let said = Handshake::new(None, Some(revision.into()));
        bench.session.handshake(HandshakePart::Result, &said);
        assert_eq!(bench.session.allows_batches(), allowed, "{revision}");
    }
}

#[test]
fn answers_to_unknown_and_finished_calls_are_counted() {
    let mut bench = Bench::client(ACP);
    let (call, number) = bench.session.local_call(bench.now, &CallSpec::new("a")).unwrap();
    assert_eq!(bench.session.call_number(call), Some(number));
    let unknown = [Output::Event(Event::UnknownAnswer)];
    assert_eq!(bench.answered(number.0, AnswerKind::Value), unknown, "its request is not written");
    bench.session.local_written(bench.now, call);
    for other in [0, number.0 + 1, 7] {
        assert_eq!(bench.answered(other, AnswerKind::Value), unknown, "{other}");
    }
    assert_eq!(settled(&bench.answered(number.0, AnswerKind::Value)).len(), 1);
    assert_eq!(bench.answered(number.0, AnswerKind::Value), [Output::Event(Event::LateAnswer)]);
}

#[test]
fn a_call_whose_exchange_has_failed_is_settled() {
    // I13
    let mut bench = Bench::client(MCP);
    for sent in [false, true] {
        let (call, number) = bench.session.local_call(bench.now, &CallSpec::new("a")).unwrap();
        bench.session.local_written(bench.now, call);
        bench.session.recv_exchange_failed(bench.now, number, sent);
        assert_eq!(settled(&bench.outputs()), [&Settlement::Disconnected { may_have_run: sent }]);
    }
    bench.session.recv_exchange_failed(bench.now, CallNumber(7), true);
    assert_eq!(bench.outputs(), [], "it carried no call");
}

#[test]
fn calls_in_flight_are_bounded() {
    // I11
    let mut bench = Bench::with(ACP, |config| config.limits.max_calls = 2);
    let _ = bench.written(&CallSpec::new("a"));
    let _ = bench.written(&CallSpec::new("a"));
    let refused = bench.session.local_call(bench.now, &CallSpec::new("a"));
    assert_eq!(refused, Err(CallRefused::TooMany));
}

#[test]
fn the_server_may_end_a_subscription_by_a_cancel_and_nothing_else() {
    // MCP 2026: subscriptions/listen
    let mut bench = Bench::client(MCP_2026);
    let _listen = bench.written(&CallSpec::new("subscriptions/listen"));
    let _other = bench.written(&CallSpec::new("tools/call"));
    assert_eq!(bench.cancel(2), [Output::Event(Event::IgnoredCancel)]);
    let outputs = bench.cancel(1);
    assert_eq!(settled(&outputs), [&Settlement::Cancelled { cause: peer(), confirmed: true }]);
}

// Cancels that arrive before their request, and cancels that only seem to.

impl Bench {
    fn arrive(&mut self, arrival: InboundRequest<'_>) -> (Option<InboundKey>, Vec<Output>) {
        let key = self.session.recv_request(self.now, arrival);
        (key, self.outputs())
    }

    fn cancel_as(&mut self, id: i64, who: &str) -> Vec<Output> {
        self.session.recv_cancel(self.now, Some(id.into()), None, None, &principal(who));
        self.outputs()
    }
}

#[test]
fn an_early_cancel_does_not_reach_a_task_and_is_not_kept_for_the_next_request() {
    // MCP: messages cannot cancel task-augmented requests
    let mut bench = Bench::new(MCP);
    bench.cancel(1);
    let exempt =
        InboundRequest { exempt: CancelExemption::FromCancelMessages, ..Bench::arrival(1, "tools/call") };
    let (key, outputs) = bench.arrive(exempt);
    let key = key.expect("the task was cancelled by a message");
    assert_eq!(outputs, [Output::Event(Event::IgnoredCancel), Output::Start(key)]);
    let _ = bench.answer(key, HandlerResult::Value);
    let _ = bench.ended(key);
    let _runs = bench.running(1);
}

#[test]
fn an_early_cancel_for_the_handshakes_id_is_not_kept_for_the_next_request() {
    // I9, GETMCP-18
    let mut bench = Bench::new(MCP);
    bench.cancel(1);
    let (key, _) = bench.arrive(Bench::arrival(1, "initialize"));
    let key = key.expect("I9");
    let _ = bench.answer(key, HandlerResult::Value);
    let _ = bench.ended(key);
    let _runs = bench.running(1);
}

#[test]
fn each_early_cancel_expires_on_its_own() {
    // I8
    let mut bench = Bench::new(MCP);
    let wait = bench.session.limits().early_cancel_timeout;
    bench.cancel(1);
    bench.now += wait / 2;
    bench.cancel(2);
    assert_eq!(bench.arrive(Bench::arrival(2, "tools/call")).0, None);
    bench.now += wait / 2;
    let _runs = bench.running(1);
}

#[test]
fn another_principal_cannot_replace_an_early_cancel() {
    // I4
    let mut bench = Bench::new(MCP);
    let _ = bench.cancel_as(1, "mallory");
    assert_eq!(bench.cancel_as(1, "alice"), [Output::Event(Event::ParkedCancel)], "I4");
    let (key, _) =
        bench.arrive(InboundRequest { origin: principal("alice"), ..Bench::arrival(1, "tools/call") });
    assert_eq!(key, None, "alice's cancel was lost");
}

#[test]
fn another_principals_cancel_of_an_id_in_use_is_not_kept() {
    // I4, I8
    let mut bench = Bench::new(MCP);
    let alices = InboundRequest { origin: principal("alice"), ..Bench::arrival(1, "tools/call") };
    assert!(bench.arrive(alices).0.is_some());
    assert_eq!(bench.cancel_as(1, "mallory"), [Output::Event(Event::UnknownCancel)]);
}

#[test]
fn a_call_is_not_cancelled_by_the_id_of_its_request() {
    // ABP-25: a cancel names the call by its callId
    let mut bench = abp();
    let _runs = bench.running_call(1, "c1");
    bench.session.recv_cancel(bench.now, Some(1.into()), None, Some(9.into()), &Origin::STREAM);
    let outputs = bench.outputs();
    assert_eq!((signals(&outputs), ack(&outputs)), (0, Some(AckStatus::NotFound)), "{outputs:?}");
}

#[test]
fn an_early_cancel_applies_only_to_a_request_of_the_same_principal() {
    // I4
    let mut bench = Bench::new(MCP);
    let _ = bench.cancel_as(1, "mallory");
    let (key, _) =
        bench.arrive(InboundRequest { origin: principal("alice"), ..Bench::arrival(1, "tools/call") });
    assert!(key.is_some(), "I4");
}

#[test]
fn a_late_cancel_of_a_refused_request_does_not_hit_its_retry() {
    // I14: the refusal was the answer to the first
    let mut bench = Bench::new(MCP);
    let refused = InboundRequest { admission: Err("server"), ..Bench::arrival(1, "tools/call") };
    assert_eq!(bench.arrive(refused).0, None);
    assert_eq!(bench.cancel(1), [Output::Event(Event::UnknownCancel)]);
    let _runs = bench.running(1);
}

#[test]
fn a_late_cancel_of_a_request_refused_under_a_draining_id_does_not_hit_its_retry() {
    // I14: the first is forgotten when the cancel arrives, the refusal is not
    let mut bench = Bench::with(MCP, |config| {
        config.limits.cancel_response_timeout = Duration::MAX;
        config.limits.cancel_grace = Duration::MAX;
    });
    let first = bench.running(9);
    bench.cancel(9);
    let _ = bench.pass(Duration::from_secs(50));
    assert_eq!(bench.arrive(Bench::arrival(9, "tools/call")).0, None);
    let _ = bench.pass(Duration::from_secs(9));
    let _ = bench.ended(first);
    let _ = bench.pass(Duration::from_secs(3));
    assert_eq!(bench.cancel(9), [Output::Event(Event::UnknownCancel)]);
    let _runs = bench.running(9);
}

#[test]
fn an_early_cancel_is_used_up_by_a_request_refused_for_another_reason() {
    let mut bench = Bench::with(ACP, |config| config.ordered = false);
    assert_eq!(bench.cancel(1), [Output::Event(Event::ParkedCancel)]);
    assert_eq!(bench.arrive(Bench::arrival(1, "$/reserved")).0, None);
    let _runs = bench.running(1);
}

#[test]
fn without_a_settled_cache_early_cancels_are_kept_only_above_all_settled_ids() {
    let mut bench = Bench::with(MCP, |config| config.limits.max_settled_ids = 0);
    let key = bench.running(5);
    let _ = bench.answer(key, HandlerResult::Value);
    let _ = bench.ended(key);
    assert_eq!(bench.cancel(5), [Output::Event(Event::UnknownCancel)], "a late cancel was kept");
    assert_eq!(bench.cancel(6), [Output::Event(Event::ParkedCancel)]);
}

#[test]
fn a_refused_id_counts_among_the_forgotten() {
    let mut bench = Bench::with(MCP, |config| config.limits.max_settled_ids = 0);
    let refused = InboundRequest { admission: Err("server"), ..Bench::arrival(5, "tools/call") };
    assert_eq!(bench.arrive(refused).0, None);
    assert_eq!(bench.cancel(5), [Output::Event(Event::UnknownCancel)]);
}

#[test]
fn the_ack_for_a_call_refused_as_cancelled_says_cancelled() {
    // ABP-25: ack true if and only if the result is cancelled
    let mut bench = abp();
    let _busy = bench.running_call(1, "c1");
    bench.session.local_shutdown(bench.now, Duration::from_secs(10));
    let named = CancelKey::Named(RequestId::text("c2").unwrap());
    let (key, outputs) = bench.arrive(InboundRequest { cancel_key: named, ..Bench::arrival(2, "a") });
    assert_eq!(key, None);
    let cause = Cause::new(CauseKind::Shutdown);
    let id = RequestId::number(2);
    assert_eq!(outputs, [refused_cancelled(id, cause)]);
    assert_eq!(ack(&bench.cancel_call_id("c2", 9)), Some(AckStatus::Cancelled));
}

#[test]
fn a_refused_second_use_of_a_call_id_changes_nothing_about_the_first() {
    // I4, I7
    let mut bench = abp();
    let first = bench.running_call(1, "c1");
    let _ = bench.cancel_call_id("c1", 8);
    let named = CancelKey::Named(RequestId::text("c1").unwrap());
    let again = InboundRequest { cancel_key: named, admission: Err("server"), ..Bench::arrival(2, "a") };
    assert_eq!(bench.arrive(again).0, None);
    assert_eq!(ack(&bench.cancel_call_id("c1", 9)), Some(AckStatus::Cancelled), "I7");
    let _ = bench.ended(first);
}

#[test]
fn a_call_id_is_used_again_while_the_old_handler_drains() {
    // ABP-22, I14
    let mut bench = abp();
    let old = bench.running_call(1, "c1");
    let _ = bench.cancel_call_id("c1", 8);
    let new = bench.running_call(2, "c1");
    let _ = bench.ended(old);
    let outputs = bench.cancel_call_id("c1", 9);
    assert!(outputs.contains(&Output::Signal { key: new, cause: peer() }), "I14: {outputs:?}");
    let _ = bench.ended(new);
    bench.assert_no_residue();
}

#[test]
fn another_principal_learns_nothing_about_the_end_of_a_call() {
    // docs/semantics.md, Keys: a cancel from another principal is a cancel for an unknown id
    let mut bench = abp();
    let named = CancelKey::Named(RequestId::text("c1").unwrap());
    let of_alice = InboundRequest { cancel_key: named, origin: principal("alice"), ..Bench::arrival(1, "a") };
    let key = bench.arrive(of_alice).0.unwrap();
    let ask = |bench: &mut Bench, who: &str| {
        let id = RequestId::text("c1").unwrap();
        bench.session.recv_cancel(bench.now, Some(id), None, Some(9.into()), &principal(who));
        ack(&bench.outputs())
    };
    assert_eq!(ask(&mut bench, "mallory"), Some(AckStatus::NotFound));
    assert_eq!(ask(&mut bench, "alice"), Some(AckStatus::Cancelled));
    assert_eq!(ask(&mut bench, "mallory"), Some(AckStatus::NotFound), "I4");
    let _ = bench.ended(key);
    assert_eq!(ask(&mut bench, "mallory"), Some(AckStatus::NotFound), "I4");
    assert_eq!(ask(&mut bench, "alice"), Some(AckStatus::Cancelled), "I7");
}

#[test]
fn a_cancel_later_than_the_settled_cache_does_not_cancel_a_reused_id() {
    // GETMCP-18, I14: a client may use an id again after its answer
    let mut bench = Bench::new(MCP);
    for id in [RequestId::number(1), RequestId::text("a").unwrap()] {
        let request = || InboundRequest { id: id.clone(), ..Bench::arrival(1, "tools/call") };
        let key = bench.arrive(request()).0.unwrap();
        let _ = bench.answer(key, HandlerResult::Value);
        let _ = bench.ended(key);
        bench.now += Duration::from_secs(62);
        bench.session.recv_cancel(bench.now, Some(id.clone()), None, None, &Origin::STREAM);
        assert_eq!(bench.outputs(), [Output::Event(Event::UnknownCancel)], "a late cancel of {id} was kept");
        bench.now += Duration::from_secs(29);
        assert!(bench.arrive(request()).0.is_some(), "{id}");
    }
}

#[test]
fn an_early_cancel_waits_though_lower_numbers_and_no_strings_were_forgotten() {
    let mut bench = Bench::new(MCP);
    for id in 1..=3 {
        let key = bench.running(id);
        let _ = bench.answer(key, HandlerResult::Value);
        let _ = bench.ended(key);
    }
    bench.now += Duration::from_secs(3600);
    assert_eq!(bench.cancel(3), [Output::Event(Event::UnknownCancel)]);
    assert_eq!(bench.cancel(4), [Output::Event(Event::ParkedCancel)]);
    let text = RequestId::text("a").unwrap();
    bench.session.recv_cancel(bench.now, Some(text), None, None, &Origin::STREAM);
    assert_eq!(bench.outputs(), [Output::Event(Event::ParkedCancel)]);
}
