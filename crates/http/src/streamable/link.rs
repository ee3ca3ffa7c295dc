//! The link of a session: how it sends the driver's frames, and how it ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use http::StatusCode;
use rescind_core::failpoint::{self, Failpoint};
use rescind_core::{
    ExchangeEnd, ExchangeId, FrameKind, Link, Outbound, PeerInfo, RejectReason, TransportError,
    TransportErrorKind,
};
use tokio::time::Instant;

use super::session_state::{OPENING, Serves, SessionState};
use crate::inbound_queue::InboundQueue;
use crate::server::Settings;
use crate::server::exchange_table::{ExchangeRules, ExchangeTable, OWN, Unrelated};
use crate::server::json_or_event_stream::Response;
use crate::server::replay_buffer::ReplayBuffer;
use crate::server::sessions::{IdleSession, IdlingReceiver};
use crate::server::sessions::{Linked, ServerLink};

/// The most open exchanges, including detached ones.
const EXCHANGES: usize = 4096;
/// Data frames are accepted while at most this number of bytes waits on streams that have a reader.
const HELD_FOR_BULK: usize = 32 * 1024;

/// A POST that may legally get no answer gets an event stream that ends.
pub(super) static RULES: ExchangeRules = ExchangeRules {
    most: EXCHANGES,
    room: HELD_FOR_BULK,
    resumable: true,
    silence_is_a_stream: true,
    status,
};

/// The link of a session.
pub(super) fn link(session: &Arc<SessionState>) -> Link {
    let mut peer = PeerInfo::default();
    peer.principal.clone_from(&session.principal);
    peer.address = session.address;
    let mut link = ServerLink::open(session, IdlingReceiver::new(session), peer);
    link.traits.ordered = failpoint::active(Failpoint::PostsCountAsOrdered);
    link.with_budget(session.budget.clone())
}

impl Linked for SessionState {
    const ENDED: &'static str = "the session has ended";

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn inbound_queue(&self) -> &Arc<InboundQueue> {
        &self.inbound_queue
    }

    fn is_closed(&self) -> bool {
        self.exchanges.lock().closed
    }

    fn has_room(&self, cx: &mut Context<'_>) -> bool {
        self.exchanges.lock().has_room(cx)
    }

    /// Cuts the streams whose readers have taken nothing although messages wait for them.
    fn cut_stalled(&self, since: Instant) {
        self.exchanges.step(|table, wakes| {
            let mut stalled: Vec<u64> = table
                .open
                .iter()
                .filter(|(_, open)| open.buffer.is_stalled(since))
                .map(|(n, _)| *n)
                .collect();
            stalled.extend(table.own.as_ref().filter(|own| own.is_stalled(since)).map(|_| OWN));
            for stream in stalled {
                tracing::debug!(stream, "an event stream was cut, because its client does not read it");
                let closed = table.cut(stream, &self.settings, wakes);
                self.report_closed(closed, wakes);
            }
        });
    }

    fn note_waiting(&self, exchange: ExchangeId) {
        self.exchanges.step(|table, wakes| table.note_waiting(exchange, &self.settings, wakes));
    }

    fn note_rejection(&self, exchange: ExchangeId, reason: RejectReason) {
        self.exchanges.lock().note_rejection(exchange, reason);
    }

    /// A request or cancel whose exchange has lost its client belongs to no running request any more, and neither does a
    /// frame without an exchange.
    fn send(&self, mut out: Outbound) -> Result<(), TransportError> {
        if self.serves == Serves::OneRequest && out.head.kind == FrameKind::Request {
            return Err(unanswerable(out.exchange));
        }
        if out.last {
            if out.exchange == OPENING && out.head.kind == FrameKind::Answer {
                self.note_revision(&out.body);
            }
            self.completed(out.exchange);
        }
        // The bytes count until the last one is written, or until the client leaves the stream.
        out.body = self.budget.hold_frame(out.body);
        self.exchanges.step(|table, wakes| {
            if table.closed {
                return Err(Self::ended());
            }
            let open = table.open.get(&table.stream_of(out.exchange));
            let is_related = match (out.head.kind, open) {
                // The answer to an exchange that is over cannot be sent.
                (FrameKind::Answer, None) => return Ok(()),
                (FrameKind::Answer | FrameKind::Notification, Some(_)) => true,
                (FrameKind::Request | FrameKind::Cancel, Some(open)) => match open.response {
                    Response::Gone => false,
                    Response::Undecided(_) | Response::Decided(_) | Response::Sent => true,
                },
                (FrameKind::Request | FrameKind::Cancel | FrameKind::Notification, None) => false,
            };
            if is_related {
                return table.send(out.exchange.0, out, &self.settings, wakes);
            }
            match table.send_unrelated(out, &self.settings, wakes)? {
                Unrelated::Sent => {}
                Unrelated::Waits => {
                    // The driver polls the receiver again, which has the timer.
                    self.has_parked.store(true, Ordering::Relaxed);
                    wakes.add(self.inbound_queue.take_reader());
                }
            }
            Ok(())
        })
    }

    fn finish(&self, exchange: ExchangeId, how: ExchangeEnd) {
        self.completed(exchange);
        self.exchanges.step(|table, wakes| table.finish(exchange, how, &self.settings, wakes));
    }

    /// Ends every stream after its waiting messages, and refuses the undecided responses. Completes when the decided
    /// responses are taken and no reader has messages left to read.
    fn poll_close(&self, cx: &mut Context<'_>) -> Poll<()> {
        // Once: a step on a closed table wakes the driver, which is the caller.
        if !self.is_closed() {
            self.forget();
            self.exchanges.step(ExchangeTable::close);
            self.inbound_queue.end();
        }
        let mut table = self.exchanges.lock();
        let is_read = |buffer: &ReplayBuffer| buffer.has_reader() && buffer.waiting().0 > 0;
        let busy = table.own.as_ref().is_some_and(is_read)
            || table.open.values().any(|open| match open.response {
                Response::Decided(_) => true,
                Response::Sent => is_read(&open.buffer),
                Response::Undecided(_) | Response::Gone => false,
            });
        if !busy {
            return Poll::Ready(());
        }
        table.driver = Some(cx.waker().clone());
        Poll::Pending
    }

    fn end(&self) {
        let _ = self.poll_close(&mut Context::from_waker(Waker::noop()));
    }
}

impl IdleSession for SessionState {
    /// A request whose client has disconnected does not keep the session open: that client may never return.
    fn idle_at(&self) -> Option<Instant> {
        let table = self.exchanges.lock();
        let in_use = table.own.as_ref().is_some_and(ReplayBuffer::has_reader)
            || table.open.values().any(|open| open.buffer.has_reader());
        drop(table);
        (!in_use).then(|| self.used_at() + self.settings.session_idle)
    }

    fn parked_until(&self) -> Option<Instant> {
        if !self.has_parked.load(Ordering::Relaxed) {
            return None;
        }
        let table = self.exchanges.lock();
        let until = table.parked_until(self.settings.stream_wait);
        // Only the driver adds such messages, and it is the caller.
        self.has_parked.store(until.is_some(), Ordering::Relaxed);
        until
    }

    fn expire_parked(&self) {
        self.exchanges.step(|table, wakes| {
            for failure in table.expire_parked(Instant::now(), &self.settings) {
                wakes.add(self.inbound_queue.push_event_under_lock(failure));
            }
        });
    }
}

/// A request of this side whose answer could not come back: the client's next POST may reach another process.
fn unanswerable(exchange: ExchangeId) -> TransportError {
    let text = "a server without sessions cannot send requests to its clients: no answer could reach it";
    TransportError { exchange: Some(exchange), ..TransportError::new(TransportErrorKind::Closed, text) }
}

/// The HTTP status of an answer. An answer with an id always gets 200.
fn status(reason: Option<RejectReason>, _: &[u8]) -> StatusCode {
    match reason {
        Some(RejectReason::BadMessage) => StatusCode::BAD_REQUEST,
        Some(RejectReason::DuplicateId) => StatusCode::CONFLICT,
        Some(_) | None => StatusCode::OK,
    }
}
