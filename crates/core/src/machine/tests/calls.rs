use super::*;
use crate::cause::CauseKind;
use crate::dialect::{ABP, ACP, ACP_DRAFT, Handshake, MCP, MCP_2026};

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
