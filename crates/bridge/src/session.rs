//! One session: a downstream connection, and the upstream connection that is opened for it.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use rescind_core::dialect::{Dialect, Progress, Role};
use rescind_core::{
    BoxFuture, CallContext, ConnectionError, Declaration, DeviationReport, Event, ExchangeId, Limits, Link,
    Peer, PeerBuilder, RequestLog, Router, TracePropagator, TransportError, TransportErrorKind,
};
use serde_json::value::RawValue;
use tokio::sync::{Notify, watch};

use crate::subscriptions::Subscriptions;
use crate::tasks::{KnownTasks, TaskClient};

/// The time for the errors of open requests to be written, after the upstream is lost.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// How long a client may take to read what its upstream wrote before its end.
const READ_TIME: Duration = Duration::from_secs(30);
/// How long the text about the end of an upstream is waited for, for example the exit status of a child process.
const END_TIME: Duration = Duration::from_secs(1);

/// The most failures of single requests that are kept.
const MOST_FAILURES: usize = 1024;

/// Called with the reason when the upstream of a session is lost.
pub(crate) type LossHook = Arc<dyn Fn(&str) + Send + Sync>;

/// Called with the name of a side, when its peer does something against its protocol and the connection goes on.
pub(crate) type DeviationHook = Arc<dyn Fn(&str, &DeviationReport<'_>) + Send + Sync>;

/// The name of the downstream side in reports.
pub(crate) const CLIENT: &str = "the client";

/// The propagator that the connections of a bridge share.
pub(crate) type Propagator = Arc<dyn TracePropagator>;

/// The settings that all sessions of a bridge share.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) downstream: Dialect,
    pub(crate) upstream: Dialect,
    pub(crate) limits: Limits,
    pub(crate) declare: Declaration,
    pub(crate) sessions: Sessions,
    pub(crate) on_loss: Option<LossHook>,
    pub(crate) on_deviation: Option<DeviationHook>,
    pub(crate) request_log: Option<RequestLog>,
    pub(crate) propagator: Propagator,
    pub(crate) tasks: Arc<KnownTasks>,
}

impl Settings {
    /// A connection of a session, with the options that both sides have. `name` is that of its peer.
    fn peer(&self, builder: PeerBuilder, name: &str) -> PeerBuilder {
        let builder = match &self.on_deviation {
            Some(hook) => {
                let (hook, name) = (Arc::clone(hook), name.to_owned());
                builder.on_deviation(move |report| hook(&name, report))
            }
            None => builder,
        };
        let builder = builder
            .declare_cancellation(self.declare)
            .call_timeout(None)
            .trace_propagator(Arc::clone(&self.propagator));
        match &self.request_log {
            Some(log) => builder.request_log(log),
            None => builder,
        }
    }
}

/// Opens the upstream.
pub(crate) type Opening = BoxFuture<'static, Result<Upstream, String>>;

/// What the two connections of a session serve.
#[derive(Clone, Copy)]
pub(crate) struct Routers {
    pub(crate) downstream: fn(&Arc<Session>) -> Router,
    /// With the downstream connection, which is open at least as long.
    pub(crate) upstream: fn(&Arc<Session>, &Peer) -> Router,
}

pub(crate) struct Session {
    settings: Arc<Settings>,
    /// No other session of this process has it.
    number: u64,
    routers: Routers,
    /// Until the first message arrives.
    opening: Mutex<Option<Opening>>,
    state: watch::Sender<PairState>,
    /// Messages that wait for the upstream go on in the order in which they came.
    pub(crate) turns: tokio::sync::Mutex<()>,
    downstream: OnceLock<Peer>,
    /// The name of the upstream, once it is open.
    name: OnceLock<String>,
    pub(crate) downstream_tokens: ProgressTokens,
    pub(crate) subscriptions: Subscriptions,
    /// Requests of the downstream side whose handlers run.
    open: watch::Sender<usize>,
    /// Why requests of the upstream failed alone, with the exchange of each, the newest last.
    failures: Mutex<VecDeque<(Option<ExchangeId>, String)>>,
    /// Why the client did not take the last request that failed alone.
    client_failure: Mutex<Option<String>>,
    /// Whether requests of the upstream can fail alone.
    fail_alone: AtomicBool,
    /// Notified when the upstream did not take notifications for so long that some were dropped.
    overflow: Notify,
}

enum PairState {
    /// The upstream is not open yet.
    Opening,
    Open(Peer),
    /// The upstream is gone, or could not be opened, for this reason.
    Lost(Arc<str>),
}

impl Session {
    pub(crate) fn new(settings: &Arc<Settings>, opening: Opening, routers: Routers) -> Arc<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            settings: Arc::clone(settings),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            routers,
            opening: Mutex::new(Some(opening)),
            state: watch::Sender::new(PairState::Opening),
            turns: tokio::sync::Mutex::default(),
            downstream: OnceLock::new(),
            name: OnceLock::new(),
            downstream_tokens: ProgressTokens::default(),
            subscriptions: Subscriptions::default(),
            open: watch::Sender::new(0),
            failures: Mutex::default(),
            client_failure: Mutex::new(None),
            fail_alone: AtomicBool::new(false),
            overflow: Notify::new(),
        })
    }

    /// The tasks of the bridge.
    pub(crate) fn tasks(&self) -> &KnownTasks {
        &self.settings.tasks
    }

    /// The client of this session.
    pub(crate) fn client(&self, downstream: &Peer) -> TaskClient {
        TaskClient { principal: downstream.meta().principal.clone(), session: self.number }
    }

    /// The dialect of the server.
    pub(crate) fn upstream_dialect(&self) -> &Dialect {
        &self.settings.upstream
    }

    /// Whether a log shows the requests of this session.
    pub(crate) fn is_shown(&self) -> bool {
        self.settings.request_log.is_some()
    }

    /// The options of the downstream connection.
    pub(crate) fn downstream(self: &Arc<Self>, peer: PeerBuilder) -> PeerBuilder {
        // The hook lives as long as the connection, which the session holds.
        let session = Arc::downgrade(self);
        let failing = Weak::clone(&session);
        self.settings
            .peer(peer, CLIENT)
            .role(Role::Server)
            .serve((self.routers.downstream)(self))
            .on_call_failure(move |error| note_client_failure(&failing, error))
            .on_event(move |event| watch_for_overflow(&session, event))
    }

    /// The upstream. The first call opens it. `downstream` is the connection of this session.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) async fn upstream(
        self: &Arc<Self>,
        downstream: impl FnOnce() -> Peer,
    ) -> Result<Peer, Arc<str>> {
        match &*self.state.borrow() {
            PairState::Open(peer) => return Ok(peer.clone()),
            PairState::Lost(why) => return Err(Arc::clone(why)),
            PairState::Opening => {}
        }
        self.begin(downstream);
        let mut state = self.state.subscribe();
        let known = state.wait_for(|state| !matches!(state, PairState::Opening)).await;
        match known.as_deref() {
            Ok(PairState::Open(peer)) => Ok(peer.clone()),
            Ok(PairState::Lost(why)) => Err(Arc::clone(why)),
            Ok(PairState::Opening) | Err(_) => Err("the session has ended".into()),
        }
    }

    /// The upstream, while it is open.
    pub(crate) fn open_upstream(&self) -> Option<Peer> {
        match &*self.state.borrow() {
            PairState::Open(peer) => Some(peer.clone()),
            PairState::Opening | PairState::Lost(_) => None,
        }
    }

    /// Waits until the upstream is gone.
    pub(crate) async fn over(&self) {
        let mut state = self.state.subscribe();
        // The sender exists as long as `self`.
        let _ = state.wait_for(|state| matches!(state, PairState::Lost(_))).await;
    }

    /// The name of the upstream in errors.
    pub(crate) fn upstream_name(&self) -> &str {
        self.name.get().map_or("the upstream", String::as_str)
    }

    /// The reason why the request on this exchange was not answered. If the connection has ended, it waits until the reason is known.
    pub(crate) async fn lost(&self, exchange: Option<ExchangeId>) -> Arc<str> {
        let open = matches!(&*self.state.borrow(), PairState::Open(peer) if !peer.is_closed());
        if open && self.may_fail_alone() {
            let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
            let own = exchange.and_then(|_| failures.iter().position(|(of, _)| *of == exchange));
            let known = own.and_then(|own| failures.remove(own)).or_else(|| failures.back().cloned());
            drop(failures);
            let known = known.map(|(_, text)| text);
            return known.unwrap_or_else(|| "the connection failed before the answer".to_owned()).into();
        }
        let mut state = self.state.subscribe();
        match state.wait_for(|state| matches!(state, PairState::Lost(_))).await.as_deref() {
            Ok(PairState::Lost(why)) => Arc::clone(why),
            Ok(PairState::Opening | PairState::Open(_)) | Err(_) => "the session has ended".into(),
        }
    }

    /// The reason why the client did not answer a request of the upstream side. If its connection has ended, it waits until
    /// the reason is known.
    pub(crate) async fn client_lost(&self) -> Arc<str> {
        if self.downstream.get().is_some_and(|peer| !peer.is_closed()) {
            let known = self.client_failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
            return known
                .unwrap_or_else(|| "the request could not be passed on to the client".to_owned())
                .into();
        }
        self.lost(None).await
    }

    /// Whether requests of the upstream can fail alone.
    pub(crate) fn may_fail_alone(&self) -> bool {
        self.fail_alone.load(Ordering::Relaxed)
    }

    /// Counts a request of the downstream side until its handler has ended.
    pub(crate) fn count_open(&self) -> OpenRequest<'_> {
        self.open.send_modify(|open| *open += 1);
        OpenRequest(&self.open)
    }

    /// Closes the downstream connection after the upstream is lost. A request that comes while the connection shuts down
    /// would be answered as cancelled, so the shutdown begins when the open requests have their answers.
    async fn close(&self, downstream: &Peer) {
        let mut open = self.open.subscribe();
        let answered = async { drop(open.wait_for(|open| *open == 0).await) };
        let _late = tokio::time::timeout(ANSWER_TIME, answered).await;
        downstream.shutdown(ANSWER_TIME).await;
    }

    /// Whether this notification of the downstream side ends the session.
    pub(crate) fn ends_with(&self, method: &str) -> bool {
        self.settings.downstream.rules().lifecycle.is_some_and(|lifecycle| lifecycle.exit == method)
    }

    /// Opens the upstream, once, and starts the task that keeps the two connections together.
    pub(crate) fn begin(self: &Arc<Self>, downstream: impl FnOnce() -> Peer) {
        let taken = self.opening.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(opening) = taken else { return };
        let downstream = downstream();
        let counted = self.settings.sessions.add();
        let session = Arc::clone(self);
        tokio::spawn(async move {
            let _ = session.downstream.set(downstream.clone());
            let kept = Kept(session, counted);
            kept.0.keep(&downstream, opening).await;
        });
    }

    async fn keep(self: &Arc<Self>, downstream: &Peer, opening: Opening) {
        let opened = tokio::select! {
            biased;
            _ = downstream.closed() => return self.lose("the client has left"),
            opened = opening => opened,
        };
        let (upstream, name, mut end) = match opened.and_then(|upstream| self.open(downstream, upstream)) {
            Ok(opened) => opened,
            Err(why) => {
                self.fail(&why);
                self.close(downstream).await;
                return;
            }
        };
        self.state.send_replace(PairState::Open(upstream.clone()));
        tokio::select! {
            biased;
            closed = upstream.closed() => {
                // Its last notifications are passed on first, as long as the client reads.
                tokio::select! {
                    () = upstream.notifications_handled() => {}
                    _ = downstream.closed() => {}
                    () = tokio::time::sleep(READ_TIME) => {}
                }
                self.fail(&describe(&name, closed, &mut end).await);
                self.close(downstream).await;
            }
            _ = downstream.closed() => self.lose("the client has left"),
            () = self.overflow.notified() => {
                self.fail(&format!("{name} does not read: too many notifications wait for it"));
                tokio::join!(upstream.shutdown(Duration::ZERO), self.close(downstream));
            }
        }
        self.pass_exit(downstream, &upstream);
        upstream.shutdown(Duration::ZERO).await;
        if let Some(end) = end {
            end.await;
        }
    }

    /// Opens the upstream connection on its link.
    fn open(self: &Arc<Self>, downstream: &Peer, upstream: Upstream) -> Result<Opened, String> {
        let Upstream { name, link, end } = upstream;
        self.fail_alone.store(link.traits.opens_exchanges, Ordering::Relaxed);
        let (session, named) = (Arc::downgrade(self), name.clone());
        let _ = self.name.set(name.clone());
        let builder = Peer::builder(self.settings.upstream.clone());
        let peer = self
            .settings
            .peer(builder, &name)
            .role(Role::Client)
            .serve((self.routers.upstream)(self, downstream))
            .limits(self.settings.limits.clone())
            .clients(downstream.clients())
            .on_call_failure(move |error| note_failure(&session, &named, error))
            .attach(link)
            .map_err(|error| error.to_string())?;
        Ok((peer, name, end))
    }

    /// The upstream is lost, although the client is there.
    fn fail(&self, why: &str) {
        if let Some(hook) = &self.settings.on_loss {
            hook(why);
        }
        self.lose(why);
    }

    fn lose(&self, why: &str) {
        self.state.send_replace(PairState::Lost(why.into()));
    }

    /// Passes on the notification that ends a server's process, which has closed the downstream connection.
    fn pass_exit(&self, downstream: &Peer, upstream: &Peer) {
        if let (Some(_), Some(lifecycle)) = (downstream.exit_code(), self.settings.upstream.rules().lifecycle)
        {
            // It fails only if the upstream is gone, or reads nothing.
            let _ = upstream.try_notify(lifecycle.exit, &());
        }
    }
}

/// A request of the downstream side, until it is dropped.
pub(crate) struct OpenRequest<'a>(&'a watch::Sender<usize>);

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

/// A session that is being kept, until its task has ended, also by a panic: nobody waits for its upstream then.
struct Kept(Arc<Session>, #[expect(dead_code, reason = "it counts until it is dropped")] Counted);

impl Drop for Kept {
    fn drop(&mut self) {
        let is_lost = matches!(&*self.0.state.borrow(), PairState::Lost(_));
        if !is_lost {
            self.0.lose("the session has ended");
        }
    }
}

type Opened = (Peer, String, Option<BoxFuture<'static, String>>);

/// A notification of the downstream side was dropped, because the upstream side does not read. Nothing may be lost, so
/// the session ends.
fn watch_for_overflow(session: &Weak<Session>, event: &Event) {
    if !matches!(event, Event::LimitReached(_)) {
        return;
    }
    let Some(session) = session.upgrade() else { return };
    if session.downstream.get().is_some_and(|peer| peer.queue_stats().notifications_dropped > 0) {
        session.overflow.notify_one();
    }
}

fn note_failure(session: &Weak<Session>, name: &str, error: &TransportError) {
    let Some(session) = session.upgrade() else { return };
    let text = format!("{name} did not answer: {}", error.source);
    let mut failures = session.failures.lock().unwrap_or_else(PoisonError::into_inner);
    // The failures of calls that were cancelled are not asked for.
    if failures.len() >= MOST_FAILURES {
        failures.pop_front();
    }
    failures.push_back((error.exchange, text));
}

fn note_client_failure(session: &Weak<Session>, error: &TransportError) {
    let Some(session) = session.upgrade() else { return };
    let text = format!("the request did not reach the client: {}", error.source);
    *session.client_failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
}

/// How the upstream ended, with its name.
async fn describe(
    name: &str,
    closed: Result<(), ConnectionError>,
    end: &mut Option<BoxFuture<'static, String>>,
) -> String {
    // This side ends an upstream that writes something else than frames, so its exit says nothing.
    if let Err(ConnectionError::Transport(error)) = &closed {
        if error.kind == TransportErrorKind::Framing {
            let why = error.source.to_string();
            // Errors of a child begin with its command, which may be that of a program that starts it.
            let why =
                why.strip_prefix('`').and_then(|why| why.split_once("`: ")).map_or(&*why, |(_, why)| why);
            return format!("{name} was ended: {why}");
        }
    }
    let known = match end.as_mut() {
        Some(ending) => tokio::time::timeout(END_TIME, ending).await.ok(),
        None => None,
    };
    match (known, closed) {
        (Some(text), _) => {
            *end = None;
            format!("{name} ended: {text}")
        }
        (None, Err(error)) => format!("{name} is lost: {error}"),
        (None, Ok(())) => format!("{name} closed the connection"),
    }
}

/// An open connection to the server behind the bridge.
#[must_use = "it is closed when it is dropped"]
pub struct Upstream {
    pub(crate) name: String,
    pub(crate) link: Link,
    pub(crate) end: Option<BoxFuture<'static, String>>,
}

impl Upstream {
    /// An upstream with a name, which errors contain: a command or an address.
    pub fn new(name: impl Into<String>, link: Link) -> Self {
        Self { name: name.into(), link, end: None }
    }

    /// A future that is ready once nothing of the upstream is left, for example when a child process was waited for. It
    /// returns what is known of the end, such as an exit status and the last lines of stderr. Errors contain that text,
    /// and a session of the bridge ends only after it.
    pub fn ends(mut self, end: impl Future<Output = String> + Send + 'static) -> Self {
        self.end = Some(Box::pin(end));
        self
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("name", &self.name).field("link", &self.link).finish_non_exhaustive()
    }
}

/// Counts the sessions of a bridge that have not ended. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Sessions(watch::Sender<usize>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(watch::Sender<usize>);

impl Sessions {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    pub(crate) fn count(&self) -> usize {
        *self.0.borrow()
    }

    pub(crate) fn add(&self) -> Counted {
        self.0.send_modify(|count| *count += 1);
        Counted(self.0.clone())
    }

    pub(crate) async fn ended(&self) {
        // The sender exists as long as `self`.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// The requests of one side that asked for progress, by their tokens as the side wrote them.
/// Progress returns with the request that asked for it. That matters on transports on which each request has a stream of its
/// own (HTTP).
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgressTokens(Arc<Mutex<KnownTokens>>);

#[derive(Debug, Default)]
struct KnownTokens {
    requests: HashMap<Box<str>, (u64, CallContext)>,
    next: u64,
}

/// The token of one request, until the request ends.
pub(crate) struct RegisteredToken {
    tokens: ProgressTokens,
    token: Box<str>,
    number: u64,
}

impl ProgressTokens {
    /// Remembers the request's token. `None`: it has none.
    pub(crate) fn register(&self, request: &CallContext) -> Option<RegisteredToken> {
        let token: Box<str> = request.progress_token()?.get().into();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.next += 1;
        let number = known.next;
        let replaced = known.requests.insert(token.clone(), (number, request.clone()));
        drop(known);
        drop(replaced);
        Some(RegisteredToken { tokens: self.clone(), token, number })
    }

    /// The request whose progress a notification reports.
    pub(crate) fn reported(&self, dialect: &Dialect, method: &str, params: &RawValue) -> Option<CallContext> {
        let Progress { notification, token_key, .. } = dialect.codec().as_json_rpc()?.progress?;
        if method != notification {
            return None;
        }
        let members: HashMap<Cow<'_, str>, &RawValue> = serde_json::from_str(params.get()).ok()?;
        let token = members.get(token_key)?.get();
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.requests.get(token).map(|(_, request)| request.clone())
    }
}

impl Drop for RegisteredToken {
    fn drop(&mut self) {
        let mut known = self.tokens.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A later request of the same side may have the same token.
        let own = known.requests.get(&self.token).is_some_and(|(number, _)| *number == self.number);
        let removed = if own { known.requests.remove(&self.token) } else { None };
        drop(known);
        drop(removed);
    }
}
