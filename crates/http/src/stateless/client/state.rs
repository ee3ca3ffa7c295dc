//! The state that the tasks of a client share.

use std::ops::Deref;
use std::time::Duration;

use rescind_core::MirroredBodies;
use tokio_util::sync::CancellationToken;

use crate::client::{AbortOnDrop, ClientCore, HttpClient, InFlightTasks, Resets};
use crate::int_map::IntMap;
use crate::stateless::mirror::Mirrors;
use crate::sync::AbortHandle;

/// The most HTTP/2 streams that are reset at once. After that, one stream is reset each [`RESET_EVERY`]. The only
/// cancel of this binding is to close a stream, so a reset may be late but is never omitted.
const RESETS: u32 = 200;
const RESET_EVERY: Duration = Duration::from_millis(30);

pub(super) struct Client {
    core: ClientCore<State>,
    pub(super) mirrors: Mirrors,
    pub(super) bodies: &'static MirroredBodies,
    /// Whether the connection may use HTTP/2, before a response shows its version. With HTTP/2, a cancel may be a
    /// reset.
    pub(super) maybe_http2: bool,
}

pub(super) struct State {
    pub(super) in_flight: IntMap<InFlight>,
    pub(super) next: u64,
    /// Requests in flight, including abandoned ones.
    pub(super) requests: usize,
    pub(super) resets: Resets,
    /// Abandoned exchanges that are about to end. Data frames wait for them; otherwise the tasks of those frames would
    /// run before theirs.
    pub(super) leaving: usize,
}

impl State {
    fn new() -> Self {
        let resets = Resets::new(RESETS, RESET_EVERY);
        Self { in_flight: IntMap::default(), next: 0, requests: 0, resets, leaving: 0 }
    }
}

/// A POST in flight, until its response has ended.
pub(super) struct InFlight {
    pub(super) task: AbortHandle,
    /// Whether it is a request.
    pub(super) asks: bool,
    /// Whether the head of its response has arrived.
    pub(super) headed: bool,
    /// Whether it counts in `leaving`.
    pub(super) leaves: bool,
    pub(super) given_up: CancellationToken,
}

impl InFlight {
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.is_cancelled()
    }

    /// Whether it must still reach the server although no answer is expected.
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

    /// Removes a POST from the ones in flight and wakes the driver.
    pub(super) fn remove(&self, key: u64) -> Option<InFlight> {
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
