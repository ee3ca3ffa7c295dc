//! The TCP connections of a server: how many one client may have, and which of them makes room for another: one that
//! never asked for anything.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rescind_core::{Client, ClientPermit, Resource};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::connection::Activity;

/// All of them, the oldest first, and for a while some that have ended: no more than there are open ones.
pub(super) struct Sockets {
    places: Arc<Semaphore>,
    open: VecDeque<Weak<Socket>>,
    most: usize,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) activity: Arc<Activity>,
    client: Arc<Client>,
    /// `None` once another has it.
    place: Mutex<Option<ClientPermit>>,
    leaves: Notify,
    drains: AtomicBool,
}

/// Why a connection ends although it could go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// It makes room for another.
    Displaced,
    /// The listener drains: the connection ends after the requests that are open on it.
    Drains,
}

impl Sockets {
    pub(super) fn new(most: usize) -> Self {
        let most = most.min(Semaphore::MAX_PERMITS);
        let places = Arc::new(Semaphore::new(most));
        Self { places, open: VecDeque::new(), most }
    }

    /// A place for one more connection of this client, waited for where there is none. `None`: the client has its
    /// share, and has asked for something on each.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the places as they are.
    pub(super) async fn place(
        &mut self,
        client: &Arc<Client>,
        limit: usize,
    ) -> Option<(Arc<Socket>, OwnedSemaphorePermit)> {
        let permit = if let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() {
            permit
        } else {
            self.displace(|_| true);
            Arc::clone(&self.places).acquire_owned().await.ok()?
        };
        let own = || client.place(Resource::Sockets, limit);
        let place = own().or_else(|| {
            self.displace(|socket| Arc::ptr_eq(&socket.client, client));
            own()
        })?;
        let socket = Arc::new(Socket {
            activity: Arc::default(),
            client: Arc::clone(client),
            place: Mutex::new(Some(place)),
            leaves: Notify::new(),
            drains: AtomicBool::new(false),
        });
        let open = self.most - self.places.available_permits();
        if self.open.len() > 2 * open {
            self.open.retain(|socket| socket.strong_count() > 0);
        }
        self.open.push_back(Arc::downgrade(&socket));
        Some((socket, permit))
    }

    /// Tells every connection that the listener drains.
    pub(super) fn drain(&self) {
        for socket in self.open.iter().filter_map(Weak::upgrade) {
            socket.drains.store(true, Ordering::Release);
            socket.leaves.notify_one();
        }
    }

    /// Ends the oldest of these on which nothing was ever asked.
    fn displace(&mut self, is_meant: impl Fn(&Socket) -> bool) {
        let unused =
            |socket: &Socket| socket.activity.requests() == 0 && is_meant(socket) && socket.has_place();
        if let Some(socket) = self.open.iter().filter_map(Weak::upgrade).find(|socket| unused(socket)) {
            socket.leave();
        }
    }
}

impl Socket {
    fn has_place(&self) -> bool {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn leave(&self) {
        let place = self.place.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(place);
        self.leaves.notify_one();
    }

    /// Waits until the connection is told to end.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(super) async fn leave_asked(&self) -> Leave {
        self.leaves.notified().await;
        if self.has_place() && self.drains.load(Ordering::Acquire) { Leave::Drains } else { Leave::Displaced }
    }
}
