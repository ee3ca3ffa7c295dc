//! The subjects of vectors. One that makes calls has frames that go over a link, and the runner holds the other end; a
//! [`Peer`] of this library makes them.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::{Duration, Instant};

use rescind_core::dialect::AckStyle;
use rescind_core::{
    AfterCancel, Call, CallContext, CancelResult, Canceller, ConnectionError, Link, Outcome, Peer, RequestId,
};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::DeviationSeen;
use super::link::LinkSubject;
use crate::fixture::Fixture;
use crate::vector::{Abilities, AfterCancelStep, CallStep, CancelWord, OutcomeWord};
use crate::wire_format::WireFormat;

/// One connection to a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line(pub usize);

/// An event on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A frame, as text.
    Frame(String),
    /// An event that is not a frame, with a description.
    Noise(String),
    /// Input that the transport dropped or changed because it is against the protocol. The connection goes on.
    Deviation(DeviationSeen),
    /// On a transport of exchanges: the exchange of a request has ended without an answer.
    Unanswered {
        /// The request. `null`: the exchange had none, or an answered one.
        id: Value,
        /// The transport's reason. `None`: a request with the same id is still open.
        why: Option<String>,
    },
    /// On a transport of exchanges: the subject has closed the exchange of this request. `null`: it had none.
    GivenUp(Value),
    /// The subject closed the connection, with a description if it was not a regular close.
    Closed(Option<String>),
    /// Nothing within the given time.
    Nothing,
}

/// Why a subject did not do what a step requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectError {
    /// It cannot, and it need not: the vector is not played.
    Unable(String),
    /// It should have done it.
    Failed(String),
}

/// How a call of the subject ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Ended {
    /// The outcome.
    pub outcome: OutcomeWord,
    /// For a cancelled call: whether the peer confirmed it.
    pub confirmed: Option<bool>,
    /// For a cancelled call: the kind of its first cause, in lower case.
    pub cause: Option<String>,
    /// The value.
    pub value: Option<Value>,
    /// The error's code.
    pub code: Option<i64>,
    /// For a lost call: whether it had been written.
    pub may_have_run: Option<bool>,
    /// The peer's acknowledgement of the cancel, if the dialect has acknowledgements.
    pub acked: Option<bool>,
}

impl Ended {
    /// An outcome without further details.
    #[must_use]
    pub const fn new(outcome: OutcomeWord) -> Self {
        Self {
            outcome,
            confirmed: None,
            cause: None,
            value: None,
            code: None,
            may_have_run: None,
            acked: None,
        }
    }
}

/// The party that a vector tests: the bare machine, a transport, a foreign peer, a `Peer` of this library.
///
/// The methods about calls are for role `call`. A subject that makes no calls keeps the provided ones.
pub trait Subject: Send {
    /// What it supports.
    fn abilities(&self) -> Abilities;

    /// Whether each request has a response stream of its own, whose end is a [`Seen::Unanswered`] if no answer came on it.
    fn has_streams_of_requests(&self) -> bool {
        false
    }

    /// The subject's time.
    fn now(&self) -> Instant;

    /// Opens a connection.
    fn open(&mut self) -> impl Future<Output = Result<Line, SubjectError>> + Send;

    /// Sends frames in one write.
    fn send(
        &mut self,
        line: Line,
        frames: Vec<String>,
    ) -> impl Future<Output = Result<(), SubjectError>> + Send;

    /// Waits at most this long for the next event.
    fn recv(&mut self, line: Line, within: Duration) -> impl Future<Output = Seen> + Send;

    /// Ends the subject's input.
    fn half_close(&mut self, line: Line) -> impl Future<Output = Result<(), SubjectError>> + Send;

    /// Closes the connection.
    fn disconnect(&mut self, line: Line) -> impl Future<Output = Result<(), SubjectError>> + Send;

    /// Waits briefly between two reads of a counter.
    fn pause(&mut self) -> impl Future<Output = ()> + Send;

    /// Makes a call.
    fn call(&mut self, line: Line, call: &CallStep) -> impl Future<Output = Result<(), SubjectError>> + Send {
        let _ = (line, call);
        async { Err(makes_no_calls()) }
    }

    /// Cancels a call and returns the canceller's result.
    fn cancel_call(
        &mut self,
        name: &str,
        reason: Option<&str>,
    ) -> impl Future<Output = Result<CancelWord, SubjectError>> + Send {
        let _ = (name, reason);
        async { Err(makes_no_calls()) }
    }

    /// Drops a call.
    fn drop_call(&mut self, name: &str) -> impl Future<Output = Result<(), SubjectError>> + Send {
        let _ = name;
        async { Err(makes_no_calls()) }
    }

    /// Waits at most this long and returns how a call ended. `None`: it has not ended.
    fn outcome(
        &mut self,
        name: &str,
        within: Duration,
    ) -> impl Future<Output = Result<Option<Ended>, SubjectError>> + Send {
        let _ = (name, within);
        async { Err(makes_no_calls()) }
    }

    /// Starts the shutdown and does not wait for it.
    fn shutdown(&mut self, line: Line) -> impl Future<Output = Result<(), SubjectError>> + Send {
        let _ = line;
        async { Err(makes_no_calls()) }
    }
}

fn makes_no_calls() -> SubjectError {
    SubjectError::Unable("the subject cannot be instructed to make calls".to_owned())
}

/// Makes calls on request: a `Peer` of this library, or another client in this process.
pub trait Caller: Send {
    /// Makes a call and does not wait for it.
    fn call(&mut self, call: &CallStep) -> impl Future<Output = Result<(), SubjectError>> + Send;

    /// Cancels a call and returns the canceller's result.
    fn cancel_call(
        &mut self,
        name: &str,
        reason: Option<&str>,
    ) -> impl Future<Output = Result<CancelWord, SubjectError>> + Send;

    /// Drops a call.
    fn drop_call(&mut self, name: &str) -> impl Future<Output = Result<(), SubjectError>> + Send;

    /// Waits at most this long and returns how a call ended. `None`: it has not ended.
    fn outcome(
        &mut self,
        name: &str,
        within: Duration,
    ) -> impl Future<Output = Result<Option<Ended>, SubjectError>> + Send;

    /// Starts the shutdown and does not wait for it.
    fn shutdown(&mut self) -> impl Future<Output = Result<(), SubjectError>> + Send;
}

/// A [`Caller`] and the runner's end of its connection. It is configured with the vector's options.
#[derive(Debug)]
pub struct CallingSubject<C> {
    wire: LinkSubject,
    caller: C,
}

impl<C: Caller> CallingSubject<C> {
    /// `wire` opens the runner's end of the connection whose other end `caller` holds.
    #[must_use]
    pub const fn new(wire: LinkSubject, caller: C) -> Self {
        Self { wire, caller }
    }
}

impl<C: Caller> Subject for CallingSubject<C> {
    fn abilities(&self) -> Abilities {
        Abilities { calls: true, options: true, ..self.wire.abilities() }
    }

    fn has_streams_of_requests(&self) -> bool {
        self.wire.has_streams_of_requests()
    }

    fn now(&self) -> Instant {
        self.wire.now()
    }

    async fn open(&mut self) -> Result<Line, SubjectError> {
        self.wire.open().await
    }

    async fn send(&mut self, line: Line, frames: Vec<String>) -> Result<(), SubjectError> {
        self.wire.send(line, frames).await
    }

    async fn recv(&mut self, line: Line, within: Duration) -> Seen {
        self.wire.recv(line, within).await
    }

    async fn half_close(&mut self, line: Line) -> Result<(), SubjectError> {
        self.wire.half_close(line).await
    }

    async fn disconnect(&mut self, line: Line) -> Result<(), SubjectError> {
        self.wire.disconnect(line).await
    }

    async fn pause(&mut self) {
        self.wire.pause().await;
    }

    async fn call(&mut self, _: Line, call: &CallStep) -> Result<(), SubjectError> {
        self.caller.call(call).await
    }

    async fn cancel_call(&mut self, name: &str, reason: Option<&str>) -> Result<CancelWord, SubjectError> {
        self.caller.cancel_call(name, reason).await
    }

    async fn drop_call(&mut self, name: &str) -> Result<(), SubjectError> {
        self.caller.drop_call(name).await
    }

    async fn outcome(&mut self, name: &str, within: Duration) -> Result<Option<Ended>, SubjectError> {
        self.caller.outcome(name, within).await
    }

    async fn shutdown(&mut self, _: Line) -> Result<(), SubjectError> {
        self.caller.shutdown().await
    }
}

/// How long the handler of a request may take to start.
const HANDLER_START_TIMEOUT: Duration = Duration::from_secs(5);

/// A peer of this library on one end of a connection. It serves the fixture's methods too.
pub struct PeerCaller {
    peer: Peer,
    fixture: Fixture,
    acknowledges: bool,
    calls: HashMap<String, Running>,
}

/// A call that was made.
struct Running {
    canceller: Canceller,
    ended: JoinHandle<Ended>,
}

impl PeerCaller {
    /// Creates a peer that serves this fixture's methods on this link.
    ///
    /// # Errors
    /// If the peer cannot be attached.
    pub fn open(fixture: Fixture, link: Link) -> Result<Self, ConnectionError> {
        let peer = fixture.open(link)?;
        let acknowledges = fixture.dialect().rules().ack == AckStyle::Acknowledged;
        Ok(Self { peer, fixture, acknowledges, calls: HashMap::new() })
    }

    /// The context of the runner's request with this id, as soon as its handler runs.
    async fn served(&self, id: &Value) -> Result<CallContext, SubjectError> {
        let known = RequestId::from_json(&id.to_string())
            .map_err(|error| SubjectError::Failed(format!("{id} is not a request id: {error}")))?;
        let context = self.fixture.context_of(self.peer.session(), &known);
        let found = timeout(HANDLER_START_TIMEOUT, context).await;
        found.map_err(|_| SubjectError::Failed(format!("no handler runs for the request {id}")))
    }

    fn named(&mut self, name: &str) -> Result<&mut Running, SubjectError> {
        self.calls.get_mut(name).ok_or_else(|| SubjectError::Failed(format!("no call is named `{name}`")))
    }
}

impl fmt::Debug for PeerCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerCaller").finish_non_exhaustive()
    }
}

impl Caller for PeerCaller {
    async fn call(&mut self, step: &CallStep) -> Result<(), SubjectError> {
        let params = step.params.clone().unwrap_or_else(|| Value::Object(serde_json::Map::new()));
        let params = WireFormat { facts: self.fixture.facts() }.params(params);
        let mut builder = self.peer.call::<_, Value>(step.method.as_str(), &params);
        if let Some(timeout) = step.timeout_ms {
            builder = builder.timeout(Duration::from_millis(timeout));
        }
        if step.token_cancelled {
            let token = CancellationToken::new();
            token.cancel();
            builder = builder.cancel_on(token);
        }
        match step.after_cancel {
            Some(AfterCancelStep::Wait) => builder = builder.after_cancel(AfterCancel::WaitForPeer),
            Some(AfterCancelStep::ReturnNow) => builder = builder.after_cancel(AfterCancel::ReturnNow),
            None => {}
        }
        if let Some(id) = &step.child_of {
            builder = builder.child_of(&self.served(id).await?);
        }
        if step.detach {
            builder = builder.detach();
        }
        let call = builder.start().map_err(|error| SubjectError::Failed(error.to_string()))?;
        let canceller = call.canceller();
        let ended = tokio::spawn(end_of(call, self.acknowledges));
        self.calls.insert(step.name.clone(), Running { canceller, ended });
        Ok(())
    }

    async fn cancel_call(&mut self, name: &str, reason: Option<&str>) -> Result<CancelWord, SubjectError> {
        let running = self.named(name)?;
        Ok(match running.canceller.cancel(reason.unwrap_or_default()) {
            CancelResult::Sent => CancelWord::Sent,
            CancelResult::TakenBack => CancelWord::TakenBack,
            CancelResult::NotSupported => CancelWord::NotSupported,
            CancelResult::AlreadySettled => CancelWord::AlreadySettled,
        })
    }

    async fn drop_call(&mut self, name: &str) -> Result<(), SubjectError> {
        // The call is owned by its task and is dropped with it.
        let running = self.named(name)?;
        running.ended.abort();
        let _dropped = (&mut running.ended).await;
        Ok(())
    }

    async fn outcome(&mut self, name: &str, within: Duration) -> Result<Option<Ended>, SubjectError> {
        let running = self.named(name)?;
        match timeout(within, &mut running.ended).await {
            Err(_) => Ok(None),
            Ok(Ok(ended)) => Ok(Some(ended)),
            Ok(Err(error)) => Err(SubjectError::Failed(format!("the call has no outcome: {error}"))),
        }
    }

    async fn shutdown(&mut self) -> Result<(), SubjectError> {
        let (peer, drain) = (self.peer.clone(), self.fixture.drain_deadline());
        let mut shutdown = Box::pin(async move { peer.shutdown(drain).await });
        // The first poll starts the shutdown. The rest of the future only waits.
        let begun = poll_fn(|cx| Poll::Ready(shutdown.as_mut().poll(cx))).await;
        if begun.is_pending() {
            tokio::spawn(shutdown);
        }
        Ok(())
    }
}

async fn end_of(mut call: Call<Value>, acknowledges: bool) -> Ended {
    let acked = if acknowledges { call.acknowledged().await } else { None };
    let mut ended = match call.outcome().await {
        Outcome::Completed(value) => Ended { value: Some(value), ..Ended::new(OutcomeWord::Completed) },
        Outcome::CompletedAfterCancel(value) => {
            Ended { value: Some(value), ..Ended::new(OutcomeWord::CompletedAfterCancel) }
        }
        Outcome::Cancelled(cancelled) => Ended {
            confirmed: Some(cancelled.confirmed),
            cause: Some(cancelled.cause.kind().name().to_owned()),
            ..Ended::new(OutcomeWord::Cancelled)
        },
        Outcome::Failed(error) => Ended { code: Some(error.code.0), ..Ended::new(OutcomeWord::Failed) },
        Outcome::Unreadable { .. } => Ended::new(OutcomeWord::Unreadable),
        Outcome::Disconnected { may_have_run } => {
            Ended { may_have_run: Some(may_have_run), ..Ended::new(OutcomeWord::Disconnected) }
        }
        // The enum is non-exhaustive. An outcome that this runner does not know matches no step.
        _ => Ended::new(OutcomeWord::Failed),
    };
    ended.acked = acked;
    ended
}
