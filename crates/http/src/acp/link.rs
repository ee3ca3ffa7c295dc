//! The driver's two halves of a connection on the serving side.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rescind_core::{
    CloseReason, ExchangeId, Finish, Lane, Link, LinkTraits, Meta, Outbound, Receiver, Sender,
    TransportError, TransportErrorKind, TransportEvent,
};
use tokio::time::{Instant, Sleep};

use super::connection::Connection;
use crate::doze::Doze;
use crate::intake::IntakeReceiver;

/// The link of a connection.
pub(super) fn link(connection: &Arc<Connection>) -> Link {
    let traits = LinkTraits {
        ordered: false,
        exchanges_abortable: false,
        exchange_scoped: false,
        peer_can_request: true,
        resumable: false,
        batches: false,
        max_frame: connection.settings.max_frame,
    };
    let receiver = ConnectionReceiver {
        intake: IntakeReceiver(Arc::clone(&connection.intake)),
        connection: Arc::clone(connection),
        idle: None,
    };
    let sender = ConnectionSender { connection: Arc::clone(connection), stalled: None };
    let mut meta = Meta::default();
    meta.principal.clone_from(&connection.principal);
    Link::new(receiver, sender, traits, meta)
}

struct ConnectionReceiver {
    intake: IntakeReceiver,
    connection: Arc<Connection>,
    /// When to look whether the connection is idle.
    idle: Option<Doze>,
}

impl Receiver for ConnectionReceiver {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        if let Poll::Ready(event) = Pin::new(&mut self.intake).poll_event(cx) {
            return Poll::Ready(event);
        }
        let this = &mut *self;
        let wait = this.connection.settings.session_idle;
        let idle = this.idle.get_or_insert_with(|| Doze::new(wait));
        while idle.poll(cx).is_ready() {
            let now = Instant::now();
            match this.connection.idle_at() {
                Some(at) if at <= now => {
                    this.connection.settings.counts.session_idled();
                    tracing::debug!("an idle connection is ended");
                    this.connection.end();
                    return Poll::Ready(None);
                }
                Some(at) => idle.reset(at),
                None => idle.reset(now + wait),
            }
        }
        Poll::Pending
    }
}

struct ConnectionSender {
    connection: Arc<Connection>,
    /// When the wire has taken no bulk for too long.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl ConnectionSender {
    fn checked(&self) -> Result<(), TransportError> {
        if self.connection.is_closed() {
            return Err(TransportError::new(TransportErrorKind::Closed, "the connection has ended"));
        }
        Ok(())
    }
}

impl Sender for ConnectionSender {
    fn poll_ready(
        mut self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let this = &mut *self;
        loop {
            this.checked()?;
            if lane == Lane::Control || this.connection.has_room(cx) {
                this.stalled = None;
                return Poll::Ready(Ok(()));
            }
            let wait = this.connection.settings.stall_timeout;
            let due = this.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(wait)));
            if due.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            this.stalled = None;
            this.connection.cut_stalled();
        }
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        self.checked()?;
        let limit = self.connection.settings.max_frame;
        if out.body.len() > limit {
            let text = format!("the frame is larger than {limit} bytes and was not sent");
            let error = TransportError::new(TransportErrorKind::TooLarge, text);
            return Err(TransportError { exchange: Some(out.exchange), ..error });
        }
        self.connection.send(out)
    }

    /// What is taken is there for the streams to write; how much that is, readiness bounds.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(self.checked())
    }

    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: Finish) {
        self.connection.finish(exchange, how);
    }

    fn poll_close(
        self: Pin<&mut Self>,
        _: &CloseReason,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.connection.end();
        Poll::Ready(Ok(()))
    }
}

impl Drop for ConnectionSender {
    fn drop(&mut self) {
        self.connection.end();
    }
}
