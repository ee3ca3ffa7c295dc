//! One step of the machine: receive a request, settle it, receive a cancel. No I/O, no task, no clock read.

use std::hint::black_box;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use rescind_core::dialect::{self, Dialect, Role};
use rescind_core::{
    Arrival, CallSpec, CancelKey, CallNumber, AnswerKind, Exempt, HandlerEnd, Origin, RequestId, Session,
    SessionConfig, Work,
};

fn arrival(id: i64) -> Arrival<'static> {
    Arrival {
        id: RequestId::number(id),
        cancel_key: CancelKey::SameAsId,
        method: "test/echo",
        exempt: Exempt::No,
        tag: 0,
        origin: Origin::STREAM,
        server_cancellable: false,
        work: Work::Task,
        admission: Ok(()),
    }
}

fn session(dialect: &Dialect) -> Session {
    Session::new(SessionConfig::new(dialect.clone(), Role::Server))
}

fn drain(session: &mut Session) {
    while let Some(output) = session.poll_output() {
        black_box(output);
    }
}

/// A request, its answer and its end: three steps.
fn serve(session: &mut Session, now: Instant, id: i64) {
    if let Some(key) = session.recv_request(now, arrival(id)) {
        session.local_answer(now, key, HandlerEnd::Value);
        session.local_ended(now, key);
    }
    drain(session);
}

/// A request, its cancel, the handler's end: four steps.
fn serve_cancelled(session: &mut Session, now: Instant, id: i64) {
    if let Some(key) = session.recv_request(now, arrival(id)) {
        session.recv_cancel(now, Some(RequestId::number(id)), None, None, &Origin::STREAM);
        session.local_answer(now, key, HandlerEnd::Stopped);
        session.local_ended(now, key);
    }
    drain(session);
}

/// A call, written and answered: three steps.
fn call(session: &mut Session, now: Instant) {
    if let Ok((key, CallNumber(number))) = session.local_call(now, &CallSpec::new("test/echo")) {
        session.local_written(now, key);
        session.recv_answer(now, Some(CallNumber(number)), AnswerKind::Value);
    }
    drain(session);
}

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
            bencher.iter(|| {
                server.recv_cancel(now, Some(RequestId::number(1)), None, None, &Origin::STREAM);
                drain(&mut server);
            });
        });
        group.finish();
        count_allocations(name, &dialect);
    }
}

/// Allocations repeat exactly, so they are counted once, after a warm-up, over a thousand rounds.
fn count_allocations(name: &str, dialect: &Dialect) {
    let now = Instant::now();
    let mut server = session(dialect);
    for id in 0..10_000 {
        serve(&mut server, now, id);
        serve_cancelled(&mut server, now, id + 1_000_000);
    }
    let served = allocation_counter::measure(|| (0..1000).for_each(|id| serve(&mut server, now, id + 20_000)));
    let cancelled =
        allocation_counter::measure(|| (0..1000).for_each(|id| serve_cancelled(&mut server, now, id + 30_000)));
    println!(
        "machine/{name}: allocations per request {:.3} in 3 steps; per cancelled request {:.3} in 4 steps",
        served.count_total as f64 / 1000.0,
        cancelled.count_total as f64 / 1000.0
    );
}

criterion_group!(benches, steps);
criterion_main!(benches);
