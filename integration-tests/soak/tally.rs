//! The common counters of all peers of a run, and the failures.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rescind::Peer;

/// The most faults that are kept. Further ones are only counted.
const KEPT: usize = 10;

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) calls: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) attacks: AtomicU64,
    /// Calls and handshakes of good peers that the server refused as overloaded.
    pub(crate) overloaded: AtomicU64,
    over: AtomicBool,
    faults: Mutex<(u64, Vec<String>)>,
    peers: Mutex<Vec<Peer>>,
}

impl Tally {
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn begin(&self) {
        self.over.store(false, Ordering::SeqCst);
    }

    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    pub(crate) fn fault(&self, what: String) {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.0 += 1;
        if faults.1.len() < KEPT {
            faults.1.push(what);
        }
    }

    pub(crate) fn faults(&self) -> (u64, Vec<String>) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds one end of a connection. Its requests are counted until it has none and is closed.
    pub(crate) fn watch(&self, peer: Peer) {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).push(peer);
    }

    /// The requests and calls at the ends of all connections, including closed ones.
    pub(crate) fn slots(&self) -> u64 {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = |peer: &Peer| {
            let stats = peer.stats();
            stats.slots + stats.calls
        };
        peers.retain(|peer| !peer.is_closed() || slots(peer) > 0);
        peers.iter().map(slots).sum()
    }
}
