//! The server side, which only accepts POST.
//!
//! # The link
//!
//! One link for all clients of a listener, and its POSTs (N1).

use std::future::ready;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use rescind_core::failpoint::{self, Failpoint};
use rescind_core::{
    BoxFuture, ByteBudget, Client, ExchangeEnd, ExchangeId, FrameKind, HeldBytes, Inbound, Outbound,
    PeerInfo, Principal, RejectReason, TraceContext, TransportError, TransportErrorKind, TransportEvent,
};
use tokio::time::Instant;

use crate::inbound_queue::{InboundQueue, InboundReceiver, SendRefused, WakeList};
use crate::server::body::{self, EventSource, ResponseBody};
use crate::server::checks::{self, HeadFields, PageAccess, Parameters, Refused};
use crate::server::exchange_table::{ExchangeList, ExchangeRules, ExchangeTable, Exchanges};
use crate::server::json_or_event_stream::{self, ResponseKind, StreamDelay, TimeFrom};
use crate::server::replay_buffer::Retention;
use crate::server::sessions::{Linked, ServerLink};
use crate::server::{AcceptQueue, Caller, RequestBody, Responder, Settings};
use crate::stateless::Stateless;
use crate::stateless::mirrored_headers::{self, InvalidHeader, Kind, Message};
use crate::sync::Mutex;

const ALLOWED: &str = "POST";
/// The methods and headers that web pages may use.
const PAGE_ACCESS: PageAccess = PageAccess {
    methods: ALLOWED,
    headers: "Accept, Authorization, Content-Type, MCP-Protocol-Version, Mcp-Method, Mcp-Name, traceparent, tracestate",
    exposed: "WWW-Authenticate, Retry-After",
    parameters: Parameters::Read,
};

/// A request whose head has passed the checks.
struct Begun {
    headers: HeaderMap,
    body: RequestBody,
    caller: Caller,
    client: Arc<Client>,
}

pub(super) struct StatelessServer {
    config: Stateless,
    settings: Arc<Settings>,
    accept_queue: AcceptQueue,
    /// The current link. `None` after the listener has ended.
    exchanges: Mutex<Option<Arc<StatelessLink>>>,
    stream_delay: StreamDelay,
}

impl StatelessServer {
    pub(super) fn new(config: Stateless, settings: &Arc<Settings>, accept_queue: AcceptQueue) -> Self {
        let stream_delay = StreamDelay::new(config.stream_after);
        let exchanges = Mutex::new(open(settings, &accept_queue, stream_delay.wait()));
        Self { config, settings: Arc::clone(settings), accept_queue, exchanges, stream_delay }
    }

    /// The open link. If its driver has ended, a new link replaces it.
    fn exchanges(&self) -> Result<Arc<StatelessLink>, Refused> {
        let gone = || Refused::unavailable("this server has ended");
        let mut place = self.exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        let exchanges = place.as_ref().ok_or_else(gone)?;
        if !exchanges.is_closed() {
            return Ok(Arc::clone(exchanges));
        }
        let wait = self.stream_delay.wait();
        let exchanges = open(&self.settings, &self.accept_queue, wait).ok_or_else(gone)?;
        *place = Some(Arc::clone(&exchanges));
        Ok(exchanges)
    }

    /// Checks the head of a request, except what must be compared with its body.
    fn begin(&self, request: Request<RequestBody>, caller: Caller) -> Result<Begun, Refused> {
        if request.method() != Method::POST {
            return Err(Refused::method(ALLOWED));
        }
        let (head, body) = request.into_parts();
        let fields = HeadFields::of(&head.headers);
        checks::content_encoding(&fields)?;
        checks::content_type(&fields)?;
        checks::accepts_both(&fields)?;
        body::check_length(head.version, &fields, self.settings.max_frame)?;
        let client = caller.client(&self.settings);
        body::check_room(&fields, client.budget())?;
        Ok(Begun { headers: head.headers, body, caller, client })
    }

    async fn post(self: Arc<Self>, begun: Begun) -> Result<Response<ResponseBody>, Refused> {
        let Begun { headers, body, caller, client } = begun;
        let budget = client.budget();
        let (mut body, held) =
            body::read(body, self.settings.max_frame, self.settings.body_timeout, budget).await?;
        if body.is_empty() {
            return Err(Refused::bad("the body is empty"));
        }
        let mark = body::drop_mark(&mut body);
        let fields = HeadFields::of(&headers);
        let checked = Message::read(&body, self.config.bodies)
            .and_then(|message| message.check(&fields, &self.config.versions, &self.config.mirrors))
            .map_err(InvalidHeader::into_response);
        let kind = match checked {
            Ok(kind) => kind,
            Err(unfit) => return Ok(unfit),
        };
        let trace = fields.trace().map(Arc::new);
        drop(headers);
        let Caller { principal, address, .. } = caller;
        let exchanges = self.exchanges()?;
        let posted = exchanges.post((body, held), principal, address, trace, budget);
        let (exchange, token) = posted.map_err(|why| match why {
            SendRefused::Full => Refused::too_many("too many messages wait"),
            SendRefused::Closed => Refused::unavailable("this server has ended"),
        })?;
        if let Some(mark) = mark {
            exchanges.inbound_queue.push_event(mark);
        }
        let budget = budget.clone();
        let waiting = AwaitedHead { feed: Some(PostFeed { exchanges, exchange, budget }), token };
        self.answer_post(waiting, kind).await
    }

    async fn answer_post(
        &self,
        mut waiting: AwaitedHead,
        kind: Kind,
    ) -> Result<Response<ResponseBody>, Refused> {
        let Some(feed) = &waiting.feed else { return Err(Refused::unavailable("this server has ended")) };
        let (table, exchange) = (&feed.exchanges.exchanges, feed.exchange);
        let poll = |cx: &mut Context<'_>| table.step(|table, wakes| table.poll_response(exchange, wakes, cx));
        let timer = self.stream_delay.timer(TimeFrom::Start);
        let open_stream = |_: &mut Context<'_>| {
            table.step(|table, wakes| table.open_stream(exchange, &self.settings, wakes));
            Poll::Ready(())
        };
        let kind_of_response = json_or_event_stream::decided(poll, timer, open_stream).await;
        if !matches!(kind_of_response, ResponseKind::EventStream) {
            // The response is taken: the exchange is over.
            waiting.feed = None;
        }
        match kind_of_response {
            ResponseKind::Json(status, body) => {
                let response = body::json(status, body);
                let mut response = response.map(|body| body.cut_after(self.settings.stall_timeout));
                if status == StatusCode::TOO_MANY_REQUESTS {
                    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(1));
                }
                Ok(response)
            }
            ResponseKind::Accepted if kind == Kind::Request => Ok(body::plain(StatusCode::NO_CONTENT)),
            ResponseKind::Accepted => Ok(body::plain(StatusCode::ACCEPTED)),
            ResponseKind::Refused(_) => Err(Refused::bad("the message was refused")),
            ResponseKind::Ended => Err(Refused::unanswered()),
            ResponseKind::EventStream => {
                let Some(feed) = waiting.feed.take() else {
                    return Err(Refused::unavailable("this server has ended"));
                };
                Ok(body::events(Arc::new(feed), waiting.token, self.settings.keep_alive, None))
            }
        }
    }
}

/// The one link of a listener (N1).
fn open(
    settings: &Arc<Settings>,
    accept_queue: &AcceptQueue,
    stream_after: Duration,
) -> Option<Arc<StatelessLink>> {
    let exchanges = StatelessLink::new(settings, stream_after);
    let receiver = InboundReceiver(Arc::clone(&exchanges.inbound_queue));
    accept_queue.hand(ServerLink::open(&exchanges, receiver, PeerInfo::default())).ok()?;
    Some(exchanges)
}

impl Responder for StatelessServer {
    fn respond(
        self: Arc<Self>,
        request: Request<RequestBody>,
        caller: Caller,
    ) -> BoxFuture<'static, Response<ResponseBody>> {
        match self.begin(request, caller) {
            // The mapped future itself, in place of a block around it that would keep another copy of what has begun.
            Ok(begun) => {
                Box::pin(self.post(begun).map(|answered| answered.unwrap_or_else(Refused::into_response)))
            }
            Err(refused) => Box::pin(ready(refused.into_response())),
        }
    }

    fn page_access(&self) -> &'static PageAccess {
        &PAGE_ACCESS
    }

    fn shut(&self) {
        let exchanges = self.exchanges.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(exchanges) = exchanges {
            exchanges.end();
        }
    }

    #[cfg(feature = "verify")]
    fn held(&self) -> (usize, usize) {
        (0, self.exchanges().map_or(0, |exchanges| exchanges.exchanges.lock().open.len()))
    }
}

/// The events of one POST.
struct PostFeed {
    exchanges: Arc<StatelessLink>,
    exchange: ExchangeId,
    /// The budget that counts its events.
    budget: ByteBudget,
}

impl EventSource for PostFeed {
    fn poll_next(&self, reader: u64, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let table = &self.exchanges.exchanges;
        let event = table.step(|table, _| table.poll_event(self.exchange.0, reader, cx));
        event.map(|event| event.map(|event| self.budget.hold_frame(event)))
    }

    fn left(&self, reader: u64) {
        self.exchanges.left(self.exchange, reader);
    }
}

/// A POST that waits for the head of its response. If it is dropped before that, it reports that the client has left
/// the exchange (S3).
struct AwaitedHead {
    feed: Option<PostFeed>,
    token: u64,
}

impl Drop for AwaitedHead {
    fn drop(&mut self) {
        if let Some(feed) = &self.feed {
            feed.left(self.token);
        }
    }
}

/// The most open POSTs.
const OPEN: usize = 16 * 1024;
/// The number of bytes that may wait for all readers together. At this number the link takes no more data from
/// handlers.
const ROOM: usize = 64 * 1024 * 1024;
/// Streams cannot be resumed.
const KEPT: Retention = Retention { events: 0, bytes: 0 };

static RULES: ExchangeRules =
    ExchangeRules { most: OPEN, room: ROOM - 1, resumable: false, silence_is_a_stream: false, status };

/// The POSTs of one link, each with the budget that counts its answer.
pub(super) struct StatelessLink {
    pub(super) inbound_queue: Arc<InboundQueue>,
    pub(super) settings: Arc<Settings>,
    pub(super) exchanges: Exchanges<ByteBudget>,
    /// The time after which the response to a request becomes an event stream.
    stream_after: Duration,
}

impl StatelessLink {
    pub(super) fn new(settings: &Arc<Settings>, stream_after: Duration) -> Arc<Self> {
        let inbound_queue = InboundQueue::new(settings.max_frame);
        let exchanges = Exchanges::new(&RULES, None);
        Arc::new(Self { inbound_queue, settings: Arc::clone(settings), exchanges, stream_after })
    }

    /// Takes a message. The token identifies the reader if the response becomes a stream.
    pub(super) fn post(
        &self,
        (body, held): (Bytes, HeldBytes),
        principal: Option<Principal>,
        address: Option<IpAddr>,
        trace: Option<Arc<TraceContext>>,
        budget: &ByteBudget,
    ) -> Result<(ExchangeId, u64), SendRefused> {
        let now = Instant::now();
        let (exchange, token) =
            self.exchanges.step(|table, _| table.begin_post(now, KEPT, budget.clone()))?;
        self.inbound_queue
            .push(Inbound { body, exchange, principal, address, trace }, held)
            .inspect_err(|_| drop(self.exchanges.lock().open.remove(&exchange.0)))?;
        Ok((exchange, token))
    }

    /// The client has disconnected, or has read the whole response (N3).
    pub(super) fn left(&self, exchange: ExchangeId, token: u64) {
        self.exchanges.step(|table, wakes| {
            let closed = table.reader_dropped(exchange.0, token, &self.settings, wakes);
            self.push_closed(closed, wakes);
        });
    }

    fn push_closed(&self, closed: ExchangeList, wakes: &mut WakeList) {
        if failpoint::active(Failpoint::ExchangeCloseUntold) {
            return;
        }
        for exchange in closed {
            wakes.add(self.inbound_queue.push_event_under_lock(TransportEvent::ExchangeClosed { exchange }));
        }
    }
}

impl Linked for StatelessLink {
    const ENDED: &'static str = "the server has ended";
    const EXCHANGE_SCOPED: bool = true;

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn inbound_queue(&self) -> &Arc<InboundQueue> {
        &self.inbound_queue
    }

    fn is_closed(&self) -> bool {
        self.exchanges.lock().closed
    }

    fn has_room(&self, cx: &mut Context<'_>) -> bool {
        self.exchanges.lock().has_room(cx)
    }

    /// Cuts the stream with the most waiting bytes: its reader takes nothing, and the other streams would wait for it.
    fn cut_stalled(&self, _: Instant) {
        self.exchanges.step(|table, wakes| {
            let slowest = table.open.iter().max_by_key(|(_, open)| open.waiting_bytes());
            if let Some(stream) = slowest.map(|(stream, _)| *stream) {
                tracing::debug!("an event stream was cut, because its client does not read it");
                let closed = table.cut(stream, &self.settings, wakes);
                self.push_closed(closed, wakes);
            }
        });
    }

    fn send(&self, mut out: Outbound) -> Result<(), TransportError> {
        self.exchanges.step(|table, wakes| {
            if table.closed {
                return Err(Self::ended());
            }
            let stream = out.exchange.0;
            let is_asked = out.head.kind != FrameKind::Request;
            let Some(open) = table.open.get(&stream).filter(|open| is_asked && !open.buffer.is_ended())
            else {
                let text = "a server says nothing here but on a request of its client's";
                let error = TransportError::new(TransportErrorKind::Closed, text);
                return Err(TransportError { exchange: Some(out.exchange), ..error });
            };
            out.body = open.extra.hold_frame(out.body);
            table.send(stream, out, &self.settings, wakes)
        })
    }

    fn begin(&self, exchange: ExchangeId) {
        self.exchanges.step(|table, wakes| table.note_started(exchange, self.stream_after, wakes));
    }

    fn note_waiting(&self, exchange: ExchangeId) {
        self.exchanges.step(|table, wakes| table.note_waiting(exchange, &self.settings, wakes));
    }

    fn note_rejection(&self, exchange: ExchangeId, reason: RejectReason) {
        self.exchanges.lock().note_rejection(exchange, reason);
    }

    fn finish(&self, exchange: ExchangeId, how: ExchangeEnd) {
        self.exchanges.step(|table, wakes| table.finish(exchange, how, &self.settings, wakes));
    }

    /// Nothing more is taken in. Messages that wait are still read.
    fn end(&self) {
        self.exchanges.step(ExchangeTable::close);
        self.inbound_queue.end();
    }
}

fn status(reason: Option<RejectReason>, answer: &[u8]) -> StatusCode {
    match reason {
        Some(RejectReason::BadMessage | RejectReason::NotInitialized) => StatusCode::BAD_REQUEST,
        Some(RejectReason::DuplicateId) => StatusCode::CONFLICT,
        Some(RejectReason::Overloaded) => StatusCode::TOO_MANY_REQUESTS,
        Some(RejectReason::MethodNotFound) => StatusCode::NOT_FOUND,
        Some(_) | None => mirrored_headers::status_of(answer),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Poll, Waker};

    use rescind_core::{FrameInfo, Lane, Receiver as _};

    use super::*;
    use crate::inbound_queue::InboundReceiver;

    /// Room for two messages on a POST.
    fn exchanges() -> Arc<StatelessLink> {
        StatelessLink::new(
            &Arc::new(Settings { unread_limit: (2, 1024), ..Settings::default() }),
            Duration::ZERO,
        )
    }

    fn post(exchanges: &StatelessLink) -> (ExchangeId, u64) {
        {
            let budget = ByteBudget::default();
            exchanges.post((Bytes::from_static(b"{}"), budget.hold(2)), None, None, None, &budget).unwrap()
        }
    }

    fn say(
        exchanges: &StatelessLink,
        (exchange, _): (ExchangeId, u64),
        body: impl Into<Bytes>,
        kind: FrameKind,
    ) {
        let head = FrameInfo { kind, id: None, method: None, trace: None };
        let last = kind == FrameKind::Answer;
        exchanges.send(Outbound { body: body.into(), exchange, lane: Lane::Data, head, last }).unwrap();
    }

    fn note(exchanges: &StatelessLink, exchange: (ExchangeId, u64), body: impl Into<Bytes>) {
        say(exchanges, exchange, body, FrameKind::Notification);
    }

    /// Reads the messages that wait for a reader until it would block, and returns them with whether the stream has
    /// ended.
    fn read(exchanges: &StatelessLink, (exchange, token): (ExchangeId, u64)) -> (Vec<Bytes>, bool) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut read = Vec::new();
        loop {
            match exchanges.exchanges.step(|table, _| table.poll_event(exchange.0, token, &mut cx)) {
                Poll::Ready(Some(event)) => {
                    let data = event.strip_prefix(b"data: ").and_then(|data| data.strip_suffix(b"\n\n"));
                    read.push(event.slice_ref(data.expect("an event without an id")));
                }
                Poll::Ready(None) => return (read, true),
                Poll::Pending => return (read, false),
            }
        }
    }

    #[test]
    fn a_slow_reader_gets_its_newest_notifications_and_its_answer() {
        let exchanges = exchanges();
        let (slow, other) = (post(&exchanges), post(&exchanges));
        for number in ["1", "2", "3"] {
            note(&exchanges, slow, number);
        }
        note(&exchanges, other, "its own");
        say(&exchanges, slow, "answer", FrameKind::Answer);
        assert_eq!(exchanges.settings.counts.dropped_notifications(), 2);
        assert_eq!(read(&exchanges, slow), (vec!["3".into(), "answer".into()], true));
        assert_eq!(read(&exchanges, other), (vec!["its own".into()], false), "N4: its own request only");
        assert_eq!(exchanges.exchanges.lock().held(), 0, "what was dropped or read does not count any more");
    }

    #[test]
    fn an_answer_over_the_buffer_limit_is_kept_and_notifications_are_dropped() {
        let exchanges = exchanges();
        let slow = post(&exchanges);
        note(&exchanges, slow, "1");
        let answer = Bytes::from(vec![b'x'; 2000]);
        say(&exchanges, slow, answer.clone(), FrameKind::Answer);
        assert_eq!(read(&exchanges, slow), (vec![answer], true));
        assert_eq!(exchanges.settings.counts.dropped_notifications(), 1);
    }

    #[test]
    fn the_stream_with_the_most_unread_bytes_is_cut_and_its_request_is_reported_as_left() {
        let exchanges = exchanges();
        let (slow, other) = (post(&exchanges), post(&exchanges));
        note(&exchanges, slow, "much of it");
        note(&exchanges, other, "little");
        exchanges.cut_stalled(Instant::now());
        assert_eq!(read(&exchanges, slow), (vec![], true));
        assert_eq!(read(&exchanges, other), (vec!["little".into()], false));
        let mut receiver = InboundReceiver(Arc::clone(&exchanges.inbound_queue));
        let mut closed = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(Ok(event))) = Pin::new(&mut receiver).poll_event(&mut cx) {
            if let TransportEvent::ExchangeClosed { exchange } = event {
                closed.push(exchange);
            }
        }
        assert_eq!(closed, [slow.0], "N4: its own request only");
    }
}
