//! Permits of handlers, from the request that is let in to the end of its task.

use crate::clients::{Client, Resource};
use crate::driver::admission::Admission;

/// Whose a request is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whose<'a> {
    /// As all of its connection are.
    Connections(&'a Client),
    /// Its own client's, among others of its connection.
    Own(&'a Client),
}

/// Where the task of a request stands, for the counts a server keeps over all its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    NotStarted,
    Running,
    Draining,
    Ended,
}

/// Permits that a step holds and no handler has: of the request it lets in, and of the handlers that end in it. What starts in
/// the same step has them, and the rest goes back at its end. So one who waited starts in the place of one who ended, and
/// nobody else comes in between.
///
/// Where a connection is one client, they are permits of that client too. Where it is many, a client's own count is changed at
/// once: one who waited may come on top of its client's share, by one for each step at that moment.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    held: usize,
    /// The request that was let in has its client's place still.
    arriving: bool,
}

impl Permits {
    /// The place of a request that was let in.
    pub(crate) const fn admitted(&mut self, whose: Whose<'_>) {
        self.held += 1;
        self.arriving = matches!(whose, Whose::Own(_));
    }

    /// The step of the request that was let in is over: where it did not start, its client has its place back.
    pub(crate) fn arrived(&mut self, client: &Client) {
        if std::mem::take(&mut self.arriving) {
            client.give_back(Resource::Running, 1);
        }
    }

    /// A handler starts; `arrives`: of the request that was let in in this step.
    pub(crate) fn starts(&mut self, admission: &Admission, whose: Whose<'_>, arrives: bool) {
        match whose {
            Whose::Own(_) if arrives && std::mem::take(&mut self.arriving) => {}
            Whose::Own(client) => drop(client.take_anyway(Resource::Running)),
            Whose::Connections(_) => {}
        }
        if let Some(left) = self.held.checked_sub(1) {
            self.held = left;
            return;
        }
        admission.take_anyway();
        if let Whose::Connections(client) = whose {
            client.take_anyway(Resource::Running);
        }
    }

    /// The request of a handler that runs is settled.
    pub(crate) fn drains(
        admission: &Admission,
        (Whose::Connections(client) | Whose::Own(client)): Whose<'_>,
    ) {
        admission.drains(client);
    }

    /// The task of a request is gone.
    pub(crate) fn ends(&mut self, admission: &Admission, whose: Whose<'_>, from: Task) {
        let (Whose::Connections(client) | Whose::Own(client)) = whose;
        match from {
            Task::NotStarted | Task::Ended => return,
            Task::Running => {}
            Task::Draining => admission.drained(client),
        }
        self.held += 1;
        if let Whose::Own(client) = whose {
            client.give_back(Resource::Running, 1);
        }
    }

    /// The step is over; the permits were of this client, where its connection has no other.
    pub(crate) fn give_back(&mut self, admission: &Admission, client: Option<&Client>) {
        if self.held > 0 {
            let permits = std::mem::take(&mut self.held);
            admission.give_back(permits);
            if let Some(client) = client {
                client.give_back(Resource::Running, permits);
            }
        }
    }
}
