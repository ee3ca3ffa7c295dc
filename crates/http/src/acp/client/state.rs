//! What the tasks of a client share.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;

use bytes::Bytes;
use http::header::COOKIE;
use http::{HeaderMap, HeaderValue, Method, Response};
use rescind_core::{RequestId, SessionBodies};
use tokio::sync::Notify;

use crate::acp::cookie_store::CookieStore;
use crate::client::{ClientCore, Failed, HttpClient, InFlightTasks, Reply, Requester};
use crate::headers::{ACP_CONNECTION_ID, ACP_SESSION_ID};
use crate::sync::JoinSet;

pub(super) struct Client {
    core: ClientCore<State>,
    pub(super) bodies: &'static SessionBodies,
    /// A request was taken.
    pub(super) moved: Notify,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) connection: Option<HeaderValue>,
    pub(super) cookies: CookieStore,
    /// Sessions whose stream is open or being opened.
    pub(super) sessions: HashSet<String>,
    pub(super) streams: JoinSet<()>,
    /// Cancels on their way.
    pub(super) cancels: JoinSet<()>,
    /// Requests of ours that are not answered yet.
    pub(super) asked: HashMap<RequestId, Asked>,
    /// The session on whose stream each request of the server's came, for its answer.
    pub(super) asked_in: HashMap<RequestId, String>,
}

/// A request of ours, for the cancel that names it later.
#[derive(Default)]
pub(super) struct Asked {
    /// The server has taken it.
    pub(super) is_taken: bool,
    pub(super) session: Option<String>,
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

    /// The server has named the connection, so it has to hear of its end.
    pub(super) fn is_named(&self) -> bool {
        self.state().connection.is_some()
    }

    /// What the DELETE needs that ends the connection.
    pub(super) fn delete(&self) -> (Requester, HeaderMap) {
        (self.requester.clone(), self.headers(None))
    }

    pub(super) async fn send(
        &self,
        method: Method,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Reply>, Failed> {
        let response = self.requester.send(method, headers, body).await?;
        self.state().cookies.take(response.headers());
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
    /// All but the one that posts.
    type Tasks = [JoinSet<()>; 2];

    fn take_tasks(&mut self) -> Self::Tasks {
        [std::mem::take(&mut self.streams), std::mem::take(&mut self.cancels)]
    }
}
