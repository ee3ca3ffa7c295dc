//! The server side: how each HTTP method is handled.

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode, Uri};
use rescind_core::{BoxFuture, ExchangeId};

use super::LegacySse;
use super::session::SseSession;
use crate::envelope::Envelope;
use crate::inbound_queue::SendRefused;
use crate::server::body::{self, ResponseBody};
use crate::server::checks::Refused;
use crate::server::checks::{self, HeadFields, PageAccess, Parameters};
use crate::server::json_or_event_stream::ResponseKind;
use crate::server::sessions::Sessions;
use crate::server::{AcceptQueue, Caller, RequestBody, Responder, Settings, is_at};

/// The methods and headers that web pages may use.
const PAGE_ACCESS: PageAccess = PageAccess {
    methods: "GET, POST",
    headers: "Accept, Authorization, Content-Type, Last-Event-ID, MCP-Protocol-Version, traceparent, tracestate",
    exposed: "WWW-Authenticate, Retry-After",
    parameters: Parameters::Ignored,
};
/// The parameter of the query that names the session.
const SESSION: &str = "sessionId";

pub(super) struct LegacySseServer {
    /// The paths beside another binding. `None`: one path serves everything.
    paths: Option<LegacySse>,
    settings: Arc<Settings>,
    sessions: Arc<Sessions<SseSession>>,
    accept_queue: AcceptQueue,
}

impl LegacySseServer {
    pub(super) fn new(paths: Option<LegacySse>, settings: &Arc<Settings>, accept_queue: AcceptQueue) -> Self {
        Self { paths, settings: Arc::clone(settings), sessions: Arc::default(), accept_queue }
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<RequestBody>,
        caller: Caller,
    ) -> Result<Response<ResponseBody>, Refused> {
        if self.sessions.is_shut() {
            return Err(Refused::unavailable("this server has ended"));
        }
        let (streams, posts) = match &self.paths {
            Some(paths) => (is_at(&paths.stream, &request), is_at(&paths.messages, &request)),
            None => (true, true),
        };
        match *request.method() {
            Method::GET if streams => self.open(&request, caller),
            Method::POST if posts => self.post(request, caller).await,
            _ => Err(Refused::method(match (streams, posts) {
                (true, true) => "GET, POST",
                (true, false) => "GET",
                (false, _) => "POST",
            })),
        }
    }

    /// Opens a session and its stream (L1).
    fn open(
        &self,
        request: &Request<RequestBody>,
        caller: Caller,
    ) -> Result<Response<ResponseBody>, Refused> {
        checks::accepts_events(&HeadFields::of(request.headers()))?;
        let messages = self.paths.as_ref().map_or(request.uri().path(), |paths| paths.messages.as_str());
        let client = caller.client(&self.settings);
        let Caller { principal, address, .. } = caller;
        let opened = self.sessions.open(&client, &self.settings, |id| {
            let sessions = Arc::downgrade(&self.sessions);
            SseSession::new(Arc::clone(id), principal.clone(), address, &self.settings, sessions, messages)
        });
        let session = opened?;
        if let Err(link) = self.accept_queue.hand(session.link()) {
            // The session ends with its link.
            drop(link);
            return Err(Refused::unavailable("the server accepts no session now"));
        }
        Ok(body::events(session, 0, self.settings.keep_alive, None))
    }

    async fn post(
        &self,
        request: Request<RequestBody>,
        caller: Caller,
    ) -> Result<Response<ResponseBody>, Refused> {
        let (head, body) = request.into_parts();
        let fields = HeadFields::of(&head.headers);
        checks::content_encoding(&fields)?;
        checks::content_type(&fields)?;
        let id = session_named(&head.uri)
            .ok_or_else(|| Refused::bad("the query must name a session: open one with a GET"))?;
        // Before the body is read: an upload to an unknown session is refused early.
        let session = self.sessions.by_id(id).ok_or_else(ended)?;
        if session.principal != caller.principal {
            return Err(Refused::new(StatusCode::FORBIDDEN, "this session belongs to another principal"));
        }
        body::check_room(&fields, &session.budget)?;
        body::check_length(head.version, &fields, self.settings.max_frame)?;
        let budget = session.budget.parent().cloned().unwrap_or_default();
        let (mut body, bytes) =
            body::read(body, self.settings.max_frame, self.settings.body_timeout, &budget).await?;
        if let Some(mark) = body::drop_mark(&mut body) {
            session.inbound_queue.push_event(mark);
        }
        if body.is_empty() {
            return Err(Refused::bad("the body is empty"));
        }
        let not_taken = |why| match why {
            SendRefused::Full => Refused::too_many("too many messages of this session wait"),
            SendRefused::Closed => ended(),
        };
        if Envelope::read(&body).is_ok() {
            let trace = fields.trace().map(Arc::new);
            session.post((body, bytes), ExchangeId::NONE, trace).map_err(not_taken)?;
            return Ok(body::plain(StatusCode::ACCEPTED));
        }
        match session.judge((body, bytes)).await.map_err(not_taken)? {
            ResponseKind::Json(status, refusal) => Ok(body::json(status, refusal)),
            ResponseKind::Refused(_) => Err(Refused::bad("the body is not a message")),
            ResponseKind::Ended => Err(ended()),
            ResponseKind::Accepted | ResponseKind::EventStream => Ok(body::plain(StatusCode::ACCEPTED)),
        }
    }
}

/// The session that the query names. Its id needs no encoding.
fn session_named(uri: &Uri) -> Option<&str> {
    let mut named = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    named.find(|(name, _)| *name == SESSION).map(|(_, id)| id).filter(|id| !id.is_empty())
}

fn ended() -> Refused {
    Refused::not_found("this session is not known, or has ended with its stream")
}

impl Responder for LegacySseServer {
    fn respond(
        self: Arc<Self>,
        request: Request<RequestBody>,
        caller: Caller,
    ) -> BoxFuture<'static, Response<ResponseBody>> {
        Box::pin(async move { self.answer(request, caller).await.unwrap_or_else(Refused::into_response) })
    }

    fn page_access(&self) -> &'static PageAccess {
        &PAGE_ACCESS
    }

    fn session_of(&self, request: &Request<RequestBody>) -> Result<Option<String>, Refused> {
        Ok(session_named(request.uri()).map(str::to_owned))
    }

    fn shut(&self) {
        self.sessions.shut();
    }

    /// Always zero for the POSTs: each is answered at once.
    #[cfg(feature = "verify")]
    fn held(&self) -> (usize, usize) {
        (self.sessions.all().len(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_names_a_session_once() {
        for (target, session) in [
            ("/messages?sessionId=ab", Some("ab")),
            ("/messages?x=1&sessionId=ab&y", Some("ab")),
            ("/messages?sessionId=ab&sessionId=cd", Some("ab")),
            ("/messages?sessionid=ab", None),
            ("/messages?sessionId=", None),
            ("/messages?sessionId", None),
            ("/messages", None),
        ] {
            assert_eq!(session_named(&target.parse().unwrap()), session, "{target}");
        }
    }
}
