//! The machine against a naive reference, for each dialect (VERIFICATION: "proptest-state-machine").
//!
//! The reference has no slots, timers or queues. For each event it defines what the peer, the handlers
//! (`reference/model.rs`) and our callers (`reference/caller.rs`) must see. A failed case is written to
//! `reference.regressions` beside this file, and is tried first from then on. Its shortened form goes to
//! `reference/kept_cases.rs` with the fix, where a change of the generator cannot alter it.
#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "what the tests share is part of them")]

#[path = "reference/caller.rs"]
mod caller;
#[path = "reference/kept_cases.rs"]
mod kept_cases;
#[path = "reference/machine.rs"]
mod machine;
#[path = "reference/model.rs"]
mod model;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, RngSeed};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use rescind_core::dialect::{CancelFrom, Role};
use rescind_core::{AfterCancel, AnswerKind, CauseKind, HandlerResult};
use rescind_verification::Tally;
use rescind_verification::coverage::{self, ENGINES};

use self::caller::{CancelFrame, Own};
use self::machine::Machine;
use self::model::{Case, EARLY, Event, IDS, REMEMBERED, Reference};

/// The most open calls of this side.
const OPEN: usize = 6;
/// How many of the last calls are still answered, acknowledged and cancelled.
const RECENT: usize = 8;

fn ends() -> impl Strategy<Value = HandlerResult> {
    prop_oneof![
        Just(HandlerResult::Value),
        Just(HandlerResult::Error),
        Just(HandlerResult::Stopped),
        Just(HandlerResult::Panicked)
    ]
}

fn kinds() -> impl Strategy<Value = AnswerKind> {
    prop_oneof![Just(AnswerKind::Value), Just(AnswerKind::Error), Just(AnswerKind::Cancelled)]
}

fn after() -> impl Strategy<Value = Option<AfterCancel>> {
    prop_oneof![Just(None), Just(Some(AfterCancel::WaitForPeer)), Just(Some(AfterCancel::ReturnNow))]
}

fn times() -> impl Strategy<Value = Duration> {
    let short = prop_oneof![Just(500), Just(2000), Just(5000)].prop_map(Duration::from_millis);
    prop_oneof![12 => short, 1 => Just(EARLY), 1 => Just(REMEMBERED)]
}

/// One strategy with its weight.
type Drawn = (u32, BoxedStrategy<Event>);

fn of(weight: u32, events: impl Strategy<Value = Event> + 'static) -> Drawn {
    (weight, events.boxed())
}

/// The events that are possible now. They are generated from the state, because otherwise most long cases would be
/// rejected.
fn events(state: &Reference) -> BoxedStrategy<Event> {
    let mut drawn = vec![of(12, times().prop_map(Event::Pass))];
    let alive: Vec<usize> = (0..state.asked.len()).filter(|number| state.asked[*number].alive).collect();
    if !alive.is_empty() {
        let some = prop::sample::select(alive);
        drawn.push(of(24, (some.clone(), ends()).prop_map(|(number, end)| Event::End(number, end))));
        drawn.push(of(16, some.clone().prop_map(Event::Gone)));
        if state.has_tasks {
            drawn.push(of(16, some.prop_map(Event::BecomeTask)));
        }
    }
    let mut tasks: Vec<usize> =
        (0..state.asked.len()).filter(|number| state.asked[*number].is_task).collect();
    if !tasks.is_empty() {
        // Also of tasks that have ended, and of those whose requests had ids that are used again.
        let task = prop::sample::select(tasks.split_off(tasks.len().saturating_sub(RECENT)));
        let cause = prop_oneof![3 => Just(CauseKind::Peer), 1 => Just(CauseKind::Deadline)];
        drawn.push(of(16, (task, cause).prop_map(|(number, cause)| Event::CancelTask(number, cause))));
    }
    if !state.lost {
        drawn.push(of(32, (0..IDS).prop_map(Event::Ask)));
        drawn.push(of(32, (0..IDS).prop_map(Event::Cancel)));
        drawn.push(of(1, Just(Event::Lost)));
        if state.asks_for_tasks {
            drawn.push(of(16, (0..IDS).prop_map(Event::AskForTask)));
        }
    } else if state.has_tasks {
        drawn.push(of(1, Just(Event::ShutDown)));
    }
    drawn.extend(own_events(state).into_iter().map(|(weight, own)| of(weight, own.prop_map(Event::Own))));
    prop::strategy::Union::new_weighted(drawn).boxed()
}

fn own_events(state: &Reference) -> Vec<(u32, BoxedStrategy<Own>)> {
    let caller = &state.caller;
    let recent: Range<usize> = caller.calls.len().saturating_sub(RECENT)..caller.calls.len();
    let deadline = prop_oneof![2 => Just(None), 1 => times().prop_map(Some)];
    let mut drawn = Vec::new();
    if caller.open() < OPEN {
        let asked = state.asked.len();
        let parents = if asked == 0 {
            Just(None).boxed()
        } else {
            prop_oneof![1 => Just(None), 2 => (asked.saturating_sub(RECENT)..asked).prop_map(Some)].boxed()
        };
        let call = (parents, deadline, after());
        drawn.push((24, call.prop_map(|(parent, time, after)| Own::Call(parent, time, after)).boxed()));
    }
    if recent.is_empty() {
        return drawn;
    }
    let cancel = (recent.clone(), after()).prop_map(|(number, after)| Own::Cancel(number, after));
    drawn.push((16, cancel.boxed()));
    let such = |is: fn(&caller::Call) -> bool| -> Vec<usize> {
        recent.clone().filter(|number| is(&caller.calls[*number])).collect()
    };
    let unwritten = such(|call| !call.written && !call.settled);
    let waiting = such(|call| call.cancel == CancelFrame::Waits);
    let reported = such(|call| call.cancel == CancelFrame::Written);
    if state.lost {
        return drawn;
    }
    drawn.push((16, (recent, kinds()).prop_map(|(number, kind)| Own::Answer(number, kind)).boxed()));
    if !unwritten.is_empty() {
        drawn.push((32, prop::sample::select(unwritten).prop_map(Own::Write).boxed()));
    }
    if !waiting.is_empty() {
        drawn.push((16, prop::sample::select(waiting).prop_map(Own::WriteCancel).boxed()));
    }
    if !reported.is_empty() && caller.hears_acks {
        let some = (prop::sample::select(reported), any::<bool>());
        drawn.push((24, some.prop_map(|(number, cancelled)| Own::Ack(number, cancelled)).boxed()));
    }
    drawn
}

/// Whether an event is still possible after a case was shortened before it.
fn can_happen(state: &Reference, event: Event) -> bool {
    let call = |number: usize| state.caller.calls.get(number);
    match event {
        Event::Ask(_) | Event::AskForTask(_) | Event::Cancel(_) | Event::Lost => !state.lost,
        Event::End(number, _) | Event::Gone(number) | Event::BecomeTask(number) => {
            state.asked.get(number).is_some_and(|asked| asked.alive)
        }
        Event::CancelTask(number, _) => state.asked.get(number).is_some_and(|asked| asked.is_task),
        Event::ShutDown => state.lost,
        Event::Pass(_) => true,
        Event::Own(own) => match own {
            Own::Call(parent, ..) => {
                state.caller.open() < OPEN && parent.is_none_or(|parent| parent < state.asked.len())
            }
            Own::Cancel(number, _) => call(number).is_some(),
            Own::Answer(number, _) => !state.lost && call(number).is_some(),
            Own::Write(number) => {
                !state.lost && call(number).is_some_and(|call| !call.written && !call.settled)
            }
            Own::WriteCancel(number) => {
                !state.lost && call(number).is_some_and(|call| call.cancel == CancelFrame::Waits)
            }
            Own::Ack(number, _) => {
                let reported = call(number).is_some_and(|call| call.cancel == CancelFrame::Written);
                !state.lost && state.caller.hears_acks && reported
            }
        },
    }
}

macro_rules! references {
    ($($name:ident: $dialect:ident, $role:ident, ordered: $ordered:literal;)*) => {
        $(
            mod $name {
                use super::*;

                static EVENTS: AtomicU64 = AtomicU64::new(0);

                fn case() -> Case {
                    Case {
                        dialect: rescind_core::dialect::$dialect,
                        role: Role::$role,
                        ordered: $ordered,
                    }
                }

                struct Naive;

                impl ReferenceStateMachine for Naive {
                    type State = Reference;
                    type Transition = Event;

                    fn init_state() -> BoxedStrategy<Reference> {
                        Just(Reference::of(&case())).boxed()
                    }

                    fn transitions(state: &Reference) -> BoxedStrategy<Event> {
                        events(state)
                    }

                    fn preconditions(state: &Reference, event: &Event) -> bool {
                        can_happen(state, *event)
                    }

                    fn apply(mut state: Reference, event: &Event) -> Reference {
                        state.happen(*event);
                        state
                    }
                }

                struct Real;

                impl StateMachineTest for Real {
                    type SystemUnderTest = Machine;
                    type Reference = Naive;

                    fn init_test(_: &Reference) -> Machine {
                        Machine::new(&case())
                    }

                    fn apply(mut machine: Machine, _: &Reference, event: Event) -> Machine {
                        machine.happen(event, &EVENTS);
                        machine
                    }

                    fn check_invariants(machine: &Machine, reference: &Reference) {
                        machine.is_as(reference);
                    }
                }

                prop_state_machine! {
                    #![proptest_config(config())]

                    fn every_case(sequential 1..=200 => Real);
                }

                #[test]
                fn the_machine_does_what_the_reference_does() {
                    let _ = Tally::taken();
                    every_case();
                    let judged = Tally::taken();
                    println!("{} judged {judged}", stringify!($name));
                    let judged: BTreeSet<_> = judged.judged().map(|(number, _)| number).collect();
                    assert_eq!(judged, claimed(&case()), "what is claimed is judged, and nothing else");
                    let far = format!("{} cases, {} events", config().cases, EVENTS.load(Ordering::Relaxed));
                    coverage::reached("reference", stringify!($name), &far).expect("the table can be written");
                }
            }
        )*
    };
}

/// The invariants that the page claims for this engine. If only clients may cancel, a client gets no cancels that
/// name requests, so it cannot get one for an unknown request (I8). Tasks are part of some protocols, and here a server
/// does them (I16, I17).
fn claimed(case: &Case) -> BTreeSet<&'static str> {
    let engine = ENGINES.iter().find(|engine| engine.name == "reference").expect("it is there");
    let is_called = case.role == Role::Client && case.dialect.rules().cancel_from == CancelFrom::Client;
    let has_subject = |invariant: &&str| match *invariant {
        "I8" => !is_called,
        "I16" | "I17" => case.has_tasks(),
        _ => true,
    };
    engine.checks.iter().copied().filter(has_subject).collect()
}

/// Cases for each dialect, unless the environment sets the number. In release it is the number that the design
/// requires.
const CASES: u32 = if cfg!(debug_assertions) { 64 } else { 10_000 };
/// The variable with the number of cases.
const ASKED: &str = "RESCIND_CASES";
/// The number of cases in which a planted bug must show. The run stops at the first failure, so few of them are
/// played.
const CASES_WITH_BUG: u32 = 4000;
/// The search for a planted bug always uses the same cases. Otherwise another failure would sometimes report it.
const SEED_WITH_BUG: u64 = 7;

/// Failed cases are written beside this file, with its name.
const KEPT: FileFailurePersistence = FileFailurePersistence::WithSource("regressions");

fn config() -> ProptestConfig {
    // A failure by a planted bug is not a regression.
    if std::env::var_os("RESCIND_FAILPOINT").is_some() {
        return ProptestConfig {
            cases: CASES_WITH_BUG,
            failure_persistence: None,
            rng_seed: RngSeed::Fixed(SEED_WITH_BUG),
            ..ProptestConfig::default()
        };
    }
    let asked = std::env::var(ASKED).ok();
    let asked =
        asked.map(|text| text.parse().unwrap_or_else(|_| panic!("{ASKED} is a number, and not {text}")));
    ProptestConfig {
        cases: asked.unwrap_or(CASES),
        failure_persistence: Some(Box::new(KEPT)),
        ..ProptestConfig::default()
    }
}

/// With a planted bug, plays the case that is kept for it.
#[test]
fn each_kept_case_that_once_failed_passes() {
    let planted = std::env::var("RESCIND_FAILPOINT").ok();
    let mut played = 0;
    for kept in kept_cases::all() {
        if planted.as_deref().is_some_and(|bug| bug != kept.bug.name()) {
            continue;
        }
        println!("{}: {:?}", kept.bug.name(), kept.events);
        let (mut reference, mut machine) = (Reference::of(&kept.case), Machine::new(&kept.case));
        for event in kept.events {
            assert!(can_happen(&reference, event), "{event:?} cannot happen there");
            reference.happen(event);
            machine.happen(event, &AtomicU64::new(0));
            machine.is_as(&reference);
        }
        played += 1;
    }
    assert!(played > 0, "no case is kept for {planted:?}");
}

references! {
    acp: ACP, Server, ordered: true;
    acp_unordered: ACP, Server, ordered: false;
    acp_v2: ACP_V2, Server, ordered: true;
    acp_draft: ACP_DRAFT, Server, ordered: true;
    lsp: LSP, Server, ordered: true;
    mcp: MCP, Server, ordered: true;
    mcp_2026: MCP_2026, Server, ordered: true;
    mcp_2026_client: MCP_2026, Client, ordered: true;
    abp: ABP, Server, ordered: true;
    abp_client: ABP, Client, ordered: true;
}
