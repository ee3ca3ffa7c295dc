//! The received messages that wait for the driver: the receiving half of every link of this crate.
//!
//! # The waker of a body
//!
//! `OwnWaker` spares an HTTP/1.1 connection the turn that hyper gives it whenever a piece of a body is taken.
//!
//! hyper wakes the connection's task so that it reads the next piece. Nothing follows the last piece, which is the first
//! one of nearly every body, but the turn costs a twentieth of an echo. So the wake-ups of a connection that happen
//! while a piece is taken are collected, and are passed on only if the body goes on.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use rescind_core::{ExchangeId, HeldBytes, Inbound, Receiver, TransportError, TransportEvent};
use smallvec::SmallVec;
use tokio::sync::Notify;

use crate::sync::{Mutex, MutexGuard};

/// The most messages that wait.
const MESSAGES: usize = 4096;

/// Received messages and events. Messages are bounded in number and bytes. Events about exchanges need no bound of
/// their own, because the exchanges are bounded.
#[derive(Debug)]
pub(crate) struct InboundQueue {
    state: Mutex<QueueState>,
    /// The most bytes of waiting messages.
    most: usize,
    /// Notified when there is room again.
    room: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    queue: VecDeque<QueuedItem>,
    messages: usize,
    bytes: usize,
    ended: bool,
    /// Whether the driver has dropped its receiver.
    forsaken: bool,
    /// The exchanges of the messages that waited then, and that nobody will read.
    unread: Vec<ExchangeId>,
    /// The exchange of the message that the driver took last, until it asks for the next one: then it has processed it.
    taken: Option<ExchangeId>,
    /// The tasks that wait until the driver has processed the message of an exchange.
    waits: Vec<(ExchangeId, Waker)>,
    reader: Option<Waker>,
    /// Whether a task may wait for room.
    is_awaited: bool,
}

/// An item that waits, with the bytes held for it. After the driver takes the item, it counts them itself.
#[derive(Debug)]
struct QueuedItem {
    item: Result<TransportEvent, TransportError>,
    held: Option<HeldBytes>,
}

impl QueuedItem {
    /// The exchange of a message.
    fn exchange(&self) -> Option<ExchangeId> {
        match &self.item {
            Ok(TransportEvent::Message(inbound)) => Some(inbound.exchange),
            Ok(_) | Err(_) => None,
        }
    }
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendRefused {
    /// Too many messages wait.
    Full,
    /// The link is closed.
    Closed,
}

impl InboundQueue {
    /// An inbound queue with room for two of the largest frames, or many smaller ones.
    pub(crate) fn new(max_frame: usize) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), most: max_frame.saturating_mul(2), room: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a message to the driver.
    pub(crate) fn push(&self, inbound: Inbound, held: HeldBytes) -> Result<(), SendRefused> {
        self.push_under_lock(inbound, held).map(wake)
    }

    /// Same as [`push`](Self::push), for a caller that holds its own lock to keep messages in order. The caller wakes
    /// the returned waker after it releases that lock.
    pub(crate) fn push_under_lock(
        &self,
        inbound: Inbound,
        held: HeldBytes,
    ) -> Result<Option<Waker>, SendRefused> {
        self.try_push(inbound, Some(held)).map_err(|(why, _)| why)
    }

    /// Passes several messages to the driver, all or none. `Full`: there is not room for all.
    pub(crate) fn push_all(&self, messages: Vec<(Inbound, HeldBytes)>) -> Result<(), SendRefused> {
        let reader = {
            let mut state = self.state();
            if state.ended || state.forsaken {
                return Err(SendRefused::Closed);
            }
            let more: usize = messages.iter().map(|(inbound, _)| inbound.body.len()).sum();
            let bytes = state.bytes.saturating_add(more);
            let number = state.messages.saturating_add(messages.len());
            if state.messages > 0 && (number > MESSAGES || bytes > self.most) {
                return Err(SendRefused::Full);
            }
            (state.messages, state.bytes) = (number, bytes);
            for (inbound, held) in messages {
                let item = Ok(TransportEvent::Message(inbound));
                state.queue.push_back(QueuedItem { item, held: Some(held) });
            }
            state.reader.take()
        };
        wake(reader);
        Ok(())
    }

    /// The waker of the driver, so that it polls again.
    pub(crate) fn take_reader(&self) -> Option<Waker> {
        self.state().reader.take()
    }

    /// Waits until there is room for a message, and passes it to the driver.
    ///
    /// # Cancel safety
    /// If the future is dropped while it waits, the message is lost.
    pub(crate) async fn send(&self, inbound: Inbound) -> Result<(), SendRefused> {
        match self.try_push(inbound, None) {
            Ok(reader) => {
                wake(reader);
                Ok(())
            }
            Err((SendRefused::Closed, _)) => Err(SendRefused::Closed),
            Err((SendRefused::Full, back)) => Box::pin(self.send_later(back)).await,
        }
    }

    async fn send_later(&self, mut inbound: Inbound) -> Result<(), SendRefused> {
        loop {
            let room = self.room.notified();
            match self.try_push(inbound, None) {
                Ok(reader) => {
                    wake(reader);
                    return Ok(());
                }
                Err((SendRefused::Closed, _)) => return Err(SendRefused::Closed),
                Err((SendRefused::Full, back)) => inbound = back,
            }
            room.await;
        }
    }

    fn try_push(
        &self,
        inbound: Inbound,
        held: Option<HeldBytes>,
    ) -> Result<Option<Waker>, (SendRefused, Inbound)> {
        let mut state = self.state();
        if state.ended || state.forsaken {
            return Err((SendRefused::Closed, inbound));
        }
        let bytes = state.bytes.saturating_add(inbound.body.len());
        // One message always fits, so that no message waits forever.
        if state.messages > 0 && (state.messages >= MESSAGES || bytes > self.most) {
            state.is_awaited = true;
            return Err((SendRefused::Full, inbound));
        }
        state.messages += 1;
        state.bytes = bytes;
        state.queue.push_back(QueuedItem { item: Ok(TransportEvent::Message(inbound)), held });
        Ok(state.reader.take())
    }

    /// Informs the driver of an event of an exchange. After the end, events are dropped.
    pub(crate) fn push_event(&self, event: TransportEvent) {
        wake(self.add(Ok(event)));
    }

    /// Same as [`push_event`](Self::push_event), for a caller that wakes the driver after it releases its own lock.
    pub(crate) fn push_event_under_lock(&self, event: TransportEvent) -> Option<Waker> {
        self.add(Ok(event))
    }

    /// Ends the input with an error of the whole link, after the waiting messages.
    pub(crate) fn fail(&self, error: TransportError) {
        wake(self.add(Err(error)));
        self.end();
    }

    fn add(&self, item: Result<TransportEvent, TransportError>) -> Option<Waker> {
        let mut state = self.state();
        if state.ended || state.forsaken {
            return None;
        }
        state.queue.push_back(QueuedItem { item, held: None });
        state.reader.take()
    }

    /// Ends the input, after the waiting messages.
    pub(crate) fn end(&self) {
        let reader = {
            let mut state = self.state();
            state.ended = true;
            state.reader.take()
        };
        self.room.notify_waiters();
        wake(reader);
    }

    /// Whether the queue is closed, so that no message is accepted any more.
    pub(crate) fn is_closed(&self) -> bool {
        let state = self.state();
        state.ended || state.forsaken
    }

    /// Takes the message of an exchange back, if the driver has not read it. `true`: the driver never will.
    pub(crate) fn take_back(&self, exchange: ExchangeId) -> bool {
        let taken = {
            let mut state = self.state();
            if state.unread.contains(&exchange) {
                return true;
            }
            let at = state.queue.iter().position(|waiting| waiting.exchange() == Some(exchange));
            let taken = at.and_then(|at| state.queue.remove(at));
            if let Some(QueuedItem { item: Ok(TransportEvent::Message(inbound)), .. }) = &taken {
                state.messages -= 1;
                state.bytes -= inbound.body.len();
            }
            taken
        };
        taken.is_some()
    }

    /// Ready once the driver has processed the message of an exchange. Until then it may end without having read it.
    pub(crate) fn poll_processed(&self, exchange: ExchangeId, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        let is_processed = state.taken != Some(exchange)
            && !state.unread.contains(&exchange)
            && !state.queue.iter().any(|waiting| waiting.exchange() == Some(exchange));
        if is_processed {
            return Poll::Ready(());
        }
        match state.waits.iter_mut().find(|(of, _)| *of == exchange) {
            Some((_, waker)) => waker.clone_from(cx.waker()),
            None => state.waits.push((exchange, cx.waker().clone())),
        }
        Poll::Pending
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        let mut processed = None;
        let (polled, held) = self.poll_waiting(cx, &mut processed);
        wake(processed);
        drop(held);
        polled
    }

    fn poll_waiting(
        &self,
        cx: &mut Context<'_>,
        processed: &mut Option<Waker>,
    ) -> (Poll<Option<Result<TransportEvent, TransportError>>>, Option<HeldBytes>) {
        let mut state = self.state();
        if let Some(taken) = state.taken.take() {
            let at = state.waits.iter().position(|(exchange, _)| *exchange == taken);
            *processed = at.map(|at| state.waits.swap_remove(at).1);
        }
        match state.queue.pop_front() {
            Some(QueuedItem { item, held }) => {
                if let Ok(TransportEvent::Message(inbound)) = &item {
                    state.messages -= 1;
                    state.bytes -= inbound.body.len();
                    state.taken = Some(inbound.exchange);
                    // Only the reading tasks of a client wait here, each for room for its own next message.
                    if std::mem::take(&mut state.is_awaited) {
                        self.room.notify_waiters();
                    }
                }
                (Poll::Ready(Some(item)), held)
            }
            None if state.ended => (Poll::Ready(None), None),
            None => {
                state.reader = Some(cx.waker().clone());
                (Poll::Pending, None)
            }
        }
    }

    fn close(&self) {
        let left = {
            let mut state = self.state();
            state.forsaken = true;
            let left = std::mem::take(&mut state.queue);
            state.unread = left.iter().filter_map(QueuedItem::exchange).collect();
            (left, state.reader.take())
        };
        self.room.notify_waiters();
        drop(left);
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The driver's end of an [`InboundQueue`].
#[derive(Debug)]
pub(crate) struct InboundReceiver(pub(crate) Arc<InboundQueue>);

impl Receiver for InboundReceiver {
    fn poll_event(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        self.0.poll(cx)
    }
}

impl Drop for InboundReceiver {
    fn drop(&mut self) {
        self.0.close();
    }
}

thread_local! {
    /// The connections that were woken while a piece is taken on this thread. `None`: none is taken.
    static WOKEN: RefCell<Option<SmallVec<[Arc<ConnectionWaker>; 1]>>> = const { RefCell::new(None) };
}

/// Wakes the task of one connection.
#[derive(Debug, Default)]
struct ConnectionWaker {
    task: AtomicWaker,
}

impl Wake for ConnectionWaker {
    fn wake(self: Arc<Self>) {
        let kept = WOKEN.with_borrow_mut(|woken| match woken {
            Some(woken) => {
                woken.push(Arc::clone(&self));
                true
            }
            None => false,
        });
        if !kept {
            self.task.wake();
        }
    }
}

/// The waker of one connection.
#[derive(Debug)]
pub(crate) struct OwnWaker {
    connection: Arc<ConnectionWaker>,
    waker: Waker,
}

impl Default for OwnWaker {
    fn default() -> Self {
        let connection = Arc::<ConnectionWaker>::default();
        let waker = Waker::from(Arc::clone(&connection));
        Self { connection, waker }
    }
}

impl OwnWaker {
    /// Polls the connection, so that it is woken with this waker.
    pub(crate) fn poll<F: Future + Unpin>(&self, connection: &mut F, cx: &Context<'_>) -> Poll<F::Output> {
        self.connection.task.register(cx.waker());
        Pin::new(connection).poll(&mut Context::from_waker(&self.waker))
    }
}

/// Takes the next piece of a body of HTTP/1.1.
pub(crate) fn poll_piece(
    body: &mut Incoming,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
    WOKEN.set(Some(SmallVec::new()));
    let piece = Pin::new(&mut *body).poll_frame(cx);
    let woken = WOKEN.take().unwrap_or_default();
    if !body.is_end_stream() {
        woken.into_iter().for_each(|connection| connection.task.wake());
    }
    piece
}

/// Wakers to be called after the lock is released. Usually there is only one, which needs no allocation.
#[derive(Debug, Default)]
pub(crate) struct WakeList(SmallVec<[Waker; 1]>);

impl WakeList {
    /// `extend` of the list would do the same, but reserves first, and most steps add nothing.
    pub(crate) fn add(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.0.push(waker);
        }
    }

    pub(crate) fn wake(self) {
        if !self.0.is_empty() {
            self.0.into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use rescind_core::ByteBudget;

    use super::*;

    // Such a request has not begun and never will: its client gets 404, and may send it in a new session.
    #[tokio::test]
    async fn a_message_can_be_taken_back_unless_the_driver_has_read_it() {
        let queue = InboundQueue::new(1024);
        let mut receiver = InboundReceiver(Arc::clone(&queue));
        for number in [1, 2, 3, 4] {
            let mut inbound = Inbound::new(Bytes::from_static(b"{}"));
            inbound.exchange = ExchangeId(number);
            queue.push(inbound, ByteBudget::new(1024).hold(2)).unwrap();
        }
        assert!(queue.take_back(ExchangeId(2)) && !queue.take_back(ExchangeId(2)));
        assert!(!queue.take_back(ExchangeId(5)), "nobody sent it");
        queue.end();
        for number in [1, 3] {
            let read = std::future::poll_fn(|cx| Pin::new(&mut receiver).poll_event(cx)).await;
            let Some(Ok(TransportEvent::Message(inbound))) = read else { panic!("{read:?}") };
            assert_eq!(inbound.exchange, ExchangeId(number));
            assert!(!queue.take_back(inbound.exchange), "it may have begun");
        }
        drop(receiver);
        assert!(queue.take_back(ExchangeId(4)), "the driver left it");
        assert!(!queue.take_back(ExchangeId(3)));
    }
}
