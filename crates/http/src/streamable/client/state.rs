//! The state that the tasks of a client share.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use rescind_core::{ExchangeId, RequestId};
use tokio::sync::Notify;

use super::ClientSettings;
use super::renewal::SessionRecord;
use crate::client::{AbortOnDrop, ClientCore, Guarded, HttpClient, InFlightTasks, Requester};
use crate::headers::{BOTH, EVENT_STREAM, JSON, MCP_PROTOCOL_VERSION, MCP_SESSION_ID};
use crate::int_map::IntMap;
use crate::shared_delay::SharedDelay;
use crate::sync::AbortHandle;

pub(super) struct Client {
    core: ClientCore<State>,
    pub(super) settings: ClientSettings,
    /// Sends POSTs to the endpoint of an event stream, if the server speaks the transport of 2024-11-05.
    pub(super) legacy: OnceLock<Requester>,
    /// After this delay, a request whose response has no head yet counts as started.
    pub(super) cancel_delay: Arc<SharedDelay>,
    /// Notified when a frame is no longer pending or no longer in flight.
    pub(super) moved: Notify,
}

pub(super) struct State {
    pub(super) standing: Standing,
    /// The session id, after the server has named it.
    pub(super) id: Option<HeaderValue>,
    pub(super) version: Option<HeaderValue>,
    /// The headers of each POST, until the session or its version changes.
    pub(super) post_headers: Option<HeaderMap>,
    pub(super) in_flight: IntMap<InFlight>,
    pub(super) next: u64,
    /// Frames whose response has not begun, in bytes and in number.
    pub(super) pending: (usize, usize),
    /// Requests in flight.
    pub(super) requests: usize,
    /// Notifications and cancels that later frames may wait for. The next frame removes those that are no longer
    /// pending.
    pub(super) notified: Vec<u64>,
    /// The newest frame, if all frames keep their order.
    pub(super) latest: Option<u64>,
    /// Cancels that may be sent and are not written yet. Data frames wait for them; otherwise the tasks of those frames
    /// would run before theirs.
    pub(super) leaving: usize,
    pub(super) listens: bool,
    /// Whether the link closes: nothing is sent again.
    pub(super) closing: bool,
    /// Why the server does not speak the transport of 2024-11-05, until an error says so.
    pub(super) not_legacy: Option<String>,
    /// What a new session needs.
    pub(super) record: SessionRecord,
}

/// The state of the session.
pub(super) enum Standing {
    /// Nothing was sent yet.
    Unopened,
    /// The response to the first frame has not begun.
    FirstMessage(u64),
    /// Frames may be sent.
    Open,
}

/// A frame in flight, until its response has ended.
pub(super) struct InFlight {
    pub(super) task: Option<AbortHandle>,
    /// Set for a request.
    pub(super) exchange: Option<ExchangeId>,
    pub(super) id: Option<RequestId>,
    /// Its response has not begun, and it has not waited long enough to count as started.
    pub(super) pending: bool,
    /// The frame that cancels it.
    pub(super) cancel: Option<u64>,
    /// Its cancel was sent: its stream is not resumed.
    pub(super) cancelled: bool,
    /// The number of the session in which it was sent last.
    pub(super) sent_in: Option<u64>,
    /// The number of the session in which its response has begun.
    pub(super) session: Option<u64>,
}

impl Client {
    pub(super) fn new(client: &HttpClient, settings: ClientSettings) -> Self {
        let state = State {
            standing: Standing::Unopened,
            id: None,
            version: None,
            post_headers: None,
            in_flight: IntMap::default(),
            next: 0,
            pending: (0, 0),
            requests: 0,
            notified: Vec::new(),
            latest: None,
            leaving: 0,
            listens: false,
            closing: false,
            not_legacy: None,
            record: SessionRecord::default(),
        };
        Self {
            core: ClientCore::new(client, state),
            settings,
            legacy: OnceLock::new(),
            cancel_delay: SharedDelay::new(settings.cancel_after),
            moved: Notify::new(),
        }
    }

    /// The headers of every request of the session.
    pub(super) fn headers(&self, accept: &'static str) -> HeaderMap {
        self.state().headers(accept)
    }

    /// The values for the DELETE that ends the session.
    pub(super) fn delete(&self) -> (Requester, HeaderMap) {
        (self.requester.clone(), self.headers(EVENT_STREAM))
    }

    /// The headers of a POST, and the number of its session. Notes that this frame is sent in it.
    pub(super) fn post_headers(&self, frame: Option<u64>) -> (HeaderMap, u64) {
        let mut state = self.state();
        let session = state.record.number;
        if let Some(flight) = frame.and_then(|frame| state.in_flight.get_mut(&frame)) {
            flight.sent_in = Some(session);
        }
        if let Some(headers) = &state.post_headers {
            return (headers.clone(), session);
        }
        let mut headers = state.headers(BOTH);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        // Each copy then has room for its length.
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        self.requester.name_host(&mut headers);
        state.post_headers = Some(headers.clone());
        (headers, session)
    }

    /// Sends the POSTs.
    pub(super) fn poster(&self) -> &Requester {
        self.legacy.get().unwrap_or(&self.requester)
    }

    /// Whether this frame is cancelled or no longer in flight, so that its stream is not resumed.
    pub(super) fn is_cancelled(&self, flight: u64) -> bool {
        self.state().in_flight.get(&flight).is_none_or(|flight| flight.cancelled)
    }

    /// Waits for the response to the cancel of this call: its messages are passed on before the later ones of the call
    /// (K4).
    pub(super) async fn after_its_cancel(&self, flight: u64) {
        let cancel = self.state().in_flight.get(&flight).and_then(|flight| flight.cancel);
        let Some(cancel) = cancel else { return };
        let over = self.until(|state| !state.in_flight.contains_key(&cancel));
        let _ = Box::pin(tokio::time::timeout(self.settings.cancel_after, over)).await;
    }

    /// Waits until none of these frames is pending. Never completes after the client has closed.
    pub(super) async fn after(&self, frames: &[u64]) {
        if !frames.is_empty() {
            let none_is_young = |state: &State| !frames.iter().any(|frame| state.is_pending(*frame));
            self.until(|state| !state.closed && none_is_young(state)).await;
        }
    }

    pub(super) async fn until(&self, holds: impl Fn(&Guarded<State>) -> bool) {
        loop {
            let moved = self.moved.notified();
            if holds(&self.state()) {
                return;
            }
            moved.await;
        }
    }
}

impl State {
    /// Whether a frame must not be sent again: it is cancelled, or the link closes.
    pub(super) fn is_stopped(&self, frame: u64) -> bool {
        self.closing || self.in_flight.get(&frame).is_none_or(|flight| flight.cancelled)
    }

    fn headers(&self, accept: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        if let Some(id) = &self.id {
            headers.insert(MCP_SESSION_ID, id.clone());
        }
        if let Some(version) = &self.version {
            headers.insert(MCP_PROTOCOL_VERSION, version.clone());
        }
        headers
    }

    pub(super) fn is_pending(&self, frame: u64) -> bool {
        self.in_flight.get(&frame).is_some_and(|flight| flight.pending)
    }
}

impl Deref for Client {
    type Target = ClientCore<State>;

    fn deref(&self) -> &ClientCore<State> {
        &self.core
    }
}

impl InFlightTasks for State {
    type Tasks = AbortOnDrop;

    fn take_tasks(&mut self) -> AbortOnDrop {
        std::mem::take(&mut self.in_flight).into_values().filter_map(|flight| flight.task).collect()
    }
}
