//! Whether a request is admitted, and how it is refused.

use std::time::Instant;

use super::input::InboundRequest;
use super::output::{Event, Output};
use super::request::{Cancellability, State};
use super::settled_cache::{Name, Settled};
use super::{Session, lifecycle};
use crate::cause::{Cause, CauseKind};
use crate::dialect::{CancelledReply, EarlyCancel, Refusal, SettledMemory};
use crate::failpoint::{self, Failpoint};
use crate::id::{ExchangeId, Principal};
use crate::message::{CancelExemption, CancelKey};

/// Why a request gets no slot.
pub(super) enum NotAdmitted {
    /// The connection is gone. Nothing is sent.
    Lost,
    /// Refused with its own id.
    Refused(Refusal),
    /// Refused without an id: its id belongs to a request that is not answered yet.
    DuplicateId,
    /// Answered as cancelled, without a start.
    Cancelled(Cause),
}

impl Session {
    /// Admits it, or returns why not. `hash`: the hash of its name.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        arrival: &InboundRequest<'_>,
        hash: u64,
    ) -> Result<(), NotAdmitted> {
        let refused = |refusal| Err(NotAdmitted::Refused(refusal));
        if self.lifecycle.state() == lifecycle::State::Lost {
            return Err(NotAdmitted::Lost);
        }
        let first = self.request_hashed(hash, arrival.origin.scope, &arrival.id);
        if let Some((_, first)) = first.filter(|_| !failpoint::active(Failpoint::OverwriteDuplicate)) {
            let open = first.state.is_open();
            self.emit(Event::DuplicateId);
            // I4: the first request is not affected. While it is open the peer would take a refusal with its id for its
            // answer.
            return if open {
                Err(NotAdmitted::DuplicateId)
            } else {
                refused(Refusal::Overloaded("draining"))
            };
        }
        let cancel_name = cancel_name(arrival);
        if let (CancelKey::Named(_), Some(name)) = (&arrival.cancel_key, &cancel_name) {
            let holder = self.cancel_keys.get(name).and_then(|key| self.requests.get(key.0));
            if holder.is_some_and(|holder| holder.state.is_open()) {
                self.emit(Event::DuplicateId);
                return refused(Refusal::DuplicateKey);
            }
        }
        let early = self.take_early(now, arrival, cancel_name.as_ref());
        let rules = self.rules();
        if rules.reserved_prefix.is_some_and(|prefix| arrival.method.starts_with(prefix)) {
            return refused(Refusal::MethodNotFound);
        }
        if self.reach_of(arrival) != Cancellability::Handshake && !self.serves() {
            return refused(Refusal::NotInitialized);
        }
        if self.exit_state.shut_down {
            return refused(Refusal::ShutDown);
        }
        if self.lifecycle.refuses_requests() {
            return Err(NotAdmitted::Cancelled(Cause::new(CauseKind::Shutdown)));
        }
        if let Some(cause) = early {
            return Err(NotAdmitted::Cancelled(cause));
        }
        if let Err(limit) = arrival.admission {
            self.emit(Event::LimitReached(limit));
            return refused(Refusal::Overloaded(limit));
        }
        let limits = &self.config.limits;
        if !self.has_room(arrival.origin.client, arrival.work) {
            let full = if self.queue.len() >= limits.max_queued_requests {
                Some("queued")
            } else if self.shares.may_wait(arrival.origin.client) {
                None
            } else {
                Some("client_queued")
            };
            if let Some(limit) = full {
                self.emit(Event::LimitReached(limit));
                return refused(Refusal::Overloaded(limit));
            }
        }
        Ok(())
    }

    /// The early cancel that waits for this request. It is removed in any case, so that it cannot cancel a later
    /// request with the same id. It has an effect unless the request is not cancellable by messages.
    fn take_early(
        &mut self,
        now: Instant,
        arrival: &InboundRequest<'_>,
        name: Option<&Name>,
    ) -> Option<Cause> {
        let cause = self.early_cancels.take(now, name?, arrival.origin.principal.as_ref())?;
        match self.reach_of(arrival) {
            Cancellability::All => Some(cause),
            Cancellability::NoMessage | Cancellability::Handshake => {
                self.emit(Event::IgnoredCancel);
                None
            }
        }
    }

    /// By what a request can be cancelled.
    pub(super) fn reach_of(&self, arrival: &InboundRequest<'_>) -> Cancellability {
        let rules = self.rules();
        if rules.handshake == Some(arrival.method) && !failpoint::active(Failpoint::HandshakeCancelled) {
            Cancellability::Handshake
        } else if (arrival.exempt == CancelExemption::FromCancelMessages
            && self.agreement.exempts(arrival.method))
            || rules.uncancellable.contains(&arrival.method)
        {
            Cancellability::NoMessage
        } else {
            Cancellability::All
        }
    }

    pub(super) fn refuse(&mut self, now: Instant, arrival: InboundRequest<'_>, why: NotAdmitted) {
        if let Some(name) = cancel_name(&arrival) {
            if let Some(settled) = self.settled_by_refusal(now, &arrival, &name, &why) {
                self.remember_at(now, Some(name), arrival.origin.principal.clone(), settled);
            }
        }
        let exchange = arrival.origin.exchange;
        let to = Some((arrival.id.clone(), arrival.tag));
        match why {
            NotAdmitted::Lost => {}
            NotAdmitted::Refused(why) => self.push(Output::Refuse { to, exchange, why }),
            NotAdmitted::DuplicateId => {
                self.push(Output::Refuse { to: None, exchange, why: Refusal::DuplicateId });
            }
            NotAdmitted::Cancelled(cause) => {
                let silent =
                    cause.kind() == CauseKind::Peer && self.rules().peer_cancelled == CancelledReply::Silence;
                if !silent {
                    let graceful =
                        self.fixed_result(arrival.method).and_then(|fixed| fixed.for_cause(cause.kind()));
                    let InboundRequest { id, tag, server_cancellable, .. } = arrival;
                    self.push(Output::RefuseCancelled {
                        id,
                        tag,
                        server_cancellable,
                        exchange,
                        graceful,
                        cause,
                    });
                } else if exchange != ExchangeId::NONE {
                    self.push(Output::ExchangeEnd { exchange, silent: true });
                }
            }
        }
    }

    /// How the key of a refused request is remembered: a refusal is an answer too, and a cancel after it is late.
    /// `None`: the key belongs to another request.
    fn settled_by_refusal(
        &mut self,
        now: Instant,
        arrival: &InboundRequest<'_>,
        name: &Name,
        why: &NotAdmitted,
    ) -> Option<Settled> {
        let settled = match why {
            NotAdmitted::Lost | NotAdmitted::DuplicateId => return None,
            NotAdmitted::Refused(_) => Settled::Completed,
            NotAdmitted::Cancelled(_) => Settled::Cancelled,
        };
        match arrival.cancel_key {
            CancelKey::Named(_) if self.cancel_keys.contains_key(name) => None,
            // Its handler only drains: its result is remembered again (I7).
            CancelKey::SameAsId if self.request_named(name.0, &name.1).is_some() => {
                let known = self.settled.recall(now, name, arrival.origin.principal.as_ref());
                Some(known.unwrap_or(settled))
            }
            CancelKey::Named(_) | CancelKey::SameAsId | CancelKey::None => Some(settled),
        }
    }

    /// Whether an early cancel may wait for its request here.
    pub(super) fn parks_early_cancels(&self) -> bool {
        let by_dialect = match self.rules().early {
            EarlyCancel::Never => false,
            EarlyCancel::WhereUnordered => !self.config.ordered,
            EarlyCancel::Always => true,
        };
        by_dialect && !self.config.exchange_scoped
    }

    /// Remembers the result of a key, if the dialect needs it.
    pub(super) fn remember_at(
        &mut self,
        now: Instant,
        name: Option<Name>,
        principal: Option<Principal>,
        settled: Settled,
    ) {
        let asked = match self.rules().settled_memory {
            SettledMemory::ForAcks => true,
            SettledMemory::ForParking => self.parks_early_cancels(),
        };
        if let (true, Some(name)) = (asked, name) {
            self.settled.record(now, name, principal, settled);
        }
    }

    /// The slot of a request that can still be cancelled or looked up.
    pub(super) fn state_of(&self, key: crate::id::InboundKey) -> Option<State> {
        self.requests.get(key.0).map(|request| request.state)
    }
}

/// The key by which a cancel names a request, if there is one.
fn cancel_name(arrival: &InboundRequest<'_>) -> Option<Name> {
    match &arrival.cancel_key {
        CancelKey::SameAsId => Some((arrival.origin.scope, arrival.id.clone())),
        CancelKey::Named(key) => Some((arrival.origin.scope, key.clone())),
        CancelKey::None => None,
    }
}
