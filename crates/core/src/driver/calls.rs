//! What the driver keeps for each call of ours, from its start until its handle has read how it ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::task::AbortHandle;

use super::deferred::Deferred;
use super::foreign::ForeignParent;
use super::handler::part_of;
use super::incoming::Inbox;
use super::outbox::Bulk;
use super::shared::{Core, Shared};
use super::slots::Ticket;
use crate::cause::{Cancelled, Cause, CauseKind};
use crate::id::{CallNumber, ExchangeId, OutboundKey};
use crate::machine::{AfterCancel, CallRefused, CallSpec, CancelResult, Settlement};
use crate::message::{AnswerBody, ErrorCode, ErrorObject};

/// A call of ours.
pub(super) struct CallEntry {
    pub(super) key: OutboundKey,
    pub(super) number: CallNumber,
    /// What its request goes out on.
    pub(super) exchange: ExchangeId,
    /// It opens the session.
    pub(super) shakes: bool,
    /// Its frame, until it is written or taken back.
    pub(super) frame: Option<Box<StagedCall>>,
    /// Its cancel, until that is written or disarmed: its number and why.
    pub(super) cancel: Option<Box<(CallNumber, Cause)>>,
    pub(super) settled: Option<Settled>,
    /// A handle will read how it ended.
    pub(super) held: bool,
    pub(super) waker: Option<Waker>,
    /// What few calls have.
    pub(super) extras: Option<Box<Extras>>,
}

/// What few calls have.
#[derive(Default)]
pub(super) struct Extras {
    pub(super) acknowledged: Option<bool>,
    pub(super) ack_waker: Option<Waker>,
    pub(super) inbox: Option<Arc<Inbox>>,
    pub(super) watches: Vec<AbortHandle>,
    pub(super) parent: Option<ForeignParent>,
}

/// The frame of a staged call, not encoded yet.
pub(super) struct StagedCall {
    pub(super) method: Arc<str>,
    pub(super) params: Option<Box<RawValue>>,
    pub(super) timeout: Option<Duration>,
    pub(super) progress: bool,
}

/// What an answer says.
#[derive(Debug)]
pub(super) enum Said {
    Value(Bytes),
    Cancelled,
    Error(ErrorObject),
}

impl Said {
    /// Kept without copying the frame it came in.
    pub(super) fn of_answer(frame: &Bytes, body: AnswerBody<'_>) -> Self {
        match body {
            AnswerBody::Value(value) => Self::Value(part_of(frame, value)),
            AnswerBody::Cancelled => Self::Cancelled,
            AnswerBody::Error(error) => Self::Error(error),
            AnswerBody::Malformed(what) => Self::Error(ErrorObject::new(
                ErrorCode::INTERNAL_ERROR,
                format!("the peer's answer is malformed: {what}"),
            )),
        }
    }
}

/// How a call ended.
#[derive(Debug)]
pub(super) enum Settled {
    Value { value: Bytes, after_cancel: bool },
    Error(ErrorObject),
    Cancelled(Cancelled),
    Disconnected { may_have_run: bool },
}

impl CallEntry {
    pub(super) fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// Nobody will ask for it any more.
    fn is_done(&self) -> bool {
        self.settled.is_some() && !self.held && self.cancel.is_none()
    }
}

impl Core {
    /// Stages a call, which takes `extras`; a call that is refused leaves them.
    pub(super) fn start_call(
        &mut self,
        shared: &Shared,
        now: Instant,
        spec: &CallSpec<'_>,
        frame: Box<StagedCall>,
        extras: &mut Option<Box<Extras>>,
    ) -> Result<Ticket, CallRefused> {
        let (key, number) = self.session.local_call(now, spec)?;
        let exchange = self.exchange_of_call(shared, spec, number);
        let ticket = self.calls.insert(CallEntry {
            key,
            number,
            exchange,
            shakes: shared.dialect.rules().handshake == Some(spec.method),
            frame: Some(frame),
            cancel: None,
            settled: None,
            held: true,
            waker: None,
            extras: extras.take(),
        });
        self.outbound.insert(key.0, ticket);
        self.outbox.push_bulk(Bulk::Call(ticket));
        Ok(ticket)
    }

    /// Our calls open exchanges of their own where we can give them up again, children too; elsewhere a child goes on the
    /// exchange of its parent.
    fn exchange_of_call(&self, shared: &Shared, spec: &CallSpec<'_>, number: CallNumber) -> ExchangeId {
        if shared.traits.exchanges_abortable {
            return ExchangeId::of_call(number);
        }
        let parent = spec.parent.and_then(|parent| self.inbound.get(parent.0));
        parent.map_or(ExchangeId::NONE, |parent| parent.request.exchange)
    }

    pub(super) fn cancel_call(
        &mut self,
        now: Instant,
        ticket: Ticket,
        cause: Cause,
        after: Option<AfterCancel>,
    ) -> CancelResult {
        match self.calls.get(ticket) {
            Some(entry) if entry.settled.is_none() => {
                self.session.local_cancel_call(now, entry.key, cause, after)
            }
            Some(_) | None => CancelResult::AlreadySettled,
        }
    }

    /// A call's handle is dropped.
    pub(super) fn drop_call(&mut self, now: Instant, ticket: Ticket, deferred: &mut Deferred) {
        let after = Some(AfterCancel::ReturnNow);
        let _ = self.cancel_call(now, ticket, Cause::new(CauseKind::Dropped), after);
        self.let_go(ticket, deferred);
    }

    /// A call's handle will ask no more.
    pub(super) fn let_go(&mut self, ticket: Ticket, deferred: &mut Deferred) {
        let Some(entry) = self.calls.get_mut(ticket) else { return };
        entry.held = false;
        deferred.wakers.extend(entry.waker.take());
        self.free_call(ticket);
    }

    pub(super) fn free_call(&mut self, ticket: Ticket) {
        if self.calls.get(ticket).is_some_and(CallEntry::is_done) {
            self.calls.remove(ticket);
        }
    }

    /// The machine has settled a call.
    pub(super) fn settle_call(&mut self, call: OutboundKey, settlement: Settlement, deferred: &mut Deferred) {
        let said = match &settlement {
            Settlement::Answered { .. } => self.answer.take(),
            Settlement::Cancelled { .. } | Settlement::Disconnected { .. } => None,
        };
        let Some((ticket, entry)) = self.entry_of(call) else { return };
        tracing::trace!(call = entry.number.0, cancel.outcome = outcome(&settlement), "a call has ended");
        entry.settled = Some(match (settlement, said) {
            (Settlement::Answered { cancelled }, Some(Said::Value(value))) => {
                Settled::Value { value, after_cancel: cancelled.is_some() }
            }
            (Settlement::Answered { .. }, Some(Said::Error(error))) => Settled::Error(error),
            (Settlement::Answered { .. }, Some(Said::Cancelled) | None) => {
                Settled::Error(ErrorObject::internal())
            }
            (Settlement::Cancelled { cause, confirmed }, _) => {
                Settled::Cancelled(Cancelled::new(cause, confirmed))
            }
            (Settlement::Disconnected { may_have_run }, _) => Settled::Disconnected { may_have_run },
        });
        entry.frame = None;
        deferred.wakers.extend(entry.waker.take());
        let waits = entry.cancel.is_some();
        let extras = entry.extras.as_mut();
        if let Some(extras) = extras {
            deferred.wakers.extend(extras.ack_waker.take());
            deferred.watches.append(&mut extras.watches);
            deferred.foreign_ends.extend(extras.parent.take());
            if let Some(inbox) = extras.inbox.take() {
                self.progress_readers -= usize::from(inbox.reads_progress);
                deferred.inboxes.push(inbox);
            }
        }
        self.stop_matching(ticket, deferred);
        if !waits {
            self.outbound.remove(call.0);
        }
        self.free_call(ticket);
    }

    /// The call's readers get no more. Those made after its start are known by its ticket alone.
    fn stop_matching(&mut self, ticket: Ticket, deferred: &mut Deferred) {
        if self.matchers.iter().any(|matcher| matcher.ticket == ticket) {
            let (ended, open) =
                std::mem::take(&mut self.matchers).into_iter().partition(|matcher| matcher.ticket == ticket);
            self.matchers = open;
            deferred.matchers = ended;
        }
    }
}

const fn outcome(settlement: &Settlement) -> &'static str {
    match settlement {
        Settlement::Answered { cancelled: None } => "completed",
        Settlement::Answered { cancelled: Some(_) } => "completed_after_cancel",
        Settlement::Cancelled { confirmed: true, .. } => "confirmed",
        Settlement::Cancelled { confirmed: false, .. } => "unconfirmed",
        Settlement::Disconnected { .. } => "disconnected",
    }
}

impl Shared {
    /// One handle more keeps the connection open.
    pub(super) fn hold(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// One handle less. The last one closes the connection, unless it serves: what was detached may end first.
    pub(super) fn release(self: &Arc<Self>) {
        if self.handles.fetch_sub(1, Ordering::AcqRel) == 1 && !self.serves {
            self.step(|core, now, _| {
                let drain = core.session.limits().drain_deadline;
                core.session.local_shutdown(now, drain);
            });
        }
    }
}
