//! What the tasks of a client share, in every binding: how requests are sent, what came in, one lock, and how the
//! client leaves.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use rescind_core::{TransportError, TransportErrorKind};

use super::{HttpClient, Requester};
use crate::inbound_queue::InboundQueue;
use crate::sync::{AbortHandle, Handle, JoinHandle, Mutex, MutexGuard, spawn};

/// The time for the server to hear that the client leaves.
const FAREWELL: Duration = Duration::from_secs(1);

/// The client of a binding, whose own state is `S`.
pub(crate) struct ClientCore<S> {
    pub(crate) requester: Requester,
    pub(crate) inbound_queue: Arc<InboundQueue>,
    pub(crate) max_frame: usize,
    state: Mutex<Guarded<S>>,
}

/// What the lock guards: the state of the binding, and what all have.
pub(crate) struct Guarded<S> {
    binding: S,
    /// Nothing is sent any more.
    pub(crate) closed: bool,
    /// The driver waits for room, or for the end.
    pub(crate) driver: Option<Waker>,
}

/// A binding's state, as far as what is in flight goes.
pub(crate) trait InFlightTasks {
    /// Tasks that end when this is dropped.
    type Tasks;

    /// Takes out all tasks of the client.
    fn take_tasks(&mut self) -> Self::Tasks;
}

impl<S: InFlightTasks> ClientCore<S> {
    pub(crate) fn new(client: &HttpClient, binding: S) -> Self {
        Self {
            requester: Requester::new(client),
            inbound_queue: InboundQueue::new(client.max_frame),
            max_frame: client.max_frame,
            state: Mutex::new(Guarded { binding, closed: false, driver: None }),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, Guarded<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One step under the lock, after which the driver looks again.
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

    /// The link ends: the server does not know the client any more, or cannot be reached.
    pub(crate) fn lose(&self, why: &'static str) {
        self.inbound_queue.fail(TransportError::new(TransportErrorKind::Closed, why));
    }

    /// Ends all tasks. Nothing is sent any more.
    pub(crate) fn close(&self) {
        drop(self.take_tasks());
    }

    /// Sends nothing any more, and gives the tasks that are left to the caller, who ends them.
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

/// Tasks that end with it.
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
pub(crate) struct Farewell(Option<JoinHandle<()>>);

impl Farewell {
    pub(crate) const fn is_sent(&self) -> bool {
        self.0.is_some()
    }

    /// Sends the DELETE if it is not sent, and waits for its response, for a second at most.
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

    /// Where to send it for a client that was dropped without being closed: without it, its server would wait for it to
    /// come back.
    pub(crate) fn unsent(&self) -> Option<Handle> {
        Handle::try_current().ok().filter(|_| !self.is_sent())
    }
}

/// Tells the server that the client leaves.
pub(crate) async fn send_delete(requester: Requester, headers: HeaderMap) {
    let end = requester.send(Method::DELETE, headers, Bytes::new());
    match tokio::time::timeout(FAREWELL, end).await {
        Ok(Ok(response)) => tracing::trace!(status = %response.status(), "the server knows of the end"),
        Ok(Err(failed)) => {
            tracing::debug!(error = %rescind_core::Shown::text(&failed.error), "the server did not hear of the end");
        }
        Err(_) => tracing::debug!("the server did not hear of the end in time"),
    }
}
