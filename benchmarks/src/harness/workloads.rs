//! The cases of the workloads that are played in turns, and the long ones that are played once.

use std::time::Duration;

use super::field::{Bound, Place, attempt, enter};
use super::figures::{Distribution, Figure, Row};
use super::interleave::{Case, PLENTY, Work, play};
use super::{Results, Run, counted};
use crate::subject::{BURST, Competitor, Echo, Told, Tree, Which};

/// Slots where every one is to be taken.
const FEW: usize = 4;

/// Measures one of W1 to W4, W6, W7 and W9.
pub(super) fn measure(run: &Run, workload: &'static str, competitors: &[Competitor], results: &mut Results) {
    for (case, places) in cases(run, workload) {
        for place in places {
            results.rows.extend(play(run, &case, *place, competitors));
        }
    }
    match workload {
        "W6" => counted::left_by_cancels(run, competitors, results),
        "W7" => wide_tree(run, competitors, results),
        "W9" => deadlines(run, competitors, results),
        _ => {}
    }
}

fn cases(run: &Run, workload: &'static str) -> Vec<(Case, &'static [Place])> {
    const MEMORY: &[Place] = &[Place::OneThread, Place::TwoWorkers];
    let case = |name: &str, slots, work| Case { workload, name: name.to_owned(), slots, work };
    let echo = |name: &str, bytes, in_flight: usize, count| {
        let count = run.of(count, in_flight.min(100));
        (case(name, PLENTY, Work::Echo(Echo { bytes, in_flight, count })), &Place::ALL[..])
    };
    // So much in all over the turns that count.
    let share = |all: usize| all.div_ceil(run.rounds * 2);
    match workload {
        "W1" => {
            vec![echo("64 B", 64, 1, 100), echo("4 KiB", 4 << 10, 1, 100), echo("64 KiB", 64 << 10, 1, 20)]
        }
        "W2" => vec![echo("64 in flight", 64, 64, 640), echo("1024 in flight", 64, 1024, 2048)],
        "W3" => vec![(case("one at a time", PLENTY, Work::Cancel(run.of(50, 5))), &Place::ALL)],
        "W4" => [("of a running request", Which::Running), ("of a queued request", Which::Queued)]
            .map(|(name, which)| (case(name, FEW, Work::Saturate(which, run.of(20, 3))), &Place::ALL[..]))
            .to_vec(),
        "W6" => vec![
            (
                case(
                    "request and cancel, 100,000",
                    PLENTY,
                    Work::Pairs(share(run.of(100_000, 800)).next_multiple_of(BURST)),
                ),
                &Place::ALL,
            ),
            (
                case(
                    "unknown cancels, 1,000,000",
                    PLENTY,
                    Work::UnknownCancels(share(run.of(1_000_000, 4000))),
                ),
                MEMORY,
            ),
        ],
        "W7" => {
            let tree = Work::Cascade(Tree { depth: 5, fan_out: 4 });
            vec![(case("depth 5, fan-out 4", PLENTY, tree), &Place::ALL)]
        }
        _ => Vec::new(),
    }
}

/// W7: a root with very many children, while other requests go on.
fn wide_tree(run: &Run, competitors: &[Competitor], results: &mut Results) {
    let children = run.of(100_000, 1000);
    let tree = Tree { depth: 1, fan_out: children };
    for place in Place::ALL {
        run.begin(&format!("W7 {children} children, {}", place.name()), competitors.len());
        for competitor in competitors.iter().copied() {
            let told = place.run(async move {
                let mut entrant = enter(&competitor, place, children + 16).await;
                let Some(subject) = &mut entrant.subject else { return Err(entrant.out.unwrap_or("none")) };
                let told = attempt(Bound::Whole, subject.cascade(tree, true)).await?;
                told.map_err(|told| told.said().unwrap_or("none"))
            });
            let row = |measure, figure| {
                let case = format!("{children} children of one root");
                Row::new("W7", case, place.name(), measure, competitor.name, figure)
            };
            let each = |nanos: u64| Figure::Number { value: nanos as f64 / children as f64, unit: "ns" };
            let (last, others) = told.map_or_else(
                |said| (Figure::Said(said), Figure::Said(said)),
                |told| {
                    let others =
                        Distribution::new(told.meanwhile).map_or(Figure::Said("none"), Figure::Times);
                    (each(told.to_last), others)
                },
            );
            results.rows.push(row("a child, of all the time", last));
            results.rows.push(row("other requests meanwhile", others));
            run.step();
        }
    }
}

/// W9: very many deadlines that pass while all wait.
fn deadlines(run: &Run, competitors: &[Competitor], results: &mut Results) {
    let (count, after) = if run.short {
        (1000, Duration::from_millis(300))
    } else {
        // So long, that the slowest has started them all by then.
        (100_000, Duration::from_secs(5))
    };
    for place in Place::ALL {
        run.begin(&format!("W9 {count} deadlines, {}", place.name()), competitors.len());
        for competitor in competitors.iter().copied() {
            let (told, late) = place.run(async move {
                let mut entrant = enter(&competitor, place, count + 16).await;
                let mut late = Vec::with_capacity(count);
                let told = match &mut entrant.subject {
                    Some(subject) => attempt(Bound::Whole, subject.deadlines(count, after, &mut late)).await,
                    None => Err(entrant.out.unwrap_or("none")),
                };
                (told, late)
            });
            let said = told.map_or_else(Some, Told::said);
            let figure = said.map_or_else(
                || Distribution::new(late).map_or(Figure::Said("none"), Figure::Times),
                Figure::Said,
            );
            let case = format!("{count} deadlines at once");
            results.rows.push(Row::new("W9", case, place.name(), "late by", competitor.name, figure));
            run.step();
        }
    }
}
