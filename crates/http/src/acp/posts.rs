//! The sending half that the driver uses: the POSTs of a client in order, and its cancels beside them (B1).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use rescind_core::{
    CloseReason, ExchangeId, FrameKind, Inbound, Lane, Outbound, RequestId, Sender, TraceContext,
    TransportError,
};
use tokio::sync::mpsc;

use crate::acp::client::{AcpClientState, Asked, Client};
use crate::acp::sessions::Message;
use crate::client::{Attempts, DeleteRequest, Failed, body_error, closed, encoded, refusal, send_delete};
use crate::envelope::{ACP_CONNECTION_ID, BOTH, JSON, Reply, check_size};
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

/// The headers of a frame for each time that it is posted, and whether it may still be posted.
struct PostAttempts<'a> {
    client: &'a Client,
    session: Option<&'a str>,
    trace: Option<&'a TraceContext>,
    /// The id of a request.
    id: Option<&'a RequestId>,
}

impl Attempts for PostAttempts<'_> {
    fn headers(&self) -> HeaderMap {
        let mut headers = self.client.headers(self.session);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        headers.insert(ACCEPT, HeaderValue::from_static(BOTH));
        if let Some(trace) = self.trace {
            trace.set_headers(&mut headers);
        }
        headers
    }

    async fn stopped(&self) {
        let is_over = |state: &AcpClientState, id: &RequestId| {
            state.asked.get(id).is_none_or(|asked| asked.is_cancelled)
        };
        let client = self.client;
        client
            .until(&client.moved, |state| state.closing || self.id.is_some_and(|id| is_over(state, id)))
            .await;
    }
}

impl Client {
    /// Posts one frame after another (B1).
    pub(super) async fn post_all(self: Arc<Self>, mut frames: mpsc::Receiver<Outbound>) {
        while let Some(out) = frames.recv().await {
            self.step(|_| ());
            let id = out.head.id.clone().filter(|_| out.head.kind == FrameKind::Request);
            self.post(out).await;
            if let Some(id) = id {
                if let Some(asked) = self.state().asked.get_mut(&id) {
                    asked.is_taken = true;
                }
                self.moved.notify_waiters();
            }
        }
    }

    /// Posts a frame and completes when the server has taken it. If the server does not take a request, the call fails.
    async fn post(self: &Arc<Self>, out: Outbound) {
        let session = self.session_of(&out);
        if let Some(session) = &session {
            self.listen(Some(session));
        }
        let (exchange, asks, id) = (out.exchange, out.head.kind == FrameKind::Request, out.head.id.clone());
        let attempts = PostAttempts {
            client: self,
            session: session.as_deref(),
            trace: out.head.trace.as_deref(),
            id: id.as_ref().filter(|_| asks),
        };
        if let Err(failed) = self.posted(out.head.kind, &attempts, exchange, out.body).await {
            if let Some(id) = id.filter(|_| asks) {
                self.forget(&id);
            }
            self.report(exchange, asks, failed);
        }
    }

    pub(super) fn forget(&self, id: &RequestId) {
        self.state().asked.remove(id);
        self.moved.notify_waiters();
    }

    async fn posted(
        self: &Arc<Self>,
        kind: FrameKind,
        attempts: &PostAttempts<'_>,
        exchange: ExchangeId,
        body: Bytes,
    ) -> Result<(), Failed> {
        let response = self.count_if_lost(kind, self.requester.post(kind, attempts, body, None).await)?;
        self.take_cookies(&response);
        let status = response.status();
        if status == StatusCode::ACCEPTED {
            return Ok(());
        }
        let is_of_connection = self.requester.is_of_session_server(response.extensions());
        if status == StatusCode::NOT_FOUND && is_of_connection && self.state().connection.is_some() {
            self.lose("the server does not know the connection any more");
        }
        let (head, mut body) = response.into_parts();
        let address = || self.requester.address();
        if let Some(failed) = encoded(&head, address) {
            return Err(failed);
        }
        let body =
            self.whole_message(&mut body).await.map_err(|error| body_error(&head, &address(), error))?;
        let message = Message::of(&body, self.bodies);
        if status == StatusCode::OK && (is_of_connection || !self.is_named()) {
            if let Some(connection) = self.named_by(&head.headers, &message) {
                self.requester.note_session_server(&head.extensions);
                self.state().connection = Some(connection);
                self.listen(None);
            }
        }
        let reply = Reply::of(&body, attempts.id).with_status(status);
        if message.is_answer() && reply != Reply::Nothing {
            let mut inbound = Inbound::new(body.clone());
            if reply.is_unclear() {
                inbound.exchange = exchange;
            }
            let _ = self.inbound_queue.send(inbound).await;
        }
        if status == StatusCode::OK && (reply == Reply::Own || attempts.id.is_none()) {
            self.note_page(&body, || refusal(&head, &address(), &body));
            return Ok(());
        }
        let failed = Failed::new(status.is_server_error(), refusal(&head, &address(), &body));
        if attempts.id.is_none() && reply == Reply::Nothing {
            self.refused(&failed);
        }
        Err(failed)
    }

    /// The connection that a response names in its header. Only for the first one, the result may name it instead.
    fn named_by(&self, headers: &HeaderMap, answer: &Message<'_>) -> Option<HeaderValue> {
        headers.get(ACP_CONNECTION_ID).cloned().or_else(|| {
            let named = answer.connection().filter(|_| self.state().connection.is_none())?;
            HeaderValue::from_str(&named).ok()
        })
    }

    /// The session that a frame belongs to, from its own params or from those of the request that it refers to.
    fn session_of(&self, out: &Outbound) -> Option<String> {
        let named = Message::of(&out.body, self.bodies).session().map(std::borrow::Cow::into_owned);
        let mut state = self.state();
        match (out.head.kind, &out.head.id) {
            (FrameKind::Request, Some(id)) => {
                if let (Some(named), Some(asked)) = (&named, state.asked.get_mut(id)) {
                    asked.session = Some(named.clone());
                }
                named
            }
            (FrameKind::Cancel, Some(id)) => state.asked.get(id)?.session.clone(),
            (FrameKind::Answer, Some(id)) => state.asked_in.remove(id),
            (FrameKind::Answer, None) => None,
            (_, _) => named,
        }
    }

    /// Sends a cancel beside the queue, after the server has taken its request.
    pub(super) fn cancel(self: &Arc<Self>, out: Outbound) {
        let mut state = self.state();
        let client = Arc::clone(self);
        if let Some(asked) = out.head.id.as_ref().and_then(|id| state.asked.get_mut(id)) {
            asked.is_cancelled = true;
            // A request that waits to be sent again is not.
            self.moved.notify_waiters();
        }
        while state.cancels.try_join_next().is_some() {}
        state.cancels.spawn(async move {
            if let Some(id) = &out.head.id {
                client.until_taken(id).await;
            }
            client.post(out).await;
        });
    }

    /// Waits until the server has taken the request with this id, or the request has failed or has its answer.
    async fn until_taken(&self, id: &RequestId) {
        self.until(&self.moved, |state| state.asked.get(id).is_none_or(|asked| asked.is_taken)).await;
    }
}
