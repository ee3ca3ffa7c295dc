//! The POST of a frame: when it may be sent, what its response is, and how it ends.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::response::Parts;
use http::{Extensions, HeaderMap, HeaderValue, Response, StatusCode};
use rescind_core::{
    BadFrame, Deviation, ErrorCode, ExchangeId, FrameKind, Inbound, Outbound, RequestId, TraceContext,
    TransportError, TransportEvent,
};

use super::renewal::Renewed;
use super::streams;
use super::{Order, legacy};
use crate::client::{
    Attempts, BEGINNING, Failed, Media, ResponseBody, beginning, body_error, encoded, kept, may_have_page,
    media_of, not_kept, refusal,
};
use crate::envelope::{CollectError, Envelope, MCP_SESSION_ID, Reply, unmarked};
use crate::streamable::client::{Client, InFlight, SessionPhase, StreamableClientState};
use crate::sync::spawn;

/// The first revision that has the header `MCP-Protocol-Version`.
const HEADER_SINCE: &str = "2025-03-26";
/// How often a frame is sent that its server refuses because of its session.
const SESSIONS: usize = 3;

/// Counts a frame among those in flight until its task ends, for whatever reason.
struct RunningSend {
    client: Arc<Client>,
    number: u64,
    kind: FrameKind,
    bytes: usize,
    /// Whether its response has ended without an error.
    is_answered: bool,
    /// For a cancel that may be sent at once.
    leaving: Option<Leaving>,
    /// Until its request is made.
    trace: Option<Arc<TraceContext>>,
}

impl RunningSend {
    /// The id of the request. If its response `begins`, the session of then is noted.
    fn begin_response(&self, begins: bool) -> Option<RequestId> {
        let mut state = self.client.state();
        let session = state.record.number;
        let flight = state.in_flight.get_mut(&self.number)?;
        if begins {
            flight.session = Some(session);
        }
        flight.id.clone()
    }

    /// Called when the response has begun, or when the request has waited long enough.
    fn mark_started(&self) {
        self.client.step(|state| state.mark_started(self.number, self.bytes));
        self.client.moved.notify_waiters();
    }
}

impl Client {
    /// The id and the exchange of a request in flight.
    fn id_and_exchange(&self, number: u64) -> Option<(RequestId, ExchangeId)> {
        let state = self.state();
        let flight = state.in_flight.get(&number)?;
        Some((flight.id.clone()?, flight.exchange?))
    }
}

impl StreamableClientState {
    fn mark_started(&mut self, number: u64, bytes: usize) {
        let pending = self.in_flight.get_mut(&number).map(|flight| &mut flight.pending);
        if pending.is_some_and(std::mem::take) {
            self.pending.0 = self.pending.0.saturating_sub(bytes);
            self.pending.1 = self.pending.1.saturating_sub(1);
        }
    }
}

impl Drop for RunningSend {
    fn drop(&mut self) {
        self.client.step(|state| {
            state.mark_started(self.number, self.bytes);
            let flight = state.in_flight.remove(&self.number);
            if let Some(id) = flight.and_then(|flight| flight.id) {
                state.note_ended(id, self.is_answered);
            }
            if self.kind == FrameKind::Request {
                state.requests = state.requests.saturating_sub(1);
            }
        });
        self.client.moved.notify_waiters();
    }
}

/// A cancel that is about to be written.
struct Leaving(Arc<Client>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.step(|state| state.leaving -= 1);
    }
}

/// Sends a frame in its own task.
pub(super) fn start_post(client: &Arc<Client>, out: Outbound) {
    let kind = out.head.kind;
    let (number, waits, opens, leaves) = {
        let mut state = client.state();
        let number = state.next;
        state.next += 1;
        state.pending.0 += out.body.len();
        state.pending.1 += 1;
        let mut waits: Vec<u64> = Vec::new();
        let bodies = client.settings.renewal;
        let shakes = kind == FrameKind::Request && out.head.method.as_deref() == Some(bodies.opening);
        let opens = matches!(state.standing, SessionPhase::Unopened) || (shakes && state.id.is_none());
        if client.settings.renews && matches!(kind, FrameKind::Request | FrameKind::Notification) {
            state.record.note(bodies, &out);
        }
        if let SessionPhase::FirstMessage(first) = state.standing {
            waits.push(first);
        }
        if opens {
            state.standing = SessionPhase::FirstMessage(number);
        }
        if client.settings.order == Order::AsSent {
            waits.extend(state.latest.replace(number));
        }
        match kind {
            FrameKind::Request => {
                state.requests += 1;
                waits.extend_from_slice(&state.notified);
            }
            FrameKind::Notification => {
                waits.append(&mut state.notified);
                let requests = state.in_flight.iter().filter(|(_, flight)| flight.exchange.is_some());
                waits.extend(requests.map(|(request, _)| *request));
                state.notified.push(number);
            }
            FrameKind::Cancel => {
                let mut notified = std::mem::take(&mut state.notified);
                notified.retain(|frame| state.is_pending(*frame));
                notified.push(number);
                state.notified = notified;
                let id = out.head.id.as_ref();
                let request = state.in_flight.iter_mut().find(|(_, flight)| flight.id.as_ref() == id);
                if let Some((request, flight)) = request {
                    flight.cancelled = true;
                    flight.cancel = Some(number);
                    waits.push(*request);
                }
            }
            FrameKind::Answer => {}
        }
        waits.retain(|frame| state.is_pending(*frame));
        let is_request = kind == FrameKind::Request;
        let flight = InFlight {
            task: None,
            exchange: is_request.then_some(out.exchange),
            id: out.head.id.clone().filter(|_| is_request),
            pending: true,
            cancel: None,
            cancelled: false,
            sent_in: None,
            session: None,
        };
        state.in_flight.insert(number, flight);
        let leaves = kind == FrameKind::Cancel && waits.is_empty();
        state.leaving += usize::from(leaves);
        (number, waits, opens, leaves)
    };
    if kind == FrameKind::Cancel {
        // A request that waits to be sent again is not.
        client.moved.notify_waiters();
    }
    let send_guard = RunningSend {
        client: Arc::clone(client),
        number,
        kind,
        bytes: out.body.len(),
        is_answered: false,
        trace: out.head.trace,
        leaving: leaves.then(|| Leaving(Arc::clone(client))),
    };
    let task = spawn(run_post(send_guard, out.body, out.exchange, waits, opens));
    if let Some(flight) = client.state().in_flight.get_mut(&number) {
        flight.task = Some(task.abort_handle());
    }
}

#[expect(clippy::manual_async_fn, reason = "the future of an `async fn` has its arguments twice")]
fn run_post(
    mut send_guard: RunningSend,
    body: Bytes,
    exchange: ExchangeId,
    waits: Vec<u64>,
    opens: bool,
) -> impl Future<Output = ()> + Send {
    async move {
        let client = Arc::clone(&send_guard.client);
        client.after(&waits).await;
        let sent = if opens {
            // Boxed, because otherwise the future of each frame would reserve its space.
            Box::pin(send_opening(&mut send_guard, body)).await
        } else {
            send(&mut send_guard, body).await
        };
        send_guard.mark_started();
        let failure = match sent {
            Err(failed) => Some(failed),
            Ok(response) => {
                let (head, body) = response.into_parts();
                read_response(&send_guard, exchange, (&head, body), opens).await.err()
            }
        };
        send_guard.is_answered = failure.is_none();
        let Some(mut failure) = failure else { return };
        if opens {
            failure = legacy::explained(&client, failure);
        }
        let Failed { sent, error } = failure;
        if send_guard.kind == FrameKind::Request {
            let error = TransportError { exchange: Some(exchange), ..error };
            client.inbound_queue.push_event(TransportEvent::ExchangeFailed { exchange, sent, error });
        } else {
            tracing::debug!(kind = ?send_guard.kind, error = %rescind_core::LogText::text(&error), "a frame was not taken");
        }
    }
}

/// The headers of a frame for each time that it is sent, and whether it may still be sent.
struct FrameAttempts<'a> {
    client: &'a Arc<Client>,
    number: u64,
    trace: Option<&'a TraceContext>,
    /// The number of the session in which it was last sent.
    session: AtomicU64,
}

impl Attempts for FrameAttempts<'_> {
    fn headers(&self) -> HeaderMap {
        let (mut headers, session) = self.client.post_headers(Some(self.number));
        self.session.store(session, Ordering::Relaxed);
        if let Some(trace) = self.trace {
            trace.set_headers(&mut headers);
        }
        headers
    }

    async fn stopped(&self) {
        self.client.until(&self.client.moved, |state| state.is_stopped(self.number)).await;
    }
}

impl RunningSend {
    fn leaving(&mut self) -> Option<crate::client::Leaving> {
        self.leaving.take().map(|leaving| Box::new(leaving) as crate::client::Leaving)
    }

    /// How the frame is sent, with this trace.
    fn attempts<'a>(&'a self, trace: Option<&'a TraceContext>) -> FrameAttempts<'a> {
        FrameAttempts { client: &self.client, number: self.number, trace, session: AtomicU64::new(0) }
    }
}

/// Sends the first frame of a session, and once more if the server then proves to speak an older transport.
async fn send_opening(send_guard: &mut RunningSend, body: Bytes) -> Result<Response<ResponseBody>, Failed> {
    let leaving = send_guard.leaving();
    let (client, number, kind) = (&send_guard.client, send_guard.number, send_guard.kind);
    let attempts = send_guard.attempts(send_guard.trace.as_deref());
    let mut sent = client.poster().post(kind, &attempts, body.clone(), leaving).await;
    let status = sent.as_ref().ok().map(Response::status);
    if legacy::fell_back(client, status).await {
        sent = client.poster().post(kind, &attempts, body, None).await;
    }
    settle_opening(client, number, sent.as_ref().ok());
    client.count_if_lost(kind, sent)
}

/// How long a frame that needs no answer may hold back those after it: a server may never respond to its POST.
pub(super) const TAKEN_TIME: Duration = Duration::from_secs(2);

/// Sends the frame. One that has waited long for its head counts as started.
async fn send(send_guard: &mut RunningSend, body: Bytes) -> Result<Response<ResponseBody>, Failed> {
    let (leaving, trace) = (send_guard.leaving(), send_guard.trace.take());
    let (client, kind) = (&send_guard.client, send_guard.kind);
    let attempts = send_guard.attempts(trace.as_deref());
    let kept = kept(&body);
    if client.after_renewal().await? && client.state().is_stopped(send_guard.number) {
        return Err(stopped());
    }
    let sent = {
        let sending = client.poster().post(kind, &attempts, body, leaving);
        let delay = async {
            match kind {
                FrameKind::Request => client.cancel_delay.over().await,
                FrameKind::Cancel | FrameKind::Answer | FrameKind::Notification => {
                    tokio::time::sleep(TAKEN_TIME).await;
                }
            }
            send_guard.mark_started();
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            biased;
            response = sending => response,
            never = delay => match never {},
        }
    };
    let sent = client.count_if_lost(kind, sent)?;
    if !refuses_session(client, &sent) || client.state().id.is_none() {
        return Ok(sent);
    }
    Box::pin(send_anew(&attempts, kind, sent, kept)).await
}

/// Whether a server does not know the session. One to which the server has moved was not shown it, and may say that with status 400.
fn refuses_session(client: &Client, response: &Response<ResponseBody>) -> bool {
    match response.status() {
        StatusCode::NOT_FOUND => true,
        StatusCode::BAD_REQUEST => client.requester.has_moved(response.extensions()),
        _ => false,
    }
}

/// Sends a frame once more whose session the server does not know, in a new session.
async fn send_anew(
    attempts: &FrameAttempts<'_>,
    kind: FrameKind,
    mut response: Response<ResponseBody>,
    body: Option<Bytes>,
) -> Result<Response<ResponseBody>, Failed> {
    let client = attempts.client;
    let is_of_old = matches!(kind, FrameKind::Cancel | FrameKind::Answer);
    for _ in 0..SESSIONS {
        if !refuses_session(client, &response) || is_of_old {
            break;
        }
        if let Some(flight) = client.state().in_flight.get_mut(&attempts.number) {
            // It waits for the new session, and no longer for a response in the old one.
            flight.sent_in = None;
        }
        let (head, refused_with) = response.into_parts();
        let refused_with = beginning(refused_with, client.max_frame).await.0;
        if let Some((id, exchange)) = client.id_and_exchange(attempts.number) {
            let reply = Reply::of(&refused_with, Some(&id));
            let names_it = matches!(reply, Reply::Own | Reply::Unclear);
            let is_answer = head.status == StatusCode::BAD_REQUEST && reply == Reply::Own;
            if is_answer || names_it && is_about_the_request(&refused_with) {
                pass_on(client, attempts.number, exchange, refused_with.clone(), false).await;
                return Err(Failed::new(false, refusal(&head, &client.requester.address(), &refused_with)));
            }
        }
        let renewed = client.renewed(attempts.session.load(Ordering::Relaxed), attempts.stopped()).await;
        let why = match renewed {
            Renewed::Again => None,
            Renewed::Never => {
                client.lose("the server does not know the session any more");
                Some(String::new())
            }
            Renewed::Failed(why) => Some(format!("; {why}")),
            Renewed::Stopped => Some("; the call was cancelled".to_owned()),
        };
        if let Some(why) = why {
            let text = refusal(&head, &client.requester.address(), &refused_with);
            let text = format!("the server does not know the session any more{why}; {text}");
            return Err(Failed::new(false, text));
        }
        if client.state().is_stopped(attempts.number) {
            return Err(stopped());
        }
        let Some(body) = &body else {
            return Err(not_kept("the server did not know the session any more, which was opened again"));
        };
        if kind == FrameKind::Notification && client.state().record.is_opened_by(body) {
            let text = "it was sent with the new session";
            return Err(Failed::new(true, text));
        }
        response =
            client.count_if_lost(kind, client.requester.post(kind, attempts, body.clone(), None).await)?;
    }
    Ok(response)
}

/// Whether an answer with status 404 is about its request and not about its session: servers of MCP 2026-07-28 send that an unknown
/// method is one so, others a missing resource.
fn is_about_the_request(body: &[u8]) -> bool {
    let Ok(body) = serde_json::from_slice::<serde_json::Value>(body) else { return false };
    let code = body.pointer("/error/code").and_then(serde_json::Value::as_i64);
    let message = body.pointer("/error/message").and_then(serde_json::Value::as_str).unwrap_or_default();
    code.is_some_and(|code| ![SESSION_NOT_FOUND, ErrorCode::INVALID_REQUEST.0].contains(&code))
        && !message.to_ascii_lowercase().contains("session")
}

/// With this code the official TypeScript SDK says that it does not know a session.
const SESSION_NOT_FOUND: i64 = -32001;

fn stopped() -> Failed {
    Failed::stopped("the call was cancelled, or the client has closed, before its request was sent")
}

/// Called when the response to the first message has begun or has failed.
fn settle_opening(client: &Client, number: u64, response: Option<&Response<ResponseBody>>) {
    let id = response.and_then(|response| session_id(client, response.headers(), response.extensions()));
    let opened = id.is_some() || response.is_some_and(|response| response.status().is_success());
    client.step(|state| {
        let is_first = matches!(state.standing, SessionPhase::FirstMessage(first) if first == number);
        if state.closed || !is_first {
            return;
        }
        state.standing = if opened { SessionPhase::Open } else { SessionPhase::Unopened };
        state.id = id;
        state.post_headers = None;
    });
}

/// The id of the session that a response opens. MCP allows only visible ASCII characters in it: "The session ID MUST only
/// contain visible ASCII characters (ranging from 0x21 to 0x7E)." Another one is valid in a header too, so the server gets
/// back what it sent.
pub(super) fn session_id(
    client: &Client,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Option<HeaderValue> {
    let id = headers.get(MCP_SESSION_ID)?;
    client.requester.note_session_server(extensions);
    let bytes = id.as_bytes();
    let wrong = bytes.iter().position(|byte| !byte.is_ascii_graphic());
    if bytes.is_empty() || wrong.is_some() {
        // The id is a secret, so it is not shown.
        let sent = match wrong.and_then(|place| Some((place, bytes.get(place)?))) {
            Some((place, byte)) => format!("byte {place} of {MCP_SESSION_ID} is {byte:#04x}"),
            None => format!("{MCP_SESSION_ID} is empty"),
        };
        let (deviation, sent) = (Deviation::SessionId, sent.into());
        client.inbound_queue.push_event(TransportEvent::Deviation { deviation, sent });
    }
    Some(id.clone()).filter(|_| !bytes.is_empty())
}

/// Reads the response to its end. A response to a request ends its call: if it does not hold the answer, with an error.
async fn read_response(
    send_guard: &RunningSend,
    exchange: ExchangeId,
    (head, mut body): (&Parts, ResponseBody),
    opens: bool,
) -> Result<(), Failed> {
    let client = &send_guard.client;
    if let Some(endpoint) = client.legacy.get() {
        let own = send_guard.begin_response(false);
        // Boxed, because otherwise the future of each request would reserve its space.
        return Box::pin(legacy::take(client, endpoint.uri(), (exchange, own), (head, body))).await;
    }
    let (status, media) = (head.status, head.headers.get(CONTENT_TYPE).map(media_of));
    let asked = send_guard.kind == FrameKind::Request;
    let is_message = matches!(media, Some(Media::Events | Media::Json));
    if status.is_success() && !asked && !(status == StatusCode::OK && is_message) {
        streams::listen(client);
        if may_have_page(head, &body) {
            // Boxed, because otherwise the future of each message would reserve its space.
            Box::pin(client.read_unasked(head, body)).await;
        }
        return Ok(());
    }
    if let Some(failed) = encoded(head, || client.requester.address()) {
        return Err(client.count_unanswered(failed));
    }
    let own = send_guard.begin_response(asked && status.is_success());
    if status == StatusCode::OK && media == Some(Media::Events) {
        // Boxed, because otherwise the future of each request would reserve the space that a stream needs.
        return Box::pin(streams::read_answer_stream(
            client,
            send_guard.number,
            exchange,
            head,
            body,
            opens,
            asked,
        ))
        .await;
    }
    let read = if media == Some(Media::Json) {
        unmarked(&client.inbound_queue, read_whole(client, head, &mut body).await?)
    } else {
        // An answer is taken whatever its content type is, because nothing else looks like it.
        let limit = if asked && status.is_success() { client.max_frame } else { BEGINNING };
        Box::pin(beginning(body, limit)).await.0
    };
    let reply = match Reply::of(&read, own.as_ref()).with_status(status) {
        Reply::Own => Reply::Own,
        // With another content type, only what is certain counts.
        reply => {
            if media == Some(Media::Json) {
                reply
            } else {
                Reply::Nothing
            }
        }
    };
    if reply == Reply::Own && media != Some(Media::Json) {
        let deviation = Deviation::ContentType;
        client.inbound_queue.push_event(TransportEvent::Deviation { deviation, sent: read.clone() });
    }
    if reply == Reply::Own || (status.is_success() && !asked) {
        if reply == Reply::Nothing {
            client.note_page(&read, || refusal(head, &client.requester.address(), &read));
        } else {
            pass_on(client, send_guard.number, exchange, read, opens).await;
        }
        return Ok(());
    }
    if reply != Reply::Nothing {
        pass_on(client, send_guard.number, exchange, read.clone(), opens).await;
    }
    // 409: the id is in use, possibly by the same request if an intermediary sent the POST twice.
    let was_rejected = status.is_client_error() && status != StatusCode::CONFLICT;
    let sent = !was_rejected && status != StatusCode::SERVICE_UNAVAILABLE;
    let text = refusal(head, &client.requester.address(), &read);
    let failed = Failed::new(sent, text);
    if !asked && reply == Reply::Nothing {
        client.refused(&failed);
    }
    // If the driver knows better what the answer means, it counts that.
    Err(if !asked || reply.is_unclear() || !status.is_success() {
        failed
    } else {
        client.count_unanswered(failed)
    })
}

/// The header with a revision, if that knows the header.
pub(super) fn version_header(version: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(version).ok().filter(|_| version >= HEADER_SINCE)
}

/// Passes on a message of an exchange.
pub(super) async fn pass_on(
    client: &Arc<Client>,
    flight: u64,
    exchange: ExchangeId,
    body: Bytes,
    opens: bool,
) {
    client.after_its_cancel(flight).await;
    let answer = opens.then(|| Envelope::of(&body)).filter(Envelope::is_answer);
    if let Some(answer) = answer {
        let named = answer.result_text(client.settings.renewal.revision);
        let version = named.as_deref().and_then(version_header);
        if version.is_some() {
            streams::listen_soon(client);
        }
        let known = version.is_some();
        client.step(|state| {
            state.record.note_answer(named.is_some());
            state.version = version;
            state.post_headers = None;
        });
        if !known {
            streams::listen(client);
        }
    }
    let _ = client
        .inbound_queue
        .send(Inbound { body, exchange, principal: None, address: None, trace: None })
        .await;
}

/// Reads a body to its end. If a message is above the limit, the driver gets an event as well.
async fn read_whole(client: &Client, head: &Parts, body: &mut ResponseBody) -> Result<Bytes, Failed> {
    let limit = client.max_frame;
    client.whole_message(body).await.map_err(|error| {
        if matches!(error, CollectError::TooLarge(..)) {
            let why = BadFrame::TooLarge { limit };
            client.inbound_queue.push_event(TransportEvent::Rejected {
                exchange: ExchangeId::NONE,
                why,
                head: Bytes::new(),
            });
        }
        body_error(head, &client.requester.address(), error)
    })
}
