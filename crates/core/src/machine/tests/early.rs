//! Cancels that arrive before their request, and cancels that only seem to.

use super::*;
use crate::cause::CauseKind;
use crate::dialect::{ACP, MCP};

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
