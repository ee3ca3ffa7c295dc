//! A transport within this process, for tests and for two parts of one program.

mod direction;

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use self::direction::{Direction, Popped};
use super::byte_stream::DEFAULT_MAX_FRAME;
use super::send_buffer::{Broken, oversize};
use super::{
    BoxFuture, Capabilities, CloseReason, Endpoint, Inbound, Lane, Link, Listener, Outbound, PeerInfo,
    Receiver, Sender, Transport, TransportError, TransportErrorKind, TransportEvent,
};
use crate::sync::{Mutex, MutexGuard};

/// The most connections that wait to be accepted.
const BACKLOG: usize = 1024;

/// Two ends of one connection. Frames keep their order, and the peer can read a frame as soon as it is taken. Each
/// direction holds at most 64 KiB of unread frames, or one larger frame. The last half of that is reserved for control
/// frames.
///
/// ```
/// let (client, server) = rescind_core::memory_pair();
/// assert!(client.traits.ordered && server.traits.ordered);
/// ```
#[must_use]
pub fn memory_pair() -> (Link, Link) {
    let (forth, back) = (Arc::default(), Arc::default());
    (link(&forth, &back, "memory client"), link(&back, &forth, "memory server"))
}

fn link(out: &Arc<Direction>, back: &Arc<Direction>, peer: &str) -> Link {
    let traits = Capabilities::of_stream(DEFAULT_MAX_FRAME);
    let receiver = MemoryReceiver { input: Arc::clone(back), output: Arc::clone(out), state: State::Open };
    let sender = MemorySender { output: Arc::clone(out), broken: None };
    Link::new(receiver, sender, traits, PeerInfo::of_peer(peer))
}

struct MemoryReceiver {
    input: Arc<Direction>,
    output: Arc<Direction>,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Open,
    HalfClosed,
    Closed,
}

impl Receiver for MemoryReceiver {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        loop {
            match self.state {
                State::Open => match ready!(self.input.poll_pop(cx)) {
                    Popped::Frame(body) => {
                        return Poll::Ready(Some(Ok(TransportEvent::Message(Inbound::new(body)))));
                    }
                    Popped::End if self.output.is_over() => self.state = State::Closed,
                    Popped::End => {
                        self.state = State::HalfClosed;
                        return Poll::Ready(Some(Ok(TransportEvent::HalfClosed)));
                    }
                },
                State::HalfClosed => {
                    ready!(self.output.poll_over(cx));
                    self.state = State::Closed;
                }
                State::Closed => return Poll::Ready(None),
            }
        }
    }
}

impl Drop for MemoryReceiver {
    fn drop(&mut self) {
        self.input.close_reader();
    }
}

struct MemorySender {
    output: Arc<Direction>,
    broken: Option<Broken>,
}

impl MemorySender {
    fn checked(&mut self, open: bool) -> Result<(), TransportError> {
        if !open && self.broken.is_none() {
            let text = "the peer dropped its end";
            self.broken = Some(Broken::By(TransportError::new(TransportErrorKind::Closed, text)));
        }
        self.broken.as_ref().map_or(Ok(()), |why| Err(why.error()))
    }
}

impl Sender for MemorySender {
    fn poll_ready(
        mut self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let open = ready!(self.output.poll_room(lane, cx));
        Poll::Ready(self.checked(open))
    }

    fn start_send(mut self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        if out.body.len() > DEFAULT_MAX_FRAME {
            return Err(oversize(out.exchange, DEFAULT_MAX_FRAME));
        }
        let open = self.output.push(out.body);
        self.checked(open)
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        let all_read = !self.output.has_lost_frames();
        Poll::Ready(self.checked(all_read))
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        _: &CloseReason,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.output.end();
        self.broken.get_or_insert(Broken::Closed);
        Poll::Ready(Ok(()))
    }
}

impl Drop for MemorySender {
    fn drop(&mut self) {
        self.output.end();
    }
}

/// A listener within this process, and the transport that connects to it. The listener ends when every clone of the
/// transport is dropped. A connection cannot be opened after the listener is dropped.
#[must_use]
pub fn memory_listener() -> (MemoryListener, MemoryTransport) {
    let queue = Arc::new(AcceptQueue(Mutex::default()));
    let connector = Arc::new(Connector(Arc::clone(&queue)));
    (MemoryListener(queue), MemoryTransport(connector))
}

/// Connects to a [`MemoryListener`] of this process. Each clone opens one connection.
#[derive(Clone)]
pub struct MemoryTransport(Arc<Connector>);

/// Accepts the connections of a [`MemoryTransport`].
pub struct MemoryListener(Arc<AcceptQueue>);

/// The listener ends when the last clone is dropped.
struct Connector(Arc<AcceptQueue>);

struct AcceptQueue(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Link>,
    listener: Option<Waker>,
    listener_gone: bool,
    knockers_gone: bool,
}

impl AcceptQueue {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transport for MemoryTransport {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(async move {
            let refused = |text: &str| Err(TransportError::new(TransportErrorKind::Open, text));
            let (client, server) = memory_pair();
            let listener = {
                let mut queue = self.0.0.queue();
                if queue.listener_gone {
                    return refused("the listener is gone");
                }
                if queue.waiting.len() >= BACKLOG {
                    return refused("too many connections wait to be accepted");
                }
                queue.waiting.push_back(server);
                queue.listener.take()
            };
            if let Some(waker) = listener {
                waker.wake();
            }
            Ok(client)
        })
    }
}

impl Listener for MemoryListener {
    fn poll_accept(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Link, TransportError>>> {
        let mut queue = self.0.queue();
        if let Some(link) = queue.waiting.pop_front() {
            return Poll::Ready(Some(Ok(link)));
        }
        if queue.knockers_gone {
            return Poll::Ready(None);
        }
        queue.listener = Some(cx.waker().clone());
        Poll::Pending
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint("memory".into())
    }
}

impl Drop for MemoryListener {
    fn drop(&mut self) {
        let unaccepted = {
            let mut queue = self.0.queue();
            queue.listener_gone = true;
            std::mem::take(&mut queue.waiting)
        };
        drop(unaccepted);
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        let listener = {
            let mut queue = self.0.queue();
            queue.knockers_gone = true;
            queue.listener.take()
        };
        if let Some(waker) = listener {
            waker.wake();
        }
    }
}

impl fmt::Debug for MemoryTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryTransport").finish_non_exhaustive()
    }
}

impl fmt::Debug for MemoryListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryListener").finish_non_exhaustive()
    }
}
