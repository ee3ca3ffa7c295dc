//! A bound server: the queue of new links, the sockets and their limits, the counts, the timers of heads, and the
//! shutdown.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use rescind_core::{
    BoxFuture, Client, ClientPermit, Clients, Endpoint, Link, Listener, Resource, TransportError,
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::coop::unconstrained;
use tokio_util::sync::CancellationToken;

use crate::server::Responder;
use crate::server::builder::Served;
use crate::server::connection::Activity;
use crate::sync::LazySleep;

/// The most links that wait to be accepted.
const BACKLOG: usize = 1024;

/// The queue into which a binding puts new links.
#[derive(Clone, Debug)]
pub(crate) struct AcceptQueue(mpsc::Sender<Link>);

impl AcceptQueue {
    /// A queue, and its receiving end.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Link>) {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        (Self(sender), receiver)
    }

    /// Puts a link into the queue. Returns the link if the listener has ended or too many links wait.
    pub(crate) fn hand(&self, link: Link) -> Result<(), Box<Link>> {
        self.0.try_send(link).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(link) | mpsc::error::TrySendError::Closed(link) => Box::new(link),
        })
    }
}

/// The links that a binding opens: one for each session, or one for all if the protocol has no sessions.
///
/// When it is dropped, everything that belongs to it ends: the port, connections, event streams, links.
///
/// ```
/// use rescind_core::{Listener, Router, Server, dialect};
/// use rescind_http::{HttpServer, Stateless};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let listener = HttpServer::new(Stateless::new()).path("/mcp").bind("127.0.0.1:0").await?;
/// println!("listening on {}", listener.endpoint());
/// // The counts can be read while the server has the listener.
/// let counts = listener.counts();
/// let server = Server::builder(dialect::MCP_2026).serve(Router::new()).listen(listener);
/// let serving = tokio::spawn(server.run());
/// println!("{} notifications were dropped", counts.dropped_notifications());
/// # serving.abort();
/// # Ok(())
/// # }
/// ```
pub struct HttpListener {
    links: mpsc::Receiver<Link>,
    endpoint: Endpoint,
    /// Those of its bindings.
    responders: Vec<Arc<dyn Responder>>,
    counts: HttpCounts,
    clients: Served,
    /// Closes with the listener, and ends the tasks that serve for it.
    open: ShutdownTrigger,
    /// Cancelled when these tasks have ended.
    served: CancellationToken,
}

impl HttpListener {
    pub(super) fn new(
        links: mpsc::Receiver<Link>,
        endpoint: Endpoint,
        responders: Vec<Arc<dyn Responder>>,
        (counts, clients): (HttpCounts, Served),
        open: ShutdownTrigger,
    ) -> Self {
        // Nothing is served yet.
        let served = CancellationToken::new();
        served.cancel();
        Self { links, endpoint, responders, counts, clients, open, served }
    }

    /// Serves by this future, in a task of its own.
    pub(super) fn serve_by(&mut self, serving: impl Future<Output = ()> + Send + 'static) {
        self.served = CancellationToken::new();
        let served = self.served.clone().drop_guard();
        tokio::spawn(async move {
            let _served = served;
            serving.await;
        });
    }

    /// The counts of what the server has dropped or ended. The returned value continues to count.
    #[must_use]
    pub fn counts(&self) -> HttpCounts {
        self.counts.clone()
    }
}

impl Listener for HttpListener {
    fn poll_accept(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Link, TransportError>>> {
        self.links.poll_recv(cx).map(|link| link.map(Ok))
    }

    fn endpoint(&self) -> Endpoint {
        self.endpoint.clone()
    }

    fn share_among(self: Pin<&mut Self>, clients: &Clients) {
        self.clients.are(clients);
    }

    /// New sessions get 503. Cancels and answers of open sessions still arrive, so the listener stays open until they
    /// end.
    fn stop_accepting(mut self: Pin<&mut Self>) -> bool {
        self.links.close();
        while self.links.try_recv().is_ok() {}
        self.open.drain();
        true
    }

    /// Connections have 500 ms to finish their writes. A mounted service is finished at once: the HTTP server that runs it
    /// knows its connections.
    fn finished(&self) -> BoxFuture<'static, ()> {
        Box::pin(self.served.clone().cancelled_owned())
    }
}

impl Drop for HttpListener {
    fn drop(&mut self) {
        self.responders.iter().for_each(|responder| responder.shut());
    }
}

impl fmt::Debug for HttpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpListener").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// All connections, oldest first. It may also contain some that have ended, but at most as many as are open.
pub(super) struct Sockets {
    places: Arc<Semaphore>,
    open: VecDeque<Weak<Socket>>,
    most: usize,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) activity: Arc<Activity>,
    client: Arc<Client>,
    /// `None` after another connection has taken the permit.
    place: Mutex<Option<ClientPermit>>,
    leaves: Notify,
}

/// Why a connection ends although it could continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// It makes room for another connection.
    Displaced,
    /// The listener drains: the connection ends after the requests that are open on it.
    Drains,
}

impl Sockets {
    pub(super) fn new(most: usize) -> Self {
        let most = most.min(Semaphore::MAX_PERMITS);
        let places = Arc::new(Semaphore::new(most));
        Self { places, open: VecDeque::new(), most }
    }

    /// A permit for one more connection of this client. Waits if there is none. `None`: the client has used its share,
    /// and has sent a request on each of its connections.
    ///
    /// # Cancel safety
    /// Dropping the future takes no permit.
    pub(super) async fn place(
        &mut self,
        client: &Arc<Client>,
        limit: usize,
    ) -> Option<(Arc<Socket>, OwnedSemaphorePermit)> {
        let permit = if let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() {
            permit
        } else {
            self.displace(|_| true);
            Arc::clone(&self.places).acquire_owned().await.ok()?
        };
        let own = || client.try_acquire(Resource::Sockets, limit);
        let place = own().or_else(|| {
            self.displace(|socket| Arc::ptr_eq(&socket.client, client));
            own()
        })?;
        let socket = Arc::new(Socket {
            activity: Arc::default(),
            client: Arc::clone(client),
            place: Mutex::new(Some(place)),
            leaves: Notify::new(),
        });
        let open = self.most - self.places.available_permits();
        if self.open.len() > 2 * open {
            self.open.retain(|socket| socket.strong_count() > 0);
        }
        self.open.push_back(Arc::downgrade(&socket));
        Some((socket, permit))
    }

    /// Informs every connection that the listener drains.
    pub(super) fn drain(&self) {
        for socket in self.open.iter().filter_map(Weak::upgrade) {
            socket.leaves.notify_one();
        }
    }

    /// Ends the oldest of these connections that has sent no request.
    fn displace(&mut self, is_meant: impl Fn(&Socket) -> bool) {
        let unused =
            |socket: &Socket| socket.activity.requests() == 0 && is_meant(socket) && socket.has_place();
        if let Some(socket) = self.open.iter().filter_map(Weak::upgrade).find(|socket| unused(socket)) {
            socket.leave();
        }
    }
}

impl Socket {
    fn has_place(&self) -> bool {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn leave(&self) {
        let place = self.place.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(place);
        self.leaves.notify_one();
    }

    /// Waits until the connection must end.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(super) async fn leave_asked(&self) -> Leave {
        self.leaves.notified().await;
        if self.has_place() { Leave::Drains } else { Leave::Displaced }
    }
}

/// Counts of what a server has dropped or ended since it was created. They stay readable after the listener has ended.
#[derive(Clone, Debug, Default)]
pub struct HttpCounts(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    dropped_notifications: AtomicU64,
    idle_sessions: AtomicU64,
    forgotten_sessions: AtomicU64,
    displaced_sessions: AtomicU64,
    ignored_cancels: AtomicU64,
}

impl HttpCounts {
    /// Notifications that were dropped because a stream was not read, or not fast enough, and had reached its limit
    /// ([`HttpServer::unread_limit`](crate::HttpServer::unread_limit)).
    #[must_use]
    pub fn dropped_notifications(&self) -> u64 {
        self.0.dropped_notifications.load(Ordering::Relaxed)
    }

    /// Sessions and connections that were ended because no client used them for
    /// [`HttpServer::session_idle`](crate::HttpServer::session_idle).
    #[must_use]
    pub fn idle_sessions(&self) -> u64 {
        self.0.idle_sessions.load(Ordering::Relaxed)
    }

    /// Binding `acp`: sessions whose stream was removed because their connection named further sessions and they were
    /// idle.
    #[must_use]
    pub fn forgotten_sessions(&self) -> u64 {
        self.0.forgotten_sessions.load(Ordering::Relaxed)
    }

    pub(crate) fn session_forgotten(&self) {
        self.0.forgotten_sessions.fetch_add(1, Ordering::Relaxed);
    }

    /// Sessions and connections that received no request except the one that opened them, and that were ended to make
    /// room for others ([`HttpServer::sessions`](crate::HttpServer::sessions)).
    #[must_use]
    pub fn displaced_sessions(&self) -> u64 {
        self.0.displaced_sessions.load(Ordering::Relaxed)
    }

    /// Servers without sessions ([`Streamable::sessionless`](crate::Streamable::sessionless)): cancels that had no effect in
    /// this process, because there is no auth hook and so nobody knows whose request they name, or because too many
    /// cancels waited for their requests.
    #[must_use]
    pub fn ignored_cancels(&self) -> u64 {
        self.0.ignored_cancels.load(Ordering::Relaxed)
    }

    pub(crate) fn cancel_ignored(&self) {
        self.0.ignored_cancels.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn session_displaced(&self) {
        self.0.displaced_sessions.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn notification_dropped(&self) {
        self.0.dropped_notifications.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn session_idled(&self) {
        self.0.idle_sessions.fetch_add(1, Ordering::Relaxed);
    }
}

/// The timer of one connection, which waits for one head at a time. Each head creates a sleep, and nearly all sleeps
/// are dropped long before they end. So the runtime's timer is only moved when it ends.
#[derive(Clone, Default)]
pub(super) struct HeadTimer(Arc<Mutex<Option<LazySleep>>>);

struct HeadSleep {
    timer: HeadTimer,
    deadline: Instant,
}

impl Timer for HeadTimer {
    fn sleep(&self, wait: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + wait)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(HeadSleep { timer: self.clone(), deadline })
    }

    /// The time of the runtime, which tests may pause.
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

impl Future for HeadSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = tokio::time::Instant::from_std(self.deadline);
        let mut timer = self.timer.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sleep = timer.get_or_insert_with(|| LazySleep::until(deadline));
        if sleep.deadline() > deadline {
            sleep.reset(deadline);
        }
        // The timer may have been set for an earlier head that arrived in time.
        while sleep.poll(cx).is_ready() {
            if tokio::time::Instant::now() >= deadline {
                return Poll::Ready(());
            }
            sleep.reset(deadline);
        }
        Poll::Pending
    }
}

impl Sleep for HeadSleep {}

/// The listener's part. When it is dropped, everything that belongs to the listener ends.
#[derive(Debug)]
pub(super) struct ShutdownTrigger(Arc<Phases>);

/// Reports the phase of the listener.
#[derive(Clone, Debug)]
pub(super) struct ShutdownSignal(Arc<Phases>);

#[derive(Debug)]
struct Phases {
    /// Closed when the listener is dropped.
    open: Semaphore,
    draining: Notify,
}

/// Both parts. Those that wait for the end are woken in the order in which they began to wait, so that connections end
/// in the order in which they began. A semaphore without permits guarantees that order.
pub(super) fn shutdown_pair() -> (ShutdownTrigger, ShutdownSignal) {
    let phases = Arc::new(Phases { open: Semaphore::new(0), draining: Notify::new() });
    (ShutdownTrigger(Arc::clone(&phases)), ShutdownSignal(phases))
}

impl ShutdownTrigger {
    /// Informs the task that accepts connections that the listener drains.
    pub(super) fn drain(&self) {
        self.0.draining.notify_one();
    }
}

impl ShutdownSignal {
    /// Waits until the listener drains. Only one task may wait.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(super) async fn draining(&self) {
        self.0.draining.notified().await;
    }

    /// Waits for the listener's end.
    ///
    /// # Cancel safety
    /// Dropping the future loses only its position among the waiting tasks.
    pub(super) async fn ended(&self) {
        let mut acquire = pin!(self.0.open.acquire());
        let mut wakes: Option<Waker> = None;
        // Each connection polls this whenever it is polled, and nearly always nothing has changed.
        poll_fn(|cx| {
            let is_waited_for = wakes.as_ref().is_some_and(|wakes| wakes.will_wake(cx.waker()));
            if is_waited_for && !self.0.open.is_closed() {
                return Poll::Pending;
            }
            wakes = Some(cx.waker().clone());
            pin!(unconstrained(acquire.as_mut())).poll(cx).map(drop)
        })
        .await;
    }
}

impl Drop for ShutdownTrigger {
    fn drop(&mut self) {
        self.0.open.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn each_sleep_takes_its_own_time_whatever_came_before() {
        let timer = HeadTimer::default();
        let begun = tokio::time::Instant::now();
        // Dropped, like the sleep of a head that has arrived.
        assert!(tokio::time::timeout(WAIT / 2, timer.sleep(WAIT)).await.is_err());
        timer.sleep(WAIT).await;
        assert_eq!(begun.elapsed(), WAIT + WAIT / 2);
        tokio::time::advance(WAIT * 3).await;
        let begun = tokio::time::Instant::now();
        timer.sleep(WAIT).await;
        timer.sleep(WAIT / 4).await;
        assert_eq!(begun.elapsed(), WAIT + WAIT / 4);
        // A shorter sleep after a longer one.
        assert!(tokio::time::timeout(Duration::from_secs(1), timer.sleep(WAIT)).await.is_err());
        timer.sleep(WAIT / 4).await;
        assert_eq!(begun.elapsed(), WAIT + WAIT / 2 + Duration::from_secs(1));
    }
}
