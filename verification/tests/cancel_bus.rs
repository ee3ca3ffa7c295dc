//! Exhaustive search of the models of the cancel bus and of forwarding between nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use rescind_verification::Tally;
use rescind_verification::bus::{Bug, CASES, Case, EVENTS, Searched, Size};
use rescind_verification::coverage::{self, ENGINES};

/// The fewest states of a case.
const LEAST: usize = 10_000;

fn is_searched(size: Size) -> bool {
    match size {
        Size::Small => true,
        Size::Large => !cfg!(debug_assertions),
    }
}

/// The searches of this build, each of which ran once.
fn searched() -> &'static [(&'static str, Searched)] {
    static SEARCHED: OnceLock<Vec<(&str, Searched)>> = OnceLock::new();
    SEARCHED.get_or_init(|| {
        let search = |case: &'static Case| {
            let searched = case.search(None).unwrap_or_else(|found| panic!("{}: {found}", case.name));
            println!("{}: {searched}, {:.1} s", case.name, searched.took.as_secs_f32());
            (case.name, searched)
        };
        CASES.iter().filter(|case| is_searched(case.size)).map(search).collect()
    })
}

#[test]
fn every_property_holds_in_every_state() {
    for (name, searched) in searched() {
        coverage::reached("cancel bus", name, &searched.to_string()).expect("the table can be written");
        assert!(searched.states >= LEAST, "{name} is too small: {searched}");
        assert!(searched.rests > 0, "{name} never comes to rest: {searched}");
    }
}

/// The reported rows were printed by the current models. Optimised builds compare all of them.
#[test]
fn the_reported_rows_match_this_search() {
    // The other test writes them.
    if std::env::var_os("RESCIND_PRINT").is_some() {
        return;
    }
    let table = std::fs::read_to_string(coverage::REACHED).expect("the table is there");
    let rows: Vec<_> = table.lines().filter(|row| row.starts_with("cancel bus\t")).collect();
    for (name, searched) in searched() {
        let row = format!("cancel bus\t{name}\t{searched}");
        assert!(
            rows.contains(&row.as_str()),
            "run it in release with RESCIND_PRINT: {row} is not in {rows:#?}"
        );
    }
    let cases: BTreeSet<_> = CASES.iter().map(|case| case.name).collect();
    let printed: BTreeSet<_> = rows.iter().filter_map(|row| row.split('\t').nth(1)).collect();
    assert_eq!(cases, printed, "remove the rows of cases that are no more");
}

/// Everything that the models can do happened: cancels before the watch, in time, after the end and repeated, each
/// fault, and each way to be refused.
#[test]
fn every_event_of_the_models_happens() {
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for (event, times) in searched().iter().flat_map(|(_, searched)| &searched.events) {
        *seen.entry(event).or_default() += times;
    }
    println!("{seen:#?}");
    let seen: BTreeSet<_> = seen.into_keys().collect();
    assert_eq!(seen, EVENTS.into_iter().flatten().copied().collect());
}

#[test]
fn the_models_judge_exactly_the_properties_that_they_claim() {
    let mut judged = Tally::default();
    for (_, searched) in searched() {
        judged += searched.judged;
    }
    println!("judged {judged}");
    let engine = ENGINES.iter().find(|engine| engine.name == "cancel bus").expect("it is there");
    let judged: BTreeSet<_> = judged.judged().map(|(property, _)| property).collect();
    assert_eq!(judged, engine.checks.iter().copied().collect());
    let broken: BTreeSet<_> = Bug::ALL.iter().map(|bug| bug.breaks()).collect();
    assert_eq!(judged, broken, "each property has a bug that breaks it");
}

/// The search of a model with this bug finds the property that the bug breaks, in the first case that shows it.
fn breaks_its_property(bug: Bug) {
    let cases = CASES.iter().filter(|case| case.size == Size::Small && case.has(bug));
    let mut found = cases.filter_map(|case| Some((case.name, case.search(Some(bug)).err()?)));
    let (case, found) = found.next().unwrap_or_else(|| panic!("no case finds {}", bug.name()));
    println!("{} in \"{case}\": {found}", bug.name());
    assert_eq!(found.broken.invariant, bug.breaks(), "{found}");
    assert!(!found.path.is_empty(), "no step leads there: {found}");
}

macro_rules! bugs {
    ($($name:ident: $bug:ident;)*) => {
        const TESTED: &[(&str, Bug)] = &[$((stringify!($name), Bug::$bug),)*];

        $(
            #[test]
            fn $name() {
                breaks_its_property(Bug::$bug);
            }
        )*
    };
}

bugs! {
    look_before_subscribing: LookBeforeSubscribing;
    no_tombstone: NoTombstone;
    doorbell_first: DoorbellFirst;
    watch_not_repeated: WatchNotRepeated;
    return_without_look: ReturnWithoutLook;
    time_to_live_too_short: TimeToLiveTooShort;
    slow_cancel_acknowledged: SlowCancelAcknowledged;
    engine_forgets: EngineForgets;
    no_generation_in_keys: NoGenerationInKeys;
    signal_again: SignalAgain;
    late_doorbell_signals: LateDoorbellSignals;
    failed_look_cancels: FailedLookCancels;
    tombstone_forever: TombstoneForever;
    still_subscribed: StillSubscribed;
    look_sets_no_flag: LookSetsNoFlag;
    silent_success: SilentSuccess;
    forward_twice: ForwardTwice;
    forwarded_is_trusted: ForwardedIsTrusted;
    former_life_served: FormerLifeServed;
    owner_asks_its_view: OwnerAsksItsView;
    dead_owner_awaited: DeadOwnerAwaited;
    cancel_accepted_anywhere: CancelAcceptedAnywhere;
    leave_not_forwarded: LeaveNotForwarded;
    polling: Polling;
}

/// The page names the test of each bug.
#[test]
fn every_bug_has_its_test() {
    let tested: Vec<_> = TESTED.iter().map(|(test, bug)| ((*test).to_owned(), *bug)).collect();
    let wanted: Vec<_> = Bug::ALL.iter().map(|bug| (bug.name().replace('-', "_"), *bug)).collect();
    assert_eq!(tested, wanted);
}
