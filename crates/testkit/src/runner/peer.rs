//! A [`Peer`] of this library that makes the calls of a vector.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use rescind_core::dialect::AckStyle;
use rescind_core::{
    AfterCancel, Call, CallContext, CancelResult, Canceller, ConnectionError, Link, Outcome, Peer, RequestId,
};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::calling::Caller;
use super::subject::{Ended, SubjectError};
use crate::fixture::Fixture;
use crate::step::{AfterCancelStep, CallStep, CancelWord, OutcomeWord};
use crate::wire_format::WireFormat;

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
        let wire_format = WireFormat::of(self.fixture.dialect().name());
        let params = wire_format.map_or(params.clone(), |wire_format| wire_format.params(params));
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
