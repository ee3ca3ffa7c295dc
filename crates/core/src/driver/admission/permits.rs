//! Permits of handlers, from the admission of a request to the end of its task.

use crate::clients::{Client, Resource};
use crate::driver::admission::Admission;

/// The client of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestClient<'a> {
    /// The client of its connection.
    OfConnection(&'a Client),
    /// A client of its own: the connection carries several clients.
    OfRequest(&'a Client),
}

/// The state of a request's task, for the counts of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    NotStarted,
    Running,
    Draining,
    Ended,
}

/// Permits that a step holds and no handler has: that of the request it admits, and those of the handlers that end in
/// it. Requests that start in the same step take them, and the rest is given back at its end. So a request that waited
/// takes the permit of one that ended, and no other request can take it in between.
///
/// If the connection has one client, they are permits of that client too. If it carries several, a client's count
/// changes at once, and a request that waited may exceed its client's share by one for each concurrent step.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    held: usize,
    /// The admitted request still has its client's permit.
    arriving: bool,
}

impl Permits {
    /// The permit of a request that was admitted.
    pub(crate) const fn admitted(&mut self, request_client: RequestClient<'_>) {
        self.held += 1;
        self.arriving = matches!(request_client, RequestClient::OfRequest(_));
    }

    /// The step of the admitted request ends. If the request did not start, its client gets the permit back.
    pub(crate) fn arrived(&mut self, client: &Client) {
        if std::mem::take(&mut self.arriving) {
            client.give_back(Resource::Running, 1);
        }
    }

    /// A handler starts. `arrives`: its request was admitted in this step.
    pub(crate) fn starts(&mut self, admission: &Admission, request_client: RequestClient<'_>, arrives: bool) {
        match request_client {
            RequestClient::OfRequest(_) if arrives && std::mem::take(&mut self.arriving) => {}
            RequestClient::OfRequest(client) => drop(client.take_anyway(Resource::Running)),
            RequestClient::OfConnection(_) => {}
        }
        if let Some(left) = self.held.checked_sub(1) {
            self.held = left;
            return;
        }
        admission.take_anyway();
        if let RequestClient::OfConnection(client) = request_client {
            client.take_anyway(Resource::Running);
        }
    }

    /// The request of a running handler is settled.
    pub(crate) fn drains(
        admission: &Admission,
        (RequestClient::OfConnection(client) | RequestClient::OfRequest(client)): RequestClient<'_>,
    ) {
        admission.drains(client);
    }

    /// The task of a request has ended.
    pub(crate) fn ends(&mut self, admission: &Admission, request_client: RequestClient<'_>, from: Task) {
        let (RequestClient::OfConnection(client) | RequestClient::OfRequest(client)) = request_client;
        match from {
            Task::NotStarted | Task::Ended => return,
            Task::Running => {}
            Task::Draining => admission.drained(client),
        }
        self.held += 1;
        if let RequestClient::OfRequest(client) = request_client {
            client.give_back(Resource::Running, 1);
        }
    }

    /// How many are left at the end of a step.
    pub(crate) const fn held(&self) -> usize {
        self.held
    }

    /// The step ends with permits left. `client`: the client of the connection, if it carries only one.
    pub(crate) fn give_back(&mut self, admission: &Admission, client: Option<&Client>) {
        let permits = std::mem::take(&mut self.held);
        admission.give_back(permits);
        if let Some(client) = client {
            client.give_back(Resource::Running, permits);
        }
    }
}
