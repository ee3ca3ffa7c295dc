//! The view: one JSON document with everything that the page shows.
//!
//! Texts of the peer are made printable here and cut ([`LogText`]). The page shows them as text only.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rescind_core::{
    AcceptedCancel, Direction, EndedRequest, LogText, OutcomeCounts, RequestInfo, RequestLog, RequestOutcome,
    RequestStatus, SessionInfo,
};
use serde::Serialize;

/// The most requests in flight that are shown.
pub(crate) const MAX_REQUESTS: usize = 500;
/// The most sessions that are shown.
pub(crate) const MAX_SESSIONS: usize = 200;

/// Turns times of the monotonic clock into milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    began: Instant,
    began_ms: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { began: Instant::now(), began_ms: u64::try_from(since.as_millis()).unwrap_or(0) }
    }

    pub(crate) fn now(&self) -> u64 {
        self.ms(Instant::now())
    }

    fn ms(&self, at: Instant) -> u64 {
        let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match at.checked_duration_since(self.began) {
            Some(after) => self.began_ms.saturating_add(ms(after)),
            None => self.began_ms.saturating_sub(ms(self.began.saturating_duration_since(at))),
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct View {
    title: String,
    draining: bool,
    sessions: Vec<Session>,
    more_sessions: usize,
    requests: Vec<Request>,
    more_requests: bool,
    /// The youngest first.
    ended: Vec<Ended>,
    received: Counts,
    made: Counts,
}

#[derive(Debug, Serialize)]
struct Session {
    connection: u64,
    #[serde(rename = "session")]
    name: String,
    dialect: &'static str,
    /// The name and the version of the client.
    client: Option<String>,
    peer: Option<String>,
    principal: Option<String>,
    address: Option<String>,
    opened: u64,
    running: u64,
    queued: u64,
    draining: u64,
    calls: u64,
}

#[derive(Debug, Serialize)]
struct Request {
    key: String,
    connection: u64,
    session: String,
    id: String,
    method: String,
    /// Its tool or its document.
    about: Option<String>,
    /// The name and the version of its client.
    client: Option<String>,
    progress: Option<Progress>,
    direction: &'static str,
    status: &'static str,
    started: u64,
    parent: Option<String>,
    cancel: Option<Cancel>,
    /// Whether an operator may stop it.
    stoppable: bool,
}

#[derive(Debug, Serialize)]
struct Progress {
    done: f64,
    total: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Cancel {
    by: &'static str,
    reason: Option<String>,
    at: u64,
}

#[derive(Debug, Serialize)]
struct Ended {
    request: Request,
    outcome: &'static str,
    code: Option<i64>,
    #[serde(rename = "ended")]
    at: u64,
}

#[derive(Debug, Serialize)]
struct Counts {
    started: u64,
    completed: u64,
    failed: u64,
    cancelled: u64,
    other: u64,
}

impl View {
    pub(crate) fn of(log: &RequestLog, clock: Clock, title: &str, draining: bool) -> Self {
        let mut requests = log.requests(MAX_REQUESTS + 1);
        let more_requests = requests.len() > MAX_REQUESTS;
        requests.truncate(MAX_REQUESTS);
        let sessions = log.sessions();
        let counts = log.counts();
        Self {
            title: LogText::name(title).to_string(),
            draining,
            more_sessions: sessions.len().saturating_sub(MAX_SESSIONS),
            sessions: sessions
                .into_iter()
                .take(MAX_SESSIONS)
                .map(|session| Session::of(&session, clock))
                .collect(),
            requests: requests.iter().map(|request| Request::of(request, clock)).collect(),
            more_requests,
            ended: log.ended().iter().rev().map(|ended| Ended::of(ended, clock)).collect(),
            received: Counts::of(&counts.received),
            made: Counts::of(&counts.made),
        }
    }
}

impl Session {
    fn of(session: &SessionInfo, clock: Clock) -> Self {
        let SessionInfo { client, peer, stats, .. } = session;
        Self {
            connection: session.connection,
            name: LogText::name(session.session.as_str()).to_string(),
            dialect: session.dialect,
            client: client.as_ref().map(|client| LogText::text(client).to_string()),
            peer: peer.peer.as_ref().map(|peer| LogText::name(peer).to_string()),
            principal: peer.principal.as_ref().map(|principal| LogText::name(&principal.0).to_string()),
            address: peer.address.map(|address| address.to_string()),
            opened: clock.ms(session.opened),
            running: stats.running,
            queued: stats.queued,
            draining: stats.draining,
            calls: stats.calls,
        }
    }
}

impl Request {
    fn of(request: &RequestInfo, clock: Clock) -> Self {
        let can_be_stopped = match request.status {
            RequestStatus::Queued | RequestStatus::Running => true,
            RequestStatus::Task => request.cancel.is_none(),
            _ => false,
        };
        let shown = |text: &Option<Arc<str>>| text.as_ref().map(|text| LogText::text(text).to_string());
        Self {
            key: request.key.to_string(),
            connection: request.key.connection(),
            session: LogText::name(request.session.as_str()).to_string(),
            id: LogText::name(&request.id).to_string(),
            method: request
                .method
                .as_ref()
                .map_or_else(String::new, |method| LogText::text(method).to_string()),
            about: shown(&request.about),
            client: shown(&request.client),
            progress: request
                .progress
                .map(|progress| Progress { done: progress.done, total: progress.total }),
            direction: request.key.direction().name(),
            status: request.status.name(),
            started: clock.ms(request.started),
            parent: request.parent.map(|parent| parent.to_string()),
            cancel: request.cancel.as_ref().map(|cancel| Cancel::of(cancel, clock)),
            stoppable: can_be_stopped && request.key.direction() == Direction::Received,
        }
    }
}

impl Cancel {
    fn of(cancel: &AcceptedCancel, clock: Clock) -> Self {
        let reason = cancel.cause.reason().map(|reason| LogText::text(reason).to_string());
        Self { by: cancel.cause.kind().name(), reason, at: clock.ms(cancel.at) }
    }
}

impl Ended {
    fn of(ended: &EndedRequest, clock: Clock) -> Self {
        let code = match ended.outcome {
            RequestOutcome::Failed(code) => Some(code.0),
            _ => None,
        };
        let mut request = Request::of(&ended.request, clock);
        request.stoppable = false;
        Self { request, outcome: ended.outcome.name(), code, at: clock.ms(ended.ended) }
    }
}

impl Counts {
    fn of(counts: &OutcomeCounts) -> Self {
        Self {
            started: counts.started,
            completed: counts.completed,
            failed: counts.failed,
            cancelled: counts.cancelled,
            other: counts.refused + counts.unreadable + counts.disconnected,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_before_and_after_the_clocks_beginning_keep_their_distance() {
        let clock = Clock::new();
        let second = Duration::from_secs(1);
        assert_eq!(clock.ms(clock.began + second), clock.began_ms + 1000);
        let before = clock.began.checked_sub(second).expect("the machine has run for a second");
        assert_eq!(clock.ms(before), clock.began_ms - 1000);
        assert!(clock.now() >= clock.began_ms && clock.began_ms > 1_600_000_000_000);
    }
}
