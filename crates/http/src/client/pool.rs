//! The connections of a client.
//!
//! - L1 In HTTP/1.1 a connection carries one exchange at a time and is free after its response was read. In HTTP/2 all
//!   exchanges share one connection.
//! - L2 A request that finds no free connection waits for the next one that is opened or freed. Urgent requests wait
//!   ahead of all others.
//! - L3 While an event stream over HTTP/1.1 is open, one spare connection is kept for urgent requests, so that a cancel
//!   does not wait for a handshake.
//!
//! # The body of a response
//!
//! `ResponseBody` holds its connection until it was read, and then gives it back to the pool.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rescind_core::{TransportError, TransportErrorKind};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::client::Failed;
use crate::client::connector::Connector;
use crate::client::requester::{Posted, error_cut_off, error_too_large, silent};
use crate::envelope::CollectError;
use crate::inbound_queue::{OwnWaker, poll_piece};
use crate::sync::{AbortHandle, Mutex, MutexGuard, spawn};

/// A connection that was unused for this time is closed.
const IDLE: Duration = Duration::from_secs(60);
/// The most connections that are being opened at a time.
const OPENING: usize = 64;
/// For HTTP/2: the time between two pings, and the longest wait for the answer to one.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// A connection for one request.
pub(super) enum PooledConnection {
    /// An HTTP/1.1 connection, only for this request.
    Own(http1::SendRequest<Posted>),
    /// The HTTP/2 connection.
    Shared(http2::SendRequest<Posted>),
}

/// How soon a request needs a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// After the requests that already wait.
    Usual,
    /// Before usual requests. It may use the spare connection.
    Urgent,
}

/// The connections to one server.
pub(super) struct Pool {
    connector: Connector,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    /// Free HTTP/1.1 connections. The last one was used most recently.
    free: Vec<IdleConnection>,
    /// The connection that is kept for urgent requests.
    spare: Option<IdleConnection>,
    /// Urgent requests are at the front.
    waiting: VecDeque<WaitingRequest>,
    opening: usize,
    /// The HTTP/2 connection.
    shared: Option<http2::SendRequest<Posted>>,
    /// Whether the server uses HTTP/1.1, so that each request needs its own connection.
    one_per_request: bool,
    /// The number of open event streams, each on its own connection.
    open_streams: usize,
    sweeping: Option<AbortHandle>,
}

struct IdleConnection {
    sender: http1::SendRequest<Posted>,
    since: Instant,
}

struct WaitingRequest {
    urgency: Urgency,
    reported: oneshot::Sender<Result<PooledConnection, Arc<io::Error>>>,
}

impl Pool {
    pub(super) fn new(connector: Connector) -> Arc<Self> {
        Arc::new(Self { connector, state: Mutex::default() })
    }

    /// Whether a connection ended because its server does not support HTTP/2. Returns `true` once for each such
    /// connection.
    pub(super) fn was_misunderstood(&self) -> bool {
        self.connector.was_misunderstood()
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that is open and free.
    pub(super) fn free(&self, urgency: Urgency) -> Option<PooledConnection> {
        let mut state = self.state();
        if let Some(shared) = &state.shared {
            if shared.is_ready() {
                return Some(PooledConnection::Shared(shared.clone()));
            }
            state.shared = None;
        }
        if urgency == Urgency::Usual && !state.waiting.is_empty() {
            return None;
        }
        while let Some(IdleConnection { sender, .. }) = state.free.pop() {
            if sender.is_ready() {
                return Some(PooledConnection::Own(sender));
            }
        }
        if urgency == Urgency::Urgent {
            return state
                .spare
                .take()
                .filter(|spare| spare.sender.is_ready())
                .map(|spare| PooledConnection::Own(spare.sender));
        }
        None
    }

    /// The next connection that is opened or freed (L2).
    ///
    /// # Cancel safety
    /// If the future is dropped, the next request takes its turn.
    pub(super) async fn next(self: &Arc<Self>, urgency: Urgency) -> Result<PooledConnection, Arc<io::Error>> {
        let (reported, answer) = oneshot::channel();
        {
            let mut state = self.state();
            let waiting = WaitingRequest { urgency, reported };
            match urgency {
                Urgency::Usual => state.waiting.push_back(waiting),
                Urgency::Urgent => {
                    let place = state.waiting.iter().position(|other| other.urgency == Urgency::Usual);
                    let place = place.unwrap_or(state.waiting.len());
                    state.waiting.insert(place, waiting);
                }
            }
            self.open_more(&mut state);
        }
        answer.await.unwrap_or_else(|_| Err(Arc::new(io::Error::other("the client has ended"))))
    }

    /// Opens connections for the waiting requests. The first connection shows whether more are needed.
    fn open_more(self: &Arc<Self>, state: &mut PoolState) {
        let most = if state.one_per_request { OPENING } else { 1 };
        while state.opening < state.waiting.len().min(most) {
            self.open_one(state);
        }
    }

    fn open_one(self: &Arc<Self>, state: &mut PoolState) {
        state.opening += 1;
        let (pool, connector) = (Arc::downgrade(self), self.connector.clone());
        spawn(async move {
            let opened = open(connector).await;
            if let Some(pool) = pool.upgrade() {
                pool.opened(opened);
            }
        });
    }

    fn opened(self: &Arc<Self>, opened: io::Result<PooledConnection>) {
        let mut state = self.state();
        state.opening -= 1;
        match opened {
            Ok(PooledConnection::Shared(shared)) => {
                for waiting in std::mem::take(&mut state.waiting) {
                    let _ = waiting.reported.send(Ok(PooledConnection::Shared(shared.clone())));
                }
                state.shared = Some(shared);
            }
            Ok(PooledConnection::Own(sender)) => {
                state.one_per_request = true;
                self.take_in(&mut state, sender);
            }
            // At least as many requests wait as connections are being opened.
            Err(error) => {
                let error = Arc::new(error);
                while state.waiting.len() > state.opening {
                    let Some(waiting) = state.waiting.pop_front() else { break };
                    let reported = waiting.reported.send(Err(Arc::clone(&error))).is_ok();
                    // If one connection is opened for all requests, all of them fail.
                    if reported && state.one_per_request {
                        break;
                    }
                }
            }
        }
        self.open_more(&mut state);
    }

    /// Takes back a connection whose response was read.
    pub(super) fn give_back(self: &Arc<Self>, mut sender: http1::SendRequest<Posted>) {
        if sender.is_ready() {
            self.take_in(&mut self.state(), sender);
        } else if !sender.is_closed() {
            let pool: Weak<Self> = Arc::downgrade(self);
            spawn(async move {
                if sender.ready().await.is_ok() {
                    if let Some(pool) = pool.upgrade() {
                        pool.take_in(&mut pool.state(), sender);
                    }
                }
            });
        }
    }

    fn take_in(self: &Arc<Self>, state: &mut PoolState, sender: http1::SendRequest<Posted>) {
        state.take_in(sender);
        if state.sweeping.is_none() && !state.free.is_empty() {
            state.sweeping = Some(spawn(Self::sweep(Arc::downgrade(self))).abort_handle());
        }
    }

    /// Closes connections that were unused for too long. Ends when no free connection is left.
    async fn sweep(pool: Weak<Self>) {
        loop {
            tokio::time::sleep(IDLE / 2).await;
            let Some(pool) = pool.upgrade() else { return };
            let mut state = pool.state();
            let now = Instant::now();
            state.free.retain(|free| now - free.since < IDLE && !free.sender.is_closed());
            if state.free.is_empty() {
                state.sweeping = None;
                return;
            }
        }
    }

    /// Called when an event stream begins: from now on one connection is kept for urgent requests (L3).
    pub(super) fn stream_begins(self: &Arc<Self>) {
        let mut state = self.state();
        state.open_streams += 1;
        let is_open = |free: &IdleConnection| !free.sender.is_closed();
        if state.spare.as_ref().is_some_and(is_open) {
            return;
        }
        state.spare = state.free.pop().filter(is_open);
        if state.spare.is_none() && state.opening == 0 {
            self.open_one(&mut state);
        }
    }

    pub(super) fn stream_ends(&self) {
        let mut state = self.state();
        state.open_streams -= 1;
        if state.open_streams == 0 {
            let spare = state.spare.take();
            state.free.extend(spare);
        }
    }
}

async fn open(connector: Connector) -> io::Result<PooledConnection> {
    let socket = connector.open().await?;
    if socket.is_http2() {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .handshake(socket)
            .await
            .map_err(io::Error::other)?;
        spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %rescind_core::LogText::text(&error), "a connection broke");
            }
        });
        return Ok(PooledConnection::Shared(sender));
    }
    let (mut sender, connection) = http1::Builder::new().handshake(socket).await.map_err(io::Error::other)?;
    spawn(async move {
        let (mut connection, waker) = (pin!(connection), OwnWaker::default());
        if let Err(error) = poll_fn(|cx| waker.poll(&mut connection, cx)).await {
            tracing::debug!(error = %rescind_core::LogText::text(&error), "a connection broke");
        }
    });
    sender.ready().await.map_err(io::Error::other)?;
    Ok(PooledConnection::Own(sender))
}

impl PoolState {
    /// Gives a free connection to the first waiting request, or keeps it.
    fn take_in(&mut self, sender: http1::SendRequest<Posted>) {
        let mut connection = PooledConnection::Own(sender);
        let urgent = |waiting: &WaitingRequest| waiting.urgency == Urgency::Urgent;
        while let Some(waiting) = self.waiting.front() {
            if self.open_streams > 0 && self.spare.is_none() && !urgent(waiting) {
                break;
            }
            let Some(waiting) = self.waiting.pop_front() else { break };
            match waiting.reported.send(Ok(connection)) {
                Err(Ok(back)) => connection = back,
                Ok(()) | Err(Err(_)) => return,
            }
        }
        let PooledConnection::Own(sender) = connection else { return };
        let free = IdleConnection { sender, since: Instant::now() };
        if self.open_streams > 0 && self.spare.is_none() {
            self.spare = Some(free);
        } else {
            self.free.push(free);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(sweeping) = self.state().sweeping.take() {
            sweeping.abort();
        }
    }
}

/// The body of a response. If it is dropped before its end, the exchange is aborted.
pub(crate) struct ResponseBody {
    body: Incoming,
    ended: bool,
    held: Option<BodyConnection>,
}

struct BodyConnection {
    pool: Arc<Pool>,
    sender: http1::SendRequest<Posted>,
    /// Whether it is an event stream. While it is open, one connection is kept for urgent requests.
    goes_on: bool,
}

impl ResponseBody {
    pub(super) const fn shared(body: Incoming) -> Self {
        Self { body, ended: false, held: None }
    }

    pub(super) fn own(
        body: Incoming,
        pool: &Arc<Pool>,
        sender: http1::SendRequest<Posted>,
        goes_on: bool,
    ) -> Self {
        if goes_on {
            pool.stream_begins();
        }
        let held = BodyConnection { pool: Arc::clone(pool), sender, goes_on };
        Self { body, ended: false, held: Some(held) }
    }

    fn end(&mut self) {
        let Some(BodyConnection { pool, sender, goes_on }) = self.held.take() else { return };
        if goes_on {
            pool.stream_ends();
        }
        if self.is_end_stream() {
            pool.give_back(sender);
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let frame = match this.held {
            Some(_) => poll_piece(&mut this.body, cx),
            None => Pin::new(&mut this.body).poll_frame(cx),
        };
        self.ended |= matches!(frame, Poll::Ready(None));
        // From now on another request can use the connection.
        if frame.is_ready() && self.is_end_stream() {
            self.end();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.end();
    }
}

/// The error of a response without a complete message. `address` is the one that was asked first.
pub(crate) fn body_error(head: &Parts, address: &str, error: CollectError<hyper::Error>) -> Failed {
    let error = match error {
        CollectError::TooLarge(limit, read) => return error_too_large(head, address, limit, &read),
        CollectError::Broken(error, read) => return error_cut_off(head, address, &error, &read),
        CollectError::Silent(read) => return silent(head, address, &read),
        CollectError::MemoryFull => {
            TransportError::new(TransportErrorKind::TooLarge, "the limit memory is reached")
        }
    };
    Failed { sent: true, error }
}

#[cfg(test)]
mod tests {
    use futures_util::future::poll_immediate;
    use tokio::net::TcpListener;

    use super::*;
    use crate::client::HttpClient;

    async fn pool() -> (TcpListener, Arc<Pool>) {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = HttpClient::new(&format!("http://{}/", socket.local_addr().unwrap())).unwrap();
        (socket, Pool::new(Connector::new(&client, &client.uri)))
    }

    #[tokio::test]
    async fn an_urgent_request_gets_the_first_connection() {
        let (_socket, pool) = pool().await;
        let mut usual = pin!(pool.next(Urgency::Usual));
        assert!(poll_immediate(usual.as_mut()).await.is_none());
        tokio::select! {
            biased;
            _ = usual.as_mut() => panic!("it waited longer, and is not urgent (L2)"),
            connection = pool.next(Urgency::Urgent) => assert!(matches!(connection, Ok(PooledConnection::Own(_)))),
        }
        assert!(matches!(usual.await, Ok(PooledConnection::Own(_))));
    }

    #[tokio::test]
    async fn one_connection_is_reserved_for_urgent_requests_while_a_response_streams() {
        let (_socket, pool) = pool().await;
        let first = pool.next(Urgency::Usual).await;
        pool.stream_begins();
        let Ok(PooledConnection::Own(second)) = pool.next(Urgency::Usual).await else {
            panic!("it speaks HTTP/1.1")
        };
        while pool.state().spare.is_none() {
            tokio::task::yield_now().await;
        }
        assert!(pool.free(Urgency::Usual).is_none(), "what is kept is not for all (L3)");
        assert!(pool.free(Urgency::Urgent).is_some());
        pool.give_back(second);
        assert!(pool.free(Urgency::Usual).is_none(), "it takes the place of the one used");
        pool.stream_ends();
        assert!(pool.free(Urgency::Usual).is_some(), "there is nothing to keep it for");
        drop(first);
    }

    #[tokio::test]
    async fn a_waiting_request_fails_if_no_server_listens() {
        let (socket, pool) = pool().await;
        drop(socket);
        let (first, second) = tokio::join!(pool.next(Urgency::Usual), pool.next(Urgency::Urgent));
        assert!(first.is_err() && second.is_err());
        assert_eq!(pool.state().opening, 0);
    }
}
