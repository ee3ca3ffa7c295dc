//! The calling side: a POST for each frame; giving one up is the cancel of its request.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, Version};
use http_body_util::BodyExt;
use rescind_core::{
    BadFrame, BoxFuture, CloseReason, ExchangeId, FrameKind, Inbound, Lane, Link, LinkTraits, Meta, Outbound,
    Sender, Transport, TransportError, TransportErrorKind, TransportEvent, Unsupported,
};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::envelope::Envelope;
use super::mirror::Mirrors;
use crate::client::events::{Events, Read};
use crate::client::{Failed, HttpClient, Media, Reply, Requester, Resets, media_of, refusal};
use crate::intake::{Intake, IntakeReceiver};
use crate::names::{BOTH, JSON};
use crate::numbers::Numbered;
use crate::streamable::peek;
use crate::whole::{NotWhole, whole};

/// Requests in flight at a time; more wait in the outbox.
const FLIGHTS: usize = 1024;
/// A request that is given up has so long to get its response's head.
const FOR_THE_HEAD: Duration = Duration::from_millis(250);
/// After its answer a stream has so long to end, so that its connection can be used again.
const AFTER_ANSWER: Duration = Duration::from_secs(1);

/// Streams of HTTP/2 reset at once; then one each [`RESET_EVERY`]. Closing its stream is the only cancel there is here, so
/// a reset is late at worst, and never left out.
const RESETS: u32 = 200;
const RESET_EVERY: Duration = Duration::from_millis(30);

/// The calling side of the binding `stateless`: a transport to one URL.
///
/// # What the caller adds
/// The revision has no handshake: each request says in its `params._meta` what a handshake would have said, and is refused
/// without (400 and -32602). The wire never writes into a body, so this is the caller's to do, in every call:
///
/// ```json
/// {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
///            "io.modelcontextprotocol/clientCapabilities": {}}}
/// ```
///
/// The headers that mirror a body (`MCP-Protocol-Version`, `Mcp-Method`, `Mcp-Name`) are made here. Which arguments of
/// `tools/call` a server wants in `Mcp-Param-*` headers is in its tools' schemas (`x-mcp-header`), which a wire does not
/// read: say it with [`mirror`](Self::mirror), and leave out tools whose annotations it refuses, as the revision asks.
///
/// # Cancels
/// Giving a call up closes its stream; over HTTP/2 that is a reset. Servers end connections that reset much, so after 200
/// at once each further reset waits for its turn, 30 ms apart; what still comes for such a call is dropped, and calls that
/// were given up count as in flight until then.
#[derive(Clone, Debug)]
#[must_use = "a transport does nothing until it is opened"]
pub struct StatelessTransport {
    client: HttpClient,
    mirrors: Mirrors,
}

impl StatelessTransport {
    /// A transport that goes where this client goes.
    pub fn new(client: HttpClient) -> Self {
        Self { client, mirrors: Mirrors::default() }
    }

    /// Mirrors the argument in the header `Mcp-Param-{name}` of calls of this tool, where the argument is there and not
    /// null. It is a name, or the names from the outer one inwards: where the tool's schema has `"x-mcp-header": name`.
    ///
    /// # Errors
    /// The name cannot be part of a header's, or the tool has it already; the argument is empty.
    pub fn mirror(mut self, tool: &str, argument: &[&str], name: &str) -> Result<Self, TransportError> {
        self.mirrors.add(tool, argument, name)?;
        Ok(self)
    }
}

impl Transport for StatelessTransport {
    fn name(&self) -> &'static str {
        "http-stateless"
    }

    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(async move {
            let reached = self.client.reach().await;
            reached.map_err(|error| TransportError::new(TransportErrorKind::Open, error))?;
            let max_frame = self.client.max_frame;
            let client = Arc::new(Client {
                requester: Requester::new(&self.client),
                intake: Intake::new(max_frame),
                max_frame,
                mirrors: self.mirrors,
                maybe_http2: self.client.http2 || self.client.uri.scheme_str() == Some("https"),
                state: Mutex::new(State::new()),
            });
            let traits = LinkTraits {
                ordered: false,
                exchanges_abortable: true,
                exchange_scoped: true,
                peer_can_request: false,
                resumable: false,
                batches: false,
                max_frame,
            };
            let receiver = IntakeReceiver(Arc::clone(&client.intake));
            let peer = self.client.uri.authority().map(ToString::to_string).unwrap_or_default();
            Ok(Link::new(receiver, ClientSender(client), traits, Meta::of_peer(&peer)))
        })
    }
}

struct Client {
    requester: Requester,
    intake: Arc<Intake>,
    max_frame: usize,
    mirrors: Mirrors,
    /// Before a response says so: giving up may be a reset.
    maybe_http2: bool,
    state: Mutex<State>,
}

struct State {
    flights: Numbered<Flight>,
    next: u64,
    /// Requests in flight, those given up among them.
    requests: usize,
    resets: Resets,
    /// Exchanges that were given up and are about to end: bulk waits for them, or their tasks would run behind its.
    leaving: usize,
    closed: bool,
    driver: Option<Waker>,
}

impl State {
    fn new() -> Self {
        let resets = Resets::new(RESETS, RESET_EVERY);
        Self {
            flights: Numbered::default(),
            next: 0,
            requests: 0,
            resets,
            leaving: 0,
            closed: false,
            driver: None,
        }
    }
}

/// A POST on its way, until its response has ended.
struct Flight {
    task: AbortHandle,
    /// Of a request.
    asks: bool,
    /// The head of its response is there.
    headed: bool,
    /// It counts among those that are leaving.
    leaves: bool,
    given_up: Arc<GivenUp>,
}

/// Whether a POST is given up. It stays so.
#[derive(Default)]
struct GivenUp {
    is_so: AtomicBool,
    told: Notify,
}

impl GivenUp {
    fn is_so(&self) -> bool {
        self.is_so.load(Ordering::Acquire)
    }

    fn give_up(&self) {
        self.is_so.store(true, Ordering::Release);
        self.told.notify_waiters();
    }

    async fn wait(&self) {
        loop {
            let told = self.told.notified();
            if self.is_so() {
                return;
            }
            told.await;
        }
    }
}

impl Flight {
    fn is_given_up(&self) -> bool {
        self.given_up.is_so()
    }

    /// It is owed nothing and has yet to reach the server.
    fn has_to_arrive(&self) -> bool {
        if self.asks { self.is_given_up() && !self.headed } else { true }
    }
}

impl Client {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a flight out; the driver looks again.
    fn land(&self, key: u64) -> Option<Flight> {
        let (flight, waker) = {
            let mut state = self.state();
            let flight = state.flights.remove(&key);
            state.requests -= usize::from(flight.as_ref().is_some_and(|flight| flight.asks));
            state.leaving -= usize::from(flight.as_ref().is_some_and(|flight| flight.leaves));
            (flight, state.driver.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        flight
    }

    fn start(self: &Arc<Self>, out: Outbound) {
        let asks = out.head.kind == FrameKind::Request;
        let mut state = self.state();
        state.next += 1;
        let key = out.exchange.call().map_or(state.next, |_| out.exchange.0);
        let client = Arc::clone(self);
        let (exchange, body) = (out.exchange, out.body);
        let given_up = Arc::<GivenUp>::default();
        let told = Arc::clone(&given_up);
        let task = tokio::spawn(async move {
            let ended = client.fly(key, exchange, body, &told).await;
            let asks = client.land(key).is_some_and(|flight| flight.asks && !flight.is_given_up());
            match ended {
                Err(Failed { sent, error }) if asks => {
                    client.intake.tell(TransportEvent::ExchangeFailed { exchange, sent, error });
                }
                Err(Failed { error, .. }) => tracing::debug!(%error, "a message was not taken"),
                Ok(()) => {}
            }
        });
        state.requests += usize::from(asks);
        let flight = Flight { task: task.abort_handle(), asks, headed: false, leaves: false, given_up };
        state.flights.insert(key, flight);
    }

    /// Posts one message and reads what comes back, until it is given up. `Ok`: it was answered, or taken where no answer
    /// is owed. What is given up early is let reach the server first, so that its cancel is one.
    async fn fly(
        &self,
        key: u64,
        exchange: ExchangeId,
        body: Bytes,
        given_up: &GivenUp,
    ) -> Result<(), Failed> {
        let mut headers = HeaderMap::with_capacity(6);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        headers.insert(ACCEPT, HeaderValue::from_static(BOTH));
        Envelope::read(&body).unwrap_or_default().headers(&mut headers, &self.mirrors);
        let mut given_up = pin!(given_up.wait());
        let (response, is_given_up) = {
            let mut sending = pin!(self.requester.post(FrameKind::Request, headers, body, None));
            let sent = tokio::select! {
                biased;
                response = sending.as_mut() => Some(response),
                () = given_up.as_mut() => None,
            };
            if let Some(response) = sent {
                (response?, false)
            } else {
                let Some(response) = Box::pin(self.wait_for_head(sending)).await else {
                    tracing::debug!(key, "given up without a head");
                    return Ok(());
                };
                (response?, true)
            }
        };
        let resets = response.version() >= Version::HTTP_2;
        if let Some(flight) = self.state().flights.get_mut(&key) {
            flight.headed = true;
        }
        let mut reading = pin!(self.read(exchange, response));
        if !is_given_up {
            tokio::select! {
                biased;
                () = given_up => {}
                read = reading.as_mut() => return read,
            }
        }
        if resets && !self.may_reset_now(key) {
            // What comes meanwhile is read, so that it does not pile up, and dropped.
            tokio::select! {
                biased;
                () = self.may_reset() => {}
                _ = reading => {}
            }
        }
        Ok(())
    }

    /// What was given up is let reach the server, but not for long.
    async fn wait_for_head<T>(&self, sending: impl Future<Output = T>) -> Option<T> {
        let waited = async {
            tokio::time::sleep(FOR_THE_HEAD).await;
            if self.maybe_http2 {
                self.may_reset().await;
            }
        };
        tokio::select! {
            biased;
            response = sending => Some(response),
            () = waited => None,
        }
    }

    /// Whether it is a reset's turn. One that has to wait holds nothing up.
    fn may_reset_now(&self, key: u64) -> bool {
        let mut state = self.state();
        if state.resets.take().is_ok() {
            return true;
        }
        let left = state.flights.get_mut(&key).is_some_and(|flight| std::mem::take(&mut flight.leaves));
        state.leaving -= usize::from(left);
        let driver = state.driver.take();
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        false
    }

    /// Waits for a reset's turn.
    async fn may_reset(&self) {
        loop {
            let taken = self.state().resets.take();
            let Err(wait) = taken else { return };
            tokio::time::sleep(wait).await;
        }
    }

    async fn read(&self, exchange: ExchangeId, response: Response<Reply>) -> Result<(), Failed> {
        let (head, body) = response.into_parts();
        let answered = match head.headers.get(CONTENT_TYPE).map(media_of) {
            Some(Media::Events) => Box::pin(self.read_events(exchange, body)).await,
            Some(Media::Json) => self.read_one(exchange, body).await?,
            Some(Media::Other) | None => false,
        };
        // A request is not answered by being taken.
        let asks = self.state().flights.get(&exchange.0).is_some_and(|flight| flight.asks);
        if answered || (head.status == http::StatusCode::ACCEPTED && !asks) {
            return Ok(());
        }
        let text = refusal(head.status, &head.headers);
        Err(Failed { sent: true, error: TransportError::new(TransportErrorKind::Io, text) })
    }

    async fn read_one(&self, exchange: ExchangeId, body: Reply) -> Result<bool, Failed> {
        let error = match whole(body, self.max_frame).await {
            Ok(body) => return Ok(!body.is_empty() && self.take(exchange, body).await),
            Err(NotWhole::TooLarge) => {
                TransportError::new(TransportErrorKind::Io, "the response is over the limit")
            }
            Err(NotWhole::Broken(error)) => TransportError::new(TransportErrorKind::Io, error),
        };
        Err(Failed { sent: true, error })
    }

    async fn read_events(&self, exchange: ExchangeId, mut body: Reply) -> bool {
        let mut events = Events::new(self.max_frame);
        let mut answered = false;
        loop {
            let frame = body.frame();
            let frame = if answered {
                tokio::time::timeout(AFTER_ANSWER, frame).await.unwrap_or_default()
            } else {
                frame.await
            };
            let Some(Ok(frame)) = frame else { return answered };
            let Ok(data) = frame.into_data() else { continue };
            events.push(&data);
            while let Some(read) = events.next() {
                match read {
                    Read::TooLarge => {
                        let why = BadFrame::TooLarge { limit: self.max_frame };
                        self.intake.tell(TransportEvent::Rejected { exchange: ExchangeId::NONE, why });
                    }
                    Read::Event(event) if event.data.is_empty() => {}
                    Read::Event(event) => answered |= self.take(exchange, event.data).await,
                }
            }
        }
    }

    /// Hands a message on. `true`: it answers the request of its exchange.
    async fn take(&self, exchange: ExchangeId, body: Bytes) -> bool {
        let answers = peek::answers_one(&body);
        if self.state().flights.get(&exchange.0).is_some_and(Flight::is_given_up) {
            return answers;
        }
        let mut inbound = Inbound::new(body);
        inbound.exchange = exchange;
        let _ = self.intake.put(inbound).await;
        answers
    }

    fn close(&self) {
        let flights = {
            let mut state = self.state();
            state.closed = true;
            std::mem::take(&mut state.flights)
        };
        for flight in flights.into_values() {
            flight.task.abort();
        }
        self.intake.end();
    }
}

struct ClientSender(Arc<Client>);

fn refused(kind: TransportErrorKind, exchange: ExchangeId, text: String) -> TransportError {
    TransportError { exchange: Some(exchange), ..TransportError::new(kind, text) }
}

impl Sender for ClientSender {
    fn poll_ready(
        self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let mut state = self.0.state();
        if state.closed {
            return Poll::Ready(Err(TransportError::new(TransportErrorKind::Closed, "the link is closed")));
        }
        if lane == Lane::Bulk && (state.requests >= FLIGHTS || state.leaving > 0) {
            state.driver = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        let limit = self.0.max_frame;
        if out.body.len() > limit {
            let text = format!("the frame is larger than {limit} bytes and was not sent");
            return Err(refused(TransportErrorKind::TooLarge, out.exchange, text));
        }
        if out.head.kind == FrameKind::Answer {
            let text = "a client posts no answers here".to_owned();
            return Err(refused(TransportErrorKind::Closed, out.exchange, text));
        }
        self.0.start(out);
        Ok(())
    }

    /// Each POST is on its way once it is taken.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(Ok(()))
    }

    fn abort_exchange(self: Pin<&mut Self>, exchange: ExchangeId) -> Result<(), Unsupported> {
        let mut state = self.0.state();
        let Some(flight) = state.flights.get_mut(&exchange.0) else { return Ok(()) };
        flight.given_up.give_up();
        // Without a head it may take a while; nothing is held up for that.
        let leaves = flight.headed && !std::mem::replace(&mut flight.leaves, flight.headed);
        state.leaving += usize::from(leaves);
        Ok(())
    }

    /// Requests are given up; what is owed nothing is let arrive.
    fn poll_close(
        self: Pin<&mut Self>,
        _: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let told = {
            let mut state = self.0.state();
            let mut requests = 0;
            state.flights.retain(|_, flight| {
                let stays = flight.has_to_arrive();
                if stays {
                    requests += usize::from(flight.asks);
                } else {
                    flight.task.abort();
                }
                stays
            });
            state.requests = requests;
            state.driver = Some(cx.waker().clone());
            state.flights.len()
        };
        if told > 0 {
            return Poll::Pending;
        }
        self.0.close();
        Poll::Ready(Ok(()))
    }
}

impl Drop for ClientSender {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("requester", &self.requester).finish_non_exhaustive()
    }
}
