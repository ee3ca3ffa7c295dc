//! The first messages of a connection on which several dialects are offered.

use std::task::{Context, Poll, ready};

use bytes::Bytes;

use crate::dialect::{Dialect, Negotiation, negotiate};
use crate::error::{ConnectionError, ProtocolViolation};
use crate::id::ExchangeId;
use crate::transport::{
    ExchangeEnd, FrameInfo, FrameKind, Inbound, Lane, Link, Outbound, RejectReason, TransportError,
    TransportErrorKind, TransportEvent,
};

/// The most messages that no dialect recognises. Then the connection ends.
const MAX_ATTEMPTS: usize = 16;

/// Reads until a message decides the dialect.
pub(crate) struct PendingNegotiation {
    offered: Negotiation,
    attempts: usize,
    /// A refusal that waits for the transport.
    refusal: Option<Outbound>,
}

impl PendingNegotiation {
    pub(crate) fn new(offered: &[Dialect]) -> Self {
        Self { offered: negotiate(offered.iter().cloned()), attempts: 0, refusal: None }
    }

    pub(crate) fn poll(
        &mut self,
        link: &mut Link,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(Dialect, Inbound), ConnectionError>> {
        loop {
            if self.refusal.is_some() {
                ready!(link.tx.as_mut().poll_ready(Lane::Control, cx))?;
                if let Some(refusal) = self.refusal.take() {
                    link.tx.as_mut().note_rejection(refusal.exchange, RejectReason::BadMessage);
                    link.tx.as_mut().start_send(refusal)?;
                }
            }
            // Bytes that are not flushed now are flushed with the next frame, or when the transport is polled.
            let _ = link.tx.as_mut().poll_flush(cx)?;
            if self.attempts >= MAX_ATTEMPTS {
                return Poll::Ready(Err(ProtocolViolation::UnknownDialect.into()));
            }
            let event = ready!(link.rx.as_mut().poll_event(cx));
            match event {
                Some(Ok(TransportEvent::Message(inbound))) => {
                    let known = self.offered.recognise(&inbound.body).cloned();
                    match known {
                        Ok(dialect) => return Poll::Ready(Ok((dialect, inbound))),
                        Err(why) => {
                            self.attempts += 1;
                            let mut out = Vec::new();
                            if self.offered.refuse(&mut out, &inbound.body, why) {
                                self.refuse(out, inbound.exchange);
                            } else {
                                finish(link, inbound.exchange);
                            }
                        }
                    }
                }
                Some(Ok(TransportEvent::Rejected { exchange, .. })) => {
                    self.attempts += 1;
                    finish(link, exchange);
                }
                Some(Ok(
                    TransportEvent::Deviation { .. }
                    | TransportEvent::ExchangeClosed { .. }
                    | TransportEvent::ExchangeResumed { .. }
                    | TransportEvent::ExchangeFailed { .. },
                )) => {}
                Some(Ok(TransportEvent::HalfClosed)) | None => {
                    let what = "the connection ended before its first message";
                    let error = TransportError::new(TransportErrorKind::Closed, what);
                    return Poll::Ready(Err(error.into()));
                }
                Some(Err(error)) if error.exchange.is_some() => {}
                Some(Err(error)) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    fn refuse(&mut self, body: Vec<u8>, exchange: ExchangeId) {
        let head = FrameInfo { kind: FrameKind::Answer, id: None, method: None, trace: None };
        let (body, lane, last) = (Bytes::from(body), Lane::Control, exchange.is_peers());
        self.refusal = Some(Outbound { body, exchange, lane, head, last });
    }
}

/// An exchange whose message is refused without an answer must end too.
fn finish(link: &mut Link, exchange: ExchangeId) {
    if exchange.is_peers() {
        link.tx.as_mut().finish_exchange(exchange, ExchangeEnd::Refused);
    }
}
