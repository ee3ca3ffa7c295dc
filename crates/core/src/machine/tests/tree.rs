use super::*;
use crate::cause::CauseKind;
use crate::dialect::ACP;

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
