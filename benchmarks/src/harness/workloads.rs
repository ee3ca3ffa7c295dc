//! The cases of the workloads that are played in turns, and the long ones that are played once.

use std::time::Duration;

use super::allocation_figures::{self, Alone, NOT_COUNTED, PLACE};
use super::figures::{Distribution, Figure, Row};
use super::interleave::{Bound, Case, PLENTY, Place, Work, attempt, enter, play};
use super::{Growth, Results, Run};
use crate::resources::{self, Heap, one_thread};
use crate::subject::{BURST, Cascade, Competitor, Echo, Told, Tree, Which};
use crate::{clock, subjects};

/// The number of slots if every one must be taken.
const FEW: usize = 4;

/// Measures one of W1 to W4, W6, W7 and W9.
pub(super) fn measure(run: &Run, workload: &'static str, competitors: &[Competitor], results: &mut Results) {
    for (case, places) in cases(run, workload) {
        for place in places {
            results.rows.extend(play(run, &case, *place, competitors));
        }
    }
    match workload {
        "W6" => allocation_figures::left_by_cancels(run, competitors, results),
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
    // The total over the counted turns.
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

/// How often this library and the floors play W7's root with very many children, so that their 99th percentiles have
/// enough samples.
const WIDE_TREES: usize = 3;

/// W7: a root with very many children, while other requests run.
fn wide_tree(run: &Run, competitors: &[Competitor], results: &mut Results) {
    let children = run.of(100_000, 1000);
    let ours = subjects::all_of_ours();
    for place in Place::ALL {
        run.begin(&format!("W7 {children} children, {}", place.name()), competitors.len());
        for competitor in competitors.iter().copied() {
            let times = if ours.contains(&competitor.name) { run.of(WIDE_TREES, 1) } else { 1 };
            let raised = (0..times).map(|_| raise(competitor, place, children));
            let (last, others) = merged(raised.collect(), children);
            let row = |measure, figure| {
                let case = format!("{children} children of one root");
                Row::new("W7", case, place.name(), measure, competitor.name, figure)
            };
            results.rows.push(row("a child, of all the time", last));
            results.rows.push(row("other requests meanwhile", others));
            run.step();
        }
    }
}

/// One wide tree, on a separate connection.
fn raise(competitor: Competitor, place: Place, children: usize) -> Result<Cascade, &'static str> {
    let tree = Tree { depth: 1, fan_out: children };
    place.run(async move {
        let mut entrant = enter(&competitor, place, children + 16).await;
        let Some(subject) = &mut entrant.subject else { return Err(entrant.out.unwrap_or("none")) };
        let told = attempt(Bound::Whole, subject.cascade(tree, true)).await?;
        told.map_err(|told| told.said().unwrap_or("none"))
    })
}

/// The median time of a child, and all round trips of the other requests. If one tree fails, all do.
fn merged(raised: Result<Vec<Cascade>, &'static str>, children: usize) -> (Figure, Figure) {
    let raised = match raised {
        Ok(raised) => raised,
        Err(said) => return (Figure::Said(said), Figure::Said(said)),
    };
    let mut lasts: Vec<_> = raised.iter().map(|told| told.to_last).collect();
    lasts.sort_unstable();
    let last = lasts.get(lasts.len() / 2).map_or(Figure::Said("none"), |nanos| Figure::Number {
        value: *nanos as f64 / children as f64,
        unit: "ns",
    });
    let meanwhile = raised.into_iter().flat_map(|told| told.meanwhile).collect();
    (last, Distribution::new(meanwhile).map_or(Figure::Said("none"), Figure::Times))
}

/// W9: very many deadlines that pass while all requests wait.
fn deadlines(run: &Run, competitors: &[Competitor], results: &mut Results) {
    let (count, after) = if run.short {
        (1000, Duration::from_millis(300))
    } else {
        // Long enough for the slowest to start all of them.
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

// How cost grows with a number: of requests in flight, of connections, of requests in a cascade.

/// The total cost of this many: nanoseconds and bytes, without bytes if none are counted; or why there is no figure.
type Took = Result<[Option<f64>; 2], &'static str>;

/// Something of which there may be many.
struct Many {
    with: &'static str,
    /// The names of its time and its bytes.
    what: [&'static str; 2],
    /// The highest number, in a full and in a short run.
    last: [usize; 2],
    measure: fn(&Competitor, usize) -> Took,
}

const ALL: [Many; 3] = [
    Many {
        with: "requests in flight",
        what: ["to put in flight", "heap in flight"],
        last: [1_000_000, 1000],
        measure: in_flight,
    },
    Many {
        with: "connections",
        what: ["to open, with one echo", "heap open"],
        last: [10_000, 100],
        measure: connections,
    },
    Many {
        with: "children",
        what: ["to signal, from the root's cancel", "heap at most"],
        last: [1_000_000, 1000],
        measure: children,
    },
];

/// This library and the floor without a transport: requests in flight on one connection, connections, children of one
/// root.
pub(super) fn measure_scale(run: &Run, results: &mut Results) {
    let all = [subjects::CHANNELS, subjects::rescind::COMPETITOR, subjects::rescind::QUICK];
    run.begin("scale", all.len() * ALL.len());
    for competitor in all {
        for many in &ALL {
            grow(run, &competitor, many, results);
            run.step();
        }
    }
}

/// Powers of ten up to the last.
fn grow(run: &Run, competitor: &Competitor, many: &Many, results: &mut Results) {
    let [full, short] = many.last;
    let counts = std::iter::successors(Some(1), |count: &usize| Some(count * 10));
    let counts = counts.take_while(|count| *count <= run.of(full, short));
    let took: Vec<_> = counts.map(|count| (count as f64, (many.measure)(competitor, count))).collect();
    let (with, name) = (many.with, competitor.name);
    for (place, (what, unit)) in many.what.into_iter().zip(["ns", "B"]).enumerate() {
        let mut points = Vec::new();
        for (count, took) in &took {
            let figure = match took.map(|took| took[place]) {
                Ok(Some(all)) => {
                    points.push((*count, all / count));
                    Figure::Number { value: all / count, unit }
                }
                Ok(None) => NOT_COUNTED,
                Err(said) => Figure::Said(said),
            };
            results.rows.push(Row::new("scale", format!("{count} {with}"), PLACE, what, name, figure));
        }
        results.growth.push(Growth { what, with, unit, name, points });
    }
}

fn in_flight(competitor: &Competitor, count: usize) -> Took {
    let mut alone = Alone::new(competitor, count + 16);
    let begin = clock();
    let counted = alone.count_told(Bound::Long, |subject| subject.park(count));
    let nanos = clock() - begin;
    counted.map(|heap| [Some(nanos as f64), heap.map(|heap| heap.left)])
}

fn children(competitor: &Competitor, count: usize) -> Took {
    let mut alone = Alone::new(competitor, count + 16);
    let counted =
        alone.count(Bound::Long, |subject| subject.cascade(Tree { depth: 1, fan_out: count }, false));
    match counted {
        Ok((Ok(told), heap)) => Ok([Some(told.to_last as f64), heap.map(|heap: Heap| heap.most)]),
        Ok((Err(told), _)) => Err(told.said().unwrap_or("none")),
        Err(said) => Err(said),
    }
}

fn connections(competitor: &Competitor, count: usize) -> Took {
    let runtime = one_thread();
    let mut open = Vec::with_capacity(count);
    let mut took = Vec::with_capacity(count);
    let mut nanos = 0;
    let counted = resources::measure_heap(|| {
        runtime.block_on(async {
            let begin = clock();
            for _ in 0..count {
                let mut entrant = enter(competitor, Place::OneThread, 64).await;
                if let Some(subject) = &mut entrant.subject {
                    subject.echo(Echo { bytes: 64, in_flight: 1, count: 1 }, &mut took).await;
                }
                open.push(entrant);
            }
            nanos = clock() - begin;
        });
    });
    let out = open.iter().find_map(|entrant| entrant.out);
    let _entered = runtime.enter();
    drop(open);
    out.map_or(Ok([Some(nanos as f64), counted.map(|heap| heap.left)]), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_round_trips_beside_several_trees_are_merged_and_a_child_takes_the_median() {
        let told =
            |to_last, meanwhile: &[u64]| Cascade { to_last, to_caller: 0, meanwhile: meanwhile.to_vec() };
        let raised = vec![told(900, &[1, 2]), told(100, &[]), told(200, &[3])];
        let (last, others) = merged(Ok(raised), 10);
        assert!(matches!(last, Figure::Number { value: 20.0, .. }), "{last:?}");
        assert!(matches!(&others, Figure::Times(times) if (times.count, times.max) == (3, 3)), "{others:?}");
        assert!(matches!(merged(Err("never"), 10), (Figure::Said("never"), Figure::Said("never"))));
    }
}
