//! The state that the tasks of a client share.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;

use bytes::Bytes;
use http::header::COOKIE;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use rescind_core::{RequestId, SessionBodies};
use tokio::sync::Notify;

use crate::acp::cookies::CookieStore;
use crate::client::{
    ClientCore, Failed, HttpClient, InFlightTasks, Requester, ResponseBody, is_of_another_origin,
};
use crate::headers::{ACP_CONNECTION_ID, ACP_SESSION_ID};
use crate::sync::JoinSet;

pub(super) struct Client {
    core: ClientCore<State>,
    pub(super) bodies: &'static SessionBodies,
    /// Notified when the server has taken a request, and when a request is no longer tracked.
    pub(super) moved: Notify,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) connection: Option<HeaderValue>,
    pub(super) cookies: CookieStore,
    /// Sessions whose stream is open or is being opened.
    pub(super) sessions: HashSet<String>,
    pub(super) streams: JoinSet<()>,
    /// Cancels that are being sent.
    pub(super) cancels: JoinSet<()>,
    /// Our requests that are not answered yet.
    pub(super) asked: HashMap<RequestId, Asked>,
    /// Whether the link closes: nothing is sent again.
    pub(super) closing: bool,
    /// For each request from the server, the session on whose stream it came. Its answer needs that session.
    pub(super) asked_in: HashMap<RequestId, String>,
}

/// One of our requests, for a later cancel that names it.
#[derive(Default)]
pub(super) struct Asked {
    /// Whether the server has taken it.
    pub(super) is_taken: bool,
    pub(super) session: Option<String>,
    /// Whether its cancel was sent: it is not sent again.
    pub(super) is_cancelled: bool,
}

impl Client {
    pub(super) fn new(client: &HttpClient, bodies: &'static SessionBodies) -> Self {
        Self { core: ClientCore::new(client, State::default()), bodies, moved: Notify::new() }
    }

    pub(super) fn headers(&self, session: Option<&str>) -> HeaderMap {
        let state = self.state();
        let session = session.and_then(|session| HeaderValue::from_str(session).ok());
        let mut headers = HeaderMap::with_capacity(6);
        let values = [
            (ACP_CONNECTION_ID, state.connection.clone()),
            (ACP_SESSION_ID, session),
            (COOKIE, state.cookies.header()),
        ];
        for (name, value) in values {
            if let Some(value) = value {
                headers.insert(name, value);
            }
        }
        headers
    }

    /// Whether the server has named the connection. If it has, the client must tell it that the connection ends.
    pub(super) fn is_named(&self) -> bool {
        self.state().connection.is_some()
    }

    /// Keeps the cookies of a response, unless it came from another server, to which the request was redirected.
    pub(super) fn take_cookies(&self, response: &Response<ResponseBody>) {
        if !is_of_another_origin(response.extensions()) {
            self.state().cookies.take(response.headers());
        }
    }

    /// The values for the DELETE that ends the connection.
    pub(super) fn delete(&self) -> (Requester, HeaderMap) {
        (self.requester.clone(), self.headers(None))
    }

    pub(super) async fn send(
        &self,
        method: Method,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<ResponseBody>, Failed> {
        let response = self.requester.send(method, headers, body).await?;
        self.take_cookies(&response);
        Ok(response)
    }
}

impl Deref for Client {
    type Target = ClientCore<State>;

    fn deref(&self) -> &ClientCore<State> {
        &self.core
    }
}

impl InFlightTasks for State {
    /// All tasks except the one that posts.
    type Tasks = [JoinSet<()>; 2];

    fn take_tasks(&mut self) -> Self::Tasks {
        [std::mem::take(&mut self.streams), std::mem::take(&mut self.cancels)]
    }
}

/// How much of a stream has been received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Position {
    /// The stream was never opened.
    #[default]
    Unopened,
    /// The stream may have been opened, and no event has been received. An empty id says so to the server: it is the id
    /// before the first event (WHATWG HTML, 9.2.6).
    BeforeFirst,
    /// The last event that was received has this id. One that no header can have resumes nothing.
    After(String),
    /// Events have no ids, or the server has refused to resume the stream.
    Unknown,
}

impl Position {
    /// The value of `Last-Event-ID`, if the stream is resumed.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        match self {
            Self::Unopened | Self::Unknown => None,
            Self::BeforeFirst => Some(HeaderValue::from_static("")),
            Self::After(id) => HeaderValue::from_bytes(id.as_bytes()).ok(),
        }
    }

    /// The server may have begun to send events.
    pub(super) fn opened(&mut self) {
        if *self == Self::Unopened {
            *self = Self::BeforeFirst;
        }
    }

    /// An event was received, with its id.
    pub(super) fn received(&mut self, id: Option<String>) {
        match (id, &*self) {
            (Some(id), _) if !id.is_empty() => *self = Self::After(id),
            // An event without an id leaves the last one as it is.
            (None, Self::After(_)) => {}
            (Some(_), _) | (None, Self::Unopened | Self::BeforeFirst | Self::Unknown) => {
                *self = Self::Unknown;
            }
        }
    }

    /// The server refused the stream with this status. Returns whether it refused to resume it: with 400 as our server
    /// and that of MCP's streamable HTTP, or with 409 as a proposal for ACP.
    pub(super) fn was_refused(&mut self, status: StatusCode) -> bool {
        let resumes = self.header().is_some();
        let is_refused = resumes && matches!(status, StatusCode::BAD_REQUEST | StatusCode::CONFLICT);
        if is_refused {
            *self = Self::Unknown;
        }
        is_refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(position: &Position) -> Option<String> {
        position.header().map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_stream_is_resumed_after_its_last_id() {
        let mut position = Position::default();
        assert_eq!(header(&position), None, "the first request resumes nothing");
        position.opened();
        assert_eq!(header(&position).as_deref(), Some(""), "lost before its first event");
        for (id, expected) in [
            (Some("1-0"), Some("1-0")),
            (None, Some("1-0")),
            (Some("1-1"), Some("1-1")),
            (Some(""), None),
            (None, None),
            (Some("a\u{e9}"), Some("a\u{e9}")),
            (Some("a\u{7f}"), None),
            (Some("1-2"), Some("1-2")),
        ] {
            position.received(id.map(str::to_owned));
            let value = position.header();
            assert_eq!(value.as_ref().map(HeaderValue::as_bytes), expected.map(str::as_bytes), "{id:?}");
            position.opened();
            assert_eq!(position.header(), value, "opening it again changes nothing");
        }
    }

    #[test]
    fn a_stream_without_ids_is_never_resumed() {
        let mut position = Position::default();
        position.opened();
        position.received(None);
        position.opened();
        assert_eq!(header(&position), None);
    }

    #[test]
    fn after_a_refusal_a_stream_is_not_resumed_until_there_is_an_id() {
        for status in [StatusCode::BAD_REQUEST, StatusCode::CONFLICT] {
            let mut position = Position::default();
            assert!(!position.was_refused(status), "nothing was resumed");
            position.opened();
            for other in [StatusCode::NOT_FOUND, StatusCode::TOO_MANY_REQUESTS, StatusCode::BAD_GATEWAY] {
                assert!(!position.was_refused(other), "{other}");
            }
            assert!(position.was_refused(status));
            position.opened();
            assert_eq!(header(&position), None, "it would get events again that it has had");
            position.received(Some("1-7".to_owned()));
            assert_eq!(header(&position).as_deref(), Some("1-7"));
        }
    }
}
