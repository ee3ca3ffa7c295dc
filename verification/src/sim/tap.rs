//! A link that reports to the judge what is passed to it and what arrives.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use rescind_core::{
    CloseReason, ExchangeEnd, ExchangeId, Lane, Link, Outbound, Receiver, RejectReason, Sender,
    TransportError, TransportEvent, Unsupported,
};

use super::judge::Judge;
use super::sides::Side;
use super::tally::SimEvent;

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
        let mut event = self.inner.as_mut().poll_event(cx);
        let side = self.side;
        match &mut event {
            Poll::Ready(Some(Ok(TransportEvent::Message(inbound)))) => {
                self.judge.receives(side, &inbound.body, inbound.exchange);
                if let Some(respelled) = respelled(&inbound.body) {
                    self.judge.note(|| format!("{side} reads that in another form"));
                    self.judge.saw(SimEvent::Respelled);
                    inbound.body = respelled;
                }
            }
            Poll::Ready(Some(Ok(TransportEvent::Rejected { why, .. }))) => {
                let lost = self.judge.state().is_going();
                self.judge.note(|| format!("{side} reads a frame it cannot: {why}"));
                if !lost {
                    self.judge.breaks("I12", || format!("{side} reads a frame it cannot: {why}"));
                }
            }
            Poll::Ready(Some(Ok(TransportEvent::ExchangeClosed { exchange }))) => {
                self.judge.note(|| format!("{side} hears the end of {exchange:?}"));
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

/// Some answers in another form with the same meaning, as peers of other libraries write them. Which one it is depends on the
/// id, so a seed always gives the same.
fn respelled(body: &[u8]) -> Option<Bytes> {
    let text = std::str::from_utf8(body).ok()?;
    if let Some(rest) = text.strip_prefix("{\"jsonrpc\":\"2.0\",\"id\":") {
        let (id, rest) = rest.split_once(',')?;
        let number: u64 =
            id.parse().ok().filter(|_| rest.starts_with("\"result\"") || rest.starts_with("\"error\""))?;
        return match number % 6 {
            0 => Some(format!("{{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",{rest}")),
            1 => Some(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id}.0,{rest}")),
            2 => Some(format!("{{\"id\":{id},{rest}")),
            3 => Some(format!("[{text}]")),
            _ => None,
        }
        .map(Bytes::from);
    }
    // ABP: its ids are texts.
    let (kind, rest) = text.strip_prefix("{\"type\":")?.split_once(",\"id\":\"")?;
    let (id, rest) = rest.split_once('"')?;
    let is_answer = kind.ends_with("-result\"") && !kind.contains("cancel");
    let number: u64 = id.parse().ok().filter(|_| is_answer)?;
    (number % 3 == 0).then(|| Bytes::from(format!("{{\"type\":{kind},\"id\":{id}{rest}")))
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
