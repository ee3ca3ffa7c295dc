//! What one connection tells the logs that record it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::driver::request_log::info::{
    Direction, EndedRequest, RequestInfo, RequestKey, RequestOutcome, recorded_method,
};
use crate::driver::request_log::shared::{RequestEvent, Shared};
use crate::id::CallKey;
use crate::machine::{AcceptedCancel, RequestStatus};

/// The logs whose readers must be notified when no lock is held.
pub(crate) type Notified = Vec<Arc<Shared>>;

/// The logs of a connection, and the last state of each request in flight that they have.
pub(crate) struct Recorder {
    connection: u64,
    logs: Vec<Weak<Shared>>,
    /// The limits of requests and calls bound it: it holds none that has ended.
    known: HashMap<(Direction, CallKey), Known>,
}

struct Known {
    info: RequestInfo,
    /// How it will have ended, once that is decided.
    outcome: Option<RequestOutcome>,
}

impl Recorder {
    pub(crate) fn new(connection: u64) -> Self {
        Self { connection, logs: Vec::new(), known: HashMap::new() }
    }

    /// Adds a log, which gets all requests in flight. It has no effect for a log that was added before.
    pub(crate) fn add(&mut self, log: &Arc<Shared>, in_flight: Vec<RequestInfo>) {
        if self.logs.iter().any(|known| known.as_ptr() == Arc::as_ptr(log)) {
            return;
        }
        self.logs.push(Arc::downgrade(log));
        for info in in_flight {
            log.record(RequestEvent::Started(self.know(info)));
        }
    }

    /// Whether any log is left.
    pub(crate) fn has_readers(&self) -> bool {
        self.logs.iter().any(|log| log.strong_count() > 0)
    }

    /// The last state of a request that the logs have.
    pub(crate) fn known(&self, direction: Direction, key: CallKey) -> Option<&RequestInfo> {
        self.known.get(&(direction, key)).map(|known| &known.info)
    }

    /// A request has arrived, or a call was made.
    pub(crate) fn started(&mut self, info: RequestInfo, notified: &mut Notified) {
        let event = RequestEvent::Started(self.know(info));
        self.tell(&event, notified);
    }

    /// A request has this status and this cancel now. The logs get it if it is new. The first cancel is kept.
    pub(crate) fn changed(
        &mut self,
        key: (Direction, CallKey),
        status: RequestStatus,
        cancel: Option<AcceptedCancel>,
        notified: &mut Notified,
    ) {
        let Some(Known { info, .. }) = self.known.get_mut(&key) else { return };
        let is_new_cancel = info.cancel.is_none() && cancel.is_some();
        if info.status == status && !is_new_cancel {
            return;
        }
        info.status = status;
        if is_new_cancel {
            info.cancel = cancel;
        }
        let event = RequestEvent::Changed(info.clone());
        self.tell(&event, notified);
    }

    /// How a request will have ended.
    pub(crate) fn decided(&mut self, key: (Direction, CallKey), outcome: RequestOutcome) {
        if let Some(known) = self.known.get_mut(&key) {
            known.outcome = Some(outcome);
        }
    }

    /// A request has ended. A request whose outcome was not decided lost its connection.
    pub(crate) fn ended(&mut self, key: (Direction, CallKey), now: Instant, notified: &mut Notified) {
        let Some(Known { info, outcome }) = self.known.remove(&key) else { return };
        let outcome = outcome.unwrap_or(RequestOutcome::Disconnected);
        self.tell(&RequestEvent::Ended(EndedRequest::new(info, outcome, now)), notified);
    }

    fn know(&mut self, mut info: RequestInfo) -> RequestInfo {
        info.method = info.method.map(recorded_method);
        let RequestKey { direction, key, .. } = info.key;
        let known = self.known.entry((direction, key)).or_insert(Known { info, outcome: None });
        known.info.clone()
    }

    fn tell(&mut self, event: &RequestEvent, notified: &mut Notified) {
        self.logs.retain(|log| {
            let Some(log) = log.upgrade() else { return false };
            log.record(event.clone());
            if !notified.iter().any(|known| Arc::ptr_eq(known, &log)) {
                notified.push(log);
            }
            true
        });
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        for log in self.logs.iter().filter_map(Weak::upgrade) {
            log.remove(self.connection);
        }
    }
}
