//! A session that its server has forgotten is opened again.
//!
//! - R1 Only the 404 of a POST with a session id says so, or the 400 of a server to which the old one has moved for good. However many POSTs get it, one new session is opened: the
//!   others wait for it.
//! - R2 The new session is opened with the messages that opened the old one, and gets the settings and subscriptions that
//!   were seen there. Their answers are not passed on: the driver had answers to them before.
//! - R3 Each frame that got 404 is sent once more, except a cancel or an answer, which belongs to a request of the old
//!   session. Calls whose response had begun in the old session end with an error, and those without a response end 2 s
//!   later: until then the server can still refuse them.
//! - R4 A session that is lost within 10 s of its opening by this client is not opened again before that time is over.
//! - R5 A call waits at most 5 s for the new session, and then ends with an error that says so. A server may need seconds for the
//!   opening, so that goes on for later calls. The notification after it, and the settings, hold calls up for at most 2 s each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use rescind_core::{
    Deviation, ExchangeId, FrameKind, Inbound, Outbound, RenewalBodies, RequestId, TransportError,
    TransportErrorKind, TransportEvent,
};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::client::{
    BEGINNING, EventStream, Failed, Media, ResponseBody, beginning, body_error, encoded, media_of, refusal,
};
use crate::envelope::{Envelope, MCP_PROTOCOL_VERSION, MCP_SESSION_ID, Reply, text, whole};
use crate::streamable::client::{Client, InFlight, SessionPhase, streams};

/// The time in which a session is opened again at most once.
const BETWEEN: Duration = Duration::from_secs(10);
/// How long a call that was sent in a lost session waits for its response to begin.
const REFUSED_WITHIN: Duration = Duration::from_secs(2);
/// How long a frame waits for a new session.
const WAIT: Duration = Duration::from_secs(5);
/// The longest time that the opening may take, and that the repeated settings may.
const OPENING_TIME: Duration = Duration::from_secs(20);
/// The most settings and subscriptions that are kept, and the most bytes of each.
const MOST_KEPT: usize = 1024;
const MOST_BYTES: usize = 16 * 1024;

/// What was seen in a session that the next one needs.
#[derive(Default)]
pub(super) struct SessionRecord {
    opening: Option<Seen>,
    /// Whether the server has answered `opening` with its revision.
    is_open: bool,
    opened: Option<Bytes>,
    /// Settings by their method, and subscriptions by their method and what they are about.
    kept: BTreeMap<(&'static str, String), Seen>,
    /// The number of sessions before this one.
    pub(super) number: u64,
    /// Attempts to open a session again that have ended.
    attempts: u64,
    renewing: bool,
    renewed_at: Option<Instant>,
    /// Why the last attempt failed.
    failure: Option<Arc<str>>,
}

/// A request that was seen.
#[derive(Clone)]
struct Seen {
    id: Option<RequestId>,
    body: Bytes,
}

impl SessionRecord {
    /// Notes a frame that opens a session or sets something in it.
    pub(super) fn note(&mut self, bodies: &RenewalBodies, out: &Outbound) {
        let Some(method) = out.head.method.as_deref() else { return };
        let seen = || Seen { id: out.head.id.clone(), body: out.body.clone() };
        if out.head.kind == FrameKind::Notification {
            if method == bodies.opened {
                self.opened = Some(out.body.clone());
            }
            return;
        }
        if method == bodies.opening {
            self.opening = Some(seen());
        } else if let Some(setting) = bodies.settings.iter().find(|setting| **setting == method) {
            self.keep((setting, String::new()), seen());
        } else if let Some((set, undone, about)) =
            bodies.subscriptions.iter().find(|(set, undone, _)| *set == method || *undone == method)
        {
            let named = text(Envelope::of(&out.body).params, about).unwrap_or_default().into_owned();
            if method == *undone {
                self.kept.remove(&(*set, named));
            } else {
                self.keep((set, named), seen());
            }
        }
    }

    fn keep(&mut self, key: (&'static str, String), seen: Seen) {
        if seen.body.len() > MOST_BYTES || (self.kept.len() >= MOST_KEPT && !self.kept.contains_key(&key)) {
            tracing::debug!(method = key.0, "a request is not kept for a new session: there are too many");
            return;
        }
        self.kept.insert(key, seen);
    }

    /// Notes the answer to the request that opened the session.
    pub(super) const fn note_answer(&mut self, names_a_revision: bool) {
        self.is_open = names_a_revision;
    }

    /// Whether this is the notification after the opening, which a renewal sends.
    pub(super) fn is_opened_by(&self, body: &Bytes) -> bool {
        self.opened.as_ref() == Some(body)
    }

    /// Whether the handshake of MCP has opened the session. In other protocols none does.
    pub(super) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether the session can be opened again.
    pub(super) const fn may_renew(&self) -> bool {
        self.is_open && self.opening.is_some()
    }
}

/// The result of an attempt to open a session again, for a frame that waits for it.
pub(super) enum Renewed {
    /// There is a new session: send it once more.
    Again,
    /// The session cannot be opened again by its nature: the link is lost.
    Never,
    /// It was not opened again, for this reason.
    Failed(Arc<str>),
    /// The call was cancelled meanwhile.
    Stopped,
}

impl Client {
    /// Opens a new session in place of the one with this number, or waits for the task that does (R1).
    ///
    /// # Cancel safety
    /// The session is opened in a task of its own: if the future is dropped, the others still get it.
    pub(super) async fn renewed(self: &Arc<Self>, number: u64, stopped: impl Future<Output = ()>) -> Renewed {
        let attempt = {
            let mut state = self.state();
            if state.closed {
                return Renewed::Stopped;
            }
            let record = &mut state.record;
            if record.number != number {
                return Renewed::Again;
            }
            if !record.may_renew() {
                return Renewed::Never;
            }
            if record.renewed_at.is_some_and(|at| at.elapsed() < BETWEEN) {
                return Renewed::Failed("its session was lost again within 10 s".into());
            }
            let attempt = record.attempts;
            if !std::mem::replace(&mut record.renewing, true) {
                // Until it has ended in another way.
                record.failure = Some("the attempt was given up".into());
                let renewal = Renewal(Arc::clone(self));
                streams::launch(self, &mut state, None, async move { renewal.run().await });
            }
            attempt
        };
        let ended = self.until(&self.moved, |state| state.record.attempts != attempt);
        let is_late = tokio::select! {
            biased;
            () = stopped => return Renewed::Stopped,
            late = tokio::time::timeout(WAIT, ended) => late.is_err(),
        };
        let state = self.state();
        match &state.record.failure {
            _ if state.record.number != number => Renewed::Again,
            _ if is_late => Renewed::Failed(self.late().into()),
            Some(why) => Renewed::Failed(Arc::clone(why)),
            None => Renewed::Again,
        }
    }

    /// Waits while a session is opened again: a frame that is sent meanwhile would only get 404. Returns whether it has
    /// waited.
    ///
    /// # Errors
    /// The session is not there in time.
    pub(super) async fn after_renewal(&self) -> Result<bool, Failed> {
        let (waits, number) = {
            let record = &self.state().record;
            (record.renewing, record.number)
        };
        if waits {
            let ended = self.until(&self.moved, |state| !state.record.renewing || state.closing);
            let late = Box::pin(tokio::time::timeout(WAIT, ended)).await.is_err();
            if late && self.state().record.number == number {
                let (late, address) = (self.late(), self.requester.address());
                let text = format!("the server does not know the session any more; {late} ({address})");
                return Err(Failed::new(false, text));
            }
        }
        Ok(waits)
    }

    /// Why a frame that waited for the new session is not sent.
    fn late(&self) -> String {
        let (opening, seconds) = (self.settings.renewal.opening, WAIT.as_secs());
        format!("the server has not answered `{opening}` for a new session within {seconds} s")
    }
}

/// An attempt to open a session again, which is over when this is dropped.
struct Renewal(Arc<Client>);

impl Renewal {
    async fn run(self) {
        // Whether a new session can be opened or not: their answers belong to the one that is gone (R3).
        let (number, next) = {
            let state = self.0.state();
            (state.record.number, state.next)
        };
        end_lost(&self.0, |_, flight| {
            flight.exchange.is_some() && flight.session.is_some_and(|old| old <= number)
        });
        let later = Arc::clone(&self.0);
        streams::launch(&self.0, &mut self.0.state(), None, async move {
            tokio::time::sleep(REFUSED_WITHIN).await;
            end_lost(&later, |frame, flight| {
                let was_sent = flight.sent_in.is_some_and(|session| session <= number);
                frame < next && flight.session.is_none() && was_sent
            });
        });
        let opened = tokio::time::timeout(OPENING_TIME, self.open()).await;
        let failure = match opened {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(why),
            Err(_) => {
                let (opening, seconds) = (self.0.settings.renewal.opening, OPENING_TIME.as_secs());
                Some(format!("the server did not answer `{opening}` within {seconds} s"))
            }
        };
        if let Some(why) = &failure {
            tracing::warn!(why = %rescind_core::LogText::text(why), "a session could not be opened again");
        }
        self.0.state().record.failure = failure.map(Arc::from);
    }

    /// Opens the new session, and repeats what was set in the old one (R2).
    async fn open(&self) -> Result<(), String> {
        let client = &self.0;
        let (opening, opened, kept) = {
            let record = &client.state().record;
            let kept: Vec<Seen> = record.kept.values().cloned().collect();
            (record.opening.clone(), record.opened.clone(), kept)
        };
        let Some(opening) = opening else { return Err("nothing is known of its opening".to_owned()) };
        let (head, answer) = ask(client, Headers::Opening, &opening).await?;
        let read = Envelope::of(&answer);
        let bodies = client.settings.renewal;
        let Some(version) = read.result_text(bodies.revision) else {
            return Err(refusal(&head, &client.requester.address(), &answer));
        };
        let id = super::posts::session_id(client, &head.headers, &head.extensions);
        let number = self.adopt(id, super::posts::version_header(&version));
        client
            .inbound_queue
            .push_event(TransportEvent::Deviation { deviation: Deviation::SessionLost, sent: Bytes::new() });
        if let Some(opened) = opened {
            let notifying = Arc::clone(client);
            let notified = self.begin(number, async move { notify(&notifying, opened).await });
            // Some servers do not respond to it, and serve the session all the same.
            if let Some(notified) = notified.await {
                notified?;
            }
        }
        if !kept.is_empty() {
            let setting = Arc::clone(client);
            let set = self.begin(number, async move {
                let repeated = tokio::time::timeout(OPENING_TIME, repeat(&setting, &kept)).await;
                if repeated.is_err() {
                    tracing::warn!("the settings of the old session were not repeated in time");
                }
            });
            let _late = set.await;
        }
        streams::listen(client);
        Ok(())
    }

    /// Runs this in a task of the new session. Waits until it has ended, for as long as a frame that needs no answer may hold back
    /// others. `None`: it goes on.
    async fn begin<T: Send + 'static>(
        &self,
        session: u64,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (done, ended) = oneshot::channel();
        streams::launch(&self.0, &mut self.0.state(), Some(session), async move {
            // Nobody may wait any more.
            let _ = done.send(work.await);
        });
        tokio::time::timeout(super::posts::TAKEN_TIME, ended).await.ok()?.ok()
    }

    /// Puts the new session in the place of the old one. Calls of the old one end, and so does its stream (R3). Returns its number.
    fn adopt(&self, id: Option<HeaderValue>, version: Option<HeaderValue>) -> u64 {
        let client = &self.0;
        let number = client.step(|state| {
            if state.version != version {
                tracing::warn!("the new session has another revision than the old one");
            }
            state.id = id;
            state.version = version;
            state.post_headers = None;
            state.standing = SessionPhase::Open;
            state.listens = false;
            state.record.renewed_at = Some(Instant::now());
            state.record.number += 1;
            state.record.number
        });
        end_lost(client, |_, flight| flight.session.is_some_and(|session| session < number));
        number
    }
}

/// Posts the notification that ends the opening.
async fn notify(client: &Client, opened: Bytes) -> Result<(), String> {
    let headers = client.post_headers(None).0;
    let sent = client.requester.post(FrameKind::Notification, &headers, opened, None).await;
    let response = sent.map_err(|failed| failed.error.source.to_string())?;
    if response.status().is_success() {
        return Ok(());
    }
    let (head, body) = response.into_parts();
    Err(refusal(&head, &client.requester.address(), &beginning(body, BEGINNING).await.0))
}

/// Sends the settings and subscriptions of the old session again.
async fn repeat(client: &Client, kept: &[Seen]) {
    for seen in kept {
        if let Err(why) = ask(client, Headers::OfSession, seen).await {
            tracing::warn!(why = %rescind_core::LogText::text(&why), "a setting of the old session was not repeated");
        }
    }
}

/// Posts a request, and reads its answer. Other messages of its response are passed on.
async fn ask(
    client: &Client,
    headers: Headers,
    seen: &Seen,
) -> Result<(http::response::Parts, Bytes), String> {
    let address = client.requester.address();
    let mut sent = client.post_headers(None).0;
    if matches!(headers, Headers::Opening) {
        sent.remove(MCP_SESSION_ID);
        sent.remove(MCP_PROTOCOL_VERSION);
    }
    let posted = client.requester.post(FrameKind::Request, &sent, seen.body.clone(), None).await;
    let response = posted.map_err(|failed| failed.error.source.to_string())?;
    let (head, body) = response.into_parts();
    if let Some(failed) = encoded(&head, || address.clone()) {
        return Err(failed.error.source.to_string());
    }
    let media = head.headers.get(CONTENT_TYPE).map(media_of);
    let answer = match (head.status.is_success(), media) {
        (true, Some(Media::Events)) => read_events(client, body, seen.id.as_ref()).await,
        (true, Some(Media::Json)) => {
            let read = whole(body, client.max_frame).await;
            let read = read.map_err(|error| body_error(&head, &address, error).error.source.to_string())?;
            if Reply::of(&read, seen.id.as_ref()) != Reply::Own {
                return Err(refusal(&head, &address, &read));
            }
            Some(read)
        }
        (_, _) => return Err(refusal(&head, &address, &beginning(body, BEGINNING).await.0)),
    };
    answer.map(|answer| (head, answer)).ok_or_else(|| "the event stream ended without the answer".to_owned())
}

async fn read_events(client: &Client, body: ResponseBody, id: Option<&RequestId>) -> Option<Bytes> {
    let mut events = EventStream::new(body, client.max_frame, &client.inbound_queue);
    loop {
        let data = events.next().await?.data;
        match Reply::of(&data, id) {
            Reply::Own => return Some(data),
            Reply::Other | Reply::OtherAnswer => {
                let (exchange, principal, address, trace) = (ExchangeId::OF_NO_CALL, None, None, None);
                let inbound = Inbound { body: data, exchange, principal, address, trace };
                let _ = client.inbound_queue.send(inbound).await;
            }
            Reply::UnnamedError | Reply::Unclear | Reply::Nothing => {}
        }
    }
}

/// Ends the tasks and calls of a session that is lost.
fn end_lost(client: &Client, is_lost: impl Fn(u64, &InFlight) -> bool) {
    let lost: Vec<_> = client.step(|state| {
        let lost = state.in_flight.iter_mut().filter(|(frame, flight)| is_lost(**frame, flight));
        lost.filter_map(|(_, flight)| Some((flight.exchange, flight.task.take()?))).collect()
    });
    for (exchange, task) in lost {
        task.abort();
        let Some(exchange) = exchange else { continue };
        let text = "the server does not know the session any more in which the call ran";
        let error = TransportError::new(TransportErrorKind::Io, text);
        let error = TransportError { exchange: Some(exchange), ..error };
        client.inbound_queue.push_event(TransportEvent::ExchangeFailed { exchange, sent: true, error });
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.0.step(|state| {
            state.record.attempts += 1;
            state.record.renewing = false;
        });
        self.0.moved.notify_waiters();
    }
}

/// Which headers a request has.
#[derive(Clone, Copy)]
enum Headers {
    /// No session, and no revision.
    Opening,
    OfSession,
}
