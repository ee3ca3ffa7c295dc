//! Notifications of this side, on their way into the outbox.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::driver::json_text::Frame;
use crate::driver::outbox::{DataFrame, Notification};
use crate::driver::requests::RequestData;
use crate::driver::state::{ConnectionInner, State};
use crate::error::CallError;
use crate::id::{ExchangeId, InboundKey, RequestId};

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
        let queued = self.step(|state, _, _| {
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
            let exchange = owner.map_or(ExchangeId::NONE, RequestData::exchange);
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

impl State {
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
