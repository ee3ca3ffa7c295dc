//! The sessions of a binding, with ids that cannot be guessed. To make room for a new session, one ends that received
//! no request except the one that opened it.
//!
//! # Routes
//!
//! `SessionRouter` decides which process answers a request, before its session is looked up.
//!
//! # Links
//!
//! `ServerLink` is the link that a binding passes to the driver: one type for a session, a connection of ACP, and all
//! POSTs of a listener. `IdlingReceiver` ends a session that its client does not use.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::error::Error;
use std::fmt::{self, Write as _};
use std::future::ready;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, request};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use rescind_core::{
    BoxFuture, Capabilities, Client, ClientPermit, CloseReason, ExchangeEnd, ExchangeId, Lane, Link,
    Outbound, PeerInfo, Principal, Receiver, RejectReason, RequestId, Resource, Sender, TransportError,
    TransportErrorKind, TransportEvent,
};
use tokio::time::Instant;

use crate::envelope::check_size;
use crate::inbound_queue::{InboundQueue, InboundReceiver};
use crate::server::body::StallTimer;
use crate::server::checks::Refused;
use crate::server::{RequestBody, Responder, ResponseBody, Settings};
use crate::sync::{LazySleep, Mutex, MutexGuard};

/// A session, as its table uses it.
pub(crate) trait OwnedSession: Linked {
    /// The principal that opened it.
    fn principal(&self) -> Option<&Principal>;

    /// Whether it has received no request except the one that opened it, and that one is answered.
    fn is_unused(&self) -> bool;
}

/// The sessions of one server.
#[derive(Debug)]
pub(crate) struct Sessions<T> {
    state: Mutex<SessionTable<T>>,
}

#[derive(Debug)]
struct SessionTable<T> {
    open: HashMap<Arc<str>, Entry<T>>,
    next: u64,
    shut: bool,
}

#[derive(Debug)]
struct Entry<T> {
    session: Arc<T>,
    number: u64,
    place: ClientPermit,
}

/// Why no session was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotOpened {
    /// The limit of all sessions is reached.
    TooMany,
    /// The limit of this client's sessions is reached.
    TooManyOfOne,
    /// The listener has ended.
    Shut,
    /// The operating system gave no random bytes.
    NoRandomness,
}

impl From<NotOpened> for Refused {
    fn from(why: NotOpened) -> Self {
        match why {
            NotOpened::TooMany => Self::too_many("there are as many sessions as there may be"),
            NotOpened::TooManyOfOne => Self::too_many("this client has as many sessions as one may"),
            NotOpened::Shut => Self::unavailable("this server has ended"),
            NotOpened::NoRandomness => Self::unavailable("there is no randomness for a session id"),
        }
    }
}

impl<T> Default for Sessions<T> {
    fn default() -> Self {
        Self { state: Mutex::new(SessionTable { open: HashMap::new(), next: 0, shut: false }) }
    }
}

impl<T: OwnedSession> Sessions<T> {
    fn state(&self) -> MutexGuard<'_, SessionTable<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session for this client. If there is no room, the oldest unused session ends: one of this client if it
    /// has used its share, else one of the client with the most sessions.
    pub(crate) fn open(
        &self,
        client: &Arc<Client>,
        settings: &Settings,
        make: impl Fn(&Arc<str>) -> Arc<T>,
    ) -> Result<Arc<T>, NotOpened> {
        let id = settings.new_session_id().ok_or(NotOpened::NoRandomness)?;
        match self.try_open(&id, client, settings, &make) {
            Err(full @ (NotOpened::TooMany | NotOpened::TooManyOfOne)) => {
                if !self.make_room(full, client, settings) {
                    return Err(full);
                }
                self.try_open(&id, client, settings, &make)
            }
            opened => opened,
        }
    }

    fn try_open(
        &self,
        id: &Arc<str>,
        client: &Arc<Client>,
        settings: &Settings,
        make: impl Fn(&Arc<str>) -> Arc<T>,
    ) -> Result<Arc<T>, NotOpened> {
        let mut state = self.state();
        if state.shut {
            return Err(NotOpened::Shut);
        }
        if state.open.len() >= settings.sessions {
            return Err(NotOpened::TooMany);
        }
        let place =
            client.try_acquire(Resource::WireSessions, settings.sessions).ok_or(NotOpened::TooManyOfOne)?;
        let session = make(id);
        let number = state.next;
        state.next += 1;
        state.open.insert(Arc::clone(id), Entry { session: Arc::clone(&session), number, place });
        Ok(session)
    }

    /// `true`: there is room now. Sessions are called without the lock, because they take it when they end.
    fn make_room(&self, full: NotOpened, client: &Arc<Client>, settings: &Settings) -> bool {
        let mut candidates: Vec<_> = {
            let state = self.state();
            let of_all = full == NotOpened::TooMany;
            let entries =
                state.open.iter().filter(|(_, entry)| of_all || Arc::ptr_eq(entry.place.client(), client));
            let order =
                |entry: &Entry<T>| (Reverse(entry.place.client().held(Resource::WireSessions)), entry.number);
            entries.map(|(id, entry)| (order(entry), Arc::clone(id), Arc::clone(&entry.session))).collect()
        };
        candidates.sort_unstable_by_key(|(order, ..)| *order);
        let Some((_, id, session)) = candidates.into_iter().find(|(.., session)| session.is_unused()) else {
            return false;
        };
        self.remove(&id);
        session.end();
        settings.counts.session_displaced();
        tracing::debug!("a session that was never used made room for another");
        true
    }

    /// The session with this id, if this principal opened it.
    pub(crate) fn find(&self, id: &str, principal: Option<&Principal>) -> Option<Arc<T>> {
        let found = Arc::clone(&self.state().open.get(id)?.session);
        (found.principal() == principal).then_some(found)
    }

    /// The session with this id, whoever opened it.
    pub(crate) fn by_id(&self, id: &str) -> Option<Arc<T>> {
        Some(Arc::clone(&self.state().open.get(id)?.session))
    }

    pub(crate) fn remove(&self, id: &str) {
        let removed = self.state().open.remove(id);
        drop(removed);
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.state().shut
    }

    /// All open sessions.
    #[cfg(feature = "verify")]
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.state().open.values().map(|entry| Arc::clone(&entry.session)).collect()
    }

    /// Ends all sessions. No more sessions are opened.
    pub(crate) fn shut(&self) {
        let open = {
            let mut state = self.state();
            state.shut = true;
            std::mem::take(&mut state.open)
        };
        for entry in open.into_values() {
            entry.session.end();
        }
    }
}

/// 128 random bits from the operating system, in hexadecimal.
pub(crate) fn random_id() -> Option<Arc<str>> {
    #[cfg(feature = "verify")]
    if let Some(counted) = counted_id() {
        return Some(counted);
    }
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).ok()?;
    let mut id = String::with_capacity(32);
    for byte in bytes {
        let _ = write!(id, "{byte:02x}");
    }
    Some(id.into())
}

#[cfg(feature = "verify")]
thread_local! {
    /// The number of ids made on this thread so far, if they must be the same in each run.
    static IDS: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// From now on the ids made on this thread are not secret: they are counted, and the same in each run. The size of an
/// id in HTTP/2 depends on its digits, so a random id would move all bytes after it.
#[cfg(feature = "verify")]
pub fn count_ids() {
    IDS.set(Some(0));
}

/// The next id, if ids are counted.
#[cfg(feature = "verify")]
fn counted_id() -> Option<Arc<str>> {
    let next = IDS.get()? + 1;
    IDS.set(Some(next));
    Some(format!("{next:032x}").into())
}

/// The body of a request or a response on its way between two processes.
pub type RoutedBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// The time for which a cancel of a server without sessions ([`Streamable::sessionless`](crate::Streamable::sessionless)) is
/// kept for a request that has not arrived yet: the time within which processes reorder two messages of one client. A
/// request that uses the id again within this time may be cancelled by it.
pub const SHARED_CANCEL_KEPT: Duration = Duration::from_secs(2);

/// Answers one request in place of this server.
pub type RoutedAnswer = Box<
    dyn FnOnce(Request<RoutedBody>) -> BoxFuture<'static, Result<Response<RoutedBody>, RouteRefusal>> + Send,
>;

/// Decides which process serves a request, for servers that share their sessions.
///
/// The crate `rescind-cluster` implements it. A server calls it for each request that has passed the checks of Host and
/// Origin, before the auth hook: the process that serves the request calls its own hook.
pub trait SessionRouter: Send + Sync + 'static {
    /// The id of a new session of this process. `None`: the operating system gave no random bytes.
    fn new_session_id(&self) -> Option<String>;

    /// Where a request is served. `session`: the session or connection that it names. The router may change the head,
    /// for example the [`PeerAddress`](rescind_net::PeerAddress) in its extensions.
    fn route(&self, head: &mut request::Parts, session: Option<&str>) -> SessionRoute;

    /// Passes a cancel of a request without a session to the other processes, which keep it for [`SHARED_CANCEL_KEPT`].
    /// `frame`: the message that cancels, at most 4 KiB of UTF-8. If it fails, the client of the cancel gets the refusal.
    ///
    /// Default: there are no other processes.
    fn cancel_shared(
        &self,
        _principal: &Principal,
        _id: &RequestId,
        _frame: Bytes,
    ) -> BoxFuture<'static, Result<(), RouteRefusal>> {
        Box::pin(ready(Ok(())))
    }

    /// Waits for a cancel of this request that another process passes on, and returns its message. The watch begins with
    /// the call and ends when the future is dropped. `None`: none can come.
    ///
    /// Default: there are no other processes.
    fn watch_shared(&self, _principal: &Principal, _id: &RequestId) -> Option<BoxFuture<'static, Bytes>> {
        None
    }
}

/// Where a request is served.
#[non_exhaustive]
pub enum SessionRoute {
    /// By this server.
    Here,
    /// By the router: it sends the request to another process, or it is a message between processes.
    Elsewhere(RoutedAnswer),
    /// By nobody.
    Refused(RouteRefusal),
}

/// The refusal of a request by a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteRefusal {
    status: StatusCode,
    text: String,
    retry_after: Option<Duration>,
}

impl RouteRefusal {
    /// A refusal with this status and text.
    #[must_use]
    pub const fn new(status: StatusCode, text: String) -> Self {
        Self { status, text, retry_after: None }
    }

    /// The time after which the client may try again, in the header `Retry-After`. It is rounded up to whole seconds.
    #[must_use]
    pub const fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// The status.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn refused(self) -> Refused {
        let refused = Refused::new(self.status, self.text);
        match self.retry_after {
            Some(wait) => refused.after(wait),
            None => refused,
        }
    }
}

impl fmt::Debug for SessionRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here => f.write_str("Here"),
            Self::Elsewhere(_) => f.write_str("Elsewhere"),
            Self::Refused(refusal) => f.debug_tuple("Refused").field(refusal).finish(),
        }
    }
}

/// A request after the router has seen it.
pub(super) struct Routed {
    pub(super) request: Request<RequestBody>,
    /// Answers it. `None`: this server does.
    pub(super) elsewhere: Option<RoutedAnswer>,
}

/// Marks the response of another process, which has all its headers already.
#[derive(Clone, Copy, Debug)]
pub(super) struct FromElsewhere;

impl Routed {
    /// Passes the head of a request to the router. `responder`: the binding that serves it here.
    pub(super) fn by(
        router: &dyn SessionRouter,
        responder: &dyn Responder,
        request: Request<RequestBody>,
    ) -> Result<Self, Refused> {
        let named = responder.session_of(&request)?;
        let (mut head, body) = request.into_parts();
        let elsewhere = match router.route(&mut head, named.as_deref()) {
            SessionRoute::Here => None,
            SessionRoute::Elsewhere(answer) => Some(answer),
            SessionRoute::Refused(refusal) => return Err(refusal.refused()),
        };
        Ok(Self { request: Request::from_parts(head, body), elsewhere })
    }
}

/// The answer of the router to a request.
pub(super) async fn answer(
    responder: Arc<dyn Responder>,
    elsewhere: RoutedAnswer,
    request: Request<RequestBody>,
) -> Response<ResponseBody> {
    let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
    match elsewhere(request).await {
        Ok(response) => {
            let mut response = response.map(ResponseBody::routed);
            response.extensions_mut().insert(FromElsewhere);
            response
        }
        Err(refusal) => responder.refuse(refusal.refused()),
    }
}

/// The state behind a link, as the driver uses it.
pub(crate) trait Linked: Send + Sync + 'static {
    /// The error text for a frame that is refused after the end.
    const ENDED: &'static str;
    /// Whether ids are unique only within an exchange.
    const EXCHANGE_SCOPED: bool = false;

    fn settings(&self) -> &Settings;
    fn inbound_queue(&self) -> &Arc<InboundQueue>;
    fn is_closed(&self) -> bool;

    /// Whether a data frame may be sent. If not, the driver is woken when there is room.
    fn has_room(&self, cx: &mut Context<'_>) -> bool;

    /// Cuts the streams that have held data frames back since then.
    fn cut_stalled(&self, since: Instant);

    /// Accepts a frame from the driver.
    fn send(&self, out: Outbound) -> Result<(), TransportError>;

    /// The handler of an exchange's request has started.
    fn begin(&self, _: ExchangeId) {}

    /// The handler of an exchange's request awaits something.
    fn note_waiting(&self, _: ExchangeId) {}

    /// The next answer on an exchange is a refusal with this reason.
    fn note_rejection(&self, _: ExchangeId, _: RejectReason) {}

    /// Ends an exchange without a frame.
    fn finish(&self, exchange: ExchangeId, how: ExchangeEnd);

    /// Ends everything, after the messages that wait for readers.
    fn poll_close(&self, _: &mut Context<'_>) -> Poll<()> {
        self.end();
        Poll::Ready(())
    }

    /// Ends everything now.
    fn end(&self);

    /// The error for a frame that arrives after the end.
    fn ended() -> TransportError {
        TransportError::new(TransportErrorKind::Closed, Self::ENDED)
    }
}

/// The sending half. Accepted frames wait until the connections write them. `poll_ready` bounds their number.
pub(crate) struct ServerLink<S: Linked> {
    state: Arc<S>,
    stall_timer: StallTimer,
}

impl<S: Linked> ServerLink<S> {
    pub(crate) fn open(state: &Arc<S>, receiver: impl Receiver + 'static, peer: PeerInfo) -> Link {
        let capabilities = Capabilities {
            ordered: false,
            opens_exchanges: false,
            exchange_scoped: S::EXCHANGE_SCOPED,
            batches: false,
            max_frame: state.settings().max_frame,
        };
        let sender = Self { state: Arc::clone(state), stall_timer: StallTimer::default() };
        Link::new(receiver, sender, capabilities, peer)
    }

    fn check_open(&self) -> Result<(), TransportError> {
        if self.state.is_closed() { Err(S::ended()) } else { Ok(()) }
    }
}

impl<S: Linked> Sender for ServerLink<S> {
    fn poll_ready(
        mut self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let this = &mut *self;
        loop {
            this.check_open()?;
            if lane == Lane::Control || this.state.has_room(cx) {
                if lane == Lane::Data {
                    this.stall_timer.renew();
                }
                return Poll::Ready(Ok(()));
            }
            let since = ready!(this.stall_timer.poll_end(this.state.settings().stall_timeout, cx));
            this.state.cut_stalled(since);
        }
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        check_size(&out, self.state.settings().max_frame)?;
        self.state.send(out)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(self.check_open())
    }

    fn begin_exchange(self: Pin<&mut Self>, exchange: ExchangeId) {
        self.state.begin(exchange);
    }

    fn note_waiting(self: Pin<&mut Self>, exchange: ExchangeId) {
        self.state.note_waiting(exchange);
    }

    fn note_rejection(self: Pin<&mut Self>, exchange: ExchangeId, reason: RejectReason) {
        self.state.note_rejection(exchange, reason);
    }

    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
        self.state.finish(exchange, how);
    }

    fn poll_close(
        self: Pin<&mut Self>,
        _: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.state.poll_close(cx).map(Ok)
    }
}

impl<S: Linked> Drop for ServerLink<S> {
    fn drop(&mut self) {
        self.state.end();
    }
}

/// A session that may become idle.
pub(crate) trait IdleSession: Linked {
    /// When it may end if no client uses it until then. `None`: it is in use.
    fn idle_at(&self) -> Option<Instant>;
    /// When the first of its messages that no stream can carry has waited long enough. `None`: none waits.
    fn parked_until(&self) -> Option<Instant> {
        None
    }
    /// Ends the messages that have waited long enough, and informs the driver of them through the inbound queue.
    fn expire_parked(&self) {}
    /// Called when it was idle for too long. Its link ends without this call; the method ends everything else.
    fn idled(&self) {}
}

/// The received messages, until the session has been idle for too long.
pub(crate) struct IdlingReceiver<T> {
    inbound_queue: InboundReceiver,
    session: Arc<T>,
    /// When to check whether the session is idle.
    idle: Option<LazySleep>,
    /// When a message that no stream can carry has waited long enough.
    parked: Option<LazySleep>,
}

impl<T: IdleSession> IdlingReceiver<T> {
    pub(crate) fn new(session: &Arc<T>) -> Self {
        let inbound_queue = InboundReceiver(Arc::clone(session.inbound_queue()));
        Self { inbound_queue, session: Arc::clone(session), idle: None, parked: None }
    }
}

impl<T: IdleSession> Receiver for IdlingReceiver<T> {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        if let Poll::Ready(event) = Pin::new(&mut self.inbound_queue).poll_event(cx) {
            return Poll::Ready(event);
        }
        let this = &mut *self;
        while let Some(at) = this.session.parked_until() {
            let parked = this.parked.get_or_insert_with(|| LazySleep::until(at));
            if parked.deadline() != at {
                parked.reset(at);
            }
            if parked.poll(cx).is_pending() {
                break;
            }
            this.session.expire_parked();
            if let Poll::Ready(event) = Pin::new(&mut this.inbound_queue).poll_event(cx) {
                return Poll::Ready(event);
            }
        }
        let wait = this.session.settings().session_idle;
        let idle = this.idle.get_or_insert_with(|| LazySleep::new(wait));
        while idle.poll(cx).is_ready() {
            let now = Instant::now();
            match this.session.idle_at() {
                Some(at) if at <= now => {
                    this.session.settings().counts.session_idled();
                    tracing::debug!("an idle session is ended");
                    this.session.idled();
                    return Poll::Ready(None);
                }
                Some(at) => idle.reset(at),
                None => idle.reset(now + wait),
            }
        }
        Poll::Pending
    }
}
