//! What each client uses of a connection that carries several clients (stateless HTTP), so that no client uses all its
//! permits and all places of its queue.

use std::collections::BTreeMap;

use super::input::Work;
use crate::id::ClientNumber;

/// The limits of one client on a connection that carries several clients, in addition to those of
/// [`Limits`](crate::Limits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientLimits {
    /// The most handlers of the client that run at once. Its further requests wait for one of its own permits.
    pub running: usize,
    /// The most blocking handlers of the client that run at once.
    pub blocking: usize,
    /// The most requests of the client that wait. Further ones are refused.
    pub queued: usize,
}

impl ClientLimits {
    /// Limits with these values.
    #[must_use]
    pub const fn new(running: usize, blocking: usize, queued: usize) -> Self {
        Self { running, blocking, queued }
    }
}

/// What each client uses. A client that uses nothing is not in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares {
    most: Option<ClientLimits>,
    held: BTreeMap<ClientNumber, Holds>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Holds {
    tasks: usize,
    blocking: usize,
    queued: usize,
}

impl Shares {
    pub(super) fn new(most: Option<ClientLimits>) -> Self {
        Self { most, held: BTreeMap::new() }
    }

    pub(super) fn has_room(&self, client: Option<ClientNumber>, work: Work) -> bool {
        let (Some(most), Some(client)) = (self.most, client) else { return true };
        let holds = self.held.get(&client).copied().unwrap_or_default();
        let all = holds.tasks + holds.blocking;
        match work {
            Work::Task => all < most.running,
            Work::Blocking => all < most.running && holds.blocking < most.blocking,
        }
    }

    pub(super) fn may_wait(&self, client: Option<ClientNumber>) -> bool {
        let (Some(most), Some(client)) = (self.most, client) else { return true };
        self.held.get(&client).is_none_or(|holds| holds.queued < most.queued)
    }

    pub(super) fn starts(&mut self, client: Option<ClientNumber>, work: Work) {
        self.change(client, |holds| *holds.permits(work) += 1);
    }

    pub(super) fn ends(&mut self, client: Option<ClientNumber>, work: Work) {
        self.change(client, |holds| *holds.permits(work) -= 1);
    }

    pub(super) fn waits(&mut self, client: Option<ClientNumber>) {
        self.change(client, |holds| holds.queued += 1);
    }

    pub(super) fn waited(&mut self, client: Option<ClientNumber>) {
        self.change(client, |holds| holds.queued -= 1);
    }

    fn change(&mut self, client: Option<ClientNumber>, change: impl FnOnce(&mut Holds)) {
        let (Some(_), Some(client)) = (self.most, client) else { return };
        let holds = self.held.entry(client).or_default();
        change(holds);
        if *holds == Holds::default() {
            self.held.remove(&client);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

impl Holds {
    const fn permits(&mut self, work: Work) -> &mut usize {
        match work {
            Work::Task => &mut self.tasks,
            Work::Blocking => &mut self.blocking,
        }
    }
}
