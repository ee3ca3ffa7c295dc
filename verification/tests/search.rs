//! Exhaustive search of the machine, for each class of dialects and each kind of transport (VERIFICATION: "exhaustive
//! search").
#![expect(clippy::expect_used, reason = "what the tests share is part of them")]

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rescind_core::dialect::{CancelFrom, CapabilityGate, EarlyCancel, LostStream, Role};
use rescind_verification::coverage::{self, ENGINES};
use rescind_verification::search::{BEGINNING, Searched, replay, search};
use rescind_verification::{Class, Input, MachineState, Order, Tally, Trace, trace};

/// The number of states of each search, unless the environment sets it. In release it is the number that the design
/// requires. Otherwise it fits into a test run.
const STATES: usize = if cfg!(debug_assertions) { 2_000 } else { 1_000_000 };
/// The number in which a planted bug must show, in debug.
const STATES_WITH_BUG: usize = 4_000;
/// The variable with the number of states.
const ASKED: &str = "RESCIND_STATES";
/// With this many states, every input that has an effect was given.
const ALL_GIVEN: usize = 300_000;
/// The variable with the most seconds of two cores for each search, if set. It is used for one search at a time.
const SECONDS: &str = "RESCIND_SEARCH_SECONDS";

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, and not {text}")))
}

fn states() -> usize {
    let all = if std::env::var_os("RESCIND_FAILPOINT").is_some() { STATES_WITH_BUG } else { STATES };
    number(ASKED).map_or(all, |asked| usize::try_from(asked).expect("a number of states"))
}

/// Every trace with this many inputs is played. Inputs that name nothing are played when the machine is in a state
/// for the first time.
fn least_depth(states: usize) -> usize {
    match states {
        1_000_000.. => 5,
        100_000.. => 4,
        _ => 2,
    }
}

/// How long the process has had a core for each of its two threads. The time of other processes does not count.
#[cfg(unix)]
fn on_two_cores() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(spent).expect("time passes") / 2
}

/// A wall clock, for systems that do not report the time of a process.
#[cfg(not(unix))]
fn on_two_cores() -> Duration {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    BEGUN.get_or_init(Instant::now).elapsed()
}

/// A search of this many states. If two tests request the same one, it runs once.
fn searched(class: Class, order: Order, states: usize) -> Result<Arc<Searched>, String> {
    type Asked = (Class, Order, usize);
    type Once = Arc<OnceLock<Result<Arc<Searched>, String>>>;
    static SEARCHED: Mutex<Vec<(Asked, Once)>> = Mutex::new(Vec::new());
    let asked = (class, order, states);
    let once = {
        let mut searched = SEARCHED.lock().unwrap_or_else(PoisonError::into_inner);
        let known = searched.iter().find(|(known, _)| *known == asked).map(|(_, once)| Arc::clone(once));
        known.unwrap_or_else(|| {
            let once = Once::default();
            searched.push((asked, Arc::clone(&once)));
            once
        })
    };
    let search = || search(class, order, states).map(Arc::new).map_err(|found| found.to_string());
    once.get_or_init(search).clone()
}

fn every_state_holds(class: Class, order: Order) {
    let begun = on_two_cores();
    let (states, least_depth) = (states(), least_depth(states()));
    match searched(class, order, states) {
        Ok(searched) => {
            let what = format!("{class:?}, {}", order.name());
            let spent = on_two_cores().saturating_sub(begun);
            println!(
                "{searched}, {:.1} s of two cores, {:.1} s\n{what} judged {}",
                spent.as_secs_f32(),
                searched.took.as_secs_f32(),
                searched.judged,
            );
            let begins = search(class, order, BEGINNING).unwrap_or_else(|found| panic!("{found}"));
            let far = format!("{searched}; {}", begins.beginning());
            coverage::reached("search", &what, &far).expect("the table can be written");
            assert!(
                searched.states >= states,
                "there are more states of the machine than were seen: {searched}"
            );
            assert!(
                searched.depth >= least_depth,
                "not every trace of {least_depth} inputs was played: {searched}"
            );
            assert!(searched.cascading > 0, "no step came between the slices of a cascade: {searched}");
            if states >= ALL_GIVEN {
                for word in trace::WORDS {
                    let was_given = searched.given.contains_key(word);
                    assert_eq!(was_given, is_given(class, order, word), "{word} was given: {was_given}");
                }
            }
            if let Some(longest) = number(SECONDS).map(Duration::from_secs) {
                assert!(spent <= longest, "it took {spent:?} of two cores: {searched}");
            }
        }
        Err(found) => panic!("{found}"),
    }
}

/// Whether an input with this word has an effect in a class.
fn is_given(class: Class, order: Order, word: &str) -> bool {
    let dialect = class.dialect();
    let rules = dialect.rules();
    let is_unordered = order == Order::Unordered;
    let is_client = class.role() == Role::Client;
    let by_clients = rules.cancel_from == CancelFrom::Client;
    let (called_off, tells) = (by_clients && is_client, !by_clients || is_client);
    match word {
        "hello" | "cancel-hello" => rules.handshake.is_some(),
        "agreed" => rules.gate == CapabilityGate::Declared || rules.session_required,
        "request-exempt" => matches!(class, Class::Silence | Class::Stateless),
        "become-task" => class == Class::Tasks,
        "cancel-by-nobody" | "cancel-elsewhere" => !called_off,
        "stream-lost" | "call-failed" | "exchange-failed" => is_unordered,
        "stream-back" => is_unordered && rules.lost_stream != LostStream::Cancel,
        // In this class, the effect of a written cancel is eight inputs away, including the handshake.
        "acked" | "acked-not" | "cancel-failed" if class == Class::Gated && is_unordered => false,
        "cancel-failed" => is_unordered && tells,
        "cancel-written" | "acked" | "acked-not" => tells,
        "wait" if called_off || class == Class::Stateless => false,
        "wait" => match rules.early {
            EarlyCancel::Never => false,
            EarlyCancel::WhereUnordered => is_unordered,
            EarlyCancel::Always => true,
        },
        _ => true,
    }
}

macro_rules! searches {
    ($($name:ident: $class:ident, $order:ident;)*) => {
        $(
            #[test]
            fn $name() {
                every_state_holds(Class::$class, Order::$order);
            }
        )*
    };
}

searches! {
    answer_owed_in_order: AnswerOwed, Ordered;
    answer_owed_without_order: AnswerOwed, Unordered;
    silence_in_order: Silence, Ordered;
    silence_without_order: Silence, Unordered;
    acknowledged_in_order: Acknowledged, Ordered;
    acknowledged_without_order: Acknowledged, Unordered;
    gated_in_order: Gated, Ordered;
    gated_without_order: Gated, Unordered;
    caller_in_order: Caller, Ordered;
    caller_without_order: Caller, Unordered;
    ended_by_the_peer_in_order: Ended, Ordered;
    ended_by_the_peer_without_order: Ended, Unordered;
    stateless: Stateless, Unordered;
    tasks_in_order: Tasks, Ordered;
    tasks_without_order: Tasks, Unordered;
}

/// The invariants that the page claims for this engine are those that it judges, each in a state where the subject of
/// the invariant exists.
#[test]
fn the_search_checks_exactly_the_invariants_that_it_claims() {
    let mut judged = Tally::default();
    for class in Class::ALL {
        for order in class.orders() {
            judged += searched(class, *order, states()).unwrap_or_else(|found| panic!("{found}")).judged;
        }
    }
    println!("judged {judged}");
    let engine = ENGINES.iter().find(|engine| engine.name == "search").expect("it is there");
    let judged: BTreeSet<_> = judged.judged().map(|(number, _)| number).collect();
    assert_eq!(judged, engine.checks.iter().copied().collect());
}

/// `RESCIND_TRACE` replays one trace, as a failure prints it, and shows every step.
#[test]
fn the_requested_trace_is_replayed() {
    let Some(text) = std::env::var_os(trace::TRACE) else { return };
    let text = text.into_string().expect("a trace is plain text");
    let trace: Trace = text.parse().unwrap_or_else(|error| panic!("{}: {error}", trace::TRACE));
    let mut number = 0;
    let gone = replay(&trace, |input, seen| {
        number += 1;
        println!("{number:>4} {input:?}\n{seen:#?}");
    });
    match gone.and_then(MachineState::ends) {
        Ok(()) => println!("every invariant holds on it"),
        Err(broken) => panic!("{broken}"),
    }
}

/// A random trace through a class, drawn from a seed. The connection is not lost before the last third.
fn some_trace(class: Class, order: Order, seed: u64) -> (Trace, MachineState) {
    let mut world = MachineState::new(class, order, Instant::now());
    let mut trace = Trace { class, order, inputs: Vec::new() };
    let mut here = world.inspect();
    let mut drawn = seed;
    for step in 0..60 {
        drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut inputs = world.inputs(&here);
        let ends = |input: &Input| {
            matches!(input, Input::Lost(_) | Input::HalfClose | Input::Shutdown | Input::Idle)
        };
        inputs.retain(|input| step >= 40 || !ends(input));
        let place = usize::try_from(drawn >> 33).unwrap_or_default() % inputs.len().max(1);
        let Some(input) = inputs.get(place).copied() else { break };
        trace.inputs.push(input);
        here = world.apply(input, &here).unwrap_or_else(|broken| panic!("{broken}\nafter {trace}"));
    }
    (trace, world)
}

#[test]
fn a_printed_and_parsed_trace_leads_to_the_same_state() {
    let mut kinds = HashSet::new();
    for class in Class::ALL {
        for (order, seed) in class.orders().iter().flat_map(|order| (1..40).map(move |seed| (order, seed))) {
            let (trace, world) = some_trace(class, *order, seed);
            let text = trace.to_string();
            let read: Trace = text.parse().unwrap_or_else(|error| panic!("{error}: {text}"));
            assert_eq!(read, trace, "{text}");
            let again = replay(&read, |_, _| ()).unwrap_or_else(|broken| panic!("{broken}: {text}"));
            assert_eq!(again.inspect(), world.inspect(), "{text}");
            kinds
                .extend(text.split(' ').skip(2).filter_map(|word| word.split(':').next()).map(str::to_owned));
        }
    }
    assert!(kinds.len() >= 42, "these kinds of inputs came: {kinds:?}");
}

#[test]
fn every_word_of_a_trace_is_written_as_it_is_read() {
    let text = "acknowledged unordered request:0 request-over request-exempt hello agreed:both agreed:neither cancel:1 \
        cancel-hello cancel-by-stranger cancel-by-nobody cancel-elsewhere bad bad-request cancel-nothing \
        offer:0.0:value ended:0.0 become-task:0.0 shield:1.2 unshield:1.2 local-cancel:0.0 deadline:0.0 stale:0.0 stream-lost:0.0 \
        stream-back:0.0 call:none call:3.1 call-within adopt:0.0 release:7 detach:0.0 written:0.0 cancel-call:0.0:wait \
        cancel-call:0.0:usual exchange-failed:0.0 cancel-failed:0.0 idle advance cancel-written:0.0 answer:0.0:cancelled acked:0.0 acked-not:0.0 call-failed:0.0 late-answer half-close \
        lost:detach shutdown time wait";
    let trace: Trace = text.parse().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(trace.to_string(), text);
}

#[test]
fn an_invalid_trace_is_refused_with_the_invalid_word() {
    for (text, word) in [
        ("", "no class"),
        ("silence", "no order"),
        ("silence sideways", "sideways"),
        ("loud ordered", "loud"),
        ("silence ordered cancel:1 stop", "stop"),
        ("silence ordered cancel", "cancel"),
        ("silence ordered cancel:1:2", "cancel:1:2"),
        ("silence ordered ended:1", "ended:1"),
        ("silence ordered offer:0.0:maybe", "offer:0.0:maybe"),
    ] {
        let error = text.parse::<Trace>().expect_err(text).to_string();
        assert!(error.contains(&format!("`{word}`")), "{text}: {error}");
    }
}
