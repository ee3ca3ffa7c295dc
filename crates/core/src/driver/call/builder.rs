//! The options of a call before it starts.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::cause::{Cancelled, Cause, CauseKind};
use crate::dialect::{HandshakePart, TaskForm};
use crate::driver::call::{Call, Starting};
use crate::driver::call_table::lifecycle::{ForeignParent, place_child};
use crate::driver::call_table::{CallSpan, CallTime, EntryExtras, Setting, Settled, StagedCall, Started};
use crate::driver::context::CallContext;
use crate::driver::json_text::Frame;
use crate::driver::notifications::{Belongs, Inbox, Matcher, Notification};
use crate::driver::state::{ConnectionInner, now};
use crate::driver::task::TaskCall;
use crate::error::CallError;
use crate::machine::{AfterCancel, CallRefused, CallSpec};
use crate::message::CancelExemption;
use crate::trace_context::TraceContext;

/// A call that has not started. [`start`](Self::start) starts it; awaiting the builder starts it and waits for its
/// answer.
///
/// ```
/// # async fn example(peer: rescind_core::Peer) -> Result<(), rescind_core::CallError> {
/// let wait = std::time::Duration::from_secs(10);
/// let sum: u64 = peer.call("add", &[40, 2]).timeout(wait).await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a call begins when the builder is awaited or started"]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct CallBuilder<R> {
    connection: Arc<ConnectionInner>,
    frame: Result<Frame, CallError>,
    parent: Option<CallContext>,
    time: CallTime,
    tokens: Vec<CancellationToken>,
    detached: bool,
    after_cancel: Option<AfterCancel>,
    progress: bool,
    partial: bool,
    in_order: bool,
    belongs: Option<Belongs>,
    answer: PhantomData<fn() -> R>,
}

/// A call that takes a task as its answer.
pub(crate) struct CallForTask {
    pub(crate) form: TaskForm,
    /// The `_meta` of questions about the task.
    pub(crate) meta: Option<Box<RawValue>>,
    pub(crate) call: CallBuilder<Box<RawValue>>,
}

impl<R> CallBuilder<R> {
    pub(crate) fn new<P: Serialize + ?Sized>(
        connection: &Arc<ConnectionInner>,
        method: Arc<str>,
        params: &P,
    ) -> Self {
        Self::of_frame(connection, Frame::new(connection.max_frame, method, params))
    }

    pub(crate) fn of_frame(connection: &Arc<ConnectionInner>, frame: Result<Frame, CallError>) -> Self {
        Self {
            connection: Arc::clone(connection),
            frame,
            parent: None,
            time: CallTime::default(),
            tokens: Vec::new(),
            detached: false,
            after_cancel: None,
            progress: false,
            partial: false,
            in_order: false,
            belongs: None,
            answer: PhantomData,
        }
    }

    pub(crate) const fn connection(&self) -> &Arc<ConnectionInner> {
        &self.connection
    }

    /// The same call, which asks for a task or says that a task is an answer.
    pub(crate) fn asking_for_task(self, ttl: Option<u64>) -> Result<CallForTask, CallError> {
        let mut frame = self.frame?;
        let bad =
            |method: &str, what: &str| CallError::Params { method: method.to_owned(), what: what.to_owned() };
        let form = self.connection.dialect.rules().tasks;
        let form = form.ok_or_else(|| bad(&frame.method, "the protocol has no tasks"))?;
        let params = form.ask(frame.params.as_deref(), ttl);
        let params = params.ok_or_else(|| bad(&frame.method, "params that ask for a task are an object"))?;
        let meta = form.meta_of_questions(&params);
        frame = Frame::checked(self.connection.max_frame, frame.method, Some(params))?;
        let call = CallBuilder {
            connection: self.connection,
            frame: Ok(frame),
            parent: self.parent,
            time: self.time,
            tokens: self.tokens,
            detached: self.detached,
            after_cancel: self.after_cancel,
            progress: self.progress,
            partial: self.partial,
            in_order: self.in_order,
            belongs: self.belongs,
            answer: PhantomData,
        };
        Ok(CallForTask { form, meta, call })
    }

    /// Makes the call a child of a request that this side serves, on this connection or on another one (a gateway). The
    /// call is cancelled when the request is cancelled and when the request ends.
    pub fn child_of(mut self, parent: &CallContext) -> Self {
        self.parent = Some(parent.clone());
        self
    }

    /// Cancels the call after this time. It replaces the connection's
    /// [`call_timeout`](crate::PeerBuilder::call_timeout).
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.time.timeout = Setting::After(timeout);
        self
    }

    /// Disables the timeout of this call.
    pub const fn no_timeout(mut self) -> Self {
        self.time.timeout = Setting::Never;
        self
    }

    /// Requests [`progress`](Self::progress) and restarts the timeout with each progress notification, up to
    /// [`max_timeout`](Self::max_timeout) or the connection's
    /// [`max_call_timeout`](crate::PeerBuilder::max_call_timeout).
    pub const fn reset_timeout_on_progress(mut self) -> Self {
        self.time.is_renewed = true;
        self.progress = true;
        self
    }

    /// Cancels the call after this time, regardless of progress.
    pub const fn max_timeout(mut self, timeout: Duration) -> Self {
        self.time.max = Setting::After(timeout);
        self
    }

    /// Cancels the call when the token is cancelled (ACPDRAFT-09, ACPRFD-06, ABP-04). If the token is cancelled
    /// already, nothing is sent.
    pub fn cancel_on(mut self, token: CancellationToken) -> Self {
        self.tokens.push(token);
        self
    }

    /// The call continues when its parent is cancelled or ends.
    pub const fn detach(mut self) -> Self {
        self.detached = true;
        self
    }

    /// Sets how the caller proceeds after a cancel. It replaces the dialect's default.
    pub const fn after_cancel(mut self, after: AfterCancel) -> Self {
        self.after_cancel = Some(after);
        self
    }

    /// The call ends only after the handlers of the notifications that arrived before its answer have ended, except
    /// those of [`Router::concurrent_notification`](crate::Router::concurrent_notification). Use it where notifications
    /// and answers are passed on, as in a bridge. A cancelled call does not wait.
    ///
    /// The handler of a notification must not wait for such a call: each would wait for the other.
    pub const fn in_order(mut self) -> Self {
        self.in_order = true;
        self
    }

    /// Requests progress: the call carries a progress token, and [`Call::notifications`] yields the notifications with
    /// that token.
    pub const fn progress(mut self) -> Self {
        self.progress = true;
        self
    }

    /// Requests partial results, in a dialect that has them (LSP's `partialResultToken`). The call carries a token for
    /// them, and [`Call::notifications`] yields the notifications with that token too. A token that the params already
    /// contain is kept; its notifications are not yielded.
    pub const fn partial_results(mut self) -> Self {
        self.partial = true;
        self
    }

    /// [`Call::notifications`] yields the notifications that `belongs` selects. The selection starts before the call is
    /// sent, so no notification is missed. Together with [`progress`](Self::progress) both kinds are yielded.
    ///
    /// A selected notification goes to the first reader that selects it, and not to the router. `belongs` is called for
    /// every notification of the connection while the call is open.
    ///
    /// ```
    /// # use rescind_core::{CallContext, Peer, Router, dialect, memory_pair};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = memory_pair();
    /// # let router = Router::new().method("work", |ctx: CallContext, (): ()| async move { Ok(ctx.try_notify("step", &["one"])?) });
    /// # let _server = Peer::builder(dialect::ACP).serve(router).attach(server)?;
    /// # let peer = Peer::builder(dialect::ACP).attach(client)?;
    /// let call = peer.call::<_, ()>("work", &()).notifications_where(|told| told.method() == "step").start()?;
    /// let mut steps = call.notifications();
    /// assert_eq!(steps.next().await.and_then(|step| step.params().ok()), Some(["one".to_owned()]));
    /// call.await?;
    /// assert!(steps.next().await.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn notifications_where(
        mut self,
        belongs: impl Fn(&Notification) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.belongs = Some(Arc::new(belongs));
        self
    }

    /// Starts the call. It does not wait, and it does not fail if the outbox is full.
    ///
    /// # Errors
    /// [`CallError::Params`] if the params cannot be written as JSON or exceed the frame limit; [`CallError::TooMany`]
    /// if too many calls are in flight; [`CallError::Ended`] if the parent is answered already.
    pub fn start(mut self) -> Result<Call<R>, CallError> {
        let mut frame = self.frame?;
        let exempt = exempt_of(&self.connection, &frame);
        let handshake = self.connection.dialect.rules().handshake == Some(&*frame.method);
        let said = handshake.then(|| declare(&self.connection, &mut frame)).flatten();
        let method = Arc::clone(&frame.method);
        let born = |cause| {
            let settled = Settled::Cancelled(Cancelled::new(cause, true));
            Ok(Call::settled(&self.connection, Arc::clone(&method), settled))
        };
        if self.tokens.iter().any(CancellationToken::is_cancelled) {
            return born(Cause::new(CauseKind::Caller));
        }
        let mut spec = CallSpec::new(&method);
        let (now, rules, role) = (now(), self.connection.dialect.rules(), self.connection.role);
        let time = self.time.begin(now, self.connection.timeouts, rules, role, &method);
        spec.deadline = time.deadline;
        spec.exempt = exempt;
        spec.after_cancel = self.after_cancel;
        let parent = self.parent.take().filter(|_| !self.detached);
        let task = name_task(&mut frame, parent.as_ref());
        let refuse = |refused| match (refused, &parent) {
            (CallRefused::AlreadyCancelled(cause), Some(parent)) => refuse_child(parent, cause, born),
            (CallRefused::AlreadyCancelled(cause), None) => born(cause),
            (refused, _) => refused_call(&self.connection, &method, refused),
        };
        let own = parent.as_ref().filter(|parent| Arc::ptr_eq(parent.connection(), &self.connection));
        spec.parent = own.map(|parent| parent.data().key);
        let foreign = match parent.as_ref().filter(|_| own.is_none()).map(adopt).transpose() {
            Ok(foreign) => foreign,
            Err(refused) => return refuse(refused),
        };
        let child = foreign.as_ref().map(ForeignParent::child);
        let mut token = spec
            .parent
            .and_then(|_| self.connection.dialect.codec().reported_token(&method, frame.params.as_deref()));
        let span = open_span(&self.connection, &method);
        let staged = Box::new(StagedCall {
            method: Arc::clone(&method),
            params: frame.params,
            timeout: time.timeout,
            progress: self.progress,
            partial: self.partial,
        });
        let reads = self.progress || self.partial;
        let inbox = (reads || self.belongs.is_some()).then(|| Inbox::new(reads));
        let traced = self.connection.propagator.is_some();
        let has_extras = foreign.is_some()
            || inbox.is_some()
            || span.is_some()
            || traced
            || self.in_order
            || task.is_some();
        let mut extras = has_extras.then(|| {
            Box::new(EntryExtras {
                foreign_parent: foreign.as_ref().and(parent.as_ref()).map(CallContext::request_key),
                release_parent: foreign.map(ForeignParent::into_release),
                inbox: inbox.clone(),
                in_order: self.in_order,
                task,
                renewal: time.renewal,
                span: span.clone(),
                trace: trace_of(&self.connection, span.as_deref(), parent.as_ref()),
                ..EntryExtras::default()
            })
        });
        let (mut belongs, mut late) = (self.belongs, None);
        let started = self.connection.step_at(now, |state, now, effects| {
            let started = state.start_call(&self.connection, now, &spec, staged, &mut extras, effects)?;
            if let Some(said) = &said {
                state.session.handshake(HandshakePart::Params, said);
            }
            state.progress_readers += usize::from(reads);
            if let (Some(parent), Some(token)) = (spec.parent, token.take()) {
                state.report_under(parent, token);
            }
            if let (Some(inbox), Some(belongs)) = (&inbox, belongs.take()) {
                late = state.match_for(started.slot_key, Matcher { inbox: Arc::clone(inbox), belongs });
            }
            Ok(started)
        });
        // A refused call does not take it. Its drop may run code of the user, so it is done without the lock (D2).
        drop((belongs, late));
        if let Some(release) = extras.and_then(|extras| extras.release_parent) {
            release();
        }
        match started {
            Ok(Started { slot_key, number, method }) => {
                if let Some(span) = span {
                    span.record("jsonrpc.request.id", tracing::field::display(number.0));
                }
                if let (Some(parent), Some(child)) = (&parent, child) {
                    place_child(parent.connection(), child, &self.connection, slot_key);
                }
                let call = Call::started(&self.connection, method, slot_key, inbox);
                for token in self.tokens {
                    call.canceller().cancel_on(token);
                }
                Ok(call)
            }
            Err(refused) => refuse(refused),
        }
    }
}

/// A call that belongs to a task has the task's name.
fn name_task(frame: &mut Frame, parent: Option<&CallContext>) -> Option<TaskCall> {
    let task = parent?.data().task_side()?.task()?;
    frame.params = frame.params.take().map(|params| task.form.related(params, &task.id));
    Some(TaskCall::new(task))
}

/// Makes a request on another connection expect a child, if it may have one.
fn adopt(parent: &CallContext) -> Result<ForeignParent, CallRefused> {
    ForeignParent::adopt(parent.connection(), parent.data().key)
}

fn refused_call<R>(
    connection: &Arc<ConnectionInner>,
    method: &Arc<str>,
    refused: CallRefused,
) -> Result<Call<R>, CallError> {
    let settled = match refused {
        CallRefused::TooMany => {
            return Err(CallError::TooMany { limit: connection.lock().session.limits().max_calls });
        }
        CallRefused::AlreadyCancelled(cause) => Settled::Cancelled(Cancelled::new(cause, true)),
        CallRefused::Disconnected => Settled::Disconnected { may_have_run: false },
    };
    Ok(Call::settled(connection, Arc::clone(method), settled))
}

/// A child of a cancelled request is cancelled at its start (I5). A child of an answered request is refused.
fn refuse_child<R>(
    parent: &CallContext,
    cause: Cause,
    born: impl FnOnce(Cause) -> Result<Call<R>, CallError>,
) -> Result<Call<R>, CallError> {
    if cause.kind() == CauseKind::Parent && !parent.is_cancelled() {
        return Err(CallError::Ended);
    }
    born(cause)
}

/// Whether the params contain the member that makes a call uncancellable (MCP: `task`).
fn exempt_of(connection: &ConnectionInner, frame: &Frame) -> CancelExemption {
    let Some(member) = connection.dialect.rules().uncancellable_param else { return CancelExemption::No };
    let Some(params) = frame.params.as_ref().map(|params| params.get()) else { return CancelExemption::No };
    // Most params do not contain the word at all, and then need no parsing.
    if !params.contains(member) {
        return CancelExemption::No;
    }
    match serde_json::from_str::<HashMap<Cow<'_, str>, &RawValue>>(params) {
        Ok(members) if members.contains_key(member) => CancelExemption::FromCancelMessages,
        Ok(_) | Err(_) => CancelExemption::No,
    }
}

/// The span of a call, if it is enabled. It is a child of the current span.
fn open_span(connection: &ConnectionInner, method: &str) -> CallSpan {
    let span = tracing::info_span!(
        "rescind.call",
        otel.kind = "client",
        rpc.system.name = connection.rpc_system(),
        rpc.method = %crate::log_text::LogText::name(method),
        jsonrpc.request.id = tracing::field::Empty,
        cancel.source = tracing::field::Empty,
        cancel.outcome = tracing::field::Empty,
    );
    (!span.is_disabled()).then(|| Arc::new(span))
}

/// The trace that a call belongs to: that of its span, or else that of the request whose child it is.
fn trace_of(
    connection: &ConnectionInner,
    span: Option<&tracing::Span>,
    parent: Option<&CallContext>,
) -> Option<Arc<TraceContext>> {
    let propagator = connection.propagator.as_ref()?;
    match propagator.context(span.unwrap_or(&tracing::Span::none())) {
        Some(context) => Some(Arc::new(context)),
        None => parent?.data().trace().cloned(),
    }
}

/// Adds this side's declaration to its half of the handshake, and reads that half.
fn declare(connection: &ConnectionInner, frame: &mut Frame) -> Option<crate::dialect::Handshake> {
    let codec = connection.dialect.codec();
    let params = frame.params.as_mut()?;
    if let Some(declared) = codec.declare(HandshakePart::Params, params, connection.handles_cancels) {
        *params = declared;
    }
    Some(codec.read_handshake(HandshakePart::Params, params))
}

impl CallContext {
    /// A call to the same peer as a child of this request: it is cancelled when the request is cancelled and when the
    /// request ends.
    pub fn call<P: Serialize + ?Sized, R>(&self, method: impl Into<Arc<str>>, params: &P) -> CallBuilder<R> {
        CallBuilder::new(self.connection(), method.into(), params).child_of(self)
    }
}

impl<R: DeserializeOwned> IntoFuture for CallBuilder<R> {
    type Output = Result<R, CallError>;
    type IntoFuture = Starting<R>;

    fn into_future(self) -> Self::IntoFuture {
        Starting::new(self.start())
    }
}

impl<R> fmt::Debug for CallBuilder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = self.frame.as_ref().map(|frame| &*frame.method);
        f.debug_struct("CallBuilder").field("method", &method).finish_non_exhaustive()
    }
}
