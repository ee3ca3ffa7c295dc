//! The TCP connections of a server. They are limited for each client. To make room for a new connection, one ends that
//! has sent no request.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rescind_core::{Client, ClientPermit, Resource};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::connection::Activity;

/// All connections, oldest first. It may also contain some that have ended, but at most as many as are open.
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
    /// `None` after another connection has taken the permit.
    place: Mutex<Option<ClientPermit>>,
    leaves: Notify,
}

/// Why a connection ends although it could continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// It makes room for another connection.
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

    /// A permit for one more connection of this client. Waits if there is none. `None`: the client has used its share,
    /// and has sent a request on each of its connections.
    ///
    /// # Cancel safety
    /// Dropping the future takes no permit.
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
        let own = || client.try_acquire(Resource::Sockets, limit);
        let place = own().or_else(|| {
            self.displace(|socket| Arc::ptr_eq(&socket.client, client));
            own()
        })?;
        let socket = Arc::new(Socket {
            activity: Arc::default(),
            client: Arc::clone(client),
            place: Mutex::new(Some(place)),
            leaves: Notify::new(),
        });
        let open = self.most - self.places.available_permits();
        if self.open.len() > 2 * open {
            self.open.retain(|socket| socket.strong_count() > 0);
        }
        self.open.push_back(Arc::downgrade(&socket));
        Some((socket, permit))
    }

    /// Informs every connection that the listener drains.
    pub(super) fn drain(&self) {
        for socket in self.open.iter().filter_map(Weak::upgrade) {
            socket.leaves.notify_one();
        }
    }

    /// Ends the oldest of these connections that has sent no request.
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

    /// Waits until the connection must end.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(super) async fn leave_asked(&self) -> Leave {
        self.leaves.notified().await;
        if self.has_place() { Leave::Drains } else { Leave::Displaced }
    }
}
