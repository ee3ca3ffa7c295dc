//! The serving side: POST and nothing else.

use std::fmt;
use std::future::{poll_fn, ready};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use rescind_core::{BoxFuture, ExchangeId, Principal};

use super::envelope::{Envelope, Kind};
use super::hub::{Hub, Verdict};
use super::{Stateless, link};
use crate::intake::NotTaken;
use crate::server::refusal::Refused;
use crate::server::reply::{self, Feed, ReplyBody};
use crate::server::{Door, RequestBody, Responder, Settings, body, checks, events};
use crate::soon::Soon;
use crate::sync::Mutex;

pub(super) struct StatelessServer {
    config: Stateless,
    settings: Arc<Settings>,
    door: Door,
    /// The link there is; `None` once the listener is gone.
    hub: Mutex<Option<Arc<Hub>>>,
    soon: Arc<Soon>,
}

impl StatelessServer {
    pub(super) fn new(config: Stateless, settings: &Arc<Settings>, door: Door) -> Self {
        let hub = Mutex::new(open(settings, &door));
        let soon = Soon::new(config.stream_after);
        Self { config, settings: Arc::clone(settings), door, hub, soon }
    }

    /// The link that is open. One whose driver has ended makes way for another.
    fn hub(&self) -> Result<Arc<Hub>, Refused> {
        let gone = || Refused::unavailable("this server has ended");
        let mut place = self.hub.lock().unwrap_or_else(PoisonError::into_inner);
        let hub = place.as_ref().ok_or_else(gone)?;
        if !hub.is_closed() {
            return Ok(Arc::clone(hub));
        }
        let hub = open(&self.settings, &self.door).ok_or_else(gone)?;
        *place = Some(Arc::clone(&hub));
        Ok(hub)
    }

    /// Looks at a request's head, but for what its body has to say too.
    fn begin(&self, request: Request<RequestBody>) -> Result<(HeaderMap, RequestBody), Refused> {
        if request.method() != Method::POST {
            return Err(Refused::method("POST"));
        }
        let (head, body) = request.into_parts();
        checks::content_type(&head.headers)?;
        checks::accepts_both(&head.headers)?;
        body::check_length(head.version, &head.headers, self.settings.max_frame)?;
        Ok((head.headers, body))
    }

    async fn post(
        &self,
        headers: HeaderMap,
        body: RequestBody,
        principal: Option<Principal>,
    ) -> Result<Response<ReplyBody>, Refused> {
        let body = body::read(body, self.settings.max_frame, self.settings.body_timeout).await?;
        if body.is_empty() {
            return Err(Refused::bad("the body is empty"));
        }
        let checked = Envelope::read(&body)
            .and_then(|envelope| envelope.check(&headers, &self.config.versions, &self.config.mirrors))
            .map_err(super::envelope::Unfit::into_response);
        let kind = match checked {
            Ok(kind) => kind,
            Err(unfit) => return Ok(unfit),
        };
        drop(headers);
        let hub = self.hub()?;
        let exchange = hub.post(body, principal).map_err(|why| match why {
            NotTaken::Full => Refused::too_many("too many messages wait"),
            NotTaken::Closed => Refused::unavailable("this server has ended"),
        })?;
        let waiting = Waiting(Some(PostFeed { hub, exchange }));
        self.answer_post(waiting, kind).await
    }

    async fn answer_post(&self, mut waiting: Waiting, kind: Kind) -> Result<Response<ReplyBody>, Refused> {
        let Some(feed) = &waiting.0 else { return Err(Refused::unavailable("this server has ended")) };
        let verdict = |knows_begun| poll_fn(move |cx| feed.hub.poll_verdict(feed.exchange, knows_begun, cx));
        let mut first = verdict(false).await;
        if let Verdict::Begun = first {
            first = tokio::select! {
                biased;
                verdict = verdict(true) => verdict,
                () = self.soon.over() => Verdict::Stream,
            };
        }
        match first {
            Verdict::Json(status, body) => Ok(reply::json(status, body)),
            Verdict::Accepted if kind == Kind::Request => Ok(reply::plain(StatusCode::NO_CONTENT)),
            Verdict::Accepted => Ok(reply::plain(StatusCode::ACCEPTED)),
            Verdict::Refused => Err(Refused::bad("the message was refused")),
            Verdict::Gone => Err(Refused::unavailable("this server has ended")),
            Verdict::Stream | Verdict::Begun => {
                let Some(feed) = waiting.0.take() else {
                    return Err(Refused::unavailable("this server has ended"));
                };
                Ok(reply::events(Arc::new(feed), 0, self.settings.keep_alive, None))
            }
        }
    }
}

fn open(settings: &Arc<Settings>, door: &Door) -> Option<Arc<Hub>> {
    let hub = Hub::new(settings);
    door.hand(link::link(&hub)).ok()?;
    Some(hub)
}

impl Responder for StatelessServer {
    fn respond(
        self: Arc<Self>,
        request: Request<RequestBody>,
        principal: Option<Principal>,
    ) -> BoxFuture<'static, Response<ReplyBody>> {
        match self.begin(request) {
            Ok((headers, body)) => Box::pin(async move {
                let answered = self.post(headers, body, principal).await;
                answered.unwrap_or_else(Refused::into_response)
            }),
            Err(refused) => Box::pin(ready(refused.into_response())),
        }
    }

    fn shut(&self) {
        let hub = self.hub.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(hub) = hub {
            hub.close();
        }
    }

    #[cfg(feature = "verify")]
    fn held(&self) -> (usize, usize) {
        (0, self.hub().map_or(0, |hub| hub.open_posts()))
    }
}

impl fmt::Debug for StatelessServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatelessServer").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The events of one POST.
struct PostFeed {
    hub: Arc<Hub>,
    exchange: ExchangeId,
}

impl Feed for PostFeed {
    fn poll_next(&self, _: u64, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let next = self.hub.poll_next(self.exchange, cx);
        next.map(|body| body.map(|body| events::event(None, &body)))
    }

    fn left(&self, _: u64) {
        self.hub.left(self.exchange);
    }
}

/// A POST that waits for its head. Dropped before, it tells that the exchange was given up (S3).
struct Waiting(Option<PostFeed>);

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(feed) = &self.0 {
            feed.left(0);
        }
    }
}
