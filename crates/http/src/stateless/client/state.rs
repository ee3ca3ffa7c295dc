//! What the tasks of a client share.

use std::ops::Deref;
use std::time::Duration;

use rescind_core::MirroredBodies;
use tokio_util::sync::CancellationToken;

use crate::client::{AbortOnDrop, ClientCore, HttpClient, InFlightTasks, Resets};
use crate::int_map::Numbered;
use crate::stateless::mirror::Mirrors;
use crate::sync::AbortHandle;

/// Streams of HTTP/2 reset at once; then one each [`RESET_EVERY`]. Closing its stream is the only cancel there is here,
/// so a reset is late at worst, and never left out.
const RESETS: u32 = 200;
const RESET_EVERY: Duration = Duration::from_millis(30);

pub(super) struct Client {
    core: ClientCore<State>,
    pub(super) mirrors: Mirrors,
    pub(super) bodies: &'static MirroredBodies,
    /// Before a response says so: giving up may be a reset.
    pub(super) maybe_http2: bool,
}

pub(super) struct State {
    pub(super) in_flight: Numbered<InFlight>,
    pub(super) next: u64,
    /// Requests in flight, those given up among them.
    pub(super) requests: usize,
    pub(super) resets: Resets,
    /// Exchanges that were given up and are about to end: bulk waits for them, or their tasks would run behind its.
    pub(super) leaving: usize,
}

impl State {
    fn new() -> Self {
        let resets = Resets::new(RESETS, RESET_EVERY);
        Self { in_flight: Numbered::default(), next: 0, requests: 0, resets, leaving: 0 }
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
            core: ClientCore::new(client, State::new()),
            mirrors,
            bodies,
            maybe_http2: client.http2 || client.uri.scheme_str() == Some("https"),
        }
    }

    /// Takes a flight out; the driver looks again.
    pub(super) fn land(&self, key: u64) -> Option<InFlight> {
        self.step(|state| {
            let flight = state.in_flight.remove(&key);
            state.requests -= usize::from(flight.as_ref().is_some_and(|flight| flight.asks));
            state.leaving -= usize::from(flight.as_ref().is_some_and(|flight| flight.leaves));
            flight
        })
    }
}

impl Deref for Client {
    type Target = ClientCore<State>;

    fn deref(&self) -> &ClientCore<State> {
        &self.core
    }
}

impl InFlightTasks for State {
    type Tasks = AbortOnDrop;

    fn take_tasks(&mut self) -> AbortOnDrop {
        std::mem::take(&mut self.in_flight).into_values().map(|flight| flight.task).collect()
    }
}
