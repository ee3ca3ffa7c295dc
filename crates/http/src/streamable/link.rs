//! A session as its link serves it: what the driver sends in it, and how it ends.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http::StatusCode;
use rescind_core::failpoint::{self, Failpoint};
use rescind_core::{
    ExchangeEnd, ExchangeId, FrameKind, Link, Outbound, PeerInfo, RejectReason, TransportError,
    TransportEvent,
};
use tokio::time::Instant;

use super::exchanges::OWN;
use super::session_state::SessionState;
use crate::inbound_queue::InboundQueue;
use crate::server::Settings;
use crate::server::idle::{Idles, IdlingReceiver};
use crate::server::json_or_event_stream::{Response, ResponseKind};
use crate::server::link::{Linked, ServerLink};
use crate::server::replay_buffer::ReplayBuffer;

/// Bulk is taken while no more than this waits on streams that are read, in bytes.
pub(super) const HELD_FOR_BULK: usize = 32 * 1024;

/// The link of a session.
pub(super) fn link(conversation: &Arc<SessionState>) -> Link {
    let mut peer = PeerInfo::default();
    peer.principal.clone_from(&conversation.principal);
    peer.address = conversation.address;
    let mut link = ServerLink::open(conversation, IdlingReceiver::new(conversation), peer);
    link.traits.ordered = failpoint::active(Failpoint::PostsCountAsOrdered);
    link.with_budget(conversation.budget.clone())
}

impl Linked for SessionState {
    const ENDED: &'static str = "the session has ended";

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn inbound_queue(&self) -> &Arc<InboundQueue> {
        &self.inbound_queue
    }

    fn has_room(&self, cx: &mut Context<'_>) -> bool {
        let mut state = self.state();
        if state.closed || state.held <= HELD_FOR_BULK {
            return true;
        }
        state.driver = Some(cx.waker().clone());
        false
    }

    fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Cuts the streams whose readers took nothing, though there is something.
    fn cut_stalled(&self, since: Instant) {
        let cut = self.step(|state, wakes| {
            let mut cut = Vec::new();
            if state.own.is_stalled(since) {
                cut.push(OWN);
            }
            let stalled = state.exchanges.iter().filter(|(_, open)| open.mailbox.is_stalled(since));
            cut.extend(stalled.map(|(stream, _)| *stream));
            for stream in &cut {
                let Some(held) = state.held_of(*stream) else { continue };
                if let Some(mailbox) = state.mailbox(*stream) {
                    wakes.add(mailbox.cut());
                }
                state.update_held(*stream, held);
                if *stream != OWN {
                    let closed = TransportEvent::ExchangeClosed { exchange: ExchangeId(*stream) };
                    wakes.add(self.inbound_queue.push_event_under_lock(closed));
                }
            }
            cut
        });
        for stream in cut.into_iter().filter(|stream| *stream != OWN) {
            tracing::debug!(stream, "an event stream that nobody reads was cut");
        }
    }

    fn note_rejection(&self, exchange: ExchangeId, fault: RejectReason) {
        if let Some(open) = self.state().exchanges.get_mut(&exchange.0) {
            open.fault = Some(fault);
        }
    }

    fn send(&self, mut out: Outbound) -> Result<(), TransportError> {
        // Until its last byte is written, or the client has let it go.
        out.body = self.budget.hold_frame(out.body);
        self.step(|state, wakes| {
            if state.closed {
                return Err(Self::ended());
            }
            let stream = state.stream_for(&out);
            let Some(open) = state.exchanges.get_mut(&stream) else {
                // What answers an exchange that is over has nowhere to go.
                return if out.head.kind == FrameKind::Answer {
                    Ok(())
                } else {
                    state.put(OWN, out, &self.settings, wakes)
                };
            };
            match (&open.response, out.last) {
                (Response::Undecided(_), true) => {
                    let status = open.status();
                    wakes.add(open.response.decide(ResponseKind::Json(status, out.body)));
                    return Ok(());
                }
                (Response::Gone, true) => {
                    state.exchanges.remove(&stream);
                    return Ok(());
                }
                (Response::Undecided(_), false) => wakes.add(open.response.decide(ResponseKind::EventStream)),
                (Response::Decided(_) | Response::Sent | Response::Gone, _) => {}
            }
            let last = out.last;
            let done = state.put(stream, out, &self.settings, wakes);
            if last {
                state.end(stream, self.settings.mailbox.1, wakes);
            }
            done
        })
    }

    fn finish(&self, exchange: ExchangeId, how: ExchangeEnd) {
        self.step(|state, wakes| {
            let Some(open) = state.exchanges.get_mut(&exchange.0) else { return };
            match (&open.response, how) {
                (Response::Undecided(_), ExchangeEnd::Accepted) => {
                    wakes.add(open.response.decide(ResponseKind::Accepted));
                }
                (Response::Undecided(_), ExchangeEnd::Refused) => {
                    let status = match open.status() {
                        StatusCode::OK => StatusCode::BAD_REQUEST,
                        status => status,
                    };
                    wakes.add(open.response.decide(ResponseKind::Refused(status)));
                }
                // The legal silence is an event stream that ends.
                (Response::Undecided(_), ExchangeEnd::Silent) => {
                    wakes.add(open.response.decide(ResponseKind::EventStream));
                    state.end(exchange.0, self.settings.mailbox.1, wakes);
                }
                (Response::Gone, _) => {
                    state.exchanges.remove(&exchange.0);
                }
                (Response::Decided(_) | Response::Sent, _) => {
                    state.end(exchange.0, self.settings.mailbox.1, wakes);
                }
            }
        });
    }

    /// Ends every stream behind what waits, and refuses what is not decided. Done once all readers have left.
    fn poll_close(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.forget();
        self.step(|state, wakes| {
            state.closed = true;
            wakes.add(state.own.end());
            for open in state.exchanges.values_mut() {
                wakes.add(open.response.decide(ResponseKind::Ended));
                wakes.add(open.mailbox.end());
            }
        });
        self.inbound_queue.end();
        let mut state = self.state();
        let read = |mailbox: &ReplayBuffer| mailbox.has_reader() && mailbox.waiting().0 > 0;
        let busy = read(&state.own)
            || state.exchanges.values().any(|open| match open.response {
                Response::Decided(_) => true,
                Response::Sent => read(&open.mailbox),
                Response::Undecided(_) | Response::Gone => false,
            });
        if !busy {
            return Poll::Ready(());
        }
        state.driver = Some(cx.waker().clone());
        Poll::Pending
    }

    fn end(&self) {
        let _ = self.poll_close(&mut Context::from_waker(Waker::noop()));
    }
}

impl Idles for SessionState {
    /// A request whose client has gone is no use: it would keep the session of a client that never comes back.
    fn idle_at(&self) -> Option<Instant> {
        let state = self.state();
        let in_use = state.own.has_reader() || state.exchanges.values().any(|open| open.mailbox.has_reader());
        (!in_use).then(|| state.used + self.settings.session_idle)
    }
}
