//! The clients of a server, and what each of them uses, so that no client can use everything.
//!
//! - K1 A client is identified by its principal; without one by its address; without an address by its connection.
//!   Several connections of one client are counted together.
//! - K2 No client uses more than its [`Share`] of a limit, also while it is the only client: work that runs cannot be
//!   taken back when another client connects.
//! - K3 The table does not keep a client alive. A client is in the table while it has a connection, a session or a
//!   request.
//! - K4 The lock of the table is a leaf: no function is called and no client is dropped while it is held.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, PoisonError, Weak};

use crate::byte_budget::ByteBudget;
use crate::id::Principal;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// The part of a limit that one client may use. Default: one half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u8);

impl Share {
    /// One half.
    pub const HALF: Self = Self(50);
    /// All of it: one client may use the whole limit.
    pub const ALL: Self = Self(100);

    /// A percentage, at least 1 and at most 100.
    #[must_use]
    pub const fn percent(percent: u8) -> Self {
        match percent {
            0 => Self(1),
            1..=100 => Self(percent),
            101.. => Self::ALL,
        }
    }

    /// This part of a limit, rounded down, and at least 1.
    #[must_use]
    pub const fn of(self, limit: usize) -> usize {
        if self.0 >= Self::ALL.0 {
            return limit;
        }
        let part = self.0 as usize;
        // In two steps: a limit may be as large as `usize::MAX`.
        let of = limit / 100 * part + limit % 100 * part / 100;
        if of == 0 { 1 } else { of }
    }

    /// Whether one client may use the whole limit.
    #[must_use]
    pub const fn is_all(self) -> bool {
        self.0 >= Self::ALL.0
    }
}

impl Default for Share {
    fn default() -> Self {
        Self::HALF
    }
}

/// What identifies a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ClientKey {
    /// The principal that the auth hook returned.
    Principal(Principal),
    /// The address of the connection. Of an IPv6 address only the network; the other bits are zero.
    Address(IpAddr),
}

impl ClientKey {
    /// The key for this principal, or else for this address. `None`: neither is known.
    #[must_use]
    pub fn of(principal: Option<&Principal>, address: Option<IpAddr>, ipv6_prefix: u8) -> Option<Self> {
        match (principal, address) {
            (Some(principal), _) => Some(Self::Principal(principal.clone())),
            (None, Some(address)) => Some(Self::Address(network(address, ipv6_prefix))),
            (None, None) => None,
        }
    }
}

/// An IPv4 address as a whole, also if it is mapped to IPv6. Of an IPv6 address the leading bits.
fn network(address: IpAddr, ipv6_prefix: u8) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let kept = u32::from(ipv6_prefix.min(128));
            let mask = u128::MAX.checked_shl(128 - kept).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    }
}

/// The resources of which a client may use its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resource {
    /// Connections below sessions: the sockets of an HTTP server.
    Sockets,
    /// Handshakes in progress (WebSocket).
    Handshakes,
    /// Sessions that are independent of sockets (HTTP).
    WireSessions,
    /// Connections of a [`Server`](crate::Server).
    Sessions,
    /// Handlers that run, handlers that drain included, and requests about to start.
    Running,
    /// Handlers that still run after their request is settled.
    Draining,
}

/// The number of resources.
const KINDS: usize = Resource::Draining as usize + 1;

/// The clients of one server. A clone is the same table.
#[derive(Clone)]
pub struct Clients(Arc<Table>);

struct Table {
    share: Share,
    ipv6_prefix: u8,
    /// The bytes that are held for all of them.
    budget: ByteBudget,
    known: Mutex<HashMap<ClientKey, Weak<Client>>>,
    next: AtomicUsize,
}

impl Clients {
    /// An empty table. `ipv6_prefix`: the number of leading bits of an IPv6 address that identify a client, at most
    /// 128.
    #[must_use]
    pub fn new(share: Share, ipv6_prefix: u8) -> Self {
        Self::with_budget(share, ipv6_prefix, ByteBudget::default())
    }

    /// An empty table for a server with this budget.
    #[must_use]
    pub fn with_budget(share: Share, ipv6_prefix: u8, budget: ByteBudget) -> Self {
        let (known, next) = (Mutex::new(HashMap::new()), AtomicUsize::new(1));
        Self(Arc::new(Table { share, ipv6_prefix, budget, known, next }))
    }

    /// The bytes that are held for all of them.
    #[must_use]
    pub fn budget(&self) -> &ByteBudget {
        &self.0.budget
    }

    /// The client with this principal, or else with this address. Without both it is a client of its own, which is not
    /// in the table.
    #[must_use]
    pub fn client(&self, principal: Option<&Principal>, address: Option<IpAddr>) -> Arc<Client> {
        let Some(key) = ClientKey::of(principal, address, self.0.ipv6_prefix) else {
            return self.new_client(None);
        };
        // Dropped without the lock (K4).
        let mut stale = None;
        let client = match self.0.known().entry(key) {
            Entry::Occupied(mut known) => known.get().upgrade().unwrap_or_else(|| {
                let client = self.new_client(Some(known.key().clone()));
                stale = Some(known.insert(Arc::downgrade(&client)));
                client
            }),
            Entry::Vacant(place) => {
                let client = self.new_client(Some(place.key().clone()));
                place.insert(Arc::downgrade(&client));
                client
            }
        };
        drop(stale);
        client
    }

    fn new_client(&self, key: Option<ClientKey>) -> Arc<Client> {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let table = key.is_some().then(|| Arc::downgrade(&self.0));
        let all = &self.0.budget;
        // The connection's own budget bounds a client that is identified by its connection.
        let budget = if key.is_some() { all.child(self.0.share.of(all.limit())) } else { all.clone() };
        Arc::new(Client {
            number,
            key,
            share: self.0.share,
            budget,
            reserve: ByteBudget::new(RESERVE_BYTES),
            table,
            held: std::array::from_fn(|_| AtomicUsize::new(0)),
        })
    }

    /// The share of a limit that one client may use.
    #[must_use]
    pub fn share(&self) -> Share {
        self.0.share
    }

    /// The number of clients in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.known().len()
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for Clients {
    fn default() -> Self {
        Self::new(Share::default(), DEFAULT_IPV6_PREFIX)
    }
}

/// Bytes that each client may use in addition to its budget.
const RESERVE_BYTES: usize = 1024 * 1024;

/// The number of leading bits of an IPv6 address that a provider gives to one subscriber.
pub const DEFAULT_IPV6_PREFIX: u8 = 64;

impl Table {
    fn known(&self) -> MutexGuard<'_, HashMap<ClientKey, Weak<Client>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients")
            .field("share", &self.0.share)
            .field("ipv6_prefix", &self.0.ipv6_prefix)
            .field("known", &self.len())
            .finish()
    }
}

/// One client of a server, and what it uses.
pub struct Client {
    number: usize,
    key: Option<ClientKey>,
    share: Share,
    budget: ByteBudget,
    /// See [`reserve`](Self::reserve).
    reserve: ByteBudget,
    table: Option<Weak<Table>>,
    held: [AtomicUsize; KINDS],
}

impl Client {
    /// A number that no other client of its table has or had.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.number
    }

    /// The key that identifies it. `None`: its connection identifies it.
    #[must_use]
    pub const fn key(&self) -> Option<&ClientKey> {
        self.key.as_ref()
    }

    /// The budget of its bytes: at most its share of the server's budget.
    #[must_use]
    pub const fn budget(&self) -> &ByteBudget {
        &self.budget
    }

    /// How much of a resource it uses.
    #[must_use]
    pub fn held(&self, what: Resource) -> usize {
        self.count(what).load(Ordering::Relaxed)
    }

    /// Bytes that it may use in addition to its [`budget`](Self::budget): 1 MiB, for small requests such as cancels,
    /// which are accepted also when the budget is full.
    #[must_use]
    pub const fn reserve(&self) -> &ByteBudget {
        &self.reserve
    }

    /// Uses one more, if its share of this limit allows it.
    #[must_use]
    pub fn take(&self, what: Resource, limit: usize) -> bool {
        let most = self.share.of(limit);
        let one_more = |held: usize| (held < most).then_some(held + 1);
        self.count(what).fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// Uses one more, if its share of this limit allows it. Dropping the permit gives it back.
    #[must_use]
    pub fn try_acquire(self: &Arc<Self>, what: Resource, limit: usize) -> Option<ClientPermit> {
        self.take(what, limit).then(|| ClientPermit { client: Arc::clone(self), what })
    }

    /// Uses one more, regardless of its share. Dropping the permit gives it back. For a transport that checks
    /// [`held`](Self::held) itself.
    pub fn acquire_over_limit(self: &Arc<Self>, what: Resource) -> ClientPermit {
        self.take_anyway(what);
        ClientPermit { client: Arc::clone(self), what }
    }

    /// Uses one more, regardless of its share, and returns how many it used before.
    pub fn take_anyway(&self, what: Resource) -> usize {
        self.count(what).fetch_add(1, Ordering::Relaxed)
    }

    /// Gives some back, and returns how many it used before.
    pub fn give_back(&self, what: Resource, places: usize) -> usize {
        self.count(what).fetch_sub(places, Ordering::Relaxed)
    }

    const fn count(&self, what: Resource) -> &AtomicUsize {
        let [sockets, handshakes, wire_sessions, sessions, running, draining] = &self.held;
        match what {
            Resource::Sockets => sockets,
            Resource::Handshakes => handshakes,
            Resource::WireSessions => wire_sessions,
            Resource::Sessions => sessions,
            Resource::Running => running,
            Resource::Draining => draining,
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let Some(table) = self.table.take().and_then(|table| table.upgrade()) else { return };
        let Some(key) = self.key.take() else { return };
        let stale = match table.known().entry(key) {
            // Another client with the same key may have been added meanwhile.
            Entry::Occupied(known) if std::ptr::eq(known.get().as_ptr(), self) => Some(known.remove()),
            Entry::Occupied(_) | Entry::Vacant(_) => None,
        };
        drop(stale);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("number", &self.number).field("key", &self.key).finish_non_exhaustive()
    }
}

/// One unit of a resource that a client uses. Dropping it gives it back.
#[derive(Debug)]
#[must_use = "dropping the permit releases it"]
pub struct ClientPermit {
    client: Arc<Client>,
    what: Resource,
}

impl ClientPermit {
    /// The client.
    #[must_use]
    pub const fn client(&self) -> &Arc<Client> {
        &self.client
    }
}

impl Drop for ClientPermit {
    fn drop(&mut self) {
        self.client.give_back(self.what, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn named(name: &str) -> Principal {
        Principal(name.into())
    }

    #[test]
    fn a_client_is_identified_by_principal_then_network_then_connection() {
        let clients = Clients::default();
        let of = |principal: Option<&str>, from: Option<&str>| {
            clients.client(principal.map(named).as_ref(), from.map(address))
        };
        let (ada, near) = (of(Some("ada"), Some("10.0.0.1")), of(None, Some("10.0.0.1")));
        let same = |one: &Arc<Client>, other: &Arc<Client>| Arc::ptr_eq(one, other);
        assert!(same(&ada, &of(Some("ada"), Some("10.0.0.2"))), "a principal goes before an address");
        assert!(!same(&ada, &near));
        assert!(same(&near, &of(None, Some("::ffff:10.0.0.1"))), "IPv4 written as IPv6");
        assert!(!same(&near, &of(None, Some("10.0.0.2"))), "IPv4 whole");
        let network = of(None, Some("2001:db8:1:2::1"));
        assert!(same(&network, &of(None, Some("2001:db8:1:2:ffff::9"))), "IPv6 by its first 64 bits");
        assert!(!same(&network, &of(None, Some("2001:db8:1:3::1"))));
        assert!(!same(&of(None, None), &of(None, None)), "each connection without either is a client");
        assert_ne!(of(None, None).number(), of(None, None).number());
    }

    #[test]
    fn the_prefix_of_ipv6_can_be_set() {
        let [one, other] = ["2001:db8:1:2::1", "2001:db8:1:ffff::1"].map(address);
        for (prefix, are_one) in [(0, true), (48, true), (64, false), (128, false), (255, false)] {
            let clients = Clients::new(Share::HALF, prefix);
            let (one, other) = (clients.client(None, Some(one)), clients.client(None, Some(other)));
            assert_eq!(Arc::ptr_eq(&one, &other), are_one, "/{prefix}");
        }
    }

    #[test]
    fn no_client_holds_more_than_its_share_regardless_of_arrival_order() {
        let clients = Clients::default();
        let (first, second) = (
            clients.client(None, Some(address("10.0.0.1"))),
            clients.client(None, Some(address("10.0.0.2"))),
        );
        let took = |client: &Client| (0..8).filter(|_| client.take(Resource::Running, 8)).count();
        assert_eq!((took(&first), took(&second)), (4, 4));
        assert!(first.take(Resource::Draining, 8), "each kind is counted separately");
        first.give_back(Resource::Running, 1);
        assert_eq!(took(&first), 1, "what was given back");
    }

    #[test]
    fn a_share_is_at_least_one_and_can_be_all() {
        let shares = |share: Share| [0, 1, 2, 3, 100, 1024, usize::MAX].map(|limit| share.of(limit));
        assert_eq!(shares(Share::HALF)[..6], [1, 1, 1, 1, 50, 512]);
        assert_eq!(shares(Share::ALL), [0, 1, 2, 3, 100, 1024, usize::MAX]);
        assert_eq!(shares(Share::percent(10))[..6], [1, 1, 1, 1, 10, 102]);
        assert!(shares(Share::HALF)[6] >= usize::MAX / 2 - 100);
        assert_eq!((Share::percent(0), Share::percent(255)), (Share::percent(1), Share::ALL));
    }

    #[test]
    fn the_table_is_empty_without_clients() {
        let clients = Clients::default();
        for round in 0..10_000_u32 {
            let client = clients.client(None, Some(IpAddr::from(round.to_be_bytes())));
            let place = client.try_acquire(Resource::Sessions, 1024).unwrap();
            drop(client);
            assert_eq!(
                (clients.len(), place.client().held(Resource::Sessions)),
                (1, 1),
                "a permit keeps its client"
            );
        }
        assert!(clients.is_empty(), "I11");
        assert_eq!(
            (clients.client(None, None).held(Resource::Sessions), clients.len()),
            (0, 0),
            "without a key"
        );
    }

    #[test]
    fn dropping_a_client_keeps_a_newer_client_of_the_same_key() {
        let clients = Clients::default();
        let from = Some(address("10.0.0.1"));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let one = clients.client(None, from);
                        assert!(Arc::ptr_eq(&one, &clients.client(None, from)), "two clients of one key");
                    }
                });
            }
        });
        assert!(clients.is_empty());
    }
}
