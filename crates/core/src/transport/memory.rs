//! A transport within this process, for tests and for two parts of one program.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;

use crate::sync::{Mutex, MutexGuard};
use crate::transport::byte_stream::DEFAULT_MAX_FRAME;
use crate::transport::frames::{Broken, has_room, is_half_empty, oversize};
use crate::transport::{
    BoxFuture, Capabilities, CloseReason, Endpoint, Inbound, Lane, Link, Listener, Outbound, PeerInfo,
    Receiver, Sender, Transport, TransportError, TransportErrorKind, TransportEvent,
};

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
    let receiver =
        MemoryReceiver { input: Arc::clone(back), output: Arc::clone(out), state: LaneState::Open };
    let sender = MemorySender { output: Arc::clone(out), broken: None };
    Link::new(receiver, sender, traits, PeerInfo::of_peer(peer))
}

struct MemoryReceiver {
    input: Arc<Direction>,
    output: Arc<Direction>,
    state: LaneState,
}

#[derive(Clone, Copy, Debug)]
enum LaneState {
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
                LaneState::Open => match ready!(self.input.poll_pop(cx)) {
                    Popped::Frame(body) => {
                        return Poll::Ready(Some(Ok(TransportEvent::Message(Inbound::new(body)))));
                    }
                    Popped::End if self.output.is_over() => self.state = LaneState::Closed,
                    Popped::End => {
                        self.state = LaneState::HalfClosed;
                        return Poll::Ready(Some(Ok(TransportEvent::HalfClosed)));
                    }
                },
                LaneState::HalfClosed => {
                    ready!(self.output.poll_over(cx));
                    self.state = LaneState::Closed;
                }
                LaneState::Closed => return Poll::Ready(None),
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

/// The bytes that each frame counts in addition to its own, so that the number of empty frames is limited too.
const FRAME_COST: usize = 64;

/// One direction of a connection within this process. Wakers are called after the lock is released.
#[derive(Debug, Default)]
struct Direction(Mutex<DirectionState>);

#[derive(Debug, Default)]
struct DirectionState {
    frames: VecDeque<Bytes>,
    /// In bytes, with the cost of each frame.
    held: usize,
    /// No frame comes in any more: the sender closed it or was dropped.
    ended: bool,
    /// No frame goes out any more: the reader was dropped.
    forsaken: bool,
    /// The reader was dropped with frames unread.
    frames_lost: bool,
    reader: Option<Waker>,
    /// The sender waits for room for this lane.
    writer: Option<(Lane, Waker)>,
    /// The sender's receiving half, which waits for the end of this direction.
    sibling: Option<Waker>,
}

/// The result of a read.
#[derive(Debug)]
enum Popped {
    Frame(Bytes),
    End,
}

impl Direction {
    fn state(&self) -> MutexGuard<'_, DirectionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next frame.
    fn poll_pop(&self, cx: &mut Context<'_>) -> Poll<Popped> {
        let (body, writer) = {
            let mut state = self.state();
            let Some(body) = state.frames.pop_front() else {
                if state.ended {
                    return Poll::Ready(Popped::End);
                }
                state.reader = Some(cx.waker().clone());
                return Poll::Pending;
            };
            state.held -= body.len() + FRAME_COST;
            let held = state.held;
            (body, state.writer.take_if(|(lane, _)| is_half_empty(*lane, held)))
        };
        if let Some((_, waker)) = writer {
            waker.wake();
        }
        Poll::Ready(Popped::Frame(body))
    }

    /// Waits until a frame of this lane may be pushed. `false`: no frame may be pushed any more.
    fn poll_room(&self, lane: Lane, cx: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.state();
        if state.ended || state.forsaken {
            return Poll::Ready(false);
        }
        if has_room(lane, state.held) {
            return Poll::Ready(true);
        }
        // One task may wait for both lanes. The control lane gets room first.
        let waits_for = match &state.writer {
            Some((Lane::Control, _)) => Lane::Control,
            Some((Lane::Data, _)) | None => lane,
        };
        state.writer = Some((waits_for, cx.waker().clone()));
        Poll::Pending
    }

    /// Takes a frame. `false`: it was not taken, because the direction has ended.
    fn push(&self, body: Bytes) -> bool {
        let reader = {
            let mut state = self.state();
            if state.ended || state.forsaken {
                return false;
            }
            state.held += body.len() + FRAME_COST;
            state.frames.push_back(body);
            state.reader.take()
        };
        if let Some(waker) = reader {
            waker.wake();
        }
        true
    }

    /// Whether nothing can be sent any more.
    fn is_over(&self) -> bool {
        let state = self.state();
        state.ended || state.forsaken
    }

    /// Whether the sender ended, or the reader was dropped with frames unread. A reader that read everything before
    /// lost nothing: the last frame may have asked it to leave.
    fn has_lost_frames(&self) -> bool {
        let state = self.state();
        state.ended || state.frames_lost
    }

    /// Waits until nothing can be sent any more.
    fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.ended || state.forsaken {
            return Poll::Ready(());
        }
        state.sibling = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The sender sends nothing more.
    fn end(&self) {
        self.over(|state| state.ended = true);
    }

    /// The reader is gone. Its unread frames are dropped.
    fn close_reader(&self) {
        let unread = self.over(|state| {
            state.forsaken = true;
            state.frames_lost = !state.frames.is_empty();
            state.held = 0;
            std::mem::take(&mut state.frames)
        });
        drop(unread);
    }

    fn over<T>(&self, change: impl FnOnce(&mut DirectionState) -> T) -> T {
        let (changed, reader, writer, sibling) = {
            let mut state = self.state();
            (change(&mut state), state.reader.take(), state.writer.take(), state.sibling.take())
        };
        for waker in [reader, writer.map(|(_, waker)| waker), sibling].into_iter().flatten() {
            waker.wake();
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Fills it for one lane, and reads until it is empty. Returns how many frames it held, and how many were left when
    /// its sender was woken.
    fn filled_and_read(lane: Lane) -> (usize, usize) {
        let (direction, woken) = (Direction::default(), Arc::<Woken>::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let mut held = 0;
        while direction.poll_room(lane, &mut cx).is_ready() {
            assert!(direction.push(Bytes::from_static(&[b' '; 1024 - FRAME_COST])));
            held += 1;
        }
        let mut left = held;
        let mut left_when_woken = None;
        while left > 0 {
            assert!(matches!(direction.poll_pop(&mut cx), Poll::Ready(Popped::Frame(_))));
            left -= 1;
            if woken.0.load(Ordering::Relaxed) > 0 {
                left_when_woken.get_or_insert(left);
            }
        }
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "a sender that waits is woken once");
        (held, left_when_woken.unwrap())
    }

    #[test]
    fn a_waiting_sender_is_woken_when_half_of_the_buffer_is_free() {
        assert_eq!(filled_and_read(Lane::Data), (33, 16));
        assert_eq!(filled_and_read(Lane::Control), (64, 32));
    }
}
