//! The reach of one input: a cancel affects only its request.

use rescind_core::dialect::EarlyCancel;
use rescind_core::inspect::{Inspection, RequestState, RequestView};
use rescind_core::{CallNumber, Output, RequestId};

use super::invariants::{Broken, holds};
use super::oracle::{Kind, Name};
use super::state::{IDS, MachineState};

impl MachineState {
    /// A cancel affects, at once, the request that it names and its descendants, and nothing else.
    pub(super) fn check_cancel(
        &self,
        cancelled: &Name,
        before: &Inspection,
        after: &Inspection,
        outputs: &[&Output],
    ) -> Result<(), Broken> {
        let id = &cancelled.key;
        if self.is_called_off() {
            return check_called_off(id, before, after, outputs);
        }
        let has = |view: &&RequestView| {
            view.id.0 == cancelled.scope
                && self.key_of(&view.id.1) == *id
                && view.state != RequestState::Ended
        };
        let is_open = |view: &&RequestView| !matches!(view.state, RequestState::Draining(_));
        let mut named = before.requests.iter().filter(has);
        // If two requests have the key, the draining one has passed it to the other.
        let target = named.clone().find(is_open).or_else(|| named.next());
        for output in outputs {
            let reached = match output {
                Output::Signal { key, .. } | Output::Silence { key, .. } | Output::Start(key) => Some(*key),
                Output::Reply(reply) => Some(reply.key),
                Output::SendCancel { call, .. } | Output::TakeBack(call) => {
                    before.calls.iter().find(|view| view.key == *call).and_then(|view| view.parent)
                }
                _ => continue,
            };
            let own = reached.is_some() && reached == target.map(|view| view.key);
            holds(own, "I4", || format!("a cancel of {id:?} brought {output:?}"))?;
        }
        let Some(target) = target else { return self.check_unknown(cancelled, before, after) };
        let key = target.key;
        let now = after.requests.iter().find(|view| view.key == key);
        let kind = self.ledger.served.get(&key).map_or(Kind::Work, |served| served.kind);
        if target.cause.is_some() || kind != Kind::Work || !self.hears_cancels() {
            let same = now.map(|now| (now.state, now.cause)) == Some((target.state, target.cause));
            let is_gated = kind == Kind::Handshake || !self.hears_cancels();
            return holds(same, if is_gated { "I9" } else { "I7" }, || {
                format!("a cancel that counts for nothing moved {key:?}: {target:?}, {now:?}")
            });
        }
        let signalled =
            outputs.iter().any(|output| matches!(output, Output::Signal { key: to, .. } if to == &key));
        match target.state {
            RequestState::Running if target.shields == 0 => {
                holds(signalled, "L1", || format!("{key:?} was cancelled and not signalled"))
            }
            RequestState::Queued => {
                let entered = outputs.iter().any(|output| matches!(output, Output::Start(to) if to == &key));
                holds(now.is_none() && !entered, "L1", || {
                    format!("{key:?} was cancelled in the queue and is there")
                })
            }
            _ => {
                holds(!signalled, "I6", || format!("{key:?} was signalled, though it is decided or shielded"))
            }
        }
    }

    /// I8: a cancel that names no request of its sender changes nothing, unless it may be early.
    pub(super) fn check_unknown(
        &self,
        cancelled: &Name,
        before: &Inspection,
        after: &Inspection,
    ) -> Result<(), Broken> {
        let id = &cancelled.key;
        let may_wait = match self.session.dialect().rules().early {
            EarlyCancel::Never => false,
            EarlyCancel::WhereUnordered => !self.ordered && !self.is_exchange_scoped,
            EarlyCancel::Always => !self.is_exchange_scoped,
        };
        let mut unknown = after.clone();
        if may_wait {
            unknown.parked.clone_from(&before.parked);
        }
        // Remembered entries may have expired meanwhile. No entry is added.
        let only_ages = after.remembered.iter().all(|entry| before.remembered.contains(entry));
        unknown.remembered.clone_from(&before.remembered);
        holds(only_ages && unknown == *before, "I8", || {
            format!("a cancel of {id:?}, which is unknown, left something")
        })
    }

    /// The key by which a cancel names the request with this id.
    fn key_of(&self, id: &RequestId) -> RequestId {
        let name = (0..IDS).map(|id| self.unscoped(id)).find(|name| name.id == *id);
        name.map_or_else(|| id.clone(), |name| name.key)
    }
}

/// A cancel that names a call of this side ends that call, if its dialect allows it, and nothing else (I4).
fn check_called_off(
    id: &RequestId,
    before: &Inspection,
    after: &Inspection,
    outputs: &[&Output],
) -> Result<(), Broken> {
    let number = id.as_number().and_then(|number| u64::try_from(number).ok()).map(CallNumber);
    let named = before.calls.iter().find(|view| Some(view.number) == number);
    let others = outputs.iter().find(|output| match output {
        Output::Settle { call, .. } => named.is_none_or(|view| view.key != *call),
        Output::Event(_) | Output::Ack { .. } | Output::ExchangeEnd { .. } | Output::Close(_) => false,
        _ => true,
    });
    holds(others.is_none(), "I4", || format!("the peer called {id:?} off, and it brought {others:?}"))?;
    let ended = outputs.iter().any(|output| matches!(output, Output::Settle { .. }));
    holds(ended || *before == *after, "I8", || {
        format!("the peer called {id:?} off, which ends nothing, and it left something")
    })
}
