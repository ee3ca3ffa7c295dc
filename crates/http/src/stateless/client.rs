//! The client side: one POST for each frame. To cancel a request, the client closes its response stream.
//!
//! # What this file holds
//!
//! The transport, the state that the tasks of a client share, one POST in flight, and the sending half that the driver
//! uses.

use std::future::Future;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version};
use rescind_core::{
    BoxFuture, CloseReason, Deviation, ExchangeId, FrameKind, Inbound, Lane, Link, MCP_2026_BODIES,
    MirroredBodies, Outbound, RequestId, Sender, TraceContext, Transport, TransportError, TransportErrorKind,
    TransportEvent, Unsupported,
};
use tokio_util::sync::CancellationToken;

use crate::client::{
    AbortOnDrop, Attempts, BEGINNING, ClientCore, EventStream, Failed, Fault, HttpClient, InFlightTasks,
    Media, Resets, ResponseBody, beginning, body_error, closed, encoded, kept, may_have_page, media_of,
    refusal, stream_refusal,
};
use crate::envelope::{BOTH, JSON, Reply, check_size, unmarked};
use crate::stateless::mirror::Mirrors;
use crate::stateless::mirrored_headers::Message;
use crate::sync::{AbortHandle, IntMap, Mutex, spawn};

/// The client side of the binding `stateless`: a transport to one URL.
///
/// # What the caller adds
///
/// The revision has no handshake. Each request states in its `params._meta` what a handshake would have stated, and a
/// request without it is refused (400 and -32602). The transport never changes a body, so the caller must add this to
/// every call:
///
/// ```json
/// {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
///            "io.modelcontextprotocol/clientCapabilities": {}}}
/// ```
///
/// The transport itself adds the headers that mirror a body (`MCP-Protocol-Version`, `Mcp-Method`, `Mcp-Name`). The
/// tools' schemas (`x-mcp-header`) define which arguments of `tools/call` a server expects in `Mcp-Param-*` headers.
/// The transport does not read these schemas: set the headers with [`mirror`](Self::mirror), and leave out tools whose
/// annotations it refuses, as the revision requires.
///
/// # Cancels
///
/// A cancelled call closes its stream; over HTTP/2 this is a reset. Servers close connections that reset many streams,
/// so 200 resets may be sent at once, and each further reset is sent 30 ms after the one before it. Until its reset is
/// sent, a cancelled call counts as in flight, and its messages are dropped.
#[derive(Clone, Debug)]
#[must_use = "a transport does nothing until it is opened"]
pub struct StatelessTransport {
    client: HttpClient,
    mirrors: Mirrors,
    bodies: &'static MirroredBodies,
}

impl StatelessTransport {
    /// A transport to this client's URL.
    pub fn new(client: HttpClient) -> Self {
        Self { client, mirrors: Mirrors::default(), bodies: &MCP_2026_BODIES }
    }

    /// Sets which parts of a body the headers repeat, for a protocol of your own. Default: [`MCP_2026_BODIES`].
    pub const fn bodies(mut self, bodies: &'static MirroredBodies) -> Self {
        self.bodies = bodies;
        self
    }

    /// Mirrors the argument in the header `Mcp-Param-{name}` of calls of this tool, if the argument is present and not
    /// null. The argument is given by its name, or by the names from the outermost object inwards. It is the one with
    /// `"x-mcp-header": name` in the tool's schema.
    ///
    /// # Errors
    /// The name is not valid in a header name, the tool has it already, or the argument is empty.
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
            let client = Arc::new(Client::new(&self.client, self.mirrors, self.bodies));
            let peer = client.requester.reach().await?;
            Ok(client.link(ClientSender(Arc::clone(&client)), true, peer))
        })
    }
}

/// The most HTTP/2 streams that are reset at once. After that, one stream is reset each [`RESET_EVERY`]. The only
/// cancel of this binding is to close a stream, so a reset may be late but is never omitted.
const RESETS: u32 = 200;
const RESET_EVERY: Duration = Duration::from_millis(30);

struct Client {
    core: ClientCore<StatelessClientState>,
    mirrors: Mirrors,
    bodies: &'static MirroredBodies,
    /// Whether the connection may use HTTP/2, before a response shows its version. With HTTP/2, a cancel may be a
    /// reset.
    maybe_http2: bool,
}

struct StatelessClientState {
    in_flight: IntMap<InFlight>,
    next: u64,
    /// Requests in flight, including abandoned ones.
    requests: usize,
    resets: Resets,
    /// Abandoned exchanges that are about to end. Data frames wait for them; otherwise the tasks of those frames would
    /// run before theirs.
    leaving: usize,
}

impl StatelessClientState {
    fn new() -> Self {
        let resets = Resets::new(RESETS, RESET_EVERY);
        Self { in_flight: IntMap::default(), next: 0, requests: 0, resets, leaving: 0 }
    }
}

/// A POST in flight, until its response has ended.
struct InFlight {
    task: AbortHandle,
    /// Whether it is a request.
    is_request: bool,
    /// Whether the head of its response has arrived.
    has_head: bool,
    /// Whether it counts in `leaving`.
    counts_as_leaving: bool,
    given_up: CancellationToken,
}

impl InFlight {
    fn is_given_up(&self) -> bool {
        self.given_up.is_cancelled()
    }

    /// Whether it must still reach the server although no answer is expected.
    fn has_to_arrive(&self) -> bool {
        if self.is_request { self.is_given_up() && !self.has_head } else { true }
    }
}

impl Client {
    fn new(client: &HttpClient, mirrors: Mirrors, bodies: &'static MirroredBodies) -> Self {
        Self {
            core: ClientCore::new(client, StatelessClientState::new()),
            mirrors,
            bodies,
            maybe_http2: client.http2 || client.uri.scheme_str() == Some("https"),
        }
    }

    /// Removes a POST from the ones in flight and wakes the driver.
    fn remove(&self, key: u64) -> Option<InFlight> {
        self.step(|state| {
            let flight = state.in_flight.remove(&key);
            state.requests -= usize::from(flight.as_ref().is_some_and(|flight| flight.is_request));
            state.leaving -= usize::from(flight.as_ref().is_some_and(|flight| flight.counts_as_leaving));
            flight
        })
    }
}

impl Deref for Client {
    type Target = ClientCore<StatelessClientState>;

    fn deref(&self) -> &ClientCore<StatelessClientState> {
        &self.core
    }
}

impl InFlightTasks for StatelessClientState {
    type Tasks = AbortOnDrop;

    fn take_tasks(&mut self) -> AbortOnDrop {
        std::mem::take(&mut self.in_flight).into_values().map(|flight| flight.task).collect()
    }
}

/// How long an abandoned request waits for the head of its response.
const FOR_THE_HEAD: Duration = Duration::from_millis(250);

/// The headers of a message for each time that it is posted, and whether it may still be posted.
struct PostAttempts<'a> {
    client: &'a Client,
    /// The headers of the first time.
    first: Mutex<Option<HeaderMap>>,
    /// For further times.
    body: Option<Bytes>,
    trace: Option<&'a TraceContext>,
    given_up: &'a CancellationToken,
}

impl<'a> PostAttempts<'a> {
    fn new(
        client: &'a Client,
        body: &Bytes,
        trace: Option<&'a TraceContext>,
        given_up: &'a CancellationToken,
    ) -> Self {
        let first = Mutex::new(Some(headers_of(client, body, trace)));
        Self { client, first, body: kept(body), trace, given_up }
    }
}

fn headers_of(client: &Client, body: &Bytes, trace: Option<&TraceContext>) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    headers.insert(ACCEPT, HeaderValue::from_static(BOTH));
    Message::of_own(body, client.bodies).headers(&mut headers, &client.mirrors);
    if let Some(trace) = trace {
        trace.set_headers(&mut headers);
    }
    headers
}

impl Attempts for PostAttempts<'_> {
    fn headers(&self) -> HeaderMap {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let again = || self.body.as_ref().map(|body| headers_of(self.client, body, self.trace));
        first.or_else(again).unwrap_or_default()
    }

    async fn stopped(&self) {
        self.given_up.cancelled().await;
    }
}

impl Client {
    fn start(self: &Arc<Self>, out: Outbound) {
        let is_request = out.head.kind == FrameKind::Request;
        let own = out.head.id.filter(|_| is_request);
        let mut state = self.state();
        state.next += 1;
        let key = out.exchange.call().map_or(state.next, |_| out.exchange.0);
        let client = Arc::clone(self);
        let (exchange, body, trace) = (out.exchange, out.body, out.head.trace);
        let given_up = CancellationToken::new();
        let token = given_up.clone();
        let task = spawn(async move {
            let ended = client.run((key, own), exchange, body, trace, &token).await;
            let is_request =
                client.remove(key).is_some_and(|flight| flight.is_request && !flight.is_given_up());
            if let Err(failed) = ended {
                client.report(exchange, is_request, failed);
            }
        });
        state.requests += usize::from(is_request);
        let flight = InFlight {
            task: task.abort_handle(),
            is_request,
            has_head: false,
            counts_as_leaving: false,
            given_up,
        };
        state.in_flight.insert(key, flight);
    }

    /// Posts one message and reads the response until the request is abandoned. `Ok`: it was answered, or the server
    /// has taken a message that needs no answer. A request that is abandoned early still gets a short time to reach the
    /// server, because otherwise its cancel would cancel nothing.
    async fn run(
        &self,
        (key, own): (u64, Option<RequestId>),
        exchange: ExchangeId,
        body: Bytes,
        trace: Option<Arc<TraceContext>>,
        given_up: &CancellationToken,
    ) -> Result<(), Failed> {
        let attempts = PostAttempts::new(self, &body, trace.as_deref(), given_up);
        let mut given_up = pin!(given_up.cancelled());
        let (response, is_given_up) = {
            let mut sending = pin!(self.requester.post(FrameKind::Request, &attempts, body, None));
            let sent = tokio::select! {
                biased;
                response = sending.as_mut() => Some(response),
                () = given_up.as_mut() => None,
            };
            if let Some(response) = sent {
                let kind = if own.is_some() { FrameKind::Request } else { FrameKind::Notification };
                (self.count_if_lost(kind, response)?, false)
            } else {
                let Some(response) = Box::pin(self.wait_for_head(sending)).await else {
                    tracing::debug!(key, "a request was stopped before its response began");
                    return Ok(());
                };
                (response?, true)
            }
        };
        let resets = response.version() >= Version::HTTP_2;
        if let Some(flight) = self.state().in_flight.get_mut(&key) {
            flight.has_head = true;
        }
        let mut reading = pin!(self.read(exchange, own.as_ref(), response));
        if !is_given_up {
            tokio::select! {
                biased;
                () = given_up => {}
                read = reading.as_mut() => return read,
            }
        }
        if resets && !self.may_reset_now(key) {
            // The response is still read meanwhile, so that it does not pile up, and its messages are dropped.
            tokio::select! {
                biased;
                () = self.may_reset() => {}
                _ = reading => {}
            }
        }
        Ok(())
    }

    /// Gives an abandoned request a short time to reach the server.
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

    /// Whether a reset is allowed now. A request whose reset must wait does not hold up other frames.
    fn may_reset_now(&self, key: u64) -> bool {
        let mut state = self.state();
        if state.resets.take().is_ok() {
            return true;
        }
        let left =
            state.in_flight.get_mut(&key).is_some_and(|flight| std::mem::take(&mut flight.counts_as_leaving));
        state.leaving -= usize::from(left);
        drop(state);
        self.step(|_| false)
    }

    /// Waits until a reset is allowed.
    async fn may_reset(&self) {
        loop {
            let taken = self.state().resets.take();
            let Err(wait) = taken else { return };
            tokio::time::sleep(wait).await;
        }
    }

    async fn read(
        &self,
        exchange: ExchangeId,
        own: Option<&RequestId>,
        response: Response<ResponseBody>,
    ) -> Result<(), Failed> {
        let (head, mut body) = response.into_parts();
        let media = head.headers.get(CONTENT_TYPE).map(media_of);
        let is_message = matches!(media, Some(Media::Events | Media::Json));
        // 202 does not answer a request.
        if own.is_none() && head.status.is_success() && !is_message {
            if may_have_page(&head, &body) {
                Box::pin(self.read_unasked(&head, body)).await;
            }
            return Ok(());
        }
        let address = || self.requester.address();
        if let Some(failed) = encoded(&head, address) {
            return Err(self.count_unanswered(failed));
        }
        let (reply, last_sent) = match media {
            Some(Media::Events) => {
                let (reply, last_sent, fault) = Box::pin(self.read_events(exchange, own, body)).await;
                if let Some(fault) = fault.filter(|_| reply == Reply::Nothing && own.is_some()) {
                    let text = stream_refusal(&head, &address(), Some(&fault), &last_sent);
                    return Err(self.count_unanswered(Failed::new(true, text)));
                }
                (reply, last_sent)
            }
            Some(Media::Json) => {
                let read = self
                    .whole_message(&mut body)
                    .await
                    .map_err(|error| body_error(&head, &address(), error))?;
                let read = unmarked(&self.inbound_queue, read);
                (self.take(exchange, own, head.status, read.clone()).await, read)
            }
            Some(Media::Other) | None => {
                let limit =
                    if own.is_some() && head.status.is_success() { self.max_frame } else { BEGINNING };
                let read = Box::pin(beginning(body, limit)).await.0;
                // Without a content type, only what is certain counts.
                if Reply::of(&read, own) == Reply::Own {
                    let sent = read.clone();
                    let deviation = Deviation::ContentType;
                    self.inbound_queue.push_event(TransportEvent::Deviation { deviation, sent });
                    (self.take(exchange, own, head.status, read.clone()).await, read)
                } else {
                    (Reply::Nothing, read)
                }
            }
        };
        if reply == Reply::Own || (own.is_none() && head.status.is_success()) {
            return Ok(());
        }
        let text = refusal(&head, &address(), &last_sent);
        let failed = Failed::new(true, text);
        // If the driver knows better what the answer means, it counts that.
        let is_counted = reply.is_unclear() || !head.status.is_success();
        Err(if is_counted { failed } else { self.count_unanswered(failed) })
    }

    /// Reads a stream to its end. Returns whether the answer was on it, the last event that is not the answer, or what the
    /// stream has instead of events, and why the stream could not have the answer.
    async fn read_events(
        &self,
        exchange: ExchangeId,
        own: Option<&RequestId>,
        body: ResponseBody,
    ) -> (Reply, Bytes, Option<String>) {
        let mut events = EventStream::new(body, self.max_frame, &self.inbound_queue).of_exchange(exchange);
        let (mut best, mut last, mut fault) = (Reply::Nothing, Bytes::new(), None);
        while let Some(event) = events.next().await {
            if event.data.is_empty() {
                continue;
            }
            let data = event.data.clone();
            let reply = self.take(exchange, own, StatusCode::OK, event.data.clone()).await;
            if let Some(wrong) = Fault::of(&event, reply) {
                fault = Some(wrong);
                events.answered();
            }
            match reply {
                Reply::Own => best = Reply::Own,
                Reply::UnnamedError | Reply::Unclear if best != Reply::Own => best = Reply::Unclear,
                Reply::Nothing | Reply::OtherAnswer => last = data,
                Reply::UnnamedError | Reply::Unclear | Reply::Other => {}
            }
            if best != Reply::Nothing {
                events.answered();
            }
        }
        let fault = fault.or_else(|| events.fault()).map(|fault| fault.shown(own, events.has_ended()));
        let stray = events.stray();
        (best, if stray.is_empty() { last } else { stray }, fault)
    }

    /// Passes a message on, and returns what it is for the request of its exchange.
    async fn take(
        &self,
        exchange: ExchangeId,
        own: Option<&RequestId>,
        status: StatusCode,
        body: Bytes,
    ) -> Reply {
        let reply = Reply::of(&body, own).with_status(status);
        let is_given_up = self.state().in_flight.get(&exchange.0).is_some_and(InFlight::is_given_up);
        if reply == Reply::Nothing || is_given_up {
            return reply;
        }
        let mut inbound = Inbound::new(body);
        inbound.exchange = exchange;
        let _ = self.inbound_queue.send(inbound).await;
        reply
    }
}

/// The most requests in flight. Further requests wait in the outbox.
const MAX_IN_FLIGHT: usize = 1024;

struct ClientSender(Arc<Client>);

impl Sender for ClientSender {
    fn poll_ready(
        self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let mut state = self.0.state();
        if state.closed {
            return Poll::Ready(Err(closed()));
        }
        if lane == Lane::Data && (state.requests >= MAX_IN_FLIGHT || state.leaving > 0) {
            state.driver = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        if self.0.state().closed {
            return Err(closed());
        }
        check_size(&out, self.0.max_frame)?;
        if out.head.kind == FrameKind::Answer {
            let error = TransportError::new(TransportErrorKind::Closed, "a client posts no answers here");
            return Err(TransportError { exchange: Some(out.exchange), ..error });
        }
        self.0.start(out);
        Ok(())
    }

    /// Nothing to flush: a POST that was accepted is already on its way.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(Ok(()))
    }

    fn abort_exchange(self: Pin<&mut Self>, exchange: ExchangeId) -> Result<(), Unsupported> {
        let mut state = self.0.state();
        let Some(flight) = state.in_flight.get_mut(&exchange.0) else { return Ok(()) };
        flight.given_up.cancel();
        // Without a head, the request may need a while to end. Other frames do not wait for it.
        let begins_to_leave =
            flight.has_head && !std::mem::replace(&mut flight.counts_as_leaving, flight.has_head);
        state.leaving += usize::from(begins_to_leave);
        Ok(())
    }

    /// Aborts the requests. POSTs that need no answer, and abandoned requests without a head, still get time to arrive.
    fn poll_close(
        self: Pin<&mut Self>,
        _: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let reported = {
            let mut state = self.0.state();
            let mut requests = 0;
            state.in_flight.retain(|_, flight| {
                let stays = flight.has_to_arrive();
                if stays {
                    requests += usize::from(flight.is_request);
                } else {
                    flight.task.abort();
                }
                stays
            });
            state.requests = requests;
            state.driver = Some(cx.waker().clone());
            state.in_flight.len()
        };
        if reported > 0 {
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
