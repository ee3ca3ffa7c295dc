//! Reading an event stream to its end, across interruptions.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode};
use rescind_core::{ExchangeId, TransportError, TransportErrorKind};
use tokio::time::Instant;

use super::in_flight;
use super::state::Client;
use crate::client::{EventStream, Failed, Media, ResponseBody, media_of};
use crate::envelope::Envelope;
use crate::headers::{EVENT_STREAM, LAST_EVENT_ID};

/// After this number of failed connection attempts in a row, the server counts as lost.
pub(super) const UNREACHED: usize = 3;

/// The state of a stream, across all its connections.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) last: Option<HeaderValue>,
    pub(super) retry: Duration,
    /// Whether the stream is read for the answer to a request.
    awaits_answer: bool,
    answered: bool,
    /// Whether an event arrived since the stream was last cut.
    pub(super) fresh: bool,
}

impl Reading {
    /// The stream that answers a request.
    const fn of_request(retry: Duration) -> Self {
        Self { last: None, retry, awaits_answer: true, answered: false, fresh: false }
    }

    /// The stream for messages that the server sends outside of a request.
    pub(super) const fn of_session(retry: Duration) -> Self {
        Self { last: None, retry, awaits_answer: false, answered: false, fresh: false }
    }

    /// Reads until the connection ends, with or without an error. `each` is called with each message.
    pub(super) async fn drain<F>(
        &mut self,
        client: &Client,
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
            if is_message && !event.data.is_empty() {
                self.answered |= self.awaits_answer && Envelope::of(&event.data).is_answer();
                each(event.data).await;
            }
            if self.answered {
                events.answered();
            }
        }
    }
}

/// The result of an attempt to open a stream again.
pub(super) enum Retry {
    Reads(ResponseBody),
    /// It may work later.
    Later,
    /// No connection could be opened.
    Unreached,
    /// It will never work.
    Never,
}

/// Requests an event stream.
pub(super) async fn get(client: &Client, last: Option<&HeaderValue>) -> Retry {
    let mut headers = client.headers(EVENT_STREAM);
    if let Some(last) = last {
        headers.insert(LAST_EVENT_ID, last.clone());
    }
    let response = match client.requester.send(Method::GET, headers, Bytes::new()).await {
        Ok(response) => response,
        Err(failed) => {
            tracing::debug!(error = %rescind_core::LogText::text(&failed.error), "an event stream could not be opened");
            return if failed.sent { Retry::Later } else { Retry::Unreached };
        }
    };
    match response.status() {
        StatusCode::OK if is_events(&response) => Retry::Reads(response.into_body()),
        StatusCode::NOT_FOUND if client.state().id.is_some() => {
            client.lose("the server does not know the session any more");
            Retry::Never
        }
        StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => Retry::Later,
        status if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED => Retry::Later,
        _ => Retry::Never,
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
    body: ResponseBody,
    opens: bool,
    asked: bool,
) -> Result<(), Failed> {
    let mut reading = Reading::of_request(client.settings.retry);
    let mut body = Some(body);
    let mut cut_at = Instant::now();
    let mut unreached = 0;
    loop {
        if let Some(body) = body.take() {
            let each = |data| in_flight::recv(client, number, exchange, data, opens);
            reading.drain(client, body, each).await;
            if std::mem::take(&mut reading.fresh) {
                cut_at = Instant::now();
            }
        }
        if reading.answered || !asked {
            return Ok(());
        }
        let over = client.is_cancelled(number) || cut_at.elapsed() >= client.settings.give_up_after;
        let Some(last) = reading.last.clone().filter(|_| !over) else { break };
        tokio::time::sleep(reading.retry).await;
        match get(client, Some(&last)).await {
            Retry::Reads(again) => {
                unreached = 0;
                body = Some(again);
            }
            Retry::Later => {}
            Retry::Unreached if unreached + 1 < UNREACHED => unreached += 1,
            Retry::Unreached | Retry::Never => break,
        }
    }
    let text = "the event stream ended without the answer";
    Err(Failed { sent: true, error: TransportError::new(TransportErrorKind::Io, text) })
}
