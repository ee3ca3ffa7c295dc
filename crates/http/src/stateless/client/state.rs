//! What the tasks of a client share.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Duration;

use rescind_core::MirroredBodies;
use tokio_util::sync::CancellationToken;

use crate::client::{HttpClient, Requester, Resets};
use crate::inbound_queue::InboundQueue;
use crate::int_map::Numbered;
use crate::stateless::mirror::Mirrors;
use crate::sync::{AbortHandle, Mutex, MutexGuard};

/// Streams of HTTP/2 reset at once; then one each [`RESET_EVERY`]. Closing its stream is the only cancel there is here, so
/// a reset is late at worst, and never left out.
const RESETS: u32 = 200;
const RESET_EVERY: Duration = Duration::from_millis(30);

pub(super) struct Client {
    pub(super) requester: Requester,
    pub(super) inbound_queue: Arc<InboundQueue>,
    pub(super) max_frame: usize,
    pub(super) mirrors: Mirrors,
    pub(super) bodies: &'static MirroredBodies,
    /// Before a response says so: giving up may be a reset.
    pub(super) maybe_http2: bool,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) in_flight: Numbered<InFlight>,
    pub(super) next: u64,
    /// Requests in flight, those given up among them.
    pub(super) requests: usize,
    pub(super) resets: Resets,
    /// Exchanges that were given up and are about to end: bulk waits for them, or their tasks would run behind its.
    pub(super) leaving: usize,
    pub(super) closed: bool,
    pub(super) driver: Option<Waker>,
}

impl State {
    fn new() -> Self {
        let resets = Resets::new(RESETS, RESET_EVERY);
        Self {
            in_flight: Numbered::default(),
            next: 0,
            requests: 0,
            resets,
            leaving: 0,
            closed: false,
            driver: None,
        }
    }
}

/// A POST on its way, until its response has ended.
pub(super) struct InFlight {
    pub(super) task: AbortHandle,
    /// Of a request.
    pub(super) asks: bool,
    /// The head of its response is there.
    pub(super) headed: bool,
    /// It counts among those that are leaving.
    pub(super) leaves: bool,
    pub(super) given_up: CancellationToken,
}

impl InFlight {
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.is_cancelled()
    }

    /// It is owed nothing and has yet to reach the server.
    pub(super) fn has_to_arrive(&self) -> bool {
        if self.asks { self.is_given_up() && !self.headed } else { true }
    }
}

impl Client {
    pub(super) fn new(client: &HttpClient, mirrors: Mirrors, bodies: &'static MirroredBodies) -> Self {
        Self {
            requester: Requester::new(client),
            inbound_queue: InboundQueue::new(client.max_frame),
            max_frame: client.max_frame,
            mirrors,
            bodies,
            maybe_http2: client.http2 || client.uri.scheme_str() == Some("https"),
            state: Mutex::new(State::new()),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a flight out; the driver looks again.
    pub(super) fn land(&self, key: u64) -> Option<InFlight> {
        let (flight, waker) = {
            let mut state = self.state();
            let flight = state.in_flight.remove(&key);
            state.requests -= usize::from(flight.as_ref().is_some_and(|flight| flight.asks));
            state.leaving -= usize::from(flight.as_ref().is_some_and(|flight| flight.leaves));
            (flight, state.driver.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        flight
    }

    pub(super) fn close(&self) {
        let in_flight = {
            let mut state = self.state();
            state.closed = true;
            std::mem::take(&mut state.in_flight)
        };
        for flight in in_flight.into_values() {
            flight.task.abort();
        }
        self.inbound_queue.end();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("requester", &self.requester).finish_non_exhaustive()
    }
}
