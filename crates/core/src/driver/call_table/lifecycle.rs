//! Calls of this side, from their start until their handles have read how they ended.
//!
//! # Parent and child on two connections, as in a gateway
//!
//! The machine of the parent identifies the child by a number. The driver of the parent keeps, for that number, the
//! action that cancels the child. The locks of two connections are never held together (D3), so the child is registered
//! in three steps: `ForeignParent::adopt`, `start_call` on the child's connection, and `place_child`. A cancel that
//! arrives between them is found by the last step.

use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Instant;

use tracing::Level;

use crate::cause::{Cancelled, Cause, CauseKind};
use crate::driver::call_table::{
    AnswerContent, CallEntry, EntryExtras, EntryUsers, RemoteAction, Settled, StagedCall, Started,
};
use crate::driver::effects::{Effects, Entry, end_of_call};
use crate::driver::notifications::Matcher;
use crate::driver::notifications::queue::NotificationQueue;
use crate::driver::outbox::DataFrame;
use crate::driver::state::{ConnectionInner, DriverState, Payload};
use crate::failpoint::{self, Failpoint};
use crate::id::{CallNumber, ExchangeId, InboundKey, OutboundKey, SlotKey};
use crate::machine::{AfterCancel, CallRefused, CallSpec, CancelResult, ForeignChild, Settlement};
use crate::message::ErrorObject;
use crate::sync::atomic::Ordering;

impl DriverState {
    /// Stages a call, which takes `extras`. A refused call leaves them.
    pub(crate) fn start_call(
        &mut self,
        connection: &ConnectionInner,
        now: Instant,
        spec: &CallSpec<'_>,
        mut frame: Box<StagedCall>,
        extras: &mut Option<Box<EntryExtras>>,
        effects: &mut Effects,
    ) -> Result<Started, CallRefused> {
        let (key, number) = self.session.local_call(now, spec)?;
        let exchange = self.exchange_of_call(connection, spec, number);
        let (method, index) = self.methods.share(frame.method);
        frame.method = Arc::clone(&method);
        let mut extras = extras.take();
        let own_exchange = exchange.call().is_some();
        if exchange.is_peers() {
            extras.get_or_insert_default().exchange = Some(exchange);
        }
        if connection.dialect.rules().handshake == Some(spec.method) {
            extras.get_or_insert_default().shakes = true;
        }
        let slot_key = SlotKey(self.calls.insert(CallEntry {
            key,
            own_exchange,
            frame: Some(frame),
            settled: None,
            ended: false,
            users: EntryUsers::HANDLE,
            method: index,
            made: self.last_stamp.of(now, connection.opened),
            waker: None,
            extras,
        }));
        self.outbound.insert(key.0, slot_key);
        self.outbox.push_data(DataFrame::Call(slot_key));
        self.record_call(connection, slot_key, now, effects);
        Ok(Started { slot_key, number, method })
    }

    /// The exchange of a call. On transports where this side opens exchanges, each call opens one, also the call of a
    /// handler. On other transports the call of a handler is sent on the exchange of its parent.
    fn exchange_of_call(
        &self,
        connection: &ConnectionInner,
        spec: &CallSpec<'_>,
        number: CallNumber,
    ) -> ExchangeId {
        if connection.traits.opens_exchanges {
            return ExchangeId::of_call(number);
        }
        let parent = spec.parent.and_then(|parent| self.inbound.get(parent.0));
        parent.map_or(ExchangeId::NONE, |parent| parent.request.data.frame_exchange())
    }

    pub(crate) fn cancel_entry(
        &mut self,
        now: Instant,
        slot_key: SlotKey,
        cause: Cause,
        after: Option<AfterCancel>,
    ) -> CancelResult {
        match self.calls.get(slot_key.0) {
            // The machine would return the same for a call that has ended. Most handles are dropped after the end of
            // their call.
            Some(entry) if !entry.ended => self.session.local_cancel_call(now, entry.key, cause, after),
            Some(_) | None => CancelResult::AlreadySettled,
        }
    }

    /// The handle of a call is dropped.
    pub(crate) fn drop_call(&mut self, now: Instant, slot_key: SlotKey, effects: &mut Effects) {
        let after = Some(AfterCancel::ReturnNow);
        let _ = self.cancel_entry(now, slot_key, Cause::new(CauseKind::Dropped), after);
        self.release_call(slot_key, effects);
    }

    /// The handle of a call does not read it any more.
    pub(crate) fn release_call(&mut self, slot_key: SlotKey, effects: &mut Effects) {
        let Some(entry) = self.calls.get_mut(slot_key.0) else { return };
        entry.users.remove(EntryUsers::HANDLE);
        effects.wake(entry.waker.take());
        self.remove_if_done(slot_key);
    }

    pub(crate) fn remove_if_done(&mut self, slot_key: SlotKey) {
        if self.calls.get(slot_key.0).is_some_and(CallEntry::is_done) {
            self.calls.remove(slot_key.0);
        }
    }

    /// The machine has settled a call.
    pub(crate) fn deliver_settlement(
        &mut self,
        call: OutboundKey,
        settlement: Settlement,
        payload: &mut Payload<'_>,
        effects: &mut Effects,
    ) {
        let content = match (&settlement, payload) {
            (Settlement::Answered { .. }, Payload::AnswerContent(content)) => content.take(),
            (Settlement::Answered { .. }, Payload::None | Payload::Request(_) | Payload::Offer(_))
            | (Settlement::Cancelled { .. } | Settlement::Disconnected { .. }, _) => None,
        };
        // As `entry_of`, which would borrow the whole state.
        let Some(&slot_key) = self.outbound.get(call.0) else { return };
        let Some(entry) = self.calls.get_mut(slot_key.0) else { return };
        let is_error = matches!(content, Some(AnswerContent::Error(_) | AnswerContent::Malformed(_)));
        let forgotten = failpoint::active(Failpoint::ForgottenCallers)
            && matches!(settlement, Settlement::Disconnected { .. });
        // An open span is closed here, whatever the present level is.
        let logged = |span| {
            let (outcome, source) = end_of_call(&settlement, is_error);
            Entry::CallEnded { span, source, outcome }
        };
        match entry.extras.as_mut().and_then(|extras| extras.span.take()) {
            Some(span) => effects.rare().log.push(logged(Some(span))),
            None => effects.log(Level::TRACE, || logged(None)),
        }
        entry.ended = true;
        let settled = match (settlement, content) {
            (Settlement::Answered { cancelled }, Some(AnswerContent::Value(value))) => {
                Settled::Value { value, after_cancel: cancelled.is_some() }
            }
            (Settlement::Answered { .. }, Some(AnswerContent::Error(error))) => Settled::Error(error),
            (Settlement::Answered { .. }, Some(AnswerContent::Malformed(what))) => Settled::Malformed(what),
            (Settlement::Answered { .. }, Some(AnswerContent::Cancelled) | None) => {
                Settled::Error(ErrorObject::internal())
            }
            (Settlement::Cancelled { cause, confirmed }, _) => {
                Settled::Cancelled(Cancelled::new(cause, confirmed))
            }
            (Settlement::Disconnected { may_have_run }, _) => Settled::Disconnected { may_have_run },
        };
        entry.frame = None;
        // A handle that was dropped reads nothing.
        entry.settled = entry.users.has(EntryUsers::HANDLE).then(|| Box::new(settled));
        if !hold_back(entry, slot_key, &mut self.notices) {
            effects.wake(entry.waker.take().filter(|_| !forgotten));
        }
        let waits = entry.users.has(EntryUsers::CANCEL);
        if let Some(extras) = entry.extras.as_mut() {
            let readers = std::mem::take(&mut extras.readers);
            effects.wake(extras.ack_waker.take());
            effects.rare().watches.append(&mut extras.watches);
            effects.rare().parent_releases.extend(extras.release_parent.take());
            if let Some(inbox) = extras.inbox.take() {
                self.progress_readers -= usize::from(inbox.reads_progress);
                effects.rare().inboxes.push(inbox);
            }
            // No notification belongs to a call that has ended.
            effects
                .rare()
                .matchers
                .extend(readers.into_iter().filter_map(|reader| self.matchers.remove(reader)));
        }
        if !waits {
            self.outbound.remove(call.0);
        }
        self.remove_if_done(slot_key);
    }

    /// Settles the calls that waited only for notifications, and returns the wakers of their handles.
    #[must_use]
    pub(crate) fn release_answered(&mut self) -> Vec<Waker> {
        let due = self.notices.take_answered();
        due.into_iter()
            .filter_map(|slot_key| {
                // A call whose handle was dropped has no entry any more.
                let entry = self.calls.get_mut(slot_key.0)?;
                entry.settled = entry.extras().held_back.take();
                entry.waker.take()
            })
            .collect()
    }

    /// Adds a reader to a call. If the call has ended, the reader is returned, and the caller drops it without the lock
    /// (D2): no notification belongs to a call that has ended.
    #[must_use]
    pub(crate) fn match_for(&mut self, slot_key: SlotKey, matcher: Matcher) -> Option<Matcher> {
        match self.calls.get_mut(slot_key.0) {
            Some(entry) if !entry.ended => {
                entry.extras().readers.push(self.matchers.add(matcher));
                None
            }
            Some(_) | None => Some(matcher),
        }
    }
}

/// Holds back how a call ended, if its handle must get it after notifications that are not handled yet.
fn hold_back<H>(entry: &mut CallEntry, slot_key: SlotKey, notices: &mut NotificationQueue<H>) -> bool {
    let Some(extras) = entry.extras.as_mut().filter(|extras| extras.in_order) else { return false };
    let after = notices.last_open();
    let waits = after > 0 && !matches!(entry.settled.as_deref(), Some(Settled::Cancelled(_)));
    if waits {
        extras.held_back = entry.settled.take();
        notices.answer_after(after, slot_key);
    }
    waits
}

impl ConnectionInner {
    /// Counts one more handle, which keeps the connection open.
    pub(crate) fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one handle less. The last one closes the connection, unless this side serves. Detached calls may end
    /// first, within the drain deadline.
    pub(crate) fn drop_handle(self: &Arc<Self>) {
        if self.handles.fetch_sub(1, Ordering::AcqRel) == 1 && !self.serves {
            self.step(|state, now, _| {
                let drain = state.session.limits().drain_timeout;
                state.session.local_shutdown(now, drain);
            });
        }
    }
}

/// A parent on another connection.
pub(crate) struct ForeignParent {
    connection: Weak<ConnectionInner>,
    key: InboundKey,
    child: ForeignChild,
}

impl ForeignParent {
    /// The first step: makes the parent expect a child, if it may have one.
    pub(crate) fn adopt(connection: &Arc<ConnectionInner>, key: InboundKey) -> Result<Self, CallRefused> {
        connection.step(|state, now, _| {
            let child = ForeignChild(state.next_foreign);
            state.session.local_adopt(now, key, child)?;
            state.next_foreign += 1;
            state.foreign.insert(child.0, None);
            Ok(Self { connection: Arc::downgrade(connection), key, child })
        })
    }

    pub(crate) const fn child(&self) -> ForeignChild {
        self.child
    }

    /// Releases the parent: the child has ended, or was not started.
    pub(crate) fn into_release(self) -> RemoteAction {
        Box::new(move || {
            if let Some(connection) = self.connection.upgrade() {
                connection.step(|state, _, _| {
                    state.foreign.remove(&self.child.0);
                    state.session.local_release(self.key, self.child);
                });
            }
        })
    }
}

/// The last step: passes the action that cancels the child to the parent's connection. If the parent is cancelled
/// already, the child is cancelled at once. If the child has ended, that has no effect.
pub(crate) fn place_child(
    parent: &ConnectionInner,
    child: ForeignChild,
    connection: &Arc<ConnectionInner>,
    call: SlotKey,
) {
    let connection = Arc::downgrade(connection);
    let cancel: RemoteAction = Box::new(move || {
        if let Some(connection) = connection.upgrade() {
            connection.step(|state, now, _| {
                let _ = state.cancel_entry(now, call, Cause::new(CauseKind::Parent), None);
            });
        }
    });
    let missed = {
        let mut state = parent.lock();
        match state.foreign.get_mut(&child.0) {
            Some(known) => known.replace(cancel),
            None => Some(cancel),
        }
    };
    if let Some(cancel) = missed {
        cancel();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio_util::sync::CancellationToken;

    use crate::dialect::ACP;
    use crate::driver::context::CallContext;
    use crate::driver::peer::Peer;
    use crate::driver::router::Router;
    use crate::transport::memory_pair;

    /// Entries are not visible from outside.
    #[tokio::test]
    async fn calls_that_are_not_awaited_leave_no_entry() {
        let (near, far) = memory_pair();
        let router = Router::new()
            .method("echo", |_: CallContext, reported: Value| async move { Ok(reported) })
            .method("wait", |ctx: CallContext, _: Value| async move {
                let cause = ctx.cancelled().await;
                ctx.stopped::<Value>(cause)
            });
        let _server = Peer::builder(ACP).serve(router).attach(far).unwrap();
        let peer = Peer::builder(ACP).attach(near).unwrap();
        let start = |method| peer.call::<_, Value>(method, &json!({})).progress().start().unwrap();
        let settle = async || {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        };
        let (given_up, answered) = (start("wait"), start("echo"));
        let reader = given_up.notifications_where(|_| true);
        settle().await;
        // This reader is added after the end of the call, so it gets nothing.
        let late = answered.notifications_where(|_| true);
        let token = CancellationToken::new();
        let canceller = answered.canceller();
        canceller.cancel_on(token.clone());
        drop((given_up, answered));
        settle().await;
        let state = peer.connection().lock();
        assert_eq!((state.calls.len(), state.outbound.taken()), (0, 0), "I3: a call keeps its entry");
        assert_eq!(state.progress_readers, 0, "I3: a reader of progress is counted that has gone");
        assert!(state.matchers.all().is_none(), "I3: the reader of an ended call is still asked");
        drop((state, reader, late, canceller));
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        assert_eq!(tasks, 2, "I3: a task waits for the token of a call that has ended");
        drop(token);
    }
}
