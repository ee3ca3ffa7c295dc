//! Checks that each peer does what is measured: its echo is answered, and its cancel reaches the handler, or it
//! reports that it has none.

use std::time::Duration;

use rescind_benchmarks::peers::all;
use rescind_benchmarks::subject::{
    CancelSamples, Competitor, Echo, Ends, Saturated, Setup, Subject, Told, Tree, Which, or_never,
};

/// More than any test has in flight.
const SLOTS: usize = 2048;

async fn opened(competitor: &Competitor, slots: usize) -> Box<dyn Subject> {
    (competitor.open)(Setup { ends: Ends::Memory, slots }).await
}

/// With the paused clock a silent peer is detected at once, because nothing else is left to do.
#[tokio::test(start_paused = true)]
async fn every_peer_echoes() {
    let mut silent = Vec::new();
    for competitor in &all() {
        for (bytes, in_flight, count) in [(64, 1, 8), (4 << 10, 64, 128), (64 << 10, 1, 2), (64, 256, 512)] {
            let mut subject = opened(competitor, SLOTS).await;
            let mut took = Vec::new();
            let echo = subject.echo(Echo { bytes, in_flight, count }, &mut took);
            if or_never(echo).await.is_none() {
                silent.push((competitor.name, bytes, in_flight));
                continue;
            }
            assert_eq!(took.len(), count, "{competitor:?}: {bytes} bytes, {in_flight} in flight");
            assert!(took.iter().all(|nanos| *nanos > 0), "{competitor:?}");
        }
    }
    assert_eq!(silent, [], "all echoes come back");
}

/// The expected result of a cancel.
fn expected(competitor: &Competitor) -> Told {
    match (competitor.name.library, competitor.name.configuration) {
        ("jsonrpsee", _) => Told::None,
        ("agent-client-protocol", "handlers wait inline") => Told::Never,
        _ => Told::Measured,
    }
}

#[tokio::test(start_paused = true)]
async fn every_cancel_reaches_its_handler_if_the_library_has_cancels() {
    for competitor in &all() {
        let mut subject = opened(competitor, SLOTS).await;
        let mut took = CancelSamples::default();
        let told = subject.cancel(5, &mut took).await;
        assert_eq!(told, expected(competitor), "{competitor:?}");
        let samples = if told == Told::Measured { 5 } else { 0 };
        assert_eq!(took.to_handler.len(), samples, "{competitor:?}: the handler's signal");
        assert_eq!(took.to_caller.len(), samples, "{competitor:?}: the caller's return");
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_wait_beside_an_echo_until_released() {
    for competitor in all().iter().filter(|competitor| competitor.name.configuration.starts_with("best")) {
        let mut subject = opened(competitor, SLOTS).await;
        assert_eq!(subject.park(1000).await, Told::Measured, "{competitor:?}");
        let mut took = Vec::new();
        subject.echo(Echo { bytes: 64, in_flight: 1, count: 3 }, &mut took).await;
        assert_eq!(took.len(), 3, "{competitor:?}");
        subject.release().await;
        // The slots are free again.
        assert_eq!(subject.park(1000).await, Told::Measured, "{competitor:?}");
        subject.release().await;
    }
}

#[tokio::test(start_paused = true)]
async fn pairs_of_a_request_and_its_cancel_leave_room_for_more() {
    for competitor in all().iter().filter(|competitor| competitor.name.configuration.starts_with("best")) {
        let mut subject = opened(competitor, 200).await;
        let told = subject.pairs(500).await;
        assert_eq!(told, expected(competitor), "{competitor:?}");
    }
}

/// The expected result of a cancel while every slot is taken and more requests wait for one.
fn expected_when_saturated(competitor: &Competitor, which: Which) -> Saturated {
    match (competitor.name.library, competitor.name.configuration) {
        // Both stop reading when one request waits for a slot. A handler that waits inline also stops the reads.
        ("async-lsp" | "tower-lsp-server", _) | ("agent-client-protocol", "handlers wait inline") => {
            Saturated::Never
        }
        ("rmcp" | "agent-client-protocol", _) => Saturated::NoLimit,
        ("tarpc", "default") => Saturated::Answered,
        ("tarpc", _) if which == Which::Running => Saturated::Answered,
        ("tarpc", _) => Saturated::Told,
        _ => Saturated::None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancel_with_every_slot_taken_is_shown_as_it_is() {
    for competitor in &all() {
        for which in [Which::Running, Which::Queued] {
            let mut subject = opened(competitor, 4).await;
            let mut took = Vec::new();
            let expected = expected_when_saturated(competitor, which);
            for turn in 1..=3 {
                let told = subject.saturate(which, 10, &mut took).await;
                assert_eq!(told, expected, "{competitor:?}: {which:?}, turn {turn}");
                let samples = if told == Saturated::Answered { 10 * turn } else { 0 };
                assert_eq!(took.len(), samples, "{competitor:?}: {which:?}, turn {turn}");
                if told != Saturated::Answered {
                    break;
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancel_reaches_all_descendants_if_the_library_has_cascades() {
    let tree = Tree { depth: 3, fan_out: 3 };
    for competitor in &all() {
        let mut subject = opened(competitor, SLOTS).await;
        let told = subject.cascade(tree, true).await;
        // Its JSON frames have no client on the server's side.
        let has = competitor.name.library == "tarpc" && competitor.name.configuration != "best, JSON frames";
        match told {
            Ok(told) => assert!(has && told.to_last > 0, "{competitor:?}: all were signalled: {told:?}"),
            Err(said) => assert_eq!((has, said), (false, Told::None), "{competitor:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_the_call_if_the_library_has_deadlines() {
    for competitor in &all() {
        let mut subject = opened(competitor, SLOTS).await;
        let mut late = Vec::new();
        let told = subject.deadlines(100, Duration::from_secs(5), &mut late).await;
        let has = ["tarpc", "rmcp"].contains(&competitor.name.library);
        assert_eq!(told, if has { Told::Measured } else { Told::None }, "{competitor:?}");
        assert_eq!(late.len(), if has { 100 } else { 0 }, "{competitor:?}");
    }
}
