//! This library and the floor in the same run, an echo and a cancel: in memory on one thread and on two workers, and
//! over the pipes of a child process that is pinned to the same core. For the budgets run `report budget`.

use std::time::Duration;

use criterion::Criterion;
use rescind_benchmarks::harness::{Entrant, Place, enter, serve_if_asked};
use rescind_benchmarks::resources::{one_thread, pinned, two_workers};
use rescind_benchmarks::subject::{CancelSamples, Competitor, Echo, Told};
use rescind_benchmarks::subjects::{FLOOR, rescind};
use tokio::runtime::Runtime;

fn main() {
    serve_if_asked();
    compare(Place::OneThread, &one_thread());
    compare(Place::TwoWorkers, &two_workers());
    // Criterion stays on its thread, so the pinned work has a separate one.
    pinned(|| compare(Place::Pipes, &one_thread()));
}

fn compare(place: Place, runtime: &Runtime) {
    let mut criterion = Criterion::default().configure_from_args();
    let mut both =
        [rescind::COMPETITOR, FLOOR].map(|one: Competitor| runtime.block_on(enter(&one, place, 64)));
    for bytes in [64, 4 * 1024, 64 * 1024] {
        let mut group = criterion.benchmark_group(format!("echo {bytes} B, {}", place.name()));
        for entrant in &mut both {
            group.bench_function(entrant.name.library, |bencher| {
                bencher.iter_custom(|rounds| runtime.block_on(echo(entrant, bytes, rounds)));
            });
        }
        group.finish();
    }
    let mut group = criterion.benchmark_group(format!("cancel, {}", place.name()));
    for entrant in &mut both {
        for (to, handler) in [("handler", true), ("caller", false)] {
            group.bench_function(format!("{}, to {to}", entrant.name.library), |bencher| {
                bencher.iter_custom(|rounds| runtime.block_on(cancel(entrant, handler, rounds)));
            });
        }
    }
    group.finish();
    let _entered = runtime.enter();
    drop(both);
    criterion.final_summary();
}

async fn echo(entrant: &mut Entrant, bytes: usize, rounds: u64) -> Duration {
    let mut took = Vec::new();
    let subject = entrant.subject.as_mut().expect("it opened");
    subject.echo(Echo { bytes, in_flight: 1, count: rounds as usize }, &mut took).await;
    Duration::from_nanos(took.iter().sum())
}

async fn cancel(entrant: &mut Entrant, handler: bool, rounds: u64) -> Duration {
    let mut took = CancelSamples::default();
    let subject = entrant.subject.as_mut().expect("it opened");
    assert_eq!(subject.cancel(rounds as usize, &mut took).await, Told::Measured);
    Duration::from_nanos(if handler { took.to_handler } else { took.to_caller }.iter().sum())
}
