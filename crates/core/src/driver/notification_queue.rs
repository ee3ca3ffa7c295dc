//! Notifications of the peer on their way to the router's handlers: one at a time, in arrival order.
//!
//! Handlers of requests are tasks beside them. One that was started before a notification came has been polled once
//! before the notification's handler runs, so that what it did first is seen: a `session/cancel` finds the prompt the
//! peer sent just before it. Which of the requests that run came after it, its [`ArrivalOrder`] tells.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tracing::Level;

use super::admission::Task;
use super::context::CallContext;
use super::log::Entry;
use super::params::unpinned;
use super::peer::Peer;
use super::router::{NotificationHandler, Told};
use super::shared::{ConnectionInner, State};
use super::task::catch;
use crate::byte_budget::MEMORY;
use crate::machine::{Event, Limits};
use crate::sync::atomic::Ordering;

/// How long a notification waits for the first polls of handlers.
const BEGIN_LIMIT: Duration = Duration::from_secs(1);

/// Where a notification stood among the requests of its connection.
///
/// Handlers run beside one another, so when one's code runs says nothing of what came first on the wire. A notification
/// that means the requests before it, as ACP's `session/cancel` does, asks its place and leaves the later ones alone.
#[derive(Clone, Debug)]
pub struct ArrivalOrder {
    connection: Weak<ConnectionInner>,
    /// It was the connection's so many-th.
    number: u64,
}

impl ArrivalOrder {
    /// Whether the notification came before the request, on the same connection. Between connections there is no order:
    /// `false`. To be asked while the notification's handler runs; for a request that came after its end it is `false`
    /// too.
    #[must_use]
    pub fn is_before(&self, request: &CallContext) -> bool {
        let request = request.request();
        std::ptr::eq(self.connection.as_ptr(), Arc::as_ptr(&request.shared))
            && request.came_after() >= self.number
    }
}

/// A notification that waits for its handler.
pub(super) struct Notice {
    pub(super) handler: Arc<dyn NotificationHandler>,
    pub(super) method: Arc<str>,
    pub(super) params: Option<Bytes>,
    number: u64,
}

impl Notice {
    pub(super) const fn new(
        handler: Arc<dyn NotificationHandler>,
        method: Arc<str>,
        params: Option<Bytes>,
    ) -> Self {
        Self { handler, method, params, number: 0 }
    }

    fn weight(&self) -> usize {
        self.method.len() + self.params.as_ref().map_or(0, Bytes::len)
    }
}

/// The queue of notifications.
#[derive(Default)]
pub(super) struct NotificationQueue {
    waiting: VecDeque<Notice>,
    bytes: usize,
    /// So many were taken in.
    number: u64,
    /// Handlers of methods that are not kept in order.
    concurrent: usize,
    /// A task works the queue off.
    worked: bool,
    pub(super) dropped: u64,
}

impl NotificationQueue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.concurrent
    }

    /// The last notification of those that are not done with; a request that comes now is after it. 0: there is none.
    pub(super) const fn last_open(&self) -> u64 {
        if self.worked { self.number } else { 0 }
    }

    /// Bytes that wait.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    fn has_room(&self, limits: &Limits, weight: usize) -> bool {
        self.len() < limits.notifications && self.bytes + weight <= limits.notification_bytes
    }
}

impl ConnectionInner {
    /// Takes in a notification for the router. Over the limits it is dropped, counted and told (I11).
    pub(super) fn notice(self: &Arc<Self>, mut notice: Notice) {
        let keeps_order = notice.handler.keeps_order();
        let job = self.step(|state, _, effects| {
            let weight = notice.weight();
            let full = if !state.notices.has_room(state.session.limits(), weight) {
                Some("notifications")
            } else if !self.budget.has_room(weight) {
                Some(MEMORY)
            } else {
                None
            };
            if let Some(limit) = full {
                state.notices.dropped += 1;
                effects.rare().events.push(Event::LimitReached(limit));
                effects.log(Level::DEBUG, || Entry::NotificationDropped(Arc::clone(&notice.method)));
                return Job::None;
            }
            state.notices.number += 1;
            notice.number = state.notices.number;
            state.notices.bytes += weight;
            if !keeps_order {
                state.notices.concurrent += 1;
                return Job::Alone(notice);
            }
            let waits = std::mem::replace(&mut state.notices.worked, true);
            if waits {
                notice.params = notice.params.map(unpinned);
            }
            state.notices.waiting.push_back(notice);
            if waits { Job::None } else { Job::Queue }
        });
        let shared = Arc::clone(self);
        match job {
            Job::None => {}
            Job::Alone(notice) => {
                self.runtime.spawn(async move {
                    let ends = EndsAlone { bytes: notice.weight(), shared };
                    handle(&ends.shared, notice).await;
                });
            }
            Job::Queue => {
                self.runtime.spawn(async move {
                    while let Some(notice) = shared.next_notice() {
                        shared.let_handlers_begin().await;
                        handle(&shared, notice).await;
                    }
                });
            }
        }
    }

    /// Waits for handlers that were started and not polled yet; for one that keeps its thread busy, not for long.
    async fn let_handlers_begin(&self) {
        if self.beginning.load(Ordering::SeqCst) == 0 {
            return;
        }
        let beginning: Vec<_> = {
            let state = self.lock();
            let requests = state.inbound.values().filter(|slot| slot.task == Task::Running);
            requests.map(|slot| Arc::clone(&slot.request)).filter(|request| !request.has_begun()).collect()
        };
        let all = async {
            for request in beginning {
                request.begun().await;
            }
        };
        let _ = tokio::time::timeout(BEGIN_LIMIT, all).await;
    }

    fn next_notice(&self) -> Option<Notice> {
        let mut state = self.lock();
        let notices = &mut state.notices;
        let notice = notices.waiting.pop_front();
        match &notice {
            Some(notice) => notices.bytes -= notice.weight(),
            None => notices.worked = false,
        }
        notice
    }
}

enum Job {
    None,
    Alone(Notice),
    Queue,
}

/// Gives the place of a handler that is not kept in order back, however it ends.
struct EndsAlone {
    shared: Arc<ConnectionInner>,
    bytes: usize,
}

impl Drop for EndsAlone {
    fn drop(&mut self) {
        let notices = &mut self.shared.lock().notices;
        notices.concurrent -= 1;
        notices.bytes -= self.bytes;
    }
}

async fn handle(shared: &Arc<ConnectionInner>, notice: Notice) {
    let Notice { handler, method, params, number } = notice;
    let place = ArrivalOrder { connection: Arc::downgrade(shared), number };
    let told = Told { peer: Peer::new(shared), method: Arc::clone(&method), place };
    let work = std::panic::AssertUnwindSafe(|| handler.handle(told, params));
    let panicked = match std::panic::catch_unwind(work) {
        Ok(work) => catch(work).await.is_err(),
        Err(_) => true,
    };
    if panicked {
        tracing::warn!(rpc.method = %crate::shown::Shown::name(&method), "the handler of a notification panicked");
    }
}

impl State {
    /// Forgets what waits; the connection is gone.
    pub(super) fn drop_notices(&mut self) -> impl Sized + use<> {
        let waiting = std::mem::take(&mut self.notices.waiting);
        self.notices.bytes -= waiting.iter().map(Notice::weight).sum::<usize>();
        waiting
    }
}

#[cfg(test)]
mod tests {
    use super::super::router::Router;
    use super::*;

    #[test]
    fn there_is_room_up_to_the_last_notification_and_the_last_byte() {
        let mut limits = Limits::default();
        (limits.notifications, limits.notification_bytes) = (3, 15);
        let notices =
            |concurrent, bytes| NotificationQueue { bytes, concurrent, ..NotificationQueue::default() };
        for (notices, weight, has_room) in [
            (notices(0, 0), 15, true),
            (notices(0, 0), 16, false),
            (notices(2, 10), 5, true),
            (notices(2, 10), 6, false),
            (notices(3, 0), 0, false),
        ] {
            let (len, bytes) = (notices.len(), notices.bytes);
            let told = format!("{weight} bytes beside {len} notifications of {bytes}");
            assert_eq!(notices.has_room(&limits, weight), has_room, "I11: {told}");
        }
    }
    #[test]
    fn a_notification_weighs_its_method_and_its_params() {
        let router = Router::new().notification("ab", |_, _: serde_json::Value| async {});
        let (method, handler) = router.route_notification("ab").unwrap();
        for (params, weight) in [(None, 2), (Some("[1]"), 5)] {
            let notice = Notice::new(Arc::clone(&handler), Arc::clone(&method), params.map(Bytes::from));
            assert_eq!(notice.weight(), weight, "I11");
        }
    }
}
