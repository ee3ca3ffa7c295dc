//! A call in flight.

pub(crate) mod builder;

use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::cause::{Cause, CauseKind, Outcome};
use crate::driver::call_table::{EntryUsers, Settled};
use crate::driver::notifications::{Inbox, Matcher, Notification, Notifications};
use crate::driver::state::ConnectionInner;
use crate::error::CallError;
use crate::id::{ExchangeId, RequestId, SlotKey};
use crate::machine::CancelResult;
use crate::message::Deviation;

/// A call in flight: a future of its answer. Dropping it cancels the call (ACPDRAFT-09, ACPRFD-06, ABP-04).
///
/// The future returns a value also if a cancel was requested and came too late; [`outcome`](Self::outcome) tells the
/// two apart.
///
/// # Cancel safety
/// Dropping a future that polls the call by reference loses nothing. Dropping the call itself cancels it with the cause
/// `Dropped` and does not wait for the peer. It can be dropped outside a runtime and after the connection has closed.
///
/// # Example
/// ```
/// use rescind_core::{CallContext, Outcome, Peer, Router, dialect, memory_pair};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (client, server) = memory_pair();
/// let router = Router::new().method("double", async |_: CallContext, (number,): (u32,)| Ok(2 * number));
/// let _server = Peer::builder(dialect::ACP).serve(router).attach(server)?;
/// let peer = Peer::builder(dialect::ACP).attach(client)?;
///
/// let call = peer.call::<_, u32>("double", &[21]).start()?;
/// assert_eq!(call.outcome().await, Outcome::Completed(42));
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a call cancels it"]
pub struct Call<R> {
    connection: Arc<ConnectionInner>,
    method: Arc<str>,
    state: CallProgress,
    inbox: Option<Arc<Inbox>>,
    answer: PhantomData<fn() -> R>,
}

enum CallProgress {
    Open(SlotKey),
    /// Settled before it was sent. Boxed, because few calls are, and each call in flight has a handle.
    Settled(Box<Settled>),
    /// Its answer was returned.
    Done,
}

impl<R> Call<R> {
    pub(crate) fn started(
        connection: &Arc<ConnectionInner>,
        method: Arc<str>,
        slot_key: SlotKey,
        inbox: Option<Arc<Inbox>>,
    ) -> Self {
        Self::new(connection, method, CallProgress::Open(slot_key), inbox)
    }

    pub(crate) fn settled(connection: &Arc<ConnectionInner>, method: Arc<str>, settled: Settled) -> Self {
        Self::new(connection, method, CallProgress::Settled(Box::new(settled)), None)
    }

    fn new(
        connection: &Arc<ConnectionInner>,
        method: Arc<str>,
        state: CallProgress,
        inbox: Option<Arc<Inbox>>,
    ) -> Self {
        connection.add_handle();
        Self { connection: Arc::clone(connection), method, state, inbox, answer: PhantomData }
    }

    /// A handle that cancels the call from any task or thread.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller::new(&self.connection, self.slot_key())
    }

    /// The peer's notifications for this call: those with its progress token, and those that
    /// [`notifications_where`](crate::CallBuilder::notifications_where) selects. A call made without
    /// [`progress`](crate::CallBuilder::progress) and `notifications_where` yields nothing. Several readers of one call
    /// share the notifications: each goes to one of them.
    pub fn notifications(&self) -> Notifications {
        Notifications::new(self.inbox.as_ref().map_or_else(closed_inbox, Arc::clone))
    }

    /// The notifications that `belongs` selects for this call, from now on. Earlier ones are missed;
    /// [`CallBuilder::notifications_where`](crate::CallBuilder::notifications_where) misses none. A selected
    /// notification goes to the first reader that selects it, and not to the router. `belongs` is called for every
    /// notification of the connection.
    pub fn notifications_where(
        &self,
        belongs: impl Fn(&Notification) -> bool + Send + Sync + 'static,
    ) -> Notifications {
        let Some(slot_key) = self.slot_key() else { return Notifications::new(closed_inbox()) };
        let inbox = Inbox::new(false);
        let matcher = Matcher { inbox: Arc::clone(&inbox), belongs: Arc::new(belongs) };
        let late = self.connection.lock().match_for(slot_key, matcher);
        if late.is_some() {
            inbox.close();
        }
        Notifications::new(inbox)
    }

    /// Waits for the acknowledgement of the call's cancel, in dialects that acknowledge cancels (ABP). Returns whether
    /// the peer says that the call is cancelled. `None`: the call ended without an acknowledgement.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn acknowledged(&mut self) -> Option<bool> {
        let slot_key = self.slot_key()?;
        poll_fn(|cx| {
            let mut state = self.connection.lock();
            let Some(entry) = state.calls.get_mut(slot_key.0) else { return Poll::Ready(None) };
            let settled = entry.ended;
            let extras = entry.extras();
            if settled || extras.acknowledged.is_some() {
                return Poll::Ready(extras.acknowledged);
            }
            let replaced = extras.ack_waker.replace(cx.waker().clone());
            drop(state);
            drop(replaced);
            Poll::Pending
        })
        .await
    }

    /// The exchange of the call's request, which [`TransportError::exchange`](crate::TransportError::exchange) names if the
    /// call fails alone ([`PeerBuilder::on_call_failure`](crate::PeerBuilder::on_call_failure)). `None`: the call has ended.
    #[must_use]
    pub fn exchange(&self) -> Option<ExchangeId> {
        let slot_key = self.slot_key()?;
        let state = self.connection.lock();
        let entry = state.calls.get(slot_key.0)?;
        state.session.call_number(entry.key).map(|number| entry.exchange(number))
    }

    /// The id of the call's request, as it is written. `None`: the call has ended.
    #[must_use]
    pub fn id(&self) -> Option<RequestId> {
        let slot_key = self.slot_key()?;
        let state = self.connection.lock();
        let entry = state.calls.get(slot_key.0)?;
        let number = state.session.call_number(entry.key)?;
        i64::try_from(number.0).ok().map(RequestId::number)
    }

    /// Drops the handle without cancelling the call. Its parent does not cancel it either.
    pub fn detach(mut self) {
        if let CallProgress::Open(slot_key) = std::mem::replace(&mut self.state, CallProgress::Done) {
            self.connection.step(|state, _, effects| {
                let Some(entry) = state.calls.get_mut(slot_key.0) else { return };
                let (key, open) = (entry.key, !entry.ended);
                let release = entry.extras.as_mut().and_then(|extras| extras.release_parent.take());
                if let Some(release) = release {
                    effects.rare().parent_releases.push(release);
                }
                if open {
                    state.session.local_detach(key);
                }
                state.release_call(slot_key, effects);
            });
        }
    }

    const fn slot_key(&self) -> Option<SlotKey> {
        match self.state {
            CallProgress::Open(slot_key) => Some(slot_key),
            CallProgress::Settled(_) | CallProgress::Done => None,
        }
    }

    fn poll_settled(&mut self, cx: &mut Context<'_>) -> Poll<Box<Settled>> {
        match std::mem::replace(&mut self.state, CallProgress::Done) {
            CallProgress::Settled(settled) => Poll::Ready(settled),
            CallProgress::Done => Poll::Pending,
            CallProgress::Open(slot_key) => {
                let mut state = self.connection.lock();
                let Some(entry) = state.calls.get_mut(slot_key.0) else { return Poll::Pending };
                if let Some(settled) = entry.settled.take() {
                    entry.users.remove(EntryUsers::HANDLE);
                    state.remove_if_done(slot_key);
                    return Poll::Ready(settled);
                }
                let replaced = match &mut entry.waker {
                    Some(waker) if waker.will_wake(cx.waker()) => None,
                    waker => waker.replace(cx.waker().clone()),
                };
                self.state = CallProgress::Open(slot_key);
                drop(state);
                drop(replaced);
                Poll::Pending
            }
        }
    }
}

impl<R: DeserializeOwned> Call<R> {
    /// Waits for the end of the call. A value that does not have the requested type is [`Outcome::Unreadable`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the call, which cancels it.
    pub async fn outcome(mut self) -> Outcome<R> {
        outcome_of(*poll_fn(|cx| self.poll_settled(cx)).await, &self.connection)
    }
}

impl<R: DeserializeOwned> Future for Call<R> {
    type Output = Result<R, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_settled(cx).map(|settled| match outcome_of(*settled, &self.connection) {
            Outcome::Completed(value) | Outcome::CompletedAfterCancel(value) => Ok(value),
            Outcome::Unreadable { what } => Err(CallError::Answer { method: self.method.to_string(), what }),
            Outcome::Failed(error) => Err(CallError::Failed(error)),
            Outcome::Cancelled(cancelled) => Err(CallError::Cancelled(cancelled)),
            Outcome::Disconnected { may_have_run } => Err(CallError::Disconnected { may_have_run }),
        })
    }
}

impl<R> Drop for Call<R> {
    fn drop(&mut self) {
        if let CallProgress::Open(slot_key) = self.state {
            self.connection.step(|state, now, effects| state.drop_call(now, slot_key, effects));
        }
        self.connection.drop_handle();
    }
}

impl<R> fmt::Debug for Call<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("method", &self.method).finish_non_exhaustive()
    }
}

/// Converts the end of a call into its outcome, and decodes its value.
fn outcome_of<R: DeserializeOwned>(settled: Settled, connection: &Arc<ConnectionInner>) -> Outcome<R> {
    let replaced = |sent: &[u8]| connection.deviates(Deviation::LoneSurrogate, sent);
    match settled {
        Settled::Value { value, after_cancel } => match value.read(replaced) {
            Ok(value) if after_cancel => Outcome::CompletedAfterCancel(value),
            Ok(value) => Outcome::Completed(value),
            Err(error) => {
                Outcome::Unreadable { what: format!("it does not have the requested type: {error}") }
            }
        },
        Settled::Error(error) => Outcome::Failed(error),
        Settled::Malformed(fault) => Outcome::Unreadable { what: fault.to_string() },
        Settled::Cancelled(cancelled) => Outcome::Cancelled(cancelled),
        Settled::Disconnected { may_have_run } => Outcome::Disconnected { may_have_run },
    }
}

fn closed_inbox() -> Arc<Inbox> {
    let inbox = Inbox::new(false);
    inbox.close();
    inbox
}

/// A call that was started by awaiting its builder. Dropping it cancels the call.
#[must_use = "futures do nothing unless they are polled"]
pub struct Starting<R>(Result<Call<R>, Option<CallError>>);

impl<R> Starting<R> {
    pub(crate) fn new(started: Result<Call<R>, CallError>) -> Self {
        Self(started.map_err(Some))
    }
}

impl<R: DeserializeOwned> Future for Starting<R> {
    type Output = Result<R, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Ok(call) => Pin::new(call).poll(cx),
            Err(error) => Poll::Ready(Err(error.take().unwrap_or(CallError::Ended))),
        }
    }
}

impl<R> fmt::Debug for Starting<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Starting").field(&self.0).finish()
    }
}

/// Cancels one call, from any thread, also outside a runtime. Cheap to clone. It does nothing once its call has ended
/// (ABP-31).
///
/// ```
/// use rescind_core::{CallContext, Outcome, Peer, Router, dialect, memory_pair};
/// use serde_json::{Value, json};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (client, server) = memory_pair();
/// let router = Router::new().method("wait", async |ctx: CallContext, _: Value| {
///     ctx.run_until_cancelled(std::future::pending::<()>()).await?;
///     Ok(Value::Null)
/// });
/// let _serving = Peer::builder(dialect::ACP).serve(router).attach(server)?;
/// let peer = Peer::builder(dialect::ACP).attach(client)?;
///
/// let call = peer.call::<_, Value>("wait", &json!({})).start()?;
/// let stop = call.canceller();
/// tokio::spawn(async move { stop.cancel("the user pressed stop") });
/// match call.outcome().await {
///     Outcome::Cancelled(cancelled) => assert_eq!(cancelled.cause.reason(), Some("the user pressed stop")),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Canceller {
    connection: Arc<ConnectionInner>,
    /// `None`: the call was settled before it began.
    slot_key: Option<SlotKey>,
}

impl Canceller {
    pub(crate) fn new(connection: &Arc<ConnectionInner>, slot_key: Option<SlotKey>) -> Self {
        Self { connection: Arc::clone(connection), slot_key }
    }

    /// Cancels the call. The reason is sent to the peer if the dialect has a field for it; an empty reason is not sent.
    /// Returns at once and says what was done. The call itself returns how it ended.
    #[expect(clippy::must_use_candidate, reason = "most callers need no result")]
    pub fn cancel(&self, reason: &str) -> CancelResult {
        let cause = Cause::new(CauseKind::Caller);
        self.cancel_because(if reason.is_empty() { cause } else { cause.with_reason(reason) })
    }

    /// Cancels the call with this cause. The first cause of a call is kept.
    #[expect(clippy::must_use_candidate, reason = "most callers need no result")]
    pub fn cancel_because(&self, cause: Cause) -> CancelResult {
        let Some(slot_key) = self.slot_key else { return CancelResult::AlreadySettled };
        self.connection.step(|state, now, _| state.cancel_entry(now, slot_key, cause, None))
    }

    /// A token that cancels the call when the token is cancelled.
    #[must_use]
    pub fn to_token(&self) -> CancellationToken {
        let token = CancellationToken::new();
        self.cancel_on(token.clone());
        token
    }

    /// Cancels the call when the token is cancelled. The task that waits for the token ends with the call.
    pub fn cancel_on(&self, token: CancellationToken) {
        let canceller = self.clone();
        self.watch(async move {
            token.cancelled().await;
            canceller.cancel_because(Cause::new(CauseKind::Caller));
        });
    }

    /// Runs a task that is aborted when the call ends.
    fn watch(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Some(slot_key) = self.slot_key else { return };
        let watch = self.connection.runtime.spawn(task).abort_handle();
        let late = {
            let mut state = self.connection.lock();
            match state.calls.get_mut(slot_key.0) {
                Some(entry) if !entry.ended => {
                    entry.extras().watches.push(watch);
                    None
                }
                Some(_) | None => Some(watch),
            }
        };
        if let Some(watch) = late {
            watch.abort();
        }
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller").field("connection", &self.connection).finish_non_exhaustive()
    }
}
