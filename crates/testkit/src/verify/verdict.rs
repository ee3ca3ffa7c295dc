//! Whether a request is let in, and what it is told if not; and which exchanges end with nothing. Told from the account.

use rescind_core::dialect::{CancelledReply, Refusal};
use rescind_core::inspect::Inspection;
use rescind_core::{AckStatus, Cause, CauseKind, ExchangeId, InboundKey, Output, RequestId, Scope};

use super::input::Input;
use super::invariants::{Broken, holds};
use super::ledger::{Kind, Name};
use super::world::{BLOCKING, CANCELS_COME_ON, HELLO, World};

/// What has to come of an input that could be refused or end an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing of either kind.
    None,
    /// A request gets a slot.
    LetIn,
    /// This is all that is said, if anything; and this is remembered of the key.
    Told(Option<Output>, Option<(RequestId, AckStatus)>),
}

/// A request that is asked.
struct Asked {
    name: Name,
    kind: Kind,
    is_blocking: bool,
    exchange: ExchangeId,
}

impl World {
    /// What has to come of this input, as it stood before it.
    pub(super) fn verdict(&self, input: Input, before: &Inspection) -> Verdict {
        let asked = match input {
            Input::Request(id) => Asked {
                name: self.name(id),
                kind: Kind::Work,
                is_blocking: id == BLOCKING,
                exchange: self.origin(self.next_exchange(id)).exchange,
            },
            Input::Hello => Asked {
                name: RequestId::number(HELLO).into(),
                kind: Kind::Handshake,
                is_blocking: false,
                exchange: self.origin(ExchangeId(800)).exchange,
            },
            Input::Cancel(_) | Input::CancelHello | Input::CancelNothing | Input::CancelByStranger => {
                // A cancel that is acknowledged ends its exchange by that.
                let exchange = self.origin(CANCELS_COME_ON).exchange;
                let ends = exchange.is_peers() && !self.names_keys();
                return Verdict::Told(ends.then_some(Output::Finish { exchange, silent: false }), None);
            }
            Input::Call(_)
            | Input::Stale(_)
            | Input::Agreed
            | Input::Offer(..)
            | Input::Ended(_)
            | Input::Shield(_)
            | Input::Unshield(_)
            | Input::LocalCancel(_)
            | Input::Deadline(_)
            | Input::StreamLost(_)
            | Input::StreamBack(_)
            | Input::HalfClose
            | Input::Lost(_)
            | Input::Shutdown
            | Input::Time
            | Input::Wait => return Verdict::None,
        };
        self.admission(&asked, before)
    }

    fn admission(&self, asked: &Asked, before: &Inspection) -> Verdict {
        let Asked { name, kind, is_blocking, exchange } = asked;
        let exchange = *exchange;
        let refused = |why| Output::Refuse { to: Some((name.id.clone(), 0)), exchange, why };
        let is_new = |status| {
            let holder = self.ledger.named(&name.key);
            holder.is_none().then(|| (name.key.clone(), status))
        };
        let completed = || is_new(AckStatus::AlreadyCompleted);
        if self.ledger.lost {
            return Verdict::Told(None, None);
        }
        if let Some((_, owner)) = self.ledger.owner(&name.id) {
            return if owner.is_settled() {
                Verdict::Told(Some(refused(Refusal::Overloaded("draining"))), completed())
            } else {
                let why = Refusal::DuplicateId;
                Verdict::Told(Some(Output::Refuse { to: None, exchange, why }), None)
            };
        }
        let holder = self.ledger.named(&name.key).filter(|_| self.names_keys() && *kind == Kind::Work);
        if holder.is_some_and(|(_, holder)| !holder.is_settled()) {
            return Verdict::Told(Some(refused(Refusal::DuplicateKey)), completed());
        }
        let rules = self.session.dialect().rules();
        if rules.session_required && *kind == Kind::Work && !self.done.agreed {
            return Verdict::Told(Some(refused(Refusal::NotInitialized)), completed());
        }
        if self.ledger.ending.shutdown || self.ledger.ending.half_closed {
            return self.refused_as_cancelled(asked, CauseKind::Shutdown, is_new(AckStatus::Cancelled));
        }
        if *kind == Kind::Work && self.was_early(name, before) {
            return self.refused_as_cancelled(asked, CauseKind::Peer, is_new(AckStatus::Cancelled));
        }
        if self.has_room(*is_blocking) {
            return Verdict::LetIn;
        }
        Verdict::Told(Some(refused(Refusal::Overloaded("queued"))), completed())
    }

    fn refused_as_cancelled(
        &self,
        asked: &Asked,
        kind: CauseKind,
        known: Option<(RequestId, AckStatus)>,
    ) -> Verdict {
        let exchange = asked.exchange;
        let silence = self.session.dialect().rules().peer_cancelled == CancelledReply::Silence;
        if kind == CauseKind::Peer && silence {
            let ends = exchange != ExchangeId::NONE;
            return Verdict::Told(ends.then_some(Output::Finish { exchange, silent: true }), known);
        }
        let told = Output::RefuseCancelled {
            id: asked.name.id.clone(),
            tag: 0,
            server_cancellable: false,
            exchange,
            graceful: None,
            cause: Cause::new(kind),
        };
        Verdict::Told(Some(told), known)
    }

    /// I8: a cancel that came before its request counts for so long, and for its sender's request alone.
    fn was_early(&self, name: &Name, before: &Inspection) -> bool {
        let longest = self.session.limits().parked_time;
        before.parked.iter().any(|(scope, key, principal, age)| {
            *scope == Scope::Session && *key == name.key && principal.is_none() && *age < longest
        })
    }

    /// Whether a request can start or wait.
    fn has_room(&self, is_blocking: bool) -> bool {
        let limits = self.session.limits();
        let is_thread = |name: &Option<Name>| *name == Some(self.name(BLOCKING));
        let alive = self.ledger.served.values().filter(|served| served.started && !served.ended);
        let (all, threads) = (alive.clone().count(), alive.filter(|served| is_thread(&served.name)).count());
        let waiting = self.ledger.served.values().filter(|served| !served.started && !served.is_settled());
        let (queued, same) = (
            waiting.clone().count(),
            waiting.filter(|served| is_thread(&served.name) == is_blocking).count(),
        );
        let starts = all < limits.running && (!is_blocking || threads < limits.blocking) && same == 0;
        starts || queued < limits.queued
    }

    /// I1, I4: a request is let in or refused as the account says, once, and no other input is taken for one.
    pub(super) fn check_verdict(
        &mut self,
        input: Input,
        verdict: &Verdict,
        accepted: Option<InboundKey>,
        outputs: &[Output],
    ) -> Result<(), Broken> {
        let mut told = outputs.iter().filter(|output| {
            matches!(output, Output::Refuse { .. } | Output::RefuseCancelled { .. } | Output::Finish { .. })
        });
        let (first, more) = (told.next(), told.next());
        let (expected, known) = match verdict {
            Verdict::None | Verdict::LetIn => (None, None),
            Verdict::Told(expected, known) => (expected.as_ref(), known.clone()),
        };
        let fits = first == expected && more.is_none();
        holds(fits, if expected.is_none() { "I8" } else { "I4" }, || {
            format!("{input:?} was to be told {expected:?}, and it brought {outputs:?}")
        })?;
        holds(accepted.is_some() == (*verdict == Verdict::LetIn), "I1", || {
            format!("{input:?} came to {accepted:?}, and it was owed {verdict:?}")
        })?;
        if let Some((key, status)) = known {
            self.remember_key(key, status);
        }
        Ok(())
    }
}
