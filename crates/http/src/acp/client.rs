//! The calling side: POSTs in their order, and an event stream for the connection and for each session.
//!
//! - B1 POSTs go one at a time, each once the one before it was taken: so messages keep their order. A cancel goes beside
//!   them, as soon as the request it names was taken, and cannot overtake it.
//! - B2 A stream that ends is asked for again; what waited meanwhile waits at the server.
//! - B3 Cookies are kept for the connection and sent with each request.
//! - B4 With the link's sending half everything ends: tasks, streams, and by DELETE the connection.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, COOKIE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body_util::BodyExt;
use rescind_core::{
    BadFrame, BoxFuture, CloseReason, ExchangeId, FrameKind, Inbound, Lane, Link, LinkTraits, Meta, Outbound,
    RequestId, Sender, Transport, TransportError, TransportErrorKind, TransportEvent, Unsupported,
};
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};

use super::jar::Jar;
use super::peek::Message;
use crate::client::events::{Events, Read};
use crate::client::{Failed, HttpClient, Reply, Requester, refusal};
use crate::intake::{Intake, IntakeReceiver};
use crate::names::{ACP_CONNECTION_ID, ACP_SESSION_ID, BOTH, EVENT_STREAM, JSON};
use crate::whole::whole;

/// POSTs that wait for the one before them.
const WAITING: usize = 64;
/// Sessions with a stream of their own.
const STREAMS: usize = 1024;
/// Requests of the server's whose session is remembered.
const ASKED: usize = 65_536;
/// Before a stream that ended is asked for again.
const RETRY: Duration = Duration::from_millis(50);
/// The longest wait before a stream that was refused is asked for again.
const REFUSED: Duration = Duration::from_secs(2);
/// After so many attempts in a row that reached nobody the connection counts as lost.
const ATTEMPTS: usize = 20;
/// The server has so long to hear of the end.
const FAREWELL: Duration = Duration::from_secs(1);

/// The calling side of the binding `acp`: a transport to one URL, over HTTP/2.
#[derive(Clone, Debug)]
#[must_use = "a transport does nothing until it is opened"]
pub struct AcpTransport {
    client: HttpClient,
}

impl AcpTransport {
    /// A transport that goes where this client goes, in HTTP/2 as ACP's draft requires.
    pub const fn new(client: HttpClient) -> Self {
        Self { client: client.http2() }
    }

    /// Speaks HTTP/1.1, to servers that have nothing else.
    pub const fn http1(mut self) -> Self {
        self.client.http2 = false;
        self
    }
}

impl Transport for AcpTransport {
    fn name(&self) -> &'static str {
        "http-acp"
    }

    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(async move {
            let reached = self.client.reach().await;
            reached.map_err(|error| TransportError::new(TransportErrorKind::Open, error))?;
            let max_frame = self.client.max_frame;
            let (queue, frames) = mpsc::channel(WAITING);
            let client = Arc::new(Client {
                requester: Requester::new(&self.client),
                intake: Intake::new(max_frame),
                max_frame,
                moved: Notify::new(),
                state: Mutex::default(),
            });
            let posting = tokio::spawn(Arc::clone(&client).post_all(frames));
            let traits = LinkTraits {
                ordered: false,
                exchanges_abortable: true,
                exchange_scoped: false,
                peer_can_request: true,
                resumable: false,
                batches: false,
                max_frame,
            };
            let receiver = IntakeReceiver(Arc::clone(&client.intake));
            let peer = self.client.uri.authority().map(ToString::to_string).unwrap_or_default();
            let sender = ClientSender { client, queue: Some(queue), posting: Some(posting), farewell: None };
            Ok(Link::new(receiver, sender, traits, Meta::of_peer(&peer)))
        })
    }
}

struct Client {
    requester: Requester,
    intake: Arc<Intake>,
    max_frame: usize,
    /// A request was taken.
    moved: Notify,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<HeaderValue>,
    cookies: Jar,
    /// Sessions whose stream is open or being opened.
    sessions: HashSet<String>,
    streams: JoinSet<()>,
    /// Cancels on their way.
    cancels: JoinSet<()>,
    /// Requests of ours that are not answered yet.
    asked: HashMap<RequestId, Asked>,
    /// The session on whose stream each request of the server's came, for its answer.
    asked_in: HashMap<RequestId, String>,
    closed: bool,
    driver: Option<Waker>,
}

/// A request of ours, for the cancel that names it later.
#[derive(Default)]
struct Asked {
    /// The server has taken it.
    is_taken: bool,
    session: Option<String>,
}

impl Client {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_driver(&self) {
        let waker = self.state().driver.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn headers(&self, session: Option<&str>) -> HeaderMap {
        let state = self.state();
        let session = session.and_then(|session| HeaderValue::from_str(session).ok());
        let mut headers = HeaderMap::with_capacity(6);
        let values = [
            (ACP_CONNECTION_ID, state.connection.clone()),
            (ACP_SESSION_ID, session),
            (COOKIE, state.cookies.header()),
        ];
        for (name, value) in values {
            if let Some(value) = value {
                headers.insert(name, value);
            }
        }
        headers
    }

    async fn send(&self, method: Method, headers: HeaderMap, body: Bytes) -> Result<Response<Reply>, Failed> {
        let response = self.requester.send(method, headers, body).await?;
        self.state().cookies.take(response.headers());
        Ok(response)
    }

    /// Posts one frame after another (B1).
    async fn post_all(self: Arc<Self>, mut frames: mpsc::Receiver<Outbound>) {
        while let Some(out) = frames.recv().await {
            self.wake_driver();
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

    /// Posts a frame; done when the server has taken it. What could not be taken fails its call.
    async fn post(self: &Arc<Self>, out: Outbound) {
        let session = self.session_of(&out);
        if let Some(session) = &session {
            self.listen(Some(session));
        }
        let (exchange, asks, id) = (out.exchange, out.head.kind == FrameKind::Request, out.head.id.clone());
        let mut headers = self.headers(session.as_deref());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        headers.insert(ACCEPT, HeaderValue::from_static(BOTH));
        match self.posted(out.head.kind, headers, out.body).await {
            Ok(()) => {}
            Err(Failed { sent, error }) if asks => {
                if let Some(id) = id {
                    self.forget(&id);
                }
                self.intake.tell(TransportEvent::ExchangeFailed { exchange, sent, error });
            }
            Err(Failed { error, .. }) => tracing::debug!(%error, "a message was not taken"),
        }
    }

    fn forget(&self, id: &RequestId) {
        self.state().asked.remove(id);
        self.moved.notify_waiters();
    }

    async fn posted(
        self: &Arc<Self>,
        kind: FrameKind,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(), Failed> {
        let response = self.requester.post(kind, headers, body, None).await?;
        self.state().cookies.take(response.headers());
        let status = response.status();
        if status == StatusCode::ACCEPTED {
            return Ok(());
        }
        if status == StatusCode::NOT_FOUND && self.state().connection.is_some() {
            let text = "the server does not know the connection any more";
            self.intake.fail(TransportError::new(TransportErrorKind::Closed, text));
        }
        let (head, body) = response.into_parts();
        let connection = head.headers.get(ACP_CONNECTION_ID).cloned();
        let body = whole(body, self.max_frame).await.unwrap_or_default();
        let opens = status == StatusCode::OK && connection.is_some();
        if opens {
            self.state().connection = connection;
            self.listen(None);
        }
        let message = Message::of(&body);
        let answers = status == StatusCode::OK && message.is_answer();
        if message.is_answer() {
            let _ = self.intake.put(Inbound::new(body)).await;
        }
        if answers {
            return Ok(());
        }
        let text = refusal(status, &head.headers);
        let error = TransportError::new(TransportErrorKind::Io, text);
        Err(Failed { sent: status.is_server_error(), error })
    }

    /// The session a frame belongs to, by its own params or by those of the request it is about.
    fn session_of(&self, out: &Outbound) -> Option<String> {
        let named = Message::of(&out.body).session().map(std::borrow::Cow::into_owned);
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

    /// Sends a cancel beside the queue, once its request was taken.
    fn cancel(self: &Arc<Self>, out: Outbound) {
        let mut state = self.state();
        let client = Arc::clone(self);
        while state.cancels.try_join_next().is_some() {}
        state.cancels.spawn(async move {
            if let Some(id) = &out.head.id {
                client.until_taken(id).await;
            }
            client.post(out).await;
            client.wake_driver();
        });
    }

    /// Waits until the request of this id was taken, or failed, or has its answer.
    async fn until_taken(&self, id: &RequestId) {
        loop {
            let moved = self.moved.notified();
            if self.state().asked.get(id).is_none_or(|asked| asked.is_taken) {
                return;
            }
            moved.await;
        }
    }

    /// Opens the stream of a session, or of the connection, if it is not open.
    fn listen(self: &Arc<Self>, session: Option<&str>) {
        let mut state = self.state();
        let name = session.unwrap_or_default();
        if state.closed || state.sessions.len() >= STREAMS || !state.sessions.insert(name.to_owned()) {
            return;
        }
        let (client, session) = (Arc::clone(self), session.map(ToOwned::to_owned));
        state.streams.spawn(async move { client.read_stream(session).await });
    }

    /// Reads a stream until the connection ends (B2).
    async fn read_stream(self: Arc<Self>, session: Option<String>) {
        let mut failed_attempts = 0;
        let mut refused_wait = RETRY;
        loop {
            let mut headers = self.headers(session.as_deref());
            headers.insert(ACCEPT, HeaderValue::from_static(EVENT_STREAM));
            match self.send(Method::GET, headers, Bytes::new()).await {
                Ok(response) if response.status() == StatusCode::OK => {
                    failed_attempts = 0;
                    refused_wait = RETRY;
                    self.read(response.into_body(), session.as_deref()).await;
                }
                // Of a session's stream it may mean that the server knows the session only once it was loaded; that the
                // connection is gone, the connection's own stream tells.
                Ok(response) if response.status() == StatusCode::NOT_FOUND && session.is_none() => {
                    let text = "the server does not know the connection any more";
                    self.intake.fail(TransportError::new(TransportErrorKind::Closed, text));
                    return;
                }
                Ok(response) => {
                    tracing::debug!(status = %response.status(), "a stream was refused");
                    tokio::time::sleep(refused_wait).await;
                    refused_wait = (refused_wait * 2).min(REFUSED);
                }
                Err(failed) => {
                    tracing::debug!(error = %failed.error, "a stream could not be opened");
                    failed_attempts += 1;
                    if failed_attempts >= ATTEMPTS {
                        self.intake.fail(failed.error);
                        return;
                    }
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn read(self: &Arc<Self>, mut body: Reply, session: Option<&str>) {
        let mut events = Events::new(self.max_frame);
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            events.push(&data);
            while let Some(read) = events.next() {
                match read {
                    Read::TooLarge => {
                        let why = BadFrame::TooLarge { limit: self.max_frame };
                        self.intake.tell(TransportEvent::Rejected { exchange: ExchangeId::NONE, why });
                    }
                    Read::Event(event) if event.data.is_empty() => {}
                    Read::Event(event) => self.take(event.data, session).await,
                }
            }
        }
    }

    /// Takes in a message that came on the stream of this session.
    async fn take(self: &Arc<Self>, body: Bytes, session: Option<&str>) {
        let message = Message::of(&body);
        if let (true, Some(session), Some(id)) = (message.is_request(), session, message.id()) {
            let mut state = self.state();
            if state.asked_in.len() < ASKED {
                state.asked_in.insert(id, session.to_owned());
            }
        }
        if message.is_answer() {
            if let Some(id) = message.id() {
                self.forget(&id);
            }
            if let Some(made) = message.made() {
                self.listen(Some(&made));
            }
        }
        let _ = self.intake.put(Inbound::new(body)).await;
    }

    /// Ends all tasks but the one that posts.
    fn close(&self) {
        let tasks = {
            let mut state = self.state();
            state.closed = true;
            (std::mem::take(&mut state.streams), std::mem::take(&mut state.cancels))
        };
        drop(tasks);
        self.intake.end();
    }

    /// Tells the server that the connection ends.
    async fn say_farewell(self: Arc<Self>) {
        if self.state().connection.is_none() {
            return;
        }
        let headers = self.headers(None);
        let end = self.send(Method::DELETE, headers, Bytes::new());
        match tokio::time::timeout(FAREWELL, end).await {
            Ok(Ok(_)) => {}
            Ok(Err(Failed { error, .. })) => tracing::debug!(%error, "the server did not hear of the end"),
            Err(_) => tracing::debug!("the server did not hear of the end in time"),
        }
    }
}

struct ClientSender {
    client: Arc<Client>,
    /// `None` once the link closes.
    queue: Option<mpsc::Sender<Outbound>>,
    posting: Option<JoinHandle<()>>,
    farewell: Option<JoinHandle<()>>,
}

fn closed() -> TransportError {
    TransportError::new(TransportErrorKind::Closed, "the link is closed")
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
        // A place is always kept for a control frame that has to keep its order.
        let least = if lane == Lane::Bulk { 2 } else { 1 };
        if queue.capacity() >= least {
            return Poll::Ready(Ok(()));
        }
        self.client.state().driver = Some(cx.waker().clone());
        if queue.capacity() >= least { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        let limit = self.client.max_frame;
        if out.body.len() > limit {
            let text = format!("the frame is larger than {limit} bytes and was not sent");
            let error = TransportError::new(TransportErrorKind::TooLarge, text);
            return Err(TransportError { exchange: Some(out.exchange), ..error });
        }
        // A cancel whose request is not on its way has nothing to go beside, and keeps its place among the others.
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

    /// What is taken is on its way.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(Ok(()))
    }

    fn abort_exchange(self: Pin<&mut Self>, _: ExchangeId) -> Result<(), Unsupported> {
        Err(Unsupported)
    }

    /// Posts what waits, tells the server of the end, then ends.
    fn poll_close(
        mut self: Pin<&mut Self>,
        _: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.queue = None;
        if let Some(posting) = &mut self.posting {
            std::task::ready!(Pin::new(posting).poll(cx)).ok();
            self.posting = None;
        }
        {
            let mut state = self.client.state();
            while state.cancels.try_join_next().is_some() {}
            if !state.cancels.is_empty() {
                state.driver = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
        if self.farewell.is_none() {
            self.farewell = Some(tokio::spawn(Arc::clone(&self.client).say_farewell()));
        }
        if let Some(farewell) = &mut self.farewell {
            std::task::ready!(Pin::new(farewell).poll(cx)).ok();
        }
        self.client.close();
        Poll::Ready(Ok(()))
    }
}

impl Drop for ClientSender {
    fn drop(&mut self) {
        if let Some(posting) = self.posting.take() {
            posting.abort();
        }
        self.client.close();
        // Dropped without being closed, it still tells the server, which else would wait for it to come back.
        if let (None, Ok(runtime)) = (&self.farewell, tokio::runtime::Handle::try_current()) {
            runtime.spawn(Arc::clone(&self.client).say_farewell());
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("requester", &self.requester).finish_non_exhaustive()
    }
}
