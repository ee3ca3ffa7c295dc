//! What the driver has a session say, and how it ends it.

use std::task::{Context, Poll, Waker};

use http::StatusCode;
use rescind_core::{
    ExchangeId, Fault, Finish, FrameKind, Outbound, TransportError, TransportErrorKind, TransportEvent,
};
use tokio::time::Instant;

use super::conversation::Conversation;
use super::exchanges::{Head, OWN, Verdict};
use crate::server::mailbox::Mailbox;

/// Bulk is taken while no more than this waits on streams that are read, in bytes.
pub(super) const HELD_FOR_BULK: usize = 32 * 1024;

impl Conversation {
    /// Whether bulk may be put in. If not, the driver is woken once it may.
    pub(super) fn has_room(&self, cx: &mut Context<'_>) -> bool {
        let mut state = self.state();
        if state.closed || state.held <= HELD_FOR_BULK {
            return true;
        }
        state.driver = Some(cx.waker().clone());
        false
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Cuts the streams whose readers took nothing since then, though there is something.
    pub(super) fn cut_stalled(&self, since: Instant) {
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
                    wakes.add(self.intake.tell_under_lock(closed));
                }
            }
            cut
        });
        for stream in cut.into_iter().filter(|stream| *stream != OWN) {
            tracing::debug!(stream, "an event stream that nobody reads was cut");
        }
    }

    pub(super) fn note_fault(&self, exchange: ExchangeId, fault: Fault) {
        if let Some(open) = self.state().exchanges.get_mut(&exchange.0) {
            open.fault = Some(fault);
        }
    }

    /// Takes a frame of the driver's.
    pub(super) fn send(&self, out: Outbound) -> Result<(), TransportError> {
        self.step(|state, wakes| {
            if state.closed {
                return Err(TransportError::new(TransportErrorKind::Closed, "the session has ended"));
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
            match (&open.head, out.last) {
                (Head::Undecided(_), true) => {
                    let status = open.status();
                    open.decide(Verdict::Json(status, out.body), wakes);
                    return Ok(());
                }
                (Head::Gone, true) => {
                    state.exchanges.remove(&stream);
                    return Ok(());
                }
                (Head::Undecided(_), false) => open.decide(Verdict::Stream, wakes),
                (Head::Decided(_) | Head::Stream | Head::Gone, _) => {}
            }
            let last = out.last;
            let done = state.put(stream, out, &self.settings, wakes);
            if last {
                state.end(stream, self.settings.mailbox.1, wakes);
            }
            done
        })
    }

    /// Ends an exchange without a frame.
    pub(super) fn finish(&self, exchange: ExchangeId, how: Finish) {
        self.step(|state, wakes| {
            let Some(open) = state.exchanges.get_mut(&exchange.0) else { return };
            match (&open.head, how) {
                (Head::Undecided(_), Finish::Accepted) => open.decide(Verdict::Accepted, wakes),
                (Head::Undecided(_), Finish::Refused) => {
                    let status = match open.status() {
                        StatusCode::OK => StatusCode::BAD_REQUEST,
                        status => status,
                    };
                    open.decide(Verdict::Refused(status), wakes);
                }
                // The legal silence is an event stream that ends.
                (Head::Undecided(_), Finish::Silent) => {
                    open.decide(Verdict::Stream, wakes);
                    state.end(exchange.0, self.settings.mailbox.1, wakes);
                }
                (Head::Gone, _) => {
                    state.exchanges.remove(&exchange.0);
                }
                (Head::Decided(_) | Head::Stream, _) => {
                    state.end(exchange.0, self.settings.mailbox.1, wakes);
                }
            }
        });
    }

    /// Ends every stream behind what waits, and refuses what is not decided. Done once all readers have left.
    pub(super) fn poll_close(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.forget();
        self.step(|state, wakes| {
            state.closed = true;
            wakes.add(state.own.end());
            for open in state.exchanges.values_mut() {
                open.decide(Verdict::Ended, wakes);
                wakes.add(open.mailbox.end());
            }
        });
        self.intake.end();
        let mut state = self.state();
        let read = |mailbox: &Mailbox| mailbox.has_reader() && mailbox.waiting().0 > 0;
        let busy = read(&state.own)
            || state.exchanges.values().any(|open| match open.head {
                Head::Decided(_) => true,
                Head::Stream => read(&open.mailbox),
                Head::Undecided(_) | Head::Gone => false,
            });
        if !busy {
            return Poll::Ready(());
        }
        state.driver = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ends everything now.
    pub(super) fn end(&self) {
        let _ = self.poll_close(&mut Context::from_waker(Waker::noop()));
    }
}
