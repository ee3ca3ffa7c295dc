//! Reading an event stream to its end, across interruptions.
//!
//! # The stream of the session
//!
//! It is for messages that the server sends outside of a request.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use rescind_core::{Deviation, ExchangeId, Inbound, RequestId, TransportEvent};
use tokio::time::Instant;

use crate::client::{
    Event, EventStream, Failed, Fault, Media, ResponseBody, encoding_of, media_of, stream_refusal,
};
use crate::envelope::{EVENT_STREAM, LAST_EVENT_ID, Reply};
use crate::streamable::client::{Client, InFlight, SessionPhase, StreamableClientState, posts};
use crate::sync::spawn;

/// After this number of failed connection attempts in a row, the server counts as lost.
pub(super) const UNREACHED: usize = 3;

/// The state of a stream, across all its connections.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says one thing of the stream")]
struct StreamProgress {
    last: Option<HeaderValue>,
    retry: Duration,
    /// The frame of the request whose answer the stream has.
    request: Option<u64>,
    answered: bool,
    /// Whether an event may have been the answer, which only the driver can tell.
    is_unclear: bool,
    /// Why the stream will not have the answer.
    fault: Option<Fault>,
    /// The last event that is not the answer, or what the stream has instead of events.
    last_sent: Bytes,
    /// Whether an event arrived since the stream was last cut.
    fresh: bool,
    /// Whether the server ended the last response.
    has_ended: bool,
    /// Whether the response is not the first one of the stream.
    is_resumed: bool,
    /// Whether a long wait before the stream is resumed was logged.
    is_long_pause_noted: bool,
    /// When the response began that is read.
    opened: Instant,
    /// When a response ended without a message, since the last message.
    empty_since: Option<Instant>,
}

impl StreamProgress {
    /// The stream that answers the request of this frame, or that for messages that the server sends outside of a request.
    fn new(request: Option<u64>, retry: Duration) -> Self {
        Self {
            last: None,
            retry,
            request,
            answered: false,
            is_unclear: false,
            fault: None,
            last_sent: Bytes::new(),
            fresh: false,
            has_ended: false,
            is_resumed: false,
            is_long_pause_noted: false,
            opened: Instant::now(),
            empty_since: None,
        }
    }

    /// How long to wait before the stream is resumed. The server says how long at least: "The client MUST respect the `retry`
    /// field". If responses end without a message, they are requested less and less often, so that a server that ends each at
    /// once has time for its work. There is no last one: a server may work for hours, and with 404 it says that it does not.
    fn pause(&self) -> Duration {
        let empty = self.empty_since.map_or(Duration::ZERO, |since| since.elapsed());
        self.retry.max((empty / EMPTY_PART).min(LONGEST_EMPTY).saturating_sub(self.opened.elapsed()))
    }

    /// Reports, once for the stream, that the wait before it is resumed is long: its call seems to hang meanwhile.
    fn note_long_pause(&mut self, client: &Client) {
        let wait = self.pause();
        if wait <= LONGEST || std::mem::replace(&mut self.is_long_pause_noted, true) {
            return;
        }
        let sent = format!("{} s, which {} asks for", wait.as_secs(), client.requester.address());
        let (deviation, sent) = (Deviation::LongRetry, sent.into());
        client.inbound_queue.push_event(TransportEvent::Deviation { deviation, sent });
    }

    /// Reads until the connection ends, with or without an error. `each` is called with each message. `own` is the id of
    /// the request that the stream answers, and `exchange` its exchange.
    async fn drain<F>(
        &mut self,
        client: &Client,
        (exchange, own): (ExchangeId, Option<&RequestId>),
        body: ResponseBody,
        mut each: impl FnMut(Bytes) -> F,
    ) where
        F: Future<Output = ()>,
    {
        let mut events =
            EventStream::new(body, client.max_frame, &client.inbound_queue).of_exchange(exchange);
        self.opened = Instant::now();
        let mut is_empty = true;
        while let Some(event) = events.next().await {
            self.fresh = true;
            is_empty &= event.data.is_empty();
            let (is_message, is_error) = (event.is_message(), event.is_error());
            let reply = if self.request.is_some() { Reply::of(&event.data, own) } else { Reply::Other };
            if let Some(fault) = own.and_then(|_| self.fault_of(client, &event, reply)) {
                self.fault = Some(fault);
                events.answered();
            }
            if let Some(id) = event.id.and_then(|id| HeaderValue::from_str(&id).ok()) {
                self.last = Some(id);
            }
            if let Some(retry) = event.retry {
                self.retry = retry.clamp(SHORTEST, client.settings.give_up_after.max(SHORTEST));
            }
            if !(is_message || reply == Reply::Own || is_error && reply.is_unclear()) {
                if is_error && self.request.is_none() {
                    // On the stream of all calls it ends none of them.
                    let (deviation, sent) = (Deviation::Noise, event.data.clone());
                    client.inbound_queue.push_event(TransportEvent::Deviation { deviation, sent });
                }
                self.last_sent = event.data;
                continue;
            }
            if !is_message {
                let (deviation, sent) = (Deviation::ContentType, event.data.clone());
                client.inbound_queue.push_event(TransportEvent::Deviation { deviation, sent });
            }
            if !event.data.is_empty() {
                self.answered |= reply == Reply::Own;
                self.is_unclear |= reply.is_unclear();
                if matches!(reply, Reply::Nothing | Reply::OtherAnswer) {
                    self.last_sent = event.data.clone();
                }
                if reply != Reply::Nothing {
                    each(event.data).await;
                }
            }
            if self.answered || self.is_unclear {
                events.answered();
            }
        }
        if own.is_some() && self.fault.is_none() {
            self.fault = events.fault();
        }
        self.has_ended = events.has_ended();
        let stray = events.stray();
        if !stray.is_empty() {
            self.last_sent = stray;
        }
        if !is_empty || self.empty_since.is_none() {
            self.empty_since = Some(Instant::now());
        }
        self.is_resumed = true;
    }

    /// The fault of an event, which is this for the request of the stream.
    fn fault_of(&self, client: &Client, event: &Event, reply: Reply) -> Option<Fault> {
        let request = self.request?;
        match Fault::of(event, reply)? {
            // A resumed stream may repeat the messages of others, and some servers send each answer on any stream.
            Fault::OtherAnswer(id) if self.is_resumed || client.state().may_answer(&id, request) => None,
            fault => Some(fault),
        }
    }
}

/// The result of an attempt to open a stream again.
pub(super) enum Reopened {
    Reads(ResponseBody),
    /// It may work later. The status, if there was a response.
    Later(Option<StatusCode>),
    /// No connection could be opened.
    Unreached,
    /// It will never work. The status, if there was a response.
    Never(Option<StatusCode>),
}

/// Requests an event stream. Whatever the answer is, it says nothing about the session.
pub(super) async fn open_stream(client: &Client, last: Option<&HeaderValue>) -> Reopened {
    let mut headers = client.headers(EVENT_STREAM);
    if let Some(last) = last {
        headers.insert(LAST_EVENT_ID, last.clone());
    }
    let response = match client.requester.send(Method::GET, headers, Bytes::new()).await {
        Ok(response) => response,
        Err(failed) => {
            tracing::debug!(error = %rescind_core::LogText::text(&failed.error), "an event stream could not be opened");
            return if failed.sent { Reopened::Later(None) } else { Reopened::Unreached };
        }
    };
    let status = response.status();
    match status {
        StatusCode::OK if is_events(&response) && encoding_of(response.headers()).is_none() => {
            Reopened::Reads(response.into_body())
        }
        StatusCode::CONFLICT
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::REQUEST_TIMEOUT
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Reopened::Later(Some(status)),
        _ => Reopened::Never(Some(status)),
    }
}

fn is_events(response: &Response<ResponseBody>) -> bool {
    let media = response.headers().get(http::header::CONTENT_TYPE).map(media_of);
    media == Some(Media::Events)
}

/// Reads the stream that answers a request. If the server sends event ids, a cut stream is resumed (K3).
pub(super) async fn read_answer_stream(
    client: &Arc<Client>,
    number: u64,
    exchange: ExchangeId,
    head: &Parts,
    body: ResponseBody,
    opens: bool,
    asked: bool,
) -> Result<(), Failed> {
    let mut reading = StreamProgress::new(Some(number), client.settings.retry);
    let own = client.state().in_flight.get(&number).and_then(|flight| flight.id.clone());
    let mut body = Some(body);
    let mut cut_at = Instant::now();
    let mut unreached = 0;
    loop {
        if let Some(body) = body.take() {
            let each = |data| posts::pass_on(client, number, exchange, data, opens);
            reading.drain(client, (exchange, own.as_ref()), body, each).await;
            if std::mem::take(&mut reading.fresh) {
                cut_at = Instant::now();
            }
        }
        if reading.answered || !asked {
            return Ok(());
        }
        let over = reading.is_unclear
            || reading.fault.as_ref().is_some_and(|fault| *fault != Fault::Silent)
            || client.is_cancelled(number)
            || cut_at.elapsed() >= client.settings.give_up_after;
        let Some(last) = reading.last.clone().filter(|_| !over) else { break };
        reading.note_long_pause(client);
        tokio::time::sleep(reading.pause()).await;
        reading.fault = None;
        let left = client.settings.give_up_after.saturating_sub(cut_at.elapsed());
        let Ok(again) = tokio::time::timeout(left, open_stream(client, Some(&last))).await else { break };
        match again {
            Reopened::Reads(again) => {
                unreached = 0;
                body = Some(again);
            }
            Reopened::Later(_) => {}
            Reopened::Unreached if unreached + 1 < UNREACHED => unreached += 1,
            Reopened::Unreached | Reopened::Never(_) => break,
        }
    }
    let why = reading.fault.map(|fault| fault.shown(own.as_ref(), reading.has_ended));
    let text = stream_refusal(head, &client.requester.address(), why.as_deref(), &reading.last_sent);
    let failed = Failed::new(true, text);
    let is_silent = reading.is_unclear || client.is_cancelled(number);
    Err(if is_silent { failed } else { client.count_unanswered(failed) })
}

/// The shortest wait between two attempts, whatever the server asks for.
const SHORTEST: Duration = Duration::from_millis(100);
/// The longest wait between two attempts.
const LONGEST: Duration = Duration::from_secs(10);
/// The part of the time without a message after which an empty stream is resumed, and the longest such wait.
const EMPTY_PART: u32 = 8;
const LONGEST_EMPTY: Duration = Duration::from_secs(5);

/// Opens the stream, once in a session.
pub(super) fn listen(client: &Arc<Client>) {
    let mut state = client.state();
    // Without a session, and without a revision that has this stream, there is none to open.
    let has_none = state.id.is_none() && state.version.is_none();
    if state.listens || has_none || state.closed || !matches!(state.standing, SessionPhase::Open) {
        return;
    }
    state.listens = true;
    let session = state.record.number;
    launch(client, &mut state, Some(session), read_own_stream(Arc::clone(client)));
}

/// Opens the stream when the client has reported that it is ready, which is its next message, or after a short time.
pub(super) fn listen_soon(client: &Arc<Client>) {
    let later = Arc::clone(client);
    let wait = client.settings.cancel_after;
    launch(client, &mut client.state(), None, async move {
        tokio::time::sleep(wait).await;
        listen(&later);
    });
}

/// Runs a task that ends with the client, and with the session if it belongs to one.
pub(super) fn launch(
    client: &Arc<Client>,
    state: &mut StreamableClientState,
    session: Option<u64>,
    task: impl Future<Output = ()> + Send + 'static,
) {
    let number = state.next;
    state.next += 1;
    let launched = Launched { client: Arc::clone(client), number };
    let task = spawn(async move {
        let _launched = launched;
        task.await;
    });
    let flight = InFlight {
        task: Some(task.abort_handle()),
        exchange: None,
        id: None,
        pending: false,
        cancel: None,
        cancelled: false,
        sent_in: None,
        session,
    };
    state.in_flight.insert(number, flight);
}

/// A task of the client until it ends.
struct Launched {
    client: Arc<Client>,
    number: u64,
}

impl Drop for Launched {
    fn drop(&mut self) {
        let removed = self.client.state().in_flight.remove(&self.number);
        drop(removed);
    }
}

async fn read_own_stream(client: Arc<Client>) {
    let mut reading = StreamProgress::new(None, client.settings.retry);
    let mut failing: Option<Instant> = None;
    let mut unreached = 0;
    let mut was_read = false;
    loop {
        match open_stream(&client, reading.last.as_ref()).await {
            Reopened::Reads(body) => {
                was_read = true;
                failing = None;
                unreached = 0;
                let each = |body| {
                    let client = Arc::clone(&client);
                    async move {
                        let inbound = Inbound {
                            body,
                            exchange: ExchangeId::OF_NO_CALL,
                            principal: None,
                            address: None,
                            trace: None,
                        };
                        let _ = client.inbound_queue.send(inbound).await;
                    }
                };
                reading.drain(&client, (ExchangeId::NONE, None), body, each).await;
                tokio::time::sleep(reading.pause()).await;
            }
            // The missed events are lost, but new ones can still be read.
            Reopened::Never(_) if reading.last.is_some() && !client.inbound_queue.is_closed() => {
                reading.last = None;
            }
            Reopened::Never(Some(StatusCode::NOT_FOUND)) if is_lost(&client, was_read) => {
                client.lose("the server does not know the session any more");
                return;
            }
            Reopened::Never(status) => return without_stream(status),
            again @ (Reopened::Later(_) | Reopened::Unreached) => {
                let since = *failing.get_or_insert_with(Instant::now);
                let is_late = since.elapsed() >= client.settings.give_up_after;
                match again {
                    Reopened::Later(status) if is_late => return without_stream(status),
                    Reopened::Unreached if is_late || unreached + 1 >= UNREACHED => {
                        client.lose("the server's event stream could not be opened again");
                        return;
                    }
                    Reopened::Unreached => unreached += 1,
                    _ => unreached = 0,
                }
                let wait = reading.retry.max(since.elapsed() / 2).min(LONGEST);
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// Whether 404 for the stream means that the link has ended: the next request cannot open the session again, and the
/// server has such streams. Of servers of MCP that is known only after one was read; other protocols have no servers without.
fn is_lost(client: &Client, was_read: bool) -> bool {
    let record = &client.state().record;
    !record.may_renew() && (was_read || !record.is_open())
}

/// The client goes on without the stream.
fn without_stream(status: Option<StatusCode>) {
    let status = status.map(tracing::field::display);
    tracing::info!(status, "the server has no event stream of its own; calls go on without it");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn empty_responses_are_requested_less_and_less_often_and_never_before_the_server_says() {
        let mut reading = StreamProgress::new(None, SHORTEST);
        assert_eq!(reading.pause(), SHORTEST, "the first time");
        reading.empty_since = Some(Instant::now());
        let (mut polls, since) = (0, Instant::now());
        while since.elapsed() < Duration::from_secs(60) {
            tokio::time::sleep(reading.pause()).await;
            reading.opened = Instant::now();
            polls += 1;
        }
        assert!((30..=60).contains(&polls), "{polls} in a minute");
        assert_eq!(reading.pause(), LONGEST_EMPTY);
        // The server's own time is longer.
        reading.retry = Duration::from_secs(30);
        assert_eq!(reading.pause(), Duration::from_secs(30));
        // A response that was open for long needs no further wait.
        reading.retry = SHORTEST;
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(reading.pause(), SHORTEST);
    }
}
