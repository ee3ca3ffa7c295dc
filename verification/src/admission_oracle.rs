//! Whether a request is admitted, how it is refused if not, and which exchanges end without a frame. Derived from the
//! ledger.

use rescind_core::dialect::{CancelledReply, Refusal};
use rescind_core::inspect::Inspection;
use rescind_core::{AckStatus, BadMessage, Cause, CauseKind, ExchangeId, InboundKey, Output, RequestId};

use super::input::Input;
use super::invariants::{Broken, holds_and_counts};
use super::oracle::{Kind, Name};
use super::state::{BLOCKING, CANCEL_EXCHANGE, HANDSHAKE_EXCHANGE, IDS, MachineState, OVER};

/// The expected result of an input that can be refused or can end an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No result of either kind.
    None,
    /// A request gets a slot.
    Admitted,
    /// The only output, if any, and the status that is remembered for the key.
    Outputs(Option<Output>, Option<(RequestId, AckStatus)>),
}

/// A request that arrives.
struct ArrivingRequest {
    name: Name,
    kind: Kind,
    is_blocking: bool,
    is_over: bool,
    exchange: ExchangeId,
}

impl MachineState {
    /// The expected result of this input, from the state before it.
    pub(super) fn verdict(&self, input: Input, before: &Inspection) -> Verdict {
        let work = |id: u8| ArrivingRequest {
            name: self.name(id),
            kind: Kind::Work,
            is_blocking: id == BLOCKING,
            is_over: false,
            exchange: self.on(self.next_exchange(id)),
        };
        let asked = match input {
            Input::Request(id) => work(id),
            Input::RequestOver => ArrivingRequest { is_over: true, ..work(0) },
            Input::RequestExempt => ArrivingRequest { kind: Kind::CancelExemption, ..work(IDS - 1) },
            Input::Hello => ArrivingRequest {
                name: self.hello(),
                kind: Kind::Handshake,
                is_blocking: false,
                is_over: false,
                exchange: self.on(HANDSHAKE_EXCHANGE),
            },
            Input::Bad => {
                let exchange = self.on(CANCEL_EXCHANGE);
                let why = Refusal::Bad(BadMessage::NotJson);
                return Verdict::Outputs(Some(Output::Refuse { to: None, exchange, why }), None);
            }
            Input::BadRequest => {
                let name = self.last_name(0);
                let to = self.ledger.owner(&name).is_none().then(|| (name.id.clone(), 0));
                let exchange = self.on(self.last_exchange(0));
                let why = Refusal::Bad(BadMessage::NotJson);
                return Verdict::Outputs(Some(Output::Refuse { to, exchange, why }), None);
            }
            Input::Cancel(_)
            | Input::CancelHello
            | Input::CancelNothing
            | Input::CancelByStranger
            | Input::CancelByNobody
            | Input::CancelElsewhere => {
                // If a cancel gets an acknowledgement, the acknowledgement ends its exchange. Otherwise the exchange
                // ends here.
                let exchange = self.on(CANCEL_EXCHANGE);
                let ends = exchange.is_peers() && !self.names_keys();
                return Verdict::Outputs(
                    ends.then_some(Output::ExchangeEnd { exchange, silent: false }),
                    None,
                );
            }
            Input::Call(_)
            | Input::Stale(_)
            | Input::Agreed(_)
            | Input::Offer(..)
            | Input::Ended(_)
            | Input::BecomeTask(_)
            | Input::Shield(_)
            | Input::Unshield(_)
            | Input::LocalCancel(_)
            | Input::Deadline(_)
            | Input::StreamLost(_)
            | Input::StreamBack(_)
            | Input::HalfClose
            | Input::Lost(_)
            | Input::Shutdown
            | Input::Idle
            | Input::Advance
            | Input::Time
            | Input::Wait => return Verdict::None,
        };
        self.admission(&asked, before)
    }

    fn admission(&self, asked: &ArrivingRequest, before: &Inspection) -> Verdict {
        let ArrivingRequest { name, kind, is_blocking, is_over, exchange } = asked;
        let exchange = *exchange;
        let refused = |why| Output::Refuse { to: Some((name.id.clone(), 0)), exchange, why };
        let is_new = |status| {
            let holder = self.ledger.named(name);
            holder.is_none().then(|| (name.key.clone(), status))
        };
        let completed = || is_new(AckStatus::AlreadyCompleted);
        if self.ledger.lost {
            return Verdict::Outputs(None, None);
        }
        if let Some((_, owner)) = self.ledger.owner(name) {
            return if owner.is_settled() {
                Verdict::Outputs(Some(refused(Refusal::Overloaded("draining"))), completed())
            } else {
                let why = Refusal::DuplicateId;
                Verdict::Outputs(Some(Output::Refuse { to: None, exchange, why }), None)
            };
        }
        let holder = self.ledger.named(name).filter(|_| self.names_keys() && *kind != Kind::Handshake);
        if holder.is_some_and(|(_, holder)| !holder.is_settled()) {
            return Verdict::Outputs(Some(refused(Refusal::DuplicateKey)), completed());
        }
        let rules = self.session.dialect().rules();
        if rules.session_required && *kind != Kind::Handshake && self.done.agreed.is_none() {
            return Verdict::Outputs(Some(refused(Refusal::NotInitialized)), completed());
        }
        if self.ledger.ending.shutdown || self.ledger.ending.half_closed {
            return self.refused_as_cancelled(asked, CauseKind::Shutdown, is_new(AckStatus::Cancelled));
        }
        if *kind == Kind::Work && self.was_early(name, before) {
            return self.refused_as_cancelled(asked, CauseKind::Peer, is_new(AckStatus::Cancelled));
        }
        if *is_over {
            return Verdict::Outputs(Some(refused(Refusal::Overloaded(OVER))), completed());
        }
        if self.has_room(*is_blocking) {
            return Verdict::Admitted;
        }
        Verdict::Outputs(Some(refused(Refusal::Overloaded("queued"))), completed())
    }

    fn refused_as_cancelled(
        &self,
        asked: &ArrivingRequest,
        kind: CauseKind,
        known: Option<(RequestId, AckStatus)>,
    ) -> Verdict {
        let exchange = asked.exchange;
        let silence = self.session.dialect().rules().peer_cancelled == CancelledReply::Silence;
        if kind == CauseKind::Peer && silence {
            let ends = exchange != ExchangeId::NONE;
            return Verdict::Outputs(ends.then_some(Output::ExchangeEnd { exchange, silent: true }), known);
        }
        let reported = Output::RefuseCancelled {
            id: asked.name.id.clone(),
            tag: 0,
            server_cancellable: false,
            exchange,
            graceful: None,
            cause: Cause::new(kind),
        };
        Verdict::Outputs(Some(reported), known)
    }

    /// I8: an early cancel is valid for a limited time, and only for a request of its sender.
    fn was_early(&self, name: &Name, before: &Inspection) -> bool {
        let longest = self.session.limits().early_cancel_timeout;
        before.parked.iter().any(|(scope, key, principal, age)| {
            *scope == name.scope && *key == name.key && *principal == name.principal && *age < longest
        })
    }

    /// Whether a request can start or wait.
    fn has_room(&self, is_blocking: bool) -> bool {
        let limits = self.session.limits();
        let thread = self.unscoped(BLOCKING).id;
        let is_thread = |name: &Option<Name>| name.as_ref().is_some_and(|name| name.id == thread);
        let alive = self.ledger.served.values().filter(|served| served.started && !served.ended);
        let (all, threads) = (alive.clone().count(), alive.filter(|served| is_thread(&served.name)).count());
        let waiting = self.ledger.served.values().filter(|served| !served.started && !served.is_settled());
        let (queued, same) = (
            waiting.clone().count(),
            waiting.filter(|served| is_thread(&served.name) == is_blocking).count(),
        );
        let starts = all < limits.max_running_handlers
            && (!is_blocking || threads < limits.max_blocking_handlers)
            && same == 0;
        starts || queued < limits.max_queued_requests
    }

    /// I1, I4: a request is admitted or refused as the ledger says, once, and no other input is taken for one.
    pub(super) fn check_verdict(
        &mut self,
        input: Input,
        verdict: &Verdict,
        accepted: Option<InboundKey>,
        outputs: &[Output],
    ) -> Result<(), Broken> {
        let mut reported = outputs.iter().filter(|output| {
            matches!(
                output,
                Output::Refuse { .. } | Output::RefuseCancelled { .. } | Output::ExchangeEnd { .. }
            )
        });
        let (first, more) = (reported.next(), reported.next());
        let (expected, known) = match verdict {
            Verdict::None | Verdict::Admitted => (None, None),
            Verdict::Outputs(expected, known) => (expected.as_ref(), known.clone()),
        };
        let fits = first == expected && more.is_none();
        let invariant = if expected.is_none() { "I8" } else { "I4" };
        holds_and_counts(expected.is_some(), fits, invariant, || {
            format!("{input:?} should give {expected:?}, and gives {outputs:?}")
        })?;
        let is_let_in = *verdict == Verdict::Admitted;
        holds_and_counts(is_let_in, accepted.is_some() == is_let_in, "I1", || {
            format!("{input:?} came to {accepted:?}, and it was owed {verdict:?}")
        })?;
        if let Some((key, status)) = known {
            self.remember_key(key, status);
        }
        Ok(())
    }
}
