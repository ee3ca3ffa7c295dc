//! A wire that a test can stop, in one direction or both, and cut.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use rescind::transport::{
    CloseReason, ExchangeEnd, ExchangeId, Lane, Link, Outbound, Receiver, RejectReason, Sender,
    TransportError, TransportErrorKind, TransportEvent, Unsupported,
};

/// The handle of a wire that can be stopped and cut. Everything else passes unchanged.
#[derive(Clone)]
pub(crate) struct StoppableLink(Arc<Mutex<State>>);

struct State {
    rx: Option<Pin<Box<dyn Receiver>>>,
    tx: Option<Pin<Box<dyn Sender>>>,
    reads: bool,
    writes: bool,
    wakers: [Option<Waker>; 2],
}

const READING: usize = 0;
const WRITING: usize = 1;

impl StoppableLink {
    /// The link with a valve that is open.
    pub(crate) fn new(link: Link) -> (Self, Link) {
        let state = State { rx: None, tx: None, reads: true, writes: true, wakers: [None, None] };
        let valve = Self(Arc::new(Mutex::new(state)));
        let link = link.wrap(|rx, tx| {
            let mut state = valve.state();
            (state.rx, state.tx) = (Some(rx), Some(tx));
            (Reading(valve.clone()), Writing(valve.clone()))
        });
        (valve, link)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let wakers = {
            let mut state = self.state();
            change(&mut state);
            std::mem::take(&mut state.wakers)
        };
        for waker in wakers.into_iter().flatten() {
            waker.wake();
        }
    }

    /// This end stops reading from the wire.
    pub(crate) fn stop_reading(&self) {
        self.change(|state| state.reads = false);
    }

    /// This end reads again.
    pub(crate) fn read_again(&self) {
        self.change(|state| state.reads = true);
    }

    /// This end stops writing to the wire.
    pub(crate) fn stop_writing(&self) {
        self.change(|state| state.writes = false);
    }

    /// This end is gone at once, and its driver gets an error. It is dropped without a close. If the drop itself
    /// sends a message, as over HTTP, whose client sends a DELETE, a test can cut the [`CuttableTcp`](crate::cuttable_tcp::Line)
    /// first.
    pub(crate) fn cut(&self) {
        let mut halves = None;
        self.change(|state| halves = Some((state.rx.take(), state.tx.take())));
        drop(halves);
    }
}

fn gone() -> TransportError {
    TransportError::new(TransportErrorKind::Io, "the test cut the wire")
}

struct Reading(StoppableLink);

impl Receiver for Reading {
    fn poll_event(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        let mut state = self.0.state();
        state.wakers[READING] = Some(cx.waker().clone());
        let reads = state.reads;
        match &mut state.rx {
            None => Poll::Ready(Some(Err(gone()))),
            Some(_) if !reads => Poll::Pending,
            Some(rx) => rx.as_mut().poll_event(cx),
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let rx = self.0.state().rx.take();
        drop(rx);
    }
}

struct Writing(StoppableLink);

impl Writing {
    fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut (dyn Sender + 'static)>, &mut Context<'_>) -> Poll<Result<T, TransportError>>,
    ) -> Poll<Result<T, TransportError>> {
        let mut state = self.0.state();
        state.wakers[WRITING] = Some(cx.waker().clone());
        let writes = state.writes;
        match &mut state.tx {
            None => Poll::Ready(Err(gone())),
            Some(_) if !writes => Poll::Pending,
            Some(tx) => poll(tx.as_mut(), cx),
        }
    }

    fn with<T>(&self, or: T, act: impl FnOnce(Pin<&mut dyn Sender>) -> T) -> T {
        match &mut self.0.state().tx {
            None => or,
            Some(tx) => act(tx.as_mut()),
        }
    }
}

impl Sender for Writing {
    fn poll_ready(
        self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.poll(cx, |tx, cx| tx.poll_ready(lane, cx))
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        self.with(Err(gone()), |tx| tx.start_send(out))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        self.poll(cx, Sender::poll_flush)
    }

    fn begin_exchange(self: Pin<&mut Self>, exchange: ExchangeId) {
        self.with((), |tx| tx.begin_exchange(exchange));
    }

    fn note_rejection(self: Pin<&mut Self>, exchange: ExchangeId, fault: RejectReason) {
        self.with((), |tx| tx.note_rejection(exchange, fault));
    }

    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
        self.with((), |tx| tx.finish_exchange(exchange, how));
    }

    fn abort_exchange(self: Pin<&mut Self>, exchange: ExchangeId) -> Result<(), Unsupported> {
        self.with(Err(Unsupported), |tx| tx.abort_exchange(exchange))
    }

    fn poll_close(
        self: Pin<&mut Self>,
        why: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.poll(cx, |tx, cx| tx.poll_close(why, cx))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let tx = self.0.state().tx.take();
        drop(tx);
    }
}
