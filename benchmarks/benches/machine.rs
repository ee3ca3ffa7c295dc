//! One step of the machine: receive a request, settle it, receive a cancel; and the decoding of a frame.

use std::hint::black_box;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use rescind_benchmarks::steps::{allocations, call, serve, serve_cancelled, session, unknown_cancel};
use rescind_core::dialect;

fn steps(criterion: &mut Criterion) {
    for (name, dialect) in [("acp", dialect::ACP), ("mcp", dialect::MCP)] {
        let mut group = criterion.benchmark_group(format!("machine/{name}"));
        let now = Instant::now();
        let mut server = session(&dialect);
        let mut id = 0;
        group.bench_function("request+answer+end (3 steps)", |bencher| {
            bencher.iter(|| {
                id += 1;
                serve(&mut server, now, id);
            });
        });
        group.bench_function("request+cancel+answer+end (4 steps)", |bencher| {
            bencher.iter(|| {
                id += 1;
                serve_cancelled(&mut server, now, id);
            });
        });
        let mut client = session(&dialect);
        group.bench_function("call+written+answer (3 steps)", |bencher| {
            bencher.iter(|| call(&mut client, now));
        });
        group.bench_function("unknown cancel (1 step)", |bencher| {
            bencher.iter(|| unknown_cancel(&mut server, now));
        });
        group.finish();
        let [served, cancelled] = allocations(&dialect);
        println!("machine/{name}: allocations a step {served:.3}, of a cancelled request {cancelled:.3}");
    }
}

fn decode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode");
    for (name, frame) in FRAMES {
        group.bench_function(format!("{name}, {} B", frame.len()), |bencher| {
            bencher.iter(|| black_box(dialect::ACP.codec().decode(black_box(frame.as_bytes()))));
        });
    }
    group.finish();
}

const FRAMES: [(&str, &str); 3] = [
    (
        "cancel",
        r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1234567,"_meta":{"a":"b","c":"ddd"}}}"#,
    ),
    (
        "request",
        r#"{"jsonrpc":"2.0","id":1234567,"method":"session/prompt","params":["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"]}"#,
    ),
    (
        "answer",
        r#"{"jsonrpc":"2.0","id":1234567,"result":["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"]}"#,
    ),
];

criterion_group!(benches, steps, decode);
criterion_main!(benches);
