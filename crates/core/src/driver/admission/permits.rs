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
}

/// Whether an admitted request has a permit of a client of its own. If the request starts in the step of its admission,
/// the permit is passed to its handler. Else it is given back.
#[derive(Debug, Default)]
#[must_use]
pub(crate) enum ClientPermit {
    #[default]
    None,
    Held,
}

impl ClientPermit {
    /// The step of the admission ends.
    pub(crate) fn give_back(self, client: &Client) {
        match self {
            Self::None => {}
            Self::Held => {
                client.give_back(Resource::Running, 1);
            }
        }
    }
}

impl Permits {
    /// The permit of a request that was admitted. Its client has counted it already.
    pub(crate) const fn admitted(&mut self, request_client: RequestClient<'_>) -> ClientPermit {
        self.held += 1;
        match request_client {
            RequestClient::OfConnection(_) => ClientPermit::None,
            RequestClient::OfRequest(_) => ClientPermit::Held,
        }
    }

    /// A handler starts. `permit`: that of its client, if its request was admitted in this step.
    pub(crate) fn starts(
        &mut self,
        admission: &Admission,
        request_client: RequestClient<'_>,
        permit: ClientPermit,
    ) {
        match (request_client, permit) {
            (RequestClient::OfRequest(client), ClientPermit::None) => {
                client.take_anyway(Resource::Running);
            }
            (RequestClient::OfRequest(_), ClientPermit::Held) | (RequestClient::OfConnection(_), _) => {}
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
