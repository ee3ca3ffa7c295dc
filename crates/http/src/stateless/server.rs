//! The server side, which only accepts POST.

use std::future::ready;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use rescind_core::{BoxFuture, ByteBudget, Client, ExchangeId, PeerInfo};

use super::Stateless;
use super::link::StatelessLink;
use super::mirrored_headers::{InvalidHeader, Kind, Message};
use crate::inbound_queue::{InboundReceiver, SendRefused};
use crate::server::body::{self, EventSource, ResponseBody};
use crate::server::checks::Refused;
use crate::server::checks::{self, HeadFields, PageAccess, Parameters};
use crate::server::json_or_event_stream::{self, ResponseKind, StreamDelay, TimeFrom};
use crate::server::sessions::{Linked, ServerLink};
use crate::server::{AcceptQueue, Caller, RequestBody, Responder, Settings};
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
        let waiting = Waiting { feed: Some(PostFeed { exchanges, exchange, budget }), token };
        self.answer_post(waiting, kind).await
    }

    async fn answer_post(&self, mut waiting: Waiting, kind: Kind) -> Result<Response<ResponseBody>, Refused> {
        let Some(feed) = &waiting.feed else { return Err(Refused::unavailable("this server has ended")) };
        let (table, exchange) = (&feed.exchanges.exchanges, feed.exchange);
        let poll = |cx: &mut Context<'_>| table.step(|table, wakes| table.poll_response(exchange, wakes, cx));
        let timer = self.stream_delay.timer(TimeFrom::Start);
        let open_stream = || table.step(|table, wakes| table.open_stream(exchange, &self.settings, wakes));
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
struct Waiting {
    feed: Option<PostFeed>,
    token: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(feed) = &self.feed {
            feed.left(self.token);
        }
    }
}
