//! What each client has of a connection that is many clients' at once (stateless HTTP), so that none of them has all its permits and
//! all places of its queue.

use std::collections::BTreeMap;

use super::input::Work;
use crate::id::ClientNumber;

/// The bounds of one client among the others of its connection, beside those of [`Limits`](crate::Limits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientLimits {
    /// Handlers of it running at once. Its further requests wait for one of its own.
    pub running: usize,
    /// Blocking handlers of it running at once.
    pub blocking: usize,
    /// Requests of it waiting. A further one is refused.
    pub queued: usize,
}

impl ClientLimits {
    /// These bounds.
    #[must_use]
    pub const fn new(running: usize, blocking: usize, queued: usize) -> Self {
        Self { running, blocking, queued }
    }
}

/// Who has how much. Whoever has nothing is not in it.
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
