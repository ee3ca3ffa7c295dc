//! One step of the machine: receive a request, settle it, receive a cancel. No I/O, no task, no clock read.

use std::hint::black_box;
use std::time::Instant;

use rescind_core::dialect::{Dialect, Role};
use rescind_core::{
    AnswerKind, Arrival, CallNumber, CallSpec, CancelKey, Exempt, HandlerEnd, Origin, RequestId, Session,
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

/// A server's or a client's session.
#[must_use]
pub fn session(dialect: &Dialect) -> Session {
    Session::new(SessionConfig::new(dialect.clone(), Role::Server))
}

fn drain(session: &mut Session) {
    while let Some(output) = session.poll_output() {
        black_box(output);
    }
}

/// A request, its answer and its end: three steps.
pub fn serve(session: &mut Session, now: Instant, id: i64) {
    if let Some(key) = session.recv_request(now, arrival(id)) {
        session.local_answer(now, key, HandlerEnd::Value);
        session.local_ended(now, key);
    }
    drain(session);
}

/// A request, its cancel, the handler's end: four steps.
pub fn serve_cancelled(session: &mut Session, now: Instant, id: i64) {
    if let Some(key) = session.recv_request(now, arrival(id)) {
        session.recv_cancel(now, Some(RequestId::number(id)), None, None, &Origin::STREAM);
        session.local_answer(now, key, HandlerEnd::Stopped);
        session.local_ended(now, key);
    }
    drain(session);
}

/// A call, written and answered: three steps.
pub fn call(session: &mut Session, now: Instant) {
    if let Ok((key, CallNumber(number))) = session.local_call(now, &CallSpec::new("test/echo")) {
        session.local_written(now, key);
        session.recv_answer(now, Some(CallNumber(number)), AnswerKind::Value);
    }
    drain(session);
}

/// A cancel of what is unknown: one step.
pub fn unknown_cancel(session: &mut Session, now: Instant) {
    session.recv_cancel(now, Some(RequestId::number(1)), None, None, &Origin::STREAM);
    drain(session);
}

/// Allocations of a step, exactly: of a request in three steps, and of a cancelled one in four.
#[must_use]
pub fn allocations(dialect: &Dialect) -> [f64; 2] {
    let now = Instant::now();
    let mut server = session(dialect);
    for id in 0..10_000 {
        serve(&mut server, now, id);
        serve_cancelled(&mut server, now, id + 1_000_000);
    }
    let served =
        allocation_counter::measure(|| (0..1000).for_each(|id| serve(&mut server, now, id + 20_000)));
    let cancelled = allocation_counter::measure(|| {
        (0..1000).for_each(|id| serve_cancelled(&mut server, now, id + 30_000))
    });
    [served.count_total as f64 / 3000.0, cancelled.count_total as f64 / 4000.0]
}
