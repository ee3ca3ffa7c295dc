//! The clients of a server, and what each of them holds, so that no client takes everything.
//!
//! - K1 A client is identified by its principal; without one by its address; without an address by its connection. What several
//!   connections of one client hold is counted together.
//! - K2 No client holds more than its [`Share`] of a limit. The share holds also while nobody else is there: work that runs cannot be
//!   taken away when somebody comes.
//! - K3 The table holds no client alive. A client is in it for as long as something of it is: a connection, a session, a request.
//! - K4 The lock of the table is a leaf: nothing is called and no client is dropped under it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, PoisonError, Weak};

use crate::byte_budget::ByteBudget;
use crate::id::Principal;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// The part of a limit that one client may hold. Default: one half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u8);

impl Share {
    /// One half.
    pub const HALF: Self = Self(50);
    /// All of it: one client may take everything.
    pub const ALL: Self = Self(100);

    /// So many hundredths, at least 1 and at most 100.
    #[must_use]
    pub const fn percent(percent: u8) -> Self {
        match percent {
            0 => Self(1),
            1..=100 => Self(percent),
            101.. => Self::ALL,
        }
    }

    /// This part of a limit, rounded down, and at least 1: a client that can hold nothing is not served.
    #[must_use]
    pub const fn of(self, limit: usize) -> usize {
        if self.0 >= Self::ALL.0 {
            return limit;
        }
        let part = self.0 as usize;
        // In two steps, as a limit may be as large as a number can be.
        let of = limit / 100 * part + limit % 100 * part / 100;
        if of == 0 { 1 } else { of }
    }

    /// Whether one client may take everything.
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

/// Where a request over HTTP came from: an extension of the request, for a service that is mounted in a server of yours. A listener
/// of this workspace adds it by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub IpAddr);

/// What identifies a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ClientKey {
    /// Whom the auth hook named.
    Principal(Principal),
    /// The address the connection came from; of IPv6 the network, its other bits are zero.
    Address(IpAddr),
}

impl ClientKey {
    /// The key of who has this principal, or else came from this address. `None`: neither is known.
    #[must_use]
    pub fn of(principal: Option<&Principal>, address: Option<IpAddr>, ipv6_prefix: u8) -> Option<Self> {
        match (principal, address) {
            (Some(principal), _) => Some(Self::Principal(principal.clone())),
            (None, Some(address)) => Some(Self::Address(network(address, ipv6_prefix))),
            (None, None) => None,
        }
    }
}

/// IPv4 whole, also where it is written as IPv6; of IPv6 so many leading bits.
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

/// What a client may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resource {
    /// Connections of the wire below sessions: the sockets of an HTTP server.
    Sockets,
    /// Handshakes under way, of a wire that has some.
    Handshakes,
    /// Sessions that a wire keeps apart from its sockets (HTTP).
    WireSessions,
    /// Connections of a [`Server`](crate::Server).
    Sessions,
    /// Handlers that run, draining ones included, and requests about to start.
    Running,
    /// Handlers whose request is settled and that still run.
    Draining,
}

/// How many kinds there are.
const KINDS: usize = Resource::Draining as usize + 1;

/// The clients of one server. Its clones are the same table.
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
    /// A table without clients. `ipv6_prefix`: the leading bits of an IPv6 address that make a client, at most 128.
    #[must_use]
    pub fn new(share: Share, ipv6_prefix: u8) -> Self {
        Self::with_budget(share, ipv6_prefix, ByteBudget::default())
    }

    /// The same, for a server that may hold so many bytes.
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

    /// The client that has this principal, or else came from this address. Without either it is a client of its own, which the
    /// table does not know.
    #[must_use]
    pub fn client(&self, principal: Option<&Principal>, address: Option<IpAddr>) -> Arc<Client> {
        let Some(key) = ClientKey::of(principal, address, self.0.ipv6_prefix) else {
            return self.made(None);
        };
        // Let go without the lock (K4).
        let mut stale = None;
        let client = match self.0.known().entry(key) {
            Entry::Occupied(mut known) => known.get().upgrade().unwrap_or_else(|| {
                let client = self.made(Some(known.key().clone()));
                stale = Some(known.insert(Arc::downgrade(&client)));
                client
            }),
            Entry::Vacant(place) => {
                let client = self.made(Some(place.key().clone()));
                place.insert(Arc::downgrade(&client));
                client
            }
        };
        drop(stale);
        client
    }

    fn made(&self, key: Option<ClientKey>) -> Arc<Client> {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let table = key.is_some().then(|| Arc::downgrade(&self.0));
        let all = &self.0.budget;
        // A client identified by its connection is bounded by the connection's own budget.
        let budget = if key.is_some() { all.child(self.0.share.of(all.limit())) } else { all.clone() };
        Arc::new(Client {
            number,
            key,
            share: self.0.share,
            budget,
            reserve: ByteBudget::new(RESERVE),
            table,
            held: std::array::from_fn(|_| AtomicUsize::new(0)),
        })
    }

    /// What one client may hold of a limit.
    #[must_use]
    pub fn share(&self) -> Share {
        self.0.share
    }

    /// Clients with a key of which something is held. Zero when nobody is connected.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.known().len()
    }

    /// Whether nobody with a key is connected.
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

/// Bytes that each client may hold beside its budget.
const RESERVE: usize = 1024 * 1024;

/// The leading bits of an IPv6 address that are given to one subscriber.
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

/// One client of a server, and what it holds.
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
    /// A number no other client of its table has or had.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.number
    }

    /// What identifies it. `None`: its connection.
    #[must_use]
    pub const fn key(&self) -> Option<&ClientKey> {
        self.key.as_ref()
    }

    /// The bytes that are held for it: at most its share of its server's.
    #[must_use]
    pub const fn budget(&self) -> &ByteBudget {
        &self.budget
    }

    /// How much it holds.
    #[must_use]
    pub fn held(&self, what: Resource) -> usize {
        self.count(what).load(Ordering::Relaxed)
    }

    /// Bytes it may hold beside its [`budget`](Self::budget), 1 MiB: for small requests that pass although that is full, such as cancels.
    #[must_use]
    pub const fn reserve(&self) -> &ByteBudget {
        &self.reserve
    }

    /// Takes one more, if that is within its share of this limit.
    #[must_use]
    pub fn take(&self, what: Resource, limit: usize) -> bool {
        let most = self.share.of(limit);
        let one_more = |held: usize| (held < most).then_some(held + 1);
        self.count(what).fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// The same, as a place that is given back when it is dropped.
    #[must_use]
    pub fn place(self: &Arc<Self>, what: Resource, limit: usize) -> Option<ClientPermit> {
        self.take(what, limit).then(|| ClientPermit { client: Arc::clone(self), what })
    }

    /// A place whatever its share is, for a wire that looks at [`held`](Self::held) itself.
    pub fn place_anyway(self: &Arc<Self>, what: Resource) -> ClientPermit {
        self.take_anyway(what);
        ClientPermit { client: Arc::clone(self), what }
    }

    /// Takes one more whatever its share is, and says how much it held before.
    pub fn take_anyway(&self, what: Resource) -> usize {
        self.count(what).fetch_add(1, Ordering::Relaxed)
    }

    /// Gives so many back, and says how much it held before.
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
            // Another of the same key may have come meanwhile.
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

/// One place that a client holds, given back when it is dropped.
#[derive(Debug)]
#[must_use = "a place that is dropped is given back"]
pub struct ClientPermit {
    client: Arc<Client>,
    what: Resource,
}

impl ClientPermit {
    /// Whose it is.
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
mod tests;
