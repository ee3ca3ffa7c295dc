//! What an input is owed at once, told from the account and not from what the machine says of itself.

use rescind_core::dialect::Refusal;
use rescind_core::{AfterCancel, AnswerKind, InboundKey, OutboundKey, Output, RequestId, Settlement};

use super::input::Input;
use super::invariants::{Broken, holds};
use super::world::World;

/// What has to come of an input, as it stood before.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owed {
    Nothing,
    /// This call ends, by this answer.
    Answer(OutboundKey, AnswerKind),
    /// This call ends for its caller.
    Return(OutboundKey),
    /// A handler hears of the cancel that its critical section held off.
    Signal(InboundKey),
}

impl World {
    pub(super) fn owed(&self, input: Input) -> Owed {
        let waits = |key: &OutboundKey| self.ledger.made.get(key).is_some_and(|made| !made.settled);
        match input {
            Input::Answer(key, kind)
                if waits(&key) && self.ledger.made.get(&key).is_some_and(|made| made.written) =>
            {
                Owed::Answer(key, kind)
            }
            Input::CancelCall(key, AfterCancel::ReturnNow) if waits(&key) => Owed::Return(key),
            Input::Unshield(key) if self.ledger.owes_signal(key) => Owed::Signal(key),
            _ => Owed::Nothing,
        }
    }

    /// I4: a request under an id in use is refused, and so that nobody takes it for an answer to the first.
    pub(super) fn check_duplicate(&self, id: &RequestId, outputs: &[Output]) -> Result<(), Broken> {
        let mut owners = self.ledger.served.values().filter(|served| !served.ended);
        let owner = owners.find(|served| served.id.as_ref() == Some(id));
        let Some(owner) = owner.filter(|_| !self.ledger.lost) else { return Ok(()) };
        let refused = outputs.iter().any(|output| match output {
            Output::Refuse { to: None, why: Refusal::DuplicateId, .. } => !owner.is_settled(),
            Output::Refuse { to: Some((to, _)), why: Refusal::Overloaded(_), .. } => {
                owner.is_settled() && to == id
            }
            _ => false,
        });
        holds(refused, "I4", || format!("a second request under {id:?} beside {owner:?} brought {outputs:?}"))
    }
}

pub(super) fn check_owed(owed: Owed, outputs: &[Output]) -> Result<(), Broken> {
    let ends = |key: OutboundKey| {
        outputs.iter().filter_map(move |output| match output {
            Output::Settle { call, settlement } if *call == key => Some(settlement),
            _ => None,
        })
    };
    match owed {
        Owed::Nothing => Ok(()),
        Owed::Answer(key, kind) => {
            let fits = |end: &&Settlement| match kind {
                AnswerKind::Value | AnswerKind::Error => matches!(end, Settlement::Answered { .. }),
                AnswerKind::Cancelled => matches!(end, Settlement::Cancelled { confirmed: true, .. }),
            };
            holds(ends(key).filter(fits).count() == 1, "I13", || {
                format!("{key:?} was answered with {kind:?}, and its caller sees {outputs:?}")
            })
        }
        Owed::Return(key) => holds(ends(key).count() == 1, "I13", || {
            format!("{key:?} was to return at once, and its caller sees {outputs:?}")
        }),
        Owed::Signal(key) => {
            let told = |output: &Output| matches!(output, Output::Signal { key: to, .. } if *to == key);
            holds(outputs.iter().any(told), "L1", || {
                format!("{key:?} left its critical section and did not hear of its cancel")
            })
        }
    }
}
