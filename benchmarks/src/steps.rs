//! One step of the machine: receive a request, settle it, receive a cancel. No I/O, no task, no clock read.
//!
//! Each step is a separate function, so that callgrind can count the instructions in it.

use std::hint::black_box;
use std::time::Instant;

use rescind_core::dialect::{Dialect, Role};
use rescind_core::{
    AnswerKind, CallNumber, CallSpec, HandlerResult, InboundKey, InboundRequest, Origin, RequestId, Session,
    SessionConfig,
};

fn arrival(id: i64) -> InboundRequest<'static> {
    InboundRequest::new(RequestId::number(id), "test/echo")
}

/// The session of a server.
#[must_use]
pub fn session(dialect: &Dialect) -> Session {
    Session::new(SessionConfig::new(dialect.clone(), Role::Server))
}

fn drain(session: &mut Session) {
    while let Some(output) = session.poll_output() {
        black_box(output);
    }
}

/// A request arrives.
#[inline(never)]
pub fn receive_request(session: &mut Session, now: Instant, id: i64) -> Option<InboundKey> {
    let key = session.recv_request(now, arrival(id));
    drain(session);
    key
}

/// A cancel of this request arrives.
#[inline(never)]
pub fn receive_cancel(session: &mut Session, now: Instant, id: i64) {
    session.recv_cancel(now, Some(RequestId::number(id)), None, None, &Origin::STREAM);
    drain(session);
}

/// Its handler answers and ends: two inputs.
#[inline(never)]
pub fn settle(session: &mut Session, now: Instant, key: InboundKey, end: HandlerResult) {
    session.local_answer(now, key, end);
    session.local_ended(now, key);
    drain(session);
}

/// A request, its answer and its end: three steps.
pub fn serve(session: &mut Session, now: Instant, id: i64) {
    if let Some(key) = receive_request(session, now, id) {
        settle(session, now, key, HandlerResult::Value);
    }
}

/// A request, its cancel, the handler's end: four steps.
pub fn serve_cancelled(session: &mut Session, now: Instant, id: i64) {
    if let Some(key) = receive_request(session, now, id) {
        receive_cancel(session, now, id);
        settle(session, now, key, HandlerResult::Stopped);
    }
}

/// A call, written and answered: three steps.
pub fn call(session: &mut Session, now: Instant) {
    if let Ok((key, CallNumber(number))) = session.local_call(now, &CallSpec::new("test/echo")) {
        session.local_written(now, key);
        session.recv_answer(now, Some(CallNumber(number)), AnswerKind::Value);
    }
    drain(session);
}

/// A cancel of an unknown request: one step.
pub fn unknown_cancel(session: &mut Session, now: Instant) {
    receive_cancel(session, now, 1);
}

/// The rounds whose allocations are counted.
#[cfg(feature = "count")]
const ROUNDS: u32 = 1000;

/// A session whose tables have reached their size.
#[cfg(feature = "count")]
fn warm(dialect: &Dialect, now: Instant) -> Session {
    let mut server = session(dialect);
    for id in 0..10_000 {
        serve(&mut server, now, id);
        serve_cancelled(&mut server, now, id + 1_000_000);
    }
    server
}

/// The exact allocations of a request in three steps, and of a cancelled one in four.
#[cfg(feature = "count")]
#[must_use]
pub fn allocations(dialect: &Dialect) -> [f64; 2] {
    let now = Instant::now();
    let mut server = warm(dialect, now);
    let ids = 20_000..20_000 + i64::from(ROUNDS);
    let served = allocation_counter::measure(|| ids.clone().for_each(|id| serve(&mut server, now, id)));
    let ids = 30_000..30_000 + i64::from(ROUNDS);
    let cancelled =
        allocation_counter::measure(|| ids.clone().for_each(|id| serve_cancelled(&mut server, now, id)));
    let each = |count: u64, steps: u32| count as f64 / f64::from(ROUNDS * steps);
    [each(served.count_total, 3), each(cancelled.count_total, 4)]
}

/// Allocations of a thousand steps of each kind: a request arrives, its handler answers and ends, a cancel arrives.
#[cfg(feature = "count")]
#[must_use]
pub fn allocations_of_each(dialect: &Dialect) -> [u64; 3] {
    let now = Instant::now();
    let mut server = warm(dialect, now);
    let mut counts = [0; 3];
    let count = |step: &mut dyn FnMut()| allocation_counter::measure(step).count_total;
    for id in (20_000..).take(ROUNDS as usize) {
        for cancelled in [false, true] {
            let (id, mut key) = (id + if cancelled { 10_000 } else { 0 }, None);
            let came = count(&mut || key = receive_request(&mut server, now, id));
            let Some(key) = key else { continue };
            let cancel = if cancelled { count(&mut || receive_cancel(&mut server, now, id)) } else { 0 };
            let end = if cancelled { HandlerResult::Stopped } else { HandlerResult::Value };
            let settled = count(&mut || settle(&mut server, now, key, end));
            // For a cancelled request only its cancel is counted.
            let of = if cancelled { [0, 0, cancel] } else { [came, settled, 0] };
            counts.iter_mut().zip(of).for_each(|(count, more)| *count += more);
        }
    }
    counts
}
