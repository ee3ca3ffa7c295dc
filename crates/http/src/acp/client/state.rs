//! The state that the tasks of a client share.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;

use bytes::Bytes;
use http::header::COOKIE;
use http::{HeaderMap, HeaderValue, Method, Response};
use rescind_core::{RequestId, SessionBodies};
use tokio::sync::Notify;

use crate::acp::cookie_store::CookieStore;
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
