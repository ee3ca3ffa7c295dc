//! One POST in flight: how it is abandoned, what its response is, and how it ends.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version};
use rescind_core::{
    ExchangeId, FrameKind, Inbound, Outbound, TraceContext, TransportError, TransportErrorKind,
    TransportEvent,
};
use tokio_util::sync::CancellationToken;

use super::state::{Client, InFlight};
use crate::client::{EventStream, Failed, Media, ResponseBody, media_of, refusal};
use crate::collect_body::whole;
use crate::envelope::Envelope;
use crate::headers::{BOTH, JSON};
use crate::stateless::mirrored_headers::Message;
use crate::sync::spawn;

/// How long an abandoned request waits for the head of its response.
const FOR_THE_HEAD: Duration = Duration::from_millis(250);

impl Client {
    pub(super) fn start(self: &Arc<Self>, out: Outbound) {
        let asks = out.head.kind == FrameKind::Request;
        let mut state = self.state();
        state.next += 1;
        let key = out.exchange.call().map_or(state.next, |_| out.exchange.0);
        let client = Arc::clone(self);
        let (exchange, body, trace) = (out.exchange, out.body, out.head.trace);
        let given_up = CancellationToken::new();
        let token = given_up.clone();
        let task = spawn(async move {
            let ended = client.run(key, exchange, body, trace, &token).await;
            let asks = client.remove(key).is_some_and(|flight| flight.asks && !flight.is_given_up());
            match ended {
                Err(Failed { sent, error }) if asks => {
                    client.inbound_queue.push_event(TransportEvent::ExchangeFailed { exchange, sent, error });
                }
                Err(Failed { error, .. }) => {
                    tracing::debug!(error = %rescind_core::LogText::text(&error), "a message was not taken");
                }
                Ok(()) => {}
            }
        });
        state.requests += usize::from(asks);
        let flight = InFlight { task: task.abort_handle(), asks, headed: false, leaves: false, given_up };
        state.in_flight.insert(key, flight);
    }

    /// Posts one message and reads the response until the request is abandoned. `Ok`: it was answered, or the server
    /// has taken a message that needs no answer. A request that is abandoned early still gets a short time to reach the
    /// server, because otherwise its cancel would cancel nothing.
    async fn run(
        &self,
        key: u64,
        exchange: ExchangeId,
        body: Bytes,
        trace: Option<Arc<TraceContext>>,
        given_up: &CancellationToken,
    ) -> Result<(), Failed> {
        let mut headers = HeaderMap::with_capacity(6);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        headers.insert(ACCEPT, HeaderValue::from_static(BOTH));
        Message::of_own(&body, self.bodies).headers(&mut headers, &self.mirrors);
        if let Some(trace) = trace {
            trace.set_headers(&mut headers);
        }
        let mut given_up = pin!(given_up.cancelled());
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
                    tracing::debug!(key, "a request was stopped before its response began");
                    return Ok(());
                };
                (response?, true)
            }
        };
        let resets = response.version() >= Version::HTTP_2;
        if let Some(flight) = self.state().in_flight.get_mut(&key) {
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
        let left = state.in_flight.get_mut(&key).is_some_and(|flight| std::mem::take(&mut flight.leaves));
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

    async fn read(&self, exchange: ExchangeId, response: Response<ResponseBody>) -> Result<(), Failed> {
        let (head, body) = response.into_parts();
        let answered = match head.headers.get(CONTENT_TYPE).map(media_of) {
            Some(Media::Events) => Box::pin(self.read_events(exchange, body)).await,
            Some(Media::Json) => self.read_one(exchange, body).await?,
            Some(Media::Other) | None => false,
        };
        // 202 does not answer a request.
        let asks = self.state().in_flight.get(&exchange.0).is_some_and(|flight| flight.asks);
        if answered || (head.status == StatusCode::ACCEPTED && !asks) {
            return Ok(());
        }
        let text = refusal(head.status, &head.headers);
        Err(Failed { sent: true, error: TransportError::new(TransportErrorKind::Io, text) })
    }

    async fn read_one(&self, exchange: ExchangeId, body: ResponseBody) -> Result<bool, Failed> {
        let body = whole(body, self.max_frame).await?;
        Ok(!body.is_empty() && self.take(exchange, body).await)
    }

    async fn read_events(&self, exchange: ExchangeId, body: ResponseBody) -> bool {
        let mut events = EventStream::new(body, self.max_frame, &self.inbound_queue);
        let mut is_answered = false;
        while let Some(event) = events.next().await {
            if !event.data.is_empty() && self.take(exchange, event.data).await {
                is_answered = true;
                events.answered();
            }
        }
        is_answered
    }

    /// Passes a message on. `true`: it answers the request of its exchange.
    async fn take(&self, exchange: ExchangeId, body: Bytes) -> bool {
        let answers = Envelope::of(&body).answers_one();
        if self.state().in_flight.get(&exchange.0).is_some_and(InFlight::is_given_up) {
            return answers;
        }
        let mut inbound = Inbound::new(body);
        inbound.exchange = exchange;
        let _ = self.inbound_queue.send(inbound).await;
        answers
    }
}
