//! A link that reports to the judge what is passed to it and what arrives.

use std::pin::Pin;
use std::task::{Context, Poll};

use rescind_core::{
    CloseReason, ExchangeEnd, ExchangeId, Lane, Link, Outbound, Receiver, RejectReason, Sender,
    TransportError, TransportEvent, Unsupported,
};

use super::judge::Judge;
use super::sides::Side;

/// The same link, with a judge that observes it.
pub(super) fn tap(mut link: Link, side: Side, judge: &Judge) -> Link {
    link.rx = Box::pin(TapReceiver { inner: link.rx, side, judge: judge.clone() });
    link.tx = Box::pin(TapSender { inner: link.tx, side, judge: judge.clone() });
    link
}

struct TapReceiver {
    inner: Pin<Box<dyn Receiver>>,
    side: Side,
    judge: Judge,
}

impl Receiver for TapReceiver {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        let event = self.inner.as_mut().poll_event(cx);
        let side = self.side;
        match &event {
            Poll::Ready(Some(Ok(TransportEvent::Message(inbound)))) => {
                self.judge.receives(side, &inbound.body, inbound.exchange);
            }
            Poll::Ready(Some(Ok(TransportEvent::Rejected { why, .. }))) => {
                let lost = self.judge.state().is_going();
                self.judge.note(|| format!("{side} reads a frame it cannot: {why}"));
                if !lost {
                    self.judge.breaks("I12", || format!("{side} reads a frame it cannot: {why}"));
                }
            }
            Poll::Ready(Some(Ok(TransportEvent::ExchangeClosed { exchange }))) => {
                self.judge.note(|| format!("{side} hears {event:?}"));
                self.judge.closes(side, *exchange);
            }
            Poll::Ready(Some(Ok(event))) => self.judge.note(|| format!("{side} hears {event:?}")),
            Poll::Ready(Some(Err(error))) => self.judge.is_gone(side, &format!("{side} hears {error}")),
            Poll::Ready(None) => self.judge.is_gone(side, &format!("{side} hears the end")),
            Poll::Pending => {}
        }
        event
    }
}

struct TapSender {
    inner: Pin<Box<dyn Sender>>,
    side: Side,
    judge: Judge,
}

impl Sender for TapSender {
    fn poll_ready(
        mut self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.inner.as_mut().poll_ready(lane, cx)
    }

    fn start_send(mut self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        let body = out.body.clone();
        // Before the send, because a transport within this process could deliver it at once.
        self.judge.sends(self.side, &body);
        let sent = self.inner.as_mut().start_send(out);
        if sent.is_err() {
            self.judge.not_sent(self.side, &body);
        }
        sent
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        self.inner.as_mut().poll_flush(cx)
    }

    fn begin_exchange(mut self: Pin<&mut Self>, exchange: ExchangeId) {
        self.inner.as_mut().begin_exchange(exchange);
    }

    fn note_rejection(mut self: Pin<&mut Self>, exchange: ExchangeId, fault: RejectReason) {
        self.inner.as_mut().note_rejection(exchange, fault);
    }

    fn finish_exchange(mut self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
        self.inner.as_mut().finish_exchange(exchange, how);
    }

    fn abort_exchange(mut self: Pin<&mut Self>, exchange: ExchangeId) -> Result<(), Unsupported> {
        self.inner.as_mut().abort_exchange(exchange)
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        why: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.inner.as_mut().poll_close(why, cx)
    }
}
