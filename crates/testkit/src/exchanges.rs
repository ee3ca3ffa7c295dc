//! A transport of exchanges within this process: it treats frames as HTTP does, without HTTP.
//!
//! Each message of the client is a post, which is one exchange. The server answers on it or ends it without a
//! message. A frame that belongs to no post uses the session's stream. Posts can be held back and delivered in
//! another order. The answer stream of a post can be lost and resumed. Every end of a post is recorded, so that a
//! test can check that each post ends once.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use rescind_core::{
    Capabilities, CloseReason, ExchangeEnd, ExchangeId, FrameKind, Inbound, Lane, Link, Outbound, PeerInfo,
    Receiver, RejectReason, Sender, TransportError, TransportErrorKind, TransportEvent, Unsupported,
};

/// The most events that wait for a side before its peer may write no more data frames. Control frames have the same
/// limit again.
const MAX_QUEUED_EVENTS: usize = 1024;

/// The scope in which ids are unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdScope {
    /// The session, as on streamable HTTP.
    Session,
    /// One exchange, as on stateless HTTP. The only streams are those of the posts.
    Exchange,
}

/// Returns the client's end, the server's end, and a handle that watches what happens between them.
#[must_use]
pub fn exchange_pair(scope: IdScope) -> (Link, Link, ExchangeWatch) {
    let wire = Arc::new(Wire { scope, state: Mutex::default() });
    let traits = |side| Capabilities {
        ordered: false,
        opens_exchanges: side == Side::Client,
        exchange_scoped: scope == IdScope::Exchange,
        batches: false,
        max_frame: 1 << 20,
    };
    let link = |side, peer: &str| {
        let receiver = End { wire: Arc::clone(&wire), side, ends_wire: false };
        let sender = End { wire: Arc::clone(&wire), side, ends_wire: true };
        Link::new(receiver, sender, traits(side), PeerInfo::of_peer(peer))
    };
    let (client, server) = (link(Side::Client, "exchange client"), link(Side::Server, "exchange server"));
    (client, server, ExchangeWatch(wire))
}

/// How a post ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostEnd {
    /// With this last frame.
    Frame(FrameKind),
    /// Without a frame.
    Without(ExchangeEnd),
}

/// The record of one post.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PostRecord {
    /// The kind of frame in its head.
    pub kind: FrameKind,
    /// Whether the server reported that its handler runs.
    pub begun: bool,
    /// The reason for which the server's answer refuses it.
    pub fault: Option<RejectReason>,
    /// Whether the client closed it or its stream was lost.
    pub closed: bool,
    /// How the server ended it, once for each end. Exactly one is correct.
    pub ends: Vec<PostEnd>,
}

/// Watches an exchange transport and disturbs it.
#[derive(Clone)]
pub struct ExchangeWatch(Arc<Wire>);

impl ExchangeWatch {
    /// Every post, in the order in which they were sent.
    #[must_use]
    pub fn posts(&self) -> Vec<PostRecord> {
        self.0.state().posts.values().map(|post| post.record.clone()).collect()
    }

    /// Whether one of its ends is closed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let state = self.0.state();
        state.client_gone || state.server_gone
    }

    /// Holds back posts from now on.
    pub fn hold(&self) {
        self.0.state().held.get_or_insert_default();
    }

    /// Delivers the posts that were held back, the latest first, and stops holding back.
    pub fn release_reversed(&self) {
        self.0.change(|state| {
            for event in state.held.take().unwrap_or_default().into_iter().rev() {
                state.to_server.push_back(event);
            }
        });
    }

    /// Loses the answer stream of the post with this index in [`posts`](Self::posts), from 0. What the server writes
    /// on it from now on is kept.
    pub fn lose(&self, place: usize) {
        self.0.change(|state| {
            let Some((number, post)) = state.posts.iter_mut().nth(place) else { return };
            post.lost = true;
            post.record.closed = true;
            state.to_server.push_back(TransportEvent::ExchangeClosed { exchange: ExchangeId(*number) });
        });
    }

    /// Resumes a lost stream. The events that were kept for it are delivered.
    pub fn resume(&self, place: usize) {
        self.0.change(|state| {
            let Some((number, post)) = state.posts.iter_mut().nth(place) else { return };
            post.lost = false;
            post.record.closed = false;
            state.to_client.append(&mut post.kept);
            state.to_server.push_back(TransportEvent::ExchangeResumed { exchange: ExchangeId(*number) });
        });
    }
}

impl fmt::Debug for ExchangeWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ExchangeWatch").field(&self.posts()).finish()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

struct Wire {
    scope: IdScope,
    state: Mutex<ExchangesState>,
}

#[derive(Default)]
struct ExchangesState {
    posts: BTreeMap<u64, Post>,
    to_server: VecDeque<TransportEvent>,
    to_client: VecDeque<TransportEvent>,
    /// The posts that wait to be delivered, while posts are held back.
    held: Option<Vec<TransportEvent>>,
    client_gone: bool,
    server_gone: bool,
    wakers: Vec<Waker>,
}

struct Post {
    /// The client's id for it.
    exchange: ExchangeId,
    record: PostRecord,
    lost: bool,
    /// The frames that the server wrote while the stream was lost.
    kept: VecDeque<TransportEvent>,
}

impl Wire {
    fn state(&self) -> MutexGuard<'_, ExchangesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and then wakes all waiters.
    fn change<T>(&self, change: impl FnOnce(&mut ExchangesState) -> T) -> T {
        let (changed, wakers) = {
            let mut state = self.state();
            (change(&mut state), std::mem::take(&mut state.wakers))
        };
        wakers.into_iter().for_each(Waker::wake);
        changed
    }
}

impl ExchangesState {
    fn post(&mut self, out: Outbound) {
        let number = u64::try_from(self.posts.len()).unwrap_or_default() + 1;
        let record =
            PostRecord { kind: out.head.kind, begun: false, fault: None, closed: false, ends: Vec::new() };
        let post = Post { exchange: out.exchange, record, lost: false, kept: VecDeque::new() };
        self.posts.insert(number, post);
        let event = message(out.body, ExchangeId(number));
        match &mut self.held {
            Some(held) => held.push(event),
            None => self.to_server.push_back(event),
        }
    }

    /// Sends a frame of the server on its post or, if that has ended, on the session's stream.
    fn answer(&mut self, out: Outbound, scope: IdScope) {
        let open = self.posts.get_mut(&out.exchange.0).filter(|post| post.record.ends.is_empty());
        let Some(post) = open else {
            if let Some(post) = self.posts.get_mut(&out.exchange.0).filter(|_| out.last) {
                post.record.ends.push(PostEnd::Frame(out.head.kind));
            }
            if scope == IdScope::Session {
                self.to_client.push_back(message(out.body, ExchangeId::NONE));
            }
            return;
        };
        let event = message(out.body, post.exchange);
        if out.last {
            post.record.ends.push(PostEnd::Frame(out.head.kind));
        }
        if post.lost {
            post.kept.push_back(event);
        } else if !post.record.closed {
            self.to_client.push_back(event);
        }
    }

    fn finish(&mut self, exchange: ExchangeId, how: ExchangeEnd) {
        let Some(post) = self.posts.get_mut(&exchange.0) else { return };
        post.record.ends.push(PostEnd::Without(how));
        if post.exchange.call().is_none() || how == ExchangeEnd::Accepted || post.record.closed {
            return;
        }
        let error = TransportError {
            kind: TransportErrorKind::Closed,
            exchange: Some(post.exchange),
            source: Arc::from(Box::<dyn std::error::Error + Send + Sync>::from("it ended without an answer")),
        };
        let exchange = post.exchange;
        self.to_client.push_back(TransportEvent::ExchangeFailed { exchange, sent: true, error });
    }

    fn abort(&mut self, exchange: ExchangeId) {
        let found = self.posts.iter_mut().find(|(_, post)| post.exchange == exchange);
        let Some((number, post)) = found else { return };
        post.record.closed = true;
        let closed = TransportEvent::ExchangeClosed { exchange: ExchangeId(*number) };
        match &mut self.held {
            Some(held) => held.push(closed),
            None => self.to_server.push_back(closed),
        }
        // No further event of it is delivered.
        self.to_client.retain(
            |event| !matches!(event, TransportEvent::Message(inbound) if inbound.exchange == exchange),
        );
    }
}

fn message(body: Bytes, exchange: ExchangeId) -> TransportEvent {
    let mut inbound = Inbound::new(body);
    inbound.exchange = exchange;
    TransportEvent::Message(inbound)
}

/// The reading or writing half of one side.
struct End {
    wire: Arc<Wire>,
    side: Side,
    /// Whether dropping this half closes the connection. True for the writing half.
    ends_wire: bool,
}

impl End {
    fn close(&self) {
        self.wire.change(|state| match self.side {
            Side::Client => state.client_gone = true,
            Side::Server => state.server_gone = true,
        });
    }

    fn checked(&self) -> Result<(), TransportError> {
        let state = self.wire.state();
        if state.client_gone || state.server_gone {
            return Err(TransportError::new(TransportErrorKind::Closed, "the connection is closed"));
        }
        Ok(())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if self.ends_wire {
            self.close();
        }
    }
}

impl Receiver for End {
    fn poll_event(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        let (event, wakers) = {
            let mut state = self.wire.state();
            let next = match self.side {
                Side::Client => (state.to_client.pop_front(), state.server_gone),
                Side::Server => (state.to_server.pop_front(), state.client_gone),
            };
            match next {
                (Some(event), _) => (Some(Ok(event)), std::mem::take(&mut state.wakers)),
                (None, true) => return Poll::Ready(None),
                (None, false) => {
                    state.wait(cx);
                    return Poll::Pending;
                }
            }
        };
        wakers.into_iter().for_each(Waker::wake);
        Poll::Ready(event)
    }
}

impl ExchangesState {
    fn wait(&mut self, cx: &Context<'_>) {
        if !self.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.wakers.push(cx.waker().clone());
        }
    }
}

impl Sender for End {
    fn poll_ready(
        self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        if let Err(error) = self.checked() {
            return Poll::Ready(Err(error));
        }
        let mut state = self.wire.state();
        let waiting = match self.side {
            Side::Client => state.to_server.len(),
            Side::Server => state.to_client.len(),
        };
        let room = match lane {
            Lane::Control => 2 * MAX_QUEUED_EVENTS,
            Lane::Data => MAX_QUEUED_EVENTS,
        };
        if waiting >= room {
            state.wait(cx);
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        self.checked()?;
        let scope = self.wire.scope;
        self.wire.change(|state| match self.side {
            Side::Client => state.post(out),
            Side::Server => state.answer(out, scope),
        });
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(self.checked())
    }

    fn begin_exchange(self: Pin<&mut Self>, exchange: ExchangeId) {
        if let Some(post) = self.wire.state().posts.get_mut(&exchange.0) {
            post.record.begun = true;
        }
    }

    fn note_rejection(self: Pin<&mut Self>, exchange: ExchangeId, fault: RejectReason) {
        if let Some(post) = self.wire.state().posts.get_mut(&exchange.0) {
            post.record.fault = Some(fault);
        }
    }

    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
        self.wire.change(|state| state.finish(exchange, how));
    }

    fn abort_exchange(self: Pin<&mut Self>, exchange: ExchangeId) -> Result<(), Unsupported> {
        if self.side == Side::Server {
            return Err(Unsupported);
        }
        self.wire.change(|state| state.abort(exchange));
        Ok(())
    }

    fn poll_close(
        self: Pin<&mut Self>,
        _: &CloseReason,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.close();
        Poll::Ready(Ok(()))
    }
}
