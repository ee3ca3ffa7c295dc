//! The server's end of a connection that exists only after something was sent on it, such as a session over HTTP.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use rescind_core::{
    Capabilities, CloseReason, ExchangeEnd, ExchangeId, Lane, Link, Listener, Outbound, PeerInfo, Receiver,
    RejectReason, Sender, TransportError, TransportErrorKind, TransportEvent, Unsupported,
};

/// The first link that this listener accepts. The listener is kept with it.
pub(super) fn late(listener: Pin<Box<dyn Listener>>, traits: Capabilities) -> Link {
    let both = Late(Arc::new(Mutex::new(State { listener, link: None, sender: None })));
    Link::new(both.clone(), both, traits, PeerInfo::default())
}

#[derive(Clone)]
struct Late(Arc<Mutex<State>>);

struct State {
    listener: Pin<Box<dyn Listener>>,
    link: Option<Link>,
    /// The waker of the sender, which waits for the link.
    sender: Option<Waker>,
}

fn closed() -> TransportError {
    TransportError::new(TransportErrorKind::Closed, "there is no connection yet")
}

impl Late {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn poll_link(&mut self, cx: &mut Context<'_>) -> Poll<Option<&mut Link>> {
        if self.link.is_none() {
            self.link = match ready!(self.listener.as_mut().poll_accept(cx)) {
                Some(Ok(link)) => Some(link),
                Some(Err(_)) | None => return Poll::Ready(None),
            };
            if let Some(waker) = self.sender.take() {
                waker.wake();
            }
        }
        Poll::Ready(self.link.as_mut())
    }
}

impl Receiver for Late {
    fn poll_event(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        match ready!(self.state().poll_link(cx)) {
            Some(link) => link.rx.as_mut().poll_event(cx),
            None => Poll::Ready(None),
        }
    }
}

impl Sender for Late {
    fn poll_ready(
        self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let mut state = self.state();
        if let Some(link) = &mut state.link {
            return link.tx.as_mut().poll_ready(lane, cx);
        }
        state.sender = Some(cx.waker().clone());
        let found = state.poll_link(cx);
        match ready!(found) {
            Some(link) => link.tx.as_mut().poll_ready(lane, cx),
            None => Poll::Ready(Err(closed())),
        }
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        self.state().link.as_mut().ok_or_else(closed)?.tx.as_mut().start_send(out)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        match &mut self.state().link {
            Some(link) => link.tx.as_mut().poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
        if let Some(link) = &mut self.state().link {
            link.tx.as_mut().finish_exchange(exchange, how);
        }
    }

    fn begin_exchange(self: Pin<&mut Self>, exchange: ExchangeId) {
        if let Some(link) = &mut self.state().link {
            link.tx.as_mut().begin_exchange(exchange);
        }
    }

    fn note_waiting(self: Pin<&mut Self>, exchange: ExchangeId) {
        if let Some(link) = &mut self.state().link {
            link.tx.as_mut().note_waiting(exchange);
        }
    }

    fn note_rejection(self: Pin<&mut Self>, exchange: ExchangeId, fault: RejectReason) {
        if let Some(link) = &mut self.state().link {
            link.tx.as_mut().note_rejection(exchange, fault);
        }
    }

    fn abort_exchange(self: Pin<&mut Self>, exchange: ExchangeId) -> Result<(), Unsupported> {
        self.state().link.as_mut().ok_or(Unsupported)?.tx.as_mut().abort_exchange(exchange)
    }

    fn poll_close(
        self: Pin<&mut Self>,
        why: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        match &mut self.state().link {
            Some(link) => link.tx.as_mut().poll_close(why, cx),
            None => Poll::Ready(Ok(())),
        }
    }
}
