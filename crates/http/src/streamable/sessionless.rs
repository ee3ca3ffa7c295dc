//! A server without sessions: each request has one of its own, which nobody can name and which ends with its response.

use std::sync::Arc;

use bytes::Bytes;
use rescind_core::{CancelBodies, HeldBytes, Principal, RequestId};

use super::running::{Cancelled, RunningRequests};
use super::session_state::SessionState;
use crate::envelope::{Envelope, once};
use crate::server::refusal::Refused;
use crate::server::{RouteRefusal, SHARED_CANCEL_KEPT, Settings};
use crate::sync::spawn;

/// The largest cancel, in bytes. It is passed to other processes as it is.
const MAX_CANCEL: usize = 4096;

/// The part of a server that only one without sessions has.
#[derive(Debug)]
pub(super) struct Sessionless {
    cancel: CancelBodies,
    running: Arc<RunningRequests>,
}

/// What a POST holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A request, and its id if that is valid. An invalid body is passed on like a request, and its session refuses it.
    Request(Option<RequestId>),
    /// A cancel, and the request that it names.
    Cancel(Option<RequestId>),
    Notification,
    Answer,
}

impl Message {
    fn read(cancel: CancelBodies, body: &[u8]) -> Self {
        let read = Envelope::of(body);
        if read.is_answer() {
            return Self::Answer;
        }
        match read.method() {
            Some(method) if read.id.is_none() && method == cancel.method => {
                let [id] = once(read.params, [cancel.request]);
                Self::Cancel(id.and_then(|id| RequestId::from_json(id.get()).ok()))
            }
            Some(_) if read.id.is_none() => Self::Notification,
            Some(_) | None => Self::Request(read.id()),
        }
    }
}

impl Sessionless {
    pub(super) fn new(cancel: CancelBodies) -> Self {
        Self { cancel, running: Arc::default() }
    }

    /// Handles a message that is not a request.
    pub(super) async fn take(
        &self,
        settings: &Settings,
        principal: Option<&Principal>,
        body: &Bytes,
        held: HeldBytes,
    ) -> Result<Taken, Refused> {
        match Message::read(self.cancel, body) {
            Message::Request(id) => return Ok(Taken::Request(id, held)),
            Message::Answer => {
                return Err(Refused::bad(
                    "this server has no sessions, and no request of it waits for an answer",
                ));
            }
            Message::Notification => {}
            Message::Cancel(id) => match (principal, id) {
                (Some(principal), Some(id)) => self.cancel(settings, principal, id, body, held).await?,
                (None, _) => {
                    settings.counts.cancel_ignored();
                    tracing::debug!(
                        "a cancel was ignored: without an auth hook nobody knows whose request it names"
                    );
                }
                // It names no request.
                (Some(_), None) => {}
            },
        }
        Ok(Taken::Accepted)
    }

    async fn cancel(
        &self,
        settings: &Settings,
        principal: &Principal,
        id: RequestId,
        body: &Bytes,
        held: HeldBytes,
    ) -> Result<(), Refused> {
        if body.len() > MAX_CANCEL {
            return Err(Refused::too_large(MAX_CANCEL));
        }
        let frame = held.with_frame(body.clone());
        let done = self.running.cancel((principal.clone(), id.clone()), &frame, SHARED_CANCEL_KEPT);
        match done {
            Cancelled::Reached(_) => return Ok(()),
            Cancelled::Kept => {}
            Cancelled::Dropped => {
                settings.counts.cancel_ignored();
                tracing::debug!("a cancel is not kept: too many wait for their requests");
            }
        }
        match &settings.session_router {
            Some(router) => {
                let sent = router.cancel_shared(principal, &id, frame).await;
                sent.map_err(RouteRefusal::refused)
            }
            None => Ok(()),
        }
    }

    /// Makes a request known to cancels until its session ends. Called before the session gets the request.
    pub(super) fn begin(&self, settings: &Settings, session: &Arc<SessionState>, id: RequestId) {
        let Some(principal) = session.principal.clone() else { return };
        let watch = settings.session_router.as_ref().and_then(|router| router.watch_shared(&principal, &id));
        let (mut running, early) = self.running.add((principal, id), session);
        if let Some(watch) = watch {
            let session = Arc::downgrade(session);
            let task = spawn(async move {
                let frame = watch.await;
                if let Some(session) = session.upgrade() {
                    session.cancelled_by(frame);
                }
            });
            running = running.watched_by(task.abort_handle());
        }
        session.runs_as(running);
        if let Some(frame) = early {
            session.cancelled_by(frame);
        }
    }
}

/// What became of a message.
pub(super) enum Taken {
    /// It is a request, which needs a session.
    Request(Option<RequestId>, HeldBytes),
    /// It is not, and gets 202.
    Accepted,
}

#[cfg(test)]
#[path = "sessionless_tests.rs"]
mod tests;
