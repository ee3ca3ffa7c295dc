//! One frame in flight: when it may be sent, what its response is, and how it ends.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::response::Parts;
use http::{HeaderValue, Response, StatusCode};
use rescind_core::{
    BadFrame, ExchangeId, FrameKind, Inbound, Outbound, TraceContext, TransportError, TransportErrorKind,
    TransportEvent,
};

use super::state::{Client, InFlight, Standing, State};
use super::stream;
use super::{Order, listen};
use crate::client::{Failed, Media, ResponseBody, media_of, refusal};
use crate::collect_body::{CollectError, whole};
use crate::envelope::Envelope;
use crate::headers::MCP_SESSION_ID;
use crate::sync::spawn;

/// The first revision that has the header `MCP-Protocol-Version`.
const HEADER_SINCE: &str = "2025-06-18";
/// The member of the result of a handshake that names the revision.
const VERSION: &str = "protocolVersion";

/// Counts a frame among those in flight until its task ends, for whatever reason.
struct RunningSend {
    client: Arc<Client>,
    number: u64,
    kind: FrameKind,
    bytes: usize,
    /// For a cancel that may be sent at once.
    leaving: Option<Leaving>,
    /// Until its request is made.
    trace: Option<Arc<TraceContext>>,
}

impl RunningSend {
    /// Called when the response has begun, or when the request has waited long enough.
    fn mark_started(&self) {
        self.client.step(|state| state.mark_started(self.number, self.bytes));
        self.client.moved.notify_waiters();
    }
}

impl State {
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
            state.in_flight.remove(&self.number);
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
pub(super) fn start(client: &Arc<Client>, out: Outbound) {
    let kind = out.head.kind;
    let (number, waits, opens, leaves) = {
        let mut state = client.state();
        let number = state.next;
        state.next += 1;
        state.pending.0 += out.body.len();
        state.pending.1 += 1;
        let mut waits: Vec<u64> = Vec::new();
        let opens = matches!(state.standing, Standing::Unopened);
        if opens {
            state.standing = Standing::FirstMessage(number);
        } else if let Standing::FirstMessage(first) = state.standing {
            waits.push(first);
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
        };
        state.in_flight.insert(number, flight);
        let leaves = kind == FrameKind::Cancel && waits.is_empty();
        state.leaving += usize::from(leaves);
        (number, waits, opens, leaves)
    };
    let send_guard = RunningSend {
        client: Arc::clone(client),
        number,
        kind,
        bytes: out.body.len(),
        trace: out.head.trace,
        leaving: leaves.then(|| Leaving(Arc::clone(client))),
    };
    let task = spawn(run(send_guard, out.body, out.exchange, waits, opens));
    if let Some(flight) = client.state().in_flight.get_mut(&number) {
        flight.task = Some(task.abort_handle());
    }
}

async fn run(mut send_guard: RunningSend, body: Bytes, exchange: ExchangeId, waits: Vec<u64>, opens: bool) {
    let client = Arc::clone(&send_guard.client);
    client.after(&waits).await;
    let sent = send(&mut send_guard, body, opens).await;
    if opens {
        settle_opening(&client, sent.as_ref().ok());
    }
    send_guard.mark_started();
    let failure = match sent {
        Err(failed) => Some(failed),
        Ok(response) => take(&send_guard, exchange, response, opens).await.err(),
    };
    let Some(Failed { sent, error }) = failure else { return };
    if send_guard.kind == FrameKind::Request {
        let error = TransportError { exchange: Some(exchange), ..error };
        client.inbound_queue.push_event(TransportEvent::ExchangeFailed { exchange, sent, error });
    } else {
        tracing::debug!(kind = ?send_guard.kind, error = %rescind_core::LogText::text(&error), "a frame was not taken");
    }
}

/// Sends the frame. A request that has waited long for its head counts as started.
async fn send(
    send_guard: &mut RunningSend,
    body: Bytes,
    opens: bool,
) -> Result<Response<ResponseBody>, Failed> {
    let client = Arc::clone(&send_guard.client);
    let mut headers = client.post_headers();
    if let Some(trace) = send_guard.trace.take() {
        trace.set_headers(&mut headers);
    }
    let leaving = send_guard.leaving.take().map(|leaving| Box::new(leaving) as crate::client::Leaving);
    let sending = client.requester.post(send_guard.kind, headers, body, leaving);
    let mut sending = pin!(sending);
    if send_guard.kind != FrameKind::Request || opens {
        return sending.await;
    }
    tokio::select! {
        biased;
        response = sending.as_mut() => return response,
        () = client.cancel_delay.over() => {}
    }
    send_guard.mark_started();
    sending.await
}

/// Called when the response to the first message has begun or has failed.
fn settle_opening(client: &Client, response: Option<&Response<ResponseBody>>) {
    let id = response.and_then(|response| response.headers().get(MCP_SESSION_ID).cloned());
    let id = id.filter(|id| id.as_bytes().iter().all(u8::is_ascii_graphic));
    let opened = id.is_some() || response.is_some_and(|response| response.status().is_success());
    client.step(|state| {
        if state.closed {
            return;
        }
        state.standing = if opened { Standing::Open } else { Standing::Unopened };
        state.id = id;
        state.post_headers = None;
    });
}

/// Reads the response to its end.
async fn take(
    send_guard: &RunningSend,
    exchange: ExchangeId,
    response: Response<ResponseBody>,
    opens: bool,
) -> Result<(), Failed> {
    let client = &send_guard.client;
    let (head, body) = response.into_parts();
    let status = head.status;
    let media = head.headers.get(CONTENT_TYPE).map(media_of);
    let asked = send_guard.kind == FrameKind::Request;
    match (status, media) {
        (StatusCode::OK, Some(Media::Events)) => {
            // Boxed, because otherwise the future of each request would reserve the space that a stream needs.
            Box::pin(stream::read(client, send_guard.number, exchange, body, opens, asked)).await
        }
        (StatusCode::OK, Some(Media::Json)) => {
            let body = read_whole(client, body).await?;
            recv(client, send_guard.number, exchange, body, opens).await;
            Ok(())
        }
        (status, _) if status.is_success() && !asked => {
            listen::begin(client);
            Ok(())
        }
        (StatusCode::NOT_FOUND, _) if client.state().id.is_some() => {
            client.lose("the server does not know the session any more");
            Err(refused(&head, false))
        }
        (status, media) => {
            // The driver reads the error. Without an id, it answers no call.
            if media == Some(Media::Json) {
                let body = read_whole(client, body).await?;
                let answer = Envelope::of(&body);
                let ends = answer.answers_one();
                if answer.is_answer() {
                    recv(client, send_guard.number, exchange, body, opens).await;
                }
                if ends {
                    return Ok(());
                }
            }
            // 409: the id is in use, possibly by the same request if an intermediary sent the POST twice.
            let kept_out = status.is_client_error() && status != StatusCode::CONFLICT;
            let sent = !kept_out && status != StatusCode::SERVICE_UNAVAILABLE;
            Err(refused(&head, sent))
        }
    }
}

/// Passes on a message of an exchange.
pub(super) async fn recv(client: &Arc<Client>, flight: u64, exchange: ExchangeId, body: Bytes, opens: bool) {
    client.after_its_cancel(flight).await;
    let answer = opens.then(|| Envelope::of(&body)).filter(Envelope::is_answer);
    if let Some(answer) = answer {
        let version = answer.result_text(VERSION);
        // Older revisions do not know the header.
        let version = version.filter(|version| &**version >= HEADER_SINCE);
        let version = version.and_then(|version| HeaderValue::from_str(&version).ok());
        if version.is_some() {
            listen::begin_soon(client);
        }
        let known = version.is_some();
        client.step(|state| {
            state.version = version;
            state.post_headers = None;
        });
        if !known {
            listen::begin(client);
        }
    }
    let _ = client
        .inbound_queue
        .send(Inbound { body, exchange, principal: None, address: None, trace: None })
        .await;
}

/// Reads a body to its end. If a message is above the limit, the driver gets an event as well.
async fn read_whole(client: &Client, body: ResponseBody) -> Result<Bytes, Failed> {
    let limit = client.max_frame;
    whole(body, limit).await.map_err(|error| {
        if matches!(error, CollectError::TooLarge) {
            let why = BadFrame::TooLarge { limit };
            client.inbound_queue.push_event(TransportEvent::Rejected {
                exchange: ExchangeId::NONE,
                why,
                head: Bytes::new(),
            });
        }
        error.into()
    })
}

fn refused(head: &Parts, sent: bool) -> Failed {
    let text = refusal(head.status, &head.headers);
    Failed { sent, error: TransportError::new(TransportErrorKind::Io, text) }
}
