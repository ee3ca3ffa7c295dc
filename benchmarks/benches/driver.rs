//! The driver's echo and cancel beside the floor of the same run: in memory on one thread and on two workers, and over
//! the pipes of a child process pinned to the same core. For the table of budgets run the `budget` program.

use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion};
use rescind_benchmarks::wires::{
    Pair, in_memory, one_thread, over_pipes, pinned, serve_if_asked, two_workers,
};
use rescind_benchmarks::{Client, params};
use tokio::runtime::Runtime;

fn main() {
    serve_if_asked();
    let mut criterion = Criterion::default().configure_from_args();
    let runtime = one_thread();
    let pair = runtime.block_on(async { in_memory() });
    compare(&mut criterion, "memory, one thread", &runtime, pair);
    let runtime = two_workers();
    let pair = runtime.block_on(async { in_memory() });
    compare(&mut criterion, "memory, two workers", &runtime, pair);
    // Criterion stays on its thread, so the pinned one has its own.
    pinned(|| {
        let mut criterion = Criterion::default().configure_from_args();
        let runtime = one_thread();
        let pair = runtime.block_on(over_pipes());
        compare(&mut criterion, "pipes, one core", &runtime, pair);
        criterion.final_summary();
    });
}

fn compare(criterion: &mut Criterion, wire: &str, runtime: &Runtime, mut pair: Pair) {
    for bytes in [64, 4 * 1024, 64 * 1024] {
        let mut group = criterion.benchmark_group(format!("echo {bytes} B, {wire}"));
        echo(&mut group, "ours", runtime, &mut pair.ours, bytes);
        echo(&mut group, "floor", runtime, &mut pair.floor, bytes);
        group.finish();
    }
    let mut group = criterion.benchmark_group(format!("cancel, {wire}"));
    cancel(&mut group, "ours", runtime, &mut pair.ours);
    cancel(&mut group, "floor", runtime, &mut pair.floor);
    group.finish();
}

fn echo(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    on: &Runtime,
    client: &mut Client,
    bytes: usize,
) {
    let params = params(bytes);
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|rounds| {
            on.block_on(async {
                let mut total = 0;
                for _ in 0..rounds {
                    total += client.echo(&params).await;
                }
                Duration::from_nanos(total)
            })
        });
    });
}

fn cancel(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, on: &Runtime, client: &mut Client) {
    for (to, handler) in [("handler", true), ("caller", false)] {
        group.bench_function(format!("{name}, to {to}"), |bencher| {
            bencher.iter_custom(|rounds| {
                on.block_on(async {
                    let mut total = 0;
                    for _ in 0..rounds {
                        let took = client.cancel().await;
                        total += if handler { took.to_handler } else { took.to_caller };
                    }
                    Duration::from_nanos(total)
                })
            });
        });
    }
}
