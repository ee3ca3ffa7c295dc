//! The tasks that handle the peer's notifications: one at a time, in arrival order, except methods that are handled out
//! of order.
//!
//! Handlers of requests are separate tasks. The handler of a request that arrived before a notification is polled once
//! before the notification's handler runs, so that a `session/cancel` finds the prompt that the peer sent just before
//! it. [`ArrivalOrder`](crate::ArrivalOrder) tells which requests arrived after the notification.
//!
//! Where the dialect or the router requires order, the task of a request waits, before it starts the handler, until the
//! handlers of the notifications before the request have ended. A cancel ends that wait, and the handler does not run.
//! In the same way the answer to a call waits for the notifications before it, if the call requires that.
//!
//! The end of the file has the other direction: notifications that this side sends.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tracing::Level;

use crate::byte_budget::MEMORY;
use crate::driver::admission::HandlerPhase;
use crate::driver::context::CallContext;
use crate::driver::effects::Entry;
use crate::driver::json_text::Frame;
use crate::driver::notifications::queue::{Admitted, Notice};
use crate::driver::outbox::{DataFrame, Notification};
use crate::driver::requests::RequestData;
use crate::driver::state::{ConnectionInner, DriverState, NotificationHandler, Notified};
use crate::error::CallError;
use crate::id::{ExchangeId, InboundKey, RequestId};
use crate::machine::Event;
use crate::sync::atomic::Ordering;

/// How long a notification waits for the first polls of handlers.
const FIRST_POLL_TIMEOUT: Duration = Duration::from_secs(1);

type HandledNotice = Notice<Arc<dyn NotificationHandler>>;

impl ConnectionInner {
    /// Queues a notification for the router. Above the limits it is dropped, counted and logged (I11).
    pub(crate) fn notice(self: &Arc<Self>, notice: HandledNotice) {
        let keeps_order = notice.handler.keeps_order();
        let admitted = self.step(|state, _, effects| {
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
                return Err(notice);
            }
            Ok(if keeps_order { state.notices.push(notice) } else { state.notices.push_concurrent(notice) })
        });
        let connection = Arc::clone(self);
        match admitted {
            // A notification above the limits is dropped here, without the lock (D2).
            Err(_) | Ok(Admitted::Behind) => {}
            Ok(Admitted::Concurrent(notice)) => {
                self.runtime.spawn(async move {
                    let concurrent = Concurrent { bytes: notice.weight(), connection };
                    handle(&concurrent.connection, notice).await;
                });
            }
            Ok(Admitted::First) => {
                self.runtime.spawn(async move {
                    while let Some(notice) = connection.next_notice() {
                        connection.let_handlers_begin(notice.number).await;
                        handle(&connection, notice).await;
                    }
                });
            }
        }
    }

    fn next_notice(&self) -> Option<HandledNotice> {
        let mut driver = None;
        let (notice, turns, answered, watchers) = {
            let mut state = self.lock();
            let notice = state.notices.pop();
            let (turns, watchers) = (state.notices.take_turns(), state.notices.take_watchers());
            let answered = state.release_answered();
            if state.notices.resumes() {
                state.dirty = true;
                driver = state.driver.take();
            }
            (notice, turns, answered, watchers)
        };
        turns.into_iter().chain(answered).chain(watchers).chain(driver).for_each(Waker::wake);
        notice
    }

    /// Waits until the handlers of the notifications that have arrived so far have ended.
    pub(crate) async fn notifications_handled(&self) {
        let after = self.lock().notices.last_open();
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let mut state = self.lock();
            if after == 0 || state.notices.is_handled(after) {
                return Poll::Ready(());
            }
            state.notices.watch(waker);
            Poll::Pending
        })
        .await;
    }

    /// Waits until the handlers that were started for requests before this notification have been polled once, for at
    /// most [`FIRST_POLL_TIMEOUT`]: a handler may block its thread.
    async fn let_handlers_begin(&self, number: u64) {
        if self.beginning.load(Ordering::SeqCst) == 0 {
            return;
        }
        let beginning: Vec<_> = {
            let state = self.lock();
            let requests = state.inbound.values().filter(|slot| slot.task == HandlerPhase::Running);
            requests
                .map(|slot| Arc::clone(&slot.request))
                .filter(|request| request.data.came_after() < number && !request.data.has_begun())
                .collect()
        };
        let all = async {
            for request in beginning {
                request.data.begun().await;
            }
        };
        let _ = tokio::time::timeout(FIRST_POLL_TIMEOUT, all).await;
    }
}

/// Counts a notification that is handled out of order, until its handler ends.
struct Concurrent {
    connection: Arc<ConnectionInner>,
    bytes: usize,
}

impl Drop for Concurrent {
    fn drop(&mut self) {
        self.connection.lock().notices.concurrent_done(self.bytes);
    }
}

async fn handle(connection: &Arc<ConnectionInner>, notice: HandledNotice) {
    let Notice { handler, method, params, number } = notice;
    let notified = Notified { connection: Arc::clone(connection), method: Arc::clone(&method), number };
    let work = AssertUnwindSafe(|| handler.handle(notified, params));
    let panicked = match catch_unwind(work) {
        Ok(work) => catch(work).await.is_err(),
        Err(_) => true,
    };
    if panicked {
        tracing::warn!(rpc.method = %crate::log_text::LogText::name(&method), "the handler of a notification panicked");
    }
}

/// Polls a future to its end and catches its panic.
async fn catch<F: Future>(future: F) -> Result<F::Output, Box<dyn std::any::Any + Send>> {
    let mut future = pin!(future);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// Tells which requests arrived before a notification on its connection.
///
/// Handlers run concurrently, so the order in which they run is not the order of arrival. A notification that concerns
/// only the requests before it, such as ACP's `session/cancel`, uses this to leave later requests alone.
#[derive(Clone, Debug)]
pub struct ArrivalOrder {
    connection: Weak<ConnectionInner>,
    /// Its number among the notifications of the connection.
    number: u64,
}

impl ArrivalOrder {
    pub(crate) fn of(notified: &Notified) -> Self {
        Self { connection: Arc::downgrade(&notified.connection), number: notified.number }
    }

    /// Whether the notification arrived before the request on the same connection. `false` for a request of another
    /// connection. Call it while the notification's handler runs: for a request that arrived after the handler ended it
    /// returns `false` too.
    #[must_use]
    pub fn is_before(&self, request: &CallContext) -> bool {
        std::ptr::eq(self.connection.as_ptr(), Arc::as_ptr(request.connection()))
            && request.data().came_after() >= self.number
    }
}

// Notifications of this side, on their way into the outbox.

impl ConnectionInner {
    /// Queues a notification once there is room for it.
    pub(crate) async fn notify(
        self: &Arc<Self>,
        frame: Frame,
        owner: Option<&RequestData>,
    ) -> Result<(), CallError> {
        let mut frame = Some(frame);
        let mut waits = Waits { connection: self, waiter: None };
        poll_fn(|cx| self.poll_notify(&mut frame, owner, Some((cx, &mut waits.waiter)))).await
    }

    /// Queues a notification if there is room for it now.
    pub(crate) fn try_notify(
        self: &Arc<Self>,
        frame: Frame,
        owner: Option<&RequestData>,
    ) -> Result<(), CallError> {
        match self.poll_notify(&mut Some(frame), owner, None) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(CallError::OutboxFull),
        }
    }

    fn poll_notify(
        self: &Arc<Self>,
        frame: &mut Option<Frame>,
        owner: Option<&RequestData>,
        waits: Option<(&mut Context<'_>, &mut Option<u64>)>,
    ) -> Poll<Result<(), CallError>> {
        let token = owner
            .and(frame.as_ref())
            .and_then(|frame| self.dialect.codec().reported_token(&frame.method, frame.params.as_deref()));
        let mut replaced = None;
        let queued = self.step(|state, now, effects| {
            match owner {
                Some(owner) if !state.session.may_notify(owner.key) => {
                    return Poll::Ready(Err(CallError::Ended));
                }
                None if state.end.is_some() || state.close.is_some() => {
                    return Poll::Ready(Err(CallError::Disconnected { may_have_run: false }));
                }
                Some(_) | None => {}
            }
            let Some(Frame { method, params }) = frame.take() else { return Poll::Ready(Ok(())) };
            let exchange = owner.map_or(ExchangeId::NONE, RequestData::frame_exchange);
            let notification = Notification { owner: owner.map(|owner| owner.key), exchange, method, params };
            let weight = notification.weight();
            // An empty outbox always accepts one: a task that waits is woken when frames of this connection are
            // written, not when other connections give bytes back.
            let fits = state.outbox.takes_any() || self.budget.has_room(weight);
            if !fits || !state.outbox.has_room(state.session.limits(), weight) {
                *frame = Some(Frame { method: notification.method, params: notification.params });
                if let Some((cx, waiter)) = waits {
                    replaced = state.notifiers.wait(waiter, owner.map(|owner| owner.key), cx.waker());
                }
                return Poll::Pending;
            }
            if let (Some(owner), Some(token)) = (owner, token) {
                state.report_under(owner.key, token);
            }
            if let Some(owner) = owner {
                let told = (&*notification.method, notification.params.as_deref());
                state.record_notification(self, owner.key, told, now, effects);
            }
            if let Some(slot) = owner.and_then(|owner| state.inbound.get_mut(owner.key.0)) {
                slot.add_frame();
            }
            state.outbox.push_data(DataFrame::Notification(notification));
            Poll::Ready(Ok(()))
        });
        drop(replaced);
        queued
    }
}

impl DriverState {
    /// A handler reports with this token.
    pub(crate) fn report_under(&mut self, key: InboundKey, token: RequestId) {
        if let Some(slot) = self.inbound.get_mut(key.0) {
            self.reported.add(key, &mut slot.extras().tokens, token);
        }
    }
}

/// Removes its entry from the tasks that wait for room, however the wait ends.
struct Waits<'a> {
    connection: &'a ConnectionInner,
    waiter: Option<u64>,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter else { return };
        let waker = self.connection.lock().notifiers.leave(waiter);
        drop(waker);
    }
}
