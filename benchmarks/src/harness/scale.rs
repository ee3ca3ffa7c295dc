//! How cost grows with a number: of requests in flight, of connections, of requests in a cascade.

use super::competitors::{Bound, Place, enter};
use super::figures::{Figure, Row};
use super::single_thread::{Alone, NOT_COUNTED, PLACE};
use super::{Growth, Results, Run};
use crate::resources::{self, Heap, one_thread};
use crate::subject::{Competitor, Echo, Tree};
use crate::{clock, subjects};

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
pub(super) fn measure(run: &Run, results: &mut Results) {
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
