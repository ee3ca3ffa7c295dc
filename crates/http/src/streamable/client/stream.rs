//! Reading an event stream to its end, across interruptions.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use rescind_core::{ExchangeId, RequestId, TransportError, TransportErrorKind};
use tokio::time::Instant;

use super::in_flight;
use super::state::Client;
use crate::client::{EventStream, Failed, Media, ResponseBody, encoding_of, media_of, stream_refusal};
use crate::envelope::Reply;
use crate::headers::{EVENT_STREAM, LAST_EVENT_ID};

/// After this number of failed connection attempts in a row, the server counts as lost.
pub(super) const UNREACHED: usize = 3;

/// The state of a stream, across all its connections.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says one thing of the stream")]
pub(super) struct Reading {
    pub(super) last: Option<HeaderValue>,
    pub(super) retry: Duration,
    /// Whether the stream is read for the answer to a request.
    awaits_answer: bool,
    answered: bool,
    /// Whether an event may have been the answer, which only the driver can tell.
    is_unclear: bool,
    /// The last event that was dropped.
    last_sent: Bytes,
    /// Whether an event arrived since the stream was last cut.
    pub(super) fresh: bool,
}

impl Reading {
    /// The stream that answers a request.
    fn of_request(retry: Duration) -> Self {
        Self {
            last: None,
            retry,
            awaits_answer: true,
            answered: false,
            is_unclear: false,
            last_sent: Bytes::new(),
            fresh: false,
        }
    }

    /// The stream for messages that the server sends outside of a request.
    pub(super) fn of_session(retry: Duration) -> Self {
        Self {
            last: None,
            retry,
            awaits_answer: false,
            answered: false,
            is_unclear: false,
            last_sent: Bytes::new(),
            fresh: false,
        }
    }

    /// Reads until the connection ends, with or without an error. `each` is called with each message. `own` is the id of
    /// the request that the stream answers.
    pub(super) async fn drain<F>(
        &mut self,
        client: &Client,
        own: Option<&RequestId>,
        body: ResponseBody,
        mut each: impl FnMut(Bytes) -> F,
    ) where
        F: Future<Output = ()>,
    {
        let mut events = EventStream::new(body, client.max_frame, &client.inbound_queue);
        while let Some(event) = events.next().await {
            self.fresh = true;
            if let Some(id) = event.id.and_then(|id| HeaderValue::from_str(&id).ok()) {
                self.last = Some(id);
            }
            if let Some(retry) = event.retry {
                self.retry = retry.min(client.settings.give_up_after);
            }
            let is_message = event.name.as_deref().is_none_or(|name| name == "message");
            if !is_message {
                self.last_sent = event.data;
                continue;
            }
            if !event.data.is_empty() {
                let reply = if self.awaits_answer { Reply::of(&event.data, own) } else { Reply::Other };
                self.answered |= reply == Reply::Own;
                self.is_unclear |= reply.is_unclear();
                if reply == Reply::Nothing {
                    self.last_sent = event.data;
                } else {
                    each(event.data).await;
                }
            }
            if self.answered || self.is_unclear {
                events.answered();
            }
        }
    }
}

/// The result of an attempt to open a stream again.
pub(super) enum Retry {
    Reads(ResponseBody),
    /// It may work later. The status, if there was a response.
    Later(Option<StatusCode>),
    /// No connection could be opened.
    Unreached,
    /// It will never work. The status, if there was a response.
    Never(Option<StatusCode>),
}

/// Requests an event stream. Whatever the answer is, it says nothing about the session.
pub(super) async fn get(client: &Client, last: Option<&HeaderValue>) -> Retry {
    let mut headers = client.headers(EVENT_STREAM);
    if let Some(last) = last {
        headers.insert(LAST_EVENT_ID, last.clone());
    }
    let response = match client.requester.send(Method::GET, headers, Bytes::new()).await {
        Ok(response) => response,
        Err(failed) => {
            tracing::debug!(error = %rescind_core::LogText::text(&failed.error), "an event stream could not be opened");
            return if failed.sent { Retry::Later(None) } else { Retry::Unreached };
        }
    };
    let status = response.status();
    match status {
        StatusCode::OK if is_events(&response) && encoding_of(response.headers()).is_none() => {
            Retry::Reads(response.into_body())
        }
        StatusCode::CONFLICT
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::REQUEST_TIMEOUT
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Retry::Later(Some(status)),
        _ => Retry::Never(Some(status)),
    }
}

fn is_events(response: &Response<ResponseBody>) -> bool {
    let media = response.headers().get(http::header::CONTENT_TYPE).map(media_of);
    media == Some(Media::Events)
}

/// Reads the stream that answers a request. If the server sends event ids, a cut stream is resumed (K3).
pub(super) async fn read(
    client: &Arc<Client>,
    number: u64,
    exchange: ExchangeId,
    head: &Parts,
    body: ResponseBody,
    opens: bool,
    asked: bool,
) -> Result<(), Failed> {
    let mut reading = Reading::of_request(client.settings.retry);
    let own = client.state().in_flight.get(&number).and_then(|flight| flight.id.clone());
    let mut body = Some(body);
    let mut cut_at = Instant::now();
    let mut unreached = 0;
    loop {
        if let Some(body) = body.take() {
            let each = |data| in_flight::recv(client, number, exchange, data, opens);
            reading.drain(client, own.as_ref(), body, each).await;
            if std::mem::take(&mut reading.fresh) {
                cut_at = Instant::now();
            }
        }
        if reading.answered || !asked {
            return Ok(());
        }
        let over = reading.is_unclear
            || client.is_cancelled(number)
            || cut_at.elapsed() >= client.settings.give_up_after;
        let Some(last) = reading.last.clone().filter(|_| !over) else { break };
        tokio::time::sleep(reading.retry).await;
        match get(client, Some(&last)).await {
            Retry::Reads(again) => {
                unreached = 0;
                body = Some(again);
            }
            Retry::Later(_) => {}
            Retry::Unreached if unreached + 1 < UNREACHED => unreached += 1,
            Retry::Unreached | Retry::Never(_) => break,
        }
    }
    let text = stream_refusal(head, &client.requester.address(), &reading.last_sent);
    let failed = Failed { sent: true, error: TransportError::new(TransportErrorKind::Io, text) };
    let is_silent = reading.is_unclear || client.is_cancelled(number);
    Err(if is_silent { failed } else { in_flight::unanswered(client, failed) })
}
