//! The link of a connection: how it sends the driver's frames, and how it ends.

use std::sync::Arc;
use std::task::Context;

use http::StatusCode;
use rescind_core::{
    ExchangeEnd, ExchangeId, FrameKind, Link, Outbound, PeerInfo, TransportError, TransportErrorKind,
};
use tokio::time::Instant;

use super::connection::{Connection, OPENING, OWN, closed};
use crate::inbound_queue::InboundQueue;
use crate::server::Settings;
use crate::server::json_or_event_stream::ResponseKind;
use crate::server::replay_buffer::ReplayBuffer;
use crate::server::sessions::{IdleSession, IdlingReceiver};
use crate::server::sessions::{Linked, ServerLink};

/// The most bytes that wait on all streams together. Above it the connection ends.
const MOST: usize = 64 * 1024 * 1024;

/// The link of a connection.
pub(super) fn link(connection: &Arc<Connection>) -> Link {
    let mut peer = PeerInfo::default();
    peer.principal.clone_from(&connection.principal);
    peer.address = connection.address;
    let link = ServerLink::open(connection, IdlingReceiver::new(connection), peer);
    link.with_budget(connection.budget.clone())
}

impl Linked for Connection {
    const ENDED: &'static str = "the connection has ended";

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn inbound_queue(&self) -> &Arc<InboundQueue> {
        &self.inbound_queue
    }

    fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Whether every stream that has a reader has room (A3).
    fn has_room(&self, cx: &mut Context<'_>) -> bool {
        let mut state = self.state();
        let most = self.settings.unread_limit;
        let has_room = !state.lanes.all().any(|buffer| is_full(buffer, most));
        if !has_room {
            state.driver = Some(cx.waker().clone());
        }
        has_room
    }

    /// Cuts the streams that hold data frames back and whose readers have taken nothing since then.
    fn cut_stalled(&self, since: Instant) {
        let most = self.settings.unread_limit;
        self.step(|state, wakes| {
            let is_cut = |buffer: &ReplayBuffer| is_full(buffer, most) && buffer.is_stalled(since);
            for lane in state.lanes.which(is_cut) {
                tracing::debug!(lane, "an event stream was cut, because its client does not read it");
                wakes.add(state.lanes.step(lane, ReplayBuffer::cut).flatten());
                wakes.add(self.inbound_queue.push_event_under_lock(closed(lane)));
            }
        });
    }

    /// Sends a frame on its stream (A2).
    fn send(&self, mut out: Outbound) -> Result<(), TransportError> {
        // The bytes count until the last one is written, or until the client leaves the stream.
        out.body = self.budget.hold_frame(out.body);
        self.step(|state, wakes| {
            if state.closed {
                return Err(Self::ended());
            }
            if out.exchange == OPENING && out.last {
                wakes.add(state.opening.decide(ResponseKind::Json(StatusCode::OK, out.body)));
                return Ok(());
            }
            let lane = state.lane_of(&out, self.bodies);
            if out.head.kind == FrameKind::Answer && lane == OWN {
                state.learn(&out.body, self.bodies);
            }
            let droppable = out.head.kind == FrameKind::Notification;
            let pushed = state.lanes.step(lane, |buffer| {
                let waker = buffer.push(out.body, droppable);
                let (messages, bytes) = self.settings.unread_limit;
                while buffer.waiting().0 > messages || buffer.waiting().1 > bytes {
                    if buffer.has_reader() || !buffer.drop_oldest() {
                        break;
                    }
                    self.settings.counts.notification_dropped();
                }
                waker
            });
            wakes.add(pushed.flatten());
            let waiting: usize = state.lanes.all().map(|buffer| buffer.waiting().1).sum();
            if waiting > MOST {
                let text = "the client reads none of what waits for it";
                return Err(TransportError::new(TransportErrorKind::Closed, text));
            }
            Ok(())
        })
    }

    fn finish(&self, exchange: ExchangeId, _: ExchangeEnd) {
        if exchange == OPENING {
            let refused = ResponseKind::Refused(StatusCode::BAD_REQUEST);
            self.step(|state, wakes| wakes.add(state.opening.decide(refused)));
        }
    }

    /// Nothing more is taken in. Streams end after their waiting messages. The id is unknown from now on, so no stream
    /// can be resumed and nothing is kept.
    fn end(&self) {
        self.forget();
        self.step(|state, wakes| {
            state.closed = true;
            wakes.add(state.driver.take());
            wakes.add(state.opening.decide(ResponseKind::Ended));
            state.lanes.forget_kept();
            for lane in state.lanes.which(|_| true) {
                wakes.add(state.lanes.step(lane, ReplayBuffer::end).flatten());
            }
        });
        self.inbound_queue.end();
    }
}

impl IdleSession for Connection {
    fn idle_at(&self) -> Option<Instant> {
        let state = self.state();
        let busy = state.lanes.all().any(ReplayBuffer::has_reader) || state.opening.is_undecided();
        (!busy).then(|| state.used + self.settings.session_idle)
    }

    fn idled(&self) {
        self.end();
    }
}

/// Whether a stream that has a reader holds more waiting messages or bytes than its limit.
fn is_full(buffer: &ReplayBuffer, (messages, bytes): (usize, usize)) -> bool {
    let waiting = buffer.waiting();
    buffer.has_reader() && (waiting.0 > messages || waiting.1 > bytes)
}
