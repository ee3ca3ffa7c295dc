//! The counts of a server over all its connections. A client cannot reset them by reconnecting.

pub(crate) mod connection_slots;

use std::cmp::Reverse;
use std::fmt;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use crate::byte_budget::ByteBudget;
use crate::clients::{Client, Clients, DEFAULT_IPV6_PREFIX, Resource, Share};
use crate::driver::admission::connection_slots::{
    ConnectionSlot, ConnectionSlots, EndReason, OpenConnection,
};
use crate::driver::request_log::{RequestLog, Shared};
use crate::machine::limits::{control_handlers, limits};
use crate::machine::{ClientLimits, Limits, Work};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// The counts that [`ServerLimits`] bounds. A connection without a server has its own, without limits.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) limits: ServerLimits,
    pub(crate) clients: Clients,
    /// Permits in use: each handler has one until its task ends, and each request that is about to start.
    permits_in_use: AtomicUsize,
    draining: AtomicUsize,
    /// The part of `draining` that counts for other clients: of each client up to its share.
    draining_shared: AtomicUsize,
    connections: AtomicUsize,
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
            permits_in_use: AtomicUsize::new(0),
            draining: AtomicUsize::new(0),
            draining_shared: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
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
    pub(crate) fn admit(&self, client: &Client, work: Work) -> Result<(), &'static str> {
        let running = self.limits.max_running_handlers;
        if work == Work::Control {
            // It may end what is above the limits.
            return self.take(client, running.saturating_add(control_handlers(running)));
        }
        // The limit is a threshold: at the limit one more request is admitted.
        if self.draining_shared.load(Ordering::Relaxed) > self.limits.max_draining_handlers {
            return Err("server_draining");
        }
        if client.held(Resource::Draining) > self.draining_of_one() {
            return Err("client_draining");
        }
        self.take(client, running)
    }

    /// Takes one of so many permits.
    fn take(&self, client: &Client, running: usize) -> Result<(), &'static str> {
        if !client.take(Resource::Running, running) {
            return Err(if self.permits_in_use() >= running { "server_running" } else { "client_running" });
        }
        let take = |used: usize| (used < running).then_some(used + 1);
        let taken = self.permits_in_use.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map(drop).map_err(|_| {
            client.give_back(Resource::Running, 1);
            "server_running"
        })
    }

    /// A handler starts for which no permit was taken.
    pub(crate) fn take_anyway(&self) {
        self.permits_in_use.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn give_back(&self, permits: usize) {
        self.permits_in_use.fetch_sub(permits, Ordering::Relaxed);
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
    pub(crate) fn open_connection(&self, client: &Arc<Client>) -> bool {
        if !client.take(Resource::Sessions, self.limits.max_connections) {
            return false;
        }
        let open = |open: usize| (open < self.limits.max_connections).then_some(open + 1);
        let opened = self.connections.fetch_update(Ordering::AcqRel, Ordering::Relaxed, open).is_ok();
        if !opened {
            client.give_back(Resource::Sessions, 1);
        }
        opened
    }

    pub(crate) fn close_connection(&self, client: &Client) {
        client.give_back(Resource::Sessions, 1);
        self.connections.fetch_sub(1, Ordering::AcqRel);
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

    pub(crate) fn permits_in_use(&self) -> usize {
        self.permits_in_use.load(Ordering::Relaxed)
    }

    pub(crate) fn draining(&self) -> usize {
        self.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

limits! {
    /// Limits of a server over all its connections, and the share of them that one client may use.
    ///
    /// A client is identified by the principal that the transport's auth hook returns, else by the address of its
    /// connections, else each connection is a client of its own.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct ServerLimits {
        /// The most handlers that run at once, handlers that drain included. New requests are refused at this limit.
        /// Default: 4096, and an eighth of it in addition for requests about tasks, as of
        /// [`Limits::max_running_handlers`](field@crate::Limits::max_running_handlers). A request that waited for a permit of its connection takes the permit of the request that
        /// ended, so the limit holds for it too.
        pub max_running_handlers: usize = 4096,
        /// The most handlers that still run after their request is settled. New requests are refused above this limit.
        /// Default: 100. Each client counts up to its share: a client above its share is refused, and other clients are
        /// not.
        pub max_draining_handlers: usize = 100,
        /// The most connections at once. Default: 1024. At this limit, and at a client's share of it, the oldest unused
        /// connection is shut down to make room, and counted in
        /// [`ServerCounts::displaced`](crate::ServerCounts::displaced). A connection is unused if nothing is in flight
        /// and the peer never requested anything but the handshake. Without an unused connection the new connection is
        /// refused.
        pub max_connections: usize = 1024,
        /// The most bytes held over all connections: what [`Limits::max_memory_bytes`](crate::Limits::max_memory_bytes)
        /// counts for each connection, and frames and bodies that are being read. At this limit new requests are
        /// refused, and large frames wait before they are read. Default: 256 MiB.
        pub max_memory_bytes: usize = 256 << 20,
        /// The longest time without a frame in either direction and with nothing in flight. After it the connection is
        /// shut down, which counts as [`Event::LimitReached`](crate::Event::LimitReached) with `idle`. Default: `None`:
        /// idle connections stay open. Set it where unknown clients could hold connections without using them. Pings of
        /// a transport do not count as frames. A [`UseMark`](crate::UseMark) delays it. The limit does not apply to a
        /// transport where one link carries all clients (stateless HTTP). HTTP sessions have an idle limit of their own.
        pub idle_timeout: Option<Duration> = None,
        /// The share of `max_running_handlers`, `max_draining_handlers` and `max_connections` that one client may use,
        /// also while it is the only client. Default: one half. [`Share::ALL`] disables the share: set it where all
        /// clients have one address and no principals, as behind a proxy.
        pub client_share: Share = Share::HALF,
        /// The number of leading bits of an IPv6 address that identify a client. Default: 64, the network of one
        /// subscriber.
        pub ipv6_prefix: u8 = DEFAULT_IPV6_PREFIX,
    }
}

/// The present counts of a server over all its connections. [`ServerLimits`](crate::ServerLimits) bounds them. The
/// handle stays usable after the server is dropped.
#[derive(Clone)]
pub struct ServerCounts(Arc<Admission>);

impl ServerCounts {
    pub(crate) const fn new(admission: Arc<Admission>) -> Self {
        Self(admission)
    }

    /// Permits in use: handlers that run, handlers that drain included, and requests about to start. New requests are
    /// refused at [`ServerLimits::max_running_handlers`](crate::ServerLimits::max_running_handlers).
    #[must_use]
    pub fn running(&self) -> usize {
        self.0.permits_in_use()
    }

    /// Handlers that still run after their request is settled. New requests are refused above
    /// [`ServerLimits::max_draining_handlers`](crate::ServerLimits::max_draining_handlers).
    #[must_use]
    pub fn draining(&self) -> usize {
        self.0.draining()
    }

    /// Bytes held over all connections, and by the listener for frames that are being read. New requests are refused at
    /// [`ServerLimits::max_memory_bytes`](crate::ServerLimits::max_memory_bytes).
    #[must_use]
    pub fn memory(&self) -> usize {
        self.0.clients.budget().used()
    }

    /// Connections that are open or being opened. New connections are refused at
    /// [`ServerLimits::max_connections`](crate::ServerLimits::max_connections).
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.0.connections()
    }

    /// Unused connections that were closed to make room for others, since the server was built.
    #[must_use]
    pub fn displaced(&self) -> usize {
        self.0.slots.displaced()
    }

    /// Clients, identified by a principal or an address, that hold a connection, a request or bytes.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.0.clients.len()
    }
}

impl fmt::Debug for ServerCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerCounts")
            .field("running", &self.running())
            .field("draining", &self.draining())
            .field("sessions", &self.sessions())
            .field("memory", &self.memory())
            .finish()
    }
}

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
pub(crate) enum HandlerPhase {
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
pub(crate) struct StepPermits {
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

impl StepPermits {
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
    pub(crate) fn ends(
        &mut self,
        admission: &Admission,
        request_client: RequestClient<'_>,
        from: HandlerPhase,
    ) {
        let (RequestClient::OfConnection(client) | RequestClient::OfRequest(client)) = request_client;
        match from {
            HandlerPhase::NotStarted | HandlerPhase::Ended => return,
            HandlerPhase::Running => {}
            HandlerPhase::Draining => admission.drained(client),
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

/// The permit of a connection. It is given back when the connection's task ends.
pub(crate) struct SessionPermit {
    admission: Arc<Admission>,
    slot: Arc<ConnectionSlot>,
}

impl Admission {
    /// A permit for one more connection of this client. At the limit the oldest unused connection is displaced: of this
    /// client, if it has used its share, else of the client with the most connections. The error names the limit.
    /// `is_many`: the connection carries several clients, and is never displaced.
    pub(crate) fn admit_connection(
        self: &Arc<Self>,
        client: &Arc<Client>,
        is_many: bool,
    ) -> Result<SessionPermit, &'static str> {
        let open = || self.open_connection(client);
        if !(open() || self.make_room(client) && open()) {
            let is_full = self.connections() >= self.limits.max_connections;
            return Err(if is_full { "too many connections" } else { "too many connections of this client" });
        }
        let Some(slot) = self.slots.add(client, is_many) else {
            self.close_connection(client);
            return Err("the server is shutting down");
        };
        Ok(SessionPermit { admission: Arc::clone(self), slot })
    }

    /// Returns whether a connection was displaced.
    fn make_room(&self, client: &Arc<Client>) -> bool {
        let has_its_share =
            client.held(Resource::Sessions) >= self.limits.client_share.of(self.limits.max_connections);
        let mut unused = self.slots.unused(has_its_share.then_some(client));
        unused.sort_by_key(|slot| (Reverse(slot.client().held(Resource::Sessions)), slot.number()));
        unused.into_iter().any(|slot| !slot.is_busy() && self.displace(&slot))
    }

    fn displace(&self, slot: &ConnectionSlot) -> bool {
        if !self.slots.displace(slot) {
            return false;
        }
        self.close_connection(slot.client());
        slot.request_end(EndReason::Displaced);
        true
    }
}

impl SessionPermit {
    pub(crate) fn client(&self) -> &Arc<Client> {
        self.slot.client()
    }

    pub(crate) const fn slot(&self) -> &Arc<ConnectionSlot> {
        &self.slot
    }

    /// The connection is open.
    pub(crate) fn opened(&self, connection: &Arc<impl OpenConnection + 'static>) {
        self.slot.opened(connection);
    }

    /// The peer requested something other than the handshake.
    pub(crate) fn set_used(&self) {
        self.slot.set_used();
    }
}

impl Drop for SessionPermit {
    fn drop(&mut self) {
        if self.admission.slots.remove(&self.slot) {
            self.admission.close_connection(self.slot.client());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let admitted = [(); 3].map(|()| admission.admit(&client, Work::Task));
        assert_eq!(
            admitted,
            [Ok(()), Ok(()), Err("server_running")],
            "I10: over the limit of all connections"
        );
    }

    #[test]
    fn what_cancels_other_work_is_admitted_at_the_limit() {
        let admission = of(ServerLimits { max_running_handlers: 16, ..ServerLimits::default() });
        let client = any_client(&admission);
        while admission.admit(&client, Work::Task).is_ok() {}
        let admitted = [(); 3].map(|()| admission.admit(&client, Work::Control));
        assert_eq!(admitted, [Ok(()), Ok(()), Err("server_running")]);
    }

    #[test]
    fn a_queued_request_takes_the_permit_of_a_handler_that_ended() {
        let admission = two();
        let client = any_client(&admission);
        let request_client = RequestClient::OfConnection(&client);
        let (mut here, mut there) = (StepPermits::default(), StepPermits::default());
        for permits in [&mut here, &mut there] {
            assert_eq!(admission.admit(&client, Work::Task), Ok(()));
            let permit = permits.admitted(request_client);
            permits.starts(&admission, request_client, permit);
            permits.give_back(&admission, Some(&client));
        }
        // In one step a handler ends here and the next one starts. Meanwhile a request arrives elsewhere.
        StepPermits::drains(&admission, request_client);
        here.ends(&admission, request_client, HandlerPhase::Draining);
        assert_eq!(
            admission.admit(&client, Work::Task),
            Err("server_running"),
            "I10: it took the permit of a queued request"
        );
        here.starts(&admission, request_client, ClientPermit::None);
        here.give_back(&admission, Some(&client));
        assert_eq!(admission.admit(&client, Work::Task), Err("server_running"));
        // If no request waits, the permit is free for all.
        here.ends(&admission, request_client, HandlerPhase::Running);
        here.give_back(&admission, Some(&client));
        assert_eq!((admission.permits_in_use(), client.held(Resource::Running)), (1, 1));
        assert_eq!(admission.admit(&client, Work::Task), Ok(()));
    }

    #[test]
    fn a_request_that_is_queued_or_refused_holds_no_permit() {
        let admission = two();
        let client = any_client(&admission);
        let mut permits = StepPermits::default();
        for request_client in [RequestClient::OfConnection(&client), RequestClient::OfRequest(&client)] {
            for _ in 0..10 {
                assert_eq!(admission.admit(&client, Work::Task), Ok(()));
                permits.admitted(request_client).give_back(&client);
                permits.give_back(
                    &admission,
                    matches!(request_client, RequestClient::OfConnection(_)).then_some(&*client),
                );
            }
            assert_eq!(
                (admission.permits_in_use(), client.held(Resource::Running)),
                (0, 0),
                "I3: a permit was not released"
            );
        }
    }

    #[test]
    fn requests_of_many_clients_on_one_connection_are_counted_for_each() {
        let admission = two();
        let (one, other) = (any_client(&admission), any_client(&admission));
        let mut permits = StepPermits::default();
        for client in [&one, &other] {
            assert_eq!(admission.admit(client, Work::Task), Ok(()));
            let permit = permits.admitted(RequestClient::OfRequest(client));
            permits.starts(&admission, RequestClient::OfRequest(client), permit);
            permits.give_back(&admission, None);
        }
        let held =
            || (admission.permits_in_use(), one.held(Resource::Running), other.held(Resource::Running));
        assert_eq!(held(), (2, 1, 1));
        // A request of the first client ends, and a waiting request of the other client starts with its permit.
        permits.ends(&admission, RequestClient::OfRequest(&one), HandlerPhase::Running);
        permits.starts(&admission, RequestClient::OfRequest(&other), ClientPermit::None);
        permits.give_back(&admission, None);
        assert_eq!(held(), (2, 0, 2));
        for _ in 0..2 {
            permits.ends(&admission, RequestClient::OfRequest(&other), HandlerPhase::Running);
        }
        permits.give_back(&admission, None);
        assert_eq!(held(), (0, 0, 0), "I3: a permit was not released");
    }

    #[test]
    fn draining_handlers_count_until_they_end() {
        let admission = of(ServerLimits { max_draining_handlers: 0, ..ServerLimits::default() });
        let client = any_client(&admission);
        let request_client = RequestClient::OfConnection(&client);
        let mut permits = StepPermits::default();
        permits.starts(&admission, request_client, ClientPermit::None);
        StepPermits::drains(&admission, request_client);
        assert_eq!(admission.admit(&client, Work::Task), Err("server_draining"));
        permits.ends(&admission, request_client, HandlerPhase::Draining);
        permits.give_back(&admission, Some(&client));
        let left = (admission.permits_in_use(), admission.draining(), client.held(Resource::Running));
        assert_eq!((admission.admit(&client, Work::Task), left), (Ok(()), (0, 0, 0)));
    }

    #[test]
    fn a_client_that_drains_more_than_its_share_is_refused_and_others_are_not() {
        let admission = Admission::new(ServerLimits { max_draining_handlers: 10, ..ServerLimits::default() });
        let [deaf, deafer, other] = [(); 3].map(|()| any_client(&admission));
        let drain = |client: &Client, handlers: usize| {
            (0..handlers).for_each(|_| StepPermits::drains(&admission, RequestClient::OfConnection(client)));
        };
        drain(&deaf, 5);
        assert_eq!(admission.admit(&deaf, Work::Task), Ok(()), "at its share");
        drain(&deaf, 123);
        assert_eq!(
            (admission.admit(&deaf, Work::Task), admission.admit(&other, Work::Task)),
            (Err("client_draining"), Ok(()))
        );
        drain(&deafer, 128);
        assert_eq!(
            (admission.admit(&deafer, Work::Task), admission.admit(&other, Work::Task)),
            (Err("client_draining"), Ok(()))
        );
        drain(&other, 1);
        assert_eq!(admission.admit(&other, Work::Task), Err("server_draining"), "I11: all of them together");
        let mut permits = StepPermits::default();
        let mut end = |client: &Client, handlers: usize| {
            (0..handlers).for_each(|_| {
                permits.ends(&admission, RequestClient::OfRequest(client), HandlerPhase::Draining);
            });
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
            admitted.map(|client| admission.admit(client, Work::Task)),
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
        assert_eq!([(); 3].map(|()| admission.open_connection(&client)), [true, true, false]);
        admission.close_connection(&client);
        assert_eq!([(); 2].map(|()| admission.open_connection(&client)), [true, false], "one was closed");
    }
}
