//! The state that the tasks of a client share, in every binding: the requester, the inbound queue, one lock, and how
//! the client leaves.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use rescind_core::{Capabilities, Link, PeerInfo, Sender, TransportError, TransportErrorKind};

use super::{HttpClient, Requester};
use crate::inbound_queue::{InboundQueue, InboundReceiver};
use crate::sync::{AbortHandle, Handle, JoinHandle, Mutex, MutexGuard, spawn};

/// How long the client waits for the response to its last DELETE.
const DELETE_TIMEOUT: Duration = Duration::from_secs(1);

/// The client of a binding, whose own state is `S`.
pub(crate) struct ClientCore<S> {
    pub(crate) requester: Requester,
    pub(crate) inbound_queue: Arc<InboundQueue>,
    pub(crate) max_frame: usize,
    state: Mutex<Guarded<S>>,
}

/// The data behind the lock: the state of the binding, and the common state.
pub(crate) struct Guarded<S> {
    binding: S,
    /// Whether the client has closed: nothing is sent any more.
    pub(crate) closed: bool,
    /// Set while the driver waits for room, or for the end.
    pub(crate) driver: Option<Waker>,
}

/// The state of a binding, with the tasks that are in flight.
pub(crate) trait InFlightTasks {
    /// Tasks that end when this value is dropped.
    type Tasks;

    /// Takes all tasks of the client out of the state.
    fn take_tasks(&mut self) -> Self::Tasks;
}

impl<S: InFlightTasks> ClientCore<S> {
    pub(crate) fn new(client: &HttpClient, binding: S) -> Self {
        let inbound_queue = InboundQueue::new(client.max_frame);
        Self {
            requester: Requester::new(client, &inbound_queue),
            inbound_queue,
            max_frame: client.max_frame,
            state: Mutex::new(Guarded { binding, closed: false, driver: None }),
        }
    }

    /// The link of this client.
    pub(crate) fn link(&self, sender: impl Sender + 'static, exchange_scoped: bool, peer: PeerInfo) -> Link {
        let capabilities = Capabilities {
            ordered: false,
            opens_exchanges: true,
            exchange_scoped,
            batches: false,
            max_frame: self.max_frame,
        };
        Link::new(InboundReceiver(Arc::clone(&self.inbound_queue)), sender, capabilities, peer)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, Guarded<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one step under the lock, then wakes the driver.
    pub(crate) fn step<T>(&self, step: impl FnOnce(&mut Guarded<S>) -> T) -> T {
        let (result, driver) = {
            let mut state = self.state();
            let result = step(&mut state);
            (result, state.driver.take())
        };
        if let Some(driver) = driver {
            driver.wake();
        }
        result
    }

    /// Ends the link: the server does not know the client any more, or cannot be reached.
    pub(crate) fn lose(&self, why: &'static str) {
        self.inbound_queue.fail(TransportError::new(TransportErrorKind::Closed, why));
    }

    /// Ends all tasks. Nothing is sent any more.
    pub(crate) fn close(&self) {
        drop(self.take_tasks());
    }

    /// Closes the client, so that nothing is sent any more, and returns the remaining tasks. The caller ends them.
    pub(crate) fn take_tasks(&self) -> S::Tasks {
        let tasks = self.step(|state| {
            state.closed = true;
            state.take_tasks()
        });
        self.inbound_queue.end();
        tasks
    }
}

impl<S> Deref for Guarded<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.binding
    }
}

impl<S> DerefMut for Guarded<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.binding
    }
}

/// The error for a frame that comes after the end.
pub(crate) fn closed() -> TransportError {
    TransportError::new(TransportErrorKind::Closed, "the link is closed")
}

/// Tasks that end when this value is dropped.
pub(crate) struct AbortOnDrop(Vec<AbortHandle>);

impl FromIterator<AbortHandle> for AbortOnDrop {
    fn from_iter<I: IntoIterator<Item = AbortHandle>>(tasks: I) -> Self {
        Self(tasks.into_iter().collect())
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

/// The DELETE with which a client leaves. It is sent once.
#[derive(Default)]
pub(crate) struct DeleteRequest(Option<JoinHandle<()>>);

impl DeleteRequest {
    pub(crate) const fn is_sent(&self) -> bool {
        self.0.is_some()
    }

    /// Sends the DELETE if it is not sent yet, and waits for its response, for at most one second.
    pub(crate) fn poll(
        &mut self,
        delete: impl FnOnce() -> (Requester, HeaderMap),
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let sent = self.0.get_or_insert_with(|| {
            let (requester, headers) = delete();
            spawn(send_delete(requester, headers))
        });
        ready!(Pin::new(sent).poll(cx)).ok();
        Poll::Ready(())
    }

    /// The runtime on which to send the DELETE for a client that was dropped without being closed. Without the DELETE,
    /// its server would wait for the client to return.
    pub(crate) fn unsent(&self) -> Option<Handle> {
        Handle::try_current().ok().filter(|_| !self.is_sent())
    }
}

/// Informs the server that the client leaves.
pub(crate) async fn send_delete(requester: Requester, headers: HeaderMap) {
    let end = requester.send(Method::DELETE, headers, Bytes::new());
    match tokio::time::timeout(DELETE_TIMEOUT, end).await {
        Ok(Ok(response)) => tracing::trace!(status = %response.status(), "the server confirmed the end"),
        Ok(Err(failed)) => {
            tracing::debug!(error = %rescind_core::LogText::text(&failed.error), "the end could not be sent to the server");
        }
        Err(_) => tracing::debug!("the server did not confirm the end in time"),
    }
}
