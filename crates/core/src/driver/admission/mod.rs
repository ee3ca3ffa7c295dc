//! The counts of a server over all its connections. A client cannot reset them by reconnecting.

pub(crate) mod connection_slots;
pub(crate) mod counts;
pub(crate) mod limits;
pub(crate) mod permits;
pub(crate) mod session_permit;

use std::sync::{Arc, PoisonError, Weak};

use crate::byte_budget::ByteBudget;
use crate::clients::{Client, Clients, Resource, Share};
use crate::driver::admission::connection_slots::ConnectionSlots;
use crate::driver::admission::limits::ServerLimits;
use crate::driver::request_log::log::RequestLog;
use crate::driver::request_log::shared::Shared;
use crate::machine::{ClientLimits, Limits};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// The counts that [`ServerLimits`] bounds. A connection without a server has its own, without limits.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) limits: ServerLimits,
    pub(crate) clients: Clients,
    /// Permits in use: each handler has one until its task ends, and each request that is about to start.
    alive: AtomicUsize,
    draining: AtomicUsize,
    /// The part of `draining` that counts for other clients: of each client up to its share.
    draining_shared: AtomicUsize,
    sessions: AtomicUsize,
    pub(crate) slots: ConnectionSlots,
    /// The log that records all connections, while anyone reads it.
    request_log: Mutex<Weak<Shared>>,
}

impl Admission {
    pub(crate) fn new(limits: ServerLimits) -> Self {
        Self {
            limits,
            clients: Clients::with_budget(
                limits.client_share,
                limits.ipv6_prefix,
                ByteBudget::new(limits.max_memory_bytes),
            ),
            alive: AtomicUsize::new(0),
            draining: AtomicUsize::new(0),
            draining_shared: AtomicUsize::new(0),
            sessions: AtomicUsize::new(0),
            slots: ConnectionSlots::default(),
            request_log: Mutex::new(Weak::new()),
        }
    }

    /// No limits except the bytes of these clients. If a connection carries several clients, each may use its share of
    /// the connection's limits.
    pub(crate) fn among(clients: Clients) -> Self {
        let unbounded = Self::unbounded();
        let limits = ServerLimits { client_share: clients.share(), ..unbounded.limits };
        Self { limits, clients, ..unbounded }
    }

    pub(crate) fn unbounded() -> Self {
        Self::new(ServerLimits {
            max_running_handlers: usize::MAX,
            max_draining_handlers: usize::MAX,
            max_connections: usize::MAX,
            max_memory_bytes: usize::MAX,
            client_share: Share::ALL,
            ..ServerLimits::default()
        })
    }

    /// The limits of one client on a connection that carries several clients.
    pub(crate) fn limits_of_one(&self, limits: &Limits) -> Option<ClientLimits> {
        let share = self.limits.client_share;
        let of_one = || {
            ClientLimits::new(
                share.of(limits.max_running_handlers),
                share.of(limits.max_blocking_handlers),
                share.of(limits.max_queued_requests),
            )
        };
        (!share.is_all()).then(of_one)
    }

    /// Admits one more request of this client and takes a permit for its handler. The error names the limit that is
    /// reached.
    pub(crate) fn admit(&self, client: &Client) -> Result<(), &'static str> {
        // The limit is a threshold: at the limit one more request is admitted.
        if self.draining_shared.load(Ordering::Relaxed) > self.limits.max_draining_handlers {
            return Err("server_draining");
        }
        if client.held(Resource::Draining) > self.draining_of_one() {
            return Err("client_draining");
        }
        if !client.take(Resource::Running, self.limits.max_running_handlers) {
            let is_full = self.alive() >= self.limits.max_running_handlers;
            return Err(if is_full { "server_running" } else { "client_running" });
        }
        let take = |alive: usize| (alive < self.limits.max_running_handlers).then_some(alive + 1);
        let taken = self.alive.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map(drop).map_err(|_| {
            client.give_back(Resource::Running, 1);
            "server_running"
        })
    }

    /// A handler starts for which no permit was taken.
    pub(crate) fn take_anyway(&self) {
        self.alive.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn give_back(&self, permits: usize) {
        self.alive.fetch_sub(permits, Ordering::Relaxed);
    }

    pub(crate) fn drains(&self, client: &Client) {
        self.draining.fetch_add(1, Ordering::Relaxed);
        if client.take_anyway(Resource::Draining) < self.draining_counted() {
            self.draining_shared.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn drained(&self, client: &Client) {
        self.draining.fetch_sub(1, Ordering::Relaxed);
        if client.give_back(Resource::Draining, 1) <= self.draining_counted() {
            self.draining_shared.fetch_sub(1, Ordering::Relaxed);
        }
    }

    const fn draining_of_one(&self) -> usize {
        self.limits.client_share.of(self.limits.max_draining_handlers)
    }

    /// How many draining handlers of one client count for other clients.
    const fn draining_counted(&self) -> usize {
        if self.limits.client_share.is_all() { usize::MAX } else { self.draining_of_one() }
    }

    /// Counts one more connection, if the limits allow it.
    pub(crate) fn open_session(&self, client: &Arc<Client>) -> bool {
        if !client.take(Resource::Sessions, self.limits.max_connections) {
            return false;
        }
        let open = |open: usize| (open < self.limits.max_connections).then_some(open + 1);
        let opened = self.sessions.fetch_update(Ordering::AcqRel, Ordering::Relaxed, open).is_ok();
        if !opened {
            client.give_back(Resource::Sessions, 1);
        }
        opened
    }

    pub(crate) fn close_session(&self, client: &Client) {
        client.give_back(Resource::Sessions, 1);
        self.sessions.fetch_sub(1, Ordering::AcqRel);
    }

    /// The log that records all connections.
    pub(crate) fn request_log(&self) -> Option<RequestLog> {
        self.kept_log().upgrade().map(RequestLog::of)
    }

    /// The log that records all connections, from now on if there was none.
    pub(crate) fn record_requests(&self) -> RequestLog {
        let log = {
            let mut kept = self.kept_log();
            if let Some(log) = kept.upgrade() {
                return RequestLog::of(log);
            }
            let log = RequestLog::new();
            *kept = Arc::downgrade(log.shared());
            log
        };
        self.slots.record_in(&log);
        log
    }

    fn kept_log(&self) -> MutexGuard<'_, Weak<Shared>> {
        self.request_log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn alive(&self) -> usize {
        self.alive.load(Ordering::Relaxed)
    }

    pub(crate) fn draining(&self) -> usize {
        self.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::admission::permits::{ClientPermit, Permits, RequestClient, Task};

    fn of(limits: ServerLimits) -> Admission {
        Admission::new(ServerLimits { client_share: Share::ALL, ..limits })
    }

    fn two() -> Admission {
        of(ServerLimits { max_running_handlers: 2, ..ServerLimits::default() })
    }

    fn any_client(admission: &Admission) -> Arc<Client> {
        admission.clients.client(None, None)
    }

    #[test]
    fn requests_admitted_concurrently_hold_a_permit_each() {
        let admission = two();
        let client = any_client(&admission);
        // None of them has started: each connection takes its step when it gets the processor.
        let admitted = [(); 3].map(|()| admission.admit(&client));
        assert_eq!(
            admitted,
            [Ok(()), Ok(()), Err("server_running")],
            "I10: over the limit of all connections"
        );
    }

    #[test]
    fn a_queued_request_takes_the_permit_of_a_handler_that_ended() {
        let admission = two();
        let client = any_client(&admission);
        let request_client = RequestClient::OfConnection(&client);
        let (mut here, mut there) = (Permits::default(), Permits::default());
        for permits in [&mut here, &mut there] {
            assert_eq!(admission.admit(&client), Ok(()));
            let permit = permits.admitted(request_client);
            permits.starts(&admission, request_client, permit);
            permits.give_back(&admission, Some(&client));
        }
        // In one step a handler ends here and the next one starts. Meanwhile a request arrives elsewhere.
        Permits::drains(&admission, request_client);
        here.ends(&admission, request_client, Task::Draining);
        assert_eq!(
            admission.admit(&client),
            Err("server_running"),
            "I10: it took the permit of a queued request"
        );
        here.starts(&admission, request_client, ClientPermit::None);
        here.give_back(&admission, Some(&client));
        assert_eq!(admission.admit(&client), Err("server_running"));
        // If no request waits, the permit is free for all.
        here.ends(&admission, request_client, Task::Running);
        here.give_back(&admission, Some(&client));
        assert_eq!((admission.alive(), client.held(Resource::Running)), (1, 1));
        assert_eq!(admission.admit(&client), Ok(()));
    }

    #[test]
    fn a_request_that_is_queued_or_refused_holds_no_permit() {
        let admission = two();
        let client = any_client(&admission);
        let mut permits = Permits::default();
        for request_client in [RequestClient::OfConnection(&client), RequestClient::OfRequest(&client)] {
            for _ in 0..10 {
                assert_eq!(admission.admit(&client), Ok(()));
                permits.admitted(request_client).give_back(&client);
                permits.give_back(
                    &admission,
                    matches!(request_client, RequestClient::OfConnection(_)).then_some(&*client),
                );
            }
            assert_eq!(
                (admission.alive(), client.held(Resource::Running)),
                (0, 0),
                "I3: a permit was not released"
            );
        }
    }

    #[test]
    fn requests_of_many_clients_on_one_connection_are_counted_for_each() {
        let admission = two();
        let (one, other) = (any_client(&admission), any_client(&admission));
        let mut permits = Permits::default();
        for client in [&one, &other] {
            assert_eq!(admission.admit(client), Ok(()));
            let permit = permits.admitted(RequestClient::OfRequest(client));
            permits.starts(&admission, RequestClient::OfRequest(client), permit);
            permits.give_back(&admission, None);
        }
        let held = || (admission.alive(), one.held(Resource::Running), other.held(Resource::Running));
        assert_eq!(held(), (2, 1, 1));
        // A request of the first client ends, and a waiting request of the other client starts with its permit.
        permits.ends(&admission, RequestClient::OfRequest(&one), Task::Running);
        permits.starts(&admission, RequestClient::OfRequest(&other), ClientPermit::None);
        permits.give_back(&admission, None);
        assert_eq!(held(), (2, 0, 2));
        for _ in 0..2 {
            permits.ends(&admission, RequestClient::OfRequest(&other), Task::Running);
        }
        permits.give_back(&admission, None);
        assert_eq!(held(), (0, 0, 0), "I3: a permit was not released");
    }

    #[test]
    fn draining_handlers_count_until_they_end() {
        let admission = of(ServerLimits { max_draining_handlers: 0, ..ServerLimits::default() });
        let client = any_client(&admission);
        let request_client = RequestClient::OfConnection(&client);
        let mut permits = Permits::default();
        permits.starts(&admission, request_client, ClientPermit::None);
        Permits::drains(&admission, request_client);
        assert_eq!(admission.admit(&client), Err("server_draining"));
        permits.ends(&admission, request_client, Task::Draining);
        permits.give_back(&admission, Some(&client));
        let left = (admission.alive(), admission.draining(), client.held(Resource::Running));
        assert_eq!((admission.admit(&client), left), (Ok(()), (0, 0, 0)));
    }

    #[test]
    fn a_client_that_drains_more_than_its_share_is_refused_and_others_are_not() {
        let admission = Admission::new(ServerLimits { max_draining_handlers: 10, ..ServerLimits::default() });
        let [deaf, deafer, other] = [(); 3].map(|()| any_client(&admission));
        let drain = |client: &Client, handlers: usize| {
            (0..handlers).for_each(|_| Permits::drains(&admission, RequestClient::OfConnection(client)));
        };
        drain(&deaf, 5);
        assert_eq!(admission.admit(&deaf), Ok(()), "at its share");
        drain(&deaf, 123);
        assert_eq!((admission.admit(&deaf), admission.admit(&other)), (Err("client_draining"), Ok(())));
        drain(&deafer, 128);
        assert_eq!((admission.admit(&deafer), admission.admit(&other)), (Err("client_draining"), Ok(())));
        drain(&other, 1);
        assert_eq!(admission.admit(&other), Err("server_draining"), "I11: all of them together");
        let mut permits = Permits::default();
        let mut end = |client: &Client, handlers: usize| {
            (0..handlers)
                .for_each(|_| permits.ends(&admission, RequestClient::OfRequest(client), Task::Draining));
        };
        for client in [&deaf, &deafer, &other] {
            client.take_anyway(Resource::Running);
            for _ in 0..128 {
                client.take_anyway(Resource::Running);
            }
        }
        end(&deaf, 123);
        assert_eq!(admission.draining_shared.load(Ordering::Relaxed), 11);
        end(&deaf, 5);
        end(&deafer, 128);
        end(&other, 1);
        assert_eq!((admission.draining(), admission.draining_shared.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn no_client_runs_more_than_its_share_regardless_of_arrival_order() {
        let admission = Admission::new(ServerLimits { max_running_handlers: 4, ..ServerLimits::default() });
        let [first, second, third] = [(); 3].map(|()| any_client(&admission));
        let admitted = [&first, &first, &first, &second, &second, &second, &third];
        assert_eq!(
            admitted.map(|client| admission.admit(client)),
            [
                Ok(()),
                Ok(()),
                Err("client_running"),
                Ok(()),
                Ok(()),
                Err("server_running"),
                Err("server_running")
            ]
        );
        assert_eq!(third.held(Resource::Running), 0, "one that is refused holds nothing");
    }

    #[test]
    fn connections_never_exceed_the_limit() {
        let admission = of(ServerLimits { max_connections: 2, ..ServerLimits::default() });
        let client = any_client(&admission);
        assert_eq!([(); 3].map(|()| admission.open_session(&client)), [true, true, false]);
        admission.close_session(&client);
        assert_eq!([(); 2].map(|()| admission.open_session(&client)), [true, false], "one was closed");
    }
}
