//! Prints the budgets, what this run measured, and whether each is met. Exits 1 if one is not.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use rescind_benchmarks::samples::{Compared, cancel, echo};
use rescind_benchmarks::table::Table;
use rescind_benchmarks::wires::{
    Pair, in_memory, one_thread, over_pipes, pinned, serve_if_asked, two_workers,
};
use rescind_benchmarks::{residents, steps};
use rescind_core::dialect::{ACP, MCP};

const TURNS: usize = 100;

fn main() -> ExitCode {
    serve_if_asked();
    let mut table = Table::new();
    machine(&mut table);
    for (name, allowed, wire) in [
        ("memory, one thread", 5.0, one_thread().block_on(async { measure(in_memory()).await })),
        ("memory, two workers", f64::NAN, {
            let runtime = two_workers();
            runtime
                .block_on(async { tokio::spawn(async { measure(in_memory()).await }).await })
                .expect("the workload ends")
        }),
        (
            "pipes, one core",
            8.0,
            pinned(|| one_thread().block_on(async { measure(over_pipes().await).await })),
        ),
    ] {
        wire.print(&mut table, name, allowed);
    }
    for requests in [10_000, 100_000] {
        let held = residents::measure(requests);
        let note = format!(
            "all {:.0} - task {:.0}, the user's future of {:.0} in it",
            held.all, held.task, held.future
        );
        table.judge(&format!("bytes a request, {requests} in flight"), held.beside(), 512.0, "B", &note);
    }
    if table.all_met() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn machine(table: &mut Table) {
    for (name, dialect) in [("ACP", ACP), ("MCP", MCP)] {
        let mut server = steps::session(&dialect);
        let (now, mut id) = (Instant::now(), 0);
        let request = best(|| {
            id += 1;
            steps::serve(&mut server, now, id);
        });
        let cancelled = best(|| {
            id += 1;
            steps::serve_cancelled(&mut server, now, id);
        });
        let step = (request / 3.0).max(cancelled / 4.0) / 1000.0;
        let note = format!("a request {request:.0} ns, a cancelled one {cancelled:.0} ns");
        table.judge(&format!("a machine step, {name}"), step, 0.5, "us", &note);
        let [served, cancelled] = steps::allocations(&dialect);
        table.judge(&format!("allocations a step, {name}"), served.max(cancelled), 2.0, "", "");
    }
    let frame = br#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1234567,"_meta":{"a":"b","c":"dddddd"}}}"#;
    let took = best(|| {
        black_box(ACP.codec().decode(black_box(frame)));
    });
    let raw = best(|| {
        black_box(serde_json::from_slice::<&serde_json::value::RawValue>(black_box(frame)).is_ok());
    });
    table.judge(
        &format!("decode of a {} B cancel", frame.len()),
        took,
        182.0,
        "ns",
        &format!("one raw value of all of it {raw:.0} ns"),
    );
}

/// Nanoseconds a round, of the best of many batches, each short enough to fall between two turns of the scheduler.
fn best(mut round: impl FnMut()) -> f64 {
    let batch = |round: &mut dyn FnMut()| {
        let begin = Instant::now();
        (0..500).for_each(|_| round());
        begin.elapsed().as_nanos() as f64 / 500.0
    };
    (0..400).map(|_| batch(&mut round)).fold(f64::INFINITY, f64::min)
}

struct Measured {
    echoes: [(usize, Compared); 3],
    to_handler: Compared,
    to_caller: Compared,
}

async fn measure(mut pair: Pair) -> Measured {
    let mut echoes = [64, 4 * 1024, 64 * 1024].map(|bytes| (bytes, Compared { ours: 0.0, floor: 0.0 }));
    for (bytes, compared) in &mut echoes {
        *compared = echo(&mut pair, *bytes, if *bytes > 4096 { TURNS / 5 } else { TURNS }).await;
    }
    let (to_handler, to_caller) = cancel(&mut pair, TURNS).await;
    Measured { echoes, to_handler, to_caller }
}

impl Measured {
    fn print(&self, table: &mut Table, wire: &str, allowed: f64) {
        for (bytes, Compared { ours, floor }) in self.echoes {
            let limit = if bytes == 64 { allowed } else { f64::NAN };
            let note =
                format!("{:.2} us, floor {:.2} us, {:.2}x", ours / 1000.0, floor / 1000.0, ours / floor);
            table.judge(
                &format!("echo {bytes} B over floor, {wire}"),
                (ours - floor) / 1000.0,
                limit,
                "us",
                &note,
            );
        }
        let [echo, ..] = self.echoes;
        for (name, Compared { ours, floor }) in [("handler", self.to_handler), ("caller", self.to_caller)] {
            let note = format!(
                "{:.2} us, floor {:.2} us; {:.2}x our echo",
                ours / 1000.0,
                floor / 1000.0,
                ours / echo.1.ours
            );
            table.judge(
                &format!("cancel to {name} over floor, {wire}"),
                (ours - floor) / 1000.0,
                f64::NAN,
                "us",
                &note,
            );
        }
    }
}
