//! The sending half that the driver uses.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rescind_core::{CloseReason, FrameKind, Lane, Outbound, Sender, TransportError};
use tokio::sync::mpsc;

use super::state::{Asked, Client};
use crate::check_size::check_size;
use crate::client::{DeleteRequest, closed, send_delete};
use crate::sync::JoinHandle;

pub(super) struct ClientSender {
    client: Arc<Client>,
    /// `None` after the link starts to close.
    queue: Option<mpsc::Sender<Outbound>>,
    posting: Option<JoinHandle<()>>,
    delete_request: DeleteRequest,
    /// Whether closing is complete.
    is_closed: bool,
}

impl ClientSender {
    pub(super) fn new(client: Arc<Client>, queue: mpsc::Sender<Outbound>, posting: JoinHandle<()>) -> Self {
        Self {
            client,
            queue: Some(queue),
            posting: Some(posting),
            delete_request: DeleteRequest::default(),
            is_closed: false,
        }
    }
}

impl Sender for ClientSender {
    fn poll_ready(
        self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let Some(queue) = &self.queue else { return Poll::Ready(Err(closed())) };
        if queue.is_closed() {
            return Poll::Ready(Err(closed()));
        }
        // One place is reserved for a control frame that has to keep its order.
        let least = if lane == Lane::Data { 2 } else { 1 };
        if queue.capacity() >= least {
            return Poll::Ready(Ok(()));
        }
        self.client.state().driver = Some(cx.waker().clone());
        if queue.capacity() >= least { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        check_size(&out, self.client.max_frame)?;
        // A cancel of a request that is not in flight keeps its place in the queue.
        let beside = out.head.kind == FrameKind::Cancel
            && out.head.id.as_ref().is_some_and(|id| self.client.state().asked.contains_key(id));
        if beside {
            self.client.cancel(out);
            return Ok(());
        }
        let Some(queue) = &self.queue else { return Err(closed()) };
        if let (FrameKind::Request, Some(id)) = (out.head.kind, &out.head.id) {
            self.client.state().asked.insert(id.clone(), Asked::default());
        }
        queue.try_send(out).map_err(|_| closed())
    }

    /// Nothing to flush: a frame that was accepted is already on its way.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(Ok(()))
    }

    /// Posts the queued frames, sends the DELETE that ends the connection, then closes.
    fn poll_close(
        mut self: Pin<&mut Self>,
        _: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        if self.is_closed {
            return Poll::Ready(Ok(()));
        }
        self.queue = None;
        if !std::mem::replace(&mut self.client.state().closing, true) {
            self.client.moved.notify_waiters();
        }
        if let Some(posting) = &mut self.posting {
            ready!(Pin::new(posting).poll(cx)).ok();
            self.posting = None;
        }
        while ready!(self.client.state().cancels.poll_join_next(cx)).is_some() {}
        let this = &mut *self;
        if this.client.is_named() {
            ready!(this.delete_request.poll(|| this.client.delete(), cx));
        }
        self.client.close();
        self.is_closed = true;
        Poll::Ready(Ok(()))
    }
}

impl Drop for ClientSender {
    fn drop(&mut self) {
        if let Some(posting) = self.posting.take() {
            posting.abort();
        }
        self.client.close();
        if let Some(runtime) = self.delete_request.unsent().filter(|_| self.client.is_named()) {
            let (requester, headers) = self.client.delete();
            runtime.spawn(send_delete(requester, headers));
        }
    }
}
