//! The status of a request or a call, for views from outside.

use std::time::Instant;

use super::Session;
use super::call;
use super::request::State;
use crate::cause::Cause;
use crate::id::{CallNumber, InboundKey, OutboundKey};

/// How far a request or a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestStatus {
    /// A received request waits for a permit. A call is not written yet.
    Queued,
    /// The handler of a received request runs. The peer has a call.
    Running,
    /// A received request is cancelled, and a critical section of its handler delays the signal.
    Shielded,
    /// The handler of a received request was signalled and decides the answer. The cancel of a call is sent or about
    /// to be sent, and its caller waits for the peer.
    Cancelling,
    /// A received request is answered, or needs no answer, and its handler still runs. A call has ended, and its cancel
    /// waits to be written.
    Draining,
}

impl RequestStatus {
    /// The status as one lower-case word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Shielded => "shielded",
            Self::Cancelling => "cancelling",
            Self::Draining => "draining",
        }
    }
}

/// The first accepted cancel of a request or a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AcceptedCancel {
    /// Why.
    pub cause: Cause,
    /// When it was accepted.
    pub at: Instant,
}

impl AcceptedCancel {
    /// A cancel that was accepted at this time.
    #[must_use]
    pub const fn new(cause: Cause, at: Instant) -> Self {
        Self { cause, at }
    }
}

/// The state of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallState {
    /// Its number.
    pub number: CallNumber,
    /// How far it is.
    pub status: RequestStatus,
    /// The request to which it belongs. `None` also when the cancel of that request has reached the call.
    pub parent: Option<InboundKey>,
    /// Its cancel.
    pub cancel: Option<AcceptedCancel>,
}

impl Session {
    /// How far a received request is, and its cancel. `None`: it has ended.
    #[must_use]
    pub fn request_status(&self, key: InboundKey) -> Option<(RequestStatus, Option<AcceptedCancel>)> {
        let request = self.requests.get(key.0)?;
        let status = match request.state {
            State::Queued => RequestStatus::Queued,
            State::Running => RequestStatus::Running,
            State::CancelPending => RequestStatus::Shielded,
            State::Cancelling => RequestStatus::Cancelling,
            State::Draining { .. } | State::Ended => RequestStatus::Draining,
        };
        let cancelled_at = request.extras().cancelled_at;
        let cancel =
            request.cause().zip(cancelled_at).map(|(cause, at)| AcceptedCancel::new(cause.clone(), at));
        Some((status, cancel))
    }

    /// How far a call of this side is. `None`: the machine has forgotten it.
    #[must_use]
    pub fn call_status(&self, key: OutboundKey) -> Option<CallState> {
        let call = self.calls.get(key.0)?;
        let extras = call.extras.as_deref();
        let status = match call.state {
            call::State::Staged => RequestStatus::Queued,
            call::State::Written => RequestStatus::Running,
            call::State::Cancelling => RequestStatus::Cancelling,
            call::State::Leaving => RequestStatus::Draining,
        };
        let cancelled_at = extras.and_then(|extras| extras.cancelled_at);
        Some(CallState {
            number: call.number,
            status,
            parent: extras.and_then(|extras| extras.parent),
            cancel: call.cause().zip(cancelled_at).map(|(cause, at)| AcceptedCancel::new(cause.clone(), at)),
        })
    }
}
