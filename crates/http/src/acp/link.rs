//! The driver's two halves of a connection on the serving side.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rescind_core::{
    Capabilities, CloseReason, ExchangeEnd, ExchangeId, Lane, Link, Outbound, PeerInfo, Sender,
    TransportError, TransportErrorKind,
};
use tokio::time::Instant;

use super::connection::Connection;
use crate::check_size::fits;
use crate::inbound_queue::InboundQueue;
use crate::server::Settings;
use crate::server::idle::{Idles, IdlingReceiver};
use crate::server::stall_timer::StallTimer;

/// The link of a connection.
pub(super) fn link(connection: &Arc<Connection>) -> Link {
    let traits = Capabilities {
        ordered: false,
        opens_exchanges: false,
        exchange_scoped: false,
        batches: false,
        max_frame: connection.settings.max_frame,
    };
    let receiver = IdlingReceiver::new(connection);
    let sender = ConnectionSender { connection: Arc::clone(connection), patience: StallTimer::default() };
    let mut meta = PeerInfo::default();
    meta.principal.clone_from(&connection.principal);
    meta.address = connection.address;
    Link::new(receiver, sender, traits, meta).with_budget(connection.budget.clone())
}

impl Idles for Connection {
    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn inbound_queue(&self) -> &Arc<InboundQueue> {
        &self.inbound_queue
    }

    fn idle_at(&self) -> Option<Instant> {
        Self::idle_at(self)
    }

    fn idled(&self) {
        self.end();
    }
}

struct ConnectionSender {
    connection: Arc<Connection>,
    patience: StallTimer,
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
                if lane == Lane::Data {
                    this.patience.renew();
                }
                return Poll::Ready(Ok(()));
            }
            let since = ready!(this.patience.poll_end(this.connection.settings.stall_timeout, cx));
            this.connection.cut_stalled(since);
        }
    }

    fn start_send(self: Pin<&mut Self>, mut out: Outbound) -> Result<(), TransportError> {
        self.checked()?;
        fits(&out, self.connection.settings.max_frame)?;
        // Until its last byte is written, or the client has let it go.
        out.body = self.connection.budget.hold_frame(out.body);
        self.connection.send(out)
    }

    /// What is taken is there for the streams to write; how much that is, readiness bounds.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(self.checked())
    }

    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
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
