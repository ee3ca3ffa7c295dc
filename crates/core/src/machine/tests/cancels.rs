//! Cancels of requests and of calls, from either side.

use super::*;
use crate::cause::CauseKind;
use crate::dialect::{ABP, ACP, ACP_DRAFT, AnswerAfterCancel, CancelFrom, Handshake, LSP, MCP, MCP_2026};
use crate::id::ExchangeId;

#[test]
fn with_handler_decides_a_cancel_only_signals() {
    // L1
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    assert_eq!(bench.cancel(1), [Output::Signal { key, cause: peer() }]);
    assert_eq!(bench.answer(key, HandlerResult::Value), [reply(key, 1, ReplyBody::Handler)]);
}

#[test]
fn a_handler_that_fails_after_its_cancel_is_answered_as_cancelled() {
    // ACP-07; the ACP TypeScript SDK answers -32603 here
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    bench.cancel(1);
    let outputs = bench.answer(key, HandlerResult::Error);
    assert!(outputs.contains(&reply(key, 1, ReplyBody::Cancelled(peer()))), "{outputs:?}");
    assert_eq!(bench.session.stats().errors_after_cancel, 1);
}

#[test]
fn a_second_cancel_of_a_request_has_no_effect() {
    // I5, I7
    let mut bench = Bench::new(ACP);
    let _key = bench.running(1);
    let first = bench.cancel(1);
    let second = bench.cancel(1);
    assert_eq!((signals(&first), second.len()), (1, 0), "I7");
}

#[test]
fn a_handler_that_ignores_its_cancel_is_answered_for_and_aborted_after_the_grace() {
    // I1, I10
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    bench.cancel(1);
    assert_eq!(bench.pass(Duration::from_millis(1999)), []);
    let outputs = bench.pass(Duration::from_millis(1));
    assert!(outputs.contains(&reply(key, 1, ReplyBody::Cancelled(peer()))));
    assert!(outputs.contains(&Output::Abort(key)));
    let stats = bench.session.stats();
    assert_eq!((stats.draining, stats.running), (1, 0), "I10");
    assert_eq!(bench.session.permits.held(), 1, "I10: the cancel gave a permit back");
    assert_eq!(bench.answer(key, HandlerResult::Value), [], "I1: a late answer");
    let _ = bench.ended(key);
    bench.assert_no_residue();
}

#[test]
fn a_result_after_the_grace_is_late_even_if_the_timer_comes_after_it() {
    // I1: on a busy machine the result may be seen first.
    for (late, end) in [(0, HandlerResult::Value), (1, HandlerResult::Error), (500, HandlerResult::Panicked)]
    {
        let mut bench = Bench::new(ACP);
        let key = bench.running(1);
        bench.cancel(1);
        bench.now += Duration::from_millis(2000 + late);
        let outputs = bench.answer(key, end);
        assert_eq!(replies(&outputs), 1, "{end:?}");
        assert!(
            outputs.contains(&reply(key, 1, ReplyBody::Cancelled(peer())))
                && outputs.contains(&Output::Abort(key))
        );
        let _ = bench.ended(key);
        bench.assert_no_residue();
    }
}

#[test]
fn a_cancel_after_the_answer_is_ignored() {
    // I6, ACPDRAFT-44
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    assert_eq!(bench.answer(key, HandlerResult::Value), [reply(key, 1, ReplyBody::Handler)]);
    let outputs = bench.cancel(1);
    assert_eq!((replies(&outputs), signals(&outputs)), (0, 0), "I6");
}

#[test]
fn a_million_unknown_cancels_leave_nothing() {
    // I8
    let mut bench = Bench::new(ACP);
    for id in 0..1_000_000 {
        bench.session.recv_cancel(bench.now, Some(id.into()), None, None, &Origin::STREAM);
        while bench.session.poll_output().is_some() {}
    }
    assert_eq!(bench.session.stats().unknown_cancels, 1_000_000);
    bench.assert_no_residue();
}

#[test]
fn a_silenced_request_sends_nothing_more_and_its_late_value_is_dropped() {
    // I2, RULE-10
    let mut bench = Bench::new(MCP);
    let key = bench.running(1);
    let outputs = bench.cancel(1);
    let silence = Output::Silence { key, exchange: ExchangeId::NONE };
    assert_eq!(outputs, [silence, Output::Signal { key, cause: peer() }]);
    assert!(!bench.session.may_notify(key), "I2");
    assert_eq!(bench.answer(key, HandlerResult::Value), [], "I2");
    let _ = bench.ended(key);
    bench.assert_no_residue();
}

#[test]
fn a_local_cancel_is_answered_even_if_a_peers_cancel_is_not() {
    // RULE-01
    let mut bench = Bench::new(MCP);
    let key = bench.running(1);
    let cause = Cause::new(CauseKind::Limit);
    assert!(bench.session.local_cancel(bench.now, key, cause.clone()));
    let outputs = bench.outputs();
    assert!(outputs.contains(&reply(key, 1, ReplyBody::Cancelled(cause))), "{outputs:?}");
}

#[test]
fn the_first_cause_wins_and_is_kept() {
    let mut bench = Bench::open(LSP);
    let key = bench.running(1);
    let cause = Cause::new(CauseKind::Deadline);
    assert!(bench.session.local_cancel(bench.now, key, cause.clone()));
    bench.cancel(1);
    let outputs = bench.answer(key, HandlerResult::Stopped);
    assert!(outputs.contains(&reply(key, 1, ReplyBody::Cancelled(cause))), "{outputs:?}");
}

#[test]
fn result_if_finished_sends_the_value_even_after_a_cancel() {
    // GETMCP-15, GETMCP-20
    let dialect = MCP.to_builder().answer_after_cancel(AnswerAfterCancel::ResultIfFinished).build();
    let mut bench = Bench::new(dialect);
    let key = bench.running(1);
    assert_eq!(bench.cancel(1), [Output::Signal { key, cause: peer() }]);
    assert_eq!(bench.pass(Duration::from_secs(3600)), []);
    assert_eq!(bench.answer(key, HandlerResult::Value), [reply(key, 1, ReplyBody::Handler)]);
}

#[test]
fn a_cancel_from_the_server_is_ignored_where_only_clients_cancel() {
    // GETMCP-01
    let dialect = MCP.to_builder().cancel_from(CancelFrom::Client).build();
    let mut bench = Bench::client(dialect);
    let key = bench.running(1);
    let outputs = bench.cancel(1);
    assert_eq!(signals(&outputs), 0);
    assert_eq!(bench.session.request_cause(key), None);
}

#[test]
fn only_a_lost_connection_cancels_the_handshake() {
    // I9
    let mut bench = Bench::new(ACP);
    let key = bench.session.recv_request(bench.now, Bench::arrival(1, "initialize")).unwrap();
    let _ = bench.outputs();
    assert_eq!(signals(&bench.cancel(1)), 0, "I9: a message cancelled the handshake");
    assert!(!bench.session.local_cancel(bench.now, key, CauseKind::Local.into()), "I9");
    assert!(bench.session.local_cancel(bench.now, key, CauseKind::Shutdown.into()));
}

#[test]
fn a_cancel_message_does_not_reach_a_task_augmented_request() {
    let mut bench = Bench::new(MCP);
    let exempt =
        InboundRequest { exempt: CancelExemption::FromCancelMessages, ..Bench::arrival(1, "tools/call") };
    let _key = bench.session.recv_request(bench.now, exempt).unwrap();
    let _ = bench.outputs();
    assert_eq!(bench.cancel(1), [Output::Event(Event::IgnoredCancel)]);
}

#[test]
fn a_task_that_the_server_did_not_declare_is_a_request_like_any_other() {
    // MCP 2025-11-25, "Tasks": receivers ignore the member for request types for which they did not declare it
    let mut bench = Bench::new(MCP);
    let declared = Handshake::default().with_exempting(Some(vec!["tools/call".to_owned()]));
    bench.session.handshake(HandshakePart::Result, &declared);
    for (id, method, in_reach) in [(1, "tools/call", false), (2, "tools/list", true)] {
        let task =
            InboundRequest { exempt: CancelExemption::FromCancelMessages, ..Bench::arrival(id, method) };
        let key = bench.session.recv_request(bench.now, task).unwrap();
        let _ = bench.outputs();
        let outputs = bench.cancel(id);
        assert_eq!(outputs == [Output::Event(Event::IgnoredCancel)], !in_reach, "{method}: {outputs:?}");
        assert_eq!(
            outputs.contains(&Output::Signal { key, cause: peer() }),
            in_reach,
            "{method}: {outputs:?}"
        );
    }
}

#[test]
fn a_cancel_by_another_principal_is_treated_as_unknown() {
    // I4
    let mut bench = Bench::new(ACP);
    let arrival = InboundRequest { origin: principal("alice"), ..Bench::arrival(1, "test/wait") };
    let key = bench.session.recv_request(bench.now, arrival).unwrap();
    let _ = bench.outputs();
    bench.session.recv_cancel(bench.now, Some(1.into()), None, None, &principal("mallory"));
    assert_eq!(bench.outputs(), [Output::Event(Event::UnknownCancel)], "I4");
    bench.session.recv_cancel(bench.now, Some(1.into()), None, None, &principal("alice"));
    assert_eq!(bench.outputs(), [Output::Signal { key, cause: peer() }]);
}

#[test]
fn ids_are_separate_per_exchange_if_the_exchange_is_the_scope() {
    // RULE-12, I4
    let mut bench = Bench::with(MCP_2026, |config| {
        config.ordered = false;
        config.exchange_scoped = true;
    });
    let at = |number| {
        let exchange = ExchangeId(number);
        Origin { scope: Scope::Exchange(exchange), exchange, ..Origin::STREAM }
    };
    let one = InboundRequest { origin: at(1), ..Bench::arrival(7, "tools/call") };
    let two = InboundRequest { origin: at(2), ..Bench::arrival(7, "tools/call") };
    assert!(bench.session.recv_request(bench.now, one).is_some());
    let second = bench.session.recv_request(bench.now, two).unwrap();
    let _ = bench.outputs();
    bench.session.recv_cancel(bench.now, Some(7.into()), None, None, &at(3));
    assert_eq!(signals(&bench.outputs()), 0, "RULE-12: a posted cancel named a request");
    bench.session.recv_exchange_closed(bench.now, ExchangeId(2));
    let outputs = bench.outputs();
    assert!(outputs.contains(&Output::Signal { key: second, cause: peer() }));
    assert_eq!(signals(&outputs), 1, "I4");
}

#[test]
fn a_handshake_is_not_cancelled_by_the_end_of_its_stream() {
    // I9; found by exhaustive search
    let mut bench = Bench::with(ABP, |config| config.ordered = false);
    let exchange = ExchangeId(7);
    let at = |id, method| InboundRequest {
        origin: Origin { exchange, ..Origin::STREAM },
        ..Bench::arrival(id, method)
    };
    let hello = bench.session.recv_request(bench.now, at(1, "initialize")).unwrap();
    let _ = bench.outputs();
    bench.session.recv_exchange_closed(bench.now, exchange);
    assert_eq!(bench.outputs(), []);
    assert!(bench.session.may_notify(hello));
}

#[test]
fn a_stream_that_is_lost_twice_has_one_grace() {
    let mut bench =
        Bench::with(MCP, |config| config.limits.lost_stream_grace = Some(Duration::from_secs(30)));
    let exchange = ExchangeId(2);
    let arrival =
        InboundRequest { origin: Origin { exchange, ..Origin::STREAM }, ..Bench::arrival(1, "test/wait") };
    let key = bench.session.recv_request(bench.now, arrival).unwrap();
    let _ = bench.outputs();
    bench.session.recv_exchange_closed(bench.now, exchange);
    let _ = bench.pass(Duration::from_secs(20));
    bench.session.recv_exchange_closed(bench.now, exchange);
    let outputs = bench.pass(Duration::from_secs(10));
    let cause = Cause::new(CauseKind::Disconnected);
    assert!(outputs.contains(&Output::Signal { key, cause }), "{outputs:?}");
    let _ = bench.ended(key);
    bench.assert_no_residue();
}

#[test]
fn a_lost_stream_that_does_not_cancel_keeps_its_request_until_the_session_ends() {
    let mut bench = Bench::new(MCP);
    let exchange = ExchangeId(2);
    let arrival =
        InboundRequest { origin: Origin { exchange, ..Origin::STREAM }, ..Bench::arrival(1, "test/wait") };
    let key = bench.session.recv_request(bench.now, arrival).unwrap();
    let _ = bench.outputs();
    bench.session.recv_exchange_closed(bench.now, exchange);
    assert_eq!(bench.pass(Duration::from_secs(3600)), []);
    bench.session.recv_lost(bench.now, DisconnectPolicy::CancelNow);
    let cause = Cause::new(CauseKind::Disconnected);
    assert!(bench.outputs().contains(&Output::Signal { key, cause }));
    let _ = bench.ended(key);
    bench.assert_no_residue();
}

#[test]
fn a_lost_stream_detaches_and_cancels_after_its_grace_unless_it_is_resumed() {
    let mut bench = Bench::with(ACP, |config| config.ordered = false);
    let exchange = ExchangeId(5);
    let origin = Origin { exchange, ..Origin::STREAM };
    let arrival = InboundRequest { origin, ..Bench::arrival(1, "test/wait") };
    let key = bench.session.recv_request(bench.now, arrival).unwrap();
    let _ = bench.outputs();
    bench.session.recv_exchange_closed(bench.now, exchange);
    bench.session.recv_exchange_resumed(bench.now, exchange);
    assert_eq!(bench.pass(Duration::from_secs(31)), []);
    bench.session.recv_exchange_closed(bench.now, exchange);
    let cause = Cause::new(CauseKind::Disconnected);
    assert_eq!(bench.pass(Duration::from_secs(30)), [Output::Signal { key, cause }]);
}

#[test]
fn a_malformed_cancel_is_counted_and_changes_nothing() {
    // GETMCP-07
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    bench.session.recv_cancel(bench.now, None, None, None, &Origin::STREAM);
    assert_eq!(bench.outputs(), [Output::Event(Event::MalformedCancel)]);
    assert_eq!(bench.session.request_cause(key), None);
}

#[test]
fn cancels_are_ignored_before_the_handshake_is_over_and_without_declaration() {
    // ACPDRAFT-20, ACPDRAFT-53, I9
    let mut bench = Bench::new(ACP_DRAFT);
    let key = bench.running(2);
    assert_eq!(signals(&bench.cancel(2)), 0, "I9: cancelled before the exchange");
    let declared = Handshake::new(Some(true), None);
    bench.session.handshake(HandshakePart::Result, &declared);
    assert_eq!(bench.cancel(2), [Output::Signal { key, cause: peer() }]);
    let mut silent = Bench::new(ACP_DRAFT);
    let _key = silent.running(2);
    silent.session.handshake(HandshakePart::Result, &Handshake::new(Some(false), None));
    assert_eq!(signals(&silent.cancel(2)), 0, "ACPDRAFT-53");
}

#[test]
fn an_acknowledged_cancel_is_acknowledged_before_the_answer() {
    // ABP-28
    let mut bench = abp();
    let key = bench.running_call(1, "c1");
    let outputs = bench.cancel_call_id("c1", 2);
    assert_eq!(ack(&outputs), Some(AckStatus::Cancelled));
    let at = |wanted: fn(&Output) -> bool| outputs.iter().position(wanted);
    let acked = at(|output| matches!(output, Output::Ack { .. }));
    let replied = at(|output| matches!(output, Output::Reply(_)));
    assert!(acked < replied, "{outputs:?}");
    assert_eq!(replies(&bench.answer(key, HandlerResult::Value)), 0, "I1: after the ack");
}

#[test]
fn the_acknowledgements_of_the_edge_table() {
    // ABP-21, ABP-22, ABP-23, ABP-24, ABP-25, I7
    let mut bench = abp();
    assert_eq!(ack(&bench.cancel_call_id("none", 9)), Some(AckStatus::NotFound));
    let done = bench.running_call(1, "done");
    let _ = bench.answer(done, HandlerResult::Value);
    assert_eq!(ack(&bench.cancel_call_id("done", 10)), Some(AckStatus::AlreadyCompleted));
    let _ = bench.ended(done);
    assert_eq!(ack(&bench.cancel_call_id("done", 11)), Some(AckStatus::AlreadyCompleted));
    let stopped = bench.running_call(2, "stopped");
    assert_eq!(ack(&bench.cancel_call_id("stopped", 12)), Some(AckStatus::Cancelled));
    assert_eq!(ack(&bench.cancel_call_id("stopped", 13)), Some(AckStatus::Cancelled), "I7");
    let _ = bench.ended(stopped);
    assert_eq!(ack(&bench.cancel_call_id("stopped", 14)), Some(AckStatus::Cancelled), "I7");
    bench.now += Duration::from_secs(61);
    assert_eq!(ack(&bench.cancel_call_id("stopped", 15)), Some(AckStatus::NotFound));
}

#[test]
fn a_shield_holds_decision_ack_and_signal_until_it_ends() {
    let mut bench = abp();
    let key = bench.running_call(1, "c1");
    bench.session.local_shield(bench.now, key);
    assert_eq!(bench.cancel_call_id("c1", 2), []);
    assert_eq!(bench.cancel_call_id("c1", 3), []);
    bench.session.local_unshield(bench.now, key);
    let outputs = bench.outputs();
    let acks = outputs.iter().filter(|output| matches!(output, Output::Ack { .. })).count();
    assert_eq!((acks, replies(&outputs), signals(&outputs)), (2, 1, 1), "{outputs:?}");
}

#[test]
fn a_value_decided_under_a_shield_makes_the_ack_false() {
    // DIALECTS: ack true if and only if the result is cancelled
    let mut bench = abp();
    let key = bench.running_call(1, "c1");
    bench.session.local_shield(bench.now, key);
    let _ = bench.cancel_call_id("c1", 2);
    let outputs = bench.answer(key, HandlerResult::Value);
    assert_eq!(ack(&outputs), Some(AckStatus::AlreadyCompleted));
    let replied = outputs
        .iter()
        .any(|output| matches!(output, Output::Reply(reply) if reply.body == ReplyBody::Handler));
    assert!(replied, "{outputs:?}");
}

#[test]
fn in_dialects_with_silence_a_shield_delays_only_the_signal() {
    let mut bench = Bench::new(MCP);
    let key = bench.running(1);
    bench.session.local_shield(bench.now, key);
    assert_eq!(bench.cancel(1), [Output::Silence { key, exchange: ExchangeId::NONE }]);
    assert_eq!(bench.pass(Duration::from_secs(29)), []);
    let outputs = bench.pass(Duration::from_secs(1));
    assert_eq!(outputs, [Output::Signal { key, cause: peer() }], "a shield holds 30 s at most");
}

#[test]
fn a_cancel_that_overtakes_its_request_is_kept_if_the_dialect_allows_it() {
    // RULE-02 for ACP_V2; StreamJsonRpc #56
    let mut bench = Bench::new(MCP);
    assert_eq!(bench.cancel(1), [Output::Event(Event::ParkedCancel)]);
    assert!(bench.session.recv_request(bench.now, Bench::arrival(1, "tools/call")).is_none());
    assert_eq!(bench.outputs(), [], "silence is the answer");
    let mut ordered = Bench::new(ACP);
    assert_eq!(ordered.cancel(1), [Output::Event(Event::UnknownCancel)]);
    let _runs = ordered.running(1);
    let mut v2 = Bench::with(crate::dialect::ACP_V2, |config| config.ordered = false);
    assert_eq!(v2.cancel(1), [Output::Event(Event::UnknownCancel)], "RULE-02");
}

#[test]
fn a_late_cancel_never_hits_a_reused_id() {
    // ACPDRAFT-45, GETMCP-18, I14; Effect #7131
    let mut bench = Bench::new(MCP);
    let first = bench.running(1);
    let _ = bench.answer(first, HandlerResult::Value);
    let _ = bench.ended(first);
    assert_eq!(bench.cancel(1), [Output::Event(Event::UnknownCancel)]);
    let second = bench.running(1);
    assert_eq!(bench.session.request_cause(second), None, "GETMCP-18");
}

#[test]
fn early_cancels_are_bounded_and_expire() {
    // I8, I11
    let mut bench = Bench::new(MCP);
    for id in 1..=1000 {
        bench.cancel(id);
    }
    assert_eq!(bench.session.stats().parked_cancels, 256, "I11");
    bench.now += Duration::from_secs(31);
    let _runs = bench.running(1);
}

#[test]
fn after_settled_ids_are_forgotten_early_cancels_are_kept_only_for_higher_ids() {
    let mut bench = Bench::with(MCP, |config| config.limits.max_settled_ids = 4);
    for id in 1..=10 {
        let key = bench.running(id);
        let _ = bench.answer(key, HandlerResult::Value);
        let _ = bench.ended(key);
    }
    assert_eq!(bench.cancel(3), [Output::Event(Event::UnknownCancel)]);
    assert_eq!(bench.cancel(7), [Output::Event(Event::UnknownCancel)], "it is remembered");
    assert_eq!(bench.cancel(11), [Output::Event(Event::ParkedCancel)]);
}

#[test]
fn an_early_cancel_below_the_highest_seen_id_is_kept_if_no_higher_id_was_forgotten() {
    // Separate POSTs: 12 has overtaken 11's cancel, and 11's cancel its request.
    let mut bench = Bench::with(MCP, |config| config.limits.max_settled_ids = 4);
    for id in 1..=10 {
        let key = bench.running(id);
        let _ = bench.answer(key, HandlerResult::Value);
        let _ = bench.ended(key);
    }
    let _runs = bench.running(12);
    assert_eq!(bench.cancel(11), [Output::Event(Event::ParkedCancel)]);
    let key = bench.session.recv_request(bench.now, Bench::arrival(11, "tools/call"));
    assert_eq!(key, None, "its cancel was lost");
}

#[test]
fn early_cancels_for_strings_are_not_kept_after_a_settled_string_is_forgotten() {
    let mut bench = Bench::with(MCP, |config| config.limits.max_settled_ids = 1);
    let text = |id: &str| RequestId::text(id).unwrap();
    let early = |bench: &mut Bench, id: RequestId| {
        bench.session.recv_cancel(bench.now, Some(id), None, None, &Origin::STREAM);
        bench.outputs()
    };
    let settle = |bench: &mut Bench, id: RequestId| {
        let key =
            bench.session.recv_request(bench.now, InboundRequest { id, ..Bench::arrival(0, "tools/call") });
        let _ = bench.outputs();
        let _ = bench.answer(key.unwrap(), HandlerResult::Value);
        let _ = bench.ended(key.unwrap());
    };
    settle(&mut bench, 1.into());
    settle(&mut bench, text("a"));
    assert_eq!(early(&mut bench, text("b")), [Output::Event(Event::ParkedCancel)], "a number was forgotten");
    settle(&mut bench, 2.into());
    assert_eq!(early(&mut bench, text("c")), [Output::Event(Event::UnknownCancel)]);
    assert_eq!(early(&mut bench, 3.into()), [Output::Event(Event::ParkedCancel)]);
}

fn child_of(parent: InboundKey) -> CallSpec<'static> {
    CallSpec { parent: Some(parent), ..CallSpec::new("child") }
}

fn cancels(outputs: &[Output]) -> Vec<OutboundKey> {
    outputs
        .iter()
        .filter_map(|output| match output {
            Output::SendCancel { call, cause, .. } => {
                assert_eq!(cause.reason(), None, "GETMCP-11: a cascade passed a reason on");
                assert_eq!(cause.kind(), CauseKind::Parent);
                Some(*call)
            }
            _ => None,
        })
        .collect()
}

#[test]
fn each_child_is_cancelled_once_and_a_new_child_is_refused_as_cancelled() {
    // I5
    let mut bench = Bench::new(ACP);
    let parent = bench.running(1);
    let other = bench.running(2);
    let first = bench.written(&child_of(parent));
    let second = bench.written(&child_of(parent));
    let unrelated = bench.written(&child_of(other));
    let outputs = bench.cancel(1);
    let cancelled = cancels(&outputs);
    assert_eq!(cancelled, [first, second], "I5; ACP's page draws the cancels in the order of the requests");
    assert!(!cancelled.contains(&unrelated), "I4");
    assert!(cancels(&bench.cancel(1)).is_empty(), "I5: cancelled again");
    let born = bench.session.local_call(bench.now, &child_of(parent));
    assert_eq!(born, Err(CallRefused::AlreadyCancelled(CauseKind::Parent.into())), "I5");
}

#[test]
fn a_parent_that_answers_cancels_its_open_children_but_not_the_detached() {
    let mut bench = Bench::new(ACP);
    let parent = bench.running(1);
    let child = bench.written(&child_of(parent));
    let detached = bench.written(&child_of(parent));
    bench.session.local_detach(detached);
    let outputs = bench.answer(parent, HandlerResult::Value);
    assert_eq!(cancels(&outputs), [child]);
    assert!(bench.ended(parent).contains(&Output::Released(parent)), "a child held its parent up");
}

#[test]
fn a_request_that_is_gone_between_two_slices_of_its_cascade_is_in_no_cascade() {
    // I3
    let mut bench = Bench::with(ACP, |config| config.limits.max_cancels_per_step = 1);
    let parent = bench.running(1);
    let children = [bench.written(&child_of(parent)), bench.written(&child_of(parent))];
    assert_eq!(cancels(&bench.answer(parent, HandlerResult::Value)), children[..1]);
    let outputs = bench.ended(parent);
    assert_eq!(cancels(&outputs), children[1..]);
    assert!(outputs.contains(&Output::Released(parent)));
    assert!(!bench.session.has_work(), "a cascade of a released request is left");
}

#[test]
fn a_request_that_is_cancelled_and_then_answered_is_in_one_cascade() {
    // I3
    let mut bench = Bench::with(ACP, |config| config.limits.max_cancels_per_step = 1);
    let parent = bench.running(1);
    let children = [bench.written(&child_of(parent)), bench.written(&child_of(parent))];
    assert_eq!(cancels(&bench.cancel(1)), children[..1]);
    let outputs = bench.ended(parent);
    assert_eq!(cancels(&outputs), children[1..]);
    assert!(!bench.session.has_work(), "a cascade of a released request is left");
}

#[test]
fn children_that_end_are_unlinked_from_their_parent() {
    // I3
    let mut bench = Bench::new(ACP);
    let parent = bench.running(1);
    for _ in 0..3 {
        let _ = bench.written(&child_of(parent));
    }
    for number in [2, 1, 3] {
        let _ = bench.session.recv_answer(bench.now, Some(CallNumber(number)), AnswerKind::Value);
    }
    let _ = bench.outputs();
    assert!(cancels(&bench.cancel(1)).is_empty());
    let _ = bench.answer(parent, HandlerResult::Stopped);
    let _ = bench.ended(parent);
    bench.assert_no_residue();
}

#[test]
fn a_hundred_thousand_children_are_walked_in_slices() {
    let mut bench = Bench::with(ACP, |config| config.limits.max_calls = 200_000);
    let parent = bench.running(1);
    for _ in 0..100_000 {
        let _ = bench.written(&child_of(parent));
    }
    let mut total = cancels(&bench.cancel(1)).len();
    assert!(total <= 256, "one step did {total}");
    while bench.session.has_work() {
        bench.session.advance(bench.now);
        let step = cancels(&bench.outputs()).len();
        assert!(step <= 256, "one step did {step}");
        total += step;
    }
    assert_eq!(total, 100_000, "I5");
}

#[test]
fn a_parent_that_is_gone_keeps_its_slot_until_its_children_are_unlinked() {
    // I3, I14
    let mut bench = Bench::with(ACP, |config| config.limits.max_cancels_per_step = 1);
    let parent = bench.running(1);
    for _ in 0..8 {
        let _ = bench.written(&child_of(parent));
    }
    let _ = bench.answer(parent, HandlerResult::Value);
    let _ = bench.ended(parent);
    let again = bench.running(1);
    assert_ne!(again, parent);
    while bench.session.has_work() {
        bench.session.advance(bench.now);
    }
    assert!(bench.outputs().contains(&Output::Released(parent)));
    assert_eq!(bench.session.request_cause(again), None, "I4");
}

#[test]
fn a_child_on_another_connection_is_cancelled_once() {
    // I5
    let mut bench = Bench::new(ACP);
    let parent = bench.running(1);
    bench.session.local_adopt(bench.now, parent, ForeignChild(1)).unwrap();
    bench.session.local_adopt(bench.now, parent, ForeignChild(2)).unwrap();
    bench.session.local_release(parent, ForeignChild(2));
    let outputs = bench.cancel(1);
    let foreign = outputs.iter().filter(|output| matches!(output, Output::CancelForeign(_))).count();
    assert_eq!(foreign, 1, "{outputs:?}");
    assert!(bench.session.local_adopt(bench.now, parent, ForeignChild(3)).is_err(), "I5");
    let _ = bench.answer(parent, HandlerResult::Stopped);
    let _ = bench.ended(parent);
    bench.assert_no_residue();
}
