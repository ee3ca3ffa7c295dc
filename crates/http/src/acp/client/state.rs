//! What the tasks of a client share.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use bytes::Bytes;
use http::header::COOKIE;
use http::{HeaderMap, HeaderValue, Method, Response};
use rescind_core::{RequestId, SessionBodies};
use tokio::sync::Notify;

use crate::acp::cookie_store::CookieStore;
use crate::client::{Failed, HttpClient, Reply, Requester};
use crate::headers::{ACP_CONNECTION_ID, ACP_SESSION_ID};
use crate::inbound_queue::InboundQueue;
use crate::sync::{JoinSet, Mutex, MutexGuard};

pub(super) struct Client {
    pub(super) requester: Requester,
    pub(super) inbound_queue: Arc<InboundQueue>,
    pub(super) max_frame: usize,
    pub(super) bodies: &'static SessionBodies,
    /// A request was taken.
    pub(super) moved: Notify,
    state: Mutex<State>,
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
    pub(super) closed: bool,
    pub(super) driver: Option<Waker>,
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
        Self {
            requester: Requester::new(client),
            inbound_queue: InboundQueue::new(client.max_frame),
            max_frame: client.max_frame,
            bodies,
            moved: Notify::new(),
            state: Mutex::default(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake_driver(&self) {
        let waker = self.state().driver.take();
        if let Some(waker) = waker {
            waker.wake();
        }
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

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("requester", &self.requester).finish_non_exhaustive()
    }
}
