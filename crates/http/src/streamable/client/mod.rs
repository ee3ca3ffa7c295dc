//! The client side: one POST for each frame, and one stream for messages that the server sends outside of a request.
//!
//! - K1 POSTs have no order, so a frame that needs an order waits. A notification or a request waits until the server
//!   has taken the notifications and cancels before it. A notification also waits until the responses to the requests
//!   before it have begun, or for 250 ms.
//! - K2 A cancel waits for its own request. Besides it waits for what each frame waits for: the first message of the
//!   session, a new session that is being opened, and with `in_order` the frame before it.
//! - K3 A stream that breaks off before its answer is resumed if the server gave it an id. Without an id, or if that
//!   fails, its call fails and counts as sent.
//! - K4 The messages in the response to a cancel are passed on before the later messages of the cancelled call: as on a
//!   transport with one stream, an acknowledgement comes before the result. The wait for them is at most 250 ms.
//!   A POST that ends without the answer to its request ends the call, whatever it holds.
//! - K5 When the link's sending half ends, everything ends: tasks, streams, connections.
//!
//! # What this file holds
//!
//! The transport, the state that the tasks of a client share, and the sending half that the driver uses. POSTs are in
//! `posts.rs`, event streams in `streams.rs`, new sessions in `renewal.rs`, and the client of the binding `legacy-sse`
//! in `legacy.rs`.

mod legacy;
mod posts;
mod renewal;
mod streams;

use std::collections::VecDeque;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use rescind_core::{
    BoxFuture, CloseReason, ExchangeEnd, ExchangeId, Lane, Link, MCP_RENEWAL, Outbound, RenewalBodies,
    RequestId, Sender, Transport, TransportError,
};
use tokio::sync::Notify;

use crate::client::{
    AbortOnDrop, ClientCore, DeleteRequest, HttpClient, InFlightTasks, Requester, closed, send_delete,
};
use crate::envelope::{BOTH, EVENT_STREAM, JSON, MCP_PROTOCOL_VERSION, MCP_SESSION_ID, check_size};
use crate::streamable::client::renewal::SessionRecord;
use crate::sync::{AbortHandle, IntMap, SharedDelay};

/// The client side of the binding `streamable`.
///
/// If a server of MCP does not know the session of a POST any more (404), the client opens a new one with the same
/// `initialize`, repeats the subscriptions and the log level of the old one, and sends the message once more. Calls that
/// ran in the old session end with an error. A call waits at most 5 s for the new session, whose opening may take longer. If
/// the new session is lost within 10 s, calls fail until that time is over; the connection stays open. In other protocols a session has more state, so its loss ends the connection.
#[derive(Clone, Debug)]
#[must_use = "a wire does nothing until it is opened"]
pub struct StreamableTransport {
    client: HttpClient,
    settings: ClientSettings,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ClientSettings {
    pub(super) cancel_after: Duration,
    pub(super) retry: Duration,
    pub(super) give_up_after: Duration,
    pub(super) exchanges: usize,
    pub(super) order: Order,
    pub(super) renewal: &'static RenewalBodies,
    /// Whether a session that its server has forgotten is opened again.
    pub(super) renews: bool,
    /// Whether a server that refuses the first POST is asked for the transport of 2024-11-05.
    pub(super) falls_back: bool,
}

/// Which frames wait for which other frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The order of K1.
    AsNeeded,
    /// Each frame waits for the one before it.
    AsSent,
}

impl StreamableTransport {
    /// A transport to this client's URL.
    pub const fn new(client: HttpClient) -> Self {
        let settings = ClientSettings {
            cancel_after: Duration::from_millis(250),
            retry: Duration::from_secs(1),
            give_up_after: Duration::from_secs(30),
            exchanges: 1024,
            order: Order::AsNeeded,
            renewal: &MCP_RENEWAL,
            renews: true,
            falls_back: true,
        };
        Self { client, settings }
    }

    /// How long a cancel waits for the response to its request to begin. Default: 250 ms. POSTs have no order, so a
    /// cancel that is sent at once may arrive before its request.
    pub const fn cancel_after(mut self, wait: Duration) -> Self {
        self.settings.cancel_after = wait;
        self
    }

    /// How long to wait before a cut stream is resumed, if the server does not send a time. Default: 1 s. A stream that ends
    /// without a message again and again is resumed at most every 5 s in the end, until the server says that it has none.
    pub const fn retry(mut self, wait: Duration) -> Self {
        self.settings.retry = wait;
        self
    }

    /// How long the client tries to resume a cut stream. After this time without an event its call fails. If the
    /// server cannot be reached for its own stream, the link ends; if it answers with anything but the stream, the
    /// client goes on without it. Default: 30 s.
    pub const fn give_up_after(mut self, wait: Duration) -> Self {
        self.settings.give_up_after = wait;
        self
    }

    /// Sends each frame only when the response to the one before it has begun, or after the time of
    /// [`cancel_after`](Self::cancel_after). So the server gets all frames in order, but each slow request delays the
    /// next frame until its response begins. Without this setting, notifications keep their order among themselves and
    /// relative to requests, but requests may overtake one another.
    pub const fn in_order(mut self) -> Self {
        self.settings.order = Order::AsSent;
        self
    }

    /// Sets what is repeated when a session is opened again, for a protocol of your own. Default: [`MCP_RENEWAL`].
    pub const fn renewal(mut self, bodies: &'static RenewalBodies) -> Self {
        self.settings.renewal = bodies;
        self
    }

    /// Never opens a session again that its server has forgotten: the link ends then. Default: it is opened again, at most
    /// once in 10 s, and the request that found it gone is sent once more.
    pub const fn no_renewal(mut self) -> Self {
        self.settings.renews = false;
        self
    }

    /// Never falls back to the transport of MCP 2024-11-05. Default: if the server refuses the first POST with 400, 404 or
    /// 405, the client opens the event stream of the same URL, as MCP advises. If the stream names an endpoint within 2 s,
    /// the client speaks the binding of [`LegacySseTransport`](crate::LegacySseTransport), beginning with the same message.
    pub const fn no_fallback(mut self) -> Self {
        self.settings.falls_back = false;
        self
    }

    /// Opens a link of the binding `legacy-sse`.
    pub(crate) async fn open_legacy(self) -> Result<Link, TransportError> {
        let client = Arc::new(Client::new(&self.client, self.settings));
        let peer = client.requester.reach().await?;
        let sender = ClientSender::new(Arc::clone(&client));
        legacy::open(&client, self.client.connect_timeout).await?;
        client.state().standing = SessionPhase::Open;
        Ok(client.link(sender, false, peer))
    }

    /// The most requests in flight. Default: 1024. Over HTTP/1.1 each request uses a connection. Further requests wait.
    pub const fn exchanges(mut self, most: usize) -> Self {
        self.settings.exchanges = most;
        self
    }
}

impl Transport for StreamableTransport {
    fn name(&self) -> &'static str {
        "http-streamable"
    }

    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(async move {
            let client = Arc::new(Client::new(&self.client, self.settings));
            let peer = client.requester.reach().await?;
            Ok(client.link(ClientSender::new(Arc::clone(&client)), false, peer))
        })
    }
}

struct Client {
    core: ClientCore<StreamableClientState>,
    settings: ClientSettings,
    /// Sends POSTs to the endpoint of an event stream, if the server speaks the transport of 2024-11-05.
    legacy: OnceLock<Requester>,
    /// After this delay, a request whose response has no head yet counts as started.
    cancel_delay: Arc<SharedDelay>,
    /// Notified when a frame is no longer pending or no longer in flight.
    moved: Notify,
}

struct StreamableClientState {
    standing: SessionPhase,
    /// The session id, after the server has named it.
    id: Option<HeaderValue>,
    version: Option<HeaderValue>,
    /// The headers of each POST, until the session or its version changes.
    post_headers: Option<HeaderMap>,
    in_flight: IntMap<InFlight>,
    next: u64,
    /// Frames whose response has not begun, in bytes and in number.
    pending: (usize, usize),
    /// Requests in flight.
    requests: usize,
    /// The requests that ended last, with the number of the next frame at that time. `None`: without an answer.
    ended: VecDeque<(Option<u64>, RequestId)>,
    /// Notifications and cancels that later frames may wait for. The next frame removes those that are no longer
    /// pending.
    notified: Vec<u64>,
    /// The newest frame, if all frames keep their order.
    latest: Option<u64>,
    /// Cancels that may be sent and are not written yet. Data frames wait for them; otherwise the tasks of those frames
    /// would run before theirs.
    leaving: usize,
    listens: bool,
    /// Whether the link closes: nothing is sent again.
    closing: bool,
    /// Why the server does not speak the transport of 2024-11-05, until an error says so.
    not_legacy: Option<String>,
    /// What a new session needs.
    record: SessionRecord,
}

/// The state of the session.
enum SessionPhase {
    /// Nothing was sent yet.
    Unopened,
    /// The response to the first frame has not begun.
    FirstMessage(u64),
    /// Frames may be sent.
    Open,
}

/// A frame in flight, until its response has ended.
struct InFlight {
    task: Option<AbortHandle>,
    /// Set for a request.
    exchange: Option<ExchangeId>,
    id: Option<RequestId>,
    /// Its response has not begun, and it has not waited long enough to count as started.
    pending: bool,
    /// The frame that cancels it.
    cancel: Option<u64>,
    /// Its cancel was sent: its stream is not resumed.
    cancelled: bool,
    /// The number of the session in which it was sent last.
    sent_in: Option<u64>,
    /// The number of the session in which its response has begun.
    session: Option<u64>,
}

impl Client {
    fn new(client: &HttpClient, settings: ClientSettings) -> Self {
        let state = StreamableClientState {
            standing: SessionPhase::Unopened,
            id: None,
            version: None,
            post_headers: None,
            in_flight: IntMap::default(),
            next: 0,
            pending: (0, 0),
            requests: 0,
            ended: VecDeque::new(),
            notified: Vec::new(),
            latest: None,
            leaving: 0,
            listens: false,
            closing: false,
            not_legacy: None,
            record: SessionRecord::default(),
        };
        Self {
            core: ClientCore::new(client, state),
            settings,
            legacy: OnceLock::new(),
            cancel_delay: SharedDelay::new(settings.cancel_after),
            moved: Notify::new(),
        }
    }

    /// The headers of every request of the session.
    fn headers(&self, accept: &'static str) -> HeaderMap {
        self.state().headers(accept)
    }

    /// The values for the DELETE that ends the session.
    fn delete(&self) -> (Requester, HeaderMap) {
        (self.requester.clone(), self.headers(EVENT_STREAM))
    }

    /// The headers of a POST, and the number of its session. Notes that this frame is sent in it.
    fn post_headers(&self, frame: Option<u64>) -> (HeaderMap, u64) {
        let mut state = self.state();
        let session = state.record.number;
        if let Some(flight) = frame.and_then(|frame| state.in_flight.get_mut(&frame)) {
            flight.sent_in = Some(session);
        }
        if let Some(headers) = &state.post_headers {
            return (headers.clone(), session);
        }
        let mut headers = state.headers(BOTH);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        // Each copy then has room for its length.
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        self.requester.name_host(&mut headers);
        state.post_headers = Some(headers.clone());
        (headers, session)
    }

    /// Sends the POSTs.
    fn poster(&self) -> &Requester {
        self.legacy.get().unwrap_or(&self.requester)
    }

    /// Whether this frame is cancelled or no longer in flight, so that its stream is not resumed.
    fn is_cancelled(&self, flight: u64) -> bool {
        self.state().in_flight.get(&flight).is_none_or(|flight| flight.cancelled)
    }

    /// Waits for the response to the cancel of this call: its messages are passed on before the later ones of the call
    /// (K4).
    async fn after_its_cancel(&self, flight: u64) {
        let cancel = self.state().in_flight.get(&flight).and_then(|flight| flight.cancel);
        let Some(cancel) = cancel else { return };
        let over = self.until(&self.moved, |state| !state.in_flight.contains_key(&cancel));
        let _ = Box::pin(tokio::time::timeout(self.settings.cancel_after, over)).await;
    }

    /// Waits until none of these frames is pending. Never completes after the client has closed.
    async fn after(&self, frames: &[u64]) {
        if !frames.is_empty() {
            let none_is_young =
                |state: &StreamableClientState| !frames.iter().any(|frame| state.is_pending(*frame));
            self.until(&self.moved, |state| !state.closed && none_is_young(state)).await;
        }
    }
}

impl StreamableClientState {
    /// Whether a frame must not be sent again: it is cancelled, or the link closes.
    fn is_stopped(&self, frame: u64) -> bool {
        self.closing || self.in_flight.get(&frame).is_none_or(|flight| flight.cancelled)
    }

    /// Notes the end of a request.
    fn note_ended(&mut self, id: RequestId, is_answered: bool) {
        if self.ended.len() >= MAX_ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back((is_answered.then_some(self.next), id));
    }

    /// Whether an answer with this id may still come: its request was in flight at some time since this frame was sent, or it
    /// ended without an answer.
    fn may_answer(&self, id: &RequestId, frame: u64) -> bool {
        let is_open = || self.in_flight.values().any(|flight| flight.id.as_ref() == Some(id));
        let may_repeat = |before: &Option<u64>| before.is_none_or(|before| before > frame);
        self.ended.iter().any(|(before, ended)| may_repeat(before) && ended == id) || is_open()
    }

    fn headers(&self, accept: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        if let Some(id) = &self.id {
            headers.insert(MCP_SESSION_ID, id.clone());
        }
        if let Some(version) = &self.version {
            headers.insert(MCP_PROTOCOL_VERSION, version.clone());
        }
        headers
    }

    fn is_pending(&self, frame: u64) -> bool {
        self.in_flight.get(&frame).is_some_and(|flight| flight.pending)
    }
}

impl Deref for Client {
    type Target = ClientCore<StreamableClientState>;

    fn deref(&self) -> &ClientCore<StreamableClientState> {
        &self.core
    }
}

impl InFlightTasks for StreamableClientState {
    type Tasks = AbortOnDrop;

    fn take_tasks(&mut self) -> AbortOnDrop {
        std::mem::take(&mut self.in_flight).into_values().filter_map(|flight| flight.task).collect()
    }
}

/// Data frames are accepted while the frames whose response has not begun hold at most this number of bytes.
const MAX_PENDING_BYTES: usize = 32 * 1024;
/// Data frames are accepted while fewer frames than this have a response that has not begun. This bounds what is ahead
/// of a cancel, in this client and in its server.
const MAX_PENDING_DATA: usize = 64;
/// The most ended requests whose answers may come again on the streams of others.
const MAX_ENDED: usize = 32;
/// The most frames in flight whose response has not begun, including cancels.
const MAX_PENDING_FRAMES: usize = 4096;

struct ClientSender {
    client: Arc<Client>,
    delete_request: DeleteRequest,
    is_closed: bool,
}

impl ClientSender {
    fn new(client: Arc<Client>) -> Self {
        Self { client, delete_request: DeleteRequest::default(), is_closed: false }
    }

    fn end(&mut self) {
        self.is_closed = true;
        self.client.close();
    }
}

impl Sender for ClientSender {
    fn poll_ready(
        self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let mut state = self.client.state();
        if self.is_closed || state.closed {
            return Poll::Ready(Err(closed()));
        }
        let (bytes, frames) = state.pending;
        let room = frames < MAX_PENDING_FRAMES
            && match lane {
                Lane::Control => true,
                Lane::Data => {
                    state.leaving == 0
                        && bytes <= MAX_PENDING_BYTES
                        && frames < MAX_PENDING_DATA
                        && state.requests < self.client.settings.exchanges
                }
            };
        if room {
            return Poll::Ready(Ok(()));
        }
        state.driver = Some(cx.waker().clone());
        Poll::Pending
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        if self.is_closed {
            return Err(closed());
        }
        check_size(&out, self.client.max_frame)?;
        posts::start_post(&self.client, out);
        Ok(())
    }

    /// Nothing to flush: each frame is sent in its own task, and `poll_ready` bounds their number.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(if self.is_closed { Err(closed()) } else { Ok(()) })
    }

    /// The server's requests arrive on our exchanges or on its own stream. Neither ends with the answer.
    fn finish_exchange(self: Pin<&mut Self>, _: ExchangeId, _: ExchangeEnd) {}

    fn poll_close(
        mut self: Pin<&mut Self>,
        _: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        if self.is_closed {
            return Poll::Ready(Ok(()));
        }
        if !self.delete_request.is_sent() {
            let mut state = self.client.state();
            let is_first = !std::mem::replace(&mut state.closing, true);
            let is_pending = state.pending.1 > 0;
            if is_pending {
                state.driver = Some(cx.waker().clone());
            }
            let known = state.id.is_some();
            drop(state);
            if is_first {
                self.client.moved.notify_waiters();
            }
            if is_pending {
                return Poll::Pending;
            }
            if !known {
                self.end();
                return Poll::Ready(Ok(()));
            }
        }
        let this = &mut *self;
        ready!(this.delete_request.poll(|| this.client.delete(), cx));
        this.end();
        Poll::Ready(Ok(()))
    }
}

impl Drop for ClientSender {
    /// The server is informed of the end even here, if there is a runtime to send the DELETE. Otherwise it would wait
    /// for a client that does not return.
    fn drop(&mut self) {
        if self.is_closed {
            return;
        }
        if let Some(runtime) = self.delete_request.unsent().filter(|_| self.client.state().id.is_some()) {
            // The DELETE is sent before the streams end: the end of a session is different from the loss of its
            // streams.
            let (requester, headers) = self.client.delete();
            let tasks = self.client.take_tasks();
            runtime.spawn(async move {
                send_delete(requester, headers).await;
                drop(tasks);
            });
        }
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some servers send each answer on every stream that is open, or send a late one on the next stream.
    #[tokio::test]
    async fn an_answer_may_come_on_the_stream_of_a_call_that_was_open_at_that_time() {
        let transport = StreamableTransport::new(HttpClient::new("http://127.0.0.1:1/").unwrap());
        let client = Client::new(&transport.client, transport.settings);
        let mut state = client.state();
        let [answered, unanswered, unknown] = [1, 2, 3].map(RequestId::number);
        state.next = 10;
        state.note_ended(answered.clone(), true);
        state.note_ended(unanswered.clone(), false);
        for (id, frame, may) in [
            (&answered, 9, true),
            (&answered, 10, false),
            (&unanswered, 9, true),
            (&unanswered, 10, true),
            (&unknown, 9, false),
        ] {
            assert_eq!(state.may_answer(id, frame), may, "{id} on the stream of {frame}");
        }
        for number in (100..).take(MAX_ENDED) {
            state.note_ended(RequestId::number(number), true);
        }
        assert!(!state.may_answer(&unanswered, 10), "the newest are kept");
    }
}
