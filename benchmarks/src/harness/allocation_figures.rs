//! The counted figures: allocations of a request, heap bytes of a request in flight, and what cancels leave.

use std::time::{Duration, Instant};

use rescind_core::dialect::{ACP, MCP};
use tokio::runtime::Runtime;

use super::figures::{Figure, Row};
use super::interleave::{Bound, Place, attempt, enter};
use super::{Growth, Results, Run};
use crate::resources::{self, Heap, one_thread};
use crate::subject::{BURST, BoxFuture, Competitor, Echo, Subject, Told};
use crate::{steps, subjects};

fn number(value: f64, unit: &'static str) -> Figure {
    Figure::Number { value, unit }
}

/// W5: allocations and bytes allocated of an echo.
pub(super) fn allocations(run: &Run, competitors: &[Competitor], results: &mut Results) {
    let all: Vec<_> = competitors.iter().copied().chain(subjects::variants()).collect();
    run.begin("W5 allocations of an echo", all.len());
    for competitor in &all {
        const COUNT: usize = 1000;
        let mut alone = Alone::new(competitor, 64);
        let counted = resources::measure_heap(|| drop(alone.echo(COUNT)));
        // The list of samples belongs to the harness.
        let each = counted.map(|heap| (heap.count - 1.0, heap.bytes - (8 * COUNT) as f64));
        for (measure, value, unit) in
            [("allocations", each.map(|each| each.0), ""), ("bytes allocated", each.map(|each| each.1), "B")]
        {
            let figure = value.map_or(NOT_COUNTED, |value| number(value / COUNT as f64, unit));
            results.rows.push(Row::new("W5", "an echo".to_owned(), PLACE, measure, competitor.name, figure));
        }
        run.step();
    }
}

/// Allocations of a thousand echoes of this library, and of a thousand cancelled requests.
#[cfg(feature = "count")]
#[must_use]
pub fn allocations_of_ours() -> [u64; 2] {
    const COUNT: usize = 1000;
    let ours = subjects::rescind::COMPETITOR;
    let count =
        |counted: Result<Option<resources::Heap>, _>| counted.ok().flatten().map_or(0.0, |heap| heap.count);
    let mut alone = Alone::new(&ours, 1024);
    // The list of samples belongs to the harness.
    let echoes = resources::measure_heap(|| drop(alone.echo(COUNT))).map_or(0.0, |heap| heap.count - 1.0);
    let mut alone = Alone::new(&ours, 1024);
    let mut pairs = |count| alone.count_told(Bound::Whole, |subject| subject.pairs(count));
    let _ = pairs(COUNT * 10);
    [echoes as u64, count(pairs(COUNT)) as u64]
}

/// W8 and growth: the heap bytes of a request in flight, and the time of an echo while this many are in flight.
pub(super) fn in_flight(run: &Run, competitors: &[Competitor], results: &mut Results) {
    let counts: &[usize] = if run.short { &[1, 100, 1000] } else { &[1, 10, 100, 1000, 10_000, 100_000] };
    run.begin("W8 requests in flight", competitors.len() * counts.len());
    for competitor in competitors {
        let (mut bytes, mut echoes) = (Vec::new(), Vec::new());
        let mut out = None;
        for count in counts.iter().copied() {
            // A competitor that could not hold fewer cannot hold more, so it is skipped.
            let mut alone = out.is_none().then(|| Alone::new(competitor, count + 16));
            let held = match (&mut alone, out) {
                (Some(alone), _) => alone.count_told(Bound::Whole, |subject| subject.park(count)),
                (None, said) => Err(said.unwrap_or("none")),
            };
            out = held.err();
            let figure = match held {
                Err(said) => Figure::Said(said),
                Ok(None) => NOT_COUNTED,
                Ok(Some(heap)) => {
                    bytes.push((count as f64, heap.left / count as f64));
                    number(heap.left / count as f64, "B")
                }
            };
            let case = format!("{count} in flight");
            results.rows.push(Row::new("W8", case, PLACE, "heap a request", competitor.name, figure));
            if let (Ok(_), Some(alone)) = (held, &mut alone) {
                let mut took = alone.echo(200);
                took.sort_unstable();
                echoes.extend(took.get(took.len() / 2).map(|nanos| (count as f64, *nanos as f64)));
            }
            run.step();
        }
        for (what, unit, points) in
            [("heap a request in flight", "B", bytes), ("echo beside them", "ns", echoes)]
        {
            let with = "requests in flight";
            results.growth.push(Growth { what, with, unit, name: competitor.name, points });
        }
    }
    ours_in_flight(counts, results);
}

/// The part of this library's bytes that belongs to the application.
fn ours_in_flight(counts: &[usize], results: &mut Results) {
    let ours = subjects::rescind::COMPETITOR.name;
    for count in counts.iter().copied().filter(|count| *count >= 1000) {
        #[cfg(feature = "count")]
        let [beside, task, future] = {
            let held = crate::transport_echo::resident(count);
            [held.beside(), held.task, held.future].map(|value| number(value, "B"))
        };
        #[cfg(not(feature = "count"))]
        let [beside, task, future] = [NOT_COUNTED; 3];
        for (measure, figure) in [
            ("beside the user's task", beside),
            ("the runtime's cell of the user's task", task),
            ("the user's future", future),
        ] {
            let case = format!("{count} in flight");
            results.rows.push(Row::new("W8", case, PLACE, measure, ours, figure));
        }
    }
}

/// The duration of the cancels of W6 whose remains are counted.
const LEAVING: Duration = Duration::from_secs(4);

/// Does this many operations at once.
type Ask = fn(&mut dyn Subject, usize) -> BoxFuture<'_, Told>;

/// W6: the heap bytes that very many cancels leave.
pub(super) fn left_by_cancels(run: &Run, competitors: &[Competitor], results: &mut Results) {
    let pairs: Ask = |subject, count| subject.pairs(count);
    let unknown: Ask = |subject, count| subject.unknown_cancels(count);
    let all = [
        ("after 100,000 pairs", pairs, BURST * 10, run.of(100_000, BURST * 10)),
        ("after 1,000,000 unknown cancels", unknown, 10_000, run.of(1_000_000, 10_000)),
    ];
    run.begin("W6 what is left", competitors.len() * all.len());
    for competitor in competitors {
        for (case, ask, at_once, count) in all {
            let mut alone = Alone::new(competitor, 4096);
            // After this the tables that are allocated once have their size.
            let warm = alone.count_told(Bound::Turn, |subject| ask(subject, at_once));
            let done = warm.and_then(|_| {
                alone.count(Bound::Whole, |subject| Box::pin(in_time(subject, ask, at_once, count)))
            });
            let (left, played) = match done {
                Err(said) | Ok(((Some(said), _), _)) => (Figure::Said(said), Figure::Said(said)),
                Ok(((None, played), heap)) => {
                    let left = heap.map_or(NOT_COUNTED, |heap| number(heap.left / 1024.0, "KiB"));
                    (left, number(played as f64, "requests"))
                }
            };
            for (measure, figure) in [("heap", left), ("played in all", played)] {
                results.rows.push(Row::new("W6", case.to_owned(), PLACE, measure, competitor.name, figure));
            }
            run.step();
        }
    }
}

/// Plays as many of them as [`LEAVING`] allows. Returns the reason if it was not done, and the number played.
async fn in_time(
    subject: &mut dyn Subject,
    ask: Ask,
    at_once: usize,
    count: usize,
) -> (Option<&'static str>, usize) {
    let begin = Instant::now();
    let mut played = 0;
    while played < count && begin.elapsed() < LEAVING {
        if let Some(said) = ask(subject, at_once).await.said() {
            return (Some(said), played);
        }
        played += at_once;
    }
    (None, played)
}

/// The steps of the bare machine.
pub(super) fn machine(run: &Run, results: &mut Results) {
    run.begin("the machine's steps", 2);
    let ours = subjects::rescind::COMPETITOR.name;
    for (dialect, name) in [(ACP, "ACP"), (MCP, "MCP")] {
        let mut server = steps::session(&dialect);
        let (now, mut id) = (Instant::now(), 0);
        let served = best(|| {
            id += 1;
            steps::serve(&mut server, now, id);
        });
        let cancelled = best(|| {
            id += 1;
            steps::serve_cancelled(&mut server, now, id);
        });
        let step = number((served / 3.0).max(cancelled / 4.0), "ns");
        #[cfg(feature = "count")]
        let counted = {
            let [served, cancelled] = steps::allocations(&dialect);
            number(served.max(cancelled), "")
        };
        #[cfg(not(feature = "count"))]
        let counted = NOT_COUNTED;
        for (measure, figure) in [("a step", step), ("allocations a step", counted)] {
            results.rows.push(Row::new("machine", name.to_owned(), "no wire", measure, ours, figure));
        }
        run.step();
    }
}

/// Nanoseconds of a round, for the best of many batches. Each batch is short enough to fit between two turns of the
/// scheduler.
fn best(mut round: impl FnMut()) -> f64 {
    let batch = |round: &mut dyn FnMut()| {
        let begin = Instant::now();
        (0..500).for_each(|_| round());
        begin.elapsed().as_nanos() as f64 / 500.0
    };
    (0..400).map(|_| batch(&mut round)).fold(f64::INFINITY, f64::min)
}

// A connection whose two sides run only on this thread, so that the allocation counter sees everything. A competitor
// with its own threads would show less than it uses.

pub(super) const PLACE: &str = Place::OneThread.name();
pub(super) const NOT_COUNTED: Figure = Figure::Said("not counted");

/// One connection.
pub(super) struct Alone {
    runtime: Runtime,
    subject: Option<Box<dyn Subject>>,
    /// Why there is no subject.
    out: &'static str,
}

impl Alone {
    pub(super) fn new(competitor: &Competitor, slots: usize) -> Self {
        let runtime = one_thread();
        let entrant = runtime.block_on(enter(competitor, Place::OneThread, slots));
        let out = entrant.out.unwrap_or("none");
        let mut alone = Self { runtime, subject: entrant.subject, out };
        // One-time allocations do not belong to a request.
        alone.echo(2000);
        alone
    }

    pub(super) fn echo(&mut self, count: usize) -> Vec<u64> {
        let mut took = Vec::with_capacity(count);
        if let Some(subject) = &mut self.subject {
            let echo = Echo { bytes: 64, in_flight: 1, count };
            let echoes = attempt(Bound::Turn, subject.echo(echo, &mut took));
            if let Err(said) = self.runtime.block_on(echoes) {
                let _entered = self.runtime.enter();
                (self.subject, self.out) = (None, said);
            }
        }
        took
    }

    /// Runs an operation and counts, or returns why it was not done. `None`: it is not counted.
    pub(super) fn count<'a, T>(
        &'a mut self,
        bound: Bound,
        ask: impl FnOnce(&'a mut dyn Subject) -> BoxFuture<'a, T>,
    ) -> Result<(T, Option<Heap>), &'static str> {
        let Self { runtime, subject, out } = self;
        let Some(subject) = subject else { return Err(*out) };
        let mut done = Err(*out);
        let counted = resources::measure_heap(|| {
            done = runtime.block_on(async {
                let done = attempt(bound, ask(subject.as_mut())).await;
                // The last messages arrive.
                for _ in 0..8 {
                    tokio::task::yield_now().await;
                }
                done
            });
        });
        done.map(|done| (done, counted))
    }

    /// The same, for an operation that returns whether it was done.
    pub(super) fn count_told<'a>(
        &'a mut self,
        bound: Bound,
        ask: impl FnOnce(&'a mut dyn Subject) -> BoxFuture<'a, Told>,
    ) -> Result<Option<Heap>, &'static str> {
        let (told, counted) = self.count(bound, ask)?;
        told.said().map_or(Ok(counted), Err)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _entered = self.runtime.enter();
        drop(self.subject.take());
    }
}
